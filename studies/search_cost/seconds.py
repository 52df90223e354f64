"""What the answer costs in time, where settings make a run costlier or cheaper: the search that sees the times against
the same search that does not.

    python studies/search_cost/seconds.py --instances 200 --out studies/search_cost

Every setting (or, in the rows "two", two of them drawn at random) multiplies the duration of a run by a factor of its
own, log-uniform, upwards or downwards, scaled so that the costliest configuration takes 20 times as long as the
cheapest. In the rows "known" the search is told the factors beforehand, as those of batch size and completion length
are. A passing run of the good configuration takes ten seconds, a failing one half as long as a passing one. Every
launch counts, the two baselines included.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.search import Ask, Conclusion, Problem, Record, next_question

RANGE = 20.0
"""The costliest configuration by the cheapest."""

SECONDS = 10.0
"""A passing run of the good configuration."""

FAILING = 0.5
"""What a failing run takes of a passing one: trials are twice as long as the failure needs to show."""


@dataclass(frozen=True)
class Case:
    """One oracle: causes, and the logarithm of each setting's factor."""

    size: int
    causes: tuple[int, ...]
    factors: tuple[float, ...]

    @classmethod
    def draw(cls, size: int, count: int, seed: int, costly: int) -> Case:
        """One cause of `count` settings; `costly` settings change the duration."""
        rng = random.Random(f"{size} {count} {seed}")
        cause = sum(1 << i for i in rng.sample(range(size), count))
        raw = [rng.uniform(-1, 1) for _ in range(size)]
        kept = set(rng.sample(range(size), costly))
        raw = [value if i in kept else 0.0 for i, value in enumerate(raw)]
        scale = math.log(RANGE) / sum(map(abs, raw))
        return cls(size, (cause,), tuple(value * scale for value in raw))

    def fails(self, mask: int) -> bool:
        """The truth."""
        return any(cause & mask == cause for cause in self.causes)

    def seconds(self, mask: int) -> float:
        """How long a run takes."""
        price = math.exp(sum(self.factors[i] for i in range(self.size) if mask >> i & 1))
        return SECONDS * price * (FAILING if self.fails(mask) else 1.0)


def solve(case: Case, aware: bool, known: bool) -> tuple[Conclusion, int, float]:
    """The answer, its trials and its seconds; the search sees the times only if it is `aware`, and is told the factors
    only if they are `known`."""
    work = case.factors if aware and known else ()
    problem = Problem(tuple(f"f{i}" for i in range(case.size)), confirm=None, work=work)
    records: list[Record] = []
    total = 0.0
    while isinstance(question := next_question(problem, records), Ask):
        seconds = case.seconds(question.subset)
        total += seconds
        outcome = Outcome.FAIL if case.fails(question.subset) else Outcome.PASS
        shown = seconds if aware else 0.0
        records.append(Record(question.subset, outcome, question.purpose, len(records), shown, question.companions))
    return question.conclusion, len(records), total


def measure(size: int, count: int, instances: int, costly: int, known: bool) -> str:
    """One row of the table."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    trials: dict[bool, list[int]] = {True: [], False: []}
    exact = 0
    for seed in range(instances):
        case = Case.draw(size, count, seed, costly)
        for aware in (True, False):
            conclusion, runs, total = solve(case, aware, known)
            seconds[aware].append(total)
            trials[aware].append(runs)
            exact += conclusion.complete and {c.parameters for c in conclusion.causes} == set(case.causes)
    ratio = statistics.mean(seconds[True]) / statistics.mean(seconds[False])
    return (
        f"| n={size}, k={count} | {'all' if costly == size else 'two'}{', known' if known else ''} "
        f"| {statistics.mean(seconds[False]):.0f} | {statistics.mean(seconds[True]):.0f} | {ratio:.2f} "
        f"| {statistics.mean(trials[False]):.2f} | {statistics.mean(trials[True]):.2f} "
        f"| {exact / (2 * instances):.1%} | {instances} |"
    )


COLUMNS = (
    "case", "factors", "seconds, times unseen", "seconds, times seen", "ratio", "trials, unseen", "trials, seen",
    "exact", "instances",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--out", type=Path, help="a folder for seconds.md")
    options = parser.parse_args()
    lines = [HEAD]
    print(HEAD, flush=True)
    for size, count in ((19, 1), (19, 2)):
        for costly, known in ((size, False), (size, True), (2, False), (2, True)):
            lines.append(measure(size, count, options.instances, costly, known))
            print(lines[-1], flush=True)
    if options.out is not None:
        (options.out / "seconds.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
