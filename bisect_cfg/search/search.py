"""Which subset next: the whole search as one function of what was recorded.

First the two ends (`ends`): the bad configuration must fail, the good one must pass. Then, again and again, the bad
configuration without a cheapest correction of the causes known so far. If it fails, another cause lives in there, and
is narrowed down and proven; if every minimal correction passes, the causes are complete, because a further cause would
have to avoid one of these corrections.

At each call everything is derived again from the records; `Search.state` is the algorithm. If failures are random, a
pass may be luck. Then runs are repeated, those first that leave the most doubt, until the probability that a cause is
missing or not minimal is below what the user asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import exp, log

from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.search.candidates import largest_size
from bisect_cfg.search.case import HOPELESS, Case
from bisect_cfg.search.choose import choose
from bisect_cfg.search.ends import ends, given_up
from bisect_cfg.search.posterior import LEFT_IF_REPEATABLE, TINY, Doubt, Hypotheses, prior_of_rates
from bisect_cfg.search.problem import (
    DIGITS,
    Ask,
    Conclusion,
    Counts,
    Done,
    FoundCause,
    Problem,
    Question,
    Record,
    State,
    SubsetClaim,
    Wait,
    bits,
    by_size,
    holds,
    minimal_hitting_sets,
)
from bisect_cfg.search.proof import REPEATS, Masked, Needed, growing_prefix, look_for_masking, prove, replay, split

ACCEPTED = 0.01
"""As long as nothing contradicts a deterministic failure, a candidate with a complete proof counts as a cause
unless it is all but excluded; what doubt is left is worked off at the end, for all causes at once."""

ACCEPTED_IF_RANDOM = 0.9
"""Once runs contradict each other, one pass proves little: a candidate must leave its rivals behind first."""

LIKELY = 4
"""How many of the likeliest candidates are looked at for a complete proof."""

SHARE = 0.25
"""Share of the permitted error that may be left as doubt where no run contradicts another: it rests on the prior
probability of a random failure, which may be far off for this machine."""

SHARE_AT_EACH_RATE = 0.1
"""The same where the promise is to hold at each failure rate by itself."""

SHARE_IF_RANDOM = 0.9
"""The same where failures are random: the prior of p and of further causes is a guess, but measured
(`studies/search_cost`) it promises no more than it keeps."""

SHARE_IF_RANDOM_AT_EACH_RATE = 0.08
"""The same for both: rare failures (p of .3) are wrong several times as often as on the prior's average."""

UNPROVOKED = 3
"""Without a contradiction no pass is repeated more often than this, whatever doubt the prior leaves."""

SUSPICIOUS = 19.0
"""Once records that contradict nothing make it this many times likelier than the prior has it that the failure is
random, the search goes on as if it were."""

TIE = 1e-6
"""Of runs that remove the same doubt, the one that was made less often comes first by this."""

LEAST_PER_HALVING, MOST_PER_HALVING = 1, 3
"""Trials for each halving of the suspects: one where every answer halves them, three where two or three settings fail
together."""

PROOF_RUNS, CURE_RUNS = 5, 3
"""Trials that a proof may take besides, and the check that nothing else is at fault."""

MAX_CURES = 12
"""How many corrections of a candidate are looked at as possible next runs."""

MAX_CAUSES = 64
"""A study with more causes than this has something else wrong; we stop and say so."""


def next_question(problem: Problem, records: Iterable[Record]) -> Question:
    """What to run next, to wait, or the conclusion, by every trial so far in the order of their numbers, running ones
    included. Equal for equal arguments."""
    return look(problem, records).question


def look(problem: Problem, records: Iterable[Record]) -> State:
    """The next question together with what is known so far; see `next_question`."""
    records = tuple(records)
    assumed = _assume_baselines(problem, records) if problem.jobs > 1 else records
    counts = Counts(assumed)
    end = ends(problem, counts)
    state = Search(Case(problem, counts)).state() if end is None else State(end, remaining=_from(end, problem, counts))
    if isinstance(state.question, Ask) and (why := given_up(problem, counts, state.question)):
        return replace(state, question=Wait(why) if counts.running else Done(state.partial(why)))
    if isinstance(state.question, Ask) and counts.of(state.question.subset).running:
        return replace(state, question=Wait(state.question.reason))
    if isinstance(state.question, Done) and assumed != records:
        return replace(state, question=Wait("The baselines are running."))
    return state


