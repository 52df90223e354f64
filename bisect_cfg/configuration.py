"""Configurations, their difference, and subsets of it.

A *configuration* maps dotted names to values: everything a trial may vary. Where the good and the bad
configuration differ there is a *factor* with two levels. A *subset* names the factors set to bad; all the
others are good. Everything else in the package speaks in these three words, and in the `Purpose` and the `Outcome` of a
trial.

This module imports nothing of the package, so that every other part may import it.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

Value = object
"""Of a setting: whatever the library takes for it."""

Configuration = Mapping[str, Value]
"""Dotted name -> value, e.g. ``{"args.learning_rate": 5e-6, "model.dtype": "float16"}``."""

Subset = frozenset[str]
"""Names of the factors set to bad."""


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


class _Unset:
    """The level of a factor that one of the two configurations does not mention at all."""

    _instance: _Unset | None = None

    def __new__(cls) -> _Unset:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "(unset)"

    def __reduce__(self) -> tuple[type[_Unset], tuple[()]]:
        return (_Unset, ())


UNSET = _Unset()
"""Singleton: a configuration built at this level leaves the name out."""


@dataclass(frozen=True)
class Factor:
    """A name on which the good and the bad configuration differ, with its two levels."""

    name: str
    good: Value
    bad: Value


SHOWN_LENGTH = 60
"""Of a value in an error: enough to recognise it."""

DEEPEST = 50
"""Levels of lists and dicts in a value. No library's setting has ten, and what reads and writes JSON ends at some
hundreds."""

LARGEST = int(sys.float_info.max)
"""Whole numbers beyond it overflow wherever somebody computes with floats."""


def shown(value: object) -> str:
    """A value and its type, as a sentence can hold them, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # of the user's own; and an integer of thousands of digits has none
        text = "something"
    return f"{text if len(text) <= SHOWN_LENGTH else text[:SHOWN_LENGTH] + '...'} ({type(value).__name__})"


def checked_value(name: str, value: Value) -> Value:
    """The value of a setting as it is given at a door: a scalar of numpy's as Python's number, anything else as it is.

    Args:
        name: of the setting, for the message.
        value: its value; any object that can be compared and shown.

    Raises:
        TypeError, ValueError: it cannot be compared or written down. The sentence says what to give.
    """
    return _checked(name, value, 0)


def _checked(name: str, value: Value, level: int) -> Value:
    if level > DEEPEST:
        raise ValueError(f"{name} contains itself, or lists in lists more than {DEEPEST} levels deep: write it out")
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_checked(name, item, level + 1) for item in value]
        same = all(made is item for made, item in zip(items, value, strict=True))
        return value if same else next(kind for kind in _COLLECTIONS if isinstance(value, kind))(items)
    says = f"{name} contains" if level else f"{name} is"
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        if odd:
            raise TypeError(f"{says} a dict with the key {shown(odd[0])}: its keys must be strings")
        made = {key: _checked(name, item, level + 1) for key, item in value.items()}
        return value if all(made[key] is value[key] for key in made) else made
    return _checked_object(says, value)


_COLLECTIONS = (list, tuple, set, frozenset)


def _checked_object(says: str, value: Value) -> Value:
    numpy = sys.modules.get("numpy")  # else it is no number of numpy's
    if numpy is not None and isinstance(value, numpy.generic):
        plain = value.item()
        value = float(value) if isinstance(plain, numpy.generic) else plain  # a longdouble stays what it is
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{says} a whole number larger than any float: give one that can be computed with")
    if isinstance(value, str):
        try:
            value.encode(errors="surrogateescape")  # bytes of a file name are taken
        except UnicodeEncodeError:
            raise ValueError(f"{says} a text with half a character, which no file can hold: leave it out") from None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    try:
        comparable = isinstance(value == value, bool)  # of an array it is an array, or numpy's
    except Exception:  # of the user's own
        comparable = False
    if not comparable:
        raise TypeError(
            f"{says} a {kind}, and comparing two of them gives neither True nor False: give a number, a string, or a "
            "list of these (.tolist() makes one)"
        )
    try:
        repr(value)
    except Exception as error:  # of the user's own
        raise TypeError(f"{says} a {kind} that cannot be shown: its repr() raises {type(error).__name__}") from None
    return value


def is_truth(value: object) -> bool:
    """Whether it is True or False, numpy's as well."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


def truth(name: str, answer: object) -> bool:
    """The answer of a function of the user's as True or False.

    Raises:
        TypeError: it is neither.
    """
    try:
        return bool(answer)
    except Exception:  # an array; of the user's own
        raise TypeError(f"{name} returned {shown(answer)}, which is neither true nor false") from None


def is_number(value: Value) -> TypeGuard[int | float]:
    """Whether it is a finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


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
