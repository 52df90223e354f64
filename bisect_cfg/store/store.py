"""The store: every run of a study, written in one place, an Optuna study, by one process at a time.

Each run is a trial of the Optuna study, whatever it was for: the two baselines, the search, proofs, safe values. Its
number is that of its folder, its parameters are the factors with their values, so that Optuna's dashboard and samplers
understand them, and its user attributes say what was asked and what came of it. The attribute that holds its question
tells its phase (`encoding.SUBSET`, `WANTED`, `SAFE`, `QUESTION`). Every decision is recomputed from these trials:
resuming after a crash means reading the study.

*Crashes.* A trial is written as RUNNING, with its question, in one transaction before it starts, and its result before
its state changes. Whoever is killed leaves either a finished trial or a RUNNING one, which the next writer closes as
lost and asks again.

*One writer.* While a store is `alive`, a locked file names its process; a second process is told which one that is.

*Why not `Study.ask`.* It writes an empty trial first, and each parameter and attribute after it, in transactions of
their own. A process that dies in between leaves a trial of which nobody can say what was asked.
"""

from __future__ import annotations

import contextlib
import enum
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from bisect_cfg import interrupts
from bisect_cfg.common.configuration import UNSET, Configuration, Factor, Outcome, Value
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import mask
from bisect_cfg.store.encoding import (
    OBJECTIVE,
    QUESTION,
    SHOWN,
    WORSE,
    as_text,
    distribution_of,
    state_of,
    stored_value,
)
from bisect_cfg.store.storage import Held, locked, open_storage, patiently, place_of

MOST_INTERMEDIATE = 50
"""Steps of a trial that Optuna is given: each is a transaction of some 1.2 ms in SQLite, and more make no curve
plainer. The trial's folder has them all."""

KEY = "key"
"""Attribute of a study: what the file is called that its writer locks."""

CONCLUDED = "concluded"
"""Attribute of a study: what was concluded, for whoever reads the storage."""


class StudyMismatch(ValueError):
    """The study in the storage was made for something else."""


class StudyHeld(RuntimeError):
    """Another process writes to this study."""


class Void(enum.StrEnum):
    """Why a trial that was begun has no result, and counts for nothing. The values are what studies record."""

    LOST = "lost"
    """Its process died."""
    INTERRUPTED = "interrupted"
    NOT_NEEDED = "not needed"
    """Its result could not change anything any more."""
    SHOWN = "shown"
    """It is a run of before once more, for Optuna's tools; see `Store.show`."""


VOID = frozenset(why.value for why in Void)
"""Outcomes of trials that count for nothing."""


