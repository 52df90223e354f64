"""Runs a command of any kind with some of its settings changed: the runner behind ``bisect-cfg bisect -- COMMAND``.

There is no probe in it. What a run says is its exit status, its output, and the rows of metrics in that, where the
command prints some in a form that is known: a run that collapses fails though its status is 0, and one that has gone on
for long enough is ended. Exit status 0 is a pass, 125 "cannot be judged", 126 and 127 "cannot be run", 128 + n signal
n, anything else a failure (as `git bisect run` and shells have it).

The folder of a trial has what that of a training has (`bisect_cfg.trials.runner`), save what a probe writes, and the
configuration file that the command was given.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bisect_cfg.capture.script import by_hand, is_masked
from bisect_cfg.capture.target import CommandTarget, Sides
from bisect_cfg.common.failures import signature as signatures
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.text import clean, normalise, plain
from bisect_cfg.configuration import Configuration, Outcome
from bisect_cfg.jsonfile import make_folder, private, write_json, write_text
from bisect_cfg.probe.protocol import METRICS_FILE
from bisect_cfg.probe.secrets import know_command, scrub
from bisect_cfg.runner import supervisor
from bisect_cfg.runner.hang import HANG_TIMES, Patience
from bisect_cfg.runner.logs import shorten
from bisect_cfg.runner.traces import Row, Traces, tail_of_log
from bisect_cfg.runner.verdict import CANNOT_RUN, SKIPPED, Ended, Metrics, Observation, trace_of
from bisect_cfg.runner.watch import Ending, watch
from bisect_cfg.store.interface import TrialResult
from bisect_cfg.trials.clean import clean_folder
from bisect_cfg.trials.environments import CannotBuild, Environment
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.runs import Run, read_ending, result_of
from bisect_cfg.trials.start_points import COLD
from bisect_cfg.trials.trial_runner import Progress, TrialRunner

SKIP = 125
NOT_RUN = (126, 127)
"""Exit statuses with a meaning of their own: `git bisect run` takes 125 for "cannot be tested"; a shell gives 126 for
what cannot be executed and 127 for what is not there."""

SILENCE_SECONDS = 600.0
"""Where no --trial-timeout is given, a trial may be silent for this long, or `HANG_TIMES` times as long as any run that
passed before; as long as none did, for as long as it likes, as nothing is known of it."""

LINES_READ = 40
"""Of the end of an output, in which a line is looked for that says what went wrong."""

_COMPLAINTS = (
    re.compile(r"\b(?:errors?|fatal|panic|exception)\b", re.IGNORECASE),
    re.compile(
        r"\b(?:fail(?:ed|ure|s)?|invalid|illegal|cannot|can't|could not|unable|denied|refused|unknown|unrecogni[sz]ed"
        r"|unexpected|not found|no such|not supported|unsupported|not allowed|incompatible|conflict(?:s|ing)?"
        r"|mutually exclusive|missing|required|must|abort(?:ed)?)\b",
        re.IGNORECASE,
    ),
)
"""How programs say that something went wrong, the plainest words first."""


def observe_command(rows: Sequence[Row], folder: Path, ending: Ending) -> Observation:
    """Say what happened in a run of a command that is over.

    Args:
        rows: the metrics that it printed.
        folder: of the run, which has ``log.txt``.
        ending: how it came to its end.
    """
    died, message = _death(folder / "log.txt", ending)
    ended = Ended.FAILURE if died is not None else Ended.END if ending.exit_code == 0 else Ended.STOPPED
    steps = rows[-1]["step"] if rows else 0
    seen = Observation(died, ended, steps, ending.seconds, message, trained=bool(rows), counted=bool(rows))
    return replace(seen, trace=trace_of(seen, Metrics(rows)))


def _death(log: Path, ending: Ending) -> tuple[Signature | None, str]:
    """The signature of what ended a run, and in words; None for one that ended well, or that we ended."""
    code = ending.exit_code
    if ending.hang is not None:
        return Signature("hang"), ending.hang
    if code is None or code == 0:
        return None, ""
    if code == SKIP:
        return Signature(SKIPPED), f"exit status {SKIP}: it cannot be judged"
    lines = tail_of_log(log, LINES_READ)
    line = complaint_in(lines)
    if code in NOT_RUN:
        return Signature(CANNOT_RUN, str(code)), line or f"exit status {code}"
    found = signatures.from_exit(code, log)
    if found.kind == "exit":
        # Programs have few exit statuses and many failures: what they say of it tells them apart.
        return replace(found, message=normalise(line)), line
    if found.kind == "signal":
        return found, found.name
    if found.kind == "exception" and found.message:
        found = replace(found, where="")  # ranks print their tracebacks into each other: whose frame is last is chance
    own = (clean(line) for line in reversed(lines) if found.name and found.name in line)
    return found, next(own, str(found))


def complaint_in(lines: Sequence[str]) -> str:
    """The last of some lines that says that something went wrong, "" if none does. Not simply the last one: what a
    program buffers, its ordinary output, comes after what it complains of."""
    told = (line for words in _COMPLAINTS for line in reversed(lines) if words.search(line))
    return plain(next(told, "")).strip()


def load_command_run(study: Path, number: int | str) -> Run | None:
    """A run of a command that ended before, read back from its folder; None if there is none that came to its end."""
    folder = study / "trials" / str(number)
    found = read_ending(folder)
    if found is None:
        return None
    ending, kept = found
    traces = Traces.of(folder)
    traces.read()
    return Run(observe_command(traces.metrics.rows, folder, ending), traces, folder, kept.get("horizon"), COLD)


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

    def load(self, name: int | str) -> Run | None:
        return load_command_run(self.folder, name)

    def judged(self, run: Run, steps: int | None) -> TrialResult:
        """The result of a run: its outcome under the failure under study, and what is worth keeping."""
        verdict = run.judged(self.known.standard)
        result = result_of(run, verdict, steps)
        if result.outcome is Outcome.FAIL:
            self._see_failure(verdict.step)
        return result

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
        traces = Traces.of(folder)
        traces.read()
        rows = traces.metrics.rows
        write_json(folder / "ending.json", {**asdict(ending), "horizon": plan.steps, "steps": len(rows), "level": COLD})
        self._seen.note(ending, len(rows))
        seen = observe_command(rows, folder, ending)
        return Run(replace(seen, message=scrub(seen.message)), traces, folder, plan.steps, COLD)
