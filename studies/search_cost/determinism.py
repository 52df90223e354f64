"""What it saves to see that runs repeat themselves bit for bit, and whether that ever misleads.

    python studies/search_cost/determinism.py --processes 2

prints a row for each kind of run and failure. A simulated run has metric rows as a real one has, a step each. Its trace
is a digest of those before the failing step, bit for bit; of a run that fails in its first step there are none.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import multiprocessing
import random
import re
import statistics
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oracles import Case, Oracle, plain, subsets
from rounds import Setting, by_rounds

SIZE = 19
STEPS = 5
"""Of a trial; where the failing step is not drawn, it is the third."""

ROWS = {
    "no trace": "nothing is known of the metrics",
    "noise": "no two runs agree in the last bits",
    "repeats": "the same rows at every start, the same failing step",
    "step drawn": "the same rows at every start, and at each step a coin for the failure",
}
"""Kind of run -> what its metric rows are. A random failure of a run that repeats itself is drawn from outside of all
that a seed holds, as by `os.urandom`."""


@dataclass
class Traced(Oracle):
    """An oracle whose runs have metric rows.

    Attributes:
        kind: of `ROWS`.
        trace: of the run before.
    """

    kind: str = "repeats"
    trace: str = ""

    def run(self, mask: int) -> bool | None:
        """As of any oracle."""
        repeat = self.asked[mask]
        fails = super().run(mask)
        self.trace = self._digest(mask, repeat) if fails and self.kind != "no trace" else ""
        return fails

    def _digest(self, mask: int, repeat: int) -> str:
        """Of the rows before the failing step."""
        key = f"{self.instance.key} {mask}"
        rows = random.Random(f"{key} rows")
        noise = random.Random(f"{key} noise {repeat}" if self.kind == "noise" else "")
        failing = 3
        if self.kind == "step drawn":
            coins, hazard = random.Random(f"{key} step {repeat}"), 1 - (1 - self.instance.rate) ** (1 / STEPS)
            failing = next((step for step in range(1, STEPS) if coins.random() < hazard), STEPS)
        told = [(rows.gauss(1.0, 0.1), rows.gauss(2.0, 0.5)) for _ in range(failing - 1)]  # loss, grad_norm
        told = [(loss * (1 + math.ulp(1.0) * noise.randint(0, 2**20)), norm) for loss, norm in told]
        return hashlib.sha256(b"".join(struct.pack("2d", *row) for row in told)).hexdigest() if told else ""


@dataclass(frozen=True)
class Line:
    """A row of the table: how runs are, how often the failure shows, how many settings are its cause, what is asked."""

    kind: str
    rate: float
    count: int
    setting: Setting

    def __str__(self) -> str:
        settings = f"{self.count} setting{'s' * (self.count > 1)}"
        return f"{self.kind} | p={self.rate:g}, {settings} | {self.setting}"


def measure(task: tuple[Line, int]) -> tuple[int, bool, bool, bool]:
    """Of one instance: trials, whether the answer names the causes, whether it says that these are all, and whether it
    has a note on what that assumes."""
    line, number = task
    kind = f"n={SIZE}, k={line.count}"  # the instances of the other tables
    case = replace(Case(kind, kind, plain(SIZE), subsets(SIZE, line.count)), rate=line.rate)
    oracle = Traced(case.instance(number), kind=line.kind)
    answer = by_rounds(case, oracle, line.setting)
    return oracle.launches, answer.causes == frozenset(oracle.instance.causes), answer.complete, bool(answer.notes)


def lines(instances: int, certain: int) -> list[tuple[Line, int]]:
    """The rows, and how many instances each has."""
    default, once = Setting(None), Setting(1)
    rates = (0.3, 0.5, 0.7, 0.9)
    rows = [(Line(kind, 1.0, count, default), certain) for kind in ("no trace", "repeats") for count in (1, 2, 3)]
    rows += [(Line(kind, rate, 1, default), instances) for kind in ("repeats", "step drawn", "noise") for rate in rates]
    rows += [(Line("no trace", rate, 1, once), instances) for rate in rates]
    rows += [(Line("repeats", rate, 2, default), instances) for rate in rates]
    return rows


def shown(line: Line, results: Sequence[tuple[int, bool, bool, bool]]) -> str:
    """A row in markdown."""
    trials = [one[0] for one in results]
    error = statistics.stdev(trials) / math.sqrt(len(trials)) if len(trials) > 1 else 0.0
    exact = sum(right and complete for _, right, complete, _ in results)
    wrong = [noted for _, right, complete, noted in results if complete and not right]
    return (
        f"| {line} | {statistics.mean(trials):.2f} ± {error:.2f} | {exact} | {len(wrong)} "
        f"({len(wrong) / len(results):.1%}) | {len(wrong) - sum(wrong)} | {len(results)} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=300, help="of each random failure")
    parser.add_argument("--certain", type=int, default=200, help="of each that always shows")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", help="rows in which this regular expression is found")
    options = parser.parse_args(arguments)
    print("| runs | failure | asked for | trials | exact | complete and wrong | of those without a note | instances |")
    print("|---|---|---|---|---|---|---|---|")
    with multiprocessing.Pool(options.processes) as pool:
        for line, count in lines(options.instances, options.certain):
            if re.search(options.only, str(line)):
                results = pool.map(measure, [(line, number) for number in range(count)], chunksize=4)
                print(shown(line, results), flush=True)


if __name__ == "__main__":
    main()
