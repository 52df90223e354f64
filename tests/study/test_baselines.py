"""The baselines of a script: what is taken over from the user, what must be seen again, and what that says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import toys
from tools import asked, slow

from bisect_cfg.common.configuration import Factor, Outcome
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.parameters import every
from bisect_cfg.store.causes import Report
from bisect_cfg.study import baselines as module
from bisect_cfg.study.baselines import DEFAULTS, Baselines, with_defaults_of_the_moved
from tests.report.made import DIED, HEALTHY, REPORT, run
from tests.study.stand_ins import Runner, study_of


def endings(study: Path) -> dict[str, int]:
    """Every run that came to its end, with the time of that."""
    return {path.parent.name: path.stat().st_mtime_ns for path in study.glob("trials/*/ending.json")}


COSTLY = """
    import time
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir="out", beta=0.2, gradient_accumulation_steps=3, max_completion_length=12, weight_decay=0.1,
        learning_rate=1e-4,
    )

    def step(number):
        time.sleep(1.2 if args.max_completion_length > 100 else 0.01)
        if number == 2 and args.beta and args.gradient_accumulation_steps == 3:
            raise RuntimeError("boom")

    GRPOTrainer(args, step=step).train()
"""
"""The default of one setting makes a step take 1.2 s; another setting of the same kind is half of the cause."""


def test_only_what_makes_the_good_configuration_costly_is_taken_over(tool, monkeypatch):
    monkeypatch.setattr(module, "COSTLY_SECONDS", 1.0)  # the command is forked from here
    toys.write(tool.folder, COSTLY)
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s" / "result.json").read_text())
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["beta", "gradient_accumulation_steps"]]
    assert any("keeps your max_completion_length" in note for note in result["notes"])
    # It was ended as soon as its pace was known: within three steps, not after all six.
    assert len((asked(tool.folder / "s")["good-config"] / "metrics.jsonl").read_text().splitlines()) <= 3
    # At the end the cause was run with the default, too.
    assert any("max_completion_length it fails too" in note for note in result["notes"])
    assert result["complete"]
    ended = endings(tool.folder / "s")
    again = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert again.status == 0 and "max_completion_length" in again.all
    assert endings(tool.folder / "s") == ended
    assert json.loads((tool.folder / "s" / "result.json").read_text())["notes"] == result["notes"]


ONCE = """
    import pathlib
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(output_dir="out", beta=0.2, weight_decay=0.1, learning_rate=1e-4)
    seen = pathlib.Path(__file__).with_name("seen")

    def step(number):
        if number == 3 and not seen.exists():
            seen.touch()
            raise RuntimeError("boom")

    GRPOTrainer(args, step=step).train()
"""


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_failure_seen_once_and_never_again_is_inconclusive(tool, jobs):
    toys.write(tool.folder, ONCE)
    said = tool("bisect", "train.py", "--study", "s", "--jobs", jobs)
    assert said.status == 3, said.all
    result = json.loads((tool.folder / "s" / "result.json").read_text())
    assert result["status"] == "inconclusive" and not result["causes"]
    assert 0 < result["reproduction"]["rate"] <= 1 / 4
    assert "failed in 1 of" in said.all and "Cause" not in said.out


RANDOM = """
    import os, pathlib
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir="out", beta=0.2, weight_decay=0.1, learning_rate=1e-4, warmup_steps=5, adam_beta2=0.9,
        temperature=0.7,
    )
    runs = pathlib.Path(__file__).with_name("runs")

    def step(number):
        if number == 3 and args.beta:
            (runs / str(os.getpid())).mkdir(parents=True)
            if 7 * len(list(runs.iterdir())) % 10 < 8:  # 7, 4, 1, 8, 5, 2, 9, 6, 3, 0
                raise RuntimeError("boom")

    GRPOTrainer(args, step=step).train()
"""


def test_a_random_failure_is_called_random(tool):
    toys.write(tool.folder, RANDOM)
    for _ in range(8):  # the first run passes in three of ten
        said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where", "--restart")
        if said.status != 1:
            break
    result = json.loads((tool.folder / "s" / "result.json").read_text())
    assert said.status == 0 and result["complete"], said.all
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["beta"]]
    assert result["reproduction"]["rate"] < 1
    assert "The failure is random: it showed in" in said.out
    assert result["causes"][0]["step"] == 3


NEEDS = """
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir="out", beta=0.2, weight_decay=0.1, learning_rate=1e-4, warmup_steps=5, adam_beta2=0.9,
        temperature=0.7, max_grad_norm=0.5,
    )

    def step(number):
        if not {needed}:
            raise ValueError({says!r})
        if number == 3 and args.beta and args.temperature < 1:
            raise RuntimeError("boom")

    GRPOTrainer(args, step=step).train()
