"""Rows of the table, and how they are written."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from oracles import Answer, Oracle


@dataclass(frozen=True)
class Result:
    """What a tool made of one oracle; the fields are those of `Row`, before averaging."""

    trials: int
    exact: bool
    right: bool
    invalid: int
    rounds: int
    seconds: float


def judge(tool: str, oracle: Oracle, answer: Answer, seconds: float) -> Result:
    """Compare an answer with the truth."""
    truth = frozenset(oracle.instance.causes)
    exact = answer.causes == truth and (answer.complete or tool != "ours")
    right = bool(answer.causes) and answer.causes <= truth
    rounds = oracle.launches if answer.rounds is None else answer.rounds
    return Result(oracle.launches, exact, right, oracle.invalid, rounds, seconds)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        case, tool, setting: which line; the setting is ours alone.
        instances: how many oracles.
        trials: mean number of runs, every launch counted; `error` is its standard error.
        exact: share of answers that name all the causes and nothing else; from ours also that they are complete.
        right: share of answers in which everything named is a cause, and something is named.
        invalid: mean number of launches of an invalid configuration.
        rounds: mean rounds of runs at once.
        milliseconds: time per run spent in the tool.
        aim: trials wanted of ours.
    """

    case: str
    tool: str
    setting: str
    instances: int
    trials: float
    error: float
    exact: float
    right: float
    invalid: float
    rounds: float
    milliseconds: float
    aim: str


def row(case: str, tool: str, setting: str, aim: str, results: Sequence[Result]) -> Row:
    """The row of a case and a tool, from what came out of each oracle."""
    trials = [result.trials for result in results]
    count = len(results)

    def mean(name: str) -> float:
        return statistics.mean(float(getattr(result, name)) for result in results)

    error = statistics.stdev(trials) / math.sqrt(count) if count > 1 else 0.0
    milliseconds = 1000 * mean("seconds") / mean("trials")
    return Row(
        case, tool, setting, count, mean("trials"), error, mean("exact"), mean("right"), mean("invalid"),
        mean("rounds"), milliseconds, aim,
    )  # fmt: skip


HEAD = (
    "| case | tool | setting | trials | exact | right | invalid | rounds | ms a trial | aim | instances |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(r: Row) -> str:
    """One row in markdown."""
    return (
        f"| {r.case} | {r.tool} | {r.setting} | {r.trials:.2f} ± {r.error:.2f} | {r.exact:.1%} | {r.right:.1%} "
        f"| {r.invalid:g} | {r.rounds:.2f} | {r.milliseconds:.1f} | {r.aim} | {r.instances} |"
    )


def write(rows: Sequence[Row], folder: Path, order: Sequence[str]) -> None:
    """Put the rows into `table.json` and `table.md`, in place of older ones of the same case, tool and setting.

    Args:
        rows: what was measured now.
        folder: where the files are, or will be.
        order: the names of all cases; rows of cases no longer among them are dropped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "table.json"
    old = [Row(**item) for item in json.loads(table.read_text())] if table.exists() else []
    merged = {(r.case, r.tool, r.setting): r for r in (*old, *rows) if r.case in order}
    sorted_rows = sorted(merged.values(), key=lambda r: order.index(r.case))
    table.write_text(json.dumps([asdict(r) for r in sorted_rows], indent=1) + "\n")
    (folder / "table.md").write_text("\n".join([HEAD, *map(line, sorted_rows)]) + "\n")


COMPARED = (
    "n=19, k=1",
    "n=19, k=2",
    "n=19, k=3",
    "n=64, k=2",
    "two disjoint pairs, n=19",
    "two overlapping pairs, n=19",
)
FLAKY = ("p=0.7, n=19, k=2", "p=0.5, n=19, k=2")
TOO_MANY = 120
"""Bars end here; a longer one says its number."""


def plot(folder: Path) -> None:
    """Draw `table.svg` from `table.json`; without matplotlib a line says so.

    On the left the trials of every tool where the failure is certain, hatched where it does not find all the causes. On
    the right trials against the share of exact answers where it is not.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        print(f"No plot: {error}")
        return
    rows = [Row(**item) for item in json.loads((folder / "table.json").read_text())]
    tools = list(dict.fromkeys(r.tool for r in rows if r.case in (*COMPARED, *FLAKY)))
    tools.sort(key=lambda tool: tool != "ours")
    colour = {tool: f"C{number}" for number, tool in enumerate(tools)}
    figure = Figure(figsize=(13, 5.5), layout="constrained")
    bars, scatter = figure.subplots(1, 2, width_ratios=(2, 1))
    width = 0.85 / max(len(tools), 1)
    for place, case in enumerate(COMPARED):
        for number, tool in enumerate(tools):
            row = next((r for r in rows if r.case == case and r.tool == tool), None)
            if row is None:
                continue
            x = place + (number - len(tools) / 2) * width
            height = min(row.trials, TOO_MANY)
            hatch = None if row.exact > 0.99 else "////"
            bars.bar(x, height, width, color=colour[tool], hatch=hatch, edgecolor="white", linewidth=0)
            if row.trials > TOO_MANY:
                bars.text(x, TOO_MANY, f"{row.trials:.0f}", ha="center", va="bottom", fontsize=6)
    bars.set_xticks(range(len(COMPARED)), [case.replace(", n=19", "").replace("two ", "") for case in COMPARED])
    bars.set(ylabel="trials (mean)", title="The failure shows every time (hatched: not all causes found)")
    for tool in tools:
        bars.bar(0, 0, color=colour[tool], label=tool)
    bars.legend(fontsize=8, ncols=2)
    for case, marker in zip(FLAKY, "os", strict=True):
        for tool in tools:
            found = [r for r in rows if r.case == case and r.tool == tool]
            x, y = [r.trials for r in found], [100 * r.exact for r in found]
            scatter.plot(x, y, marker, color=colour[tool], fillstyle="full" if marker == "o" else "none")
    scatter.set(
        xscale="log", xlabel="trials (mean)", ylabel="exact answers (%)",
        title="p = .7 (dots), .5 (squares); n=19, k=2",
    )  # fmt: skip
    figure.savefig(folder / "table.svg")
