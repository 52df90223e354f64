"""Commands as they are typed, and what they answer: each case of `tests/cmd/*.yaml`.

A case has `files` (name -> text; a script that imports nothing is completed by `toys.script`; a notebook has a list of
cells; a text that begins with ``#!PYTHON`` is a program), what is `run` there, the exit `status` (2 where nothing is
said), and what it `says` on standard error, or where it says nothing there, on standard output, with ``...`` for
anything. Its `result` says what result.json holds: key -> value; keys within keys have a dot, and causes and changes
are the names of their settings. In its `environment` stand FOLDER and LIBRARY, the stand-in for TRL. More commands may
follow in `then`. What is `slow` is another way through what the others show. With RECORD=1 in the environment the files
are written anew with what is said now, but for what has a ``...``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from tools import ForkedTool

FILES = sorted((Path(__file__).parents[1] / "cmd").glob("*.yaml"))
CASES = [
    pytest.param(path, number, id=f"{path.stem}-{number}", marks=[pytest.mark.slow] * case.get("slow", False))
    for path in FILES
    for number, case in enumerate(yaml.safe_load(path.read_text())["cases"])
]


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".ipynb":
            toys.notebook(folder, *text, name=name)
        elif path.suffix == ".py" and not text.startswith("import"):
            toys.script(folder, toys.FAILS if text == "FAILS" else text, name)
        else:
            path.write_text(text.replace("#!PYTHON", f"#!{sys.executable}"))
            path.chmod(0o755 if text.startswith("#!PYTHON") else 0o644)


def steady(said: str, folder: Path) -> str:
    """What is the same each time, on any machine."""
    said = said.replace(str(folder), "FOLDER").replace(folder.name, "NAME").replace(sys.executable, "PYTHON")
    said = re.sub(r"\d+(\.\d+)? s\b", "TIME", said)
    return "".join(f"{line.rstrip()}\n" for line in said.splitlines())


def matches(said: str, wanted: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, wanted.split("..."))), said, re.DOTALL) is not None


def holds(folder: Path, key: str) -> Any:
    """A value of the only result.json there is."""
    (path,) = folder.glob("bisect-cfg-studies/*/result.json")
    value = json.loads(path.read_text())
    for part in key.split("."):
        value = value[int(part) if part.lstrip("-").isdigit() else part]
    if key.endswith("changes"):
        return list(value)
    return [sorted(one["parameters"]) for one in value] if key == "causes" else value


def text(dumper: yaml.Dumper, said: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", said, style="|" if "\n" in said else None)


@pytest.mark.parametrize(("path", "number"), CASES)
def test_a_command_says(tool: ForkedTool, path: Path, number: int) -> None:
    content = yaml.safe_load(path.read_text())
    case = content["cases"][number]
    write(tool.folder, content.get("files", {}))
    tool.environment |= {"COLUMNS": "100", "NO_COLOR": "1", "PWD": str(tool.folder)}
    library = tool.environment["PYTHONPATH"]
    for step in (case, *case.get("then", ())):
        write(tool.folder, step.get("files", {}))
        for name, value in {**content.get("environment", {}), **step.get("environment", {})}.items():
            tool.environment[name] = value.replace("FOLDER", str(tool.folder)).replace("LIBRARY", library)
        said = tool(*(word.replace("PYTHON", sys.executable) for word in shlex.split(step["run"])))
        found = steady(said.err or said.out, tool.folder)
        if os.environ.get("RECORD") and "..." not in step.get("says", ""):
            step |= {"says": found} | ({} if said.status == 2 else {"status": said.status})
        assert (said.status, matches(found, step["says"])) == (step.get("status", 2), True), found
        wanted = step.get("result", {})
        assert {key: holds(tool.folder, key) for key in wanted} == wanted
    tool.assert_nothing_left()
    if os.environ.get("RECORD"):
        yaml.SafeDumper.add_representer(str, text)
        path.write_text(yaml.safe_dump(content, sort_keys=False, width=110, allow_unicode=True))
