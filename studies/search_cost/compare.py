"""Is the search of this checkout as cheap as another one's? Both meet the same instances with the same luck.

    git worktree add /tmp/before COMMIT
    python studies/search_cost/compare.py /tmp/before --only p=0.7 --instances 40

In `table.md` a coin belongs to a subset, so that two searches which ask equally good questions in another order have
other luck, and a row of 100 instances is known to 3 or 4 %. Here the coins of an instance lie in a row: whatever subset
it is, the nth run that holds a cause takes the nth. Each search by itself meets the same chances as before, and at p=.7
twenty instances tell two of them apart by 1 %.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent


def answers(root: Path, case: str, setting: tuple[int | None, float], count: int) -> Iterator[tuple[int, bool]]:
    """Trials, and whether the answer was exact, of each instance, by the search of a checkout."""
    command = [sys.executable, __file__, str(root), "--answer", json.dumps([case, *setting, count])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            trials, exact = json.loads(line)
            yield trials, exact


def answer(root: Path, name: str, confirm: int | None, confidence: float, count: int) -> None:
    """Print them, as one checkout gives them: the package is taken from there, the oracles are ours."""
    sys.path[:0] = [str(root), str(HERE)]
    import oracles
    from rounds import Setting, by_rounds

    class InARow(oracles.Oracle):
        """Takes the coins of its instance one after the other."""

        taken = 0

        def coin(self, mask: int, repeat: int) -> float:
            self.taken += 1
            return random.Random(f"{self.instance.key} coin {self.taken}").random()

    case = next(case for case in oracles.cases() if case.name == name)
    for number in range(count):
        oracle = InARow(case.instance(number))
        found = by_rounds(case, oracle, Setting(confirm, confidence))
        exact = found.complete and found.causes == frozenset(oracle.instance.causes)
        print(json.dumps([oracle.launches, exact]), flush=True)


def ratio(before: Sequence[int], after: Sequence[int]) -> tuple[float, float]:
    """How many times the trials, and the standard error of that."""
    found = sum(after) / sum(before)
    off = [b - found * a for a, b in zip(before, after, strict=True)]
    count = len(off)
    return found, math.sqrt(sum(one * one for one in off) / max(1, count - 1) / count) / (sum(before) / count)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the rows of `table.json`."""
    parser = argparse.ArgumentParser(description="The cost of two versions of the search on the same instances.")
    parser.add_argument("other", type=Path, help="a checkout of the other version")
    parser.add_argument("--instances", type=int, default=40, help="oracles a row")
    parser.add_argument("--only", default="", help="rows in whose case and setting this regular expression is found")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answer:
        answer(options.other, *json.loads(options.answer))
        return
    print("| case | setting | trials before | after | difference | exact before | after | instances |")
    print("|---|---|---|---|---|---|---|---|")
    for row in json.loads((HERE / "table.json").read_text()):
        told = re.fullmatch(r"(?:confirm=(\d+)|default), (\d+)%", row["setting"])
        if row["tool"] != "ours" or told is None or not re.search(options.only, f"{row['case']} {row['setting']}"):
            continue
        setting = (None if told[1] is None else int(told[1]), int(told[2]) / 100)
        count = min(options.instances, row["instances"]) if row["instances"] == 1 else options.instances
        sides = [list(answers(root, row["case"], setting, count)) for root in (options.other, HERE.parents[1])]
        (before, right), (after, right_after) = (tuple(zip(*side, strict=True)) for side in sides)
        found, error = ratio(before, after)
        print(
            f"| {row['case']} | {row['setting']} | {sum(before) / count:.2f} | {sum(after) / count:.2f} "
            f"| {found - 1:+.1%} ± {error:.1%} | {sum(right) / count:.1%} | {sum(right_after) / count:.1%} | {count} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
