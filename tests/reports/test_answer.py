"""result.json: what is in it, and that any reader of JSON can read it."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from tools import undocumented

from bisect_cfg.common.failures.health import Symptom
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.explain import explain_text
from bisect_cfg.probe.protocol import Origin, Raised
from bisect_cfg.reports import page
from bisect_cfg.reports.answer import as_result, commands, failure_of, known_issue, warnings_of, write_answer
from bisect_cfg.reports.recorded import read
from bisect_cfg.runner.ranks import DIFFERS
from tests.reports import made


def test_the_whole_of_it(tmp_path):
    answer = made.answer(tmp_path)
    assert write_answer(answer, {"python": "3.11"}) == {**as_result(answer, {"python": "3.11"}), "said": []}
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "isolated" and result["complete"] is True and undocumented(result) == set()
    assert undocumented({**result, "causes": [{"colour": 1}]}) == {"colour"}
    assert result["causes"][0]["parameters"] == {"bf16": {"good": False, "bad": True}}
    assert result["causes"][0]["step"] == 3, "of the cause's own run"
    assert result["causes"][0]["evidence"]["passes_without"]["bf16"]["trials"] == [1]
    assert result["corrections"][0]["passes"]["seen"] == 1
    assert [one["values"]["bf16"] for one in result["trials"]] == [True, False, True, False]
    assert {one["start"] for one in result["trials"]} == {one["level"] for one in result["trials"]} == {"config"}
    assert (tmp_path / "safe_config.yaml").exists() and "bf16=False" in (tmp_path / "safe_config.diff").read_text()


def test_what_an_earlier_pass_recommended_goes_when_nothing_is_recommended_any_more(tmp_path):
    write_answer(made.answer(tmp_path), {})
    write_answer(made.answer(tmp_path, report=dataclasses.replace(made.REPORT, safe_configuration=None)), {})
    assert not list(tmp_path.glob("safe_config.*"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_without_numbers_that_json_has_not(tmp_path, value):
    rows = tuple(dataclasses.replace(row, values={**row.values, "learning_rate": value}) for row in made.ROWS)
    write_answer(made.answer(tmp_path, report=dataclasses.replace(made.REPORT, rows=rows)), {})

    def refuse(constant):
        raise AssertionError(constant)

    result = json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    assert result["trials"][0]["values"]["learning_rate"] == str(value)


def test_a_failure_with_its_place(tmp_path):
    assert failure_of(made.run(tmp_path, made.DIED)) == {
        "kind": "signal", "signal": "SIGFPE", "message": "SIGFPE in step (train.py:9)", "where": "", "step": 3,
        "signature": "SIGFPE",
    }  # fmt: skip
    assert failure_of(made.run(tmp_path, made.HEALTHY)) is None is failure_of(None)


def test_a_failure_with_what_came_after_it(tmp_path):
    seen = dataclasses.replace(
        made.DIED, died=Signature("non-finite", "parameters"), message="NaN weights", place="", after="E: inf",
        non_finite_at=2,
    )  # fmt: skip
    found = failure_of(made.run(tmp_path, seen, Raised("E", "inf", [])))
    assert (found["quantity"], found["exception"], found["step"]) == ("parameters", "E", 2)
    assert found["message"] == "NaN weights, then E: inf"


def test_of_several_processes_the_one_that_failed_first_is_named(tmp_path):
    found = failure_of(made.run(tmp_path, dataclasses.replace(made.DIED, rank=1)))
    assert found["message"] == "rank 1: SIGFPE in step (train.py:9)"


def test_a_death_before_training_has_step_0(tmp_path):
    seen = dataclasses.replace(made.DIED, died=Signature("exception", "E"), steps=0, trained=False, message="E: no")
    assert failure_of(made.run(tmp_path, seen))["step"] == 0


def test_a_silent_failure_says_what_shows_it(tmp_path):
    run = made.run(tmp_path, made.HEALTHY)
    rows = [{"step": step, "reward_std": 0.2, "grad_norm": 0.0} for step in range(1, 6)]
    run.traces.metrics.rows += [{**row, "reward": 0.0, "frac_reward_zero_std": 1.0} for row in rows]
    assert failure_of(run)["message"] == "all rewards of a group equal in each of the first 5 steps"


def test_oddities_of_passing_trials_are_warned_of_once_a_metric(tmp_path):
    def odd(name: str, step: int) -> dict:
        return dataclasses.asdict(Symptom("non-finite", name, step, f"{name} is inf at 1 of 10 steps"))

    slow = dataclasses.asdict(Symptom("slow", "", 4, "step 4 took 9 s"))
    unlike = dataclasses.asdict(Symptom(DIFFERS, "grad_norm", 4, "grad_norm differs between the processes"))
    details = {
        0: {"remarks": [odd("loss", 1)]},
        1: {"remarks": [odd("loss", 1), slow]},
        3: {"remarks": [odd("loss", 2), unlike]},
    }
    answer = made.answer(tmp_path, details=details)
    assert warnings_of(answer) == [
        {"text": "loss was NaN or infinite in trials that passed nevertheless", "trials": [1, 3]},
        {"text": "steps became much slower in trials that passed nevertheless", "trials": [1]},
        {"text": "grad_norm differed between the processes in trials that passed nevertheless", "trials": [3]},
    ]
    assert as_result(answer, {})["trials"][1]["remarks"] == ["loss is inf at 1 of 10 steps", "step 4 took 9 s"]


def test_commands_repeat_the_runs_that_prove_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = made.answer(tmp_path)
    assert commands(answer) == {}, "without their files there is nothing to repeat"
    for number in (1, 2):
        (tmp_path / f"trials/{number}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"trials/{number}/command.sh").touch()
    assert commands(answer) == {
        "nearest passing": "sh trials/1/command.sh",
        "minimal failing": "sh trials/2/command.sh",
    }
    write_answer(answer, {})
    shown = [command for label, command in page.commands(read(tmp_path)) if label.endswith("ing run")]
    assert shown == [f"sh {tmp_path}/trials/{number}/command.sh" for number in (1, 2)]
    gone = dataclasses.replace(answer, origin=Origin(str(tmp_path / "checkpoint-8"), 8))
    assert commands(gone) == {}, "they would begin at a checkpoint that is not there any more"
    write_answer(gone, {})
    assert not any("command.sh" in command for _, command in page.commands(read(tmp_path)))


def test_of_several_causes_that_which_the_log_decides_for_is_told():
    line = "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'\n"
    issue = known_issue(explain_text(line).matches[0])
    assert issue["title"].startswith("The setting max_seq_length has another name")
    assert "max_length" in issue["cures"][0] and not any("pip install -U" in cure for cure in issue["cures"])
    assert known_issue(None) is None
