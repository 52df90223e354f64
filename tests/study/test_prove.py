"""Claims that were shown from a checkpoint, run from step 0: what is run, what it says, and where the budget ends. And
placebos, where the failure is random."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from bisect_cfg.common.configuration import Status
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.runner.runs import Run
from bisect_cfg.store.causes import Reproduction
from bisect_cfg.study.factors import find_factors
from bisect_cfg.study.prove import prove
from bisect_cfg.study.study import Study
from tests.report.made import DIED, HEALTHY, REPORT, findings, run
from tests.study.stand_ins import Runner, study_of

ORIGIN = Origin("checkpoint-90", 90)
HANGS = replace(DIED, died=Signature("hang"))
FAILS, WITHOUT = "proof-1", f"proof-1-without-{REPORT.causes[0].parameters[0]}"


def shown_late(
    folder: Path,
    died: Collection[str] = (FAILS,),
    origin: Origin | None = ORIGIN,
    hung: Collection[str] = (),
    **options: object,
) -> Study:
    """A study whose cause was shown from a checkpoint; from step 0 these proofs die, or hang."""

    def shows(question: str) -> Run:
        return run(folder, HANGS if question in hung else DIED if question in died else HEALTHY)

    runner = Runner(folder, findings(folder).settings, shows, origin)
    study = study_of(folder, runner, **{"prove": "from-start", **options})
    study.find(details={row.number: {"observation": {"before": 90, "steps": 6}} for row in REPORT.rows})
    return study


def test_every_claim_is_run_from_step_0_and_trials_begin_at_the_checkpoint_again(tmp_path) -> None:
    study = shown_late(tmp_path)
    assert prove(study) is None and study.answer.proven is True and study.trials.origin is ORIGIN
    (note,) = study.notes
    assert note.startswith("From step 0 it is the same: fails with only") and note.count(", at step 3") == 1
    assert [question for question, *_ in study.trials.ran] == [FAILS, WITHOUT]
    assert all(plan.steps >= 96 and origin is None for _, plan, origin in study.trials.ran)
    assert prove(study) is None and len(study.trials.ran) == 2  # nothing is run twice


@pytest.mark.parametrize("died", [(), (FAILS, WITHOUT)])
def test_a_claim_that_is_another_from_step_0_is_said_and_searched_for_from_earlier(tmp_path, died) -> None:
    study = shown_late(tmp_path, died)
    assert prove(study) is find_factors and study.answer.report is None
    (note,) = study.notes
    assert ("contributes to it" in note) is (died == ())
    (rejected,) = study.state.rejected
    assert (rejected.step, rejected.by_data, rejected.trials) == (90, False, 2) and study.trials.origin is None


def test_another_failure_from_step_0_contradicts_nothing(tmp_path) -> None:
    study = shown_late(tmp_path, hung=(WITHOUT,))
    assert prove(study) is None and study.answer.proven is None and study.answer.report == REPORT
    assert not study.state.rejected and study.trials.origin is ORIGIN
    assert study.notes[0].endswith("shows hang, which tells nothing of it.") and len(study.notes) == 2


def test_where_the_budget_ends_the_answer_stands(tmp_path) -> None:
    study = shown_late(tmp_path, max_trials=1)
    assert prove(study) is None and study.answer.proven is None and study.answer.report == REPORT
    assert len(study.trials.ran) == 1 and study.trials.origin is ORIGIN
    (note,) = study.notes
    assert note.startswith("Stopped after 1 trial") and "shown from step 90 of your run on" in note


@pytest.mark.parametrize("options", [{"prove": "from-checkpoint"}, {"prove": None, "from_checkpoint": Path("c")}])
def test_it_is_left_out(tmp_path, options: dict) -> None:
    study = shown_late(tmp_path, **options)
    assert prove(study) is None and study.answer.proven is None and not study.trials.ran
    assert len(study.notes) == ("from_checkpoint" in options)
    assert all("--prove from-start" in note for note in study.notes)


@pytest.mark.parametrize(("origin", "report"), [(None, REPORT), (ORIGIN, replace(REPORT, causes=()))])
def test_without_a_checkpoint_or_a_cause_there_is_nothing_to_run(tmp_path, origin, report) -> None:
    study = shown_late(tmp_path, origin=origin)
    study.find(report=report)
    assert prove(study) is None and not study.trials.ran and study.answer.report == report


def random_failure(folder: Path, died: Collection[str], rate: float | None = 0.7) -> Study:
    study = shown_late(folder, died, origin=None)
    args = study.settings.capture.args
    args.resolved["disable_tqdm"] = False
    study.find(report=replace(REPORT, reproduction=Reproduction(rate)))
    assert prove(study) is None
    return study


@pytest.mark.parametrize(
    ("died", "said", "runs"),
    [
        (["placebo-fail-2"], "", 2 + 3),
        ([], "none of 3 runs with", 3),
        (["placebo-fail-1", "placebo-pass-2"], "a run without", 1 + 2),
    ],
)
def test_a_random_failure_is_tried_with_a_placebo(tmp_path, died, said, runs) -> None:
    """Of what fails in 7 of 10 runs three passes in a row are rarer than 5 %."""
    study = random_failure(tmp_path, died)
    answer = study.answer
    assert len(study.trials.ran) == runs and said in answer.placebo and bool(said) == bool(answer.placebo)
    assert all(plan.configuration["disable_tqdm"] is True for _, plan, _ in study.trials.ran)
    assert (answer.report.status == Status.INCONCLUSIVE) == bool(said) and answer.report.causes == REPORT.causes
    if said:
        assert answer.status is Status.INCONCLUSIVE and not answer.report.complete


@pytest.mark.parametrize("rate", [1.0, None, 0.05])
def test_no_placebo_is_tried_where_runs_repeat_themselves_or_it_would_take_too_many(tmp_path, rate) -> None:
    study = random_failure(tmp_path, [], rate)
    assert not study.trials.ran and not study.answer.placebo
