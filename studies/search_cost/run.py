"""What the search costs: trials on random oracles, next to the numbers it has to beat.

    python studies/search_cost/run.py --instances 200 --out studies/search_cost

writes `table.md` and `table.json`. Every row is seeded; equal versions give equal numbers. Counting is the
same
everywhere: each run counts, the two baselines and the certificate included. An answer is exact if it names
all the causes, nothing else, and says that they are complete.

Two settings are shown. `confirm=1`, the default, runs every claim of the answer itself. With `confirm=0` the
pass of a larger subset speaks for a smaller one, which is how most tools count their minimality.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from bisect_cfg.factors import Outcome
from bisect_cfg.search import Ask, Conclusion, Done, Problem, Record, next_question
from bisect_cfg.search.prior import odds_of

OPTIONS = (
    "learning_rate adam_beta1 adam_beta2 weight_decay warmup_steps lr_scheduler_type optim bf16 "
    "per_device_train_batch_size gradient_accumulation_steps num_generations max_completion_length "
    "max_grad_norm beta"
).split()
"""Fourteen options of the recipe in trl#2906."""

MORE = (
    "logging_steps save_steps num_train_epochs report_to run_name temperature top_p epsilon loss_type "
    "scale_rewards eval_steps save_strategy logging_first_step seed output_dir hub_model_id save_total_limit "
    "dataloader_num_workers push_to_hub eval_strategy disable_tqdm log_completions dataloader_pin_memory "
    "remove_unused_columns logging_strategy report_tags"
).split()

TRL_GOOD = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}
TRL_BAD = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 16}
TRL_CAUSES = (
    ("bf16",),
    ("num_generations",),
    ("learning_rate", "max_grad_norm"),
    ("num_generations", "beta"),
    ("learning_rate", "bf16", "per_device_train_batch_size"),
)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: str
    confirm: int
    instances: int
    trials: float
    error: float
    exact: float
    rounds: float
    milliseconds: float
    aim: str


@dataclass(frozen=True)
class Case:
    """Random oracles of one kind."""

    name: str
    size: int
    draw: Callable[[random.Random], tuple[int, ...]]
    aim: str
    rate: float = 1.0
    jobs: int = 1
    odds: tuple[float, ...] = ()
    valid: Callable[[int], bool] = lambda mask: True


def solve(
    case: Case, causes: Sequence[int], rng: random.Random, confirm: int
) -> tuple[Conclusion | None, int, int]:
    """One oracle: the conclusion, the trials and the rounds of `jobs` trials at once."""
    names = tuple(f"f{i}" for i in range(case.size))
    problem = Problem(names, case.valid, case.odds, confirm=confirm, jobs=case.jobs)
    records: list[Record] = []
    rounds = 0
    while len(records) < 1000:
        batch: list[Record] = []
        while len(batch) < case.jobs:
            question = next_question(problem, records + batch)
            if not isinstance(question, Ask):
                break
            assert case.valid(question.subset), "an invalid configuration was launched"
            batch.append(Record(question.subset, None, question.purpose, len(records) + len(batch)))
        if isinstance(question, Done):
            return question.conclusion, len(records), rounds
        rounds += 1
        for r in batch:
            fails = any(cause & r.subset == cause for cause in causes)
            if fails and case.rate < 1 and r.number:  # its first failure is why we are here
                fails = rng.random() < case.rate
            records.append(Record(r.subset, Outcome.FAIL if fails else Outcome.PASS, r.purpose, r.number))
    return None, len(records), rounds


def measure(case: Case, instances: int, confirm: int) -> Row:
    """A row of the table."""
    rng = random.Random(f"{case.name} {confirm}")
    trials, rounds, exact = [], [], 0
    start = time.perf_counter()
    for _ in range(instances):
        causes = case.draw(rng)
        conclusion, count, turns = solve(case, causes, rng, confirm)
        trials.append(count)
        rounds.append(turns)
        found = {c.parameters for c in conclusion.causes} if conclusion else set()
        exact += bool(conclusion and conclusion.complete and found == set(causes))
    milliseconds = 1000 * (time.perf_counter() - start) / sum(trials)
    error = statistics.stdev(trials) / math.sqrt(instances) if instances > 1 else 0.0
    return Row(
        case.name, confirm, instances, statistics.mean(trials), error, exact / instances,
        statistics.mean(rounds), milliseconds, case.aim,
    )  # fmt: skip