def not_needed(problem: Problem, records: Iterable[Record]) -> set[int]:
    """Numbers of the running trials whose outcomes follow from what was seen since they were asked for, and that would
    not be asked for now."""
    known = tuple(records)
    counts = Counts(known)
    if counts.contradictory:  # nothing follows from anything
        return set()
    failed = [mask for mask in counts.failed if mask]
    implied = {
        record.number: record.subset
        for record in known
        if record.outcome is None and record.subset not in (0, problem.full) and not record.node
        if holds(record.subset, failed) or any(record.subset & mask == record.subset for mask in counts.passed)
    }
    left = [record for record in known if record.number not in implied]
    wanted: list[int] = []
    free = problem.jobs - sum(record.outcome is None for record in left)
    while implied and len(wanted) < free and isinstance(ask := look(problem, left).question, Ask):
        wanted.append(ask.subset)
        left.append(Record(ask.subset, None, ask.purpose, left[-1].number + 1, companions=ask.companions))
    return {number for number, subset in implied.items() if subset not in wanted}


def trials_left(suspects: int, some_known: bool) -> tuple[int, int]:
    """The least and the most trials that are still to be expected, if the failure shows whenever it can.

    Of simulated bisections of up to 32 settings nine of ten steps lie within; of those of one or two settings that fail
    every time, nearly all. What shows now and then, or has several causes, takes longer more often. The `suspects` are
    those settings that may be in the cause looked for; 0 if none is.
    """
    if not suspects:
        return 1, 2 * CURE_RUNS  # the check, and as many repeats of what may have passed by luck
    halvings = suspects.bit_length()  # where every answer halves them, one more than it takes
    most = MOST_PER_HALVING * halvings + (CURE_RUNS if some_known else PROOF_RUNS)
    return max(LEAST_PER_HALVING * halvings - 1, 1), most


def _from(end: Question, problem: Problem, counts: Counts) -> tuple[int, int]:
    """The same while one of the two ends is not settled."""
    if isinstance(end, Done):
        return 0, 0
    ends_open = (not counts.of(problem.full).fails) + (not counts.of(0).passes)
    least, most = trials_left(problem.size, False)
    return ends_open + least, ends_open + most


