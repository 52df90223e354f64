"""One study, one thing studied: shared storages, inputs that change while the tool runs, folders of somebody else."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import assert_clear, recorded, slow
from toys import FAILS, script

# --------------------------------------------------------------------------------------------- two studies, one storage

BETA_FAILS = FAILS.replace("if args.bf16 and", "if args.beta and")
BOTH_SET = ("temperature=0.9", "temperature=0.9, beta=0.04")


def causes(study: Path) -> list[list[str]]:
    return [list(cause["parameters"]) for cause in json.loads((study / "result.json").read_text())["causes"]]


def studies_in(address: str) -> dict[str, list[tuple]]:
    """Name -> what is known of each trial."""
    return {
        name: [(trial.number, trial.state, trial.user_attrs) for trial in trials]
        for name, trials in recorded(address).items()
    }


def test_two_scripts_share_a_storage(tool):
    script(tool.folder, FAILS.replace(*BOTH_SET), name="a/x/train.py")
    script(tool.folder, BETA_FAILS.replace(*BOTH_SET), name="b/x/train.py")
    shared = ("--storage", "sqlite:///shared.db", "--no-recommend", "--no-where")
    address = f"sqlite:///{tool.folder / 'shared.db'}"
    both = {name: tool.start("bisect", f"{name}/x/train.py", "--study", f"of-{name}", *shared) for name in "ab"}
    for name, cause in (("a", "bf16"), ("b", "beta")):  # at once, so that both make the database
        out, err = both[name].communicate(timeout=240)
        assert both[name].returncode == 0, out + err
        assert causes(tool.folder / f"of-{name}") == [[cause]]
    first = studies_in(address)
    assert len(first) == 2 and all(name.startswith("x-") for name in first)

    # The same thing from a fresh folder goes on with what is there.
    shutil.rmtree(tool.folder / "of-b")
    assert tool("bisect", "b/x/train.py", "--study", "of-b", *shared).status == 0
    again = studies_in(address)
    assert again.keys() == first.keys() and causes(tool.folder / "of-b") == [["beta"]]

    # A restart begins anew there too, deletes nothing, and is what goes on afterwards.
    assert tool("bisect", "a/x/train.py", "--study", "of-a", "--restart", *shared).status == 0
    anew = studies_in(address)
    assert {name: anew[name] for name in again} == again
    (new,) = anew.keys() - again.keys()
    assert len(anew[new]) >= 3 and causes(tool.folder / "of-a") == [["bf16"]]
    assert tool("bisect", "a/x/train.py", "--study", "of-a", *shared).status == 0
    assert studies_in(address) == anew


def test_the_good_side_and_the_arguments_belong_to_a_study(tool):
    script(tool.folder)
    shared = ("--storage", "sqlite:///shared.db", "--no-recommend", "--no-where")
    address = f"sqlite:///{tool.folder / 'shared.db'}"
    for number, (options, arguments) in enumerate(
        [((), ()), (("--good", "learning_rate=1e-6"), ()), ((), ("--", "--x", "1"))], start=1
    ):
        said = tool("bisect", "train.py", "--study", f"s{number}", *shared, *options, *arguments)
        assert said.status == 0, said.all
        assert len(studies_in(address)) == number


def test_a_study_whose_database_is_another_ones(tool):
    for name, text in (("a", FAILS), ("b", BETA_FAILS)):
        script(tool.folder, text.replace(*BOTH_SET), name=f"{name}/x/train.py")
        said = tool("bisect", f"{name}/x/train.py", "--study", f"of-{name}", "--no-recommend", "--no-where")
        assert said.status == 0, said.all
    shutil.copy(tool.folder / "of-a/study.db", tool.folder / "of-b/study.db")
    said = tool("bisect", "b/x/train.py", "--study", "of-b", "--no-recommend", "--no-where")
    assert_clear(said, "something else", "script", "--restart")


# ------------------------------------------------------------------------------------- inputs that change while it runs

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
    return any(study.glob("trials/good-*/metrics.jsonl"))


def search(study: Path) -> bool:
    return len(list(study.glob("trials/[0-9]*/ending.json"))) >= 3


def safe_values(study: Path) -> bool:
    if not (study / "trials/where/ending.json").exists():
        return False
    since = (study / "trials/where/ending.json").stat().st_mtime
    return any(path.stat().st_mtime > since for path in study.glob("trials/[0-9]*/ending.json"))


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


# ------------------------------------------------------------------------------------------------ folders of others


def listing(folder: Path) -> dict[str, tuple]:
    """Everything in a folder: type, size, content, time of change."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        known = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path)] = (known.st_mode, known.st_mtime_ns, content)
    return found


