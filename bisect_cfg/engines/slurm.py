"""A study as a job of Slurm: one allocation, a Ray cluster of its own in it, and the same command on its first node.

All that runs in the job stands in one file in the study folder: `job_file` writes its head, the rest is `slurm_job.sh`.
The command in the job writes what it prints, and with what status it ended, into files beside it; who watches shows
them. Whether there is a job, and how it does, is what squeue says; Slurm's accounting is not needed. So whoever watches
may go and come again, and the same command finds the job of the study by its file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.json_files import write_text
from bisect_cfg.errors import InputError
from bisect_cfg.interrupts import BY_SIGNAL, INTERRUPTED, status_of
from bisect_cfg.probe.redact import mask_arguments

SLURM = "slurm"
"""What `--on` is given for a job; and the folder, in that of the study, of the job's files."""

JOB_FILE = "job.sh"

OURS = ("chdir", "export", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal", "wrap", "array")
"""Options of sbatch on which the job file rests."""

SHAPES = {
    "nodes": (r"[1-9]\d*", "a whole number from 1 on"),
    "gpus-per-node": (r"([\w.-]+:)?[1-9]\d*", "a number, or MODEL:NUMBER"),
    "time": (r"\d+(:\d\d(:\d\d)?)?|\d+-\d\d?(:\d\d){0,2}", "minutes, or HOURS:MINUTES:SECONDS, or DAYS-HOURS"),
}
"""Option of sbatch -> the form of its values, and the same in words. sbatch checks the others, when it is asked."""

WARNING_SECONDS = 30
"""So long before its time limit the command is told to end; it needs seconds. Slurm may be up to a minute early."""

TOKENS_SINCE = (2, 52)
"""The version of Ray from which on a cluster can have a token (its documentation, "Ray token authentication")."""

QUEUE_SECONDS, COPY_SECONDS = 5.0, 0.5
"""How often squeue is asked, which is work for a controller that all share; and how often what is new is shown."""

GONE = "no longer in the queue"
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT", GONE,
)  # fmt: skip
"""States in which a job has ended (squeue's manual, "job state codes"). Some minutes later squeue forgets it."""


def parse(given: Sequence[str]) -> dict[str, str]:
    """Options of sbatch: name -> value, "" of one that has none.

    Args:
        given: each ``NAME=VALUE,...``. What has no ``=`` belongs to the value before it: ``partition=a,b``.

    Raises:
        InputError: a name or a value cannot be right.
    """
    found: dict[str, str] = {}
    for text in given:
        name = ""
        for part in text.split(","):
            before, separator, value = part.partition("=")
            if separator:
                name = before.strip().removeprefix("--")
                found[name] = value.strip()
            elif name:
                found[name] += f",{part.strip()}"
            if not re.fullmatch(r"[a-z][a-z-]*", name):
                advice = "As in --slurm partition=gpu,nodes=4,time=2:00:00; `exclusive=` is an option without a value."
                raise InputError(f"--slurm must be NAME=VALUE,... with the long names of sbatch, not {part!r}.", advice)
    for name, value in found.items():
        if name in OURS:
            raise InputError(f"--slurm {name} is set by bisect-cfg itself.", "Leave it out.")
        shape, words = SHAPES.get(name, (r"[^\n\0]*", "one line"))
        if not re.fullmatch(shape, value):
            raise InputError(f"--slurm {name} must be {words}, not {value!r}.", "sbatch's manual says what it means.")
    return found


