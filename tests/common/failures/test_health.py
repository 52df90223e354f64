"""What metrics say about a run that does not die: pure functions over rows."""

from __future__ import annotations

import math

import pytest

from bisect_cfg.common.failures import health

NAN, INF = math.nan, math.inf


def rows(count=20, **columns):
    """Healthy rows; a column is a value, or a list (its last value goes on)."""
    base = {
        "loss": 0.01,
        "grad_norm": 1.0,
        "reward": 0.3,
        "reward_std": 0.2,
        "frac_reward_zero_std": 0.0,
        "entropy": 2.0,
    }
    base.update(columns)
    result = []
    for i in range(count):
        row = {"step": i + 1}
        for name, value in base.items():
            row[name] = value[min(i, len(value) - 1)] if isinstance(value, list) else value
        result.append({name: value for name, value in row.items() if value != "absent"})
    return result


def kinds(found, ended=True):
    return [(s.kind, s.name) if s.name else s.kind for s in health.symptoms(found, ended)]


OLD = {"entropy": "absent", "frac_reward_zero_std": "absent"}
"""TRL before 0.19 logs neither."""

# Seen with learning_rate=0.5 in TRL 0.14: beta=0.04 leaves some gradient in a policy that has collapsed.
PULLING = {
    **OLD,
    "reward": [0.75, 0.406, 0.188, 0.125],
    "reward_std": [0.102, 0.12, 0.072, 0.0],
    "grad_norm": [0.973, 4.36, 0.729, 0.000448, 3.76e-05, 1.05e-05, 2.52e-06, 7.87e-07, 5.89e-07, 1.84e-07],
}
# Seen with learning_rate=0.08 on a 2-layer Qwen2: the entropy stays above 10 %, and all but one step is dead.
STUMBLING = {"frac_reward_zero_std": [0.0] * 3 + [1.0] * 3 + [0.75] + [1.0], "grad_norm": [1.0] * 3 + [0.0]}


@pytest.mark.parametrize(
    ("count", "columns", "expected"),
    [
        (0, {}, []),
        (20, {}, []),
        (20, {"loss": 0.0}, []),  # one iteration, beta 0: the loss is zero by construction
        (20, {"loss": [0.01, 0.01, 0.01, 1.0]}, []),  # of a run with rewards it says nothing
        (20, {"grad_norm": 1e6}, []),  # logged before clipping
        (20, {"learning_rate": [0.0, 1e-6]}, []),  # warmup
        (20, {"reward": [0.3, "absent", 0.3]}, []),  # completions used again
        (20, {"entropy": [2.0 - 0.05 * i for i in range(20)]}, []),  # half the entropy in twenty steps: learning
        (20, {"frac_reward_zero_std": [1.0, 1.0, 0.0, 1.0, 0.0]}, []),  # a sparse reward
        (20, {"grad_norm": [0.0, 0.0, 1.0]}, []),
        (20, {"entropy": None, "kl": None}, []),
        (20, {"loss": "0.1", "reward": True, "kl": None}, []),  # text and booleans are no numbers
        (12, {"rewards/code/mean": NAN, "rewards/code/std": NAN}, []),  # a reward function that does not apply
        (20, {"grad_norm": [INF] * 5 + [1.0]}, []),  # a gradient scaler finding its scale
        (20, {"grad_norm": [NAN] * 7 + [1.0]}, []),
        (10, {"loss": [0.1] * 8 + [NAN]}, []),  # two in a row, weights finite
        (2, {"loss": NAN}, [("non-finite", "loss")]),  # throughout
        (20, {"frac_reward_zero_std": 1.0, "grad_norm": NAN}, [("non-finite", "grad_norm"), "dead-reward"]),
        (20, {"entropy": [5.5, 5.4, 0.01], "frac_reward_zero_std": 0.2}, []),  # low entropy with a signal
        # one degenerate batch, and a collapse that recovers later
        (20, {"entropy": [5.5, 0.01, 5.0, 0.01, 0.01, 5.0], "frac_reward_zero_std": [0, 1, 0, 1, 1, 0]}, []),
        (20, {"entropy": [5.5, 0.01, 0.01, 0.01, 5.0], "frac_reward_zero_std": [0, 1, 1, 1, 0]}, ["collapse"]),
        (20, {"entropy": [2.5] * 3 + [2.2], **STUMBLING}, []),  # a sparse reward leaves the entropy where it was
        (20, {"entropy": [2.5] * 3 + [0.01], "reward": [0.5] * 3 + [0.4]}, ["collapse"]),
        (20, {"entropy": [2.5] * 3 + [0.01], "reward": [0.5] * 3 + [0.9]}, []),
        (20, OLD, []),
        (20, {**OLD, "reward_std": [0.3, 0.2, 0.0], "grad_norm": [1.0, 1.0, 0.0]}, ["collapse"]),
        (20, {**OLD, "reward_std": [0.3] * 3 + [0.0] * 5 + [0.2], "grad_norm": [1.0] * 3 + [0.0] * 5 + [1.0]}, []),
        (20, {**OLD, "reward_std": 0.0, "grad_norm": 0.0}, ["dead-reward"]),
        (10, PULLING, ["collapse"]),
        (10, {**PULLING, "reward": [0.1, 0.4, 0.8, 1.0]}, []),  # nothing left to learn
        (10, {**PULLING, "grad_norm": [0.973, 4.36, 0.729, 0.1]}, []),  # the KL term may yet lead it back
        (health.DEAD_STEPS - 1, {"frac_reward_zero_std": 1.0, "grad_norm": 0.0}, []),
        (20, {"grad_norm": 0.0}, ["no-gradient"]),
        # a spread of rounding is none, as eight equal rewards of 0.41 have, each other step; of such a size it is one
        (8, {"reward": 0.41, "reward_std": [0, 3.2e-8, 0, 6.4e-8], "frac_reward_zero_std": [1, 0, 1, 0]},
         ["dead-reward"]),
        (8, {"reward": 0.0, "reward_std": 3e-8}, []),
    ],
)  # fmt: skip
def test_what_rows_show(count, columns, expected):
    assert kinds(rows(count, **columns)) == expected


