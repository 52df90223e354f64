"""Runs a training script with some of its settings changed: the runner behind `bisect-cfg bisect train.py`.

One trial is one process in a process group of its own, in a folder of its own (``trials/N``: ``log.txt``,
``events.jsonl``, ``metrics.jsonl``, ``stacks.txt``, ``configuration.json``, ``command.sh``, ``result.json``, and the
script's ``output``). It is a prefix of the user's real run, stopped at the horizon.

How its process comes to be is the affair of `forking`; what it is to be, a `Plan`; what it was, a `Run`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bisect_cfg.capture.distributions import PACKAGE
from bisect_cfg.capture.launched import (
    DEEPSPEED_FILE,
    DEEPSPEED_FILE_VARIABLE,
    LAUNCHER,
    PYTHON,
    VARIABLE,
    variables_of,
    with_leaves,
    without_launcher,
)
from bisect_cfg.capture.script import Script, by_hand, is_masked
from bisect_cfg.capture.settings import Settings, processes_in
from bisect_cfg.configuration import Configuration, Outcome, Purpose
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import write_json
from bisect_cfg.probe.protocol import (
    ORDERS_FILE,
    Cold,
    Encoded,
    Origin,
    Targets,
    TrialOrders,
    to_json,
)
from bisect_cfg.probe.secrets import know_command
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
from bisect_cfg.runner.inputs import Inputs
from bisect_cfg.runner.logs import shorten
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.ports import free_port, own_port
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.training import Training
from bisect_cfg.runner.trial_runner import COLD_CHECK, Progress, TrialRunner, inside
from bisect_cfg.runner.validity_cache import ConfigChecks
from bisect_cfg.runner.watch import Ending, watch
from bisect_cfg.store.interface import TrialResult

REPRODUCTION_PATIENCE = Patience(1800.0, UNKNOWN_SECONDS, HANG_SECONDS, times=HANG_TIMES)
"""For the first run, when nothing is known about the script's pace: half an hour to load data and a model, two minutes
for the first step; from there on the run tells its pace itself. `--trial-timeout` overrides all of it."""

REPRODUCTION_STEPS, REPRODUCTION_SECONDS = 100, 600.0
"""How long the first run of the bad configuration waits for it to fail, in optimizer steps and in seconds of training,
whichever is later, unless told otherwise: reported failures come at 6, 8, 10, 25, 31, 59, 108, 115, 150 steps."""

CHECKS_CONFIGS = frozenset({"trl", "transformers", "accelerate", "torch"})
"""Packages that have a say in whether a training config can be built."""

LOST_TIMES = 2
"""A trial whose server went away, or does not stand, says nothing; it is asked again so many times. After that it is
started cold: what takes its server down every time has no part in one of its own."""


@dataclass(frozen=True)
class _Attempt:
    """One attempt at a run: how its process comes to be, its folder with the traces, what its probe is told."""

    plan: Plan
    start: str
    starts: Starts
    folder: Path
    traces: Traces
    orders: TrialOrders


class ScriptRunner(TrialRunner):
    """Runs trials of one script; see the module.

    Args:
        script: what to run.
        folder: the study folder.
        timeout: seconds without a step that are called a hang; None scales it from the good run's pace.
        jobs: trials that may run at once.
        devices: values of CUDA_VISIBLE_DEVICES for the parallel trials, handed out in turn; empty: leave it.
        on_progress: see `Progress`.

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
        self._also_cold: set[str | None] = set()  # signatures of other failures that a cold start shows as well

    # ------------------------------------------------------------------------------------------------ life and death

    def close(self) -> None:
        """End everything that was started; nothing of the study runs afterwards."""
        self._interrupted.set()  # whatever is still waiting for a trial does not start it again
        self.checks.save()
        self._servers.close()
        self.starts.close()
        super().close()
        clean_folder(self.starts.folder)

    @property
    def settings(self) -> Settings:
        """The script's settings and factors, once they are known."""
        return self.known.settings

    @property
    def start(self) -> str:
        """How trials start now."""
        return self.starts.start

    def begin_at(self, origin: Origin | None, horizon: int | None = None) -> None:
        """From now on trials begin there (None: at step 0), and make so many steps from there."""
        self.known = replace(self.known, origin=origin, horizon=self.known.horizon if horizon is None else horizon)

    def is_valid(self, configuration: Configuration) -> str | None:
        """None if the training config can be built, otherwise the library's own words. Trains nothing."""
        wrong = super().is_valid(configuration)
        if wrong is not None or self._good_packages(configuration) & CHECKS_CONFIGS:
            return wrong  # what another version of these makes of a config, it will say itself
        return self.checks.error(self.settings.args_item(configuration))

    # ------------------------------------------------------------------------------------------------ running

    def sure(self, plan: Plan) -> tuple[Run, str]:
        run = self.train(plan)
        verdict = run.judged(self.known.standard)
        other = verdict.outcome is Outcome.UNRESOLVED and not run.seen.invalid
        if not other or self.starts.start == COLD or str(verdict.signature) in self._also_cold:
            return run, ""
        cold = self.train(replace(plan, name=f"{plan.name}-cold", start=COLD))
        same = str(cold.judged(self.known.standard).signature) == str(verdict.signature)
        self._see_cold(str(verdict.signature), same)
        return (run, "same") if same else (cold, "other")

    def _see_cold(self, signature: str | None, same: bool) -> None:
        """What a cold start has shown where a warm one ended with this signature: the same, or something else."""
        if same:
            self._also_cold.add(signature)
        elif self.starts.start != COLD:
            # What the warm start shows is not what the user's command shows. From here on start cold.
            self.starts.start_at(COLD)

    def recall(self, results: Sequence[TrialResult]) -> None:
        """Take up what earlier results have shown of how trials must be run, in their order: that a cold start shows
        the same as a warm one, or does not, and that the failure can come later than was thought. A study that is
        resumed goes on as it would have."""
        for result in results:
            check = result.attributes.get(COLD_CHECK)
            if check is not None:
                self._see_cold(result.signature, check == "same")
        super().recall(results)

    def train(self, plan: Plan) -> Run:
        """Train as planned and say what happened.

        Raises:
            InputsChanged: what the trials read is not what it was; this run does not count.
        """
        if self.inputs is not None:
            self.inputs.check()
        checkpoint = None if self.known.origin is None else self.known.origin.checkpoint
        if checkpoint is not None and not os.path.isdir(checkpoint):
            raise InputError(
                f"The trials of this study begin at {checkpoint}, which is no more.",
                "Begin a new study with --restart, or name a checkpoint with --from-checkpoint.",
            )
        with self._device() as device, self._servers.at(self._environment(plan)) as starts:
            for times in range(LOST_TIMES + 1):
                # A colder start may be settled on while we wait; what takes its server down every time gets its own.
                cold = times == LOST_TIMES or bool(inside(VARIABLE, self._overrides(plan)))
                start = COLD if cold else plan.start or starts.start
                folder = self._new_folder(plan.name)
                orders = self._request(plan, folder, device)
                attempt = _Attempt(plan, start, starts, folder, Traces.of(folder), orders)
                ending = self._follow(attempt)
                if ending is not None:
                    break
                if self._interrupted.is_set():
                    raise KeyboardInterrupt
        return self._kept(attempt, ending)

    def _request(self, plan: Plan, folder: Path, device: str | None) -> TrialOrders:
        """What the probe of a run is told."""
        settings, capture = self.known.settings, self.starts.capture
        overrides, launched = dict(self._overrides(plan)), self.starts.launched
        variables = self._deepspeed_of(overrides, folder)
        plain = overrides.get(LAUNCHER) == PYTHON and launched is not None
        started = capture is not None and capture.started
        return TrialOrders(
            str(folder),
            {name: value for name, value in overrides.items() if not name.startswith(("launch.", VARIABLE, PACKAGE))},
            targets=settings.targets if settings is not None else Targets(plan.training),
            steps=plan.steps,
            opened=None if self.inputs is None else self.inputs.to_note(),
            stop_when_non_finite=plan.stop is not StopRule.DEATH,
            env={
                **(
                    {} if plan.purpose is Purpose.BAD_BASELINE else own_port(os.environ)
                ),  # the first run is the user's, as it is
                **(without_launcher(launched.given[0]) if plain else {}),
                **_launched_with(overrides),
                **variables,
                **plan.environment,
                **({} if device is None else {"CUDA_VISIBLE_DEVICES": device}),
            },
            started=started,
            port=free_port() if started and launched is None else None,
            instruments=plan.instruments,
            threads=max(1, (os.cpu_count() or 1) // self._jobs) if self._jobs > 1 else None,
            processes=None if capture is None else processes_in(capture.args, overrides),
            launcher=overrides.get(LAUNCHER),
            origin=self.known.origin,
            checkpoints=plan.checkpoints,
            least_seconds=plan.least_seconds,
            exchanged=None if plan.exchanged is None else {str(row): other for row, other in plan.exchanged.items()},
        )

    def _deepspeed_of(self, overrides: dict[str, Encoded], folder: Path) -> dict[str, str]:
        """Write a DeepSpeed file of a run's own, where it is to have another than the user's.

        Args:
            overrides: of the run; gets the file where the training arguments name the user's.
            folder: of the run.

        Returns:
            The environment variables that name it, where the launcher names the user's.
        """
        capture = self.starts.capture
        changes = inside(DEEPSPEED_FILE, overrides)
        if not changes or capture is None or capture.deepspeed is None:
            return {}
        path = folder / "deepspeed.json"
        write_json(path, with_leaves(capture.deepspeed.content, changes))
        if capture.deepspeed.of_launcher:
            return {DEEPSPEED_FILE_VARIABLE: str(path)}
        overrides.setdefault("args.deepspeed", str(path))
        return {}

    def _follow(self, attempt: _Attempt) -> Ending | None:
        """Start a run and stay with it to its end; None if its server went away, so that it says nothing."""
        plan, folder, traces, orders = attempt.plan, attempt.folder, attempt.traces, attempt.orders
        write_json(folder / "configuration.json", dict(plan.configuration))
        command, more = attempt.starts.cold(orders, free_port())
        environment = self._write_cold_orders(attempt, command, more)
        if attempt.start == COLD:
            child = self._supervisor.start(command, {**environment, **more}, folder)
        else:
            child = attempt.starts.fork(orders)
        if child is None:
            return None
        ending = watch(
            Training(child, traces),
            traces,
            plan.patience or self._patience(plan.configuration),
            enough=lambda traces: self._has_shown(plan, traces),
            progress=lambda traces: self._on_progress(plan.name, traces.metrics.rows, plan.steps),
            interrupted=self._interrupted,
            costly=plan.is_too_costly,
        )
        return None if ending.exit_code is not None and child.lost else ending

    def _kept(self, attempt: _Attempt, ending: Ending) -> Run:
        """Write down how a run ended, and read what it left."""
        plan, start, folder, traces = attempt.plan, attempt.start, attempt.folder, attempt.traces
        if plan.instruments is not None:  # what is slow under instruments says nothing of other runs
            ending = replace(ending, longest_silence=0.0, phases={}, stood="", paused=())
        traces.read()
        traces.adopt()
        shorten(folder / "log.txt")
        clean_folder(folder, traces.events)
        if self.inputs is not None:  # it may have changed before the script was read: then this is no evidence
            self.inputs.after_run(traces)
            self.inputs.check()
        made = len(traces.metrics.rows)
        write_json(folder / "ending.json", {**asdict(ending), "horizon": plan.steps, "steps": made, "level": start})
        self._seen.note(ending, made)
        seen = observe(traces, folder, ending)
        return Run(seen, traces, folder, plan.steps, start, ending.costly)

    def _patience(self, configuration: Configuration) -> Patience:
        start = self.starts.patience
        if self._timeout is not None:
            return Patience(max(start, self._timeout), self._timeout, self._timeout)
        seen = self._seen
        if seen.silence is None:
            first = UNKNOWN_SECONDS
        else:
            # Where a step is more work its pauses are longer, too.
            more = max(1.0, self.settings.work(configuration) / self.settings.work(self.settings.good))
            first = max(FIRST_STEP_SECONDS, HANG_TIMES * seen.silence * more)
        repeats = configuration == self.settings.bad
        return Patience(
            start,
            first,
            HANG_SECONDS,
            times=HANG_TIMES,
            seen=seen.phases if seen.silence is None else {**seen.phases, IN_TRAINING: seen.silence},
            hangs=seen.hangs if repeats or seen.passing is not None else (),
            repeats=repeats,
        )

    # ------------------------------------------------------------------------------------------------ files

    def _write_cold_orders(self, attempt: _Attempt, command: Sequence[str], more: Mapping[str, str]) -> dict[str, str]:
        """Write orders for a cold start, and the command that repeats the trial by hand; the environment for either.

        Args:
            attempt: whose orders they are.
            command: that starts it cold.
            more: environment variables that this needs besides.
        """
        folder, orders = attempt.folder, attempt.orders
        variables = inside(VARIABLE, self._overrides(attempt.plan))
        gone = [name for name, value in variables.items() if value is None]
        given = {name: value for name, value in variables.items() if value is not None}
        own = {name: value for name, value in os.environ.items() if name not in gone}
        environment, restore = probe_environment({**own, **given}, folder / ORDERS_FILE)
        write_json(folder / ORDERS_FILE, to_json(Cold(restore, orders)))
        # By hand the run goes to a folder of its own, so that the evidence stays as it is.
        again = replace(orders, folder=str(folder / "by-hand"))
        write_json(folder / "orders-by-hand.json", to_json(Cold(restore, again)))
        told = {name: value for name, value in self.script.variables.items() if not is_masked(name, value)}
        env = {name: value for name, value in orders.env.items() if value is not None}
        told = {**told, **given, **more, **{name: environment[name] for name in restore}, **env}
        told["BISECT_CFG_PROBE"] = str(folder / "orders-by-hand.json")
        told_in_words = " ".join(f"{name}={shlex.quote(value)}" for name, value in told.items())
        self._write_by_hand(
            folder,
            f"mkdir -p {shlex.quote(again.folder)}",
            f"exec env {''.join(f'-u {name} ' for name in gone)}{told_in_words} \\",
            f"  {by_hand(command)}",
        )
        return environment


def _launched_with(overrides: Mapping[str, Encoded]) -> dict[str, str | None]:
    """The environment variables with which a launcher would have given a run these settings."""
    found: dict[str, str | None] = {}
    for name, value in overrides.items():
        if name.startswith("launch."):
            found |= variables_of(name, value)
    return found
