"""Two processes of real TRL under real torchrun, which meet over gloo: the study `two_ranks`, with fewer of its
settings varied, to be done sooner."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from pathlib import Path

import pytest

STUDY = Path(__file__).parent.parent / "studies" / "two_ranks"

pytestmark = pytest.mark.training

TIMES = {"time": 0, "step_time": 0}
"""Of a row of metrics, what is each process's own."""

PATIENCE = 600
"""Seconds, on a machine that is busy; on an idle one it takes less than one minute."""


KILLS = 10


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


def left_in_shared_memory() -> set[str]:
    """Of torch and of `multiprocessing`, what no process maps any more."""
    names = {name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "sem.mp-", "nccl-"))}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:
            continue
        names -= {name for name in names if f"/dev/shm/{name}" in text}
    return names


def ports(study: Path) -> set[int]:
    """Where the processes of the trials have met."""
    events = (row for path in study.glob("trials/*/events.jsonl") for row in rows(path))
    return {int(row["port"]) for row in events if row["event"] == "rank" and row.get("port")}


def refused(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.slow
def test_killed_ten_times(real_tool):
    """Processes that meet over gloo, killed with their tool at random moments of a bisection."""
    real_tool.environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    before = left_in_shared_memory()
    begun = time.monotonic()
    assert real_tool("bisect", "--study", "whole", *command(), seconds=PATIENCE).status == 0
    whole, moments, landed, studies = time.monotonic() - begun, random.Random(2906), [], 0
    while len(landed) < KILLS:
        study = real_tool.folder / f"s{studies}"
        studies += 1
        finished = False
        while len(landed) < KILLS and not finished:
            process = real_tool.start("bisect", "--study", study.name, *command())
            time.sleep(moments.uniform(0.1, 0.9) * whole)
            finished = process.poll() is not None
            if not finished:
                process.kill()
                landed.append(len(list(study.glob("trials/*/ending.json"))))
            process.communicate()
            real_tool.assert_nothing_left()
            assert not left_in_shared_memory() - before
            assert all(map(refused, ports(study)))
        said = real_tool("bisect", "--study", study.name, *command(), seconds=PATIENCE)
        assert said.status == 0, said.all
        answers = [json.loads((path / "result.json").read_text()) for path in (study, real_tool.folder / "whole")]
        mine, other = ([sorted(cause["parameters"]) for cause in answer["causes"]] for answer in answers)
        assert mine == other == json.loads((STUDY / "expected.json").read_text())["causes"]
        print(f"{study.name}: {len(answers[0]['trials'])} trials, against {len(answers[1]['trials'])} without a kill")
    print(f"finished runs at each kill: {landed}; {whole:.0f} s without a kill")