def subset(rng: random.Random, size: int, count: int) -> int:
    """A random subset of a given number of factors."""
    return sum(1 << i for i in rng.sample(range(size), count))


def pairs(size: int, shared: int) -> Callable[[random.Random], tuple[int, ...]]:
    """Two random pairs with `shared` factors in common."""

    def draw(rng: random.Random) -> tuple[int, ...]:
        a, b, c, d = (1 << i for i in rng.sample(range(size), 4))
        return (a | b, a | c) if shared else (a | b, c | d)

    return draw


def from_prior(odds: Sequence[float]) -> Callable[[random.Random], tuple[int, ...]]:
    """A cause drawn as the odds say: one, two or three parameters, each subset by the product of its odds."""
    tables = []
    for count in (1, 2, 3):
        subsets = list(combinations(range(len(odds)), count))
        weights = [math.prod(odds[i] for i in chosen) for chosen in subsets]
        tables.append((subsets, weights))

    def draw(rng: random.Random) -> tuple[int, ...]:
        subsets, weights = tables[rng.choices((0, 1, 2), (0.46, 0.34, 0.2))[0]]
        return (sum(1 << i for i in rng.choices(subsets, weights)[0]),)

    return draw


def trl_valid(mask: int) -> bool:
    """TRL's rule: batch times accumulation is a multiple of the number of generations."""
    batch, steps, generations = (
        (TRL_BAD if mask >> OPTIONS.index(name) & 1 else TRL_GOOD)[name] for name in TRL_GOOD
    )
    return batch * steps % generations == 0


def cases() -> list[tuple[Case, tuple[int, ...]]]:
    """Every case with the values of `confirm` it is measured at."""
    rows: list[tuple[Case, tuple[int, ...]]] = []
    both = (0, 1)
    for size, count, aim in (
        (8, 2, "-"), (19, 1, "8"), (19, 2, "13"), (19, 3, "17.5"), (32, 2, "-"), (64, 1, "-"), (64, 2,
        "16.5"),
    ):  # fmt: skip
        draw = lambda rng, size=size, count=count: (subset(rng, size, count),)  # noqa: E731
        rows.append((Case(f"n={size}, k={count}", size, draw, aim), both))
    rows.append((Case("two disjoint pairs, n=19", 19, pairs(19, 0), "25"), both))
    rows.append((Case("two overlapping pairs, n=19", 19, pairs(19, 1), "23"), both))
    pair = lambda rng: (subset(rng, 19, 2),)  # noqa: E731
    for rate, aim in ((0.9, "-"), (0.7, "34, 99 % exact"), (0.5, "46, 99 % exact")):
        rows.append((Case(f"p={rate:g}, n=19, k=2", 19, pair, aim, rate=rate), (0, 1, 2)))
    for jobs, aim in ((2, "-"), (4, "2.5x fewer rounds than 1"), (8, "-")):
        rows.append((Case(f"n=19, k=2, {jobs} workers", 19, pair, aim, jobs=jobs), both))
    for names in (OPTIONS + MORE[:5], OPTIONS + MORE):
        odds = odds_of(names, "risk")
        draw = from_prior(odds)
        size = len(names)
        rows.append((Case(f"cause from the prior, n={size}, flat", size, draw, "-"), both))
        aim = "25 % fewer than flat"
        rows.append((Case(f"cause from the prior, n={size}, risk", size, draw, aim, odds=odds), both))
    for causes in TRL_CAUSES:
        mask = sum(1 << OPTIONS.index(name) for name in causes)
        name = f"TRL validity: {' + '.join(causes)}"
        draw = lambda rng, mask=mask: (mask,)  # noqa: E731
        rows.append((Case(name, len(OPTIONS), draw, "exact, no invalid launch", valid=trl_valid), both))
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = [
        "| case | confirm | trials | exact | rounds | ms a decision | aim | instances |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r.case} | {r.confirm} | {r.trials:.2f} ± {r.error:.2f} | {r.exact:.1%} | {r.rounds:.2f} "
            f"| {r.milliseconds:.1f} | {r.aim} | {r.instances} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Trials the search needs on random oracles.")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    rows = []
    for case, settings in cases():
        if options.only in case.name:
            for confirm in settings:
                count = 1 if case.name.startswith("TRL") else options.instances
                rows.append(measure(case, count, confirm))
                print(markdown(rows[-1:]).splitlines()[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(markdown(rows))
    (options.out / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