@pytest.mark.parametrize(
    ("count", "columns", "kind", "step"),
    [
        (20, {"grad_norm": INF}, ("non-finite", "grad_norm"), health.NON_FINITE_STREAK),
        (20, {"entropy": [5.5, 5.4, 3.0, 0.3, 0.01], "frac_reward_zero_std": [0.0, 0.1, 0.5, 1.0]}, "collapse",
         4 + health.COLLAPSE_STREAK),
        (20, {"entropy": [2.5] * 3 + [0.6], **STUMBLING}, "collapse", 11),
        (20, {"frac_reward_zero_std": 1.0, "reward_std": 0.0, "grad_norm": 0.0}, "dead-reward", health.DEAD_STEPS),
    ],
)  # fmt: skip
def test_when_it_is_certain(count, columns, kind, step):
    found = rows(count, **columns)
    assert kinds(found) == kinds(found, ended=False) == [kind]
    assert health.symptoms(found, ended=False)[0].step == step


FAILING = [
    rows(30, entropy=[2.0] * 12 + [0.01], reward=[0.3] * 12 + [0.0], frac_reward_zero_std=[0.0] * 12 + [1.0]),
    rows(30, grad_norm=[1.0] * 9 + [NAN]),
    rows(40, reward="absent", reward_std="absent", frac_reward_zero_std="absent", loss=[1.0] * 20 + [5.0]),
    rows(30, reward_std=0.0, frac_reward_zero_std=1.0),
    rows(12, kl=[0.1] * 9 + [INF]),
    rows(20, **{health.ENGINE_DIFFERENCE: [0.01] * 3 + [0.2, 0.01] + [0.2]}),
]


@pytest.mark.parametrize("failing", FAILING)
@pytest.mark.parametrize("before", [0, 7])
def test_a_watch_says_at_each_row_what_all_rows_say(failing, before):
    earlier = tuple({**row, "step": row["step"] - before} for row in failing[:before])
    later = [{**row, "step": row["step"] - before} for row in failing[before:]]
    watch = health.Watch()
    for ended in (False, True):
        told = [watch.symptoms(later[:end], ended, earlier) for end in range(len(later) + 1)]
        assert told == [health.symptoms(later[:end], ended, earlier) for end in range(len(later) + 1)]
        assert told[-1] or not ended


