"""One sentence for each way to fail, and where it does."""

from __future__ import annotations

import dataclasses

import pytest

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.failures.health import Symptom
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.remedy.terms import Health
from bisect_cfg.report.sentences import failure, place_lines, unhealthy
from bisect_cfg.runner.verdict import Metrics, Observation, Verdict, judge
from bisect_cfg.runner.where import Where

HEALTHY = Observation(None, 4, 2.0, at_horizon=True, training_seconds=1.0)
WEIGHTS = "NaN or infinite weights (lm_head)"


def died(kind: str, name: str = "", message: str = "", **changes: object) -> Verdict:
    return judge(dataclasses.replace(HEALTHY, died=Signature(kind, name), message=message, **changes), Metrics([]))


def silent(kind: str, text: str) -> Verdict:
    return Verdict(HEALTHY, Outcome.FAIL, Signature(kind), (Symptom(kind, "", 3, text),), ())


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
def test_a_failure_is_one_sentence(seen: Verdict, said: str) -> None:
    assert failure(seen) == said


def test_another_run_of_the_failure_may_show_it_at_another_step() -> None:
    assert failure(died("signal", "SIGFPE", "SIGFPE"), 2).endswith("at step 2")
    placed = died("signal", "SIGFPE", "SIGFPE", place="step (a.py:3)")
    assert failure(placed, placed=False).endswith("at step 5"), "a line of its own says where"
    weights = died("non-finite", "parameters", WEIGHTS, after="ValueError: of a setting that has no part in it")
    assert failure(weights, 2) == f"gets {WEIGHTS} at step 2", "what the first run then died of, others need not"


def test_why_a_run_is_not_healthy() -> None:
    assert unhealthy(Health(True)) == ""
    assert unhealthy(Health(False, None, "entropy fell")) == "entropy fell"
    assert unhealthy(Health(False, died("signal", "SIGFPE", "SIGFPE"))).startswith("dies with SIGFPE")


def test_the_place_of_a_failure_in_a_few_lines() -> None:
    place = Where(True, step=3, operation="div", module="q_proj", line="a.py:3 in f", text="div")
    assert place_lines(place) == ["step 3: div in q_proj", "a.py:3 in f"]
    seen = Where(True, step=1, text="AdamW moves it by 158 % of its size", native="kernel")
    assert place_lines(seen) == ["step 1: AdamW moves it by 158 % of its size", "native: kernel"]
    assert place_lines(Where(True, step=2)) == ["step 2"] and place_lines(Where(True)) == []
    frames = ("study.ipynb, cell 2, line 3 in f", "lib.py:3 in g")
    assert place_lines(Where(True, line="lib.py:3 in g", frames=frames))[-1] == f"called from {frames[0]}"
    assert place_lines(Where(False, note="It passed.")) == ["It passed."]


def test_code_of_the_users_that_a_library_calls_is_part_of_the_place() -> None:
    starts, own = "train.py:9 in main", "stats.py:3 in on_step_end"
    inner = ("trl/trainer.py:4 in train", own, "python3.11/random.py:8 in choice")
    assert place_lines(Where(True, line=inner[-1], frames=(starts, *inner)))[-1] == f"called from {own}"
    assert place_lines(Where(True, line=own, frames=(starts, *inner[:2]))) == [own]
    only_starts = (starts, inner[0], "<string>:2 in f")
    assert place_lines(Where(True, line=inner[0], frames=only_starts)) == [inner[0]]
