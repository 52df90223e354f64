"""What every trial reads: a change to it while the tool runs stops it; what is put back lets it go on."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import asked, assert_clear, slow
from toys import script


def causes(study: Path) -> list[list[str]]:
    return [list(cause["parameters"]) for cause in json.loads((study / "result.json").read_text())["causes"]]


READS = """
    import json, sys, time
    import helper
    settings = json.load(open("settings.json"))
    config = open(sys.argv[1]).read()
    open(sys.argv[2], "a").write("a line of its own\\n")
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, warmup_steps=7, max_grad_norm=0.2, adam_beta2=0.95,
        bf16=True, tf32=False, beta=0.04, temperature=0.9,
    )
    def step(number):
        time.sleep(0.03)
        if number == 2:
            import late, package.deep, far
        if args.bf16 and args.beta and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""


@pytest.fixture
def reading(tool, library):
    """A script that reads all kinds of things, with a library of its own that has a version."""
    shutil.copytree(library, tool.folder / "library")
    for name, version in (("trl", "9.1"), ("transformers", "9.1")):
        (tool.folder / f"library/{name}-{version}.dist-info").mkdir()
        (tool.folder / f"library/{name}-{version}.dist-info/METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    tool.environment["PYTHONPATH"] = os.pathsep.join(
        str(tool.folder / name) for name in ("library", "elsewhere/beyond")
    )
    tool.environment["TMPDIR"] = str(tool.folder / "tmp")
    (tool.folder / "tmp").mkdir()
    for name in ("late.py", "package/deep.py", "elsewhere/beyond/far.py"):
        (tool.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tool.folder / name).write_text("limit = 1\n")
    script(tool.folder, READS)
    (tool.folder / "helper.py").write_text("limit = 1\n")
    (tool.folder / "settings.json").write_text("{}")
    (tool.folder / "recipe.yaml").write_text("a: 1\n")
    (tool.folder / "run.log").write_text("")
    return tool


COMMAND = ("bisect", "train.py", "--study", "s", "--", "recipe.yaml", "run.log")


def first_run(study: Path) -> bool:
    return (study / "trials/0/metrics.jsonl").exists()


def baselines(study: Path) -> bool:
    good = asked(study).get("good baseline")
    return good is not None and (good / "metrics.jsonl").exists()


def search(study: Path) -> bool:
    return "search" in asked(study)


def safe_values(study: Path) -> bool:
    return "recommend" in asked(study)


def command(moment: Callable[[Path], bool], *options: str) -> tuple[str, ...]:
    """`COMMAND`, without what comes after the moment and is not looked at."""
    quick = () if moment is safe_values else ("--no-recommend", "--no-where")
    return (*COMMAND[:2], *quick, *options, *COMMAND[2:])


def edit(tool, name: str) -> None:
    if name == "version":
        folder = tool.folder / "library"
        (folder / "trl-9.1.dist-info").rename(folder / "trl-9.2.dist-info")
        (folder / "trl-9.2.dist-info/METADATA").write_text("Name: trl\nVersion: 9.2\n")
        return
    with (tool.folder / name).open("a") as stream:
        stream.write(" \n")


def finished(study: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in study.glob("trials/*/ending.json")}


