"""What the search costs: trials on random oracles, next to the numbers it has to beat.

    python studies/search_cost/run.py --instances 200 --out studies/search_cost

prints a row a case and puts the rows into `table.json` and `table.md` of the folder; without `--out` it only
prints. Counting is the same everywhere: every launch counts, baselines, certificate and invalid ones included.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import peers
import report
from oracles import Answer, Case, Exhausted, Oracle, cases
from ours import Setting, solve

REPEATS = (1, 3, 6)
"""How often a peer runs what passes, if the failure is random and its adapter does not say otherwise."""

MOST = {"optuna_tpe": 20, "shrinkray": 100, "mlbisect": 100}
"""Instances a row of the slow ones, at most."""


@functools.cache
def table() -> tuple[Case, ...]:
    """All cases; worker processes make their own, because what draws an oracle cannot be sent to them."""
    return tuple(cases())


@dataclass(frozen=True)
class Task:
    """One instance of a case for one tool; `setting` is what `Bisection` is asked for, or the repeats of a peer."""

    case: str
    number: int
    tool: str
    setting: Setting | int


def measure(task: Task) -> report.Result:
    """Let a tool find the causes of one instance."""
    case = next(case for case in table() if case.name == task.case)
    oracle = Oracle(case.instance(task.number))
    start = time.perf_counter()
    try:
        if isinstance(task.setting, Setting):
            answer = solve(case, oracle, task.setting)
        else:
            adapter, _ = peers.load(task.tool) or sys.exit(f"{task.tool} is gone")
            answer = adapter.solve(oracle, task.setting)
    except Exhausted:
        answer = Answer(frozenset())
    return report.judge(task.tool, oracle, answer, time.perf_counter() - start)


def settings_of(case: Case, tool: str, options: argparse.Namespace) -> list[Setting | int]:
    """What a tool is measured at in this case; nothing where the case is not made for it."""
    if tool == "ours":
        wanted = options.confirm or case.confirms
        return [Setting(confirm, level) for confirm in wanted for level in options.confidence]
    if case.jobs > 1 or case.kind.startswith("cause from the prior"):
        return []
    adapter, _ = peers.load(tool) or sys.exit(f"{tool} is gone")
    return [1] if case.rate == 1 else list(getattr(adapter, "SETTINGS", REPEATS))


def numbers(text: str) -> list[float]:
    """`0.8,0.95` as numbers."""
    return [float(part) for part in text.split(",")]


def confirms(text: str) -> list[int | None]:
    """`1,2,default` as values of `confirm`."""
    return [None if part == "default" else int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Trials the search needs on random oracles.")
    parser.add_argument("--instances", type=int, default=200, help="oracles a row")
    parser.add_argument("--only", default="", help="cases in whose name this regular expression is found")
    parser.add_argument("--tools", default="ours", help=f"of ours,{','.join(peers.NAMES)}; or all")
    parser.add_argument("--confirm", type=confirms, help="of ours, e.g. 1,2,default; without it: as each case says")
    parser.add_argument("--confidence", type=numbers, default=[0.95], help="of ours, e.g. 0.8,0.95,0.99")
    parser.add_argument("--processes", type=int, default=1, help="instances at once; no count depends on it")
    parser.add_argument("--out", type=Path, help="folder of table.json, table.md and table.svg")
    options = parser.parse_args(arguments)
    tools = {}
    for tool in ("ours", *peers.NAMES) if options.tools == "all" else options.tools.split(","):
        if tool == "ours":
            tools[tool] = "ours"
        elif loaded := peers.load(tool):
            tools[tool] = loaded[1]
    rows = []
    print(report.HEAD)
    with multiprocessing.Pool(options.processes) as pool:
        for case in table():
            if not re.search(options.only, case.name):
                continue
            for tool, title in tools.items():
                for setting in settings_of(case, tool, options):
                    count = 1 if case.fixed else min(options.instances, MOST.get(tool, options.instances))
                    tasks = [Task(case.name, number, tool, setting) for number in range(count)]
                    results = pool.map(measure, tasks, chunksize=4)
                    text = str(setting) if tool == "ours" else f"repeats={setting}"
                    aim = case.aim if tool == "ours" else "-"
                    rows.append(report.row(case.name, title, text, aim, results))
                    print(report.line(rows[-1]), flush=True)
                    if options.out:
                        report.write(rows, options.out, [case.name for case in table()])
    if options.out:
        report.plot(options.out)


if __name__ == "__main__":
    main()
