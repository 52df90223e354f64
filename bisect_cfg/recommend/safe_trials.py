"""The trials of this phase, in the same store as those of the search.

They carry no "subset", so the search never takes them for its own; what they ran is in the attribute "recommend", with
the values of the factors as parameters wherever Optuna's distribution has room for them, so that the dashboard shows
them on the way between good and bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optuna.trial import FrozenTrial

from bisect_cfg.common.configuration import Outcome, Purpose, Value
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import mask
from bisect_cfg.recommend.attempts import Attempt, Ran
from bisect_cfg.store.causes import TrialRow
from bisect_cfg.store.encoding import SAFE, plain, purpose_of, values_of
from bisect_cfg.store.store import BESIDES, Store


class SafeTrials:
    """Those of one study.

    Args:
        store: of the study.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def all(self) -> list[FrozenTrial]:
        """All that count, running ones included."""
        return self.store.trials(SAFE)

    def ran(self) -> list[Ran]:
        """What the plan is made from."""
        return [self._ran(trial) for trial in self.all() if trial.state.is_finished()]

    def start(self, attempt: Attempt, mode: str) -> int:
        """Write a run before it starts.

        Args:
            attempt: what is asked.
            mode: how it meets the full learning rate, for people.

        Returns:
            Its number in the study.
        """
        asked = {
            "configuration": {name: mask(value, name) for name, value in attempt.configuration.items()},
            "seed": attempt.seed,
            "steps": attempt.steps,
            "part": attempt.aim,
            "mode": mode,
        }
        purpose = {"purpose": Purpose.RECOMMEND.value, "run": attempt.aim.value}
        attributes = {SAFE: plain(asked), **purpose, "reason": attempt.reason}
        attributes[BESIDES] = [name for name in attempt.configuration if name not in self.store.distributions]
        return self.store.begin(self.store.params(attempt.configuration), attributes).number

    def finish(
        self, number: int, values: JsonObject, outcome: Outcome, intermediate: Mapping[int, float] | None = None
    ) -> None:
        """Write what came of it.

        Args:
            number: of the trial.
            values: attributes: "seconds", "signature", "attributes", "failed_at", "text", ...
            outcome: PASS if it was healthy.
            intermediate: as in `TrialResult`.
        """
        self.store.finish(number, plain({**values, "outcome": outcome.value}), outcome, intermediate, healthy=True)

    def rows(self) -> Iterator[TrialRow]:
        """One row a run, as in the report of the bisection."""
        for trial in self.all():
            if not trial.state.is_finished():
                continue
            attributes = trial.user_attrs
            yield TrialRow(
                trial.number,
                Outcome(attributes["outcome"]),
                attributes.get("signature"),
                float(attributes.get("seconds") or 0.0),
                attributes.get("step"),
                *purpose_of(trial),
                attributes["reason"],
                values=values_of(trial, self.store.levels) or {},
            )

    def details(self) -> dict[int, JsonObject]:
        """By number, what else is worth keeping of a run: what it set beside the factors, its seed, why it was not
        healthy."""
        names = {factor.name for factor in self.store.factors}
        found = {}
        for trial in self.all():
            asked = trial.user_attrs[SAFE]
            extra = {name: value for name, value in asked["configuration"].items() if name not in names}
            found[trial.number] = {
                **(trial.user_attrs.get("attributes") or {}),
                "extra": extra,
                "seed": asked["seed"],
                "text": trial.user_attrs.get("text", ""),
            }
        return found

    def _configuration(self, trial: FrozenTrial) -> dict[str, Value]:
        """What a run was asked with: secrets, which stand in no study, as the factors have them."""
        found = dict(trial.user_attrs[SAFE]["configuration"])
        for factor in self.store.factors:
            for level in (factor.bad, factor.good):
                shown = mask(level, factor.name)
                if shown != level and found.get(factor.name) == shown:
                    found[factor.name] = level
                    break
        return found

    def _ran(self, trial: FrozenTrial) -> Ran:
        attributes, asked = trial.user_attrs, trial.user_attrs[SAFE]
        return Ran(
            self._configuration(trial),
            asked["seed"],
            asked["steps"],
            attributes["outcome"] == Outcome.PASS.value,
            trial.number,
            attributes.get("failed_at"),
            attributes.get("text", ""),
            float(attributes.get("seconds") or 0.0),
            (attributes.get("attributes") or {}).get("observation", {}).get("steps"),
        )
