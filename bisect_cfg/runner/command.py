"""Runs a command of any kind with some of its settings changed: the runner behind ``bisect-cfg bisect -- COMMAND``.

There is no probe in it. What a run says is its exit status, its output, and the rows of metrics in that, where the
command prints some in a form that is known: a run that collapses fails though its status is 0, and one that has gone on
for long enough is ended. Exit status 0 is a pass, 125 "cannot be judged", 126 and 127 "cannot be run", 128 + n signal
n, anything else a failure (as `git bisect run` and shells have it).

The folder of a trial has what that of a training has (`bisect_cfg.runner.script`), save what a probe writes, and the
configuration file that the command was given.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bisect_cfg.capture.script import by_hand, is_masked
from bisect_cfg.capture.target import CommandTarget, Sides
from bisect_cfg.configuration import Configuration
from bisect_cfg.jsonfile import make_folder, private, write_json, write_text
from bisect_cfg.probe.protocol import METRICS_FILE
from bisect_cfg.probe.secrets import know_command
from bisect_cfg.runner import supervisor
from bisect_cfg.runner.clean import clean_folder
from bisect_cfg.runner.environments import CannotBuild, Environment
from bisect_cfg.runner.hang import HANG_TIMES, Patience
from bisect_cfg.runner.logs import shorten
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.traces import Row, Traces
from bisect_cfg.runner.trial_runner import Progress, TrialRunner
from bisect_cfg.runner.watch import Ending, watch

SILENCE_SECONDS = 600.0
"""Where no --trial-timeout is given, a trial may be silent for this long, or `HANG_TIMES` times as long as any run that
passed before; as long as none did, for as long as it likes, as nothing is known of it."""


class CommandRunner(TrialRunner):
    """Runs trials of one command; see the module.

    Args:
        target: what to run.
        folder: the study folder.
        timeout: seconds without output that are called a hang; None: see `SILENCE_SECONDS`.
        devices: values of CUDA_VISIBLE_DEVICES for the parallel trials, handed out in turn; empty: leave it.
        on_progress: see `Progress`.
    """

    def __init__(
        self,
        target: CommandTarget,
        folder: Path,
        *,
        timeout: float | None = None,
        devices: Sequence[str] = (),
        on_progress: Progress = lambda *told: None,
    ) -> None:
        super().__init__(folder, timeout, devices, on_progress, watched=False)
        self.target = target
        know_command(["", *target.typed])

    @property
    def settings(self) -> Sides:
        """What varies."""
        return self.target.sides

    # ------------------------------------------------------------------------------------------------ running

    def train(self, plan: Plan) -> Run:
        """Run the command as planned and say what happened.

        Raises:
            KeyboardInterrupt: it was interrupted.
            OSError: it cannot be started.
            CannotBuild: its packages cannot be had together, or the program is not among them.
        """
        environment = self._environment(plan)
        with self._device() as device:
            folder = self._new_folder(plan.name)
            command, variables = self._write(plan.configuration, folder, device, environment)
            given = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
            child = self._supervisor.start(command, given, folder)
            printed = Traces.printed(folder)
            ending = self._follow(child, plan, printed)
        return self._kept(plan, folder, printed.metrics.rows, ending)

    def _environment(self, plan: Plan) -> Environment | None:
        environment = super()._environment(plan)
        if environment is None:
            return None
        program = self.target.words(plan.configuration, "", "", environment.python)[0]
        if os.path.isabs(program) and not os.path.exists(program):
            raise CannotBuild(f"none of these packages has a program {os.path.basename(program)}")
        return environment

    def _follow(self, child: supervisor.Run, plan: Plan, traces: Traces) -> Ending:
        """Stay with a run to its end, or end it: when it hangs, when enough is known, when we are interrupted."""
        silence = self._limit()
        return watch(
            child,
            traces,
            Patience(silence, silence, silence, sign="output"),
            enough=lambda traces: self._enough(plan, traces),
            progress=lambda traces: self._on_progress(plan.name, traces.metrics.rows, plan.steps),
            interrupted=self._interrupted,
        )

    def _enough(self, plan: Plan, traces: Traces) -> bool:
        """Whether what was printed so far settles it: it has gone on for long enough, or has shown what it is for."""
        rows = traces.metrics.rows
        long = bool(rows) and plan.steps is not None and rows[-1]["step"] >= plan.steps
        return long or self._has_shown(plan, traces)

    def _limit(self) -> float:
        """How long a run may print nothing, in seconds."""
        if self._timeout is not None:
            return self._timeout
        return math.inf if self._seen.passing is None else max(SILENCE_SECONDS, HANG_TIMES * self._seen.passing)

    # ------------------------------------------------------------------------------------------------ files

    def _new_folder(self, number: int | str) -> Path:
        folder = super()._new_folder(number)
        for path in (folder / "output", folder / "by-hand"):
            make_folder(path)
        return folder.absolute()

    def _write(
        self, configuration: Configuration, folder: Path, device: str | None, environment: Environment | None
    ) -> tuple[list[str], dict[str, str | None]]:
        """Write what a run is given, and how it is repeated by hand; its command, and the variables that it has."""
        target = self.target
        write_json(folder / "configuration.json", target.complete(configuration))
        config, text = folder / f"config.{target.template.config_format}", target.config(configuration)
        if text is not None:
            write_text(config, text)
        python = None if environment is None else environment.python
        programs = target.own_programs if environment is None else environment.variables
        variables = {**programs, **target.variables(configuration)}
        if device is not None:
            variables["CUDA_VISIBLE_DEVICES"] = device
        env = [f"-u {name}" for name, value in variables.items() if value is None]
        env += [
            f"{name}={shlex.quote(value)}"
            for name, value in variables.items()
            if value is not None and not is_masked(name, value)
        ]
        again = by_hand(target.words(configuration, str(config), str(folder / "by-hand"), python))
        self._write_by_hand(folder, " ".join(["exec", *(["env", *env] if env else []), again]))
        return target.words(configuration, str(config), str(folder / "output"), python), variables

    def _kept(self, plan: Plan, folder: Path, printed: Sequence[Row], ending: Ending) -> Run:
        """Write down how a run ended and what it printed, and read what it left."""
        with open(folder / METRICS_FILE, "w", opener=private) as stream:
            stream.writelines(json.dumps(row) + "\n" for row in printed)
        shorten(folder / "log.txt")
        clean_folder(folder)
        kept = {"horizon": plan.steps, "steps": len(printed), "level": COLD, "watched": False}
        write_json(folder / "ending.json", {**asdict(ending), **kept})
        self._seen.note(ending, len(printed))
        return self.load(plan.name)
