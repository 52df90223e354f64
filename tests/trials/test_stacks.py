"""What faulthandler itself writes is what is read."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from bisect_cfg.runner.traces import SIGNALS, fatal_signal, stack_frames

SCRIPT = """
import faulthandler, os, sys, threading, time
faulthandler.enable(all_threads=True)
threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
def inner():
    os.kill(os.getpid(), int(sys.argv[1]))
def outer():
    inner()
outer()
"""


@pytest.mark.parametrize("wanted", SIGNALS.values(), ids=lambda one: one.name)
def test_a_signal_and_where_it_came(wanted: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(int(wanted))], capture_output=True, text=True)
    assert fatal_signal(done.stderr) is wanted
    assert stack_frames(done.stderr) == [
        ("<string>", 6, "inner"),
        ("<string>", 8, "outer"),
        ("<string>", 9, "<module>"),
    ]


def test_nothing_written_says_nothing() -> None:
    assert fatal_signal("") is None and stack_frames("") == []
