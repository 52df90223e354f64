"""Whatever the columns of a run hold, its rows end in facts: none of them in an error."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.diagnosis import _row_facts, _rows_of_loss
from bisect_cfg.diagnosis._row_facts import FACTS
from bisect_cfg.diagnosis._rows import LARGEST, Row

NAMES = (
    "loss", "grad_norm", "reward", "reward_std", "entropy", "kl", "frac_reward_zero_std", "clipped_ratio",
    "learning_rate", "length", "ratio", "rewards/accuracy/mean", "rewards/format/mean", "rewards/format/std",
    "logps/chosen", "logits/chosen", "rewards/chosen", "rewards/margins", "accuracy", "min_reward",
    "engine_difference", "cpu_memory", "eval/accuracy", "env/turns", "eval_loss", "eval_accuracy",
    "critic/score/max", "critic/score/min",
)  # fmt: skip

COURSES: dict[str, Callable[[float], float]] = {
    "nothing": lambda at: 0.0,
    "one": lambda at: 1.0,
    "grows": lambda at: 1000 * at**3,
    "falls": lambda at: max(0.0, 1 - at) / 2,
    "saws": lambda at: math.sin(97 * at) / 3 + 0.5,
    "negative": lambda at: -1 - math.sin(31 * at),
    "drops": lambda at: 0.0 if at > 0.8 else 0.7 + math.sin(53 * at) / 9,
    "NaN": lambda at: math.nan,
    "NaN late": lambda at: math.nan if at > 0.7 else 0.4,
    "NaN first": lambda at: math.nan if at == 0 else 0.4,
    "infinite": lambda at: math.inf if math.sin(71 * at) > 0.6 else -math.inf if math.sin(71 * at) < -0.6 else 0.2,
    "immense": lambda at: 1.7e308 * math.sin(41 * at),
    "tiny": lambda at: 1e-300,
}
"""Values of a metric over a run, from 0 to 1."""

COLUMN = st.tuples(st.sampled_from(sorted(COURSES)), st.sampled_from((1, 1, 1, 2, 3)), st.sampled_from((0, 0, 0.5)))
"""Its course, in which rows it is logged (each, every other ...), and from where on."""


def rows_of(columns: dict[str, tuple[str, int, float]], number: int) -> list[Row]:
    rows = []
    for at in range(number):
        share = at / number
        values = {
            name: COURSES[course](share)
            for name, (course, every, begins) in columns.items()
            if at % every == 0 and share >= begins
        }
        if values:
            rows.append(Row(at + 1, "loss nan", values))
    return rows


@settings(max_examples=400, deadline=None)  # the first that is suspected imports ruptures
@given(
    st.dictionaries(st.sampled_from(NAMES), COLUMN, min_size=1, max_size=9),
    st.sampled_from((1, 2, 3, 5, 9, 12, 20, 41, 90, 450)),
)
def test_rows_of_any_columns_end_in_facts(columns: dict[str, tuple[str, int, float]], number: int) -> None:
    rows = rows_of(columns, number)
    lines = {row.line for row in rows}
    broken = [row for row in rows if not math.isfinite(row.values.get("grad_norm", 0.0))][:4]
    for facts in (_row_facts.facts_of(rows, broken, None), _rows_of_loss.of_held_out(rows, rows)):
        assert facts.keys() <= FACTS.keys()
        assert all(shown and {row.line for row in shown} <= lines for shown in facts.values())


def test_a_spread_of_rewards_without_a_reward() -> None:
    columns = {name: ("drops", 1, 0) for name in ("reward_std", "length", "entropy")}
    rows = rows_of(columns, 90)
    assert not any("reward" in row.values for row in rows)
    _row_facts.facts_of(rows, [], None)


def test_a_ratio_beside_log_probabilities_of_chosen_answers() -> None:
    columns = {"logps/chosen": ("falls", 1, 0), "ratio": ("tiny", 1, 0)}
    assert "biased-ratio" in _row_facts.facts_of(rows_of(columns, 41), [], None)


def test_a_number_that_no_float32_holds_is_infinite() -> None:
    rows = [Row(at, "", {"loss": 1.0, "grad_norm": 2 * LARGEST if at > 30 else 1.0}) for at in range(1, 41)]
    assert "infinite-gradient" in _row_facts.facts_of(rows, rows[30:34], None)


def collapsed(reward: Callable[[int], float]) -> int:
    """The first row that is told of a run whose choice between answers goes with its reward."""
    rows = []
    for at in range(1, 401):
        level = reward(at)
        values = {"reward": level + math.sin(7 * at) / 40, "entropy": 0.5 * level + 0.004 + math.sin(5 * at) / 1000}
        rows.append(Row(at, "", {**values, "reward_std": level, "grad_norm": level / 2, "loss": 0.0}))
    facts = _row_facts.facts_of(rows, [], None)
    return next(facts[name] for name in ("collapse", "one-answer") if name in facts)[0].line


def test_a_collapse_is_told_from_where_the_reward_began_to_fall() -> None:
    assert 120 <= collapsed(lambda at: 0.4 if at < 120 else max(0.4 - (at - 120) / 500, 0.01)) <= 180
    assert 298 <= collapsed(lambda at: 0.4 if at < 300 else 0.01) <= 300


def test_answers_of_several_lengths_are_not_all_cut_off() -> None:
    def told(mean: float) -> set[str]:
        values = {"loss": 0.001, "reward": 0.4, "clipped_ratio": 0.97, "length": mean, "completions/max_length": 1024.0}
        return {*_row_facts.facts_of([Row(at, "", values) for at in range(1, 41)], [], None)}

    assert {"all-clipped", "ends-unseen"} <= told(410.0)
    assert "ends-unseen" not in told(1020.0)


def test_a_gradient_that_is_lost() -> None:
    def told(rows: list[tuple[float, float]], **more: float) -> set[str]:
        made = [Row(at, "", {"loss": loss, "grad_norm": norm, **more}) for at, (loss, norm) in enumerate(rows, 1)]
        return {*_row_facts.facts_of(made, [], None)}

    before, after = [(0.7, 4.0 + at / 9) for at in range(9)], [(9.0, 0.0)] * 12
    assert "gradient-lost" in told([*before, (38.0, 4127.0), *after])
    assert "gradient-lost" not in told([*before, *after], reward=0.5)  # a group without differences
    assert "gradient-lost" not in told([*before, *[(0.0, 0.0)] * 12])  # learnt by heart
    assert "gradient-lost" not in told([*before, *after[:5]])
