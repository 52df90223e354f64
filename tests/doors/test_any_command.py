"""`bisect-cfg bisect -- COMMAND` with programs that were not written for this project, and with what goes wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tools import ForkedTool, undocumented

import bisect_cfg
from bisect_cfg.runner.observe import observe_command
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.watch import Ending

pytestmark = pytest.mark.training  # processes by the dozen

STUDY = Path(__file__).parents[2] / "studies" / "openrlhf_illegal_memory"


@pytest.fixture
def tool(tmp_path):
    """The command line in `tmp_path`; no library is needed."""
    made = ForkedTool(tmp_path, None)
    yield made
    for process in made.left():
        process.kill()


def result_of(tool) -> dict:
    (path,) = tool.folder.glob("bisect-cfg-studies/*/result.json")
    found = json.loads(path.read_text())
    assert undocumented(found) == set()
    return found


def causes_of(result) -> list[list[str]]:
    return [sorted(cause["parameters"]) for cause in result["causes"]]


def bisected(tool, *arguments) -> dict:
    said = tool("bisect", "--no-recommend", *arguments)
    assert said.status == 0, said.all
    tool.assert_nothing_left()
    result = result_of(tool)
    assert result["status"] == "isolated" and result["complete"]
    return result


# ----------------------------------------------------------------------------------------- programs of other people


def test_python_with_a_configuration_file(tool):
    (tool.folder / "bad.json").write_text('{"loggers": {"level": "LOUD"}, "x": [1], "y": {"z": "é"}}')
    (tool.folder / "check.py").write_text(
        "import json, logging, sys\nc = json.load(open(sys.argv[1]))\n"
        "logging.getLogger().setLevel(c['loggers']['level'])"
    )
    sides = ("--good", "loggers.level=INFO", "--good", "x=[2]", "--good", "y.z=1", "--bad", "bad.json")
    result = bisected(tool, *sides, "--", sys.executable, "check.py", "{config}")
    assert causes_of(result) == [["loggers.level"]]
    assert result["failure"]["exception"] == "ValueError" and "LOUD" in result["failure"]["message"]
    safe = (tool.folder / "bisect-cfg-studies" / "check" / "safe_config.yaml").read_text()
    assert "level: INFO" in safe and "é" in safe
    (command,) = tool.folder.glob("bisect-cfg-studies/*/trials/0/command.sh")
    again = subprocess.run(["sh", command], capture_output=True, text=True)
    assert again.returncode == 1 and "Unknown level: 'LOUD'" in again.stderr

    # Somebody who has the program and the Markdown.
    told = tool("report", "bisect-cfg-studies/check", "--format", "md").out
    command, given = re.findall(r"```\w*\n(?:# yours: loggers.level = LOUD\n)?(.*?)\n```", told, re.DOTALL)[1:3]
    assert told.startswith("### bisect-cfg: `check.py`, isolated") and "`config.json`" in told
    (tool.folder / "config.json").write_text(given)
    ended = subprocess.run(command, shell=True, cwd=tool.folder, capture_output=True, text=True)
    assert json.loads(given)["x"] == [2] and "Unknown level: 'LOUD'" in ended.stderr, told
    line = shlex.split(told.rpartition("```sh")[2].splitlines()[2])
    assert line[2:] == ["--no-recommend", *sides, "--", sys.executable, "check.py", "{config}"]


def test_the_study_of_openrlhf(tool):
    expected = json.loads((STUDY / "expected.json").read_text())
    words = (STUDY / "command.sh").read_text().partition("-- ")[2].replace("\\\n", " ").split()
    words[1] = str(STUDY / words[1])
    said = tool("bisect", "--good", STUDY / "good.yaml", "--jobs", "2", "--", *words)
    assert said.status == 0, said.all
    tool.assert_nothing_left()
    result = result_of(tool)
    assert {key: result[key] for key in ("status", "complete")} == {
        key: expected[key] for key in ("status", "complete")
    }
    assert causes_of(result) == expected["causes"] and result["failure"]["kind"] == expected["failure"]["kind"]
    assert "8192 tokens" in result["simulated"] and result["failure"]["step"] == 2
    assert result["failure"]["message"] == "RuntimeError: CUDA error: an illegal memory access was encountered"
    found = result["recommendation"]  # which of the two is given up less, their times have a say in
    assert found["verified"] and any(way["ranges"] for way in (found, *found["alternatives"]))
    again = tool("bisect", "--good", STUDY / "good.yaml", "--jobs", "2", "--", *words)
    assert again.status == 0 and len(result_of(tool)["trials"]) == len(result["trials"]), "nothing is run again"


# -------------------------------------------------------------------------------------------- what exit statuses say

STATUS = """
import os, signal, sys, time
a, b = sys.argv[1:]
print("ordinary output", flush=True)
WAYS = {"signal": lambda: os.kill(os.getpid(), signal.SIGSEGV), "hang": lambda: time.sleep(600)}
if a == "bad" and b in WAYS: WAYS[b]()
if a == "bad" and b.isdigit(): sys.exit(int(b))
"""


def run_status(tool, b, *options, good="a=ok"):
    (tool.folder / "status.py").write_text(STATUS)
    command = [sys.executable, "-S", "status.py", "{a}", b]
    return tool("bisect", "--no-recommend", *options, "--good", good, "--bad", "a=bad", "--", *command)


@pytest.mark.parametrize(
    ("code", "printed", "kind", "name", "message"),
    [
        (0, "error: none", None, "", ""),
        (None, "", None, "", ""),
        (1, "x", "exit", "1", ""),
        (2, "a: No such file or directory\n3 rows", "exit", "2", "a: No such file or directory"),
        (2, "error: no value for x\ntip: it must have one\n", "exit", "2", "error: no value for x"),
        (139, "", "signal", "SIGSEGV", ""),
        (-8, "", "signal", "SIGFPE", ""),
        (1, "Traceback (most recent call last):\nValueError: no 1", "exception", "ValueError", "no <n>"),
        (125, "error: x", "skipped", "", ""),
        (126, "", "cannot-run", "126", ""),
        (127, "", "cannot-run", "127", ""),
    ],
)
def test_what_an_end_says(tmp_path, code, printed, kind, name, message):
    (tmp_path / "log.txt").write_text(printed)
    died = observe_command(Traces(tmp_path), Ending(code, None, 1.0)).died
    assert (None if died is None else (died.kind, died.name, died.message)) == (kind and (kind, name, message))


def test_ranks_that_print_their_tracebacks_into_each_other_fail_alike(tmp_path):
    head, error = "Traceback (most recent call last):", "RuntimeError: no GPU for this rank"
    frames = [f'  File "/site-packages/torch/{name}.py", line 9, in {name}' for name in ("wrapper", "device")]
    said = ([head, head, *frames, error, error], [head, *reversed(frames), error, head, *frames[:1], error])
    found = []
    for lines in said:
        (tmp_path / "log.txt").write_text("\n".join(lines))
        found.append(observe_command(Traces(tmp_path), Ending(1, None, 1.0)).died)
    assert found[0] == found[1] and found[0].name == "RuntimeError" and found[0].message


@pytest.mark.parametrize(("b", "kind"), [("signal", "signal"), ("hang", "hang")])
def test_ways_to_fail(tool, b, kind):
    said = run_status(tool, b, *(["--trial-timeout", "5"] if b == "hang" else []))
    assert said.status == 0, said.all
    failure = result_of(tool)["failure"]
    assert failure["kind"] == kind and failure.get("signal") == {"signal": "SIGSEGV"}.get(kind)
    assert failure["step"] is None and "before the first step" not in said.all
    tool.assert_nothing_left()


# -------------------------------------------------------------------------------------------- metrics in the output

COLLAPSE = """
import sys, time
lr = float(sys.argv[1])
for step in range(1, 400):
    e, r, s = (2.0, 0.5 + step % 3 / 10, 0.2) if lr < 0.01 or step < 6 else (0.001, 0.0, 0.0)
    said = {"actor/entropy": e, "actor/grad_norm": 0.3 if s else 0.0, "critic/score/mean": r, "critic/score/std": s}
    print(f"step:{step} - " + " - ".join(f"{name}:{value}" for name, value in said.items()), flush=True)
    time.sleep(0.001)
