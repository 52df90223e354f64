"""What `bisect-cfg doctor` does, in three questions, each asked only where it can be.

What the environment is: of this machine, of the interpreter that trains, of every process that a launcher starts, or as
recorded on another machine. What the script sets: it is run up to its trainer, never into training; the other side of
that is `bisect_cfg.probe.dry_run`. Whether the GPUs compute what they should.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from bisect_cfg.common.cells import SUFFIX
from bisect_cfg.common.failures.signals import signal_name
from bisect_cfg.common.files import load_json, read_text
from bisect_cfg.common.fingerprint import Cublas, Fingerprint, fingerprint, loaded_cublas, with_loaded_cublas
from bisect_cfg.common.json_files import JsonObject, strict, write_json
from bisect_cfg.common.parameters.comparing import plain
from bisect_cfg.doctor import gpu_probes, mismatches
from bisect_cfg.doctor.findings import Finding, check, holding, worst_first
from bisect_cfg.errors import InputError
from bisect_cfg.explain import explain_text
from bisect_cfg.probe import protocol
from bisect_cfg.probe.protocol import Arrived, ConfigInvalid, Raised, Stopped
from bisect_cfg.probe.redact import mask_arguments
from bisect_cfg.runner.fork_server import probe_environment
from bisect_cfg.runner.supervisor import Run, Supervisor
from bisect_cfg.runner.traces import Traces, tail_of_log
from bisect_cfg.runner.training import check_watched
from bisect_cfg.runner.watch import LAST_SECONDS, POLL_SECONDS
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.script import Script, find_script
from bisect_cfg.targets.suggestions import outdated_in

SCHEMA = 1
"""Version of what --json prints."""

RECORDED = "--fingerprint takes what doctor --json printed."

START_SECONDS = 1800.0
"""How long a script may load data and a model before it comes to its trainer; as for a first trial."""

MEETING_SECONDS = 180.0
"""How long the other processes of a launched run may come after the first. They start together and import the same;
what separates them is a cold disk."""

SEVERAL_MACHINES = ("srun", "mpirun", "mpiexec", "deepspeed", "pdsh", "ray")
"""Launchers that may reach other machines from one command: those must see the folder that all write into, which then
lies in the working folder."""

LOG_LINES = 8


@dataclass(frozen=True)
class Diagnosis:
    """What was found."""

    findings: tuple[Finding, ...]  # the worst first
    environment: Fingerprint  # that was judged; that of rank 0 of a launched run
    configuration: JsonObject | None = None  # dotted name -> resolved value, None if none was asked for or found
    target: str = ""  # what was run, as the user would type it; "" for the environment alone
    environments: tuple[Fingerprint, ...] = ()  # one a process or a file, where there are several
    probes: tuple[JsonObject, ...] | None = None  # results of the GPU probes; None where they were skipped
    skipped: str = ""  # why they were
    log: tuple[str, ...] = ()  # the last lines of a command that never came to its training

    @property
    def clean(self) -> bool:
        """Whether there is nothing but notes."""
        return all(finding.level == "note" for finding in self.findings)

    def to_json(self) -> JsonObject:
        """What --json prints; `--fingerprint` reads it again."""
        shown = {name: value for name, value in asdict(self).items() if name not in ("skipped", "log")}
        return dict(strict({"schema": SCHEMA, "clean": self.clean, **shown}))


def examine(
    words: Sequence[str] = (),
    *,
    python: str | None = None,
    recorded: Sequence[str] = (),
    nodes: Mapping[str, Fingerprint] | None = None,
) -> Diagnosis:
    """Examine an environment, and the configuration of a target (`words`: a script and its arguments, or a launcher's
    whole command) if there is one. Environments of other machines, recorded ones and those of the nodes of a cluster,
    are judged in place of this one's."""
    files: list[tuple[Fingerprint, JsonObject | None]] = [read_recorded(path) for path in recorded]
    files += [({**found, "rank": node, "host": node}, None) for node, found in sorted((nodes or {}).items())]
    inspection = _inspected(words, python) if words else None
    ranks = inspection.ranks if inspection else ()
    environments = [environment for environment, _ in files] or [rank.environment for rank in ranks] or [_here(python)]
    settings = [rank.settings for rank in ranks] + [configuration for _, configuration in files]
    configuration = next((one for one in settings if one is not None), None)
    if inspection and not files:
        hosts, started = Counter(one.get("host") for one in environments), inspection.launcher
        environments = [{**one, "launcher": started, "local_ranks": hosts[one.get("host")]} for one in environments]
    found = mismatches.compare(environments) if len(environments) > 1 else []
    if inspection:
        found += _of_the_run(inspection)
    judged = [finding for environment in environments for finding in check(environment, configuration)]
    found += {(finding.id, finding.title, finding.why): finding for finding in judged}.values()  # each is told once
    probes, skipped = (None, "the environment is another machine's") if files else _probes(python, environments[0])
    found += _wrong(probes or ())
    return Diagnosis(
        tuple(worst_first(found)),
        environments[0],
        configuration,
        " ".join(mask_arguments(words)),
        tuple(environments) if len(environments) > 1 else (),
        probes,
        skipped,
        inspection.log if inspection and not inspection.arrived else (),
    )