def changed_at(tool, moment: Callable[[Path], bool], name: str):
    """Run, change a thing at a moment, and return what was said."""
    process = tool.start(*command(moment))
    deadline = time.monotonic() + 240
    while not moment(tool.folder / "s") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    edit(tool, name)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("moment", "name", "said"),
    [
        (first_run, "train.py", "train.py"),
        slow(first_run, "helper.py", "helper.py"),
        (baselines, "recipe.yaml", "recipe.yaml"),
        slow(search, "train.py", "train.py"),
        slow(search, "helper.py", "helper.py"),
        (search, "late.py", "late.py"),
        slow(search, "package/deep.py", "deep.py"),
        slow(search, "elsewhere/beyond/far.py", "far.py"),
        slow(baselines, "late.py", "late.py"),
        slow(search, "settings.json", "settings.json"),
        (search, "version", "trl (9.1 -> 9.2)"),
        slow(safe_values, "recipe.yaml", "recipe.yaml"),
    ],
)
def test_what_changes_while_the_tool_runs(reading, moment, name, said):
    tool, study = reading, reading.folder / "s"
    status, out, err = changed_at(tool, moment, name)
    assert status == 3, out + err
    assert said in err and "changed while the trials ran" in err and "--restart" in err and "Traceback" not in err
    tool.assert_nothing_left()
    if moment is safe_values:  # the causes were known by then
        assert causes(study) == [["beta", "bf16"]]
    kept = finished(study)
    again = tool(*command(moment))
    assert again.status in (0, 2) and (again.status == 2 or moment is first_run), again.all
    if again.status == 2:
        assert_clear(again, said.partition(" ")[0], "--restart")
        assert finished(study) == kept
        if name != "late.py":
            return
        assert tool(*command(moment, "--restart")).status == 0
        assert finished(tool.folder / "s.old-1") == kept
    assert causes(study) == [["beta", "bf16"]]


def test_put_back_it_goes_on(reading):
    before = (reading.folder / "train.py").read_text()
    status, out, err = changed_at(reading, search, "train.py")
    assert status == 3, out + err
    kept = finished(reading.folder / "s")
    (reading.folder / "train.py").write_text(before)
    said = reading(*COMMAND)
    assert said.status == 0, said.all
    assert kept.items() <= finished(reading.folder / "s").items()
    assert causes(reading.folder / "s") == [["beta", "bf16"]]


def test_no_change(reading):
    """A touch, the same content written again, another package, a log that the script writes: no other inputs."""
    process = reading.start(*COMMAND)
    deadline = time.monotonic() + 240
    while not search(reading.folder / "s") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    (reading.folder / "train.py").touch()
    (reading.folder / "helper.new").write_text("limit = 1\n")
    (reading.folder / "helper.new").replace(reading.folder / "helper.py")
    (reading.folder / "library/other-1.0.dist-info").mkdir()
    (reading.folder / "library/other-1.0.dist-info/METADATA").write_text("Name: other\nVersion: 1.0\n")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert len((reading.folder / "run.log").read_text().splitlines()) >= 2
    assert reading(*COMMAND).status == 0


@pytest.mark.slow
def test_killed_in_its_first_run_it_goes_on(reading):
    """The run had written to a file of its command line by then."""
    process = reading.start(*COMMAND)
    deadline = time.monotonic() + 240
    while not first_run(reading.folder / "s") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert (reading.folder / "run.log").read_text() and not finished(reading.folder / "s")
    said = reading(*COMMAND)
    assert said.status == 0, said.all


def test_other_circumstances_are_no_evidence(reading):
    """The same command from another folder, and other --good content under the same name."""
    tool = reading
    good = tool.folder / "g.yaml"
    good.write_text("learning_rate: 1.0e-6\n")
    quick = ("--good", "g.yaml", "--no-recommend", "--no-where")
    assert tool("bisect", "train.py", *quick, *COMMAND[2:]).status == 0
    good.write_text("learning_rate: 1.0e-5\n")
    assert_clear(tool("bisect", "train.py", *quick, *COMMAND[2:]), "--good changed")
    good.write_text("learning_rate: 1.0e-6\n")
    (tool.folder / "below").mkdir()
    for name in ("recipe.yaml", "run.log", "settings.json", "g.yaml"):
        (tool.folder / "below" / name).write_bytes((tool.folder / name).read_bytes())
    tool.folder = tool.folder / "below"
    said = tool("bisect", "../train.py", *quick, "--study", "../s", "--", "recipe.yaml", "run.log")
    assert_clear(said, "the folder it is started in")
