"""The table of options: each door takes what it says, and an option comes back from a study as it was given."""

from __future__ import annotations

import inspect
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import bisect_cfg
from bisect_cfg import api
from bisect_cfg.cli import cli
from bisect_cfg.kinds import COUNT, FILE, FOLDER
from bisect_cfg.options import OF_BISECTIONS, OPTIONS, Options, options_of
from bisect_cfg.store.folder import write_command

LINES = (
    "studies/x.py --good bf16=false --good g.yaml --only beta --exclude lr --pin seed=1 --failure any "
    "--python python3 --jobs 2 --devices 0,1 --start cold --steps 3 --training 2 --trial-timeout 5.0 "
    "--from-checkpoint c --log l --prove from-start --until-failure --max-disk 1.5 --longest-first --isolate-data "
    "--confirm 3 --confidence 0.9 --first --max-seconds 60.0 --max-trials 9 --no-where "
    "--no-recommend --keep beta --verify-seeds 5 --verify-steps 40 --margin 0.2 --remedies 2 --no-environments "
    "--on 10.0.0.7:6379 --slots 4 --gpus-per-trial 2 "
    "--study s/t --storage sqlite:///x.db --env-cache e -- --lr 'a b'",
    "--good a=1 --bad b.yaml --config-format json --good-packages f.txt -- sort {flags}",
    ".",
)
"""Command lines with every option."""


def parsed(line: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, tuple[str, ...], Options]:
    """What the command line makes of a line."""
    given = []
    monkeypatch.setattr(api, "run", lambda *told: (given.extend(told[:3]), sys.exit(0)))
    with pytest.raises(SystemExit):
        cli.main(shlex.split(line), standalone_mode=False)
    return tuple(given)


def test_every_option_is_typed_above():
    flags = {word for line in LINES for word in line.split()}
    assert {row.flag for row in OPTIONS.values()} - flags == {"--restart"}, "which one says once"


def test_a_line_and_keyword_arguments_say_the_same(monkeypatch):
    _, _, typed = parsed(f"bisect {LINES[0]}", monkeypatch)
    python = {
        name: list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        for name, value in asdict(typed).items()
    }
    assert options_of({**python, "devices": [0, 1], "only": "args.beta"}, "bisect") == typed


def test_keyword_arguments_are_completed_and_misspelled_ones_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert OPTIONS.keys() <= inspect.signature(bisect_cfg.bisect).parameters.keys()
    assert OF_BISECTIONS.keys() <= inspect.signature(bisect_cfg.Bisection).parameters.keys()
    assert all(row.help in bisect_cfg.bisect.__doc__ for row in OPTIONS.values())
    for wrong, right in (("excluded", "exclude"), ("pins", "pin"), ("max_trails", "max_trials")):
        with pytest.raises(TypeError, match=rf"bisect\(\) has no option {wrong}: did you mean {right}\?"):
            bisect_cfg.bisect("train.py", **{wrong: 3})
    with pytest.raises(TypeError, match=r"Bisection\(\) has no option confrm: did you mean confirm\?"):
        bisect_cfg.Bisection({}, {}, print, confrm=3)
    with pytest.raises(TypeError, match=r"has no option lr$"):
        bisect_cfg.bisect("train.py", lr=3)
    assert dir(bisect_cfg) == ["Bisection", "Outcome", "TrialResult", "bisect", "load"]


def test_options_come_back_from_a_study(tmp_path):
    given = Options(
        study=tmp_path,
        good=("lr=1", ("bf16", None)),
        only=("lr", "bf16"),
        **{name: 3 for name, row in OPTIONS.items() if row.kind is COUNT},
        **{name: tmp_path / name for name, row in OPTIONS.items() if row.kind in (FILE, FOLDER) and name != "study"},
    )
    folder, options = str(tmp_path), asdict(given)
    write_command(tmp_path, {"target": "train.py", "arguments": [], "folder": folder, "options": options})
    for name in ("state.json", "result.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "state.json").chmod(0o600)
    _, found = api._asked_before(tmp_path, {}, (), trust=False)
    assert found == replace(given, max_trials=None, max_seconds=None)  # limits are of one pass
