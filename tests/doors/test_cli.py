"""The command line: what it says, how it exits, what it leaves, for everything a user can get wrong."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import ForkedTool, Said
from toys import script

QUICK = ("--no-recommend", "--no-where")
"""Where only the causes matter."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, library: Path) -> tuple[ForkedTool, Said]:
    """A finished study, and what was printed. Tests that change it work on a copy at the same place: `finished`."""
    made = ForkedTool(tmp_path_factory.mktemp("whole"), library)
    script(made.folder)
    said = made("bisect", "train.py", "--study", "s", "-v")
    assert said.status == 0, said.all
    return made, said


@pytest.fixture
def finished(whole: tuple[ForkedTool, Said], tmp_path: Path) -> Iterator[ForkedTool]:
    tool, _ = whole
    shutil.copytree(tool.folder, tmp_path / "kept")
    yield tool
    shutil.rmtree(tool.folder)
    shutil.copytree(tmp_path / "kept", tool.folder)


# --------------------------------------------------------------------------------------------------------- the answer


def test_the_answer(whole):
    tool, said = whole
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert [cause["parameters"] for cause in result["causes"]] == [{"bf16": {"good": None, "bad": True}}]
    assert result["schema"] == 1 and result["status"] == "isolated" and result["complete"] is True
    assert {"failure", "causes", "recommendation", "environment", "trials"} <= set(result)
    assert {"configuration", "changes", "verified"} <= set(result["recommendation"])
    assert result["recommendation"]["changes"] == {"bf16": {"from": True, "to": None}}
    assert result["recommendation"]["verified"] is True
    assert {"parameters", "companions", "evidence"} <= set(result["causes"][0])
    assert len(result["trials"]) == len({row["number"] for row in result["trials"]})
    for row in result["trials"]:
        assert (tool.folder / "s" / row["folder"] / "log.txt").exists()
    assert (result["failure"]["kind"], result["failure"]["signal"], result["failure"]["step"]) == (
        "signal",
        "SIGFPE",
        3,
    )
    assert not (tool.folder / "out").exists() and not (tool.folder / "done.txt").exists()
    assert sorted(path.name for path in tool.folder.iterdir()) == ["s", "train.py"]
    tool.assert_nothing_left()


def test_jobs(tool):
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--jobs", "3", *QUICK)
    assert said.status == 0 and "CAUSE   bf16 = True" in said.out
    tool.assert_nothing_left()
    with contextlib.closing(sqlite3.connect(tool.folder / "s/study.db")) as study:
        asked = "select datetime_start, datetime_complete from trials where datetime_complete not null order by 1"
        trials = study.execute(asked).fetchall()
    assert any(began < ended for (_, ended), (began, _) in itertools.pairwise(trials)), "one after another"


@pytest.mark.parametrize("start", ["imports", "cold"])
def test_every_start_gives_the_same_answer(tool, start):
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--start", start, *QUICK)
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert result["start"] == start
    assert {row["start"] for row in result["trials"]} <= {start, "cold"}
    assert list(result["causes"][0]["parameters"]) == ["bf16"]


def test_commands_by_hand_repeat_the_runs(whole, finished):
    import subprocess

    tool, said = whole
    bad = re.search(r"The minimal failing run again: +(.+)", said.out)[1]
    good = re.search(r"The nearest passing run again: +(.+)", said.out)[1]
    traces = sorted((tool.folder / "s").rglob("events.jsonl"))
    sizes = [path.stat().st_size for path in traces]
    run = {"cwd": tool.folder, "env": tool.environment, "shell": True}
    assert subprocess.run(bad, **run).returncode == 136  # as a shell reports SIGFPE
    assert subprocess.run(good, **run).returncode == 0
    assert [path.stat().st_size for path in traces] == sizes  # the evidence stays as it was
    assert not (tool.folder / "out").exists() and not (tool.folder / "done.txt").exists()


# ----------------------------------------------------------------------------------------------------- wrong targets


def test_variables_of_the_environment(tool):
    """One that is set and one that is not; a library has read them before any fork."""
    text = """
        MODE, SAFE = os.environ.get("MODE"), os.environ.get("SAFE")
        args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True, temperature=0.9)
        def step(number):
            if args.bf16 and MODE == "fast" and SAFE != "01" and number == 3:
                os.kill(os.getpid(), signal.SIGFPE)
        GRPOTrainer(args, step).train()
    """
    script(tool.folder, text)
    tool.environment["MODE"] = "fast"
    options = ("--no-recommend", "--no-where", "--good", "env.MODE=", "--good", "env.SAFE=01")
    said = tool("bisect", "train.py", "--study", "s", *options)
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s" / "result.json").read_text())
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["bf16", "env.MODE", "env.SAFE"]]
    levels = result["causes"][0]["parameters"]
    assert (levels["env.MODE"], levels["env.SAFE"]) == ({"good": None, "bad": "fast"}, {"good": "01", "bad": None})
    changed = [
        one for one in result["trials"] if one["values"]["env.MODE"] is None or one["values"]["env.SAFE"] == "01"
    ]
    assert changed and {one["start"] for one in changed} == {"cold"}
    tool.assert_nothing_left()


def test_whole_commands(tool):
    """Whatever follows a launcher's name is the launcher's, with or without -- before it."""
    package = tool.folder / "pkg"
    script(tool.folder, name="pkg/train.py")
    (package / "__init__.py").write_text("")
    for way in ((), ("--",)):
        folder = f"s{len(way)}"
        said = tool("bisect", "--study", folder, *QUICK, *way, "A=b", sys.executable, "-m", "pkg.train", "-x")
        assert said.status == 0, said.all
        result = json.loads((tool.folder / folder / "result.json").read_text())
        assert [list(cause["parameters"]) for cause in result["causes"]] == [["bf16"]]
        assert {one["start"] for one in result["trials"][1:]} == {"config"}
        by_hand = (tool.folder / folder / "trials" / "0" / "command.sh").read_text()
        assert "A=b" in by_hand and "-m pkg.train -x" in by_hand
    tool.assert_nothing_left()


# ------------------------------------------------------------------------------------------------ the good
# configuration


# ----------------------------------------------------------------------------------------------------- the study folder


# ----------------------------------------------------------------------------------------------------- the command line
