"""How often the search is right, over more instances than a test has time for.

    python -m tests.search.measure oracles --instances 20000 --sizes 4,5,6,7
    python -m tests.search.measure flaky --instances 200 --rates 0.9,0.7,0.5 --confidence 0.8,0.95,0.99

`oracles` draws monotone oracles with rules, half of them with rules that only a run reveals, and checks every answer
against every runnable subset. `flaky` counts exact answers. Both say the seed of what is wrong.
"""

from __future__ import annotations

import argparse
import random
import statistics

from tests.search.oracles import Oracle, complaint, draw, missed, solve


def oracle_of(seed: int, size: int) -> Oracle:
    """A monotone oracle with rules; with an odd seed no rule is hidden."""
    oracle = draw(random.Random(seed), size, rules=2)
    if seed % 2:
        oracle.hidden = ()
    return oracle


def flaky_of(seed: int, size: int, count: int, rate: float) -> Oracle:
    """An oracle with one cause whose failure shows now and then; the cause depends on the seed alone."""
    cause = sum(1 << i for i in random.Random(seed).sample(range(size), count))
    return Oracle(size, (cause,), rate=rate, rng=random.Random(seed))


def exact(oracle: Oracle, conclusion: object) -> bool:
    """Whether the answer names the causes, nothing else, and says that they are all."""
    return {c.parameters for c in conclusion.causes} == set(oracle.causes) and conclusion.complete  # type: ignore


def _oracles(instances: int, sizes: list[int], start: int) -> None:
    wrong = incomplete = lost = 0
    trials = []
    for seed in range(start, start + instances):
        oracle = oracle_of(seed, sizes[seed // 2 % len(sizes)])
        conclusion, records, _ = solve(oracle, limit=1000)
        trials.append(len(records))
        what = complaint(oracle, conclusion)
        incomplete += not conclusion.complete
        if missed(oracle, conclusion):
            lost += 1
        if what is not None:
            wrong += 1
            print(f"seed {seed}: {what}: {oracle}")
    print(
        f"{instances} oracles: {wrong} wrong, {incomplete} not shown to be complete, a cause missing in {lost}; "
        f"trials {statistics.mean(trials):.1f} on average, {max(trials)} at most"
    )


def _flaky(instances: int, size: int, rates: list[float], levels: list[float], confirm: int) -> None:
    print("| p | k | confidence | exact | trials | wrong seeds |\n|---|---|---|---|---|---|")
    for rate in rates:
        for count in (1, 2, 3):
            for level in levels:
                wrong, trials = [], []
                for seed in range(instances):
                    oracle = flaky_of(seed, size, count, rate)
                    conclusion, records, _ = solve(oracle, limit=1000, confidence=level, confirm=confirm)
                    trials.append(len(records))
                    if not exact(oracle, conclusion):
                        wrong.append(seed)
                share = 1 - len(wrong) / instances
                print(
                    f"| {rate:g} | {count} | {level:.0%} | {share:.1%} | {statistics.mean(trials):.1f} "
                    f"| {' '.join(map(str, wrong[:8]))} |",
                    flush=True,
                )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How often the search is right.")
    parser.add_argument("what", choices=("oracles", "flaky"))
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--sizes", default="4,5,6,7")
    parser.add_argument("--size", type=int, default=12)
    parser.add_argument("--rates", default="0.9,0.7,0.5")
    parser.add_argument("--confidence", default="0.8,0.95,0.99")
    parser.add_argument("--confirm", type=int, default=1)
    o = parser.parse_args()
    if o.what == "oracles":
        _oracles(o.instances, [int(size) for size in o.sizes.split(",")], o.start)
    else:
        rates, levels = ([float(x) for x in text.split(",")] for text in (o.rates, o.confidence))
        _flaky(o.instances, o.size, rates, levels, o.confirm)


if __name__ == "__main__":
    main()
