"""What runs the trials of a study, whatever is run: what the phases know of the two runners, and what these share."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import shlex
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from bisect_cfg.capture.distributions import PACKAGE
from bisect_cfg.capture.settings import Settings
from bisect_cfg.capture.target import Sides
from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.configuration import Configuration, Outcome, equal
from bisect_cfg.jsonfile import make_folder, write_text
from bisect_cfg.probe.protocol import Encoded
from bisect_cfg.runner.environments import CannotBuild, Environment
from bisect_cfg.runner.plan import Known, Plan
from bisect_cfg.runner.runs import Pauses, Run, load_run, result_of
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.supervisor import Supervisor
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Metrics, Observation, Standard, judge
from bisect_cfg.store.interface import TrialRequest, TrialResult

HORIZON_FACTOR = 2
HORIZON_MARGIN = 4
"""A trial runs for twice the steps after which the bad configuration fails, and at least four more: other
settings can delay a failure (a warmup, a stronger clip) without being its cause."""

STRETCH = 2
"""Runs on which the answer rests go on for this many horizons: a failure that is only delayed shows itself there."""

COLD_CHECK = "cold_check"
"""Attribute of a result: what `TrialRunner.sure` says of it. Where that is "other", later trials start cold."""

Progress = Callable[[int | str, Sequence[Row], int | None], None]
"""Called with trial number, rows of metrics so far and horizon while a trial runs."""


def horizon_for(step: int) -> int:
    """Steps a trial runs when the bad configuration fails at `step` (counted from 1)."""
    return max(HORIZON_FACTOR * step, step + HORIZON_MARGIN)


def inside(namespace: str, overrides: Mapping[str, Encoded]) -> dict[str, Encoded]:
    """The overrides of one namespace, by the rest of their names."""
    return {name.removeprefix(namespace): v for name, v in overrides.items() if name.startswith(namespace)}


class TrialRunner(ABC):
    """Runs the trials of one study.

    Args:
        folder: the study folder.
        timeout: seconds of silence that are called a hang; None: the runner tells by the runs so far.
        devices: values of CUDA_VISIBLE_DEVICES for the parallel trials, handed out in turn; empty: leave it.
        on_progress: see `Progress`.
        watched: whether a probe watches what is started.

    Attributes:
        known: of what is run and its failure; see `learn`.
    """

    def __init__(
        self, folder: Path, timeout: float | None, devices: Sequence[str], on_progress: Progress, *, watched: bool
    ) -> None:
        self.folder = folder
        self.known = Known()
        self._timeout, self._on_progress = timeout, on_progress
        self._supervisor = Supervisor(watched)
        self._seen = Pauses.of(folder)
        self._interrupted = threading.Event()
        self._unneeded: set[int | str] = set()
        self._outcomes: dict[tuple[str, Standard], Outcome] = {}
        self._devices: queue.SimpleQueue[str] | None = queue.SimpleQueue() if devices else None
        for device in devices:
            self._devices.put(device)

    @property
    @abstractmethod
    def settings(self) -> Settings | Sides:
        """What varies."""

    @abstractmethod
    def train(self, plan: Plan) -> Run:
        """Run as planned and say what happened.

        Raises:
            KeyboardInterrupt: it was interrupted.
            CannotBuild: its packages cannot be had together.
        """

    def load(self, name: int | str) -> Run | None:
        """A run that came to its end, read back from the folder of this name; see `load_run`."""
        return load_run(self.folder, name)

    def judged(self, run: Run) -> TrialResult:
        """The result of a run: its outcome under the failure under study, and what is worth keeping."""
        verdict = run.judged(self.known.standard)
        result = result_of(run, verdict)
        if result.outcome is Outcome.FAIL:
            self._see_failure(verdict.step)
        return result

    # ------------------------------------------------------------------------------------------------ life and death

    def close(self) -> None:
        """End everything that was started; nothing of the study runs afterwards."""
        self._interrupted.set()  # whatever is still waiting for a trial does not start it again
        self._supervisor.close()

    def interrupt(self) -> None:
        """End the running trials: on Ctrl-C, or because their results are not needed. None starts before `go_on`."""
        self._interrupted.set()

    def end(self, name: int | str) -> None:
        """End one run, whose result can change nothing any more."""
        self._unneeded.add(name)

    def _has_shown(self, plan: Plan, traces: Traces) -> bool:
        return plan.name in self._unneeded or plan.has_shown(traces, self.known.standard)

    def go_on(self) -> None:
        """Further trials may start. Call it only once all that were interrupted have ended."""
        self._interrupted.clear()

    # ------------------------------------------------------------------------------------------------ what is known

    @property
    def start(self) -> str:
        """How trials start now."""
        return COLD

    @property
    def horizon(self) -> int | None:
        """Steps of a trial; None before the failure was seen."""
        return self.known.horizon

    def learn(self, **found: object) -> None:
        """What a phase has found out, of `Known`; the rest stays as it is."""
        self.known = replace(self.known, **found)

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Take up what earlier results have shown of how trials must be run, in their order: a study that is resumed
        goes on as it would have."""
        for result in results:
            if result.outcome is Outcome.FAIL:
                self._see_failure(result.step)

    def classify(self, result: TrialResult, mask: int = 0, reference: TrialResult | None = None) -> Outcome:
        """What a recorded result means by what is known now, whatever its subset; see `Runner`.

        What could not be started has no observation, and the metric rows of a study that is shared by a storage lie in
        the folder of whoever ran the trial: of these what was said then stands.
        """
        told, standard = result.attributes.get("observation"), self.known.standard
        if told is None:
            return result.outcome
        key = result.attributes["folder"], standard
        if key not in self._outcomes:
            metrics = self._metrics(key[0])
            here = bool(metrics.rows) or not told["steps"]
            seen = msgspec.convert(told, Observation)
            self._outcomes[key] = judge(seen, metrics, standard).outcome if here else result.outcome
        return self._outcomes[key]

    def _metrics(self, name: str) -> Metrics:
        """The metric rows of a run."""
        traces = Traces.of(self.folder / "trials" / name)
        traces.read()
        return traces.as_metrics

    def is_valid(self, configuration: Configuration) -> str | None:
        """Why a configuration cannot be run, None if nothing is known against it. Runs nothing."""
        packages, good = self.known.packages, self._good_packages(configuration)
        return packages.mixtures.error(lambda name: name not in good) if packages and packages.varied else None

    def _good_packages(self, configuration: Configuration) -> set[str]:
        """The packages that vary and are as on the good side."""
        good = {name: level for name, level in self.settings.good.items() if name.startswith(PACKAGE)}
        return {name.removeprefix(PACKAGE) for name, level in good.items() if equal(configuration.get(name), level)}

    def _see_failure(self, step: int | None) -> None:
        """If it failed later than trials used to run, from now on they run long enough to see that."""
        if step is not None and self.horizon and step > self.horizon:
            self.learn(horizon=horizon_for(step))

    # ------------------------------------------------------------------------------------------------ running

    def sure(self, plan: Plan) -> tuple[Run, str]:
        """Run as planned. What ends in another failure than the one under study may owe that to how it was started,
        and is run once more cold, in the folder ``NAME-cold``; once for each such failure.

        Returns:
            The run that counts, and what the cold one showed: "same", or "other"; "" if there was none.

        Raises:
            As `train`.
        """
        return self.train(plan), ""

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial and judge it by the failure under study."""
        steps = self.horizon and self.horizon * (STRETCH if request.purpose.proves else 1)
        try:
            run, check = self.sure(Plan(request.number, request.configuration, steps))
        except CannotBuild as error:
            return TrialResult(Outcome.UNRESOLVED, str(Signature("invalid", "", str(error))), str(error))
        result = self.judged(run)
        return replace(result, attributes={**result.attributes, COLD_CHECK: check}) if check else result

    def program(self, command: Sequence[str], log: Path) -> int:
        """Run something that is no trial, its output in a file; how it ended. It ends with the tool."""
        run = self._supervisor.start(command, os.environ, log.parent, log.name)
        try:
            return run.wait()
        finally:
            run.end()

    @contextlib.contextmanager
    def _device(self) -> Iterator[str | None]:
        """A device that no other trial has meanwhile; None where they are left as they are."""
        if self._devices is None:
            yield None
            return
        device = self._devices.get()
        try:
            yield device
        finally:
            self._devices.put(device)

    def _overrides(self, plan: Plan) -> Mapping[str, Encoded]:
        return plan.overrides if plan.overrides is not None else self.settings.overrides(plan.configuration)

    def _environment(self, plan: Plan) -> Environment | None:
        """Where a run finds its packages; None: where the user's own does."""
        packages = self.known.packages
        if packages is None:
            return None
        levels = inside(PACKAGE, self._overrides(plan))
        return packages.environment_of(levels) if levels or packages.varied else None

    # ------------------------------------------------------------------------------------------------ files

    def _new_folder(self, number: int | str) -> Path:
        folder = self.folder / "trials" / str(number)
        if folder.exists():  # a trial that was interrupted: its traces are kept beside the new ones
            aside = (folder.with_name(f"{number}.interrupted-{i}") for i in itertools.count(1))
            folder.rename(next(path for path in aside if not path.exists()))
        make_folder(folder)
        return folder

    @staticmethod
    def _write_by_hand(folder: Path, *lines: str) -> None:
        """Write the lines of a shell that repeat a trial by hand."""
        head = ("#!/bin/sh", "# Repeats this trial by hand, with everything printed here.")
        write_text(folder / "command.sh", "\n".join([*head, f"cd {shlex.quote(os.getcwd())} || exit", *lines, ""]))
