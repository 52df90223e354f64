"""Environments that trials run in: a set of packages, built once by uv, found again by its content.

An environment lies in the cache under a hash of its requirements, its Python and this machine's platform. uv links its
files from its own cache, so that an environment that differs from another in one package takes little room and a second
or two. Trials and studies share them; ``bisect-cfg envs prune`` removes those that nothing has used for longest.

What is installed is the whole list, without resolving (``--no-deps``): people's environments are often inconsistent,
and the trial is about exactly these versions. Which mixtures are valid is decided before, from the metadata of the two
given environments (see `bisect_cfg.targets.packages`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from bisect_cfg.common.json_files import make_folder, write_text
from bisect_cfg.errors import InputError

CACHE = "environments"
"""Folder of the built environments, beside those of the studies."""

COMPLETE = "complete"
"""File in the folder of a complete environment; its time is when the environment was last used."""

TAIL = 1200
"""Characters of uv's output that are quoted, from its end: the reasons stand there."""

ROOM = 20 * 2**30
"""Bytes that the cache may take before the least recently used are removed; a CUDA build of torch takes 5 GiB."""

_OFFLINE = ("error sending request", "dns error", "failed to fetch", "network is unreachable", "connection refused")


class CannotBuild(Exception):
    """An environment that cannot be made of these packages; the message is uv's."""


@dataclass(frozen=True)
class Environment:
    """One that was built."""

    folder: Path
    python: str  # its interpreter
    seconds: float | None = None  # that building took; None if it was there

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of what runs in it, as its ``activate`` sets them."""
        programs = str(Path(self.python).parent)
        return {"VIRTUAL_ENV": str(self.folder), "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"}


def _run(command: Sequence[str], log: Path) -> int:
    with open(log, "ab") as stream:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream).returncode


class Environments:
    """The cache of built environments.

    Args:
        folder: of the cache.
        base: the interpreter to make them with.
        building: called with the lines that an environment is about to be built of.
        run: runs a command with its output in a file, and says how it ended.

    Attributes:
        built: those that were built here, in order.
        used: folders of all that were asked for here, in order.
    """

    def __init__(
        self,
        folder: Path,
        base: str,
        building: Callable[[Sequence[str]], None] = lambda lines: None,
        run: Callable[[Sequence[str], Path], int] = _run,
    ) -> None:
        self.folder, self.base, self._building, self._run = folder.absolute(), base, building, run
        self.built: list[Environment] = []
        self.used: dict[Path, None] = {}

    def of(self, lines: Collection[str]) -> Environment:
        """The environment with these packages (lines of a requirements file), built if it is not there.

        Raises:
            CannotBuild: uv cannot.
            InputError: the disk is full.
        """
        make_folder(self.folder)
        folder = self.folder / self._key(lines)
        python = str(folder / "bin" / "python")
        self.used[folder] = None
        if (folder / COMPLETE).exists():
            with contextlib.suppress(OSError):  # a cache of somebody else's may be read only
                (folder / COMPLETE).touch()
            return Environment(folder, python)
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / COMPLETE).exists():  # another process was faster
                return Environment(folder, python)
            begun = time.monotonic()
            self._building(sorted(lines))
            self._build(folder, python, sorted(lines))
            environment = Environment(folder, python, time.monotonic() - begun)
        self.built.append(environment)
        prune(self.folder, ROOM)
        return environment

    def _key(self, lines: Collection[str]) -> str:
        """Content, Python and platform as a name."""
        about = [os.path.realpath(self.base), platform.machine(), sysconfig.get_platform()]
        about += map(_dated, sorted(lines))
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def _build(self, folder: Path, python: str, lines: Sequence[str]) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a build that was interrupted
        uv, requirements, log = find_uv_bin(), folder.with_suffix(".txt"), folder.with_suffix(".log")
        write_text(requirements, "".join(f"{line}\n" for line in lines))
        try:
            self._uv(log, [uv, "venv", "--quiet", "--no-project", "--python", self.base, str(folder)])
            install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python]
            self._uv(log, [*install, "--requirement", str(requirements)])
            (folder / COMPLETE).touch()
        except BaseException:  # on a full disk half of one would keep it full
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            requirements.unlink(missing_ok=True)
            log.unlink(missing_ok=True)

    def _uv(self, log: Path, command: Sequence[str]) -> None:
        """Run uv; without a network, from what it has.

        Raises:
            CannotBuild: it fails.
            InputError: there is no room.
        """
        for more in ([], ["--offline"]):
            log.unlink(missing_ok=True)  # of the one before, or of one that was killed
            if self._run([*command, *more], log) == 0:
                return
            said = log.read_text(errors="replace")
            if not any(word in said.lower() for word in _OFFLINE):
                break
        if "No space left" in said:  # of the disk, and not of these packages
            raise InputError(
                f"The disk is full, so that no environment can be built in {self.folder}.",
                f"bisect-cfg envs prune --env-cache {shlex.quote(str(self.folder))} empties it; --env-cache names "
                "another place.",
            )
        if more:
            said = f"There is no network, and not everything is in uv's cache.\n{said}"
        raise CannotBuild(said.strip()[-TAIL:])


def _dated(line: str) -> str:
    """A line of a requirements file; of a local wheel or folder, with the time of its last change."""
    path = line[3:] if line.startswith("-e ") else line.partition("@ file://")[2]
    with contextlib.suppress(OSError):
        return f"{line} {os.stat(path).st_mtime}"
    return line


def complete_in(cache: Path) -> list[Path]:
    """Folders of the environments of a cache, least recently used first."""
    there = sorted(cache.glob(f"*/{COMPLETE}"), key=lambda path: path.stat().st_mtime)
    return [path.parent for path in there]


def prune(cache: Path, room: int = 0) -> list[Path]:
    """Remove environments until they take at most `room` bytes: what killed builds have left, then those that were
    least recently used. Returns their folders."""
    complete = complete_in(cache)
    killed = [folder for folder in cache.glob("*/") if folder not in complete]
    sizes = {folder: size_of(folder) for folder in (*killed, *complete)}
    gone = []
    for folder in tuple(sizes):
        if max(sum(sizes.values()), 1) <= room:
            break
        with contextlib.suppress(OSError), open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no process is building it
            (folder / COMPLETE).unlink(missing_ok=True)  # first, so that no process takes half of one
            shutil.rmtree(folder, ignore_errors=True)
            for suffix in (".lock", ".log", ".txt"):
                folder.with_suffix(suffix).unlink(missing_ok=True)
            sizes.pop(folder)
            gone.append(folder)
    return gone


def size_of(folder: Path) -> int:
    """Bytes that a folder takes on the disk; what is linked into several counts in each of them for its share."""
    total = 0.0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(path, name))
                total += 512 * found.st_blocks / max(1, found.st_nlink)
    return int(total)
