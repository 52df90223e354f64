"""The store: every trial that a bisection remembers, written in one place, in an Optuna study, and nothing elsewhere.

A trial of the study is a run of ours. Its parameters are the factors with their real values (so that the dashboard and
the samplers of Optuna understand them), its user attributes say what was asked and what came out. Every decision is
recomputed from these trials. Resuming after a crash, a second process on the same storage and replaying an old study
are therefore the same thing: reading the study.

Which phase a trial belongs to is told by the attribute that holds its question (`encoding.SUBSET`, `WANTED`, `SAFE`).
Each sees only its own.

*Crashes.* A trial is written as RUNNING, question and worker included, in one transaction before it starts, and its
result before its state changes. Whoever is killed leaves either a finished trial or a RUNNING one of a dead process,
which the next process closes as lost and asks again.

*Why not `Study.ask`.* It writes an empty trial first, and each parameter and attribute after it, in transactions of
their own, the first of them when a value is asked for. A process that dies in between leaves a trial of which nobody
can say what was asked and whether its worker lives; one that reads in between cannot see what the other is about to
run, and runs the same. So the question comes from the study's sampler, and is written by this store.

*Why a beat of our own.* Optuna's heartbeats exist only under `Study.optimize` on an RDB storage. Here the storage can
be any, and so there is one beat, an attribute of each running trial, written by a thread for as long as the store is
`alive`.
"""

from __future__ import annotations

import enum
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from bisect_cfg import interrupts
from bisect_cfg.configuration import UNSET, Configuration, Factor, Outcome, Value, equal
from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.probe.secrets import mask
from bisect_cfg.study.encoding import OBJECTIVE, as_text, distribution_of, given_up, state_of, stored_value
from bisect_cfg.study.storage import open_storage, patiently
from bisect_cfg.study.workers import is_running, same_process, this_process

BEAT_SECONDS = 20.0
"""How often a worker says that its running trials live: rare enough for a shared database."""

SILENCE_SECONDS = 120.0
"""A worker on another machine that has not been heard of for this long is dead (six missed beats)."""

MOST_INTERMEDIATE = 50
"""Steps of a trial that Optuna is given: each is a transaction of its own, of some 1.2 ms in SQLite, and more make no
curve plainer. The trial's folder has them all."""

BESIDES = "besides"
"""Attribute of a trial: names of the settings, beside the factors, that it sets otherwise than the user has them."""

CONCLUDED = "concluded"
"""Attribute of a study: what was last concluded from its trials, for those who do not have what they were made with."""

_LIVE_RUNS: set[str] = set()
"""Stores alive in this very process, to tell their trials from those of an abandoned one."""


class StudyMismatch(ValueError):
    """The study in the storage was made for other configurations."""


class Void(enum.StrEnum):
    """Why a trial that was begun has no result, and counts for nothing. The values are what studies record."""

    LOST = "lost"
    """Its process died."""
    INTERRUPTED = "interrupted"
    WITHDRAWN = "withdrawn"
    """Another process had begun a trial first, and with that one in view something else is asked."""
    NOT_NEEDED = "not needed"
    """Its result could not change anything any more."""


VOID = frozenset(why.value for why in Void)
"""Outcomes of trials that count for nothing."""