def read_recorded(path: str) -> tuple[Fingerprint, JsonObject | None]:
    """An environment, and a configuration if there is one, from a file: what --json printed, a study's result.json, or
    a bare fingerprint."""
    try:
        content = load_json(read_text(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not JSON ({error})"
        raise InputError(f"{path} cannot be read: {why}.", RECORDED) from None
    found = content.get("environment", content) if isinstance(content, dict) else None
    if not isinstance(found, dict) or not {"packages", "gpus", "cublas", "python"} & set(found):
        raise InputError(f"{path} holds no environment.", RECORDED)
    try:
        environment = msgspec.convert({"rank": Path(path).stem, "host": path} | found, Fingerprint)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: the environment is not as doctor --json writes it: {error}.", RECORDED) from None
    configuration = content.get("configuration") if "environment" in content else None
    return environment, configuration if isinstance(configuration, dict) else None


def _here(python: str | None) -> Fingerprint:
    environment = fingerprint(None if python == sys.executable else python)
    if "error" in environment:
        raise InputError(f"{environment['error']}.", "--python takes the path of the interpreter that trains.")
    # Importing torch takes seconds; without a GPU nobody will call what it loads.
    asked = environment.get("cuda") and environment.get("gpus")
    return with_loaded_cublas(environment, loaded_cublas(python) if asked else None)


def _probes(python: str | None, environment: Fingerprint) -> tuple[tuple[JsonObject, ...] | None, str]:
    if not environment.get("gpus"):
        return None, "there is no GPU here"
    if not environment.get("cuda"):
        return None, "this torch is built for CPUs"
    return tuple(probe_gpus(python or environment.get("executable"))), ""


# ------------------------------------------------------------------------------------------------------------ the GPUs

# An H20 with an old cuBLAS ends a process with SIGFPE at certain matrix products; two cards with broken peer-to-peer
# copies hand over garbage without an error. Both take seconds to find out, before a trial is spent.

PROBE_SECONDS = 600.0
"""Seconds for all probes together: torch from a cold disk, then at most a minute each for a few."""


def probe_gpus(python: str | None = None) -> list[JsonObject]:
    """Run the probes in the interpreter that trains; of each `probe` (what was computed), `seconds`, and `signal` or
    `error` if it went wrong."""
    command = [python or sys.executable, "-c", Path(gpu_probes.__file__).read_text(encoding="utf-8")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return [{"probe": "start torch", "error": str(error)}]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        results.append({"probe": "start torch", "error": last})
    return results


def _wrong(results: Iterable[JsonObject]) -> list[Finding]:
    """What the probes that went wrong mean."""
    found = []
    for result in results:
        computed, signal = result["probe"], result.get("signal")
        wrong = f"died of {signal}" if signal else result.get("error")
        if wrong:
            fact = "wrong_product" if "product" in computed else "no_start"
            fact = "wrong_copy" if computed.startswith("copy") else "divided_by_zero" if signal == "SIGFPE" else fact
            found += holding({}, {fact: f"{computed}: {wrong}"})
    return found


# --------------------------------------------------------------------------------------------------------- the target


@dataclass(frozen=True)
class Rank:
    """What one process told."""

    environment: Fingerprint  # with `rank`, `local_rank`, `world_size` and `host`
    settings: JsonObject | None  # dotted name -> value, resolved where the library could; None if it came to none
    failure: tuple[str, str, str] | None  # what came before its training: a title, the words of the error, an id
    stopped: bool  # whether it came to where it was to be ended
    own: JsonObject = field(default_factory=dict)  # the script's own settings by name


@dataclass(frozen=True)
class Inspection:
    """What a command showed: its processes by rank, its last lines, and how it ended (None: it had to be ended)."""

    launcher: str  # what starts its processes; "python" where it is the script itself
    ranks: tuple[Rank, ...]
    log: tuple[str, ...]
    exit_code: int | None

    @property
    def arrived(self) -> bool:
        """Whether every process that told of itself came to its training."""
        return bool(self.ranks) and all(rank.stopped for rank in self.ranks)


def _inspected(words: Sequence[str], python: str | None) -> Inspection:
    """What running the target up to its training shows."""
    first, script = words[0], None
    if first.endswith((".py", SUFFIX)) or Path(first).is_dir():
        script = find_script(first, words[1:], python=python)
    elif shutil.which(first) is None:
        raise InputError(
            f"{first} is neither a script nor a command.",
            "Name a .py file, or a whole command after --: bisect-cfg doctor -- accelerate launch train.py",
        )
    launcher = "python" if script or Path(first).name.startswith("python") else Path(first).name
    if not script and launcher == "python" and any("torch.distributed" in word for word in words):
        launcher = "torchrun"
    command = [str(shutil.which(first)), *words[1:]]
    return _run(lambda folder: script.written_in(folder).command if script else command, launcher)


def configuration_of(script: Script) -> JsonObject:
    """The settings that a script has when it comes to its trainer, its own settings too: full name -> value.
    `InputError` where it does not come that far."""
    inspection = _run(lambda folder: script.written_in(folder).command, script.launcher)
    found = next((rank for rank in inspection.ranks if rank.settings is not None), None)
    if found is not None and found.settings is not None and found.failure is None:
        own = {f"{space}.{name}": value for space in ("script", "env") for name, value in found.own.items()}
        return {**own, **found.settings}
    failure = next((f"{rank.failure[0]}: {rank.failure[1]}" for rank in inspection.ranks if rank.failure), "")
    raise InputError(
        f"The script does not come to its training. {failure}".strip(),
        "\n".join(inspection.log) or "It printed nothing.",
    )


def _run(command_in: Callable[[Path], list[str]], launcher: str) -> Inspection:
    """What a command, which may have files in a folder, shows on its way to its training."""
    base = os.getcwd() if launcher in SEVERAL_MACHINES and os.access(".", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix=".bisect-cfg-doctor-", dir=base, ignore_cleanup_errors=True) as name,
        contextlib.closing(Supervisor()) as supervisor,
    ):
        folder = Path(name)
        command = command_in(folder)
        path = folder / protocol.ORDERS_FILE
        environment, restore = probe_environment(os.environ, path)
        write_json(path, protocol.to_json(protocol.Inspect(restore, name, launcher != "python")))
        process = supervisor.start(command, environment, folder)
        try:
            code = _wait(process, folder)
        finally:
            process.end()
        check_watched(_traces(folder))
        ranks = [rank for path in folder.glob("rank-*") if (rank := _rank(_traces(path)))]
        log = tail_of_log(folder / "log.txt", LOG_LINES)
    if not ranks and code == 0:
        raise InputError(
            "The command ended without ever building a training config (GRPOConfig or another TrainingArguments).",
            f"It must do so when started as: {' '.join(mask_arguments(command))}",
        )
    ranks.sort(key=lambda rank: int(rank.environment["rank"]))
    return Inspection(launcher, tuple(ranks), tuple(log), code)


def _wait(process: Run, folder: Path) -> int | None:
    """Until it ends, or until waiting longer is of no use; its exit code, None if it had to be ended."""
    started = time.monotonic()
    first = died = None
    while (code := process.wait(POLL_SECONDS)) is None:
        now, ranks = time.monotonic(), [_traces(path) for path in folder.glob("rank-*")]
        first = first or (now if ranks else None)
        several = any(arrived.world_size > 1 for rank in ranks if (arrived := rank.event(Arrived)))
        died = died or (now if not several and any(rank.died for rank in ranks) else None)
        stays = died is not None and now - died > LAST_SECONDS  # other threads of it, or its exit handlers
        if stays or now - started > START_SECONDS or (several and now - (first or now) > MEETING_SECONDS):
            return None
    return code


def _traces(folder: Path) -> Traces:
    traces = Traces(folder)
    traces.read()
    return traces


def _rank(traces: Traces) -> Rank | None:
    arrived, stopped = traces.event(Arrived), traces.event(Stopped)
    if arrived is None:
        return None
    found = msgspec.convert(arrived.environment, Fingerprint) | {"rank": arrived.rank, "host": arrived.host}
    found |= {"local_rank": arrived.local_rank, "world_size": arrived.world_size}
    environment = with_loaded_cublas(found, msgspec.convert(arrived.environment["loaded_cublas"], Cublas | None))
    failure = None
    if stopped is None and (invalid := traces.event(ConfigInvalid)):
        failure = ("The library refuses this configuration", invalid.message, "refused")
    elif stopped is None and (raised := traces.event(Raised)):
        failure = ("The script dies before it trains", f"{raised.type}: {raised.message}", "script-dies")
    own = stopped.own if stopped is not None else {}
    return Rank(environment, _settings(traces, stopped, arrived.world_size), failure, stopped is not None, own)


def _settings(traces: Traces, stopped: Stopped | None, processes: int) -> JsonObject | None:
    rows = traces.events.rows
    if stopped is not None and stopped.args is not None:  # of several trainings' the one that the trainer got
        rows = [row for row in rows if getattr(row, "kind", "") != "args" or getattr(row, "index", 0) == stopped.args]
    capture = read_capture(rows)
    if capture is None:
        return None
    args = {**capture.args.raw, **capture.args.resolved}
    settings = {f"args.{name}": value for name, value in args.items()}
    for kind, namespace in protocol.NAMESPACE.items():
        if kind in capture.others:
            settings |= {f"{namespace}.{name}": value for name, value in capture.others[kind].raw.items()}
    loading = args.get("model_init_kwargs")
    dtype = loading.get("dtype", loading.get("torch_dtype")) if isinstance(loading, dict) else None
    dtype = (stopped and stopped.trained_dtype) or plain(dtype)
    if dtype:
        settings["model.dtype"] = dtype
    if processes > 1:
        settings["launch.num_processes"] = processes
    return settings


# ------------------------------------------------------------------------------------------------ findings of the run


def _of_the_run(inspection: Inspection) -> list[Finding]:
    """What running up to the training showed: who never came, what the library refused, what it died of."""
    environments = [rank.environment for rank in inspection.ranks]
    found = mismatches.missing(environments[0]["world_size"], environments) if environments else []
    found += [_failed(*failure) for failure in dict.fromkeys(rank.failure for rank in inspection.ranks if rank.failure)]
    if not found and not inspection.arrived:
        status = inspection.exit_code
        ended = "It had to be ended" if status is None else f"It ended with status {status}"
        if status and (name := signal_name(-status)):  # `subprocess` gives the negative of a signal's number
            ended = f"It was ended by {name}"
        found.append(_failed("The command never comes to its training", ended, "script-dies", inspection.log))
    return found


def _failed(title: str, error: str, name: str, log: Sequence[str] = ()) -> Finding:
    """A finding from an error's words, with what the field knows about them."""
    explanation = explain_text("\n".join([*log, error]))
    if log and explanation.signature is not None:
        error = f"{error}: {explanation.signature}"
    cure, source = "run it by hand; python -X faulthandler shows where a signal comes from", "measured"
    if lead := explanation.lead:
        cure, source = lead.cures[0], lead.entry.sources[0]
        title = f"{title}: {lead.title[0].lower()}{lead.title[1:]}"
    elif log:
        cure = "see its last lines below"
    return Finding("problem", title, " ".join(error.split())[:400], outdated_in(error) or cure, source, name)
