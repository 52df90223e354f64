"""`bisect-cfg doctor`: what is known against an environment and a configuration, before a trial is spent.

Three questions, each asked only where it can be: what the environment is (of this machine, of the interpreter that
trains, of every process that a launcher starts, or as recorded on another machine); what the script sets (it is run up
to its trainer, never into training); whether the GPUs compute what they should.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bisect_cfg.capture.captured import Capture
from bisect_cfg.capture.names import outdated_in
from bisect_cfg.capture.script import find_script
from bisect_cfg.cells import SUFFIX
from bisect_cfg.common.failures.signals import signal_name
from bisect_cfg.common.fingerprint import fingerprint, loaded_cublas, with_loaded_cublas
from bisect_cfg.common.types import Fingerprint
from bisect_cfg.doctor import gpu, mismatches
from bisect_cfg.doctor.findings import Finding, check, worst_first
from bisect_cfg.doctor.inspection import InspectedRank, Inspection, inspect
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import JsonObject, strict
from bisect_cfg.probe.protocol import NAMESPACE
from bisect_cfg.probe.secrets import mask_arguments

SCHEMA = 1
"""Version of what --json prints."""

SEVERAL_MACHINES = ("srun", "mpirun", "mpiexec", "deepspeed", "pdsh", "ray")
"""Launchers that may reach other machines from one command."""


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        findings: the worst first.
        environment: the fingerprint that was judged; that of rank 0 of a launched run.
        configuration: dotted name -> resolved value, None if none was asked for or found.
        target: what was run, as the user would type it; "" for the environment alone.
        environments: one a process or a file, where there are several.
        probes: results of the GPU probes; None where they were skipped.
        skipped: why they were.
        log: the last lines of a command that never came to its training.
    """

    findings: tuple[Finding, ...]
    environment: Fingerprint
    configuration: JsonObject | None = None
    target: str = ""
    environments: tuple[Fingerprint, ...] = ()
    probes: tuple[JsonObject, ...] | None = None
    skipped: str = ""
    log: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether there is nothing but notes."""
        return all(finding.level == "note" for finding in self.findings)

    def to_json(self) -> JsonObject:
        """What --json prints; `--fingerprint` reads it again."""
        return strict(
            {
                "schema": SCHEMA,
                "clean": self.clean,
                "findings": [asdict(finding) for finding in self.findings],
                "environment": self.environment,
                "configuration": self.configuration,
                "target": self.target,
                "environments": list(self.environments),
                "probes": None if self.probes is None else list(self.probes),
            }
        )


def examine(
    words: Sequence[str] = (),
    *,
    python: str | None = None,
    recorded: Sequence[str] = (),
) -> Diagnosis:
    """Examine an environment, and the configuration of a target if there is one.

    Args:
        words: a script and its arguments, or a launcher's whole command; empty for the environment alone.
        python: the interpreter that trains; None for this one.
        recorded: files with the environments of other machines, judged in place of this one.

    Raises:
        InputError: about the target or a file.
    """
    files = [read_recorded(path) for path in recorded]
    target, inspection, launcher = " ".join(mask_arguments(words)), None, None
    if words:
        with tempfile.TemporaryDirectory(prefix="bisect-cfg-") as folder:
            command, launcher = _command(words, python, Path(folder))
            inspection = _inspected(command, launcher)
    if files:
        environments = [environment for environment, _ in files]
        configuration = next((known for _, known in files if known is not None), None)
    elif inspection is not None and inspection.ranks:
        environments, configuration = [rank.environment for rank in inspection.ranks], None
    else:
        environments, configuration = [_here(python)], None
    findings = mismatches.compare(environments) if len(environments) > 1 else []
    if inspection is not None:
        findings += _of_the_run(inspection)
        seen = next((rank for rank in inspection.ranks if rank.capture is not None), None)
        configuration = settings_of(seen) if seen is not None else configuration
    judged = environments if files or launcher is None else _with_launcher(environments, launcher)
    findings += _judged(judged, configuration)
    probes, skipped = None, "the environment is another machine's"
    if not files:
        probes, skipped = _probes(python, environments[0])
        findings += gpu.findings(probes or ())
    return Diagnosis(
        tuple(worst_first(findings)),
        judged[0],
        configuration,
        target,
        tuple(judged) if len(judged) > 1 else (),
        probes,
        skipped,
        inspection.log if inspection is not None and not _arrived(inspection) else (),
    )


def read_recorded(path: str) -> tuple[JsonObject, JsonObject | None]:
    """An environment, and a configuration if there is one, from a file: what --json printed, a study's result.json, or
    a bare fingerprint.

    Raises:
        InputError: it is none of these.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InputError(f"{path} cannot be read: {why}.", "--fingerprint takes what doctor --json printed.") from None
    environment = content.get("environment", content) if isinstance(content, dict) else None
    if not isinstance(environment, dict) or not {"packages", "gpus", "cublas", "python"} & set(environment):
        raise InputError(f"{path} holds no environment.", "--fingerprint takes what doctor --json printed.")
    misshapen = _misshapen(environment)
    if misshapen:
        raise InputError(
            f"{path}: {misshapen} is not as doctor --json writes it.", "--fingerprint takes what doctor --json printed."
        )
    environment.setdefault("rank", Path(path).stem)
    environment.setdefault("host", path)
    configuration = content.get("configuration") if environment is not content else None
    return environment, configuration if isinstance(configuration, dict) else None


