"""What the search costs: trials on random oracles, next to the numbers it has to beat.

    python studies/search_cost/run.py --instances 200 --out studies/search_cost

prints a row a case and puts the rows into `table.json` and `table.md` of the folder; without `--out` it only
prints. Counting is the same everywhere: every launch counts, baselines, certificate and invalid ones included.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path

import report
from oracles import Case, Oracle, cases
from ours import Setting, solve


@functools.cache
def table() -> tuple[Case, ...]:
    """All cases; worker processes make their own, because what draws an oracle cannot be sent to them."""
    return tuple(cases())


def measure(task: tuple[str, int, Setting]) -> report.Result:
    """One instance of a case."""
    name, number, setting = task
    case = next(case for case in table() if case.name == name)
    oracle = Oracle(case.instance(number))
    start = time.perf_counter()
    answer = solve(case, oracle, setting)
    return report.judge("ours", oracle, answer, time.perf_counter() - start)


def numbers(text: str) -> list[float]:
    """`0.8,0.95` as numbers."""
    return [float(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Trials the search needs on random oracles.")
    parser.add_argument("--instances", type=int, default=200, help="oracles a row")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--confirm", type=numbers, help="of ours, e.g. 0,1; default: as each case says")
    parser.add_argument("--confidence", type=numbers, default=[0.95], help="of ours, e.g. 0.8,0.95,0.99")
    parser.add_argument("--processes", type=int, default=1, help="instances at once; no number depends on it")
    parser.add_argument("--out", type=Path, help="folder of table.json and table.md")
    options = parser.parse_args(arguments)
    rows = []
    print(report.HEAD)
    with multiprocessing.Pool(options.processes) as pool:
        for case in table():
            if options.only not in case.name:
                continue
            for confirm in options.confirm or case.confirms:
                for confidence in options.confidence:
                    setting = Setting(int(confirm), confidence)
                    count = 1 if case.fixed else options.instances
                    tasks = [(case.name, number, setting) for number in range(count)]
                    results = pool.map(measure, tasks, chunksize=4)
                    rows.append(report.row(case.name, "ours", str(setting), case.aim, results))
                    print(report.line(rows[-1]), flush=True)
                    if options.out:
                        report.write(rows, options.out, [case.name for case in table()])


if __name__ == "__main__":
    main()
