"""A study that is asked for again by its folder alone: what is run then is said, and only what was made here is run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from tools import assert_clear, slow
from toys import script


def listing(folder: Path) -> dict[str, tuple]:
    """Everything in a folder: type, size, content, time of change."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        known = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path)] = (known.st_mode, known.st_mtime_ns, content)
    return found


def isolated(tool) -> Path:
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where", "--", "--x", "a b")
    assert said.status == 0, said.all
    return tool.folder / "s"


def with_options(study: Path, **changes: object) -> None:
    command = json.loads((study / "command.json").read_text())
    (study / "command.json").write_text(json.dumps({**command, "options": {**command["options"], **changes}}))


def test_recommend_says_what_it_runs(tool):
    study = isolated(tool)
    said = tool("recommend", "s")
    assert said.status == 0, said.all
    assert f"Runs: cd {tool.folder} && {sys.executable} train.py --x 'a b'" in said.out
    study.rename(tool.folder / "renamed")
    assert tool("recommend", "renamed").status == 0


def test_recommend_refuses_another_interpreter(tool):
    study = isolated(tool)
    mine = tool.folder / "python"
    mine.write_text(f"#!/bin/sh\ntouch '{tool.folder}/ran'\nexec {sys.executable} \"$@\"\n")
    mine.chmod(0o755)
    with_options(study, python=str(mine))
    said = tool("recommend", "s")
    assert_clear(said, "another interpreter", f"{mine} train.py --x 'a b'", f"--python {mine}")
    assert not (tool.folder / "ran").exists()
    with_options(study, python=sys.executable)
    assert tool("recommend", "s").status == 0
    # Told to, it is asked; that trials of one interpreter say nothing about another is then said as ever.
    with_options(study, python=str(mine))
    assert_clear(tool("recommend", "s", "--trust"), "the interpreter")
    assert (tool.folder / "ran").exists()


@pytest.mark.parametrize("how", ["copied", slow("written by others")])
def test_recommend_refuses_what_was_not_made_here(tool, how):
    study, name = isolated(tool), "s"
    if how == "copied":
        shutil.copytree(study, tool.folder / "copy")
        name = "copy"
    else:
        (study / "command.json").chmod(0o666)
    before = listing(tool.folder)
    said = tool("recommend", name)
    assert_clear(said, "was not made here", "train.py --x 'a b'", "--trust")
    assert listing(tool.folder) == before
    assert tool("recommend", name, "--trust").status == 0
    assert tool("recommend", name).status == 0  # now it is ours
