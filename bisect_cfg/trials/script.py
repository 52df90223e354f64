"""Runs a training script with some of its settings changed: the runner behind `bisect-cfg bisect train.py`.

One trial is one process in a process group of its own, in a folder of its own (``trials/N``: ``log.txt``,
``events.jsonl``, ``metrics.jsonl``, ``stacks.txt``, ``configuration.json``, ``command.sh``, ``result.json``, and the
script's ``output``). It is a prefix of the user's real run, stopped at the horizon.

It is started at the deepest *level* that is sound: "config" forks from a process that has run the script up to its
configuration, "imports" from one that has imported the libraries, "cold" runs the user's command from the start.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bisect_cfg.diagnosis.signature import Signature
from bisect_cfg.errors import InputError
from bisect_cfg.factors import Outcome
from bisect_cfg.inputs import Inputs
from bisect_cfg.jsonfile import make_folder, write_json, write_text
from bisect_cfg.targets.captured import Capture, fork_point
from bisect_cfg.targets.script import Script
from bisect_cfg.targets.settings import Settings
from bisect_cfg.trials import health
from bisect_cfg.trials.files import Traces
from bisect_cfg.trials.keeper import shorten
from bisect_cfg.trials.process import Child, Ending, Keeper, Patience, Sweep, follow, launch
from bisect_cfg.trials.result import TrialRequest, TrialResult
from bisect_cfg.trials.server import ServerGone, TrialServer, probe_environment
from bisect_cfg.trials.training import Training
from bisect_cfg.trials.validity import ConfigChecks
from bisect_cfg.trials.verdict import FailureTest, Observation, judge, observe

LEVELS = ("config", "imports", "cold")
"""Ways to start a trial, fastest first."""

HORIZON_FACTOR = 2
HORIZON_MARGIN = 4
"""A trial runs for twice the steps after which the bad configuration fails, and at least four more: other
settings can delay a failure (a warmup, a stronger clip) without being its cause."""

PROOFS = ("cause fails", "cause minus one", "correction")
STRETCH = 2
"""Runs for these purposes, on which the answer rests, go on for this many horizons: a failure that is only delayed
shows itself there."""

HANG_SECONDS = 20.0
"""No step for this long is the least that is called a hang."""

HANG_STEPS = 10.0
"""... and so many times the usual duration of a step, whichever is longer."""

REPRODUCTION_PATIENCE = Patience(before_training=1800.0, first_step=120.0, step=120.0)
"""For the first run, when nothing is known about the script's pace: half an hour to load data and a model, two minutes
for a step. `--trial-timeout` overrides all three."""

REPRODUCTION_STEPS = 100
"""How long the first run of the bad configuration waits for it to fail, in optimizer steps, unless told otherwise."""

AFTER_SYMPTOM_STEPS = 20
"""How many steps the first run goes on after a silent failure is certain: something harder may follow, and then that
is the failure to study."""

SERVER_PATIENCE = 3.0
"""A server gets this many times as long to reach its fork point as the first run took to get to its training."""


IMPORTED_BY_ALL = ("torch", "transformers", "trl", "trl.trainer.grpo_trainer", "trl.trainer.grpo_config")
IMPORTED_BY_SOME = ("datasets", "peft", "accelerate", "bitsandbytes", "vllm", "deepspeed")
"""What takes seconds to import. Until the first run has shown what a script imports, these are imported ahead for it:
the first always, the others where its text names them."""


def probable_imports(script: Path) -> list[str]:
    """Modules worth importing ahead of a script, save those that a file beside it would shadow."""
    try:
        text = script.read_text(errors="replace")
    except OSError:
        text = ""
    wanted = [*IMPORTED_BY_ALL, *(name for name in IMPORTED_BY_SOME if re.search(rf"\b{name}\b", text))]
    folder = script.resolve().parent

    def shadowed(name: str) -> bool:
        top = name.split(".")[0]
        return (folder / top).is_dir() or (folder / f"{top}.py").exists()

    return [name for name in wanted if not shadowed(name)]


def horizon_for(step: int) -> int:
    """Steps a trial runs when the bad configuration fails at `step` (counted from 1)."""
    return max(HORIZON_FACTOR * step, step + HORIZON_MARGIN)


@dataclass(frozen=True)
class Run:
    """A run that is over: what happened, and the traces it left."""

    seen: Observation
    traces: Traces
    folder: Path


def load_run(study: Path, number: int | str) -> Run | None:
    """A run that ended before, read back from its folder; None if there is none that came to its end."""
    folder = study / "trials" / str(number)
    try:
        ending = Ending(**json.loads((folder / "ending.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    told = isinstance(ending.exit_code, (int, type(None))) and isinstance(ending.hang, (str, type(None)))
    if not (told and isinstance(ending.seconds, (int, float))):
        return None
    traces = Traces.of(folder)
    traces.read()
    return Run(observe(traces, folder, ending.exit_code, ending.hang, ending.seconds), traces, folder)


class ScriptRunner:
    """Runs trials of one script; see the module.

    Args:
        script: what to run.
        folder: the study folder.
        timeout: seconds without a step that are called a hang; None scales it from the good run's pace.
        jobs: trials that may run at once.
        devices: values of CUDA_VISIBLE_DEVICES for the parallel trials, handed out in turn; empty: leave it.
        on_progress: called with (trial number, steps done, horizon) while a trial runs.
    """

    def __init__(
        self,
        script: Script,
        folder: Path,
        *,
        timeout: float | None = None,
        jobs: int = 1,
        devices: Sequence[str] = (),
        on_progress: Callable[[int, int, int | None], None] = lambda number, steps, horizon: None,
    ) -> None:
        self.script, self.folder = script, folder
        self.capture: Capture | None = None
        self.settings: Settings | None = None
        self.inputs: Inputs | None = None  # compared around every run
        self.horizon: int | None = None
        self.level = "cold"
        self.is_failure: FailureTest | None = None
        self.silent = False  # whether the failure under study is one that does not end the run
        self.usual: frozenset[str] = frozenset()
        self.good_pace: float | None = None
        self.before_run: Callable[[], None] | None = None  # may raise, and then nothing is run
        self.start_seconds = 0.0
        self._timeout, self._jobs = timeout, jobs
        self._on_progress = on_progress
        self._keeper = Keeper()
        self._sweep = Sweep(self._keeper)
        self._server: TrialServer | None = None
        self._server_level = ""
        self._server_lock = threading.RLock()
        self._interrupted = threading.Event()
        self.checks = ConfigChecks(folder / "validity.json", self.resolve)
        self._also_cold: set[str | None] = set()  # signatures of other failures that a cold start shows as well
        self._slots: queue.SimpleQueue[str] = queue.SimpleQueue()
        for device in devices:
            self._slots.put(device)
        self._has_devices = bool(devices)

    # ------------------------------------------------------------------------------------------------ life and death

    def close(self) -> None:
        """End everything that was started; nothing of the study runs afterwards."""
        self.checks.save()
        with self._server_lock:
            self._close_server()
        self._keeper.close()

    def interrupt(self) -> None:
        """End the running trials (called on Ctrl-C)."""
        self._interrupted.set()

    # ------------------------------------------------------------------------------------------------ starting points

    def prepare_server(self) -> None:
        """Let a process import the libraries while the first run goes on; it runs none of the user's code yet."""
        with self._server_lock:
            if self._server is None:
                self._server = self._new_server(probable_imports(self.script.path))
                self._server_level = "preparing"

    def start_server(self, level: str) -> str | None:
        """Bring up the process that trials are forked from.

        Returns:
            None if it stands and forking it is sound, otherwise why not.
        """
        if level != "cold" and self.capture is not None and self.capture.started:
            return "the training runs in another process, which the script starts"
        return self._bring_up(level)

    def _bring_up(self, level: str) -> str | None:
        with self._server_lock:
            if self._server is not None and level == self._server_level:
                self.level = level
                return None
            if self._server_level == "config" or (level == "cold" and self._server is not None):
                self._close_server()  # it cannot go back
            if level == "cold":
                self.level = level
                return None
            if self._server_level == "preparing" and self.capture is not None and self.capture.prepares:
                self._close_server()  # what it imported, it imported too early
            fresh = self._server is None
            if fresh:
                ahead = self.capture is not None and not self.capture.prepares
                self._server = self._new_server(self.capture.modules if ahead else ())
            reason = None
            if fresh or self._server_level == "preparing":
                reason = self._ready(self._server)
            if reason is None and level == "config":
                self._server.advance(fork_point(self.capture))
                reason = self._ready(self._server)
            if reason is not None:
                self._close_server()
                return reason
            self._server_level = self.level = level
            return None

    def _new_server(self, modules: Sequence[str]) -> TrialServer:
        folder = self.folder / "server"
        make_folder(folder)
        orders_path = folder / "orders.json"
        environment, restore = probe_environment(os.environ, orders_path)
        orders = {"level": "imports", "restore": restore, "modules": list(modules)}
        command = self.script.command
        if self.capture is not None and self.capture.started:  # never run, but its libraries must be those that train
            command = [self.capture.environment.get("executable") or command[0], *command[1:]]
        return TrialServer(command, environment, orders, orders_path, "log.txt", self._keeper)

    def _ready(self, server: TrialServer) -> str | None:
        # The second time everything comes from the disk cache, so this bound is generous.
        return server.wait_until_ready(max(60.0, SERVER_PATIENCE * self.start_seconds), self._interrupted)

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server, self._server_level = None, ""

    def resolve(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Build one configuration object in the user's environment; see the probe's `build`."""
        for _ in range(2):
            with self._server_lock:
                if self._server_level in ("", "preparing"):
                    level = self.level
                    reason = self._bring_up("imports" if level == "cold" else level)
                    if reason is not None:
                        raise InputError(
                            f"The process in which configurations are checked cannot be started: {reason}.",
                            f"Its log is {self.folder / 'server' / 'log.txt'}.",
                        )
                    self.level = level  # trials go on starting as they did
                server = self._server
            try:
                return server.resolve([item])[0]
            except ServerGone:
                with self._server_lock:
                    if self._server is server:
                        self._close_server()
        return {"error": "building this configuration ends the process"}

    def is_valid(self, configuration: Mapping[str, Any]) -> str | None:
        """None if the training config can be built, otherwise the library's own words. Trains nothing."""
        return self.checks.error(self.settings.args_item(configuration))

    # ------------------------------------------------------------------------------------------------ running

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial and judge it by the failure under study."""
        steps = self.horizon * (STRETCH if request.purpose in PROOFS else 1)
        run = self.train(request.number, request.configuration, steps)
        result = self.judged(run, steps)
        if result.outcome is Outcome.UNRESOLVED and self.level != "cold" and run.seen.invalid is None:
            return self._checked_cold(request, result, steps)
        return result

    def _checked_cold(self, request: TrialRequest, warm: TrialResult, steps: int) -> TrialResult:
        """A trial that died of something else may owe it to the warm start: once for each such signature, see."""
        if warm.signature in self._also_cold:
            return warm
        run = self.train(f"{request.number}-cold", request.configuration, steps, level="cold")
        cold = self.judged(run, steps)
        if cold.signature == warm.signature:
            self._also_cold.add(warm.signature)
            return warm
        # What the warm start shows is not what the user's command shows. From here on start cold.
        self.start_server("cold")
        return cold

    def judged(self, run: Run, steps: int | None) -> TrialResult:
        """The result of a run: its outcome under the failure under study, and what is worth keeping."""
        seen = run.seen
        if seen.invalid is not None:
            outcome, signature = Outcome.UNRESOLVED, Signature("invalid", "", seen.invalid)
        else:
            outcome, signature = judge(seen, self.is_failure, self.usual)
        if outcome is Outcome.FAIL and self.horizon and seen.step > self.horizon:
            # It failed later than trials used to run: from now on they run long enough to see that.
            self.horizon = horizon_for(seen.step)
        message = seen.message
        if not message and signature is not None:
            message = next((s.text for s in seen.symptoms), str(signature))
        result = TrialResult(
            outcome,
            None if signature is None else str(signature),
            message,
            seen.seconds,
            seen.step if signature is not None else seen.steps,
            {
                "folder": run.folder.name,
                "level": self.level,
                "horizon": steps,
                "steps": seen.steps,
                "failure": None if signature is None else signature.to_json(),
                "remarks": list(seen.remarks),
                "symptoms": [asdict(symptom) for symptom in seen.symptoms],
            },
        )
        saved = {**asdict(result), "outcome": result.outcome.value}
        write_json(run.folder / "result.json", saved)
        return result

    def train(
        self,
        number: int | str,
        configuration: Mapping[str, Any],
        steps: int | None,
        *,
        level: str | None = None,
        patience: Patience | None = None,
        until_it_dies: bool = False,
        overrides: Mapping[str, Any] | None = None,
        seconds: float | None = None,
        instruments: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        enough: Callable[[Traces], bool] | None = None,
    ) -> Run:
        """Train with a configuration and say what happened.

        Args:
            number: names the folder.
            configuration: factor name -> value.
            steps: optimizer steps, None for all the script has.
            level: how to start; None: the runner's level.
            patience: when silence is a hang; None: scaled from the good run.
            until_it_dies: do not stop at NaN weights or at a silent failure, but let the run die by itself.
            overrides: encoded overrides in place of those that `configuration` means (before it is known).
            seconds: a bound on the whole run; reaching it ends the run like a horizon.
            instruments: what to find out besides (see the probe's `instruments`); None for an ordinary trial.
            env: further environment variables.
            enough: whether what is seen so far settles it; None: a silent failure under study does.

        Raises:
            InputsChanged: what the trials read is not what it was; this run does not count.
        """
        if self.before_run is not None:
            self.before_run()
        level = level or self.level
        if self.inputs is not None:
            self.inputs.check()
        folder = self._new_folder(number)
        if overrides is None:
            overrides = self.settings.overrides(configuration)
        device = self._slots.get() if self._has_devices else None
        try:
            request = {
                "folder": str(folder),
                "overrides": dict(overrides),
                "targets": self.settings.targets if self.settings is not None else None,
                "steps": steps,
                "opened": None if self.inputs is None else self.inputs.to_note(),
                "stop_when_non_finite": not until_it_dies,
                "env": {**(env or {}), **({} if device is None else {"CUDA_VISIBLE_DEVICES": device})},
                "started": self.capture is not None and self.capture.started,
                "instruments": None if instruments is None else dict(instruments),
                "threads": max(1, (os.cpu_count() or 1) // self._jobs) if self._jobs > 1 else None,
            }
            write_json(folder / "configuration.json", dict(configuration))
            environment, orders_path = self._write_cold_orders(folder, request)
            traces = Traces.of(folder)
            with self._sweep.around(self._server_group):
                child: Child
                if level == "cold":
                    child = launch(self.script.command, environment, folder, "log.txt", self._keeper)
                else:
                    child = self._fork(request)
                ending = follow(
                    Training(child, traces),
                    traces,
                    patience or self._patience(configuration),
                    enough=_until(enough or self._enough(until_it_dies), seconds),
                    progress=lambda traces: self._on_progress(number, len(traces.metrics.rows), steps),
                    interrupted=self._interrupted,
                )
            self._keeper.remove(child.pid)
            traces.read()
            traces.adopt()
            shorten(folder / "log.txt")
            if self.inputs is not None:  # it may have changed before the script was read: then this is no evidence
                self.inputs.after_run(traces)
                self.inputs.check()
            write_json(folder / "ending.json", asdict(ending))
            seen = observe(traces, folder, ending.exit_code, ending.hang, ending.seconds)
            return Run(seen, traces, folder)
        finally:
            if device is not None:
                self._slots.put(device)

    def _server_group(self) -> int | None:
        server = self._server
        return None if server is None else server.pid

    def _fork(self, request: Mapping[str, Any]) -> Child:
        for _ in range(2):
            with self._server_lock:
                if self.start_server(self.level) is not None:
                    break
                server = self._server
            try:
                return server.fork(request)
            except ServerGone:
                with self._server_lock:
                    if self._server is server:
                        self._close_server()
        raise InputError(
            "The process that trials are forked from has died twice.",
            f"Its log is {self.folder / 'server' / 'log.txt'}. Start again with --level cold: nothing is lost.",
        )

    def _enough(self, until_it_dies: bool) -> Callable[[Traces], bool]:
        def enough(traces: Traces) -> bool:
            found = health.symptoms(traces.metrics.rows, ended=False)
            if until_it_dies:
                return bool(found) and len(traces.metrics.rows) >= found[0].step + AFTER_SYMPTOM_STEPS
            if not self.silent or self.is_failure is None:
                return False
            return any(self.is_failure(Signature(symptom.kind, symptom.name)) for symptom in found)

        return enough

    def _patience(self, configuration: Mapping[str, Any]) -> Patience:
        start = max(60.0, SERVER_PATIENCE * self.start_seconds)
        if self._timeout is not None:
            return Patience(max(start, self._timeout), self._timeout, self._timeout)
        if self.good_pace is None:
            return Patience(start, REPRODUCTION_PATIENCE.first_step, REPRODUCTION_PATIENCE.step)
        more = max(1.0, self.settings.work(configuration) / self.settings.work(self.settings.good))
        limit = max(HANG_SECONDS, HANG_STEPS * self.good_pace * more)
        # The first step also pays for what the first step always pays: allocation, compilation, generation caches.
        return Patience(start, limit, limit)

    # ------------------------------------------------------------------------------------------------ files

    def _new_folder(self, number: int | str) -> Path:
        folder = self.folder / "trials" / str(number)
        if folder.exists():  # a trial that was interrupted: its traces are kept beside the new ones
            aside = next(
                path
                for i in range(1, 1000)
                if not (path := folder.with_name(f"{number}.interrupted-{i}")).exists()
            )
            folder.rename(aside)
        make_folder(folder)
        return folder

    def _write_cold_orders(self, folder: Path, request: dict[str, Any]) -> tuple[dict[str, str], Path]:
        """Orders for a cold start, and the command that repeats the trial by hand."""
        orders_path = folder / "orders.json"
        environment, restore = probe_environment(os.environ, orders_path)
        write_json(orders_path, {"level": "cold", "restore": restore, "request": request, "targets": request["targets"]})
        # By hand the run goes to a folder of its own, so that the evidence stays as it is.
        by_hand = {**request, "folder": str(folder / "by-hand")}
        write_json(
            folder / "orders-by-hand.json",
            {"level": "cold", "restore": restore, "request": by_hand, "targets": request["targets"]},
        )
        variables = {**{name: environment[name] for name in restore}, **request["env"]}
        variables["BISECT_CFG_PROBE"] = str(folder / "orders-by-hand.json")
        lines = [
            "#!/bin/sh",
            "# Repeats this trial by hand, from the start, with everything printed here.",
            f"cd {shlex.quote(os.getcwd())} || exit",
            f"mkdir -p {shlex.quote(by_hand['folder'])}",
            "exec env " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()) + " \\",
            "  " + self.script.by_hand,
            "",
        ]
        write_text(folder / "command.sh", "\n".join(lines))
        return environment, orders_path


def _until(enough: Callable[[Traces], bool], seconds: float | None) -> Callable[[Traces], bool]:
    if seconds is None:
        return enough
    return lambda traces: enough(traces) or (
        bool(traces.metrics.rows) and traces.metrics.rows[-1]["time"] > seconds
    )
