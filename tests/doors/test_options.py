"""Options by the kinds of their values: each is checked, and comes back from a study as it was given."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

from bisect_cfg import checks
from bisect_cfg.api import _asked_before
from bisect_cfg.store.invocation import write_command
from bisect_cfg.study.options import Options


def test_every_option_is_of_one_kind() -> None:
    kinds = (checks.COUNTS, checks.SWITCHES, checks.MANY, checks.PATHS, checks.TEXTS, checks.NUMBERS, checks.CHOICES)
    assert sorted(name for kind in kinds for name in kind) == sorted(
        f.name for f in fields(Options) if f.name != "flags"
    )


def test_options_come_back_from_a_study(tmp_path: Path) -> None:
    given = Options(
        study=tmp_path,
        good=("lr=1", ("bf16", None)),
        only=("lr", "bf16"),
        **dict.fromkeys(checks.COUNTS, 3),
        **{name: tmp_path / name for name in checks.PATHS if name != "study"},
        **{name: most for name, (_, most, _) in checks.NUMBERS.items()},
        **{name: choices[-1] for name, choices in checks.CHOICES.items()},
    )
    write_command(
        tmp_path,
        {
            "target": "train.py", "arguments": [], "python": None, "folder": str(tmp_path), "options": asdict(given),
        },
    )  # fmt: skip
    for name in ("state.json", "result.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "state.json").chmod(0o600)
    _, found = _asked_before(tmp_path, {}, (), None, trust=False)
    assert found == replace(given, max_trials=None, max_seconds=None)  # limits are of one pass
