"""The command line in a forked process: everything of a process (status, streams, limits, signals) without the seconds
that its imports take."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Said, Tool

PATIENCE = 240.0
"""Seconds until a command counts as stuck; on an idle machine the longest takes ten."""


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


@pytest.fixture
def forked(tmp_path: Path, library: Path):
    """The command line in `tmp_path`, for scripts that use the stand-in library."""
    made = ForkedTool(tmp_path, library)
    yield made
    for process in made.left():
        process.kill()
