"""The baselines of a script: what is taken over from the user, what must be seen again, and what that says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools import QUICK, asked
from toys import script

from bisect_cfg.common.configuration import Factor, Outcome
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.runner.verdict import INVALID, REFUSED
from bisect_cfg.store.causes import Report
from bisect_cfg.study import baselines as module
from bisect_cfg.study.baselines import DEFAULTS, Baselines, with_defaults_of_the_moved
from bisect_cfg.study.good_sides import GoodSides
from tests.report.made import DIED, HEALTHY, REPORT, findings, run
from tests.study.stand_ins import Runner, study_of

COSTLY = """
    import time
    args = GRPOConfig(
        output_dir="out", beta=0.2, gradient_accumulation_steps=3, max_completion_length=12, weight_decay=0.1,
        learning_rate=1e-4,
    )
    def step(number):
        time.sleep(1.2 if args.max_completion_length > 100 else 0.01)
        if number == 2 and args.beta and args.gradient_accumulation_steps == 3:
            raise RuntimeError("boom")
    GRPOTrainer(args, step).train()
"""
"""The default of one setting makes a step take 1.2 s; another setting of the same kind is half of the cause."""


def test_only_what_makes_the_good_configuration_costly_is_taken_over(tool, monkeypatch):
    monkeypatch.setattr(module, "COSTLY_SECONDS", 1.0)  # the command is forked from here
    script(tool.folder, COSTLY)
    study = tool.bisect("train.py", *QUICK)
    ended, notes = study.ended, study.result["notes"]
    assert study.causes == [["beta", "gradient_accumulation_steps"]] and study.result["complete"]
    assert "keeps your max_completion_length" in " ".join(notes)
    # It was ended as soon as its pace was known: within three steps, not after all six.
    assert len((asked(study.folder)["good-config"] / "metrics.jsonl").read_text().splitlines()) <= 3
    assert "max_completion_length it fails too" in " ".join(notes), "at the end the default was tried as well"
    again = tool.bisect("train.py", *QUICK)
    assert again.ended == ended and again.result["notes"] == notes


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


@pytest.mark.parametrize(
    ("died", "tried"),
    [
        (Signature(INVALID, "the checkpoint's optimizer cannot be loaded"), ["config"]),
        (Signature("exception", "FileNotFoundError"), ["config", "imports", "cold"]),
    ],
)
def test_what_cannot_begin_is_not_tried_at_a_colder_start(tmp_path, monkeypatch, died, tried) -> None:
    starts: list[str] = []

    def good_baseline(self: Baselines, bad_run: object, start: str) -> object:
        starts.append(start)
        return run(tmp_path, replace(DIED, died=died))

    monkeypatch.setattr(Baselines, "_allowed_starts", lambda self: ("config", "imports", "cold"))
    monkeypatch.setattr(Baselines, "_failing_from", lambda self, start: [])
    monkeypatch.setattr(Baselines, "_good_baseline", good_baseline)
    settings = SimpleNamespace(good=GOOD, bad=BAD, varied=(), seen=False)
    study = study_of(tmp_path, Runner(tmp_path, settings, lambda question: run(tmp_path, DIED)))
    study.site.starts = SimpleNamespace(start_at=lambda start: None)
    _, good = Baselines(study).find(run(tmp_path, DIED))
    assert good.shown.signature == died and starts == tried


def test_what_only_a_checkpoint_needs_varies_again_elsewhere(tmp_path) -> None:
    """Its adapter has a rank of the user's: from step 0 the good one trains as well."""
    settings, refused = (
        findings(tmp_path).settings,
        replace(DIED, died=Signature(REFUSED, "its weights"), message="bf16"),
    )
    runner = Runner(
        tmp_path,
        settings,
        lambda question: run(tmp_path, HEALTHY if "-with-bf16" in question else refused),
        Origin("checkpoint-22", 22),
    )
    study = study_of(tmp_path, runner)
    study.site.starts, study.sides = SimpleNamespace(seconds=0.0), GoodSides()
    baselines = Baselines(study)
    good = baselines._with_needed_pinned(run(tmp_path, DIED), "config", run(tmp_path, refused))
    assert good.shown.signature is None and "bf16" not in study.settings.good and "bf16" in study.settings.not_varied
    runner.begin_at(None)
    baselines.begin_at(None)
    assert study.settings == settings and not baselines._needed
