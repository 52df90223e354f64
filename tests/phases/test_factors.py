"""Before the factors are compared: defaults that are known to be at fault, and what a launcher was asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bisect_cfg.parameters import every
from bisect_cfg.phases import factors
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.options import Options
from bisect_cfg.reports.listener import Listener
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


@pytest.mark.parametrize(
    ("asked", "kind", "multi_gpu", "started", "said"),
    [
        ("2", "torchrun", None, 2, None),
        (None, "torchrun", None, 1, None),
        ("gpu", "torchrun", None, 1, None),  # as many as there are
        ("2", "torchrun", None, 1, "You asked for 2 processes, and one process trained."),
        ("2", "torchrun", None, 4, "You asked for 2 processes, and 4 processes trained together."),
        ("2", "accelerate", None, 1, "if it is told --multi_gpu."),
        ("2", "accelerate", "", 1, "and one process trained."),
    ],
)
def test_fewer_processes_than_asked_for(tmp_path: Path, asked, kind, multi_gpu, started, said) -> None:
    launch = SimpleNamespace(kind=kind, value_of=lambda *names: multi_gpu if names == ("multi_gpu",) else asked)
    context = Context(None, Options(), Listener(), tmp_path, {}, None)
    factors._compare_launch(context, launch, started)
    assert context.notes == [] if said is None else context.notes[0].endswith(said)
