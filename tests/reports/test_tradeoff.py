"""A frontier as data and as lines: for each stretch of the first setting, how far the second may go."""

from __future__ import annotations

import pytest

from bisect_cfg.recommend.frontier import Point, frontier_of
from bisect_cfg.recommend.search_range import search_range_of
from bisect_cfg.reports.tradeoff import as_data, in_lines, span

HEAT, RATE = search_range_of("temperature", 1.0, 0.2), search_range_of("learning_rate", 1e-6, 0.03)


def told(*points: tuple[float, float, bool]) -> dict:
    found = [Point({"temperature": heat, "learning_rate": rate}, healthy) for heat, rate, healthy in points]
    return as_data(frontier_of((HEAT, RATE), found))


def test_it_is_told_in_a_line_for_each_stretch():
    data = told(
        (HEAT.values[1], 0.03, True),
        (HEAT.values[2], 0.03, False),
        (0.2, RATE.values[20], True),
        (0.2, RATE.values[21], False),
    )
    title, *lines = in_lines(data)
    assert "from 4 short runs, not verified" in title and "0%" not in title
    assert lines[0] == f"with temperature 1 to {HEAT.values[1]:g}: all the way to your 0.03"
    assert lines[-1] == f"with temperature 0.2: up to {RATE.values[20]:g}, not at {RATE.values[21]:g}"
    assert [row["value"] for row in data["rows"]] == list(HEAT.values)
    assert data["settings"] == ["temperature", "learning_rate"] and 0 < data["undecided"] < 0.2


def test_what_is_decided_and_what_nobody_has_seen():
    decided = told((0.2, RATE.values[-2], True), (1.0, 0.03, True), (HEAT.values[1], 0.03, False))
    assert decided["undecided"] == 0 and in_lines(decided)[0].endswith("every pair is decided:")
    assert any("not even 1e-06" in line for line in in_lines(told((HEAT.values[1], RATE.values[0], False))))


@pytest.mark.parametrize(("good", "bad", "said"), [(1.0, 0.2, "down to 0.5"), (0.2, 1.0, "up to 0.5")])
def test_the_direction_is_that_from_good_to_bad(good, bad, said):
    assert span(good, bad, 0.5) == said
