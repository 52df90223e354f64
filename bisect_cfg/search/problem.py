"""The words of the search: a problem, what was recorded, a question, a conclusion.

Subsets are integers here, bit i for factor i in the user's order, because the search intersects millions of
them. Names come back only in what is shown to people. Everything is immutable: the search is a function
from a problem and its records to the next question, and has no other state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from bisect_cfg.common.configuration import Outcome, Purpose, Status

DIGITS = 9
"""What decides between subsets is rounded to so many digits: equally good ones differ in the last bits by the order of
a sum and by the processor's exp and log, and equal records must give equal questions, wherever they are asked."""

CAREFUL = 0.95
"""With an explicit `Problem.confirm`, the confidence above which it must hold for random failures too."""


def bits(mask: int) -> Iterator[int]:
    """The indices of the factors in a subset, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(indices: Iterable[int]) -> int:
    """The subset holding these factors, each given once."""
    return sum(1 << index for index in indices)


def holds(mask: int, causes: Iterable[int]) -> bool:
    """Whether a subset contains one of the causes."""
    return any(cause & mask == cause for cause in causes)


def by_size(mask: int) -> tuple[int, int]:
    """The order of subsets, smallest first; among equally large ones any order, but always the same."""
    return mask.bit_count(), mask


@dataclass(frozen=True)
class Record:
    """One trial as the search sees it.

    Attributes:
        subset: what was bad in the run, companions included.
        outcome: None while it runs.
        purpose: as in `Ask`.
        number: the trial's number, for evidence.
        seconds: how long it took; 0 if unknown.
        companions: the part of `subset` that was added only to make it valid.
        other: the signature of the other failure that left it UNRESOLVED, "" if it was none or is not known.
        node: on which it ran, or is to run; "" if that is not known, or makes no difference.
        trace: a digest of what the run's metrics were, bit for bit, up to the failing step; "" where there is none.
    """

    subset: int
    outcome: Outcome | None
    purpose: Purpose = Purpose.SEARCH
    number: int = -1
    seconds: float = 0.0
    companions: int = 0
    other: str = ""
    trace: str = ""
    node: str = ""


@dataclass(frozen=True)
class Ask:
    """Run this next.

    Attributes:
        subset: what to set to bad, companions included.
        companions: the part of it added only to make it valid.
        purpose: what for.
        reason: one sentence for people.
    """

    subset: int
    companions: int = 0
    purpose: Purpose = Purpose.SEARCH
    reason: str = ""


@dataclass(frozen=True)
class Wait:
    """Nothing useful can be asked before a running trial ends."""

    reason: str = ""


@dataclass(frozen=True)
class SubsetClaim:
    """A statement that a subset fails or passes, and how often it was seen to.

    Attributes:
        subset: what was run; None if no run could be valid.
        expected: the outcome claimed.
        seen: runs with that outcome.
        runs: runs with PASS or FAIL.
        numbers: the trials.
        note: why it could not be run, or with what else.
    """

    subset: int | None
    expected: Outcome
    seen: int = 0
    runs: int = 0
    numbers: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class FoundCause:
    """A minimal failing subset with what proves it.

    Attributes:
        parameters: the cause.
        companions: what else was bad in the proving run, only so that it is valid.
        inseparable: those of the parameters that no valid configuration tells apart.
        fails: the claim that it fails.
        without: parameter -> the claim that it passes without that one.
    """

    parameters: int
    companions: int
    fails: SubsetClaim
    without: dict[int, SubsetClaim] = field(default_factory=dict)
    inseparable: int = 0


@dataclass(frozen=True)
class Conclusion:
    """The answer.

    Attributes:
        status: how it ended.
        causes: in the order found.
        corrections: removed subset -> claim that the bad configuration without it passes; cheapest first.
        complete: whether every minimal correction of the causes was seen to pass and, of a failure that was seen to be
            random, the answer is as sure as was asked for.
        safe: the largest subset that was run and passed, nearest to bad; None if none did.
        masking: settings -> the cause whose failure they hide.
        reproduction: how often the failure showed where it could: (fails, runs).
        notes: honest sentences.
    """

    status: Status
    causes: tuple[FoundCause, ...] = ()
    corrections: tuple[tuple[int, SubsetClaim], ...] = ()
    complete: bool = False
    safe: int | None = None
    masking: tuple[tuple[int, int], ...] = ()
    reproduction: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """Nothing is left to ask."""

    conclusion: Conclusion


Question = Ask | Wait | Done


@dataclass(frozen=True)
class State:
    """What is known, and what to do next.

    Attributes:
        question: what to run next, to wait, or the conclusion.
        causes: proven so far.
        suspected: factors that may be in the cause looked for now.
        ruled_out: factors in no cause, as far as is known.
        suspicion: of each factor, the probability that it is in a proven cause or in the one looked for now; empty
            where nothing is looked for or weighed.
        remaining: the least and the most trials that are still to be expected (`trials_left`).
        so_far: the conclusion if nothing more could be run.
    """

    question: Question
    causes: tuple[FoundCause, ...] = ()
    suspected: int = 0
    ruled_out: int = 0
    suspicion: tuple[float, ...] = ()
    remaining: tuple[int, int] = (0, 0)
    so_far: Conclusion = Conclusion(Status.INCONCLUSIVE)

    def partial(self, why: str) -> Conclusion:
        """The conclusion when the budget is spent."""
        return replace(self.so_far, notes=(*self.so_far.notes, why))


@dataclass(frozen=True)
class Problem:
    """What is searched and how.

    Attributes:
        names: the factors in the user's order.
        valid: subset -> whether the configuration can be built; free, but called often: cached by the caller.
        odds: prior odds of each factor to take part in a cause, 1 = ordinary.
        loss: what resetting each factor costs the user, for ordering the corrections.
        work: the logarithm of what each factor's bad level is expected to multiply a run's duration by; empty: nothing
            is known.
        first: stop at the first proven cause.
        confidence: probability that the answer must reach when failures are flaky.
        confirm: how often each claim of the answer must have been observed, at least once. None: once, and further
            runs as often as the failure rate leaves doubt.
        jobs: how many trials may run at once.
    """

    names: tuple[str, ...]
    valid: Callable[[int], bool] = lambda subset: True
    odds: tuple[float, ...] = ()
    loss: tuple[float, ...] = ()
    work: tuple[float, ...] = ()
    first: bool = False
    confidence: float = 0.95
    confirm: int | None = 1
    jobs: int = 1

    @property
    def careful(self) -> bool:
        """Whether the answer must hold for a random failure as surely as for one that always shows.

        Otherwise it may rest on most failures being deterministic, and saves the runs that such a one does not need.
        """
        return self.confirm is None or self.confidence > CAREFUL

    @property
    def size(self) -> int:
        """How many factors."""
        return len(self.names)

    @property
    def full(self) -> int:
        """All factors bad."""
        return (1 << len(self.names)) - 1

    def show(self, mask: int) -> str:
        """A subset for people."""
        *others, last = [self.names[i] for i in bits(mask)] or ["nothing"]
        return f"{', '.join(others)} and {last}" if others else last

    def ask(self, mask: int, what: str, without: int | None = None) -> str:
        """A question about a subset, for people: whether it does `what` ("alone fail"), with one of its own factors,
        `without`, good in the run."""
        does = "Do" if mask.bit_count() > 1 else "Does"
        if without is None:
            return f"{does} {self.show(mask)} {what}?"
        whose = self.show(mask) if mask.bit_count() > 1 else "it"
        return f"{does} {whose} {what} without {self.names[without]}?"


# -------------------------------------------------------------------------------------------------------- what was seen

# The records, counted: what each subset was seen to do.
#
# A FAIL says that a cause lies inside the subset, a PASS that none does (or, if the failure is flaky, that none
# showed), UNRESOLVED that this subset cannot be asked. A running trial is an outcome not known yet.


@dataclass
class Count:
    """What one subset was seen to do, and the traces of those of its failing runs that have one."""

    fails: int = 0
    passes: int = 0
    unresolved: int = 0
    running: int = 0
    traces: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """Runs that said something."""
        return self.fails + self.passes


class Counts:
    """The records of a study by subset.

    `contradictory` is True once a run passed although a run of the same or a smaller subset failed: then the
    failure is random, or a setting hides it. `random` is True once one subset has done both: then nothing hides it.
    `repeatable` is True once two failing runs of one subset have the same trace, as long as no two have different ones
    and the failure is not `random`: then a run likely does the same at every start.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = tuple(records)
        self.by_subset: dict[int, Count] = {}
        for record in self.records:
            count = self.by_subset.setdefault(record.subset, Count())
            if record.outcome is None:
                count.running += 1
            elif record.outcome is Outcome.FAIL:
                count.fails += 1
                count.traces += [record.trace] if record.trace else []
            elif record.outcome is Outcome.PASS:
                count.passes += 1
            else:
                count.unresolved += 1
        self.failed = [mask for mask, count in self.by_subset.items() if count.fails]
        self.passed = [mask for mask, count in self.by_subset.items() if count.passes]
        self.running = [mask for mask, count in self.by_subset.items() if count.running]
        self.unresolved = [mask for mask, c in self.by_subset.items() if c.unresolved and not c.runs]

        self.random = any(count.fails and count.passes for count in self.by_subset.values())
        self.contradictory = any(holds(mask, filter(None, self.failed)) for mask in self.passed)
        traces = [count.traces for count in self.by_subset.values()]
        alike = any(len(one) > 1 for one in traces) and all(len({*one}) < 2 for one in traces)
        self.repeatable = alike and not self.random

    def of(self, mask: int) -> Count:
        """The count of one subset, zeros if it never ran."""
        return self.by_subset.get(mask, Count())

    def claim(self, mask: int, expected: Outcome, note: str = "") -> SubsetClaim:
        """What was seen of the claim that `mask` has the expected outcome."""
        said, count = (Outcome.PASS, Outcome.FAIL), self.of(mask)
        numbers = tuple(r.number for r in self.records if r.subset == mask and r.outcome in said)
        seen = count.fails if expected is Outcome.FAIL else count.passes
        return SubsetClaim(mask, expected, seen, count.runs, numbers, note)


# ------------------------------------------------------------------------------------------------- minimal hitting sets

# Minimal hitting sets: the corrections that go with a list of causes.
#
# A correction resets at least one factor of every cause. Minimal corrections and causes are each other's
# minimal hitting sets (Reiter 1987), which is what makes the certificate of completeness possible.


MAX_HITTING_SETS = 4096
"""Ten disjoint triples have 59049 corrections; no one can test or read that many. Past this we keep the
smallest."""


def minimal_hitting_sets(causes: Iterable[int]) -> list[int]:
    """All inclusion-minimal sets that meet every cause, by Berge's multiplication; `[0]` for no causes."""
    current = [0]
    for cause in sorted(causes, key=int.bit_count):
        hit = [mask for mask in current if mask & cause]
        grown = {mask | 1 << i for mask in current if not mask & cause for i in bits(cause)}
        kept = [mask for mask in grown if not holds(mask, hit)]
        current = sorted(hit + minimal(kept), key=by_size)[:MAX_HITTING_SETS]
    return current


def minimal(masks: Iterable[int]) -> list[int]:
    """The inclusion-minimal ones among the masks."""
    result: list[int] = []
    for mask in sorted(set(masks), key=int.bit_count):
        if not holds(mask, result):
            result.append(mask)
    return result
