"""The trials of the search: what it asked and what came out, as it reads them, and the sampler that decides by them.

Several processes may search in one study. Each decides from what it has read. If another one began a trial in between,
the later of the two (by trial number) decides again with both in view, and withdraws its own if it would now ask
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from bisect_cfg.configuration import Configuration, Outcome, Purpose, Subset, Value, configuration_of
from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.probe import secrets
from bisect_cfg.search import Ask, Problem, Record, State, look
from bisect_cfg.search.problem import bits
from bisect_cfg.study.encoding import SUBSET, WANTED, plain, purpose_of, result_attributes, result_of
from bisect_cfg.study.interface import TrialResult
from bisect_cfg.study.store import BESIDES, Store, Void

Classify = Callable[[TrialResult, int, TrialResult | None], Outcome | None]
"""(result, subset, result of the failing bad baseline or None) -> outcome, None while that is unknown."""


class SearchTrials:
    """Those of one study.

    Args:
        store: of the study.
        problem: what the search needs to know, with names equal to those of the factors.
        classify: the verdict on a result.
    """

    def __init__(self, store: Store, problem: Problem, classify: Classify) -> None:
        self.store, self.problem, self._classify = store, problem, classify
        self.good = {factor.name: factor.good for factor in store.factors}
        self.bad = {factor.name: factor.bad for factor in store.factors}
        self._index = {factor.name: i for i, factor in enumerate(store.factors)}

    # ------------------------------------------------------------------------------------------------- reading

    def all(self) -> list[FrozenTrial]:
        """All that count, running ones included."""
        return self.store.trials(SUBSET)

    def records(self, before: int | None = None) -> list[Record]:
        """What the search decides from, in the order of the trial numbers."""
        trials = [trial for trial in self.all() if before is None or trial.number < before]
        reference = self._reference(trials)
        return [self._record(trial, reference) for trial in trials]

    def reference(self) -> TrialResult | None:
        """The result of the first failing run of the bad configuration: the failure under study."""
        return self._reference(self.all())

    def _reference(self, trials: Sequence[FrozenTrial]) -> TrialResult | None:
        for trial in trials:
            if self.mask(trial) == self.problem.full and trial.state.is_finished():
                result = result_of(trial)
                if self._classify(result, self.problem.full, result) is Outcome.FAIL:
                    return result
        return None

    def _record(self, trial: FrozenTrial, reference: TrialResult | None) -> Record:
        attributes = trial.user_attrs
        mask, trace = self.mask(trial), (attributes.get("attributes") or {}).get("trace")
        outcome = None
        if trial.state.is_finished():
            outcome = self._classify(result_of(trial), mask, reference)
        return Record(
            mask,
            outcome,
            purpose_of(trial)[0],
            trial.number,
            float(attributes.get("seconds") or 0.0),
            self.mask_of(attributes.get("companions", ())),
            (attributes.get("signature") or "") if outcome is Outcome.UNRESOLVED else "",
            trace if isinstance(trace, str) else "",
        )

    def mask(self, trial: FrozenTrial) -> int:
        """The subset that a trial ran, as the search's integer."""
        return self.mask_of(trial.user_attrs[SUBSET])

    def mask_of(self, names: Iterable[str]) -> int:
        """Factors by name, as the search's integer."""
        return sum(1 << self._index[name] for name in names)

    def names(self, mask: int) -> Subset:
        """A subset with its names."""
        return frozenset(self.store.factors[i].name for i in bits(mask))

    # ------------------------------------------------------------------------------------------------- writing

    def params(self, mask: int) -> dict[str, Value]:
        """The parameters of a subset's trial, as Optuna stores them."""
        return self.store.params(configuration_of(self.names(mask), self.good, self.bad))

    def attributes(self, ask: Ask, run: str = "", suspicion: Sequence[float] = ()) -> JsonObject:
        """What is written with a trial before it starts.

        Args:
            ask: the question.
            run: which run it is, where several answer the same.
            suspicion: of each factor, at this time; see `State`.
        """
        order = [factor.name for factor in self.store.factors]
        return {
            SUBSET: [order[i] for i in bits(ask.subset)],
            "companions": [order[i] for i in bits(ask.companions)],
            "purpose": ask.purpose.value,
            "reason": ask.reason,
            **({"run": run} if run else {}),
            **({"suspicion": dict(zip(order, suspicion, strict=True))} if suspicion else {}),
        }

    def start(self, ask: Ask, suspicion: Sequence[float] = ()) -> FrozenTrial:
        """Write a trial as begun; see `attributes`."""
        return self.store.start(self.params(ask.subset), self.attributes(ask, suspicion=suspicion))

    def finish(self, trial: FrozenTrial, result: TrialResult) -> Outcome:
        """Write what came out.

        Returns:
            The verdict. Values of a reader's own are judged as the bad configuration that they replace.
        """
        mask = self.mask(trial) if SUBSET in trial.user_attrs else self.problem.full
        reference = self.reference() or (result if mask == self.problem.full else None)
        outcome = self._classify(result, mask, reference) or result.outcome
        self.store.finish(trial.number, result_attributes(result, outcome), outcome, result.intermediate)
        return outcome

    def start_wanted(self, changes: Configuration, reason: str) -> FrozenTrial:
        """Write a run of the bad configuration with other values as begun; see `WANTED`."""
        told = {name: plain(secrets.mask(value, name)) for name, value in changes.items()}
        attributes = {WANTED: told, "purpose": Purpose.ASKED.value, "reason": reason}
        attributes[BESIDES] = [name for name in changes if name not in self.bad]
        return self.store.start(self.store.params({**self.bad, **changes}), attributes)

    def add(self, ask: Ask, result: TrialResult, run: str = "") -> None:
        """Write a trial that was run before. Adding the same one again (on resuming) does nothing.

        Args:
            ask: what it answers.
            result: what came out.
            run: which run it was, where several answer the same.
        """
        attributes = self.attributes(ask, run)
        for known in self.all():
            purpose, name = purpose_of(known)  # a run with a name is that run, whatever it was taken for before
            same = self.mask(known) == ask.subset and name == run and (bool(run) or purpose is ask.purpose)
            if same and known.user_attrs.get("added"):
                return
        reference = result if ask.subset == self.problem.full else self.reference()
        outcome = self._classify(result, ask.subset, reference) or result.outcome
        attributes |= {**result_attributes(result, outcome), "added": True}
        self.store.add(self.params(ask.subset), attributes, outcome, result.intermediate)

    def close_lost(self) -> int:
        """Close the running trials of dead processes; returns how many."""
        lost = [*self.store.abandoned(SUBSET), *self.store.abandoned(WANTED)]
        for trial in lost:
            self.store.void(trial.number, Void.LOST)
        return len(lost)