def test_a_watch_looks_at_each_row_once(monkeypatch):
    taken, take = [], health.Collapsing.take
    monkeypatch.setattr(health.Collapsing, "take", lambda watch, row: (taken.append(row["step"]), take(watch, row)))
    watch, found = health.Watch(), rows(50)
    for end in range(51):
        watch.symptoms(found[:end], False)
    assert taken == [*range(1, 51)]
    assert watch.symptoms(FAILING[0], False) == health.symptoms(FAILING[0], False)  # of another training


def test_nan_at_the_end():
    late = rows(10, loss=[0.1] * 7 + [NAN])
    assert kinds(late) == [("non-finite", "loss")]
    assert kinds(late, ended=False) == []  # it may come back


def test_one_nan_is_a_remark():
    found = rows(10, kl=[0.1, 0.1, INF, 0.1])
    assert kinds(found) == []
    (remark,) = health.remarks(found)
    assert remark == health.Symptom("non-finite", "kl", 3, "kl is inf at 1 of 10 steps (first at step 3)")
    assert health.remarks(rows()) == []


SUPERVISED = {name: "absent" for name in ("reward", "reward_std", "frac_reward_zero_std", "kl")}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"entropy": [2.0, 1.5, 0.05, 0.01], "loss": [2.0, 1.5, 0.05, 0.01]}, []),  # it learns by heart
        ({"loss": [1.5, 1.2, 1.4, 2.0, 7.0, 7.2, 3.0, 7.1, 7.0, 6.9, 7.1, 7.0, 7.0]}, ["diverged"]),
        ({"loss": [1.5, 1.2, 1.4, 7.0, 7.0, 7.0, 1.5, 1.4, 1.4, 1.3]}, []),  # a few bad batches
        ({"loss": [0.69, 0.69, 0.68, 0.9, 1.4, 1.5, 1.6, 1.5]}, []),
        ({"loss": [11.0, 9.0, 6.0] + [2.5] * 12 + [7.4] * 20}, ["diverged"]),  # pretraining, and still below its start
        ({"loss": [11.0, 9.0, 6.0] + [2.5] * 12 + [7.4] * 12 + [2.5] * 9}, []),  # a long spike
        ({"loss": [2.0, 1.0, 0.3] + [0.02] * 12 + [1.2] * 20}, []),  # other data
        ({"loss": [2.0, 1.9, NAN]}, [("non-finite", "loss")]),
        ({"grad_norm": 0.0}, ["no-gradient"]),
    ],
)
def test_runs_without_rewards_are_judged_by_their_loss(columns, expected):
    count = max((len(values) for values in columns.values() if isinstance(values, list)), default=0)
    assert kinds(rows(max(count, 20), **SUPERVISED, **columns)) == expected


@pytest.mark.parametrize(("idle", "said"), [(18, "grad_norm is 0 in 18 of 30 steps whose rewards differ"), (14, "")])
def test_steps_without_a_gradient_though_rewards_differ_are_a_remark(idle, said):
    """As where all completions of most steps are cut off, and `mask_truncated_completions` leaves these out."""
    differ = {"reward": 0.5, "reward_std": 0.3, "frac_reward_zero_std": 0.0}
    rows = [{"step": step, **differ, "grad_norm": 0.1 if step <= 30 - idle else 0.0} for step in range(1, 31)]
    assert [said in one.text and one.kind == "idle" for one in health.remarks(rows)] == [True] * bool(said)
    alike = [{**row, "reward_std": 0.0, "frac_reward_zero_std": 1.0} for row in rows]
    assert health.remarks(alike) == [], "there was nothing to learn from"


