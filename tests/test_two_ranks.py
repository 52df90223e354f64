"""Two processes of real TRL under real torchrun, which meet over gloo: the study `two_ranks`, with fewer of its
settings varied, to be done sooner."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from subprocess import Popen

import psutil
import pytest
from tools import Tool, until

STUDY = Path(__file__).parent.parent / "studies" / "two_ranks"

pytestmark = [pytest.mark.training, pytest.mark.slow]

TIMES = {"time": 0, "step_time": 0}
"""Of a row of metrics, what is each process's own."""

PATIENCE = 600
"""Seconds, on a machine that is busy; on an idle one it takes less than one minute."""


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def command() -> list[str]:
    """The study's, and that few of its settings are varied."""
    expected = json.loads((STUDY / "expected.json").read_text())
    (cause,) = expected["causes"]
    only = [word for name in (*cause, "learning_rate", "max_completion_length") for word in ("--only", name)]
    return ["--no-recommend", "--no-where", *only, *(word.format(folder=STUDY) for word in expected["command"])]


def test_the_study(real_tool):
    expected = json.loads((STUDY / "expected.json").read_text())
    real_tool.environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    said = real_tool("bisect", "--study", "s", *command(), seconds=PATIENCE)
    assert said.status == 0, said.all
    real_tool.assert_nothing_left()
    folder = real_tool.folder / "s"
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == expected["status"] and result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    assert result["known_issue"]["id"] == expected["known_issue"]
    assert {one["start"] for one in result["trials"][1:]} == {"imports"}

    together = [path for path in (folder / "trials").iterdir() if (path / "ranks" / "1" / "metrics.jsonl").exists()]
    trained = [path for path in together if json.loads((path / "ending.json").read_text())["exit_code"] == 0]
    assert trained
    for path in trained:  # what each process logs is what all of them computed
        mine, other = (
            [{**row, **TIMES} for row in rows(place / "metrics.jsonl")] for place in (path, path / "ranks" / "1")
        )
        assert mine == other and mine


class Watched:
    """What is seen of the processes of a tool while they live, to tell what is theirs from what others have there."""

    def __init__(self, tool: Tool) -> None:
        self._tool, self._since, self._last = tool, time.time(), 0.0
        self._numbers: set[str] = set()
        self._mapped: set[str] = set()

    def look(self) -> None:
        """Note their numbers, and what they map of /dev/shm."""
        self._last = time.time()
        for process in self._tool.left():
            self._numbers.add(str(process.pid))
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                self._mapped.update(re.findall(r"/dev/shm/(\S+)", maps))

    def in_shared_memory(self) -> set[str]:
        """What is there of what they mapped, or made: torch names a segment by its process (``torch_PID_...``)."""
        return {
            name
            for name in os.listdir("/dev/shm")
            if name in self._mapped or (name.startswith("torch_") and name.split("_")[1] in self._numbers)
        }

    def listening(self, study: Path) -> set[int]:
        """Where the processes of the trials have met, and one listens that was started while the tool lived."""
        events = (row for path in study.glob("trials/*/events.jsonl") for row in rows(path))
        met = {int(row["port"]) for row in events if row["event"] == "rank" and row.get("port")}
        found = set()
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port in met and one.pid is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if self._since <= psutil.Process(one.pid).create_time() <= self._last:
                        found.add(one.laddr.port)
        return found


def finished_runs(study: Path) -> int:
    return len(list(study.glob("trials/*/ending.json")))


def test_killed_three_times(real_tool):
    """Processes that meet over gloo, killed with their tool while another run of theirs is going on."""
    real_tool.environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    study = real_tool.folder / "s"
    for after in (1, 3, 6):
        process, watched = real_tool.start("bisect", "--study", "s", *command()), Watched(real_tool)

        def goes_on(after: int = after, process: Popen = process, watched: Watched = watched) -> bool:
            watched.look()
            assert process.poll() is None, "it is over"
            return finished_runs(study) >= after

        until(goes_on, PATIENCE)
        process.kill()
        process.communicate()
        real_tool.assert_nothing_left()
        assert watched.in_shared_memory() == set()
        assert watched.listening(study) == set()
    found = real_tool.bisect(*command(), seconds=PATIENCE)
    assert found.causes == json.loads((STUDY / "expected.json").read_text())["causes"] and found.result["complete"]