"""


def test_a_collapse_fails_though_the_command_ends_well(tool):
    """Console lines as verl prints them; trials are ended early, and have steps."""
    (tool.folder / "t.py").write_text(COLLAPSE)
    said = tool(
        "bisect", "--no-recommend", "--good", "lr=1e-6", "--bad", "lr=0.1", "--", sys.executable, "-S", "t.py", "{lr}"
    )
    assert said.status == 0, said.all
    result = result_of(tool)
    assert result["failure"]["kind"] == "collapse" and causes_of(result) == [["lr"]]
    assert all(row["step"] < 399 for row in result["trials"]), "no trial went on to its end"
    files = [path for path in tool.folder.glob("bisect-cfg-studies/**/*") if path.is_file()]
    assert any(path.name == "metrics.jsonl" for path in files)
    assert {path.name for path in files if path.stat().st_mode & 0o077} == set(), "its owner's alone"


# ------------------------------------------------------------------------------------------------------ from Python


def test_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("b\na\n")
    sides = {"good": {"check": False, "key": 1}, "bad": {"check": True, "key": 2}}
    report = bisect_cfg.bisect(command=["sort", "{flags}", "f"], recommend=False, **sides)
    assert [cause.parameters for cause in report.causes] == [("check",)] and report.complete
    for wrong in ({}, {"command": "sort x"}, {"target": "x", "command": ["y"]}):
        with pytest.raises(TypeError, match="takes a target"):
            bisect_cfg.bisect(**wrong)


def test_a_script_that_is_edited_while_its_command_is_bisected_stops_the_study(tool):
    """... and so does a module beside it; as it was, the study goes on."""
    (tool.folder / "helper.py").write_text("import deeper\n")
    (tool.folder / "deeper.py").write_text("limit = 1\n")
    (tool.folder / "render.py").write_text(
        "import helper, os, sys\n"
        "if len(os.listdir('s/trials')) == 4: open('deeper.py', 'a').write('x = 1\\n')\n"
        "sys.exit('--workers 8 --fast' in ' '.join(sys.argv))\n"
    )
    sides = ["--good", "workers=1", "--good", "fast=false", "--good", "quality=low"]
    command = ["bisect", "--study", "s", *sides, "--no-recommend", "--", sys.executable, "render.py"]
    flags = ["--workers", "8", "--fast", "--quality", "high"]
    said = tool(*command, *flags)
    assert said.status != 0 and "deeper.py changed while the trials ran" in said.all, said.all
    (tool.folder / "deeper.py").write_text("limit = 1\n")
    said = tool(*command, *flags)
    assert said.status == 0 and json.loads((tool.folder / "s/result.json").read_text())["complete"], said.all