def _assume_baselines(problem: Problem, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """With workers to spare, take running baselines to come out as they nearly always do, and go on asking."""
    expected = {problem.full: Outcome.FAIL, 0: Outcome.PASS}
    decided = {r.subset for r in records if r.outcome is not None}
    return tuple(
        replace(r, outcome=expected[r.subset])
        if r.outcome is None and r.subset in expected and r.subset not in decided
        else r
        for r in records
    )


class Search:
    """One decision once both ends are as they should be: the case, and all that follows from it.

    Args:
        case: the problem, and what was seen.
        masking: the settings that hide a failure, whose spoiled runs were left out of the case.
        causes: those that are found already.
        guessed: whether running trials count as ended.
    """

    def __init__(
        self, case: Case, masking: Sequence[Masked] = (), causes: Sequence[FoundCause] = (), guessed: bool = False
    ) -> None:
        self.case, self.masking, self.causes = case, masking, list(causes)
        self.problem, self.counts, self.validity = case.problem, case.counts, case.validity
        self.complete = not self.problem.first
        self.guessed = guessed
        self.notes = [
            f"{self.problem.show(masked.setting)} hide{'s' * (masked.setting.bit_count() == 1)} the failure of "
            f"{self.problem.show(masked.cause)}."
            for masked in masking
        ]

    def state(self) -> State:
        """What to do next and what is known: the first of these steps that is not done yet."""
        every = () if self.problem.first else (self._cure, self._accompany, self._unmask, self._doubt)
        for step in (self._contradiction, self._find, *every, self._confirm):
            state = step()
            if state is not None:
                return state
        if self.complete and not self.problem.careful:
            self.notes.append(
                "This answer assumes a failure that always shows: each claim is run as often as confirm = "
                f"{self.problem.confirm} says, which need not rule out a random one."
            )
        return self._done()

    # --------------------------------------------------------------------- the steps of a steady failure

    def _find(self) -> State | None:
        """Find causes, one after the other, until they explain every failure seen."""
        while (region := self._unexplained()) is not None:
            if len(self.causes) == MAX_CAUSES:
                return self._done(f"More than {MAX_CAUSES} causes: the search stopped.")
            found = self._narrow(region)
            if isinstance(found, State):
                return found
            self.causes = [c for c in self.causes if c.parameters & found.parameters != found.parameters]
            self.causes.append(found)
            if self.problem.first:
                break
        return None

    def _unexplained(self) -> int | None:
        """The smallest failed subset that no known cause explains."""
        left = [m for m in self.counts.failed if m and not holds(m, self._known)]
        return min(left, key=by_size, default=None)

    @cached_property
    def _all_cures(self) -> tuple[dict[int, Ask], list[str]]:
        """The largest valid subsets without each minimal correction of the causes that were found, each as a question;
        and what cannot be seen, as sentences."""
        asks: dict[int, Ask] = {}
        unseen = []
        for correction in self._by_loss(self._known):
            variants, shown = self._variants(correction), self.problem.show(correction)
            if not variants:
                unseen.append(f"Whether it is enough to reset {shown} is not known: no valid configuration shows it.")
            if self._hopeless(correction, variants):
                unseen.append(
                    f"With {shown} reset, some of the rest ends in another failure however it is combined; whether it "
                    "has a part in a further cause cannot be seen."
                )
                variants = [mask for mask in variants if self.counts.of(mask).passes]
            asks.update((mask, self._cure_ask(mask)) for mask in variants)
        return asks, unseen

    def _cure(self) -> State | None:
        """See every minimal correction cure."""
        asks, unseen = self._all_cures
        for note in unseen:
            self._incomplete(note)
        missing = [ask for mask, ask in asks.items() if not self.counts.of(mask).passes]
        return self._ask(*missing) if missing else None

    def _accompany(self) -> State | None:
        """See each of several causes fail in the company of all else that is not another cause.

        Of a single one the bad configuration itself is that run.
        """
        if self.masking:
            return None
        for cause in self._known:
            others = [other & ~cause for other in self._known if other != cause]
            if not others or not all(others):
                continue
            companies = [self.problem.full & ~hit for hit in minimal_hitting_sets(others)]
            if any(self.counts.of(company).runs or company == cause for company in companies):
                continue
            company = next((company for company in companies if self.validity.ok(company)), None)
            if company is not None:
                reason = self.problem.ask(cause, "still fail together with everything that is not a cause")
                return self._ask(Ask(company, 0, Purpose.MASKING, reason))
        return None

    def _unmask(self) -> State | None:
        """If a run passed although it holds a cause, find the setting that hides the failure, and begin again without
        the runs that it spoiled."""
        if not self.counts.contradictory or self.masking:
            return None
        found = look_for_masking(self.case, self.causes)
        if isinstance(found, Ask):
            return self._ask(found)
        if not found:
            return None
        rest = [record for record in self.counts.records if not any(masked.spoils(record) for masked in found)]
        return Search(Case(self.problem, Counts(rest)), found).state()

    def _doubt(self) -> State | None:
        """Repeat the run that removes most doubt for its price, as long as too much is left; see `Doubt`."""
        asks = {mask: ask for mask, ask in self._all_cures[0].items() if mask}
        for cause in self.causes:
            for index, claim in cause.without.items():
                if claim.subset:
                    reason = self.problem.ask(cause.parameters, "pass again", index)
                    ask = Ask(claim.subset, claim.subset & ~cause.parameters, Purpose.CAUSE_MINUS_ONE, reason)
                    asks.setdefault(claim.subset, ask)
        doubt = Doubt(self.problem, self.counts, self.causes, asks)
        now = doubt.of()
        if now <= self._permitted(SHARE, SHARE_AT_EACH_RATE):
            return None
        prices, worth = self.case.prices, {}
        for mask in asks:
            if self.counts.of(mask).passes < UNPROVOKED:
                worth[mask] = log(now / max(doubt.of(passing=mask), TINY)) / prices.of_mask(mask)
        for cause in self.causes:
            witness = cause.fails.subset
            if witness and self.counts.of(witness).fails < UNPROVOKED + 1:
                # The same for every cause.
                worth[witness] = log(now / max(doubt.of(failing=True), TINY)) / (prices.of_mask(witness) * prices.fail)
                worth[witness] -= TIE * self.counts.of(witness).fails
                reason = f"{self.problem.ask(cause.parameters, 'fail every time')} A pass proves little if not."
                asks[witness] = Ask(witness, cause.companions, Purpose.CAUSE_FAILS, reason)
        return (
            self._ask(*(asks[m] for m in sorted(worth, key=lambda m: (-round(worth[m], DIGITS), m)))) if worth else None
        )

    def _confirm(self) -> State | None:
        """See each claim of the answer as often as the user asked."""
        times = self.problem.confirm or 1
        for number, cause in enumerate(self.causes):
            others = tuple(other for other in self._known if other != cause.parameters)
            proof = prove(self.case, cause.parameters, cause.fails.subset or 0, times, others)
            if proof is not None and proof.missing:
                return self._ask(*proof.missing)
            if proof is not None and proof.found is not None:
                self.causes[number] = proof.found
        for correction in self._by_loss(self._known)[:1] if not self.problem.first else []:
            for mask in self._variants(correction)[:1]:
                if 0 < self.counts.of(mask).passes < times:
                    return self._ask(self._cure_ask(mask))
        return None

    # ------------------------------------------------------------------- one cause inside a failed subset

    def _narrow(self, region: int) -> State | FoundCause:
        """A proven cause inside a failed subset, or the question that leads to one."""
        if self.validity.puzzling:
            step = self._replay(region, plain=True)
            if step is not None:
                return step
        listed = largest_size(region.bit_count()) > 1
        hypotheses = self.case.posterior.inside(region, self._known) if listed else None
        if hypotheses is not None:
            if self._suspicious(hypotheses.steady):
                unsteady = Case(self.problem, self.counts, unsteady=True)
                return Search(unsteady, self.masking, self.causes)._weigh()
            accepted = ACCEPTED_IF_RANDOM if self.counts.contradictory else ACCEPTED
            for number in hypotheses.best(LIKELY):
                (cause,) = hypotheses.causes(number)
                proof = prove(self.case, cause, region, known=self._known)
                if proof is not None and proof.found is not None and hypotheses.weight[number] >= accepted:
                    return proof.found
            ask = choose(self.case, hypotheses, self._cures, self._known, repeat=self.counts.contradictory)
            if ask is not None or self.counts.running:
                return self._ask(ask, suspected=hypotheses.suspected, weighed=hypotheses)
        step = self._replay(region)
        assert step is not None
        return step

    def _suspicious(self, steady: float) -> bool:
        """Whether records that contradict nothing make it likely that the failure is random."""
        if self.counts.contradictory:
            return False
        prior = float(prior_of_rates(self.problem, self.counts)[0])
        if self.problem.confirm is not None:
            return steady < 0.5  # likelier random than not; at the default that would cost a steady failure runs
        return steady * (1 - prior) * SUSPICIOUS < (1 - steady) * prior

    def _replay(self, region: int, plain: bool = False) -> State | FoundCause | None:
        """The same by a plain algorithm: where the posterior has no candidates left, and (`plain`) where too much ends
        in another failure; None if that leads to nothing that fails."""
        run = replay(self.case, region, plain)
        try:
            witness = growing_prefix(self.problem, run, region)
        except Needed as needed:
            return self._ask(needed.ask, suspected=region)
        if plain and not self.counts.of(witness).fails:
            return None
        if not self.validity.ok(witness):
            witness |= self.validity.companions(witness, region) or 0
        parameters = split(self.case, witness, self._known)
        proof = prove(self.case, parameters, region, known=self._known)
        if proof is not None and not proof.unseen and not proof.refuted:
            return proof.found or self._ask(*proof.missing[:1], suspected=witness)
        if plain:
            return None
        if proof is not None and proof.unseen:
            return self._done(
                f"With {self.problem.show(parameters)} it fails, and without any of it every run ended in another "
                "failure: none was seen to pass, so nothing is proven."
            )
        return self._done(f"{self.problem.show(witness)}: runs contradict each other, so nothing could be proven here.")

    # --------------------------------------------------------------------------------- a random failure

    def _contradiction(self) -> State | None:
        """A larger subset passed than one that failed: repeat both until one of them does the other thing.

        Then failures are random. If neither did, a setting hides the failure, and the search goes on as if it did not.
        """
        if not self.counts.contradictory:
            return None
        if self.counts.random:
            return self._weigh()
        pairs = [(f, p) for p in self.counts.passed for f in self.counts.failed if f and f & p == f]
        small, large = min(pairs, key=lambda pair: (pair[1].bit_count(), pair[0].bit_count(), pair))
        for mask in (large, small):
            if self.counts.of(mask).runs < REPEATS:
                shown = self.problem.show(self.problem.full & ~mask)
                text = f"Is the failure random, or does a setting hide it? (The same run again, without {shown}.)"
                return self._ask(Ask(mask, 0, Purpose.MASKING, text))
        return None

    def _weigh(self) -> State:
        """Failures are random: weigh whole hypotheses against each other until one is as likely as the user asked for
        and each of its claims was seen at least once."""
        hypotheses = self.case.posterior.whole()
        if self.counts.running and not self.guessed:
            question = self._guessing(hypotheses)._weigh().question
            return self._ask(question if isinstance(question, Ask) else None, weighed=hypotheses)
        top = hypotheses.best(1)[0]
        causes = hypotheses.causes(top)
        hidden = self.case.posterior.hidden(causes, self.problem.full, float(hypotheses.rate[top]))
        sure = float(hypotheses.weight[top]) * exp(-hidden)
        if self.problem.first:
            part = int(hypotheses.chances.argmax())
            causes, sure = (hypotheses.parts.mask(part),), float(hypotheses.chances[part])
        found: list[FoundCause] = []
        missing: dict[int, Ask] = {}
        complete = self.complete
        for cause in causes:
            proof = prove(self.case, cause, self.problem.full, 1, tuple(other for other in causes if other != cause))
            if proof is not None:
                missing.update((ask.subset, ask) for ask in proof.missing)
                found += [proof.found] if proof.found is not None else []
        for correction in minimal_hitting_sets(causes) if self.complete else []:
            runs = [mask for mask in self._variants(correction) if mask]
            complete &= bool(runs) or correction == self.problem.full
            missing.update((mask, self._cure_ask(mask)) for mask in runs if not self.counts.of(mask).passes)
        enough = sure >= 1 - self._permitted(SHARE_IF_RANDOM, SHARE_IF_RANDOM_AT_EACH_RATE)
        ask = None if enough else choose(self.case, hypotheses, self._cures, (), repeat=True)
        if ask is not None or missing or self.counts.running:
            return self._ask(ask, *missing.values(), weighed=hypotheses)
        self.causes, self.complete = found, complete
        untold = "No valid configuration tells this answer from the others with the confidence asked for."
        return self._done("" if enough else untold)

    def _guessing(self, hypotheses: Hypotheses) -> Search:
        """The search as if running trials had also ended as is likeliest, so that others ask something else."""
        failing = (hypotheses.failing(self.counts.running) * (hypotheses.weight * hypotheses.rate)[:, None]).sum(0)
        fails = dict(zip(self.counts.running, (failing > 0.5).tolist(), strict=True))
        likely = {mask: Outcome.FAIL if failed else Outcome.PASS for mask, failed in fails.items()}
        ended = [replace(r, outcome=likely[r.subset]) for r in self.counts.records if r.outcome is None]
        counts = Counts([*self.counts.records, *ended])
        return Search(Case(self.problem, counts, unsteady=True), guessed=True)

    # -------------------------------------------------------------------------------------- corrections

    def _hopeless(self, correction: int, variants: list[int]) -> bool:
        """Whether enough has been tried: this correction is seen to cure, and its other variants keep ending in another
        failure."""
        cured = any(self.counts.of(mask).passes for mask in variants)
        left = [mask for mask in variants if not self.counts.of(mask).runs and not self.counts.of(mask).running]
        if not left or not cured:
            return False
        chance = max(self.validity.chance(mask) for mask in left)
        return self.validity.cure_given_up(correction) or chance < HOPELESS

    def _cures(self, causes: Sequence[int]) -> dict[int, Ask]:
        """The runs that show the corrections of these causes to cure."""
        corrections = (h for h in minimal_hitting_sets(causes)[:MAX_CURES] if not self.validity.cure_given_up(h))
        masks = [m for h in corrections for m in self._variants(h)[:1]]
        return {mask: self._cure_ask(mask) for mask in masks}

    def _cure_ask(self, mask: int) -> Ask:
        shown = self.problem.show(self.problem.full & ~mask)
        return Ask(mask, 0, Purpose.CORRECTION, f"Does the bad configuration pass without {shown}?")

    def _variants(self, correction: int) -> list[int]:
        """The largest valid subsets without the correction: itself, or with the least more reset to good."""
        return self.validity.largest_inside(self.problem.full & ~correction)

    def _by_loss(self, known: Iterable[int]) -> list[int]:
        """The minimal corrections, the one that gives up least first."""
        sets = [mask for mask in minimal_hitting_sets(known) if mask]
        return sorted(sets, key=lambda mask: (self._loss(mask), mask))

    def _loss(self, mask: int) -> float:
        return sum(self.problem.loss[i] for i in bits(mask)) if self.problem.loss else mask.bit_count()

    # -------------------------------------------------------------------------------------- the answers

    @property
    def _known(self) -> tuple[int, ...]:
        return tuple(cause.parameters for cause in self.causes)

    def _permitted(self, share: float, at_each_rate: float) -> float:
        """The probability of a wrong answer that may be left."""
        left = (1 - self.problem.confidence) * (at_each_rate if self.problem.confirm is None else share)
        return left * LEFT_IF_REPEATABLE if self.problem.careful and self.counts.repeatable else left

    def _ask(self, *asks: Ask | None, suspected: int = 0, weighed: Hypotheses | None = None) -> State:
        """The first of these questions that is not running already; to wait, if all are. It was chosen by what was
        `weighed`, and looks for a cause among those `suspected`."""
        question = next((ask for ask in asks if ask is not None and not self.counts.of(ask.subset).running), None)
        known = 0
        for cause in self.causes:
            known |= cause.parameters
        return State(
            question or Wait("Running trials decide."),
            tuple(self.causes),
            suspected,
            self.problem.full & ~suspected & ~known if suspected else 0,
            self._suspicion(known, suspected, weighed),
            trials_left(suspected.bit_count() or (0 if self.causes else self.problem.size), bool(self.causes)),
            self._conclusion(complete=False),
        )

    def _suspicion(self, known: int, suspected: int, weighed: Hypotheses | None) -> tuple[float, ...]:
        if weighed is None and (suspected or not known):
            return ()
        weights = [0.0] * self.problem.size if weighed is None else weighed.marginal.tolist()
        return tuple(1.0 if known >> i & 1 else min(round(weight, 4), 1.0) for i, weight in enumerate(weights))

    def _incomplete(self, note: str) -> None:
        self.complete = False
        self.notes.append(note)

    def _done(self, stopped: str = "") -> State:
        if stopped:
            self._incomplete(stopped)
        conclusion = self._conclusion(self.complete)
        return State(Done(conclusion), tuple(self.causes), so_far=conclusion)

    def _conclusion(self, complete: bool) -> Conclusion:
        corrections: dict[int, SubsetClaim] = {}  # one, where several come to the same: settings that leave together
        for correction in self._by_loss(self._known):
            for mask in self._variants(correction):
                if self.counts.of(mask).passes:
                    corrections.setdefault(self.problem.full & ~mask, self.counts.claim(mask, Outcome.PASS))
        clean = [mask for mask in self.counts.passed if not self.counts.of(mask).fails]
        # How often it failed where it could: with a known cause or, before one is known, in the bad configuration.
        there = [m for m in self.counts.by_subset if holds(m, self._known)] or [self.problem.full]
        seen = [self.counts.of(mask) for mask in there]
        return Conclusion(
            Status.ISOLATED if self.causes else Status.INCONCLUSIVE,
            tuple(self.causes),
            tuple(corrections.items()),
            complete,
            min(clean, key=lambda mask: (self._loss(self.problem.full & ~mask), mask), default=None),
            tuple((masked.setting, masked.cause) for masked in self.masking),
            (sum(count.fails for count in seen), sum(count.runs for count in seen)),
            tuple(self.notes),
        )
