"""Runs a training script with some of its settings changed, for ``bisect-cfg bisect train.py``.

A trial is a prefix of the user's real run, in processes and in a folder of its own (``trials/N``: ``log.txt``,
``events.jsonl``, ``metrics.jsonl``, ``stacks.txt``, ``configuration.json``, ``command.sh``, ``result.json``, and the
script's ``output``). How its process comes to be is the affair of `fork_server`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.common.json_files import write_json
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import ORDERS_FILE, Cold, Encoded, Opened, TrialOrders, to_json
from bisect_cfg.probe.redact import know_command
from bisect_cfg.runner.clean import clean_folder
from bisect_cfg.runner.fork_server import ServersByEnvironment, Starts, probe_environment
from bisect_cfg.runner.hang import (
    FIRST_STEP_SECONDS,
    HANG_SECONDS,
    HANG_TIMES,
    IN_TRAINING,
    UNKNOWN_SECONDS,
    Patience,
)
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.ranks import free_port, own_port
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.site import COLD_OTHER, COLD_SAME, Progress, Site, inside
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.training import Training
from bisect_cfg.runner.validity_cache import ConfigChecks
from bisect_cfg.runner.watch import Ending, watch
from bisect_cfg.store.inputs import Inputs
from bisect_cfg.targets.factors import processes_in
from bisect_cfg.targets.launch_settings import (
    DEEPSPEED_FILE,
    DEEPSPEED_FILE_VARIABLE,
    LAUNCHER,
    PYTHON,
    VARIABLE,
    ask_accelerate,
    with_leaves,
    without_launcher,
)
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.pinned import varied_variables
from bisect_cfg.targets.script import Script, by_hand, is_masked

LOST_TIMES = 2
"""A run whose fork server went away, or does not come up, says nothing; it is repeated so many times, and then started
cold: what takes its server down each time cannot harm it there."""


@dataclass(frozen=True)
class _Attempt:
    """One attempt at a run: how its process starts, its folder with the traces, what its probe is told."""

    plan: Plan
    start: str
    starts: Starts
    folder: Path
    traces: Traces
    orders: TrialOrders


class ScriptSite(Site):
    """Runs trials of one script; see the module and `Site`.

    Attributes:
        inputs: what the runs read, compared around each of them; None: nothing is.
        starts: how trials are started.
        checks: which configurations can be built.
    """

    def __init__(
        self,
        script: Script,
        folder: Path,
        *,
        timeout: float | None = None,
        jobs: int = 1,
        devices: Sequence[str] = (),
        on_progress: Progress = lambda *told: None,
    ) -> None:
        super().__init__(folder, timeout, devices, on_progress, watched=True)
        self.script = script
        self.inputs: Inputs | None = None
        self._jobs = jobs
        know_command([str(script.path), *script.arguments])
        self.starts = Starts(script, folder, self._supervisor, self._interrupted)
        self._servers = ServersByEnvironment(self.starts)
        self.checks = ConfigChecks(folder / "validity.json", self.starts.resolve)
        self._also_cold: set[str] = set()  # signatures of other failures that a cold start shows as well

    @property
    def start(self) -> str:
        return self.starts.start

    def close(self) -> None:
        self._interrupted.set()  # a thread that still waits for a trial starts no other
        self.checks.save()
        self._servers.close()
        self.starts.close()
        super().close()
        clean_folder(self.starts.folder)

    # ------------------------------------------------------------------------------------------------------ running

    def sure(self, plan: Plan) -> tuple[Run, str]:
        run = self.run(plan)
        verdict = run.judged(plan.standard)
        other, signature = verdict.outcome is Outcome.UNRESOLVED and not run.seen.invalid, str(verdict.signature)
        if not other or self.start == COLD or signature in self._also_cold:
            return run, ""
        cold = self.run(replace(plan, name=f"{plan.name}-cold", start=COLD))
        same = str(cold.judged(plan.standard).signature) == signature
        self.see_cold(signature, COLD_SAME if same else COLD_OTHER)
        return (run, COLD_SAME) if same else (cold, COLD_OTHER)

    def see_cold(self, signature: str, check: str) -> None:
        """Take in what a cold run has shown after a warm one with this signature. Where it showed something else, warm
        runs do not show what the user's command shows: later trials start cold."""
        if check == COLD_SAME:
            self._also_cold.add(signature)
        elif self.start != COLD:
            self.starts.start_at(COLD)

    def run(self, plan: Plan) -> Run:
        """Train as planned.

        Raises:
            KeyboardInterrupt, CannotBuild: see `Site.run`.
            InputsChanged: what the trials read is not what it was; this run does not count.
        """
        if self.inputs is not None:
            self.inputs.check()
        checkpoint = None if plan.origin is None else plan.origin.checkpoint
        if checkpoint is not None and not os.path.isdir(checkpoint):
            raise InputError(
                f"The trials of this study begin at {checkpoint}, which is no more.",
                "Begin a new study with --restart, or name a checkpoint with --from-checkpoint.",
            )
        with self._device() as device, self._servers.at(self._environment(plan)) as starts:
            for times in range(LOST_TIMES + 1):
                cold = times == LOST_TIMES or bool(self._variables(plan))
                # Another thread may settle on a colder start while this one waits.
                start = COLD if cold else plan.start or starts.start
                folder = self._new_folder(plan.name)
                attempt = _Attempt(
                    plan, start, starts, folder, Traces.of(folder), self._orders_of(plan, folder, device)
                )
                ending = self._follow(attempt)
                if ending is not None:
                    return self._kept(attempt, ending)
                if self._interrupted.is_set():
                    raise KeyboardInterrupt
        raise AssertionError("a cold start has no server to lose")

    def _orders_of(self, plan: Plan, folder: Path, device: str | None) -> TrialOrders:
        """What the probe of a run is told."""
        capture, launched = self.starts.capture, self.starts.launched
        overrides = dict(plan.overrides or {})
        deepspeed = self._write_deepspeed_file(overrides, folder)
        as_python = overrides.get(LAUNCHER) == PYTHON and launched is not None
        started = capture is not None and capture.started
        env: dict[str, str | None] = {} if plan.purpose is Purpose.BAD_BASELINE else own_port(os.environ)
        env |= without_launcher(launched.given[0], capture.accelerate) if as_python else {}
        launch = {name: value for name, value in overrides.items() if name.startswith("launch.")}
        if launch:
            accelerate = ask_accelerate(self.script.python) if capture is None else capture.accelerate
            for name, value in launch.items():
                env |= accelerate.variables_of(name, value)
        elsewhere = ("launch.", PACKAGE, *(VARIABLE + name for name in self._variables(plan)))
        env |= {**deepspeed, **plan.environment, **({} if device is None else {"CUDA_VISIBLE_DEVICES": device})}
        return TrialOrders(
            str(folder),
            {name: value for name, value in overrides.items() if not name.startswith(elsewhere)},
            targets=plan.targets,
            steps=plan.steps,
            opened=None if self.inputs is None else self.inputs.to_note(),
            stop_when_non_finite=plan.stop is not StopRule.DEATH,
            env=env,
            started=started,
            port=free_port() if started and launched is None else None,
            instruments=plan.instruments,
            threads=max(1, (os.cpu_count() or 1) // self._jobs) if self._jobs > 1 else None,
            processes=None if capture is None else processes_in(capture.args, overrides),
            launcher=overrides.get(LAUNCHER),
            origin=plan.origin,
            checkpoints=plan.checkpoints,
            least_seconds=plan.least_seconds,
            exchanged=None if plan.exchanged is None else {str(row): other for row, other in plan.exchanged.items()},
        )

    def _variables(self, plan: Plan) -> dict[str, Encoded]:
        """The environment variables for which a run must start cold: a library may have read them by the time of a
        fork. Not those that the script was seen to read and nobody has named: a fork gets them when it reads them."""
        capture = self.starts.capture
        read, named = varied_variables(capture), capture.named if capture is not None else ()
        variables = inside(VARIABLE, plan.overrides or {})
        return {name: value for name, value in variables.items() if name not in read or VARIABLE + name in named}

    def _write_deepspeed_file(self, overrides: dict[str, Encoded], folder: Path) -> dict[str, str]:
        """Write a DeepSpeed file for a run that is to have another one than the user's.

        Args:
            overrides: of the run; the file is added where the training arguments name the user's.
            folder: of the run.

        Returns:
            The environment variables that name it, where the launcher names the user's.
        """
        capture, changes = self.starts.capture, inside(DEEPSPEED_FILE, overrides)
        if not changes or capture is None or capture.deepspeed is None:
            return {}
        path = folder / "deepspeed.json"
        write_json(path, with_leaves(capture.deepspeed.content, changes))
        if capture.deepspeed.of_launcher:
            return {DEEPSPEED_FILE_VARIABLE: str(path)}
        overrides.setdefault("args.deepspeed", str(path))
        return {}

    def _follow(self, attempt: _Attempt) -> Ending | None:
        """Start a run and stay with it to its end; None if its fork server went away, so that it says nothing."""
        plan, traces, orders = attempt.plan, attempt.traces, attempt.orders
        write_json(attempt.folder / "configuration.json", dict(plan.configuration))
        command, more = attempt.starts.cold(orders, free_port())
        environment = self._write_cold_orders(attempt, command, more)
        if attempt.start == COLD:
            child = self._supervisor.start(command, {**environment, **more}, attempt.folder)
        else:
            child = attempt.starts.fork(orders)
        if child is None:
            return None
        ending = watch(
            Training(child, traces),
            traces,
            plan.patience or self._patience(plan),
            enough=lambda traces: self._has_shown(plan, traces),
            progress=lambda traces: self._on_progress(plan.name, traces.metrics.rows, plan.steps),
            interrupted=self._interrupted,
            costly=plan.is_too_costly,
        )
        return None if ending.exit_code is not None and child.lost else ending

    def _kept(self, attempt: _Attempt, ending: Ending) -> Run:
        """Write down how a run ended, and read what it left."""
        plan, folder, traces = attempt.plan, attempt.folder, attempt.traces
        if plan.instruments is not None:  # what is slow under instruments says nothing of other runs
            ending = replace(ending, longest_silence=0.0, phases={}, stood="", paused=())
        traces.read()
        traces.adopt()
        clean_folder(folder)
        if self.inputs is not None:  # one that changed before the script was read makes this no evidence
            self.inputs.after_run(traces.all(Opened))
            self.inputs.check()
        self._write_ending(folder, ending, horizon=plan.steps, steps=len(traces.metrics.rows), level=attempt.start)
        return Run(observe(traces, ending), traces, folder, plan.steps, attempt.start, ending.costly)

    def _patience(self, plan: Plan) -> Patience:
        start, pauses = self.starts.patience, self._pauses
        if self._timeout is not None:
            return Patience(max(start, self._timeout), self._timeout, self._timeout)
        if pauses.silence is None:
            first, seen = UNKNOWN_SECONDS, pauses.phases
        else:  # where a step is more work its pauses are longer, too
            first = max(FIRST_STEP_SECONDS, HANG_TIMES * pauses.silence * max(1.0, plan.work))
            seen = {**pauses.phases, IN_TRAINING: pauses.silence}
        hangs = pauses.hangs if plan.repeats or pauses.passing is not None else ()
        return Patience(start, first, HANG_SECONDS, times=HANG_TIMES, seen=seen, hangs=hangs, repeats=plan.repeats)

    def _write_cold_orders(self, attempt: _Attempt, command: Sequence[str], more: Mapping[str, str]) -> dict[str, str]:
        """Write the orders for a cold start, and the command that repeats the trial by hand.

        Args:
            attempt: whose orders they are.
            command: that starts it cold.
            more: environment variables that the command needs besides.

        Returns:
            The environment for either.
        """
        folder, orders = attempt.folder, attempt.orders
        variables = inside(VARIABLE, attempt.plan.overrides or {})
        gone = [name for name, value in variables.items() if value is None]
        given = {name: value for name, value in variables.items() if value is not None}
        own = {name: value for name, value in os.environ.items() if name not in gone}
        environment, restore = probe_environment({**own, **given}, folder / ORDERS_FILE)
        write_json(folder / ORDERS_FILE, to_json(Cold(restore, orders)))
        # By hand the run writes into a folder of its own, so that the evidence stays as it is.
        again = replace(orders, folder=str(folder / "by-hand"))
        write_json(folder / "orders-by-hand.json", to_json(Cold(restore, again)))
        shown = {name: value for name, value in self.script.variables.items() if not is_masked(name, value)}
        env = {name: value for name, value in orders.env.items() if value is not None}
        shown |= {name: own[name] for name in varied_variables(self.starts.capture) if name in own}
        shown |= {**given, **more, **{name: environment[name] for name in restore}, **env}
        shown["BISECT_CFG_PROBE"] = str(folder / "orders-by-hand.json")
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in shown.items())
        self._write_by_hand(
            folder,
            f"mkdir -p {shlex.quote(again.folder)}",
            f"exec env {''.join(f'-u {name} ' for name in gone)}{words} \\",
            f"  {by_hand(command)}",
        )
        return environment