def test_a_step_that_gets_slower_is_a_remark():
    def run(*durations: float) -> list[dict]:
        found, time = [], 9.0
        for step, seconds in enumerate(durations, 1):
            time += seconds
            found.append({"step": step, "time": time, "loss": 0.1, "grad_norm": 1.0})
        return found

    assert health.remarks(run(60.0, 0.5, 0.5, 0.6, 0.5)) == []  # the first step is slow in any run
    assert health.remarks(run(1.0, 0.01, 0.01, 0.3, 0.01)) == []  # too short to speak of
    (remark,) = health.remarks(run(1.0, 0.5, 0.5, 0.5, 0.5, 15.0, 0.5))
    assert remark.text == "step 6 took 15.0 s, 30 times as long as usual (0.5 s)"
    (remark,) = health.remarks(run(1.0, 0.5, 0.5, 0.5, 10.0, 12.0, 11.0))
    assert remark.text == "3 of 7 steps are slow: step 6 took 12.0 s, 24 times as long as usual (0.5 s)"
    assert health.symptoms(run(1.0, 0.5, 0.5, 0.5, 0.5, 15.0), ended=True) == []
    assert health.remarks([{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0}]) == []  # rows of an older study


def test_the_table_says_each_kind_once() -> None:
    assert [rule.kind for rule in health.RULES] == [
        "non-finite", "collapse", "diverged", "no-gradient", "dead-reward", "engine-drifts", "idle", "slow",
    ]  # fmt: skip
    assert health.SILENT_KINDS == ("collapse", "diverged", "no-gradient", "dead-reward", "engine-drifts")
    shown = {symptom.kind for failing in FAILING for symptom in health.symptoms(failing, ended=True)}
    assert shown | {"no-gradient"} == {rule.kind for rule in health.RULES if rule.failure}


@pytest.mark.parametrize("metric", ["reward", "rewards/length/mean"])
def test_a_reward_that_is_infinite_in_one_step_is_a_failure_of_its_own(metric):
    found = rows(12, **{metric: [0.3] * 4 + [INF, 0.3]}, loss=0.0, grad_norm=[1.0] * 4 + [0.0, 1.0])
    assert kinds(found) == kinds(found, ended=False) == [("non-finite", "reward")]
    (symptom,) = health.symptoms(found, ended=True)
    assert symptom.step == 5 and symptom.text == f"{metric} is inf"


@pytest.mark.parametrize(
    "columns, odd",
    [
        ({"length/mean": 0.25, "length/std": [0.0, 3e-8]}, "length gives 0.25 every time"),
        ({"length": 0.25}, "length gives 0.25 every time"),  # TRL before 0.16
        ({"length/mean": [0.1, 0.4, 0.2], "length/std": 0.0}, "length gives all completions of a step one value"),
        (
            {"length/mean": [0.1, 0.4, 0.2], "length/std": [0.2, 0.1]},
            "length gives all completions of a prompt one value",
        ),
        ({"length/mean": [0.1, 0.4], "length/std": [0.2, 0.0, 0.2]}, ""),  # now one group, now several
        ({"length/mean": [0.1, 0.4], "length/std": 0.2, "style/mean": [0.4, 0.1], "style/std": 0.2}, ""),  # opposed
    ],
)
def test_of_equal_rewards_it_says_what_is_odd_about_each_function(columns, odd):
    rewards = {f"rewards/{name}": value for name, value in columns.items()}
    (symptom,) = health.symptoms(rows(8, reward_std=0.0, frac_reward_zero_std=1.0, **rewards), ended=True)
    said, _, then = symptom.text.partition("; ")
    assert said == "all rewards of a group equal in each of the first 5 steps" and then.startswith(odd)
    assert bool(then) == bool(odd) and "; " not in then


def test_an_engine_that_drifts_is_told_at_the_fifth_step_in_a_row():
    (symptom,) = health.symptoms(FAILING[-1], ended=False)
    assert symptom.step == 10 and symptom.text == "sampling/sampling_logp_difference/mean is 0.2 in 5 steps in a row"


def test_a_reward_function_that_is_nan_in_all_steps_is_a_remark():
    never, now_and_then = "rewards/never/mean", "rewards/sometimes/mean"
    found = [
        {
            "step": n,
            "reward": 0.5,
            never: math.nan,
            "rewards/never/std": math.nan,
            now_and_then: math.nan if n % 2 else 1.0,
        }
        for n in range(1, 8)
    ]
    (remark,) = health.remarks(found)
    assert (remark.kind, remark.name) == ("non-finite", never) and "7 of 7 steps" in remark.text
    assert health.remarks(found[:4]) == [], "too few to say that it never applies"