@pytest.mark.parametrize("restart", [(), ("--restart",)])
@pytest.mark.parametrize("content", ["file named lock", "link named lock", "other things", "trials of others"])
def test_a_folder_that_is_refused_stays_as_it_was(tool, content, restart):
    script(tool.folder)
    (tool.folder / "precious").write_text("do not touch")
    folder = tool.folder / "s"
    folder.mkdir()
    match content:
        case "file named lock":
            (folder / "lock").write_text("a lock of somebody else's")
        case "link named lock":
            (folder / "lock").symlink_to("../precious")
        case "other things":
            (folder / "passwd").write_text("root")
        case "trials of others":
            (folder / "trials").mkdir()
            (folder / "trials/1.csv").write_text("1,2")
    before = listing(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", *restart)
    assert_clear(said, str(folder), "--study")
    assert listing(tool.folder) == before


READ_OR_WRITTEN = (
    "lock", "safe_config.yaml", "study.json", "study.db-wal", "command.json", "server/log.txt", "study.db",
    "result.json.new", "trials/0", "validity.json.new",
)  # fmt: skip


def test_pipes_and_links_in_a_study_folder(tool):
    """Neither does a pipe block, nor is a link followed, whatever the name: it is said, and nothing happens."""
    script(tool.folder)
    assert tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where").status == 0
    (tool.folder / "precious").write_text("do not touch")
    aside = tool.folder / "aside"
    commands = [
        ("bisect", "train.py", "--study", "s"),
        ("recommend", "s"),
        ("bisect", "train.py", "--study", "s", "--restart"),
    ]
    for number, name in enumerate(READ_OR_WRITTEN):
        place = tool.folder / "s" / name
        if place.exists():
            place.rename(aside)
        if number % 2:
            place.symlink_to(tool.folder / "precious")
        else:
            os.mkfifo(place)
        odd = "a symbolic link" if number % 2 else "neither a file nor a folder"
        assert_clear(tool(*commands[number % 3], seconds=60), f"s/{name} is {odd}", "--study")
        place.unlink()
        if aside.exists():
            aside.rename(place)
    assert (tool.folder / "precious").read_text() == "do not touch"
    assert sorted(path.name for path in tool.folder.iterdir()) == ["precious", "s", "train.py"]
    assert tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where").status == 0


@pytest.mark.parametrize("name", ["a?b#c", slow("{x} 100%20 ~"), slow("a:b@c")])
def test_the_database_lies_in_the_study_folder(tool, name):
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", name, "--no-recommend", "--no-where")
    assert said.status == 0, said.all
    assert (tool.folder / name / "study.db").exists()
    assert sorted(path.name for path in tool.folder.iterdir()) == sorted([name, "train.py"])


# ------------------------------------------------------------------------------------------------ what recommend runs


def isolated(tool) -> Path:
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where", "--", "--x", "a b")
    assert said.status == 0, said.all
    return tool.folder / "s"


def with_command(study: Path, **changes: object) -> None:
    command = json.loads((study / "command.json").read_text())
    (study / "command.json").write_text(json.dumps({**command, **changes}))


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
    with_command(study, python=str(mine))
    said = tool("recommend", "s")
    assert_clear(said, "another interpreter", f"{mine} train.py --x 'a b'", f"--python {mine}")
    assert not (tool.folder / "ran").exists()
    with_command(study, python=sys.executable)
    assert tool("recommend", "s").status == 0
    # Told to, it is asked; that trials of one interpreter say nothing about another is then said as ever.
    with_command(study, python=str(mine))
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
    assert_clear(said, "was not made here", "train.py --x 'a b'", f"recommend {name} --trust")
    assert listing(tool.folder) == before
    assert tool("recommend", name, "--trust").status == 0
    assert tool("recommend", name).status == 0  # now it is ours
