"""What is forked for a function never goes on with the caller's code, whatever is raised in it, wherever."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from bisect_cfg.common.configuration import Purpose
from bisect_cfg.runner.function import FunctionRunner
from bisect_cfg.store.interface import TrialRequest

STRIDE = 240
"""Every so many lines an exception is raised before a landing."""


class Injected(BaseException):
    """Like KeyboardInterrupt: no handler for `Exception` takes it."""


def play(number: int, folder: Path) -> bool:
    """Raise an exception at the line of this number that a forked process comes to, counted from the first fork on.

    Returns:
        Whether one came so far.
    """
    returned, raised, tool = folder / f"returned-{number}", folder / f"raised-{number}", os.fork()
    if not tool:
        try:
            caller, count = os.getpid(), 0

            def trace(frame, event, argument):
                nonlocal count
                if os.getpid() != caller and event == "line":
                    count += 1
                    if count == number:
                        handle = os.open(raised, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                        os.write(handle, f"{frame.f_code.co_qualname} {frame.f_lineno}\n".encode())
                        os.close(handle)
                        raise Injected
                return trace

            sys.settrace(trace)
            with contextlib.suppress(BaseException):
                FunctionRunner(lambda c: True).run(TrialRequest(0, {"a": 1}, frozenset(), Purpose.SEARCH, ""))
            sys.settrace(None)
            with returned.open("a") as stream:
                stream.write(f"{os.getpid()}\n")
        finally:
            os._exit(0)
    started = psutil.Process(tool)
    below: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while started.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            started.kill()
            raise AssertionError(f"the call does not come back: {raised.read_text()}")
        below += [process for process in started.children(recursive=True) if process not in below]
        time.sleep(0.005)
    os.waitpid(tool, 0)
    assert psutil.wait_procs(below, timeout=5)[1] == [], "nothing is left"
    assert returned.read_text().split() == [str(tool)], raised.read_text()
    return raised.exists()


@pytest.mark.training
@pytest.mark.parametrize("first", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, STRIDE + 1))])
def test_an_exception_at_every_line(tmp_path, first):
    number = first
    while play(number, tmp_path):
        number += STRIDE
    assert number > 2 * STRIDE, "the forked path is longer"
