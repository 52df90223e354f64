"""Random oracles: tables of causes in place of trainings, drawn the same for every tool and setting.

What instance number i of a case is depends on nothing but its kind and i: two tools, two settings, p = 1 and
p = .5, one worker and eight all meet the same causes. Whether a failure shows is a coin thrown for (instance,
subset, how often this subset has run): two tools that run the same subset for the second time see the same.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from bisect_cfg.common.parameters import odds_of

LIMIT = 1000
"""Runs after which a tool is stopped; ten times what the slowest of them needs on most oracles."""

OPTIONS = (
    "learning_rate", "adam_beta1", "adam_beta2", "weight_decay", "warmup_steps", "lr_scheduler_type",
    "optim", "bf16", "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations",
    "max_completion_length", "max_grad_norm", "beta",
)  # fmt: skip
"""Fourteen options of the recipe in trl#2906."""

MORE = (
    "logging_steps", "save_steps", "num_train_epochs", "report_to", "run_name", "temperature", "top_p",
    "epsilon", "loss_type", "scale_rewards", "eval_steps", "save_strategy", "logging_first_step", "seed",
    "output_dir", "hub_model_id", "save_total_limit", "dataloader_num_workers", "push_to_hub",
    "eval_strategy", "disable_tqdm", "log_completions", "dataloader_pin_memory", "remove_unused_columns",
    "logging_strategy", "report_tags",
)  # fmt: skip
"""What such recipes set besides."""

TRL_GOOD = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}
TRL_BAD = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 16}
TRL_CAUSES = (
    ("bf16",),
    ("num_generations",),
    ("learning_rate", "max_grad_norm"),
    ("num_generations", "beta"),
    ("learning_rate", "bf16", "per_device_train_batch_size"),
)


class Exhausted(Exception):
    """The tool asked for more than `LIMIT` runs."""


@dataclass(frozen=True)
class Instance:
    """One hidden truth.

    Attributes:
        names: the factors.
        causes: subsets as masks, bit i for factor i; a run fails if it contains one.
        rate: how often a failure shows.
        valid: mask -> whether this configuration can be built.
        key: what the coins are thrown from.
    """

    names: tuple[str, ...]
    causes: tuple[int, ...]
    rate: float = 1.0
    valid: Callable[[int], bool] = lambda mask: True
    key: str = ""

    @property
    def full(self) -> int:
        """Everything bad."""
        return (1 << len(self.names)) - 1


@dataclass
class Oracle:
    """An instance that counts what it is asked.

    Attributes:
        instance: the truth.
        asked: how often each subset ran; invalid ones are in here too.
        launches: all runs.
        invalid: those of an invalid configuration.
    """

    instance: Instance
    asked: Counter[int] = field(default_factory=Counter)
    launches: int = 0
    invalid: int = 0

    def run(self, mask: int) -> bool | None:
        """Launch one configuration: whether it fails, or None if it is invalid.

        The bad configuration's first run always fails: that failure is why somebody looks for its cause.
        """
        if self.launches >= LIMIT:
            raise Exhausted
        repeat = self.asked[mask]
        self.asked[mask] += 1
        self.launches += 1
        truth = self.instance
        if not truth.valid(mask):
            self.invalid += 1
            return None
        if not any(cause & mask == cause for cause in truth.causes):
            return False
        if truth.rate == 1 or (mask == truth.full and not repeat):
            return True
        return self.coin(mask, repeat) < truth.rate

    def coin(self, mask: int, repeat: int) -> float:
        """The coin of a run that holds a cause, between 0 and 1; it shows the failure below its rate."""
        return random.Random(f"{self.instance.key} {mask} {repeat}").random()

    @property
    def size(self) -> int:
        """How many factors."""
        return len(self.instance.names)

    def fails(self, mask: int, repeats: int) -> bool:
        """Whether one of `repeats` runs fails; ends with the first that does. Invalid is no failure."""
        for _ in range(repeats):
            outcome = self.run(mask)
            if outcome is not False:
                return outcome is True
        return False


