"""A site: this machine's part in a study. It starts the process of a plan, stays with it and says what came of it.

A trial is a prefix of the user's real run, in processes and in a folder of its own (``trials/N``: ``log.txt``,
``metrics.jsonl``, ``configuration.json``, ``command.sh``, ``ending.json``, ``output``; with a probe ``events.jsonl``
and ``stacks.txt``). How a process with a probe comes to be is the affair of `fork_server`, and what its probe is told
that of `orders`. Without one it is started as it stands: a run shows its exit status, its output, and the metric rows
in the output, where the command prints some in a known form.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bisect_cfg.common.configuration import Outcome, present
from bisect_cfg.common.failures.health import Row, step_of
from bisect_cfg.common.json_files import make_folder, private, write_json
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import METRICS_FILE
from bisect_cfg.probe.redact import know_command
from bisect_cfg.runner import hang
from bisect_cfg.runner.clean import clean_folder
from bisect_cfg.runner.environments import CannotBuild, Environment, Environments
from bisect_cfg.runner.fork_server import Starts
from bisect_cfg.runner.orders import orders_of, variables_from_start, write_by_hand, write_cold_orders
from bisect_cfg.runner.plan import Plan, Result
from bisect_cfg.runner.runs import ENDING_FILE, Pauses, Run, load_run
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.supervisor import Run as Process
from bisect_cfg.runner.supervisor import Supervisor
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.training import Training
from bisect_cfg.runner.validity_cache import ConfigChecks
from bisect_cfg.runner.watch import Ending, watch
from bisect_cfg.targets.target import Target

COLD_SAME, COLD_OTHER = "same", "other"
"""What a cold run shows that repeats a warm one: the same failure, or something else."""

LOST_TIMES = 2
"""A run whose fork server went away, or does not come up, says nothing; it is repeated so many times, and then started
cold: what takes its server down each time cannot harm it there."""

SILENCE_SECONDS = 600.0
"""Without --trial-timeout a run without a probe may be silent for so long, or `HANG_TIMES` times as long as any that
passed; before one has passed, for as long as it likes: nothing is known of it."""

Progress = Callable[[int | str, Sequence[Row], int | None], None]
"""Called with trial number, metric rows so far and horizon while a trial runs."""


class Site:
    """Runs plans of one target on this machine. Thread-safe: parallel trials call it from a thread each.

    Args:
        target: what is run.
        folder: the study folder.
        timeout: seconds of silence that are called a hang; None: the site tells by the runs so far.
        jobs: how many run at once.
        devices: values of CUDA_VISIBLE_DEVICES, one for each parallel trial; empty: all trials see what we see.
        on_progress: see `Progress`.
        name: tells it from other sites of the study.
        node: what its machine is called in a cluster.

    Attributes:
        environments: builds the environments of trials with packages of their own; None: no trial has any.
        starts: how processes with a probe come to be.
        checks: which configurations can be built.
    """

    def __init__(
        self,
        target: Target,
        folder: Path,
        *,
        timeout: float | None = None,
        jobs: int = 1,
        devices: Sequence[str] = (),
        on_progress: Progress = lambda *told: None,
        name: str = "",
        node: str = "",
    ) -> None:
        self.target, self.folder, self.node = target, folder, node
        self.environments: Environments | None = None
        self._timeout, self._jobs, self._on_progress = timeout, jobs, on_progress
        know_command([str(target.path) if target.probed else "", *target.command])
        self._supervisor = Supervisor(target.probed)
        self._interrupted = threading.Event()
        self.starts = Starts(target, folder / f"server{name}", self._supervisor, self._interrupted)
        self.checks = ConfigChecks(folder / "validity.json", self.starts.resolve)
        self._also_cold: set[str] = set()  # signatures of other failures that a cold start shows as well
        self._unneeded: set[int | str] = set()
        self._devices: queue.SimpleQueue[str] = queue.SimpleQueue()
        for device in devices:
            self._devices.put(device)
        self._has_devices = bool(devices)

    # ------------------------------------------------------------------------------------------------------ running

    def run(self, plan: Plan) -> Result:
        """Do what a plan says, to the end.

        Raises:
            KeyboardInterrupt: it was interrupted.
            InputError: it cannot be run.
        """
        try:
            self._run_once(plan)
            return self._repeated(plan) if plan.sure else Result(plan.name)
        except CannotBuild as error:
            return Result(plan.name, refused=str(error))

    def _run_once(self, plan: Plan) -> None:
        checkpoint = None if plan.origin is None else plan.origin.checkpoint
        if checkpoint is not None and not os.path.isdir(checkpoint):
            raise InputError(
                f"The trials of this study begin at {checkpoint}, which is no more.",
                "Begin a new study with --restart, or name a checkpoint with --from-checkpoint.",
            )
        environment = self._environment(plan)
        # A server has the packages and the variables of the user's environment.
        differs = environment is not None or bool(variables_from_start(plan, self.starts.capture))
        with self._device() as device:
            for times in range(LOST_TIMES + 1):
                # Another thread may settle on a colder start while this one waits.
                start = COLD if differs or times == LOST_TIMES else plan.start or self.starts.start
                folder = self._new_folder(plan.name)
                child = self._started(plan, start, folder, environment, device)
                if child is not None and self._follow(plan, start, folder, child):
                    return
                if self._interrupted.is_set():
                    raise KeyboardInterrupt
        raise AssertionError("a cold start has no server to lose")

    def _repeated(self, plan: Plan) -> Result:
        """The result of a plan that was run; another failure than the one under study is repeated cold, once for each
        such failure."""
        run = present(self.load(plan.name))
        verdict = run.judged(plan.standard)
        other, signature = verdict.outcome is Outcome.UNRESOLVED and not run.seen.invalid, str(verdict.signature)
        if not other or COLD in (run.start, self.starts.start) or signature in self._also_cold:
            return Result(plan.name)
        again = replace(plan, name=f"{plan.name}-cold", start=COLD)
        self._run_once(again)
        same = str(present(self.load(again.name)).judged(plan.standard).signature) == signature
        result = Result(plan.name, COLD_SAME) if same else Result(again.name, COLD_OTHER)
        self.see_cold(signature, result.check)
        return result

    def see_cold(self, signature: str, check: str) -> None:
        """Take in what a cold run has shown after a warm one with this signature. Where it showed something else, warm
        runs do not show what the user's command shows: later trials start cold."""
        if check == COLD_SAME:
            self._also_cold.add(signature)
        else:
            self.starts.start_at(COLD)

    def load(self, name: int | str) -> Run | None:
        """A run that came to its end, read back from its folder; None if there is none."""
        return load_run(self.folder, name)

    def program(self, command: Sequence[str], log: Path) -> int:
        """Run something that is no trial, with its output in a file, and return its exit code. It ends with the
        tool."""
        run = self._supervisor.start(command, os.environ, log.parent, log.name)
        try:
            return present(run.wait())
        finally:
            run.end()

    def interrupt(self) -> None:
        """End the running trials. None starts before `go_on`."""
        self._interrupted.set()

    def go_on(self) -> None:
        """Trials may start again. Call it once all that were interrupted have ended."""
        self._interrupted.clear()

    def end(self, name: int | str) -> None:
        """End one run, whose result can change nothing any more."""
        self._unneeded.add(name)

    def close(self) -> None:
        """End everything that was started; nothing of the study runs afterwards."""
        self._interrupted.set()  # a thread that still waits for a trial starts no other
        self.checks.save()
        self.starts.close()
        self._supervisor.close()
        clean_folder(self.starts.folder)

    # ------------------------------------------------------------------------------------------- where it runs

    @contextlib.contextmanager
    def _device(self) -> Iterator[str | None]:
        """A device that no other trial has meanwhile; None where all see what we see."""
        device = self._devices.get() if self._has_devices else None
        try:
            yield device
        finally:
            if device is not None:
                self._devices.put(device)

    def _environment(self, plan: Plan) -> Environment | None:
        """Where a run finds its packages; None for the user's environment."""
        if plan.requirements is None:
            return None
        environment = present(self.environments).of(plan.requirements)
        program = self.target.under(environment.python).command[0]
        if os.path.isabs(program) and not os.path.exists(program):
            raise CannotBuild(f"none of these packages has a program {os.path.basename(program)}")
        return environment

    def _new_folder(self, name: int | str) -> Path:
        folder = self.folder / "trials" / str(name)
        if folder.exists():  # of a trial that was interrupted: its traces are kept
            aside = (folder.with_name(f"{name}.interrupted-{i}") for i in itertools.count(1))
            folder.rename(next(path for path in aside if not path.exists()))
        make_folder(folder)
        return folder.absolute()

    # ------------------------------------------------------------------------------------------ from start to end

    def _started(
        self, plan: Plan, start: str, folder: Path, environment: Environment | None, device: str | None
    ) -> Process | None:
        """The first process of a run; None where that is to be forked and cannot."""
        target, own = self.target, dict[str, str]()
        if environment is not None:
            target, own = target.under(environment.python), environment.variables
        how = target.started(plan.configuration, folder, own, device)
        if how is not None:
            write_by_hand(folder, f"exec {how.by_hand}")
            variables = {name: value for name, value in {**os.environ, **how.variables}.items() if value is not None}
            return self._supervisor.start(how.words, variables, folder)
        orders = orders_of(plan, folder, self.starts, jobs=self._jobs, device=device)
        write_json(folder / "configuration.json", dict(plan.configuration))
        command, variables = write_cold_orders(plan, orders, self.starts, environment)
        if start == COLD:
            return self._supervisor.start(command, variables, folder)
        return self.starts.fork(orders)

    def _follow(self, plan: Plan, start: str, folder: Path, child: Process) -> bool:
        """Stay with a run to its end, and write down how it ended, from when on it counts. False if its fork server
        went away, so that it says nothing."""
        probed, made = self.target.probed, folder.stat()
        traces = Traces(folder, printed=not probed)
        ending = watch(
            Training(child, traces) if probed else child,
            traces,
            plan.patience or self._patience(plan),
            enough=lambda traces: self._has_shown(plan, traces),
            progress=lambda traces: self._on_progress(plan.name, traces.metrics.rows, plan.steps),
            interrupted=self._interrupted,
            costly=plan.is_too_costly,
        )
        if ending.exit_code is not None and child.lost:
            return False
        if not os.path.samestat(made, folder.stat()):
            raise KeyboardInterrupt  # this machine stood still and was given up: the run is made elsewhere
        if plan.instruments is not None:  # what is slow under instruments says nothing of other runs
            ending = Ending(ending.exit_code, ending.hang, ending.seconds, costly=ending.costly)
        traces.read()
        traces.adopt()
        rows = traces.metrics.rows
        if not probed:
            with open(folder / METRICS_FILE, "w", opener=private) as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows)
        clean_folder(folder)
        ending = replace(ending, horizon=plan.steps, steps=len(rows), level=start, watched=probed, node=self.node)
        write_json(folder / ENDING_FILE, asdict(ending))
        return True

    def _has_shown(self, plan: Plan, traces: Traces) -> bool:
        if plan.name in self._unneeded or plan.has_shown(traces):
            return True
        if self.target.probed or plan.steps is None:  # a probe itself ends a run that is long enough
            return False
        return any(step_of(row) >= plan.steps for row in traces.metrics.rows[-1:])

    def _patience(self, plan: Plan) -> hang.Patience:
        start, pauses, timeout = self.starts.patience, Pauses.of(self.folder), self._timeout
        if not self.target.probed:
            if timeout is None:
                timeout = math.inf if pauses.passing is None else max(SILENCE_SECONDS, hang.HANG_TIMES * pauses.passing)
            return hang.Patience(timeout, timeout, timeout, sign="output")
        if timeout is not None:
            return hang.Patience(max(start, timeout), timeout, timeout)
        if pauses.silence is None:
            first, seen = hang.UNKNOWN_SECONDS, pauses.phases
        else:  # where a step is more work its pauses are longer, too
            first = max(hang.FIRST_STEP_SECONDS, hang.HANG_TIMES * pauses.silence * max(1.0, plan.work))
            seen = {**pauses.phases, hang.IN_TRAINING: pauses.silence}
        hangs = pauses.hangs if plan.repeats or pauses.passing is not None else ()
        return hang.Patience(
            start, first, hang.HANG_SECONDS, times=hang.HANG_TIMES, seen=seen, hangs=hangs, repeats=plan.repeats
        )