class BisectionSampler(optuna.samplers.BaseSampler):
    """The search as an Optuna sampler: stateless, rebuilt from the study at each call.

    The tool asks it (`state`, `begin`), and so does Optuna's own loop: then it suggests one of the two levels of every
    factor and stops the study when nothing is left to ask. The objective must record the outcome, as
    `SearchTrials.finish` does.

    Args:
        trials: of the search, to decide from.
    """

    def __init__(self, trials: SearchTrials) -> None:
        self._trials = trials

    def state(self, records: Sequence[Record] | None = None, before: int | None = None) -> State:
        """What is known, and what is asked next.

        Args:
            records: to decide from, if they have been read already.
            before: only the trials before this one.
        """
        return look(self._trials.problem, self._trials.records(before) if records is None else records)

    def begin(self, question: Ask, seen: Sequence[Record], suspicion: Sequence[float] = ()) -> FrozenTrial | None:
        """Write a trial as begun; None if another process was faster and this question is not the one now.

        Args:
            question: what is asked.
            seen: the records that it was decided from.
            suspicion: of each factor, by them.
        """
        trial = self._trials.start(question, suspicion)
        known = {record.number for record in seen}
        if any(other.number < trial.number and other.number not in known for other in self._trials.all()):
            again = self.state(before=trial.number).question
            if not isinstance(again, Ask) or again.subset != question.subset:
                self._trials.store.void(trial.number, Void.WITHDRAWN)
                return None
        return trial

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
        self._trials.store.take(trial.number, self._trials.attributes(question, suspicion=state.suspicion))
        return self._trials.params(question.subset)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Value:
        return self._trials.params(0)[param_name]