@dataclass(frozen=True)
class Answer:
    """What a tool says.

    Attributes:
        causes: the causes named, as masks.
        complete: whether it says that there is no other; tools that cannot say so never do.
        rounds: of runs at once; None if it runs one after the other.
        notes: what it says besides.
    """

    causes: frozenset[int]
    complete: bool = False
    rounds: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One line of the table: oracles of one kind.

    Attributes:
        name: as in the table.
        kind: what the causes are drawn from; cases of one kind have the same instances.
        names: the factors.
        draw: a random generator -> the causes.
        aim: trials wanted.
        rate: how often a failure shows.
        jobs: workers.
        prior: the prior ours uses.
        failure: the kind of failure that this prior is told.
        valid: as in `Instance`.
        confirms: the values of `confirm` ours is measured at.
        fixed: the causes are not random, one instance tells all.
    """

    name: str
    kind: str
    names: tuple[str, ...]
    draw: Callable[[random.Random], tuple[int, ...]]
    aim: str = "-"
    rate: float = 1.0
    jobs: int = 1
    prior: str = "flat"
    failure: str = ""
    valid: Callable[[int], bool] = lambda mask: True
    confirms: tuple[int, ...] = (1,)
    fixed: bool = False

    def instance(self, number: int) -> Instance:
        """The oracle with this number."""
        key = f"{self.kind} #{number}"
        return Instance(self.names, self.draw(random.Random(key)), self.rate, self.valid, key)


def plain(size: int) -> tuple[str, ...]:
    """Names that no prior knows anything about."""
    return tuple(f"f{i}" for i in range(size))


def subsets(size: int, count: int) -> Callable[[random.Random], tuple[int, ...]]:
    """One cause: a random subset of `count` factors."""
    return lambda rng: (sum(1 << i for i in rng.sample(range(size), count)),)


def pairs(size: int, shared: bool) -> Callable[[random.Random], tuple[int, ...]]:
    """Two random pairs, disjoint or with one factor in common."""

    def draw(rng: random.Random) -> tuple[int, ...]:
        a, b, c, d = (1 << i for i in rng.sample(range(size), 4))
        return (a | b, a | c) if shared else (a | b, c | d)

    return draw


def from_prior(odds: Sequence[float]) -> Callable[[random.Random], tuple[int, ...]]:
    """A cause drawn as the odds say: one, two or three parameters, each subset by the product of its odds."""
    tables = []
    for count in (1, 2, 3):
        chosen = list(combinations(range(len(odds)), count))
        tables.append((chosen, [math.prod(odds[i] for i in subset) for subset in chosen]))

    def draw(rng: random.Random) -> tuple[int, ...]:
        chosen, weights = tables[rng.choices((0, 1, 2), (0.46, 0.34, 0.2))[0]]
        return (sum(1 << i for i in rng.choices(chosen, weights)[0]),)

    return draw


def trl_valid(mask: int) -> bool:
    """TRL's rule: batch times accumulation is a multiple of the number of generations."""
    batch, steps, generations = ((TRL_BAD if mask >> OPTIONS.index(name) & 1 else TRL_GOOD)[name] for name in TRL_GOOD)
    return batch * steps % generations == 0


AIMS = {(19, 1): "8", (19, 2): "13", (19, 3): "17.5", (64, 2): "16.5"}


def cases() -> list[Case]:
    """The whole table."""
    rows = []
    for size in (8, 19, 32, 64):
        for count in (1, 2, 3):
            name = f"n={size}, k={count}"
            rows.append(Case(name, name, plain(size), subsets(size, count), AIMS.get((size, count), "-")))
    for size in (19, 64):
        for shared, word, aim in ((False, "disjoint", "25"), (True, "overlapping", "23")):
            name = f"two {word} pairs, n={size}"
            rows.append(Case(name, name, plain(size), pairs(size, shared), aim if size == 19 else "-"))
    aims = {(2, 0.7): "34, 99 % exact", (2, 0.5): "46, 99 % exact"}
    for count in (1, 2, 3):
        for rate in (0.9, 0.7, 0.5):
            kind, aim = f"n=19, k={count}", aims.get((count, rate), "-")
            draw = subsets(19, count)
            rows.append(Case(f"p={rate:g}, {kind}", kind, plain(19), draw, aim, rate=rate, confirms=(1, 2)))
    kind = "two overlapping pairs, n=19"
    rows.append(Case(f"p=0.7, {kind}", kind, plain(19), pairs(19, True), rate=0.7, confirms=(1, 2)))
    for rate in (1.0, 0.7):
        for jobs in (2, 4, 8):
            kind, aim = "n=19, k=2", "2.5x fewer rounds than 1" if jobs == 4 and rate == 1 else "-"
            name = f"{kind}, {jobs} workers" if rate == 1 else f"p={rate:g}, {kind}, {jobs} workers"
            rows.append(Case(name, kind, plain(19), subsets(19, 2), aim, rate=rate, jobs=jobs))
    for names in (OPTIONS + MORE[:5], OPTIONS + MORE):
        for failure in ("", "signal", "out-of-memory", "collapse", "non-finite"):
            kind = f"cause from the prior{failure and f' of {failure}'}, n={len(names)}"
            draw, aim = from_prior(odds_of(names, "risk", failure)), "25 % fewer than flat"
            rows.append(Case(f"{kind}, flat", kind, names, draw))
            rows.append(Case(f"{kind}, risk", kind, names, draw, aim, prior="risk", failure=failure))
    for causes in TRL_CAUSES:
        mask = sum(1 << OPTIONS.index(name) for name in causes)
        name = f"TRL validity: {' + '.join(causes)}"
        aim = "exact, no invalid launch"
        rows.append(Case(name, name, OPTIONS, lambda rng, mask=mask: (mask,), aim, valid=trl_valid, fixed=True))
    return rows
