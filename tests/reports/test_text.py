"""How a failure, a duration and a value are put into words."""

from __future__ import annotations

import dataclasses

import pytest

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.failures.health import Symptom
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.remedy.terms import Health
from bisect_cfg.reports import text
from bisect_cfg.runner.verdict import Ended, Metrics, Observation, Verdict, judge

HEALTHY = Observation(None, Ended.HORIZON, 4, 2.0, training_seconds=1.0)


def died(kind: str, name: str = "", message: str = "", **changes: object) -> Verdict:
    return judge(dataclasses.replace(HEALTHY, died=Signature(kind, name), message=message, **changes), Metrics([]))


def silent(kind: str, text: str) -> Verdict:
    return Verdict(HEALTHY, Outcome.FAIL, Signature(kind), (Symptom(kind, "", 3, text),), ())


WEIGHTS = "NaN or infinite weights (lm_head)"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (
            died("signal", "SIGFPE", "SIGFPE", place="step (a.py:3)"),
            "dies with SIGFPE (a floating point exception) at step 5, in step (a.py:3)",
        ),
        (died("signal", "SIGUSR1", "SIGUSR1"), "dies with SIGUSR1 at step 5"),
        (died("exception", "E", "E: an error in line 3"), "dies at step 5 with E: an error in line 3"),
        (died("exception", "E", "E: no.", trained=False), "dies before the first step of training with E: no"),
        (
            died("non-finite", "parameters", WEIGHTS, after="RuntimeError: inf, then nan.", non_finite_at=4),
            f"gets {WEIGHTS} at step 4, then dies with RuntimeError: inf, then nan",
        ),
        (died("hang", "", "no step for 20 s", place="f (a.py:3)"), "hangs at step 5: no step for 20 s, in f (a.py:3)"),
        (died("out-of-memory", "", "CUDA out of memory."), "runs out of memory at step 5: CUDA out of memory"),
        (died("exception", "E", "E: no", rank=1), "dies on rank 1 at step 5 with E: no"),
        (died("exit", "3", "exit (3)"), "ends with exit status 3 at step 5"),
        (died("exit", "0", "..."), "ends in the middle of training at step 5"),
        (died("no-training", "", "...", trained=False), "ends before the first step of training"),
        (silent("collapse", "entropy fell from 2 to 0"), "collapses the policy at step 3: entropy fell from 2 to 0"),
        (silent("dead-reward", "all rewards equal"), "learns nothing: all rewards equal"),
    ],
)
def test_a_failure_is_one_sentence(seen, said):
    assert text.failure(seen) == said


def test_another_run_of_the_failure_may_show_it_at_another_step():
    assert text.failure(died("signal", "SIGFPE", "SIGFPE"), 2).endswith("at step 2")
    weights = died("non-finite", "parameters", WEIGHTS, after="ValueError: of a setting that has no part in it")
    assert text.failure(weights, 2) == f"gets {WEIGHTS} at step 2", "what the first run then died of, others need not"


def test_why_a_run_is_not_healthy():
    assert text.unhealthy(Health(True)) == ""
    assert text.unhealthy(Health(False, None, "entropy fell")) == "entropy fell"
    assert text.unhealthy(Health(False, died("signal", "SIGFPE", "SIGFPE"))).startswith("dies with SIGFPE")


def test_values_are_written_as_the_user_would():
    assert [text.show(value) for value in (None, 5e-6, True, "cosine", {"$dtype": "float16"}, {"$secret": "***"})] == [
        "default", "5e-06", "True", "cosine", "float16", "***",
    ]  # fmt: skip


def test_nothing_that_a_terminal_would_obey_is_shown():
    assert text.clean("a\x1b[31mred\x1b[0m \x07\u202eb") == "ared b"
    assert text.shown_safely("\x1b[31mours\x1b[0m\x1b]0;theirs\x07") == "\x1b[31mours\x1b[0m"


def test_reasons_are_said_once():
    assert text.with_reasons({"a": "it is a place", "b": "it is chance", "c": "it is a place"}) == (
        "a, c (it is a place); b (it is chance)"
    )


@pytest.mark.parametrize(("seconds", "said"), [
    (0.64, "0.6 s"), (47.2, "47 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (119.7, "2 min 0 s"),
])  # fmt: skip
def test_durations(seconds, said):
    assert text.duration(seconds) == said


def test_the_place_of_a_failure_in_a_few_lines():
    place = {
        "same_failure": True, "step": 3, "operation": "div", "module": "q_proj", "line": "a.py:3 in f", "text": "div",
        "native": "", "note": "",
    }  # fmt: skip
    assert text.where(place) == ["step 3, div, q_proj", "a.py:3 in f"]
    assert text.where({**place, "native": "kernel", "step": None})[::2] == ["div, q_proj", "native: kernel"]
    assert text.where({**place, "same_failure": False, "note": "It passed."}) == ["It passed."]
