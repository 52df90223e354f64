"""The trials of a study: what they have in common, how each is planned, and what its run means.

A phase that learns something of all trials (their factors, the failure under study, where they begin, how long they
run) sets it here. `Trials` is also the `Runner` that the search asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from bisect_cfg.common.configuration import Configuration, Outcome, Value, equal, present
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import FailingData, Opened, Origin
from bisect_cfg.runner.environments import CannotBuild
from bisect_cfg.runner.orders import inside
from bisect_cfg.runner.plan import Plan, Result
from bisect_cfg.runner.runs import Run, result_of
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Observation, Standard, judge
from bisect_cfg.store.inputs import Inputs
from bisect_cfg.store.interface import Engine, TrialRequest, TrialResult, run_alone
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import PACKAGE, Mixtures, line_of

HORIZON_FACTOR = 2
HORIZON_MARGIN = 4
"""A trial runs for twice the steps after which the bad configuration fails, and at least four more: other settings can
delay a failure (a warmup, a stronger clip) without being its cause."""

STRETCH = 2
"""Runs on which the answer rests go on for this many horizons: a failure that is only delayed shows itself there."""

COLD_CHECK = "cold_check"
"""Attribute of a result: see `Result.check`."""

CHECKS_CONFIGS = frozenset({"trl", "transformers", "accelerate", "torch"})
"""Packages that decide whether a training config can be built."""


def horizon_for(step: int) -> int:
    """Steps a trial runs when the bad configuration fails at `step` (counted from 1)."""
    return max(HORIZON_FACTOR * step, step + HORIZON_MARGIN)


@dataclass(frozen=True)
class Packages:
    """What trials with other packages need."""

    own: Mapping[str, str]  # canonical name -> level, all that the user has installed
    mixtures: Mixtures  # which mixtures of both environments are valid
    varied: bool = True  # whether packages are factors: then all trials run in environments that were built

    def lines(self, levels: Mapping[str, Value]) -> list[str]:
        """The requirements of an environment in which these packages are not as the user has them."""
        levels = {**self.own, **levels}
        return [line_of(name, str(level)) for name, level in levels.items() if level is not None]


class Lost(InputError):
    """A run whose machine was lost each time that it was tried; which machines, is said."""

    def __init__(self, nodes: Sequence[str]) -> None:
        super().__init__(
            f"Its machine was lost each of {len(nodes)} times ({', '.join(nodes)}).",
            "What the trial does may take its machine down, or a place on it: the memory that is left there is the "
            "first thing to look at. The same command goes on.",
        )


class PlanEngine(Engine[Plan, Result], Protocol):
    """Runs plans. Its `site` says what can be built and forked where they run; `cluster` is what result.json says of
    where that is, None for this machine."""

    site: Site

    @property
    def cluster(self) -> JsonObject | None: ...


class Trials:
    """See the module; `engine` runs them."""

    def __init__(self, engine: PlanEngine, settings: Factors | None = None) -> None:
        self.engine, self.known_settings = engine, settings  # what varies; None before it is known
        self.inputs: Inputs | None = None  # what the runs read, compared around each of them
        self.standard = Standard()  # what runs are held against
        self.packages: Packages | None = None  # None where no trial has packages of its own
        self.horizon: int | None = None  # steps of a trial; None before the failure was seen
        self.origin: Origin | None = None  # where trials begin; None: at the beginning of the training
        self.failed: Run | None = None  # showed the failure under study; all trials take its data first
        self.needs_training = False  # whether that data alone was seen not to do it
        self.longest_first = False  # whether the failing run takes the longest rows first, and so all do
        self._outcomes: dict[tuple[str, Standard], Outcome] = {}

    @property
    def settings(self) -> Factors:
        """What varies, once it is known."""
        return present(self.known_settings)

    @property
    def site(self) -> Site:
        """Where it is asked what can be built and forked."""
        return self.engine.site

    # ----------------------------------------------------------------------------------------------------- planning

    def whole(self, plan: Plan) -> Plan:
        """A plan with what all trials have in common, ready to be run.

        Raises:
            InputsChanged: what the trials read is not what it was.
        """
        settings, configuration = self.known_settings, plan.configuration
        plan = replace(plan, origin=self.origin, standard=self.standard, failing=self._failing_data())
        if self.inputs is not None:
            self.inputs.check()
            plan = replace(plan, opened=self.inputs.to_note())
        if settings is None:
            return plan
        overrides = settings.overrides(configuration) if plan.overrides is None else plan.overrides
        plan = replace(plan, overrides=overrides, requirements=self._requirements(inside(PACKAGE, overrides)))
        work = settings.work(configuration) / settings.work(settings.good)
        return replace(plan, targets=settings.targets, work=work, repeats=configuration == settings.bad)

    def _failing_data(self) -> FailingData | None:
        """What a trial takes first. From step 0 on, what the training before contributes to may take as long as it
        took."""
        begun, failed = (0 if self.origin is None else self.origin.step), self.failed
        found = None if failed is None else failed.data_after(begun)
        if self.longest_first and (found is None or not found.rows):
            found = replace(found or FailingData([]), longest=True)
        if found is None or failed is None or self.origin is not None:
            return found
        return replace(found, steps=None) if self.needs_training or failed.shown.silent else found

    def _requirements(self, levels: Mapping[str, Value]) -> list[str] | None:
        packages = self.packages
        return packages.lines(levels) if packages is not None and (levels or packages.varied) else None

    def begin_at(self, origin: Origin | None, horizon: int | None = None) -> None:
        """From now on trials begin there (None: at step 0), and make so many steps from there."""
        self.origin = origin
        self.horizon = self.horizon if horizon is None else horizon

    # ------------------------------------------------------------------------------------------------------ running

    def train(self, plan: Plan) -> Run:
        """Run a plan, and nothing beside it; see `run_of`."""
        return self.run_of(run_alone(self.engine, self.whole(plan)))

    def run_of(self, result: Result) -> Run:
        """The run that a result is of.

        Raises:
            CannotBuild: there is none, as its packages cannot be installed together.
            Lost: there is none, as its machine was lost each time.
            InputsChanged: what the trials read is not what it was; this run does not count.
        """
        if result.refused:
            raise CannotBuild(result.refused)
        if result.lost:
            raise Lost(result.lost)
        run = present(self.site.load(result.name))
        if self.inputs is not None:  # one that changed before the script was read makes this no evidence
            self.inputs.after_run(run.traces.all(Opened))
            self.inputs.check()
        return run

    def asked(self, request: TrialRequest) -> Plan:
        """The plan of a trial of the search."""
        steps = self.horizon and self.horizon * (STRETCH if request.purpose.proves else 1)
        return self.whole(Plan(request.number, request.configuration, steps, sure=True))

    def told(self, result: Result) -> TrialResult:
        """What a trial of the search came to, judged by the failure under study."""
        try:
            judged = self.judged(self.run_of(result))
        except (CannotBuild, Lost) as error:
            kind = "invalid" if isinstance(error, CannotBuild) else "lost"
            return TrialResult(Outcome.UNRESOLVED, str(Signature(kind, "", str(error))), str(error))
        check = {COLD_CHECK: result.check} if result.check else {}
        return replace(judged, attributes={**judged.attributes, **check})

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial of the search, and nothing beside it."""
        return self.told(run_alone(self.engine, self.asked(request)))

    def is_valid(self, configuration: Configuration) -> str | None:
        """Why a configuration cannot be run, None if nothing is known against it. Trains nothing."""
        packages, good = self.packages, self._good_packages(configuration)
        if packages is not None and packages.varied:
            wrong = packages.mixtures.error(lambda name: name not in good)
            if wrong is not None:
                return wrong
        if not self.settings.seen or good & CHECKS_CONFIGS:
            return None  # what other versions of these make of a config, a trial shows
        return self.site.checks.error(self.settings.build_request(configuration))

    def _good_packages(self, configuration: Configuration) -> set[str]:
        """The packages that vary and are as on the good side."""
        good = {name: level for name, level in self.settings.good.items() if name.startswith(PACKAGE)}
        return {name.removeprefix(PACKAGE) for name, level in good.items() if equal(configuration.get(name), level)}

    # ------------------------------------------------------------------------------------------------------ judging

    def judged(self, run: Run) -> TrialResult:
        """The result of a run under the failure under study."""
        result = result_of(run, run.judged(self.standard))
        self._see(result)
        return result

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Take in, in their order, what the results of earlier passes have shown of how trials must be run, so that a
        study that is resumed goes on as it would have."""
        for result in results:
            check = result.attributes.get(COLD_CHECK)
            if check is not None:
                self.site.see_cold(str(result.signature), check)
            self._see(result)

    def _see(self, result: TrialResult) -> None:
        """A failure that comes later than trials used to run makes later ones longer."""
        step = result.step if result.outcome is Outcome.FAIL else None
        if step is not None and self.horizon and step > self.horizon:
            self.horizon = horizon_for(step)

    def classify(self, result: TrialResult, mask: int = 0, reference: TrialResult | None = None) -> Outcome:
        """What a recorded result means by what is known now, whatever its subset; see `Runner`.

        What could not be started has no observation, and in a shared storage the metric rows lie in the folder of
        whoever ran the trial: there what was said then stands.
        """
        told = result.attributes.get("observation")
        if told is None:
            return result.outcome
        key = result.attributes["folder"], self.standard
        if key not in self._outcomes:
            traces = Traces(self.site.folder / "trials" / key[0])
            traces.read()
            if told["steps"] and not traces.metrics.rows:
                self._outcomes[key] = result.outcome
            else:
                seen = msgspec.convert(told, Observation)
                self._outcomes[key] = judge(seen, traces.as_metrics, self.standard).outcome
        return self._outcomes[key]
