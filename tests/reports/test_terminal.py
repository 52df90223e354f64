"""The answer as the user reads it at the end."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import Origin, Placed, PlacedModel, TrainBegin, Weights
from bisect_cfg.reports.answer import as_result
from bisect_cfg.reports.terminal import print_answer
from bisect_cfg.store.causes import Cause, Claim, Evidence
from bisect_cfg.targets.factors import Factor
from tests.reports import made


def lines(answer) -> list[str]:
    out = io.StringIO()
    print_answer(Console(file=out, width=300, no_color=True), answer, as_result(answer, {}))
    return [line.strip() for line in out.getvalue().splitlines()]


def test_the_answer(tmp_path):
    told = lines(made.answer(tmp_path))
    assert "Cause  bf16 = True  good: False" in told
    assert "With it the run dies with SIGFPE (a floating point exception) at step 3, in step (train.py:9)." in told
    assert "Fails 1/1 with only it changed from the good configuration, passes 1/1 without bf16." in told
    assert "No other cause is left among the settings that differ." in told
    assert told[-1].startswith("4 trials, each forked from your script at its configuration; 9.0 s. Everything is in ")


def test_a_cause_that_was_proven_in_one_process_names_no_rank(tmp_path):
    answer = made.answer(tmp_path)
    processes = Factor("launch.num_processes", "launch", 1, 2, 1)
    settings = dataclasses.replace(answer.settings, varied=(*answer.settings.varied, processes))
    several = made.run(tmp_path, dataclasses.replace(made.DIED, rank=1))
    rows = tuple(dataclasses.replace(row, values={**row.values, "launch.num_processes": 1}) for row in made.ROWS)

    def sentence(subset: tuple[str, ...]) -> str:
        fails = dataclasses.replace(made.CAUSE.evidence.fails, subset=subset)
        cause = dataclasses.replace(made.CAUSE, evidence=dataclasses.replace(made.CAUSE.evidence, fails=fails))
        report = dataclasses.replace(made.REPORT, causes=(cause,), rows=rows)
        told = lines(dataclasses.replace(answer, settings=settings, bad_run=several, report=report))
        return next(line for line in told if line.startswith("With it the run "))

    died = "With it the run dies with SIGFPE (a floating point exception)"
    assert sentence(("bf16",)) == f"{died} at step 3, in step (train.py:9)."
    assert sentence(("bf16", "launch.num_processes")) == f"{died} on rank 1 at step 3, in step (train.py:9)."


@pytest.mark.parametrize(("began", "said"), [(
    250, " (Its steps take other amounts of data than yours: it began at its step 250, your 125.)"
), (125, "")])  # fmt: skip
def test_where_steps_take_other_amounts_of_data_their_numbers_are_told_apart(tmp_path, began, said):
    origin = Origin("/run/checkpoint-125", 125)
    told = lines(
        made.answer(
            tmp_path, origin=origin, details={2: {"folder": "2", "level": "config", "observation": {"before": began}}}
        )
    )
    died = "With it the run dies with SIGFPE (a floating point exception) at step 3, in step (train.py:9)."
    assert died + said in told


def test_what_is_odd_about_where_the_models_are(tmp_path):
    models = [
        PlacedModel("policy", "Qwen2", "", [Weights("cuda:0", "bfloat16", 9)]),
        PlacedModel("reference", "Qwen2", "", [Weights("cpu", "bfloat16", 9)]),
    ]
    answer = made.answer(tmp_path)
    begun = TrainBegin(in_force={"distributed_type": "FSDP"})
    answer = dataclasses.replace(answer, bad_run=made.run(tmp_path, made.DIED, begun, Placed(models)))
    told = lines(answer)
    position = told.index("Placement  The reference model is on cpu, and the policy on cuda:0.")
    assert told[position + 1] == "https://github.com/huggingface/trl/issues/3348"
    placement = as_result(answer, {})["placement"]
    assert placement["ranks"]["0"][1]["weights"] == [{"device": "cpu", "dtype": "bfloat16", "count": 9}]
    assert placement["findings"][0]["issue"] == "fsdp-reference-model"
    assert as_result(made.answer(tmp_path), {})["placement"] is None


def test_of_a_random_failure_every_count_says_what_it_counts(tmp_path):
    evidence = dataclasses.replace(made.CAUSE.evidence, fails=dataclasses.replace(made.CAUSE.evidence.fails, runs=5))
    cause = dataclasses.replace(made.CAUSE, evidence=evidence)
    report = dataclasses.replace(
        made.REPORT, causes=(cause,), reproduction_rate=0.52, reproduction_interval=(0.33, 0.7)
    )
    told = lines(made.answer(tmp_path, report=report))
    assert "Fails 1/5 with only it changed from the good configuration, passes 1/1 without bf16." in told
    position = told.index(
        "The failure is random: of all runs with a cause it showed in 52% (95 % interval: 33% to 70%)."
    )
    assert told[position + 1] == "The counts above are of one configuration each; the answer weighs all runs."
    assert not any("The failure is random" in line for line in lines(made.answer(tmp_path)))


@pytest.mark.parametrize(("ended", "said"), [("horizon", True), ("end", False)])
def test_how_long_a_passing_run_was_watched_is_said(tmp_path, ended, said):
    details = {1: {"folder": "1", "level": "config", "observation": {"steps": 24, "ended": ended}}}
    words = "Passing runs were watched for 24 steps: a failure that comes later is not seen."
    assert any(words in line for line in lines(made.answer(tmp_path, details=details))) is said


def test_two_settings_that_fail_together_with_a_companion(tmp_path):
    cause = dataclasses.replace(
        made.CAUSE,
        parameters=("bf16", "learning_rate"),
        values={**made.CAUSE.values, "learning_rate": {"good": 1e-6, "bad": 1e-3}},
        companions=("beta",),
    )
    told = lines(made.answer(tmp_path, report=dataclasses.replace(made.REPORT, causes=(cause,), complete=False)))
    assert any(line.startswith("with learning_rate = 0.001") for line in told)
    assert any(line.startswith("With them the run dies") for line in told)
    assert any(line.startswith("These runs also had beta as you have it: without it they are invalid") for line in told)
    assert "There may be other causes: the search ended before that was settled." in told


def test_nothing_fails(tmp_path):
    told = lines(made.answer(tmp_path, status="no_failure", report=None, bad_run=made.run(tmp_path, made.HEALTHY)))
    assert "Your configuration does not fail: 10 steps, all healthy. Nothing to isolate." in told


def test_the_good_configuration_fails_too(tmp_path):
    seen = dataclasses.replace(made.DIED, died=Signature("exception", "E"), message="E: it broke.", place="")
    told = lines(made.answer(tmp_path, status="baseline_fails", report=None, good_run=made.run(tmp_path, seen)))
    assert "The good configuration fails as well: it dies at step 3 with E: it broke." in told


def test_what_was_said_as_a_note_is_not_said_again(tmp_path):
    note = "No setting differs from the good configuration."
    told = lines(made.answer(tmp_path, status="baseline_fails", report=None, good_run=None, notes=(note,)))
    assert "No cause could be isolated." in told and note not in told


def test_a_cause_of_two_says_which_of_them_passes_alone(tmp_path):
    values = {"bf16": {"good": False, "bad": True}, "learning_rate": {"good": 1e-6, "bad": 1e-3}}
    without = {"bf16": Claim(("learning_rate",), 2, 2, (5, 6)), "learning_rate": Claim(("bf16", "beta"), 1, 1, (7,))}
    evidence = Evidence(Claim(tuple(values), 1, 1, (2,)), without)
    cause = Cause(tuple(values), values, (), "SIGFPE", evidence)
    out = io.StringIO()
    answer = made.answer(tmp_path, report=dataclasses.replace(made.REPORT, causes=(cause,)))
    print_answer(Console(file=out, width=300, no_color=True), answer, as_result(answer, {}))
    told = out.getvalue().splitlines()
    position = told.index("Cause  bf16 = True                 good: False")
    assert told[position + 1] == "       with learning_rate = 0.001  good: 1e-06"
    assert "passes 2/2 with only learning_rate, passes 1/1 without learning_rate." in told[position + 3]
    assert not [line for line in told if line != line.rstrip()]
