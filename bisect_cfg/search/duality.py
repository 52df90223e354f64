"""The duality loop: find a cause, take a correction, look again, until every correction cures.

At each call everything is derived again from the records. The causes proven so far explain some failures.
If a failure is left unexplained, there is another cause inside the smallest such subset: ask there what
tells most, or finish the proof of what is all but certain. If all failures are explained, ask whether the
bad configuration without each minimal correction passes. What fails there is a new unexplained failure;
when all have passed, the list of causes is complete, because a further cause would have to avoid one of
these corrections.

If failures are random, a pass may be luck. The runs above are then repeated, those first that leave the most
doubt, until the probability that a cause is missing or not minimal is below what the user asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.search.belief import Belief, prior_of_rates
from bisect_cfg.search.choose import choose
from bisect_cfg.search.doubt import Doubt
from bisect_cfg.search.flaky import Settled, settle
from bisect_cfg.search.hypotheses import largest_size
from bisect_cfg.search.masking import REPEATS, Masked, look_for_masking
from bisect_cfg.search.prices import Prices
from bisect_cfg.search.problem import Ask, Claim, Conclusion, Done, FoundCause, Problem, State, Wait, bits
from bisect_cfg.search.proof import IMPLIED, direct, prove, split
from bisect_cfg.search.strategies import NARROW, Needed, replay
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.transversal import minimal_hitting_sets
from bisect_cfg.search.validity import HOPELESS, Validity

ACCEPTED = 0.01
"""As long as nothing contradicts a deterministic failure, a candidate with a complete proof counts as a cause
unless it is all but excluded; what doubt is left is worked off at the end, for all causes at once."""

ACCEPTED_IF_RANDOM = 0.9
"""Once runs contradict each other, one pass proves little: a candidate must leave its rivals behind first."""

LIKELY = 4
"""How many of the likeliest candidates are looked at for a complete proof."""

ERROR_SHARE = 0.25
"""Share of the permitted error that may be left as doubt where no run contradicts another: it rests on the prior
probability of a random failure, which may be far off for this machine."""

ERROR_SHARE_AT_EACH_RATE = 0.1
"""The same where the promise is to hold at each failure rate by itself (see `flaky`)."""

UNPROVOKED = 3
"""Without a contradiction no pass is repeated more often than this, whatever doubt the prior leaves."""

SUSPICIOUS = 19.0
"""Once records that contradict nothing make it this many times likelier than the prior has it that the failure is
random, the search goes on as if it were."""

MAX_CURES = 12
"""How many corrections of a candidate are looked at as possible next runs."""

MAX_CAUSES = 64
"""A study with more causes than this has something else wrong; we stop and say so."""


class Isolation:
    """One decision: the records, and all that follows from them."""

    def __init__(self, problem: Problem, tally: Tally) -> None:
        self.problem, self.tally = problem, tally
        self.validity = Validity(problem, tally)
        self.causes: list[FoundCause] = []
        self.notes: list[str] = []
        self.masking: list[Masked] = []
        self.prices = Prices.of(problem, tally)
        self.loss = problem.loss or (1.0,) * problem.size

    # ------------------------------------------------------------------------------------- the loop

    def state(self) -> State:
        """What to do next and what is known."""
        if self.problem.strategy == "adaptive" and self.tally.contradictory:
            step = self._settle() if self.tally.random else self._random_or_hidden()
            if step is not None:
                return step
        while len(self.causes) < MAX_CAUSES:
            known = [cause.parameters for cause in self.causes]
            region = self._unexplained(known)
            if region is None:
                return self._corrections()
            step = self._narrow(region, known)
            if isinstance(step, State):
                return step
            self.causes = [c for c in self.causes if c.parameters & step.parameters != step.parameters]
            self.causes.append(step)
            if self.problem.first:
                return self._confirmed(complete=False)
        self.notes.append(f"More than {MAX_CAUSES} causes: the search stopped.")
        return self._done(complete=False)

    def _settle(self) -> State:
        """Failures are random: weigh whole answers against each other."""
        step = settle(self.problem, self.tally, self.validity, self._variants, self.prices)
        if not isinstance(step, Settled):
            return self._state(step)
        self.causes = step.causes
        if not step.separated:
            self.notes.append("No valid configuration tells this answer from others surely enough.")
        return self._done(step.complete)

    def _random_or_hidden(self) -> State | None:
        """A larger subset passed than one that failed: repeat both until one of them does the other thing.

        None once neither did: then a setting hides the failure, and the search goes on as if it did not.
        """
        pairs = [(f, p) for p in self.tally.passed for f in self.tally.failed if f and f & p == f]
        small, large = min(pairs, key=lambda pair: (pair[1].bit_count(), pair[0].bit_count(), pair))
        for mask, count in ((large, self.tally.of(large)), (small, self.tally.of(small))):
            if count.runs < REPEATS:
                if count.running:
                    return self._state(Wait("A contradiction is being looked into."))
                shown = self.problem.show(self.problem.full & ~mask)
                text = f"Is the failure random, or does a setting hide it? (The same run again, without {shown}.)"
                return self._ask(Ask(mask, 0, Purpose.MASKING, text))
        return None

    def _unexplained(self, known: Iterable[int]) -> int | None:
        """The smallest failed subset that no known cause explains."""
        known = tuple(known)
        left = [m for m in self.tally.failed if m and not any(cause & m == cause for cause in known)]
        return min(left, key=lambda mask: (mask.bit_count(), mask), default=None)

    def _narrow(self, region: int, known: list[int]) -> State | FoundCause:
        """A proven cause inside a failed subset, or the question that leads to one."""
        if self.problem.strategy == "adaptive" and self.validity.puzzling:
            step = self._replay(region, tuple(known), plain=True)
            if step is not None:
                return step
        if self.problem.strategy == "adaptive" and largest_size(region.bit_count()) > 1:
            belief = Belief(self.problem, self.tally, known)
            local = belief.inside(region)
            if local is not None and self._suspicious(local.steady) and not self.tally.contradictory:
                return self._settle()
            if local is not None:
                accepted = ACCEPTED_IF_RANDOM if self.tally.contradictory else ACCEPTED
                for row in local.best(LIKELY):
                    proof = prove(
                        self.problem,
                        self.tally,
                        self.validity,
                        local.causes.mask(row),
                        region,
                        direct(self.problem, self.tally),
                        tuple(known),
                    )
                    if proof is not None and proof.found is not None and local.weight[row] >= accepted:
                        return proof.found
                ask = choose(
                    self.problem,
                    self.tally,
                    belief,
                    self.validity,
                    local,
                    known,
                    lambda cause: self._cures([*known, cause]),
                    self.prices,
                )
                suspected = sum(1 << i for i in set(local.causes.index.ravel().tolist()) if i < self.problem.size)
                if ask is not None:
                    return self._ask(ask, suspected)
                if self.tally.running:
                    return self._state(Wait("Running trials decide."), suspected)
        step = self._replay(region, tuple(known))
        assert step is not None
        return step

    def _suspicious(self, steady: float) -> bool:
        if self.problem.confirm is not None:
            return steady < 0.5  # likelier random than not; at the default that would cost a steady failure runs
        prior = float(prior_of_rates(self.problem)[0])
        return steady * (1 - prior) * SUSPICIOUS < (1 - steady) * prior

    def _replay(self, region: int, known: tuple[int, ...], plain: bool = False) -> State | FoundCause | None:
        """The same by a plain algorithm: for comparison, where the posterior has no candidates left, and (`plain`)
        where too much ends in another failure; None if that leads to nothing that fails."""
        run = replay(self.problem, self.tally, self.validity, region, plain)
        try:
            witness = NARROW[self.problem.strategy](self.problem, run, region)
        except Needed as needed:
            return self._ask(needed.ask, region)
        if plain and not self.tally.of(witness).fails:
            return None
        if not self.validity.ok(witness):
            witness |= self.validity.companions(witness, region) or 0
        parameters = split(self.validity, witness, known)
        proof = prove(self.problem, self.tally, self.validity, parameters, region, known=known)
        if proof is not None and proof.unseen:
            return None if plain else self._unseen(parameters)
        if proof is None or proof.refuted:
            return None if plain else self._contradiction(witness)
        if proof.missing:
            return self._ask(proof.missing[0].ask, witness)
        assert proof.found is not None
        return proof.found

    def _unseen(self, parameters: int) -> State:
        shown = self.problem.show(parameters)
        self.notes.append(
            f"With {shown} it fails, and without any of it every run ended in another failure: none was seen to pass, "
            "so nothing is proven."
        )
        return self._done(complete=False)

    def _contradiction(self, witness: int) -> State:
        shown = self.problem.show(witness)
        self.notes.append(f"{shown}: runs contradict each other, so nothing could be proven here.")
        return self._done(complete=False)

    # ----------------------------------------------------------------------- corrections and doubts

    def _corrections(self) -> State:
        """Every minimal correction must be seen to cure; then the doubt that is left must be small."""
        known = [cause.parameters for cause in self.causes]
        complete, waiting = True, False
        runs: dict[int, Ask] = {}
        for correction in self._by_loss(known):
            variants = self._variants(correction)
            if not variants:
                complete = False
                self.notes.append(
                    f"Whether it is enough to reset {self.problem.show(correction)} could not be run in any valid way."
                )
            if self._hopeless(correction, variants):
                complete = False
                self.notes.append(
                    f"With {self.problem.show(correction)} reset, some of the rest ends in another failure "
                    "however it is combined; whether it has a part in a further cause cannot be seen."
                )
                variants = [mask for mask in variants if self.tally.of(mask).passes]
            for mask in variants:
                runs[mask] = self._cure_ask(mask)
        for mask, ask in runs.items():
            count = self.tally.of(mask)
            if not count.passes and not count.running:
                return self._ask(ask)
            waiting |= not count.passes
        if waiting:
            return self._state(Wait("Corrections are running."))
        if self.problem.strategy == "adaptive":
            repeat = self._spot_check(known) or self._masked() or self._doubt(runs)
            if repeat is not None:
                return repeat
        return self._confirmed(complete)

    def _hopeless(self, correction: int, variants: list[int]) -> bool:
        """Whether enough has been tried: this correction is seen to cure, and its other variants keep
        ending in another failure."""
        cured = any(self.tally.of(mask).passes for mask in variants)
        left = [mask for mask in variants if not self.tally.of(mask).runs and not self.tally.of(mask).running]
        if not left or not cured:
            return False
        given_up = self.validity.without_given_up(correction)
        return given_up or max(self.validity.chance(mask) for mask in left) < HOPELESS

    def _spot_check(self, known: list[int]) -> State | None:
        """Does each of several causes still fail in the company of all else that is not another cause?

        Of a single one the bad configuration itself is that run. With `confirm` = 0 it is left out.
        """
        if self.problem.times < 1 or self.masking:
            return None
        for cause in known:
            others = [other & ~cause for other in known if other != cause]
            if not others or not all(others):
                continue
            companies = [self.problem.full & ~h for h in minimal_hitting_sets(others)]
            if any(self.tally.of(company).runs or company == cause for company in companies):
                continue
            company = next((c for c in companies if self.validity.ok(c)), None)
            if company is None:
                continue
            if self.tally.of(company).running:
                return self._state(Wait("A spot check is running."))
            reason = f"Does {self.problem.show(cause)} still fail together with all that is no cause?"
            return self._ask(Ask(company, 0, Purpose.MASKING, reason))
        return None

    def _masked(self) -> State | None:
        """If runs contradict each other: is the failure random, or does a setting hide it?"""
        if not self.tally.contradictory or self.masking:
            return None
        found = look_for_masking(self.problem, self.tally, self.validity, self.causes)
        if isinstance(found, Ask):
            if self.tally.of(found.subset).running:
                return self._state(Wait("A contradiction is being looked into."))
            return self._ask(found)
        if not found:
            return None
        rest = [record for record in self.tally.records if not any(m.spoils(record) for m in found)]
        again = Isolation(self.problem, Tally(rest))
        again.masking = found
        for masked in found:
            again.notes.append(
                f"{self.problem.show(masked.setting)} hides the failure of {self.problem.show(masked.cause)}."
            )
        return again.state()

    def _doubt(self, runs: dict[int, Ask]) -> State | None:
        """Repeat the run that removes most doubt for its price, if too much is left; see `doubt`."""
        asks = {mask: ask for mask, ask in runs.items() if mask}
        for cause in self.causes:
            for index, claim in cause.without.items():
                if claim.subset and claim.note != IMPLIED:
                    reason = (
                        f"Does {self.problem.show(cause.parameters)} pass again without {self.problem.names[index]}?"
                    )
                    ask = Ask(claim.subset, claim.subset & ~cause.parameters, Purpose.CAUSE_MINUS_ONE, reason)
                    asks.setdefault(claim.subset, ask)
        doubt = Doubt(self.problem, self.tally, self.causes, asks)
        share = ERROR_SHARE_AT_EACH_RATE if self.problem.confirm is None else ERROR_SHARE
        now = doubt.of()
        if now <= (1 - self.problem.confidence) * share:
            return None
        worth: dict[int, float] = {}
        for mask in asks:
            if self.tally.of(mask).passes < UNPROVOKED:
                worth[mask] = log(now / max(doubt.of(passing=mask), 1e-12)) / self.prices.of_mask(mask)
        for cause in self.causes:
            witness = cause.fails.subset
            if witness and self.tally.of(witness).fails < UNPROVOKED + 1:
                # The same for every cause; the least run so far comes first.
                price = self.prices.of_mask(witness) * self.prices.fail
                worth[witness] = log(now / max(doubt.of(failing=True), 1e-12)) / price
                worth[witness] -= 1e-6 * self.tally.of(witness).fails
                reason = f"Does {self.problem.show(cause.parameters)} fail every time? A pass proves little if not."
                asks[witness] = Ask(witness, cause.companions, Purpose.CAUSE_FAILS, reason)
        free = {mask: value for mask, value in worth.items() if not self.tally.of(mask).running}
        if not free:
            return self._state(Wait("Repeated runs are going on.")) if worth else None
        return self._ask(asks[max(free, key=lambda m: (round(free[m], 9), -m))])

    def _confirmed(self, complete: bool) -> State:
        """Each claim of the answer must have been observed as often as the user asked."""
        times = max(self.problem.times, direct(self.problem, self.tally))
        causes = []
        for cause in self.causes:
            proof = prove(
                self.problem,
                self.tally,
                self.validity,
                cause.parameters,
                cause.fails.subset or 0,
                times,
                tuple(other.parameters for other in self.causes if other is not cause),
            )
            if proof is not None and proof.missing:
                for step in proof.missing:
                    if not self.tally.of(step.subset).running:
                        return self._ask(step.ask)
                return self._state(Wait("Claims are being confirmed."))
            causes.append(proof.found if proof is not None and proof.found is not None else cause)
        self.causes = causes
        known = [cause.parameters for cause in self.causes]
        for correction in self._by_loss(known) if not self.problem.first else []:
            for mask in self._variants(correction)[:1]:
                count = self.tally.of(mask)
                if 0 < count.passes < times:
                    if count.running:
                        return self._state(Wait("The correction is being confirmed."))
                    return self._ask(self._cure_ask(mask))
            break
        return self._done(complete)

    def _cures(self, known: list[int]) -> dict[int, Ask]:
        """The runs that show the corrections of these causes to cure."""
        corrections = (h for h in minimal_hitting_sets(known)[:MAX_CURES] if not self.validity.without_given_up(h))
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
        return sorted(sets, key=lambda mask: (sum(self.loss[i] for i in bits(mask)), mask))

    # ---------------------------------------------------------------------------------- the answers

    def _ask(self, ask: Ask, suspected: int = 0) -> State:
        return self._state(ask, suspected)

    def _state(self, question: Ask | Wait, suspected: int = 0) -> State:
        known = 0
        for cause in self.causes:
            known |= cause.parameters
        remaining = 2 + 2 * suspected.bit_count().bit_length()
        ruled_out = self.problem.full & ~suspected & ~known if suspected else 0
        return State(question, tuple(self.causes), suspected, ruled_out, remaining, self._conclude(False))

    def _done(self, complete: bool) -> State:
        conclusion = self._conclude(complete)
        return State(Done(conclusion), tuple(self.causes), so_far=conclusion)

    def _conclude(self, complete: bool) -> Conclusion:
        known = [cause.parameters for cause in self.causes]
        corrections: list[tuple[int, Claim]] = []
        for correction in self._by_loss(known):
            for mask in self._variants(correction):
                if self.tally.of(mask).passes:
                    claim = self.tally.claim(mask, Outcome.PASS)
                    corrections.append((self.problem.full & ~mask, claim))
        clean = [mask for mask in self.tally.passed if not self.tally.of(mask).fails]
        safe = min(clean, key=lambda m: (self._given_up(m), m), default=None)
        status = "isolated" if self.causes else "inconclusive"
        return Conclusion(
            status,
            tuple(self.causes),
            tuple(corrections),
            complete,
            safe,
            tuple((masked.setting, masked.cause) for masked in self.masking),
            self._reproduction(known),
            tuple(self.notes),
        )

    def _given_up(self, mask: int) -> float:
        return sum(self.loss[i] for i in bits(self.problem.full & ~mask))

    def _reproduction(self, known: list[int]) -> tuple[int, int]:
        """Fails and runs of the subsets that hold a known cause; before one is known, of the bad
        configuration."""
        holds = [m for m in self.tally.counts if any(c & m == c for c in known)] or [self.problem.full]
        counts = [self.tally.of(mask) for mask in holds]
        return sum(count.fails for count in counts), sum(count.runs for count in counts)


def isolate(problem: Problem, tally: Tally) -> State:
    """The next step once both baselines are as they should be."""
    return Isolation(problem, tally).state()
