"""The command line as tests start it: in a process of its own, or forked from here, where imports are done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "BISECT_CFG_TEST"

PATIENCE = 240.0
"""Seconds until a command counts as stuck; on an idle machine the longest takes ten."""


@dataclass(frozen=True)
class Said:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


class Tool:
    """`bisect-cfg` as a user starts it, in a folder, with a mark on everything that descends from it."""

    def __init__(self, folder: Path, python_path: Path | None) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark}
        if python_path is not None:
            self.environment["PYTHONPATH"] = str(python_path)

    def start(self, *arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bisect_cfg", *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **options,
        )  # fmt: skip

    def __call__(self, *arguments: object, seconds: float = 120) -> Said:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
        return Said(process.returncode, out, err)

    def left(self) -> list[psutil.Process]:
        """Living processes that descend from a start of this tool."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def assert_nothing_left(self, within: float = 5.0) -> None:
        deadline = time.monotonic() + within
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [process.cmdline() for process in self.left()] == []


class ForkedTool(Tool):
    """As `Tool`, forked from this process, which has imported what the command needs."""

    def __call__(
        self, *arguments: object, seconds: float = PATIENCE, prepare: Callable[[], None] | None = None, **streams: str
    ) -> Said:
        """Run a command to its end.

        Args:
            arguments: of `bisect-cfg`.
            seconds: until it counts as stuck.
            prepare: called in the child first, to set limits.
            streams: "stdout" or "stderr" -> path to write to in place of what is captured.
        """
        import optuna  # noqa: F401
        import sqlalchemy  # noqa: F401

        import bisect_cfg.api  # noqa: F401

        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = os.fork()
            if pid == 0:
                self._become(list(map(str, arguments)), out.fileno(), err.fileno(), prepare, streams)
            status = self._wait(pid, seconds)
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "replace"))
        return Said(status, *texts)

    def _become(self, arguments, out, err, prepare, streams) -> None:
        status = 99
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(self.folder)
            os.environ.clear()
            os.environ.update(self.environment)
            out = os.open(streams["stdout"], os.O_WRONLY) if "stdout" in streams else out
            err = os.open(streams["stderr"], os.O_WRONLY) if "stderr" in streams else err
            for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
                os.dup2(source, target)
            os.closerange(3, 1024)
            sys.argv = ["bisect-cfg", *arguments]
            sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            if prepare is not None:
                prepare()
            from bisect_cfg.cli import main

            try:
                main()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 98
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(status)

    def _wait(self, pid: int, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise AssertionError(f"no end within {seconds:.0f} s")