def _ended(status: int) -> str:
    """How a command ended, in words; `subprocess` gives the negative of a signal's number."""
    name = signal_name(-status)
    return f"was ended by {name}" if name else f"ended with status {status}"


def _misshapen(environment: JsonObject) -> str:
    """The first field of a recorded environment that has another type than in a fingerprint, "" if none has."""
    texts, numbers = (str, type(None)), (int, type(None))
    plain = {"python": texts, "cuda": texts, "driver": texts, "launcher": texts, "host": texts,
             "local_ranks": numbers, "world_size": numbers}  # fmt: skip
    for name, types in plain.items():
        if not isinstance(environment.get(name), types):
            return name
    for name in ("packages", "cublas", "variables"):
        table = environment.get(name) or {}
        if not isinstance(table, dict) or not all(isinstance(value, texts) for value in table.values()):
            return name
    gpus = environment.get("gpus") or []
    named = isinstance(gpus, list) and all(isinstance(g, dict) and isinstance(g.get("name"), str) for g in gpus)
    return "" if named else "gpus"


def _here(python: str | None) -> Fingerprint:
    python = None if python == sys.executable else python
    environment = fingerprint(python)
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
    return tuple(gpu.probe(python or environment.get("executable"))), ""


# ------------------------------------------------------------------------------------------------------ the target


def _command(words: Sequence[str], python: str | None, folder: Path) -> tuple[list[str], str]:
    """The command line to run, and how it starts its processes; of a notebook the script is put into the folder."""
    first = words[0]
    if first.endswith((".py", SUFFIX)) or Path(first).is_dir():
        return find_script(first, words[1:], python=python).written_in(folder).command, "python"
    path = shutil.which(first)
    if path is None:
        raise InputError(
            f"{first} is neither a script nor a command.",
            "Name a .py file, or a whole command after --: bisect-cfg doctor -- accelerate launch train.py",
        )
    name = Path(first).name
    if name.startswith("python") and any("torch.distributed" in word for word in words):
        name = "torchrun"
    return [path, *words[1:]], "python" if name.startswith("python") else name


