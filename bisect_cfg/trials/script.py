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
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
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
from bisect_cfg.trials.patience import (
    FIRST_STEP_SECONDS,
    HANG_SECONDS,
    HANG_TIMES,
    PHASE_SECONDS,
    UNKNOWN_SECONDS,
    Patience,
)
from bisect_cfg.trials.process import Child, Ending, Keeper, Sweep, follow, launch
from bisect_cfg.trials.result import TrialRequest, TrialResult
from bisect_cfg.trials.server import ForkedChild, ServerGone, TrialServer, probe_environment
from bisect_cfg.trials.training import Training
from bisect_cfg.trials.validity import ConfigChecks
from bisect_cfg.trials.verdict import FailureTest, Observation, judge, observe

LEVELS = ("config", "imports", "cold")
"""Ways to start a trial, fastest first."""

HORIZON_FACTOR = 2
HORIZON_MARGIN = 4
"""A trial runs for twice the steps after which the bad configuration fails, and at least four more: other
settings can delay a failure (a warmup, a stronger clip) without being its cause."""

STRETCH = 2
"""Runs on which the answer rests go on for this many horizons: a failure that is only delayed shows itself there."""

REPRODUCTION_PATIENCE = Patience(1800.0, UNKNOWN_SECONDS, HANG_SECONDS, times=HANG_TIMES)
"""For the first run, when nothing is known about the script's pace: half an hour to load data and a model, two minutes
for the first step; from there on the run tells its pace itself. `--trial-timeout` overrides all of it."""

REPRODUCTION_STEPS = 100
"""How long the first run of the bad configuration waits for it to fail, in optimizer steps, unless told otherwise."""

AFTER_SYMPTOM_STEPS = 20
"""How many steps the first run goes on after a silent failure is certain: something harder may follow, and then that
is the failure to study."""

SERVER_PATIENCE = 3.0
"""A server, or a trial, gets this many times as long to reach its fork point, or its training, as the first run took
to get to its training; and never less than `PHASE_SECONDS`."""


COLD_CHECK = "cold_check"
"""Attribute of a result whose trial died of something else and was repeated cold: "same" if that showed the same,
"other" if not; then it is the result of the cold run, and later trials start cold."""

LOST_TIMES = 2
"""A trial whose server went away, or does not stand, says nothing; it is asked again so many times. After that it is
started cold: what takes its server down every time has no part in one of its own."""

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


_ports_given: set[int] = set()


def own_port(environment: Mapping[str, str]) -> dict[str, str]:
    """Where the environment makes a training config open a process group of one (as torchrun leaves it), a free port for
    it; nothing otherwise. Trials that run at once must not meet, and one that is being ended may hold its port a moment
    longer."""
    alone = environment.get("WORLD_SIZE", "1") == "1"
    if not alone or "MASTER_PORT" not in environment:
        return {}
    port = 0
    for _ in range(100):  # the system hands out others each time, as a rule
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        if port not in _ports_given:
            break
    _ports_given.add(port)
    return {"MASTER_PORT": str(port)}


def horizon_for(step: int) -> int:
    """Steps a trial runs when the bad configuration fails at `step` (counted from 1)."""
    return max(HORIZON_FACTOR * step, step + HORIZON_MARGIN)


@dataclass(frozen=True)
class Run:
    """A run that is over: what happened, and the traces it left.

    Attributes:
        seen: what happened.
        traces: what its probe wrote.
        folder: of the run.
        horizon: optimizer steps it was to make; None for all the script has.
        level: how it was started; "" if that is not known.
        costly: whether it was ended because it takes longer than can be afforded.
    """

    seen: Observation
    traces: Traces
    folder: Path
    horizon: int | None = None
    level: str = ""
    costly: bool = False


