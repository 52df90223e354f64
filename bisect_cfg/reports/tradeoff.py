"""The safe frontier between two settings, as data and as a few lines."""

from __future__ import annotations

from itertools import groupby

from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.recommend.frontier import Frontier
from bisect_cfg.reports.text import count, show


def as_data(frontier: Frontier) -> JsonObject:
    """A frontier in the form of result.json: for each value of the first setting, how far the second may go."""
    first, second = frontier.ranges
    return {
        "settings": [first.name, second.name],
        "good": [first.good, second.good],
        "bad": [first.bad, second.bad],
        "rows": [
            {"value": value, "healthy_up_to": safe, "not_from": unsafe, "fitted": frontier.at(value)}
            for value, safe, unsafe in zip(first.values, frontier.safe, frontier.unsafe, strict=True)
        ],
        "points": [{"values": dict(point.values), "healthy": point.healthy} for point in frontier.points],
        "undecided": round(frontier.undecided, 4),
    }


def in_lines(data: JsonObject) -> list[str]:
    """The frontier for people, a line for each stretch of the first setting."""
    first, second = data["settings"]
    (_, start), (_, end) = data["good"], data["bad"]
    lines = []
    for known, rows in groupby(data["rows"], lambda row: _known(row, start, end)):
        values = [show(row["value"]) for row in rows]
        lines.append(f"with {first} {' to '.join(dict.fromkeys((values[0], values[-1])))}: {known}")
    left = f"{data['undecided']:.0%} of the pairs are undecided" if data["undecided"] else "every pair is decided"
    runs = count(len(data["points"]), "short run")
    return [f"How far {second} can go, from {runs}, not verified; {left}:", *lines]


def _known(row: JsonObject, start: float, end: float) -> str:
    safe, unsafe = row["healthy_up_to"], row["not_from"]
    if safe == end:
        return f"all the way to your {show(end)}"
    if unsafe == start:
        return f"not even {show(start)}"
    seen = "nothing healthy seen yet" if safe is None else span(start, end, safe)
    return seen if unsafe is None else f"{seen}, not at {show(unsafe)}"


def span(good: float, bad: float, value: float) -> str:
    """``up to 0.3`` or ``down to 0.3``, as seen from good."""
    return f"{'up' if bad > good else 'down'} to {show(value)}"
