"""The study: everything that is remembered, in an Optuna study, and nothing anywhere else.

A trial of the study is a run of ours. Its parameters are the factors with their real values (so that the
dashboard and the samplers of Optuna understand them), its user attributes say what was asked and what came
out. Every decision is recomputed from these trials. Resuming after a crash, a second process on the same
storage and replaying an old study are therefore the same thing: reading the study.

Two things need care:

*Crashes.* A trial is written as RUNNING, question included, in one transaction before it starts, and its
result before its state changes. Whoever is killed leaves either a finished trial or a RUNNING one of a
dead process, which the next process closes as "lost" and asks again.

*Several processes.* Each decides from what it has read. If another one started a trial in between, the
later of the two (by trial number) decides again with both in view, and withdraws its own if it would now
ask otherwise.

How values and results are written is in `bisect_cfg.study.encoding`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from bisect_cfg.configuration import Factor, Outcome, Purpose, Subset
from bisect_cfg.probe.secrets import mask
from bisect_cfg.search import Ask, Problem, Question, Record, next_question
from bisect_cfg.search.problem import bits
from bisect_cfg.study.encoding import (
    as_text,
    distribution_of,
    is_running,
    result_attributes,
    result_of,
    same_start,
    state_of,
    stored_value,
    this_process,
)
from bisect_cfg.study.storage import OPENING_ATTEMPTS, is_race
from bisect_cfg.study.trial import TrialResult

BEAT_SECONDS = 20.0
"""How often a worker says that its running trials live: rare enough for a shared database."""

SILENCE_SECONDS = 120.0
"""A worker on another machine that has not been heard of for this long is dead (six missed beats)."""

_LIVE_RUNS: set[str] = set()
"""Bisections running in this very process, to tell their trials from those of an abandoned one."""

_VOID = ("lost", "interrupted", "withdrawn")


class StudyMismatch(ValueError):
    """The study in the storage was made for other configurations."""


class BisectionSampler(optuna.samplers.BaseSampler):
    """The search as an Optuna sampler: stateless, rebuilt from the study at each call.

    It suggests one of the two levels of every factor and stops the study when nothing is left to ask. The
    objective must record the outcome, as `Ledger.finish` does.

    Args:
        ledger: the view of the study to decide from.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(self._ledger.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        question = self._ledger.question(before=trial.number)
        if not isinstance(question, Ask):
            study.stop()
            return self._ledger.params(0)
        for name, value in self._ledger.attributes(question).items():
            study._storage.set_trial_user_attr(trial._trial_id, name, value)
        return self._ledger.params(question.subset)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._ledger.params(0)[param_name]


class Ledger:
    """One study, read and written.

    Args:
        factors: in the user's order.
        problem: what the search needs to know, with names equal to those of the factors.
        storage: an Optuna storage or its URL; None keeps the study in memory.
        study_name: several bisections may share a storage under different names.
        classify: (result, subset, result of the failing bad baseline or None) -> outcome, None while unknown.
        identity: what is studied beside the factors (name of a part -> value that JSON can hold); kept with the
            study.

    Raises:
        StudyMismatch: the study exists and was made for other factors or levels, or for something else.
    """

    def __init__(
        self,
        factors: Sequence[Factor],
        problem: Problem,
        storage: str | optuna.storages.BaseStorage | None,
        study_name: str | None,
        classify: Callable[[TrialResult, int, TrialResult | None], Outcome | None],
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.factors, self.problem, self._classify = tuple(factors), problem, classify
        self.distributions = {factor.name: distribution_of(factor) for factor in self.factors}
        self._stored = {f.name: (stored_value(f, "good"), stored_value(f, "bad")) for f in self.factors}
        self._index = {factor.name: i for i, factor in enumerate(self.factors)}
        optuna.logging.set_verbosity(max(optuna.logging.get_verbosity(), optuna.logging.WARNING))
        self.study = self._open(storage, study_name)
        self._storage, self._study_id = self.study._storage, self.study._study_id
        self._run = uuid.uuid4().hex
        self._beats: dict[int, tuple[Any, float]] = {}
        self._mine: set[int] = set()
        self._lock = threading.RLock()
        _LIVE_RUNS.add(self._run)
        self._check_identity(dict(identity or {}))

    def _open(self, storage: str | optuna.storages.BaseStorage | None, name: str | None) -> optuna.Study:
        """Create or load the study; two processes may be creating the tables of one new database at once."""
        for attempt in range(OPENING_ATTEMPTS):
            try:
                return optuna.create_study(
                    storage=storage,
                    study_name=name or (None if storage is None else "bisection"),
                    direction="maximize",
                    load_if_exists=True,
                    sampler=BisectionSampler(self),
                )
            except Exception as error:
                if attempt == OPENING_ATTEMPTS - 1 or not is_race(error):
                    raise
                time.sleep(0.1 * (attempt + 1))
        raise AssertionError("not reached")

    def _check_identity(self, identity: Mapping[str, Any]) -> None:
        known = self.study.user_attrs.get("identity", {})
        differing = sorted(name for name, value in identity.items() if known.get(name, value) != value)
        if differing:
            raise StudyMismatch(
                f"the study {self.study.study_name!r} is of something else: not the same "
                f"{', '.join(differing)}. Use another study name or storage for this bisection."
            )
        if identity and not known:
            self.study.set_user_attr("identity", dict(identity))
        mine = {f.name: [as_text(mask(f.good, f.name)), as_text(mask(f.bad, f.name))] for f in self.factors}
        theirs = self.study.user_attrs.get("factors")
        if theirs is None:
            self.study.set_user_attr("factors", mine)
        elif theirs != mine:
            differing = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
            raise StudyMismatch(
                f"the study {self.study.study_name!r} was made for other configurations: "
                f"{', '.join(differing)} differ. Use another study name or storage for this bisection."
            )

    # -------------------------------------------------------------------------------------- reading

    def trials(self) -> list[FrozenTrial]:
        """All trials of ours, lost and withdrawn ones left out."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        return [t for t in trials if "subset" in t.user_attrs and t.user_attrs.get("outcome") not in _VOID]

    def records(self, before: int | None = None) -> list[Record]:
        """What the search decides from, in the order of the trial numbers."""
        trials = [t for t in self.trials() if before is None or t.number < before]
        reference = self.reference(trials)
        return [self._record(trial, reference) for trial in trials]

    def reference(self, trials: Sequence[FrozenTrial]) -> TrialResult | None:
        """The result of the first failing run of the bad configuration: the failure under study."""
        for trial in trials:
            if self.mask(trial) == self.problem.full and trial.state.is_finished():
                result = result_of(trial)
                if self._classify(result, self.problem.full, result) is Outcome.FAIL:
                    return result
        return None

    def _record(self, trial: FrozenTrial, reference: TrialResult | None) -> Record:
        attributes = trial.user_attrs
        mask = self.mask(trial)
        outcome = None
        if trial.state.is_finished():
            outcome = self._classify(result_of(trial), mask, reference)
        return Record(
            mask,
            outcome,
            Purpose.of(attributes.get("purpose", Purpose.SEARCH)),
            trial.number,
            float(attributes.get("seconds") or 0.0),
            self._mask_of_names(attributes.get("companions", ())),
            (attributes.get("signature") or "") if outcome is Outcome.UNRESOLVED else "",
        )

    def mask(self, trial: FrozenTrial) -> int:
        """The subset that a trial ran, as the search's integer."""
        return self._mask_of_names(trial.user_attrs["subset"])

    def _mask_of_names(self, names: Sequence[str]) -> int:
        return sum(1 << self._index[name] for name in names)

    def names(self, mask: int) -> Subset:
        """A subset with its names."""
        return frozenset(self.factors[i].name for i in bits(mask))

    def question(self, before: int | None = None) -> Question:
        """What the search would do now, or what it would have done before a certain trial."""
        return next_question(self.problem, self.records(before))

    # -------------------------------------------------------------------------------------- writing

    def params(self, mask: int) -> dict[str, Any]:
        """Factor -> stored value."""
        return {f.name: self._stored[f.name][mask >> i & 1] for i, f in enumerate(self.factors)}

    def attributes(self, ask: Ask) -> dict[str, Any]:
        """What is written with a trial before it starts."""
        order = [f.name for f in self.factors]
        return {
            "subset": [order[i] for i in bits(ask.subset)],
            "companions": [order[i] for i in bits(ask.companions)],
            "purpose": ask.purpose,
            "reason": ask.reason,
            "worker": {**this_process(), "run": self._run},
        }

    def start(self, ask: Ask, seen: Sequence[Record]) -> FrozenTrial | None:
        """Write the trial as RUNNING; None if another process was faster and this question is not the one
        now.

        Args:
            ask: the question.
            seen: the records it was decided from.
        """
        template = create_trial(
            state=TrialState.RUNNING,
            params=self.params(ask.subset),
            distributions=self.distributions,
            user_attrs=self.attributes(ask),
        )
        trial_id = self._storage.create_new_trial(self._study_id, template_trial=template)
        trial = self._storage.get_trial(trial_id)
        with self._lock:
            self._mine.add(trial_id)
        known = {record.number for record in seen}
        if any(t.number < trial.number and t.number not in known for t in self.trials()):
            again = self.question(before=trial.number)
            if not isinstance(again, Ask) or again.subset != ask.subset:
                self.void(trial, "withdrawn")
                return None
        return trial

    def finish(self, trial: FrozenTrial, result: TrialResult, outcome: Outcome | None) -> None:
        """Write the result, then the state. UNRESOLVED has no value and is a FAIL to Optuna, as its docs
        ask."""
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # someone took us for dead and closed it
            for name, value in result_attributes(result, outcome).items():
                self._storage.set_trial_user_attr(trial._trial_id, name, value)
        self._close(trial, *state_of(outcome or result.outcome))

    def add(self, ask: Ask, result: TrialResult, outcome: Outcome | None) -> None:
        """Write a trial that was run before, in one go. Adding the same one again (on resuming) does
        nothing."""
        subset = self.attributes(ask)["subset"]
        for known in self.trials():
            a = known.user_attrs
            if a.get("added") and a["purpose"] == ask.purpose and a["subset"] == subset:
                return
        state, values = state_of(outcome or result.outcome)
        self.study.add_trial(
            create_trial(
                state=state,
                values=values,
                params=self.params(ask.subset),
                distributions=self.distributions,
                user_attrs={**self.attributes(ask), **result_attributes(result, outcome), "added": True},
            )
        )

    def void(self, trial: FrozenTrial, why: str) -> None:
        """Close a running trial that has no result: "lost", "interrupted" or "withdrawn"."""
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # it has ended meanwhile
            self._storage.set_trial_user_attr(trial._trial_id, "outcome", why)
        self._close(trial, TrialState.FAIL, None)

    def _close(self, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            self._storage.set_trial_state_values(trial._trial_id, state=state, values=values)
        with self._lock:
            self._mine.discard(trial._trial_id)

    # ---------------------------------------------------------------------- the living and the dead

    def close_stale(self) -> int:
        """Close the running trials of dead processes; returns how many."""
        closed = 0
        for trial in self._storage.get_all_trials(self._study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            if "subset" in trial.user_attrs and self._is_dead(trial):
                self.void(trial, "lost")
                closed += 1
        return closed

    def beat(self) -> None:
        """Tell others that our running trials live. Called every `BEAT_SECONDS`."""
        with self._lock:
            mine = list(self._mine)
        for trial_id in mine:
            with suppress(optuna.exceptions.UpdateFinishedTrialError):
                self._storage.set_trial_user_attr(trial_id, "beat", round(time.time(), 1))

    def leave(self) -> None:
        """This bisection runs no longer."""
        _LIVE_RUNS.discard(self._run)

    def enter(self) -> None:
        """This bisection runs (again)."""
        _LIVE_RUNS.add(self._run)

    def _is_dead(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get("worker") or {}
        here = this_process()
        if worker.get("host") != here["host"]:
            beat = trial.user_attrs.get("beat")
            known, since = self._beats.get(trial._trial_id, (None, 0.0))
            if trial._trial_id not in self._beats or known != beat:
                self._beats[trial._trial_id] = (beat, time.monotonic())  # our clock: theirs may be wrong
                return False
            return time.monotonic() - since > SILENCE_SECONDS
        if worker.get("pid") == here["pid"] and same_start(worker, here):
            return worker.get("run") not in _LIVE_RUNS
        return not is_running(worker)
