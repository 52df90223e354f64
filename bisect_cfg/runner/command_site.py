"""Runs a command of any kind with some of its settings changed, for ``bisect-cfg bisect -- COMMAND``.

There is no probe in it. A run shows its exit status, its output, and the metric rows in the output, where the command
prints some in a known form: a run that collapses fails though its status is 0, and one that is long enough is ended.
Exit status 0 is a pass, 125 "cannot be judged", 126 and 127 "cannot be run", 128 + n signal n, anything else a failure
(as `git bisect run` and shells have it).
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from bisect_cfg.common.json_files import make_folder, private, write_json, write_text
from bisect_cfg.probe.protocol import METRICS_FILE
from bisect_cfg.probe.redact import know_command
from bisect_cfg.runner.clean import clean_folder
from bisect_cfg.runner.environments import CannotBuild, Environment
from bisect_cfg.runner.hang import HANG_TIMES, Patience
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.site import Progress, Site
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.watch import watch
from bisect_cfg.store.inputs import changed_files, refuse
from bisect_cfg.store.state import State
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.script import by_hand, is_masked

SILENCE_SECONDS = 600.0
"""Without --trial-timeout a trial may be silent for so long, or `HANG_TIMES` times as long as any run that passed;
before one has passed, for as long as it likes: nothing is known of it."""


CODE = (".py", ".sh", ".ipynb")
"""Files of a command that no run of it writes. Whether another one is read or written nobody knows."""


class CommandSite(Site):
    """Runs trials of one command; see the module and `Site`.

    Attributes:
        state: of the study, by which the command's code is compared around each run; None: it is not.
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
        self._target = target
        self.state: State | None = None
        know_command(["", *target.typed])

    def run(self, plan: Plan) -> Run:
        """Run the command as planned.

        Raises:
            KeyboardInterrupt, CannotBuild: see `Site.run`.
            OSError: it cannot be started.
            InputsChanged: its code is not what it was; this run does not count.
        """
        self._check_code()
        environment = self._environment(plan)
        with self._device() as device:
            folder = self._new_folder(plan.name)
            command, variables = self._write(plan, folder, device, environment)
            given = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
            traces, silence = Traces.printed(folder), self._silence()
            ending = watch(
                self._supervisor.start(command, given, folder),
                traces,
                Patience(silence, silence, silence, sign="output"),
                enough=lambda traces: self._is_enough(plan, traces),
                progress=lambda traces: self._on_progress(plan.name, traces.metrics.rows, plan.steps),
                interrupted=self._interrupted,
            )
        self._check_code()
        printed = traces.metrics.rows
        with open(folder / METRICS_FILE, "w", opener=private) as stream:
            stream.writelines(json.dumps(row) + "\n" for row in printed)
        clean_folder(folder)
        self._write_ending(folder, ending, horizon=plan.steps, steps=len(printed), level=COLD, watched=False)
        return self.load(plan.name)

    def _check_code(self) -> None:
        changed = [] if self.state is None else changed_files(self._target, self.state)
        if changed := [path for path in changed if path.endswith(CODE)]:
            refuse(changed)

    def _environment(self, plan: Plan) -> Environment | None:
        environment = super()._environment(plan)
        if environment is not None:
            program = self._target.words(plan.configuration, "", "", environment.python)[0]
            if os.path.isabs(program) and not os.path.exists(program):
                raise CannotBuild(f"none of these packages has a program {os.path.basename(program)}")
        return environment

    def _is_enough(self, plan: Plan, traces: Traces) -> bool:
        rows = traces.metrics.rows
        long = bool(rows) and plan.steps is not None and rows[-1]["step"] >= plan.steps
        return long or self._has_shown(plan, traces)

    def _silence(self) -> float:
        """Seconds for which a run may print nothing."""
        if self._timeout is not None:
            return self._timeout
        passing = self._pauses.passing
        return math.inf if passing is None else max(SILENCE_SECONDS, HANG_TIMES * passing)

    def _new_folder(self, name: int | str) -> Path:
        folder = super()._new_folder(name)
        for path in (folder / "output", folder / "by-hand"):
            make_folder(path)
        return folder.absolute()

    def _write(
        self, plan: Plan, folder: Path, device: str | None, environment: Environment | None
    ) -> tuple[list[str], dict[str, str | None]]:
        """Write the files of a run; its command, and the environment variables that it sets or (None) unsets."""
        target, configuration = self._target, plan.configuration
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
