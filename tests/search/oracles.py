"""Simulated trials: a table of causes and of what cannot be run, asked by the search and then checked in full."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.search import Ask, Conclusion, Done, Problem, Record, Wait, next_question
from bisect_cfg.search.problem import Question, by_size, mask_of

Rule = tuple[int, int, bool]
"""(x, y, True): bad x needs bad y; (x, y, False): they exclude each other."""


def holds(rules: Sequence[Rule], mask: int) -> bool:
    """Whether a subset keeps all the rules."""
    return all(not mask >> x & 1 or (mask >> y & 1) == needs for x, y, needs in rules)


OUTCOMES = {"F": Outcome.FAIL, "P": Outcome.PASS, "U": Outcome.UNRESOLVED, "?": None}


def subset(letters: str) -> int:
    """Factors by their letters: `"ac"` is 0b101, and `"-"` none of them."""
    return mask_of("abcdefgh".index(letter) for letter in letters.strip("-"))


def recorded(text: str) -> list[Record]:
    """Runs in short: `"abc:F -:P a:UOSError"`, the last of which ended in another failure, of that signature."""
    words = (word.split(":") for word in text.split())
    return [
        Record(subset(letters), OUTCOMES[said[0]], number=number, other=said[1:])
        for number, (letters, said) in enumerate(words)
    ]


@dataclass
class Oracle:
    """What the simulated runs say.

    Attributes:
        size: number of factors.
        causes: a run fails if it contains one of these.
        invalid: rules `is_valid` knows.
        hidden: rules only a run reveals: it is UNRESOLVED.
        rate: how often a failure shows.
        masked: a setting and the cause it hides.
        needs: settings without which what holds a cause ends in another failure.
        repeats: whether the failing runs of a subset have equal traces; otherwise they have none.
        either: rules of another form `is_valid` knows: (x, others), bad x needs one of the others bad.
    """

    size: int
    causes: tuple[int, ...]
    invalid: tuple[Rule, ...] = ()
    hidden: tuple[Rule, ...] = ()
    rate: float = 1.0
    masked: tuple[tuple[int, int], ...] = ()
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    either: tuple[tuple[int, int], ...] = ()
    needs: int = 0
    repeats: bool = False

    def valid(self, mask: int) -> bool:
        """Whether the configuration can be built."""
        return holds(self.invalid, mask) and all(not mask >> x & 1 or mask & others for x, others in self.either)

    def fails(self, mask: int) -> bool:
        """The truth."""
        live = [c for c in self.causes if c & mask == c]
        return any(not any(m & mask == m and hides == cause for m, hides in self.masked) for cause in live)

    def runnable(self) -> list[int]:
        """Every subset that gives PASS or FAIL."""
        return [m for m in range(1 << self.size) if self.valid(m) and holds(self.hidden, m)]

    def run(self, mask: int) -> Outcome:
        """One run."""
        assert self.valid(mask), "an invalid configuration was launched"
        if not holds(self.hidden, mask):
            return Outcome.UNRESOLVED
        if not self.fails(mask):
            return Outcome.PASS
        if mask & self.needs != self.needs:
            return Outcome.UNRESOLVED
        return Outcome.FAIL if self.rate == 1 or self.rng.random() < self.rate else Outcome.PASS


def solve(
    oracle: Oracle,
    jobs: int = 1,
    limit: int = 400,
    ask: Callable[[Problem, list[Record]], Question] = next_question,
    **options: object,
) -> tuple[Conclusion, list[Record], int]:
    """Ask until done: the conclusion, the records and the number of rounds of `jobs` runs at once."""
    names = tuple(f"f{i}" for i in range(oracle.size))
    problem = Problem(names, oracle.valid, jobs=jobs, **options)  # type: ignore
    records: list[Record] = []
    rounds = 0
    while len(records) < limit:
        batch: list[Record] = []
        while len(batch) < jobs:
            question = ask(problem, records + batch)
            if not isinstance(question, Ask):
                break
            number = len(records) + len(batch)
            batch.append(Record(question.subset, None, question.purpose, number, 0.0, question.companions))
        if isinstance(question, Done):
            return question.conclusion, records, rounds
        assert batch or not isinstance(question, Wait), "waiting for nothing"
        rounds += 1
        for r in batch:
            first = r.purpose == "bad baseline" and r.number == 0
            outcome = Outcome.FAIL if first else oracle.run(r.subset)
            trace = f"{r.subset}" if oracle.repeats and outcome is Outcome.FAIL else ""
            records.append(Record(r.subset, outcome, r.purpose, r.number, 0.0, r.companions, trace=trace))
    raise AssertionError(f"no conclusion after {limit} runs: {oracle}")


def complaint(oracle: Oracle, conclusion: Conclusion) -> str | None:
    """What is wrong with an answer, checked against every runnable subset; None if nothing is."""
    runnable = oracle.runnable()
    found = [cause.parameters for cause in conclusion.causes]
    if conclusion.status != "isolated":
        return f"status {conclusion.status}"
    for cause in conclusion.causes:
        witness = cause.fails.subset
        if witness is None or not oracle.fails(witness):
            return f"{bin(cause.parameters)} has no failing witness"
        for mask in runnable:
            if mask & witness == mask and oracle.fails(mask) and mask & cause.parameters != cause.parameters:
                return f"{bin(cause.parameters)} is not minimal: {bin(mask)} fails"
    if conclusion.complete and (mask := missed(oracle, conclusion)):
        return f"a cause in {bin(mask)} was missed"
    if conclusion.safe is None or oracle.fails(conclusion.safe):
        return "the safe subset fails"
    rules = (*oracle.invalid, *oracle.hidden, *oracle.either)
    if not rules and not conclusion.complete:
        return "not complete, and nothing stands in the way"
    if not rules and set(found) != set(oracle.causes):
        return f"found {sorted(map(bin, found))}"
    return None


def missed(oracle: Oracle, conclusion: Conclusion) -> int:
    """The smallest failing subset that can be run and holds no cause that was named; 0 if there is none."""
    found = [cause.parameters for cause in conclusion.causes]
    left = (m for m in oracle.runnable() if oracle.fails(m) and not any(c & m == c for c in found))
    return min(left, key=by_size, default=0)


def draw(rng: random.Random, size: int, rules: int = 0) -> Oracle:
    """A random monotone oracle with up to three causes of up to four factors, and up to `rules` rules of each kind."""
    masks = {
        sum(1 << i for i in rng.sample(range(size), min(size, rng.choice((1, 1, 2, 2, 2, 3, 4)))))
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))
    }
    causes = tuple(sorted(c for c in masks if not any(o != c and o & c == o for o in masks)))
    full = (1 << size) - 1

    def some() -> tuple[Rule, ...]:
        found = []
        for _ in range(rng.randint(0, rules)):
            x, y = rng.sample(range(size), 2)
            found.append((x, y, True))
        return tuple(rule for rule in found if holds([rule], full))

    return Oracle(size, causes, some(), some())
