"""Configurations, their difference, and subsets of it.

A *configuration* maps dotted names to values: everything a trial may vary. Where the good and the bad
configuration differ there is a *factor* with two levels. A *subset* names the factors set to bad; all the
others are good. Everything else in the package speaks in these three words, in the `Name` of a setting, and in the
`Purpose` and the `Outcome` of a trial.

This module imports nothing of the package, so that every other part may import it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard, TypeVar

Value = object
"""Of a setting: whatever the library takes for it."""

Configuration = Mapping[str, Value]
"""Dotted name -> value, e.g. ``{"args.learning_rate": 5e-6, "model.dtype": "float16"}``."""

Subset = frozenset[str]
"""Names of the factors set to bad."""


SPACES = ("args", "model", "peft", "script", "launch", "env", "packages")
"""The training config, the model, the adapter, the script's own, the launch, the environment, what is installed."""


class Name(NamedTuple):
    """A name as users and reports write it is `str(name)`: a setting of the training config goes by its bare key."""

    space: str  # one of `SPACES`
    key: str  # within it; one of a dictionary follows its setting (``model_init_kwargs.dtype``)

    @classmethod
    def of(cls, text: str) -> Name:
        """The name that a text is; with no space in front it belongs to the training config."""
        space, dot, key = text.partition(".")
        return cls(space, key) if dot and space in SPACES else cls("args", text)

    def __str__(self) -> str:
        return self.key if self.space == "args" else self.full

    @property
    def full(self) -> str:
        """With its space, as the probe and the data files have it."""
        return f"{self.space}.{self.key}"

    @property
    def field(self) -> str:
        """The setting itself, without the key of a dictionary that it holds."""
        return self.key.partition(".")[0]


class Outcome(enum.Enum):
    """What a trial says about the failure under study.

    The three values are those of delta debugging (Zeller & Hildebrandt 2002). Anything that is neither a
    healthy run nor *the failure under study* is `UNRESOLVED`: an invalid configuration, another failure, a
    broken machine. Calling those `FAIL` is how innocent settings get blamed.
    """

    PASS = "pass"
    FAIL = "fail"
    UNRESOLVED = "unresolved"


class Status(enum.StrEnum):
    """How a bisection ended, as result.json has it."""

    ISOLATED = "isolated"
    """A cause is proven."""

    NO_FAILURE = "no_failure"
    """The bad configuration does not fail."""

    BASELINE_FAILS = "baseline_fails"
    """The good configuration fails as well."""

    INCONCLUSIVE = "inconclusive"
    """Nothing is settled: the budget is spent, or runs contradict each other."""


class Purpose(enum.StrEnum):
    """What a trial is for. The values are what studies record."""

    BAD_BASELINE = "bad baseline"
    GOOD_BASELINE = "good baseline"
    WARM_START = "warm start"
    """Does the bad configuration fail from a warm start as it does cold?"""
    BAD_AGAIN = "bad again"
    """Does the bad configuration, started cold once more, fail again?"""
    SEARCH = "search"
    CAUSE_FAILS = "cause fails"
    CAUSE_MINUS_ONE = "cause minus one"
    CORRECTION = "correction"
    MASKING = "masking"
    """Does a setting hide the failure of a cause?"""
    RECOMMEND = "recommend"
    """A run that looks for safe values."""
    ASKED = "asked"
    """A run that the reader wanted to see."""
    CHECK = "check"
    """A run that settles something beside the search: a proof from step 0, instruments, what the good side needs."""

    def of_run(self, run: str) -> str:
        """As tables and files show it, with the run it was where several have the same purpose, otherwise ""."""
        return f"{self}: {run}" if run else self.value

    @classmethod
    def read(cls, words: str) -> tuple[Purpose, str]:
        """What `of_run` was made of."""
        purpose, _, run = words.partition(": ")
        return cls(purpose), run

    @property
    def proves(self) -> bool:
        """Whether a claim of the answer rests on such a trial."""
        return self in (Purpose.CAUSE_FAILS, Purpose.CAUSE_MINUS_ONE, Purpose.CORRECTION)


class _Unset(enum.Enum):
    """The level of a factor that one of the two configurations does not mention at all."""

    UNSET = "(unset)"

    def __str__(self) -> str:
        return self.value

    __repr__ = __str__


UNSET = _Unset.UNSET
"""A configuration built at this level leaves the name out."""


Thing = TypeVar("Thing")


def present(value: Thing | None) -> Thing:
    """What is there by now, as an earlier step has found it."""
    assert value is not None
    return value


@dataclass(frozen=True)
class Factor:
    """A name on which the good and the bad configuration differ, with its two levels."""

    name: str
    good: Value
    bad: Value


SHOWN_LENGTH = 60
"""Of a value in an error: enough to recognise it."""

DEEPEST = 50
"""Levels of lists and dicts in a value: no library's setting has ten, and what reads and writes JSON ends at some
hundreds."""


def shown(value: object) -> str:
    """A value and its type, as a sentence can hold them, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # of the user's own; and an integer of thousands of digits has none
        text = "something"
    return f"{text if len(text) <= SHOWN_LENGTH else text[:SHOWN_LENGTH] + '...'} ({type(value).__name__})"


def check_value(name: str, value: Value, level: int = 0) -> None:
    """See that a value of a setting, which lies in so many lists and dicts, can be compared with another and written
    down: any object that is compared by True and False. A TypeError or ValueError says what to give."""
    if level > DEEPEST:
        raise ValueError(f"{name} contains itself, or lists in lists more than {DEEPEST} levels deep: write it out")
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            check_value(name, item, level + 1)
        return
    try:
        comparable = type(value == value).__name__ in ("bool", "bool_")  # numpy's as well; of an array it is an array
    except Exception:  # of the user's own
        comparable = False
    if not comparable:
        raise TypeError(
            f"{name} {'contains' if level else 'is'} {shown(value)}, which cannot be compared as a whole: give a "
            "number, a string, or a list of these (.tolist() makes one)"
        )


def is_number(value: Value) -> TypeGuard[int | float]:
    """Whether it is a finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def equal(left: Value, right: Value) -> bool:
    """Whether two values are the same setting. NaN equals NaN; ``1`` equals ``1.0``, but ``True`` is not ``1``."""
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    try:
        return bool(left == right) or bool(left != left and right != right)
    except Exception:  # arrays and other values without a truth value
        return left is right


RECORDED = frozenset({"number", "outcome", "signature", "seconds", "step", "purpose", "reason", "companions"})
"""Columns of a table of trials beside its settings: no factor goes by such a name."""


def difference(good: Configuration, bad: Configuration) -> tuple[Factor, ...]:
    """The factors between two configurations, in the order of `bad` (names only in `good` come last)."""
    names = [*bad, *(name for name in good if name not in bad)]
    pairs = ((name, good.get(name, UNSET), bad.get(name, UNSET)) for name in names)
    return tuple(Factor(name, low, high) for name, low, high in pairs if not equal(low, high))


def configuration_of(subset: Iterable[str], good: Configuration, bad: Configuration) -> dict[str, Value]:
    """The configuration in which the factors of `subset` are bad and everything else is good."""
    chosen = set(subset)
    names = [*bad, *(name for name in good if name not in bad)]
    values = {name: (bad if name in chosen else good).get(name, UNSET) for name in names}
    return {name: value for name, value in values.items() if value is not UNSET}