def _inspected(command: Sequence[str], launcher: str) -> Inspection:
    try:
        inspection = inspect(command, launched=launcher != "python", shared=launcher in SEVERAL_MACHINES)
    except OSError as error:
        raise InputError(f"{command[0]} cannot be started: {error.strerror}.") from None
    if not inspection.ranks and inspection.exit_code == 0:
        raise InputError(
            "The command ended without ever building a training config (GRPOConfig or another TrainingArguments).",
            f"It must do so when started as: {' '.join(mask_arguments(command))}",
        )
    return inspection


def _arrived(inspection: Inspection) -> bool:
    return bool(inspection.ranks) and all(rank.stopped for rank in inspection.ranks)


def settings_of(rank: InspectedRank) -> JsonObject:
    """The configuration of one process: dotted name -> value, resolved where the library could."""
    capture: Capture = rank.capture
    args = {**capture.args.raw, **capture.args.resolved}
    settings = {f"args.{name}": value for name, value in args.items()}
    for kind, namespace in NAMESPACE.items():
        if kind in capture.others:
            settings.update({f"{namespace}.{name}": value for name, value in capture.others[kind].raw.items()})
    loading = args.get("model_init_kwargs")
    dtype = loading.get("dtype", loading.get("torch_dtype")) if isinstance(loading, dict) else None
    if isinstance(dtype, dict):
        dtype = dtype.get("$dtype")
    if rank.dtype or dtype:
        settings["model.dtype"] = rank.dtype or dtype
    if rank.environment["world_size"] > 1:
        settings["launch.num_processes"] = rank.environment["world_size"]
    return settings


def _with_launcher(environments: Sequence[JsonObject], launcher: str) -> list[JsonObject]:
    hosts = [environment.get("host") for environment in environments]
    return [
        {**environment, "launcher": launcher, "local_ranks": hosts.count(environment.get("host"))}
        for environment in environments
    ]


# ------------------------------------------------------------------------------------------------------ the findings


def _judged(environments: Sequence[JsonObject], configuration: JsonObject | None) -> list[Finding]:
    """Conditions and rules for every environment; what holds for several is said once."""
    found: dict[tuple[str, str, str], Finding] = {}
    for environment in environments:
        for finding in check(environment, configuration):
            found.setdefault((finding.id, finding.title, finding.why), finding)
    return list(found.values())


def _of_the_run(inspection: Inspection) -> list[Finding]:
    """What running up to the training showed: who never came, what the library refused, what it died of."""
    found: list[Finding] = []
    if inspection.ranks:
        world = inspection.ranks[0].environment["world_size"]
        found += mismatches.missing(world, [rank.environment for rank in inspection.ranks])
    seen: set[str] = set()
    for rank in inspection.ranks:
        if rank.refused and rank.refused not in seen:
            seen.add(rank.refused)
            found.append(_said("The library refuses this configuration", rank.refused, "refused"))
        elif rank.exception and rank.exception not in seen and not rank.refused:
            seen.add(rank.exception)
            found.append(_said("The script dies before it trains", rank.exception, "script-dies"))
    if not found and not _arrived(inspection):
        how = "had to be ended" if inspection.exit_code is None else _ended(inspection.exit_code)
        found.append(_said("The command never comes to its training", f"It {how}", "script-dies", inspection.log))
    return found


def _said(title: str, words: str, name: str, log: Sequence[str] = ()) -> Finding:
    """A finding from an error's words, with what the field knows about them."""
    from bisect_cfg.explain import explain_text

    explanation = explain_text("\n".join([*log, words]))
    lead = explanation.lead
    if log and explanation.signature is not None:
        words = f"{words}: {explanation.signature}"
    old = outdated_in(words)
    by_hand = "run it by hand; python -X faulthandler shows where a signal comes from"
    cure = "see its last lines below" if log else by_hand
    source = "measured"
    if lead is not None:
        cure, source = lead.cures[0], lead.entry.sources[0]
        title = f"{title}: {lead.title[0].lower()}{lead.title[1:]}"
    return Finding("problem", title, " ".join(words.split())[:400], old or cure, source, name)