def job_file(command: Sequence[str], study: Path, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The text of the job file, and the variables with what must not stand in it.

    Args:
        command: what runs on the first node, begun with the interpreter.
        study: folder of the study.
        options: of sbatch.
    """
    folder, secret = study / SLURM, dict[str, str]()
    lines = {
        "job-name": f"bisect-cfg-{study.name}", "nodes": "1", **options, "ntasks-per-node": "1", "chdir": os.getcwd(),
        "output": f"{folder}/%j.log", "export": "ALL", "signal": f"B:USR1@{WARNING_SECONDS}", "no-requeue": "",
    }  # fmt: skip
    words = []
    for word, masked in zip(command, mask_arguments(command), strict=True):
        if word != masked:
            secret[f"BISECT_CFG_WORD_{len(secret)}"] = word
        words.append(shlex.quote(word) if word == masked else f'"$BISECT_CFG_WORD_{len(secret) - 1}"')
    head = [f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "") for name, value in lines.items()]
    variables = [f"python={words[0]}", f"folder={shlex.quote(str(folder))}", f"command=({' '.join(words)})"]
    rest = Path(__file__).with_name("slurm_job.sh").read_text()
    return "\n".join(["#!/bin/bash", *head, "", *variables, rest]), secret


class Queued(NamedTuple):
    """A job, as squeue shows it."""

    id: str
    state: str
    reason: str
    file: str

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER


def jobs_in(listed: str) -> list[Queued]:
    """The jobs of what squeue prints for `SQUEUE`."""
    return [Queued(*line.split("|", 3)) for line in listed.splitlines() if line.count("|") >= 3]


SQUEUE = ("squeue", "--me", "--noheader", "--states=all", "--format=%A|%T|%r|%o")


class Job:
    """The job of a study.

    Args:
        study: folder of the study.
        note: called with what the user is told of the job.
    """

    def __init__(self, study: Path, note: Callable[[str], None]) -> None:
        self._folder, self._note, self.id = study / SLURM, note, ""
        self._copied = {"out": 0, "err": 0}  # bytes that are shown

    def find(self) -> bool:
        """Whether there is one whose command runs, or is to run."""
        jobs = [job for job in _listed() or () if job.file == str(self._folder / JOB_FILE) and not job.over]
        for self.id in (job.id for job in jobs):
            if self._status() is None:
                self._note(f"Job {self.id} is there for this study already.")
                return True
        return False

    def submit(self, text: str, variables: Mapping[str, str]) -> None:
        """Write the job file, and hand it to Slurm.

        Raises:
            InputError: Slurm refuses it.
        """
        path = self._folder / JOB_FILE
        write_text(path, text)
        said = _asked("sbatch", "--parsable", str(path), variables=variables)
        if said.returncode:
            words = " ".join(said.stderr.replace("sbatch: error: ", "").split())
            advice = "Options of sbatch are given with --slurm; --dry-run shows the job file."
            raise InputError(f"Slurm refuses the job: {words}.", advice)
        self.id = said.stdout.strip().partition(";")[0]
        for kind in ("out", "err", "status"):  # so that a network's file system need not learn of a new file
            self._path(kind).touch(0o600)
        self._note(f"Submitted job {self.id}: {path}")

    def watch(self, wants_to_cancel: Callable[[], bool | None]) -> int:
        """Show what the command in the job prints, until it has ended.

        Args:
            wants_to_cancel: asks, at Ctrl-C; None where nobody can be asked. Then the job goes on, unwatched.

        Returns:
            Its exit status.

        Raises:
            InputError: the job has ended before there was an answer.
            KeyboardInterrupt: it is watched no more.
        """
        while True:
            try:
                return self._follow()
            except KeyboardInterrupt as interrupt:
                self._note(f"Job {self.id} goes on. `scancel {self.id}` cancels it; the same command shows it again.")
                wants = wants_to_cancel() if status_of(interrupt) == INTERRUPTED else None
                if wants is None:
                    raise
                if wants:
                    _asked("scancel", self.id)
                    with contextlib.suppress(InputError):
                        self._follow()
                    raise interrupt from None

    def _follow(self) -> int:
        job, asked = Queued(self.id, "", "", ""), 0.0
        while True:
            status = self._status()
            self._copy()
            if status is not None and status < BY_SIGNAL:
                if status > 1:
                    self._note(f"What Slurm and Ray said is in {self._path('log')}.")
                return status
            if status is not None or job.over:
                self._path("token").unlink(missing_ok=True)  # where the job was killed
                how = f"has ended ({job.state})" if job.over else "was told to end"
                advice = f"Run the same command again to go on. What Slurm and Ray said is in {self._path('log')}."
                raise InputError(f"Job {self.id} {how} before there was an answer; nothing is lost.", advice)
            if time.monotonic() > asked + QUEUE_SECONDS:
                asked, before, jobs = time.monotonic(), job, _listed()
                if jobs is not None:
                    job = next((one for one in jobs if one.id == self.id), Queued(self.id, GONE, "", ""))
                if job != before and not job.over:
                    self._note(f"Job {self.id}: {job.state}, {job.reason}".removesuffix(", None"))
            time.sleep(COPY_SECONDS)

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self.id}.{kind}"

    def _status(self) -> int | None:
        """With what the command in the job has ended; None if it has not."""
        try:
            return int(self._path("status").read_text())
        except (OSError, ValueError):
            return None

    def _copy(self) -> None:
        """Show what is new."""
        for kind, stream in (("out", sys.stdout), ("err", sys.stderr)):
            try:
                with open(self._path(kind), "rb") as file:
                    file.seek(self._copied[kind])
                    lines = file.read()
            except OSError:
                continue
            lines = lines[: lines.rfind(b"\n") + 1]
            self._copied[kind] += len(lines)
            if lines:
                print(lines.decode("utf-8", "replace"), end="", file=stream, flush=True)


def _listed() -> list[Queued] | None:
    """The user's jobs; None if Slurm does not answer."""
    said = _asked(*SQUEUE)
    return None if said.returncode else jobs_in(said.stdout)


def _asked(*words: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What a command of Slurm says. It is in a session of its own, where Ctrl-C does not arrive."""
    environment = {**os.environ, **(variables or {})}
    try:
        return subprocess.run(words, env=environment, capture_output=True, text=True, start_new_session=True)
    except FileNotFoundError:
        advice = "Run this where jobs are submitted; --dry-run shows the job file anywhere."
        raise InputError(f"Slurm is not here: there is no {words[0]}.", advice) from None


def check_ray() -> None:
    """See that the interpreter, which is the nodes' as well, has a Ray that knows tokens.

    Raises:
        InputError: it has not.
    """
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        version = ""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < TOKENS_SINCE:
        found = f"Ray {version} has no tokens" if version else "Ray is not installed here"
        raise InputError(f"{found}; in a job of Slurm trials run on Ray.", 'pip install "bisect-cfg[ray]" "ray>=2.52"')