def _read_ending(folder: Path) -> tuple[Ending, dict[str, Any]] | None:
    """How a run ended, and what else ``ending.json`` says of it; None if it did not come to its end."""
    try:
        kept = json.loads((folder / "ending.json").read_text(encoding="utf-8"))
        known = {field.name: kept.pop(field.name) for field in fields(Ending) if field.name in kept}
        known["phases"] = {str(name): float(seconds) for name, seconds in known.get("phases", {}).items()}
        ending = Ending(**known)
        float(ending.longest_silence), int(kept.get("steps", 0))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    told = isinstance(ending.exit_code, (int, type(None))) and isinstance(ending.hang, (str, type(None)))
    return (ending, kept) if told and isinstance(ending.seconds, (int, float)) else None


def load_run(study: Path, number: int | str) -> Run | None:
    """A run that ended before, read back from its folder; None if there is none that came to its end."""
    folder = study / "trials" / str(number)
    found = _read_ending(folder)
    if found is None:
        return None
    ending, kept = found
    traces = Traces.of(folder)
    traces.read()
    seen = observe(traces, folder, ending.exit_code, ending.hang, ending.seconds)
    return Run(seen, traces, folder, kept.get("horizon"), kept.get("level", ""), ending.costly)


class Pauses:
    """The longest silences of the runs so far, which tell how long one may be in the runs to come.

    Attributes:
        silence: in training, outside of named slow phases, in seconds; None if no run has made a step yet.
        phases: name of a slow phase -> seconds.
    """

    def __init__(self) -> None:
        self.silence: float | None = None
        self.phases: dict[str, float] = {}

    @classmethod
    def of(cls, study: Path) -> Pauses:
        """Those of the runs that a study folder holds."""
        found = cls()
        for path in study.glob("trials/*/ending.json"):
            ending = _read_ending(path.parent)
            if ending is not None:
                found.note(ending[0], int(ending[1].get("steps", 0)))
        return found

    def note(self, ending: Ending, steps: int) -> None:
        """Another run is over, after so many steps."""
        if steps:
            self.silence = max(self.silence or 0.0, ending.longest_silence)
        for name, seconds in ending.phases.items():
            self.phases[name] = max(self.phases.get(name, 0.0), seconds)


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
        self._seen = Pauses.of(folder)
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
        self._interrupted.set()  # whatever is still waiting for a trial does not start it again
        self.checks.save()
        with self._server_lock:
            self._close_server()
        self._keeper.close()

    def interrupt(self) -> None:
        """End the running trials: on Ctrl-C, or because their results are not needed. None starts before `go_on`."""
        self._interrupted.set()

    def go_on(self) -> None:
        """Further trials may start. Call it only once all that were interrupted have ended."""
        self._interrupted.clear()

    # ------------------------------------------------------------------------------------------------ starting points

    def prepare_server(self) -> None:
        """Let a process import the libraries while the first run goes on; it runs none of the user's code yet."""
        with self._server_lock:
            if self._server is None:
                self._server = self._new_server(probable_imports(self.script.path))
                self._server_level = "preparing"

    def start_server(self, level: str) -> str | None:
        """Have trials start at a level from now on; brings up the process that they are forked from.

        Returns:
            None if it stands and forking it is sound, otherwise why not.
        """
        if level != "cold" and self.capture is not None and self.capture.started:
            return "the training runs in another process, which the script starts"
        with self._server_lock:
            reason = self._stand(level)
            if reason is None:
                self.level = level
            return reason

    def _stand(self, level: str) -> str | None:
        """Bring up the server of a level, whatever the level that trials start at; as `start_server`."""
        with self._server_lock:
            if self._server is not None and level == self._server_level:
                return None
            if self._server_level == "config" or (level == "cold" and self._server is not None):
                self._close_server()  # it cannot go back
            if level == "cold":
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
            self._server_level = level
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
        return server.wait_until_ready(max(PHASE_SECONDS, SERVER_PATIENCE * self.start_seconds), self._interrupted)

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server, self._server_level = None, ""

    def resolve(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Build one configuration object in the user's environment; see the probe's `build`."""
        for _ in range(2):
            with self._server_lock:
                if self._server_level in ("", "preparing"):
                    reason = self._stand("imports" if self.level == "cold" else self.level)
                    if reason is not None:
                        raise InputError(
                            f"The process in which configurations are checked cannot be started: {reason}.",
                            f"Its log is {self.folder / 'server' / 'log.txt'}.",
                        )
                server = self._server
            try:
                return server.resolve([item])[0]
            except ServerGone:
                with self._server_lock:
                    if self._server is server:
                        self._close_server()
        return {"error": "building this configuration ends the process", "unanswered": True}

    def is_valid(self, configuration: Mapping[str, Any]) -> str | None:
        """None if the training config can be built, otherwise the library's own words. Trains nothing."""
        return self.checks.error(self.settings.args_item(configuration))

    # ------------------------------------------------------------------------------------------------ running

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial and judge it by the failure under study."""
        steps = self.horizon * (STRETCH if request.purpose.proves else 1)
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
        same = cold.signature == warm.signature
        checked = replace(
            warm if same else cold,
            attributes={**(warm if same else cold).attributes, COLD_CHECK: "same" if same else "other"},
        )
        self.recall([checked])
        return checked

    def recall(self, results: Iterable[TrialResult]) -> None:
        """Take up what earlier results have shown of how trials must be run, in their order: that a cold start shows the
        same as a warm one, or does not, and that the failure can come later than was thought. A study that is resumed
        goes on as it would have."""
        for result in results:
            check, horizon = result.attributes.get(COLD_CHECK), result.attributes.get("horizon")
            if check == "same":
                self._also_cold.add(result.signature)
            elif check == "other" and self.level != "cold":
                # What the warm start shows is not what the user's command shows. From here on start cold.
                self.start_server("cold")
            if result.outcome is Outcome.FAIL and horizon is not None:
                self._see_failure(result.step)

    def _see_failure(self, step: int | None) -> None:
        """If it failed later than trials used to run, from now on they run long enough to see that."""
        if step is not None and self.horizon and step > self.horizon:
            self.horizon = horizon_for(step)

    def judged(self, run: Run, steps: int | None) -> TrialResult:
        """The result of a run: its outcome under the failure under study, and what is worth keeping."""
        seen = run.seen
        if seen.invalid is not None:
            outcome, signature = Outcome.UNRESOLVED, Signature("invalid", "", seen.invalid)
        else:
            outcome, signature = judge(seen, self.is_failure, self.usual)
        if outcome is Outcome.FAIL:
            self._see_failure(seen.step)
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
                "level": run.level or self.level,
                "horizon": run.horizon if steps is None else steps,
                "steps": seen.steps,
                "ended": _ended(run),
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
        costly: Callable[[Traces, float], bool] = lambda traces, seconds: False,
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
            costly: whether it takes longer than can be afforded, asked all the time with the seconds since its start.

        Raises:
            InputsChanged: what the trials read is not what it was; this run does not count.
        """
        if self.before_run is not None:
            self.before_run()
        if self.inputs is not None:
            self.inputs.check()
        if overrides is None:
            overrides = self.settings.overrides(configuration)
        device = self._slots.get() if self._has_devices else None
        try:
            for attempt in range(LOST_TIMES + 1):
                # The level may fall while we wait; and what takes its server down every time has one of its own.
                at = "cold" if attempt == LOST_TIMES else level or self.level
                folder = self._new_folder(number)
                request = {
                    "folder": str(folder),
                    "overrides": dict(overrides),
                    "targets": self.settings.targets if self.settings is not None else None,
                    "steps": steps,
                    "opened": None if self.inputs is None else self.inputs.to_note(),
                    "stop_when_non_finite": not until_it_dies,
                    "env": {
                        **({} if number == 0 else own_port(os.environ)),  # the first run is the user's, as it is
                        **(env or {}),
                        **({} if device is None else {"CUDA_VISIBLE_DEVICES": device}),
                    },
                    "started": self.capture is not None and self.capture.started,
                    "instruments": None if instruments is None else dict(instruments),
                    "threads": max(1, (os.cpu_count() or 1) // self._jobs) if self._jobs > 1 else None,
                }
                write_json(folder / "configuration.json", dict(configuration))
                environment, orders_path = self._write_cold_orders(folder, request)
                traces = Traces.of(folder)
                with self._sweep.around(self._server_group):
                    child: Child
                    if at == "cold":
                        child = launch(self.script.command, environment, folder, "log.txt", self._keeper)
                    else:
                        forked = self._fork(request)
                        if forked is None:
                            continue
                        child = forked
                    ending = follow(
                        Training(child, traces),
                        traces,
                        patience or self._patience(configuration),
                        enough=_until(enough or self._enough(until_it_dies), seconds),
                        progress=lambda traces: self._on_progress(number, len(traces.metrics.rows), steps),
                        interrupted=self._interrupted,
                        costly=costly,
                    )
                self._keeper.remove(child.pid)
                if not (ending.exit_code is not None and getattr(child, "lost", False)):
                    break
                if self._interrupted.is_set():
                    raise KeyboardInterrupt
            if instruments is not None:  # what is slow under instruments says nothing of other runs
                ending = replace(ending, longest_silence=0.0, phases={})
            traces.read()
            traces.adopt()
            shorten(folder / "log.txt")
            if self.inputs is not None:  # it may have changed before the script was read: then this is no evidence
                self.inputs.after_run(traces)
                self.inputs.check()
            made = len(traces.metrics.rows)
            write_json(folder / "ending.json", {**asdict(ending), "horizon": steps, "steps": made, "level": at})
            self._seen.note(ending, made)
            seen = observe(traces, folder, ending.exit_code, ending.hang, ending.seconds)
            return Run(seen, traces, folder, steps, at, ending.costly)
        finally:
            if device is not None:
                self._slots.put(device)

    def _server_group(self) -> int | None:
        server = self._server
        return None if server is None else server.pid

    def _fork(self, request: Mapping[str, Any]) -> ForkedChild | None:
        """Fork a trial from the server; None if that is gone, or no longer to be used."""
        with self._server_lock:
            if self.level == "cold" or self.start_server(self.level) is not None:
                return None
            server = self._server
        try:
            return server.fork(request)
        except ServerGone:
            with self._server_lock:
                if self._server is server:
                    self._close_server()
            return None

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
        start = max(PHASE_SECONDS, SERVER_PATIENCE * self.start_seconds)
        if self._timeout is not None:
            return Patience(max(start, self._timeout), self._timeout, self._timeout)
        seen = self._seen
        if seen.silence is None:
            first = UNKNOWN_SECONDS
        else:
            # Where a step is more work its pauses are longer, too.
            more = max(1.0, self.settings.work(configuration) / self.settings.work(self.settings.good))
            first = max(FIRST_STEP_SECONDS, HANG_TIMES * seen.silence * more)
        return Patience(start, first, HANG_SECONDS, times=HANG_TIMES, seen=dict(seen.phases))

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


def _ended(run: Run) -> str:
    """What ended a run: "failure", its "horizon", the "end" of the script's training, or that we had seen enough
    ("stopped")."""
    if run.seen.died is not None:
        return "failure"
    end = run.traces.event("train_end")
    if end is None:
        return "stopped"
    return "horizon" if end.get("stopped") == "horizon" else "end"


def _until(enough: Callable[[Traces], bool], seconds: float | None) -> Callable[[Traces], bool]:
    if seconds is None:
        return enough
    return lambda traces: enough(traces) or (
        bool(traces.metrics.rows) and traces.metrics.rows[-1]["time"] > seconds
    )
