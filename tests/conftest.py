"""Shared by all tests: running the command line in a process of its own, and seeing that nothing is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import toys

MARK = "BISECT_CFG_TEST"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for torch, transformers and trl."""
    return toys.write_library(tmp_path_factory.mktemp("library"))


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


@pytest.fixture
def tool(tmp_path: Path, library: Path) -> Iterator[Tool]:
    """The command line in `tmp_path`, for scripts that use the stand-in library."""
    made = Tool(tmp_path, library)
    yield made
    for process in made.left():
        process.kill()


@pytest.fixture
def real_tool(tmp_path: Path) -> Iterator[Tool]:
    """The command line in `tmp_path`, for scripts that use real TRL."""
    made = Tool(tmp_path, None)
    yield made
    for process in made.left():
        process.kill()