class Store:
    """One study, read and written.

    Args:
        factors: in the user's order.
        storage: an Optuna storage or its URL; None keeps the study in memory.
        study_name: several bisections may share a storage under different names.
        weights: factor -> how much giving it up weighs, 1 if missing.
        identity: what is studied beside the factors (name of a part -> value that JSON can hold); kept with the
            study.

    Attributes:
        study: the Optuna study.
        factors: as given.
        distributions: factor name -> its distribution.
        levels: factor name -> its good and its bad value.
        since: trials of smaller numbers count for nothing: they began elsewhere.

    Raises:
        StudyMismatch: the study exists and was made for other factors or levels, or for something else.
    """

    def __init__(
        self,
        factors: Sequence[Factor],
        storage: str | optuna.storages.BaseStorage | None,
        study_name: str | None,
        identity: JsonObject | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.factors = tuple(factors)
        self.levels = {factor.name: (factor.good, factor.bad) for factor in self.factors}
        self.distributions = {factor.name: distribution_of(factor) for factor in self.factors}
        optuna.logging.set_verbosity(max(optuna.logging.get_verbosity(), optuna.logging.WARNING))
        self._kept, self.study = _open(storage, study_name)
        self._id = self._kept.get_study_id_from_name(self.study.study_name)
        self._weights = dict(weights or {})
        self.since = 0
        self._run = uuid.uuid4().hex
        self._beats: dict[int, tuple[object, float]] = {}
        self._mine: set[int] = set()
        self._lock = threading.Lock()
        _LIVE_RUNS.add(self._run)
        self._check_identity(dict(identity or {}))

    def _check_identity(self, identity: JsonObject) -> None:
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

    # ------------------------------------------------------------------------------------------------- reading

    def trials(self, asked: str) -> list[FrozenTrial]:
        """The trials whose question is in this attribute, running ones included, without those that are void."""
        return [
            trial
            for trial in self._all(asked)
            if trial.number >= self.since and trial.user_attrs.get("outcome") not in VOID
        ]

    def _all(self, asked: str) -> list[FrozenTrial]:
        trials = self._kept.get_all_trials(self._id, deepcopy=False)
        return [trial for trial in trials if asked in trial.user_attrs]

    def params(self, configuration: Configuration) -> dict[str, Value]:
        """The factors' values as Optuna stores them, wherever their distributions have room."""
        found: dict[str, Value] = {}
        for factor in self.factors:
            value, distribution = configuration.get(factor.name, UNSET), self.distributions[factor.name]
            if equal(value, factor.good):
                found[factor.name] = stored_value(factor, "good")
            elif equal(value, factor.bad):
                found[factor.name] = stored_value(factor, "bad")
            elif not isinstance(distribution, CategoricalDistribution) and _has_room(distribution, value):
                found[factor.name] = value
        return found

    # ------------------------------------------------------------------------------------------------- writing

    def start(self, params: Configuration, attributes: JsonObject) -> FrozenTrial:
        """Write a trial as RUNNING, whole, before it starts.

        Args:
            params: values of factors, see `params`.
            attributes: what is asked.
        """
        template = self._template(TrialState.RUNNING, None, params, {**attributes, **self._worker()})
        trial_id = self._kept.create_new_trial(self._id, template_trial=template)
        with self._lock:
            self._mine.add(trial_id)
        return self._kept.get_trial(trial_id)

    def conclude(self, concluded: JsonObject) -> None:
        """Keep what was concluded; nothing is ever decided by it."""
        if self.study.user_attrs.get(CONCLUDED) != concluded:
            self.study.set_user_attr(CONCLUDED, concluded)

    def take(self, number: int, attributes: JsonObject) -> None:
        """Write what is asked into a trial that Optuna has begun by itself."""
        trial_id = self._of(number)
        for name, value in {**attributes, **self._worker()}.items():
            self._kept.set_trial_user_attr(trial_id, name, value)
        with self._lock:
            self._mine.add(trial_id)

    def add(
        self,
        params: Configuration,
        attributes: JsonObject,
        outcome: Outcome,
        intermediate: Mapping[int, float] | None = None,
    ) -> None:
        """Write a trial that was run before, in one go; see `finish`."""
        told = self._template(
            *self._state(outcome, params, False), params, {**attributes, **self._worker()}, intermediate
        )
        self.study.add_trial(told)

    def finish(
        self,
        number: int,
        attributes: JsonObject,
        outcome: Outcome,
        intermediate: Mapping[int, float] | None = None,
        healthy: bool = False,
    ) -> None:
        """Write the result, then the state.

        A trial that somebody closed meanwhile, who took us for dead, stays as it is.

        Args:
            number: of the trial.
            attributes: of the result.
            outcome: of the trial; see `state_of` for its value.
            intermediate: step -> value; each is a transaction of its own, so of many an even share is written.
            healthy: whether it was looked at for health, not merely for the failure under study.
        """
        trial_id = self._of(number)
        trial = self._kept.get_trial(trial_id)
        besides = len(trial.user_attrs.get(BESIDES, ()))
        with suppress(UpdateFinishedTrialError):
            for name, value in attributes.items():
                self._kept.set_trial_user_attr(trial_id, name, value)
            for step, value in even_share(intermediate or {}, MOST_INTERMEDIATE).items():
                self._kept.set_trial_intermediate_value(trial_id, step, value)
        self._close(trial_id, *self._state(outcome, trial.params, healthy, besides))

    def _state(
        self, outcome: Outcome, params: Configuration, healthy: bool, besides: int = 0
    ) -> tuple[TrialState, Sequence[float] | None]:
        """State and value of a trial. A study that an earlier version began goes on with its values: 1 fails, 0 passes,
        to be maximized."""
        state, values = state_of(outcome, given_up(params, self.factors, self._weights, besides), healthy)
        if values is not None and self.study.direction is StudyDirection.MAXIMIZE:
            values = [1.0 if outcome is Outcome.FAIL else 0.0]
        return state, values

    def void(self, number: int, why: Void) -> None:
        """Close a running trial that has no result; one that has ended meanwhile keeps its own."""
        trial_id = self._of(number)
        with suppress(UpdateFinishedTrialError):
            self._kept.set_trial_user_attr(trial_id, "outcome", why.value)
        self._close(trial_id, TrialState.FAIL, None)

    def _close(self, trial_id: int, state: TrialState, values: Sequence[float] | None) -> None:
        with suppress(UpdateFinishedTrialError):
            self._kept.set_trial_state_values(trial_id, state=state, values=values)
        with self._lock:
            self._mine.discard(trial_id)

    def _of(self, number: int) -> int:
        return self._kept.get_trial_id_from_study_id_trial_number(self._id, number)

    def _worker(self) -> JsonObject:
        return {"worker": {**this_process(), "run": self._run}}

    def _template(
        self,
        state: TrialState,
        values: Sequence[float] | None,
        params: Configuration,
        attributes: JsonObject,
        intermediate: Mapping[int, float] | None = None,
    ) -> FrozenTrial:
        distributions = {name: self.distributions[name] for name in params}
        return create_trial(
            state=state, values=values, params=dict(params), distributions=distributions, user_attrs=dict(attributes),
            intermediate_values=even_share(intermediate or {}, MOST_INTERMEDIATE),
        )  # fmt: skip

    # --------------------------------------------------------------------------------- the living and the dead

    @contextmanager
    def alive(self) -> Iterator[None]:
        """While it lasts, others are told that our running trials live, and Ctrl-C leaves no transaction half done."""
        stop = threading.Event()

        def heart() -> None:
            while not stop.wait(BEAT_SECONDS):
                self.beat()

        threading.Thread(target=heart, name="bisect-cfg-heart", daemon=True).start()
        _LIVE_RUNS.add(self._run)
        try:
            with interrupts.obeyed():
                yield
        finally:
            _LIVE_RUNS.discard(self._run)
            stop.set()

    def beat(self) -> None:
        """Tell others that our running trials live."""
        with self._lock:
            mine = list(self._mine)
        for trial_id in mine:
            with suppress(UpdateFinishedTrialError):
                self._kept.set_trial_user_attr(trial_id, "beat", round(time.time(), 1))

    def abandoned(self, asked: str) -> list[FrozenTrial]:
        """Running trials of dead processes; see `trials`."""
        return [trial for trial in self._all(asked) if trial.state is TrialState.RUNNING and self._is_dead(trial)]

    def _is_dead(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get("worker") or {}
        here = this_process()
        if worker.get("host") != here["host"]:
            beat = trial.user_attrs.get("beat")
            known, since = self._beats.get(trial.number, (None, 0.0))
            if trial.number not in self._beats or known != beat:
                self._beats[trial.number] = (beat, time.monotonic())  # our clock: theirs may be wrong
                return False
            return time.monotonic() - since > SILENCE_SECONDS
        if same_process(worker, here):
            return worker.get("run") not in _LIVE_RUNS
        return not is_running(worker)


def _open(
    storage: str | optuna.storages.BaseStorage | None, name: str | None
) -> tuple[optuna.storages.BaseStorage, optuna.Study]:
    """Create or load the study."""

    def opened() -> tuple[optuna.storages.BaseStorage, optuna.Study]:
        kept = optuna.storages.get_storage(open_storage(storage) if isinstance(storage, str) else storage)
        study = optuna.create_study(
            storage=kept,
            study_name=name or (None if storage is None else "bisection"),
            direction="minimize",
            load_if_exists=True,
        )
        if study.metric_names is None and study.direction is StudyDirection.MINIMIZE:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                study.set_metric_names([OBJECTIVE])
        return kept, study

    return patiently(opened)


def even_share(values: Mapping[int, float], most: int) -> dict[int, float]:
    """So many of the values, evenly spaced, with the first and the last."""
    steps = list(values)
    if len(steps) > most:
        steps = [steps[number * (len(steps) - 1) // (most - 1)] for number in range(most)]
    return {step: values[step] for step in steps}


def _has_room(distribution: BaseDistribution, value: Value) -> bool:
    """Whether an int or float distribution of ours, which has no steps but whole numbers, holds a value."""
    whole = isinstance(distribution, optuna.distributions.IntDistribution)
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    return number and distribution.low <= value <= distribution.high
