"""The runs of this phase, in the same Optuna study as the search.

They carry no "subset", so the search never mistakes them for its own; what they ran is in the attribute "recommend",
with the values of the factors as parameters wherever Optuna's distribution has room for them, so that the dashboard
shows them on the way between good and bad.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from bisect_cfg.configuration import UNSET, Factor, Outcome, equal
from bisect_cfg.recommend.runs import Question, Ran, key_of
from bisect_cfg.study.encoding import distribution_of, is_running, state_of, stored_value, this_process

ATTRIBUTE = "recommend"


class Runs:
    """The phase's trials of one study.

    Args:
        study: of the bisection.
        factors: of the bisection.
    """

    def __init__(self, study: optuna.Study, factors: Sequence[Factor]) -> None:
        self._factors = tuple(factors)
        self._storage, self._study_id = study._storage, study._study_id

    def trials(self) -> list[FrozenTrial]:
        """All of them, lost and interrupted ones left out."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        return [t for t in trials if ATTRIBUTE in t.user_attrs and t.user_attrs.get("outcome") not in _VOID]

    def ran(self) -> list[Ran]:
        """What the plan is made from."""
        return [_ran(trial) for trial in self.trials() if trial.state.is_finished()]

    def start(self, question: Question, mode: str) -> int:
        """Write a run before it starts.

        Args:
            question: what is asked.
            mode: how it meets the full learning rate, for people.

        Returns:
            Its number in the study.
        """
        params, distributions = self._params(question.configuration)
        asked = {
            "configuration": question.configuration,
            "seed": question.seed,
            "steps": question.steps,
            "part": question.part,
            "mode": mode,
        }
        attributes = {
            ATTRIBUTE: json.loads(json.dumps(asked, default=repr)),
            "purpose": f"recommend: {question.part}",
            "reason": question.reason,
            "worker": this_process(),
        }
        template = create_trial(
            state=TrialState.RUNNING, params=params, distributions=distributions, user_attrs=attributes
        )
        trial_id = self._storage.create_new_trial(self._study_id, template_trial=template)
        return self._storage.get_trial(trial_id).number

    def finish(self, number: int, values: Mapping[str, Any], outcome: Outcome) -> None:
        """Write what came of it, then its state.

        Args:
            number: of the trial.
            values: attributes: "seconds", "signature", "attributes", "failed_at", "text", ...
            outcome: PASS if it was healthy.
        """
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        for name, value in {**values, "outcome": outcome.value}.items():
            self._storage.set_trial_user_attr(trial_id, name, json.loads(json.dumps(value, default=repr)))
        state, objective = state_of(outcome)
        self._storage.set_trial_state_values(trial_id, state=state, values=objective)

    def void(self, number: int, why: str) -> None:
        """Close a run that has no result; one that has ended meanwhile keeps its own."""
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(trial_id, "outcome", why)
            self._storage.set_trial_state_values(trial_id, state=TrialState.FAIL)

    def abandoned(self) -> list[FrozenTrial]:
        """Runs that a process which lives no longer left unfinished."""
        here, found = this_process(), []
        for trial in self.trials():
            worker = trial.user_attrs.get("worker") or {}
            if trial.state.is_finished() or worker.get("host") != here["host"]:
                continue
            if worker.get("pid") == here["pid"] or not is_running(worker):
                found.append(trial)
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row a run, as in the report of the bisection."""
        for trial in self.trials():
            if not trial.state.is_finished():
                continue
            attributes, asked = trial.user_attrs, trial.user_attrs[ATTRIBUTE]
            configuration = asked["configuration"]
            yield {
                "number": trial.number,
                "outcome": attributes["outcome"],
                "signature": attributes.get("signature"),
                "seconds": float(attributes.get("seconds") or 0.0),
                "step": attributes.get("step"),
                "purpose": attributes["purpose"],
                "reason": attributes["reason"],
                "companions": "",
                **{f.name: configuration.get(f.name, f.bad) for f in self._factors},
            }

    def details(self) -> dict[int, dict[str, Any]]:
        """By number, what else is worth keeping of a run: what it set beside the factors, its seed, why it was not
        healthy."""
        names = {factor.name for factor in self._factors}
        found = {}
        for trial in self.trials():
            asked = trial.user_attrs[ATTRIBUTE]
            extra = {name: value for name, value in asked["configuration"].items() if name not in names}
            found[trial.number] = {
                **(trial.user_attrs.get("attributes") or {}),
                "extra": extra,
                "seed": asked["seed"],
                "text": trial.user_attrs.get("text", ""),
            }
        return found

    def _params(self, configuration: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        params: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        for factor in self._factors:
            value, distribution = configuration.get(factor.name, UNSET), distribution_of(factor)
            level = "good" if equal(value, factor.good) else "bad" if equal(value, factor.bad) else None
            if level is not None:
                params[factor.name] = stored_value(factor, level)
            elif not isinstance(distribution, CategoricalDistribution) and distribution._contains(value):
                params[factor.name] = value
            else:
                continue  # a known alternative: Optuna's choices are fixed
            distributions[factor.name] = distribution
        return params, distributions


NOT_NEEDED = "not needed"
"""Of a run that was ended because its result could not change anything any more."""

_VOID = ("lost", "interrupted", NOT_NEEDED)


def _ran(trial: FrozenTrial) -> Ran:
    attributes, asked = trial.user_attrs, trial.user_attrs[ATTRIBUTE]
    return Ran(
        key_of(asked["configuration"], asked["seed"]),
        asked["steps"],
        attributes["outcome"] == Outcome.PASS.value,
        trial.number,
        attributes.get("failed_at"),
        attributes.get("text", ""),
        float(attributes.get("seconds") or 0.0),
    )
