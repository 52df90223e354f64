"""The trials of the search: what it asked, what came out, and what it concluded, with the names and values that people
are told; and the sampler that decides by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from bisect_cfg.common.configuration import Configuration, Outcome, Purpose, Subset, Value, configuration_of
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe import redact
from bisect_cfg.search import Ask, Conclusion, FoundCause, Problem, Record, State, SubsetClaim, look
from bisect_cfg.search.problem import bits
from bisect_cfg.store.causes import Cause, Claim, Correction, Evidence, Levels, Masking, Report, Reproduction, wilson
from bisect_cfg.store.encoding import NODE, SUBSET, WANTED, plain, purpose_of, result_attributes, result_of, values_of
from bisect_cfg.store.interface import TrialResult
from bisect_cfg.store.rows import row_of
from bisect_cfg.store.store import Store

Classify = Callable[[TrialResult, int, TrialResult | None], Outcome | None]
"""(result, subset, result of the failing bad baseline or None) -> outcome, None while that is unknown."""


class SearchTrials:
    """Those of one study, of a problem whose names are those of the factors; `classify` is the verdict on a result."""

    def __init__(self, store: Store, problem: Problem, classify: Classify) -> None:
        self.store, self.problem, self._classify = store, problem, classify
        self._baselines: Mapping[int, int] = {}
        self._since = 0
        self.odd: Mapping[str, str] = {}  # nodes whose runs do not count, and why
        self._order = [factor.name for factor in store.factors]
        self._bit = {name: 1 << place for place, name in enumerate(self._order)}

    def count(self, baselines: Mapping[int, int], since: int) -> None:
        """Have runs count that are none of the search (number -> the subset that it ran), and none of the search's own
        of a number below `since`: these began elsewhere."""
        self._baselines, self._since = baselines, since

    # ------------------------------------------------------------------------------------------------- reading

    def all(self) -> list[FrozenTrial]:
        """All that count, running ones included."""
        return [
            trial
            for trial in self.store.trials()
            if trial.number in self._baselines or (SUBSET in trial.user_attrs and trial.number >= self._since)
        ]

    def records(self, before: int | None = None, odd: bool = False) -> list[Record]:
        """What the search decides from, in the order of the trial numbers; only the trials before one if it is said;
        with those that do not count, too, if they are asked for."""
        trials = [trial for trial in self.all() if before is None or trial.number < before]
        reference = self._reference(trials)
        found = (self._record(trial, reference) for trial in trials)
        return [record for record in found if odd or record.node not in self.odd]

    def reference(self) -> TrialResult | None:
        """The result of the first failing run of the bad configuration: the failure under study."""
        return self._reference(self.all())

    def _reference(self, trials: Iterable[FrozenTrial]) -> TrialResult | None:
        full = self.problem.full
        results = (result_of(one) for one in trials if self._mask(one) == full and one.state.is_finished())
        results = (one for one in results if one.attributes.get("node", "") not in self.odd) if self.odd else results
        return next((one for one in results if self._classify(one, full, one) is Outcome.FAIL), None)

    def _record(self, trial: FrozenTrial, reference: TrialResult | None) -> Record:
        known, mask = trial.user_attrs, self._mask(trial)
        kept = known.get("attributes") or {}
        trace = kept.get("trace") or (kept.get("observation") or {}).get("trace")
        outcome = self._classify(result_of(trial), mask, reference) if trial.state.is_finished() else None
        return Record(
            mask,
            outcome,
            purpose_of(trial)[0],
            trial.number,
            float(known.get("seconds") or 0.0),
            self.mask_of(known.get("companions", ())),
            (known.get("signature") or "") if outcome is Outcome.UNRESOLVED else "",
            trace if isinstance(trace, str) else "",
            kept.get("node") or known.get(NODE, ""),
        )

    def _mask(self, trial: FrozenTrial) -> int:
        """The subset that a trial ran, as the search's integer."""
        ran = self._baselines.get(trial.number)
        return self.mask_of(trial.user_attrs[SUBSET]) if ran is None else ran

    def mask_of(self, names: Iterable[str]) -> int:
        """Factors by name, as the search's integer."""
        return sum(self._bit[name] for name in names)

    def names(self, mask: int) -> Subset:
        """A subset with its names."""
        return frozenset(self._order[i] for i in bits(mask))

    def cause(self, found: FoundCause) -> Cause:
        """A cause that the search has proven, with its names and values."""
        names, reference = self._sorted(found.parameters), self.reference()
        return Cause(
            {name: Levels(*self.store.levels[name]) for name in names},
            Evidence(self._claim(found.fails), {self._order[i]: self._claim(one) for i, one in found.without.items()}),
            self._sorted(found.companions),
            self._sorted(found.inseparable),
            reference.signature if reference else None,
        )

    def report(self, conclusion: Conclusion, good: Configuration, bad: Configuration, stopped: str = "") -> Report:
        """The whole conclusion, between the whole configurations. A limit has `stopped` the search, "" if none did."""
        outcomes, reference = {record.number: record.outcome for record in self.records()}, self.reference()
        every = sorted([*self.all(), *self.store.trials(WANTED)], key=lambda trial: trial.number)
        ended = (trial for trial in every if trial.state.is_finished())
        rows = tuple(row_of(trial, self.store.levels, outcomes.get(trial.number)) for trial in ended)
        fails, runs = conclusion.reproduction
        return Report(
            conclusion.status,
            tuple(map(self.cause, conclusion.causes)),
            tuple(Correction(self._sorted(mask), self._claim(claim)) for mask, claim in conclusion.corrections),
            conclusion.complete,
            None if conclusion.safe is None else configuration_of(self.names(conclusion.safe), good, bad),
            reference.signature if reference else None,
            tuple(Masking(self._sorted(mask), self._sorted(cause)) for mask, cause in conclusion.masking),
            Reproduction(fails / runs, wilson(fails, runs)) if runs else Reproduction(),
            conclusion.notes,
            rows,
            sum(row.seconds or 0.0 for row in rows),
            message=reference.message if reference else "",
            stopped=stopped,
        )

    def _sorted(self, mask: int) -> tuple[str, ...]:
        return tuple(sorted(self.names(mask)))

    def _claim(self, claim: SubsetClaim) -> Claim:
        subset = None if claim.subset is None else self._sorted(claim.subset)
        return Claim(subset, claim.seen, claim.runs, claim.numbers, claim.note)

    # ------------------------------------------------------------------------------------------------- writing

    def params(self, mask: int) -> dict[str, Value]:
        """The parameters of a subset's trial, as Optuna stores them."""
        good, bad = ({name: pair[side] for name, pair in self.store.levels.items()} for side in (0, 1))
        return self.store.params(configuration_of(self.names(mask), good, bad))

    def attributes(self, ask: Ask, suspicion: Sequence[float] = (), node: str = "") -> JsonObject:
        """What is written with a trial before it starts: the question, the suspicion of each factor by then, and where
        it is to run."""
        return {
            SUBSET: [self._order[i] for i in bits(ask.subset)],
            "companions": [self._order[i] for i in bits(ask.companions)],
            "purpose": ask.purpose.value,
            "reason": ask.reason,
            **({NODE: node} if node else {}),
            **({"suspicion": dict(zip(self._order, suspicion, strict=True))} if suspicion else {}),
        }

    def begin(self, ask: Ask, suspicion: Sequence[float] = (), node: str = "") -> FrozenTrial:
        """Write a trial as begun."""
        return self.store.begin(self.params(ask.subset), self.attributes(ask, suspicion, node))

    def begin_wanted(self, changes: Configuration, reason: str) -> FrozenTrial:
        """Write a run of the bad configuration with other values as begun; see `WANTED`."""
        told = {name: plain(redact.mask(value, name)) for name, value in changes.items()}
        values = {**{name: bad for name, (_, bad) in self.store.levels.items()}, **changes}
        asked = {WANTED: told, "purpose": Purpose.ASKED.value, "reason": reason}
        return self.store.begin(self.store.params(values), asked)

    def finish(self, trial: FrozenTrial, result: TrialResult) -> Outcome:
        """Write what came out, and return the verdict. Values of a reader's own are judged as the bad configuration
        that they replace; the first result of all settings is itself the failure under study."""
        mask = self._mask(trial) if SUBSET in trial.user_attrs else self.problem.full
        outcome = self._verdict(result, mask, self.reference())
        self.store.finish(trial.number, result_attributes(result, outcome), outcome, result.intermediate)
        return outcome

    def add(self, ask: Ask, result: TrialResult) -> None:
        """Write a trial that was run before; one of the same question and purpose that was added already stays."""
        same = (trial for trial in self.all() if self._mask(trial) == ask.subset)
        if any(trial.user_attrs.get("added") and purpose_of(trial)[0] is ask.purpose for trial in same):
            return
        outcome = self._verdict(result, ask.subset, None if ask.subset == self.problem.full else self.reference())
        attributes = {**self.attributes(ask), **result_attributes(result, outcome), "added": True}
        self.store.add(self.params(ask.subset), attributes, outcome)

    def _verdict(self, result: TrialResult, mask: int, reference: TrialResult | None) -> Outcome:
        reference = reference or (result if mask == self.problem.full else None)
        return self._classify(result, mask, reference) or result.outcome

    def show(self, safe: Configuration | None, best: int | None = None) -> None:
        """Have Optuna's own tools see what they need to agree with the answer (see `Store.show`): what is recommended,
        and the run that completed it (None: the last of the search that passed with it)."""
        ran = {trial.number: values_of(trial, self.store.levels) or {} for trial in self.store.trials()}
        if best is None and safe is not None:
            passed = (one.number for one in self.records() if one.outcome is Outcome.PASS)
            best = max((number for number in passed if ran[number].items() <= safe.items()), default=None)
        ends = [trial.number for trial in self.all() if trial.state.is_finished() and not trial.params]
        self.store.show(ends, ran.__getitem__, best)


class BisectionSampler(optuna.samplers.BaseSampler):
    """The search as an Optuna sampler: stateless, rebuilt from the study at each call.

    Optuna's own loop asks it: it suggests one of the two levels of every factor, and stops the study when nothing is
    left to ask. The objective must record the outcome, as `SearchTrials.finish` does.
    """

    def __init__(self, trials: SearchTrials) -> None:
        self._trials = trials

    def state(self, before: int | None = None) -> State:
        """What is known, and what is asked next, by all trials, or by those before one."""
        return look(self._trials.problem, self._trials.records(before))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(self._trials.store.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Value]:
        state = self.state(before=trial.number)
        question = state.question
        if not isinstance(question, Ask):
            study.stop()
            return self._trials.params(0)
        self._trials.store.take(trial.number, self._trials.attributes(question, state.suspicion))
        return self._trials.params(question.subset)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Value:
        return self._trials.params(0)[param_name]