"""


@pytest.mark.parametrize("says", ["the data has no length", slow("max_grad_norm must be below 1 for this data")])
def test_what_the_script_cannot_do_without_stays(tool, says):
    toys.write(tool.folder, NEEDS.format(needed="args.max_grad_norm < 1", says=says))
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s" / "result.json").read_text())
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["beta", "temperature"]] and result[
        "complete"
    ]
    assert "keeps your max_grad_norm=0.5" in said.all and result["not_varied"]["max_grad_norm"]
    assert "yours without" in said.out and "without max_grad_norm" not in said.out  # it is not what a trial is told by
    ended = endings(tool.folder / "s")
    again = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert again.status == 0 and endings(tool.folder / "s") == ended
    once_more = json.loads((tool.folder / "s" / "result.json").read_text())
    assert (once_more["causes"], once_more["notes"]) == (result["causes"], result["notes"])


def test_one_that_it_cannot_do_without_after_another(tool):
    then = "        if not args.warmup_steps:\n            raise ValueError('warmup_steps must be set')\n"
    text = NEEDS.format(needed="args.max_grad_norm < 1", says="no length")
    toys.write(tool.folder, text.replace("        if number == 3", then + "        if number == 3"))
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s" / "result.json").read_text())
    assert {"max_grad_norm", "warmup_steps"} <= set(result["not_varied"])
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["beta", "temperature"]]


def test_two_that_it_cannot_do_without_are_left_to_the_user(tool):
    toys.write(tool.folder, NEEDS.format(needed="(args.max_grad_norm < 1 and args.warmup_steps)", says="no length"))
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert said.status == 1 and "no length" in said.all, said.all


RISKY = {name: known.risky_default for name, known in every().items() if known.risky_default}


@pytest.fixture
def with_resolved(tmp_path, monkeypatch):
    """The defaults that are to be replaced in a run that resolved to these values."""

    def found(resolved: dict, good: dict | None = None, pins: dict | None = None) -> dict:
        args = SimpleNamespace(resolved=resolved)
        monkeypatch.setattr(module, "read_capture", lambda rows: SimpleNamespace(args=args))
        return module.without_risky_defaults(run(tmp_path, DIED), good or {}, pins or {})

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


LENGTH = SimpleNamespace(name="max_completion_length", good=256, bad=12, reset=256)
BF16 = Factor("bf16", False, True)
GOOD = {"bf16": False, "max_completion_length": 12}
BAD = {"bf16": True, "max_completion_length": 12}


def settled(folder: Path, outcome: Outcome, costly: bool = False, moved=(LENGTH,), report: Report = REPORT):
    """What the phase makes of such a run: the report, what was said, what was run."""
    hung = replace(DIED, died=Signature("hang"))
    seen = {Outcome.FAIL: DIED, Outcome.PASS: HEALTHY, Outcome.UNRESOLVED: hung}[outcome]
    settings = SimpleNamespace(good=GOOD, bad=BAD, varied=())
    runner = Runner(folder, settings, lambda question: replace(run(folder, seen), costly=costly))
    study = study_of(folder, runner)
    study.baselines = SimpleNamespace(moved={factor.name: factor for factor in moved})
    return with_defaults_of_the_moved(study, report), study.notes, runner.ran


@pytest.mark.parametrize(
    ("outcome", "costly", "complete", "said"),
    [
        (Outcome.FAIL, False, True, "it fails too, so what you set there is not part of the cause"),
        (Outcome.PASS, False, False, "it passes (10 steps), so the failure needs your value as well"),
        (Outcome.PASS, True, False, "was not settled"),
        (Outcome.UNRESOLVED, False, False, "was not settled"),
    ],
)
def test_the_cause_is_run_with_the_defaults(tmp_path, outcome, costly, complete, said) -> None:
    report, notes, ((question, plan, _),) = settled(tmp_path, outcome, costly)
    assert report == replace(REPORT, complete=complete)
    assert len(notes) == 1 and said in notes[0] and LENGTH.name in notes[0]
    assert (question, plan.steps) == (DEFAULTS, 10)
    assert plan.configuration == {"bf16": True, "max_completion_length": 256}
    assert not plan.is_too_costly(None, 1.0) and plan.is_too_costly(None, 1e4)


def test_where_nothing_was_taken_over_nothing_is_run(tmp_path) -> None:
    assert settled(tmp_path, Outcome.PASS, moved=()) == (REPORT, [], [])
    nothing = replace(REPORT, causes=())
    assert settled(tmp_path, Outcome.PASS, report=nothing) == (nothing, [], [])


def test_why_trials_do_not_start_warm_is_said_once() -> None:
    notes: list[str] = []
    starts = SimpleNamespace(start_at=lambda start: "threads run")
    baselines = SimpleNamespace(
        _unsound={}, _study=SimpleNamespace(note=notes.append, site=SimpleNamespace(starts=starts))
    )
    assert not any(Baselines._bring_up(baselines, start) for start in ("config", "imports", "config"))
    assert notes == ["Trials are not forked from your script at its configuration: threads run."]