class Store:
    """One study, read and written.

    Args:
        factors: see `vary`.
        storage: an Optuna storage or its URL; None keeps the study in memory.
        study_name: several bisections may share a storage under different names.
        identity: see `settle`.

    Raises:
        StudyMismatch: the study exists and was made for other factors or levels, or for something else.
    """

    def __init__(
        self,
        factors: Sequence[Factor],
        storage: str | optuna.storages.BaseStorage | None,
        study_name: str | None,
        identity: JsonObject | None = None,
    ) -> None:
        optuna.logging.set_verbosity(max(optuna.logging.get_verbosity(), optuna.logging.WARNING))
        self.storage, self.study = _open(storage, study_name)
        self._id = self.storage.get_study_id_from_name(self.study.study_name)
        self._alive = False
        self.lost: list[FrozenTrial] = []  # what a dead process had left running when this store came alive
        self.vary(factors)
        if factors or identity:
            self.settle(identity or {})

    def vary(self, factors: Sequence[Factor]) -> None:
        """From now on these vary, in the user's order, and trials have them as parameters."""
        self.factors = tuple(factors)
        self.levels = {factor.name: (factor.good, factor.bad) for factor in self.factors}
        self.distributions = {factor.name: distribution_of(factor) for factor in self.factors}

    def settle(self, identity: JsonObject) -> None:
        """See that what is studied is what was, and write it down if nothing was yet: the search begins. `identity` is
        what is studied beside the factors (name of a part -> value that JSON can hold).

        Raises:
            StudyMismatch: something differs.
        """
        known, factors = self.study.user_attrs.get("identity", {}), self.study.user_attrs.get("factors")
        mine = {f.name: [as_text(mask(f.good, f.name)), as_text(mask(f.bad, f.name))] for f in self.factors}
        recorded = {name: one for trial in self.trials() for name, one in trial.distributions.items()}
        others = sorted(part for part, value in identity.items() if known.get(part, value) != value)
        changed = sorted(name for name in {*mine, *(factors or mine)} if mine.get(name) != (factors or mine).get(name))
        what = ""
        if others:
            what = f"is of something else: not the same {', '.join(others)}"
        elif changed:
            what = f"was made for other configurations: {', '.join(changed)} differ"
        elif any(recorded.get(name, one) != one for name, one in self.distributions.items()):
            what = "was made by another version"
        if what:
            advice = "Use another study name or storage for this bisection."
            raise StudyMismatch(f"the study {self.study.study_name!r} {what}. {advice}")
        if identity and not known:
            self.study.set_user_attr("identity", dict(identity))
        if factors is None:
            self.study.set_user_attr("factors", mine)

    def forget_factors(self) -> None:
        """From now on others may vary: the search begins anew, and no trial so far counts for it."""
        self.study.set_user_attr("factors", None)

    # ------------------------------------------------------------------------------------------------- reading

    def trials(self, asked: str = "") -> list[FrozenTrial]:
        """The trials whose question is in this attribute (all of them without one), running ones included, without
        those that are void."""
        return [
            trial
            for trial in self.storage.get_all_trials(self._id, deepcopy=False)
            if (not asked or asked in trial.user_attrs) and trial.user_attrs.get("outcome") not in VOID
        ]

    def count(self) -> int:
        """How many runs there are, whatever they were for, running ones included."""
        return len(self.trials())

    def number_of(self, question: str) -> int | None:
        """The number of the last finished trial that answers this `QUESTION`; None if there is none."""
        asked = (trial for trial in self.trials(QUESTION) if trial.user_attrs[QUESTION] == question)
        return max((trial.number for trial in asked if trial.state.is_finished()), default=None)

    def params(self, configuration: Configuration) -> dict[str, Value]:
        """The factors' values as Optuna stores them."""
        return {factor.name: stored_value(factor, configuration.get(factor.name, UNSET)) for factor in self.factors}

    # ------------------------------------------------------------------------------------------------- writing

    def begin(self, params: Configuration, attributes: JsonObject) -> FrozenTrial:
        """Write a trial as RUNNING, whole, before it starts: the values of its factors, and what is asked."""
        template = self._template(TrialState.RUNNING, None, params, attributes)
        return self.storage.get_trial(self.storage.create_new_trial(self._id, template_trial=template))

    def take(self, number: int, attributes: JsonObject) -> None:
        """Write what is asked into a trial that Optuna has begun by itself."""
        for name, value in attributes.items():
            self.storage.set_trial_user_attr(self._of(number), name, value)

    def add(self, params: Configuration, attributes: JsonObject, outcome: Outcome) -> None:
        """Write a trial that was run before, in one go; see `finish`."""
        self.study.add_trial(self._template(*state_of(outcome, bool(params)), params, attributes))

    def show(self, numbers: Iterable[int], configuration: Callable[[int], Configuration], best: int | None) -> None:
        """Write finished runs once more, for Optuna's own tools; here these trials count for nothing.

        Those of the two ends have no parameters, which were not known when they ran: without them it is chance what
        `optuna.importance` makes of the others. And which run completes what is recommended shows at the end: `best` is
        to be Optuna's best trial.
        """
        known = self.storage.get_all_trials(self._id, deepcopy=False)
        shown = {trial.user_attrs[SHOWN] for trial in known if SHOWN in trial.user_attrs}
        for number in dict.fromkeys([*numbers, best]):
            if number is None or number in shown:
                continue
            state, values = state_of(Outcome(known[number].user_attrs["outcome"]), True)
            if number == best:  # not above any that was recommended before
                before = [trial.value for trial in known if trial.system_attrs.get(WORSE) == 0]
                values = [min([value for value in before if value is not None], default=1.0) - 1.0]
            attributes = {"outcome": Void.SHOWN.value, SHOWN: number}
            template = self._template(state, values, self.params(configuration(number)), attributes)
            template.system_attrs = {WORSE: int(number != best)}
            self.study.add_trial(template)

    def finish(
        self, number: int, attributes: JsonObject, outcome: Outcome, intermediate: Mapping[int, float] | None = None
    ) -> None:
        """Write the result of a trial, then its state. Of many intermediate values (step -> value) an even share is
        written."""
        trial_id, told = self._of(number), intermediate or {}
        steps = list(told)
        if len(steps) > MOST_INTERMEDIATE:
            last = MOST_INTERMEDIATE - 1
            steps = [steps[place * (len(steps) - 1) // last] for place in range(MOST_INTERMEDIATE)]
        with contextlib.suppress(UpdateFinishedTrialError):
            for name, value in attributes.items():
                self.storage.set_trial_user_attr(trial_id, name, value)
            for step in steps:
                self.storage.set_trial_intermediate_value(trial_id, step, told[step])
            self.storage.set_trial_system_attr(trial_id, WORSE, 1)
            state, values = state_of(outcome, bool(self.storage.get_trial(trial_id).params))
            self.storage.set_trial_state_values(trial_id, state, values)

    def void(self, number: int, why: Void) -> None:
        """Close a running trial that has no result; one that has ended meanwhile keeps its own."""
        with contextlib.suppress(UpdateFinishedTrialError):
            self.storage.set_trial_user_attr(self._of(number), "outcome", why.value)
            self.storage.set_trial_state_values(self._of(number), TrialState.FAIL)

    def conclude(self, concluded: JsonObject) -> None:
        """Keep what was concluded; nothing is ever decided by it."""
        if self.study.user_attrs.get(CONCLUDED) != concluded:
            self.study.set_user_attr(CONCLUDED, concluded)

    def _of(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _template(
        self, state: TrialState, values: Sequence[float] | None, params: Configuration, attributes: JsonObject
    ) -> FrozenTrial:
        distributions: dict[str, BaseDistribution] = {name: self.distributions[name] for name in params}
        return create_trial(
            state=state, values=values, params=dict(params), distributions=distributions, user_attrs=dict(attributes)
        )

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """While it lasts this store is the study's writer, and Ctrl-C leaves no transaction half done. What a dead
        writer has left running is closed first.

        Raises:
            StudyHeld: another one is.
        """
        with contextlib.ExitStack() as held:
            held.enter_context(interrupts.obeyed())
            if not self._alive:  # else a phase within a pass that holds the study already
                try:
                    held.enter_context(locked(place_of(self.study.user_attrs[KEY]), passing=True))
                except Held as error:
                    raise StudyHeld(
                        f"{error} is working in the study {self.study.study_name!r}: wait for it, or end it"
                    ) from None
                held.callback(setattr, self, "_alive", False)
                self._alive = True
                self.lost = [trial for trial in self.trials() if trial.state is TrialState.RUNNING]
                for trial in self.lost:
                    self.void(trial.number, Void.LOST)
            yield


def _open(
    storage: str | optuna.storages.BaseStorage | None, name: str | None
) -> tuple[optuna.storages.BaseStorage, optuna.Study]:
    """Create or load the study."""

    def opened() -> tuple[optuna.storages.BaseStorage, optuna.Study]:
        kept = optuna.storages.get_storage(open_storage(storage) if isinstance(storage, str) else storage)
        name_here = name or (None if storage is None else "bisection")
        study = optuna.create_study(storage=kept, study_name=name_here, direction="minimize", load_if_exists=True)
        if KEY not in study.user_attrs:
            study.set_user_attr(KEY, uuid.uuid4().hex)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                study.set_metric_names([OBJECTIVE])
        return kept, study

    return patiently(opened)
