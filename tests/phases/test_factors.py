"""Before the factors are compared: defaults that are known to be at fault."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bisect_cfg.parameters import every
from bisect_cfg.phases import factors
from tests.reports.made import DIED, run

RISKY = {name: known.risky_default for name, known in every().items() if known.risky_default}


@pytest.fixture
def with_resolved(tmp_path, monkeypatch):
    """The defaults that are to be replaced in a run that resolved to these values."""

    def found(resolved: dict, good: dict | None = None, pins: dict | None = None) -> dict:
        args = SimpleNamespace(resolved=resolved)
        monkeypatch.setattr(factors, "read_capture", lambda rows: SimpleNamespace(args=args))
        return factors.without_risky_defaults(run(tmp_path, DIED), good or {}, pins or {})

    return found


def test_a_risky_default_gives_way_to_the_one_before_it(with_resolved) -> None:
    assert "bf16" in RISKY
    defaults = {name: default for name, (default, _) in RISKY.items()}
    before = {name: old for name, (_, old) in RISKY.items()}
    assert with_resolved(defaults) == before
    assert with_resolved(before) == {}  # the run has not got it
    assert with_resolved({}) == {}


@pytest.mark.parametrize("name", ["bf16", "args.bf16"])
def test_what_the_user_says_stays(with_resolved, name: str) -> None:
    defaults = {name: default for name, (default, _) in RISKY.items()}
    for said in ({"good": {name: True}}, {"pins": {name: True}}):
        assert "bf16" not in with_resolved(defaults, **said)
