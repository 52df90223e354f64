"""The command line: what it says, how it exits, what it leaves, for everything a user can get wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import re
import shlex
import shutil
import sqlite3
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import ForkedTool, Said, assert_clear
from toys import FAILS, script

from bisect_cfg import api
from bisect_cfg.checks import from_python
from bisect_cfg.cli import cli
from bisect_cfg.errors import flag_of
from bisect_cfg.study.options import NOT_REPEATED, Options

QUICK = ("--no-recommend", "--no-where")
"""Where only the causes matter."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, library: Path) -> tuple[ForkedTool, Said]:
    """A finished study, and what was printed. Tests that change it work on a copy at the same place: `finished`."""
    made = ForkedTool(tmp_path_factory.mktemp("whole"), library)
    script(made.folder)
    said = made("bisect", "train.py", "--study", "s")
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


def test_a_finished_study_answers_again_without_trials(finished):
    tool = finished
    before = sorted((tool.folder / "s/trials").iterdir())
    again = tool("bisect", "train.py", "--study", "s")
    assert again.status == 0 and "bf16" in again.out
    assert sorted((tool.folder / "s/trials").iterdir()) == before


def test_jobs(tool):
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--jobs", "3", *QUICK)
    assert said.status == 0 and "Cause  bf16 = True" in said.out
    tool.assert_nothing_left()
    with contextlib.closing(sqlite3.connect(tool.folder / "s/study.db")) as study:
        asked = "select datetime_start, datetime_complete from trials where datetime_complete not null order by 1"
        trials = study.execute(asked).fetchall()
    assert any(began < ended for (_, ended), (began, _) in itertools.pairwise(trials)), "one after another"


@pytest.mark.parametrize("option, start", [("--start", "imports"), ("--level", "cold")])  # --level: as it was called
def test_every_start_gives_the_same_answer(tool, option, start):
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", option, start, *QUICK)
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert result["start"] == result["start_level"] == start
    assert {row["start"] for row in result["trials"]} == {row["level"] for row in result["trials"]} <= {start, "cold"}
    assert list(result["causes"][0]["parameters"]) == ["bf16"]


def test_start_goes_by_its_former_name_too():
    assert from_python({"level": "cold"}) == from_python({"start": "cold"})


def test_commands_by_hand_repeat_the_runs(whole, finished):
    import subprocess

    tool, said = whole
    bad = re.search(r"To repeat the minimal failing run: +(.+)", said.out)[1]
    good = re.search(r"To repeat the nearest passing run: +(.+)", said.out)[1]
    traces = sorted((tool.folder / "s").rglob("events.jsonl"))
    sizes = [path.stat().st_size for path in traces]
    run = {"cwd": tool.folder, "env": tool.environment, "shell": True}
    assert subprocess.run(bad, **run).returncode == 136  # as a shell reports SIGFPE
    assert subprocess.run(good, **run).returncode == 0
    assert [path.stat().st_size for path in traces] == sizes  # the evidence stays as it was
    assert not (tool.folder / "out").exists() and not (tool.folder / "done.txt").exists()


# ----------------------------------------------------------------------------------------------------- wrong targets


def test_no_such_script(tool):
    script(tool.folder, name="trian.py")
    assert_clear(tool("bisect", "train.py"), "There is no script train.py", "trian.py")
    assert not (tool.folder / "bisect-cfg-studies").exists()


def test_folder_without_train_py(tool):
    (tool.folder / "empty").mkdir()
    assert_clear(tool("bisect", "empty"), "empty has no train.py")


def test_not_a_python_script(tool):
    (tool.folder / "run.sh").write_text("#!/bin/sh\nexport A=1\naccelerate launch \\\n  train.py --lr 1\n")
    assert_clear(tool("bisect", "run.sh"), "run.sh is not a", "bisect-cfg bisect -- bash run.sh")
    (tool.folder / "r.yaml").write_text("beta: 0.04\n")
    assert_clear(tool("bisect", "r.yaml"), "r.yaml is not a", "bisect-cfg bisect -- trl grpo --config r.yaml")
    assert_clear(tool("bisect", "-m", "pkg.train", "--lr", "1"), "bisect-cfg bisect -- python -m pkg.train --lr 1")
    assert_clear(tool("accelerate", "launch", "train.py"), "bisect-cfg bisect accelerate launch train.py")


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
    assert_clear(
        tool("bisect", "deepspeed", "pkg/train.py", "--plain"), "deepspeed is not installed here", "pip install"
    )
    assert_clear(tool("bisect", sys.executable, "-m", "pkg.none"), "There is no module pkg.none")
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


def test_script_without_config(tool):
    script(tool.folder, "print('hello')")
    assert_clear(tool("bisect", "train.py"), "without ever building a training config", "hello")
    tool.assert_nothing_left()


def test_script_that_dies_before_its_config(tool):
    script(tool.folder, "print('loading')\nraise FileNotFoundError('data.json')")
    assert_clear(tool("bisect", "train.py"), "died before it built", "FileNotFoundError: data.json", "loading")


def test_script_that_is_killed_before_its_config(tool):
    script(tool.folder, "os.kill(os.getpid(), signal.SIGSEGV)")
    assert_clear(tool("bisect", "train.py"), "died before it built", "SIGSEGV")


def test_script_with_a_syntax_error(tool):
    (tool.folder / "train.py").write_text("def broken(:\n")
    assert_clear(tool("bisect", "train.py"), "SyntaxError", "def broken(:")


def test_script_that_builds_its_config_and_ends(tool):
    script(tool.folder, "GRPOConfig(bf16=True)")
    assert_clear(tool("bisect", "train.py"), "ended without training")


def test_config_that_is_not_valid(tool):
    script(tool.folder, "GRPOTrainer(GRPOConfig(num_generations=1)).train()")
    assert_clear(tool("bisect", "train.py"), "not valid", "num_generations must be at least 2")


def test_config_with_a_name_of_the_past(tool):
    script(tool.folder, "GRPOTrainer(GRPOConfig(warmup_ratio=0.1)).train()")
    assert_clear(tool("bisect", "train.py"), "unexpected keyword argument 'warmup_ratio'", "warmup_steps")


def test_empty_script(tool):
    (tool.folder / "train.py").write_text("")
    assert_clear(tool("bisect", "train.py"), "without ever building a training config", "It printed nothing")


# -------------------------------------------------------------------------------------------- nothing to be isolated


def test_bad_configuration_that_passes(tool):
    script(tool.folder, "GRPOTrainer(GRPOConfig(bf16=True)).train()")
    said = tool("bisect", "train.py", "--study", "s", "--steps", "5")
    assert_clear(said, "does not fail: 5 steps", "If it fails now and then: the same command with --restart", status=1)
    assert json.loads((tool.folder / "s/result.json").read_text())["status"] == "no_failure"
    tool.assert_nothing_left()


def test_good_configuration_that_fails(tool):
    script(tool.folder, FAILS.replace("args.bf16 and ", ""))
    said = tool("bisect", "train.py", "--study", "s")
    assert_clear(said, "The good configuration fails as well", "SIGFPE", status=1)
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert result["status"] == "baseline_fails" and result["causes"] == []
    tool.assert_nothing_left()


def test_no_setting_differs(tool):
    script(tool.folder, "GRPOTrainer(GRPOConfig(), lambda number: 1 / 0).train()")
    said = tool("bisect", "train.py", "--study", "s")
    assert_clear(said, "No setting differs", status=1)


# ------------------------------------------------------------------------------------------------ the good
# configuration


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("warmup_ratio", "warmup_steps"),
        ("max_prompt_length", "removed in TRL 0.28"),
        ("lerning_rate", "Did you mean learning_rate?"),
        ("torch_dtype", "model.dtype"),
        ("zzzz", "does not know"),
    ],
)
def test_unknown_name_in_good_yaml(tool, name, advice):
    script(tool.folder)
    good = tool.folder / "good.yaml"
    good.write_text(f"{name}: 0.1\n")
    said = tool("bisect", ".", "--study", "s")
    assert_clear(said, name, advice)


def test_corrected_good_yaml_goes_on(tool):
    """Nothing is lost by a typo: with the name corrected, the same command does not repeat the first run."""
    script(tool.folder)
    good = tool.folder / "good.yaml"
    good.write_text("lerning_rate: 1.0e-6\n")
    assert_clear(tool("bisect", ".", "--study", "s"), "lerning_rate")
    first = (tool.folder / "s/trials/0/ending.json").stat().st_mtime_ns
    good.write_text("learning_rate: 1.0e-6\n")
    said = tool("bisect", ".", "--study", "s", *QUICK)
    assert said.status == 0, said.all
    assert (tool.folder / "s/trials/0/ending.json").stat().st_mtime_ns == first


def test_number_without_a_dot(tool):
    """YAML 1.1 reads 1e-6 as text."""
    script(tool.folder)
    (tool.folder / "good.yaml").write_text("learning_rate: 1e-6\n")
    said = tool("bisect", ".", "--study", "s", *QUICK)
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert {row["values"]["learning_rate"] for row in result["trials"]} == {1e-6, 3e-4}


def test_text_for_a_number(tool):
    script(tool.folder)
    (tool.folder / "good.yaml").write_text("learning_rate: small\n")
    assert_clear(tool("bisect", "."), "learning_rate must be a number, not 'small'")


def test_good_yaml_that_is_no_yaml(tool):
    script(tool.folder)
    (tool.folder / "good.yaml").write_text("a: [1\nb: 2\n")
    assert_clear(tool("bisect", "."), "good.yaml is not valid YAML: line 2")


def test_good_yaml_that_is_a_list(tool):
    script(tool.folder)
    (tool.folder / "good.yaml").write_text("- learning_rate\n")
    assert_clear(tool("bisect", "."), "does not hold names and values")


def test_good_configuration_that_cannot_be_built(tool):
    script(tool.folder)
    assert_clear(
        tool("bisect", "train.py", "--good", "num_generations=1"), "num_generations must be at least 2", "--good"
    )


def test_good_file_that_is_missing(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--good", "godo.yaml"), "godo.yaml")


def test_good_moves_the_baseline(tool):
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--good", "learning_rate=1e-6", "--good", "beta=0.04", *QUICK)
    assert said.status == 0, said.all
    values = json.loads((tool.folder / "s/result.json").read_text())["trials"][1]["values"]
    assert values["learning_rate"] == 3e-4 and "beta" in values


# ----------------------------------------------------------------------------------------------------- choosing factors


def test_only_unknown_name(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--only", "bf61"), "bf61", "Did you mean bf16?")


def test_only_a_setting_that_does_not_differ(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--only", "beta"), "beta is not among the settings that differ", "bf16")


def test_pin_unknown_name(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--pin", "bf61=true"), "bf61")


def test_pin_without_value(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--pin", "bf16"), "not of the form name=value")


def test_pin_holds_in_every_trial(tool):
    script(tool.folder, FAILS.replace("step(number):", "step(number):\n        assert args.beta == 0.125"))
    said = tool("bisect", "train.py", "--pin", "beta=0.125", *QUICK)
    assert said.status == 0 and "Cause  bf16 = True" in said.out, said.all


def test_only(tool):
    script(tool.folder)
    said = tool("bisect", "train.py", "--only", "bf16", "--only", "temperature", *QUICK)
    assert said.status == 0 and "2 settings differ" in said.out, said.all


def test_except_the_cause(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--except", "bf16"), "The good configuration fails as well", status=1)


# ----------------------------------------------------------------------------------------------------- the study folder


def test_file_in_place_of_the_folder(tool):
    script(tool.folder)
    (tool.folder / "s").write_text("")
    assert_clear(tool("bisect", "train.py", "--study", "s"), "is a file, not a folder", "--study")


def test_folder_below_a_file(tool):
    script(tool.folder)
    (tool.folder / "s").write_text("")
    assert_clear(tool("bisect", "train.py", "--study", "s/t"), "cannot be written", "--study")


def test_folder_that_cannot_be_written(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--study", "/proc/bisect-cfg"), "cannot be written", "--study")


def test_folder_with_other_things_in_it(tool):
    script(tool.folder)
    (tool.folder / "s").mkdir()
    (tool.folder / "s/thesis.tex").write_text("")
    assert_clear(tool("bisect", "train.py", "--study", "s"), "holds no study")
    assert sorted(path.name for path in (tool.folder / "s").iterdir() if path.is_file()) in (
        ["lock", "thesis.tex"],
        ["thesis.tex"],
    )


def test_study_of_another_script(finished):
    tool = finished
    script(tool.folder, name="other.py")
    before = (tool.folder / "s/result.json").read_bytes()
    assert_clear(tool("bisect", "other.py", "--study", "s"), "study of another script", "train.py")
    assert_clear(tool("bisect", "other.py", "--study", "s", "--restart"), "study of another script", "train.py")
    assert (tool.folder / "s/result.json").read_bytes() == before


def test_study_with_other_arguments(finished):
    tool = finished
    assert_clear(tool("bisect", "train.py", "--study", "s", "--", "--x", "1"), "other arguments")


def test_changed_script(finished):
    tool, path = finished, finished.folder / "train.py"
    path.write_text(path.read_text() + "# changed\n")
    assert_clear(tool("bisect", "train.py", "--study", "s"), "train.py changed", "--restart")
    assert tool("bisect", "train.py", "--study", "s", "--restart", *QUICK).status == 0
    assert (tool.folder / "s.old-1/result.json").exists()


def test_changed_good_file(tool):
    script(tool.folder)
    (tool.folder / "good.yaml").write_text("learning_rate: 1.0e-6\n")
    assert tool("bisect", ".", "--study", "s", *QUICK).status == 0
    (tool.folder / "good.yaml").write_text("learning_rate: 1.0e-5\n")
    assert_clear(tool("bisect", ".", "--study", "s"), "the good file changed", "--restart")


def test_folder_in_use(tool):
    script(tool.folder)
    (tool.folder / "s").mkdir()
    with (tool.folder / "s/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_clear(tool("bisect", "train.py", "--study", "s"), "is working in")
        assert_clear(tool("bisect", "train.py", "--study", "s", "--restart"), "is working in")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"target": 1}'])
def test_broken_state_json(tool, text):
    script(tool.folder)
    (tool.folder / "s").mkdir()
    (tool.folder / "s/state.json").write_text(text)
    assert_clear(tool("bisect", "train.py", "--study", "s"), "state.json", "--study")


def test_broken_study_db(finished):
    tool = finished
    for rest in (tool.folder / "s").glob("study.db-*"):  # what SQLite would restore it from
        rest.unlink()
    (tool.folder / "s/study.db").write_text("this is no database, it only looks like a file of one")
    assert_clear(tool("bisect", "train.py", "--study", "s"), "study.db")


def test_storage_that_does_not_exist(tool):
    script(tool.folder)
    said = tool("bisect", "train.py", "--storage", "nonsense://x")
    assert_clear(said, "nonsense://x")


# ----------------------------------------------------------------------------------------------------- the command line


def test_option_of_the_script_without_dashes(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--learning_rate", "1"), "--learning_rate", "go after `--`")


def test_forgotten_command(tool):
    script(tool.folder)
    assert_clear(tool("train.py"), "bisect-cfg bisect train.py")


def test_failure_that_is_no_regular_expression(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--failure", "(["), "'(['", "regular expression")
    assert not list((tool.folder / "bisect-cfg-studies").glob("*/trials/0"))  # said before anything runs


def test_failure_that_is_not_shown(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--failure", "non-finite"), "--failure non-finite", "SIGFPE")


def test_script_with_spaces(tool):
    script(tool.folder, name="my runs/first try.py")
    said = tool("bisect", "my runs/first try.py", *QUICK)
    assert said.status == 0 and "Cause  bf16 = True" in said.out, said.all
    assert (tool.folder / "bisect-cfg-studies/first try/result.json").exists()


def test_arguments_reach_the_script(tool):
    script(tool.folder, "assert sys.argv == ['train.py', '--x', 'a b', '--help'], sys.argv\n" + textwrap.dedent(FAILS))
    said = tool("bisect", "train.py", *QUICK, "--", "--x", "a b", "--help")
    assert said.status == 0, said.all


def test_python_that_does_not_exist(tool):
    script(tool.folder)
    assert_clear(tool("bisect", "train.py", "--python", "/no/such/python"), "/no/such/python")


def test_two_scripts_of_one_name_get_two_studies(tool):
    script(tool.folder, name="a/x/train.py")
    script(tool.folder, name="b/x/train.py")
    assert tool("bisect", "a/x/train.py", *QUICK).status == 0
    assert tool("bisect", "b/x", *QUICK).status == 0
    assert sorted(path.name for path in (tool.folder / "bisect-cfg-studies").iterdir()) == ["x", "x-2"]


def test_a_death_before_training_is_no_step_and_its_sentence_ends_once(tool):
    dies = """
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True)
    if args.bf16:
        raise ValueError("there is no such kernel.")
    GRPOTrainer(args, lambda number: None).train()
    """
    script(tool.folder, dies)
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--no-recommend")
    assert said.status == 0, said.all
    assert "dies before the first step of training with ValueError: there is no such kernel.\n" in said.out
    assert "(before training, " in said.out and "step 1" not in said.out and ".." not in said.out.replace("...", "")
    assert json.loads((tool.folder / "s/result.json").read_text())["failure"]["step"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Usage: bisect-cfg [OPTIONS] COMMAND"),
        (("bisct",), "bisect-cfg: No such command 'bisct'. Did you mean 'bisect'?\nSee bisect-cfg --help."),
        (("bisect", "a.py", "--lr", "3"), "bisect-cfg: No such option '--lr'.\nOptions of your script go after `--`"),
        (("bisect", "a.py", "--verify-seed", "3"), "'--verify-seeds'"),
        (
            ("bisect", "a.py", "--jobs", "0"),
            "'--jobs': 0 is not a whole number from 1 on.\nSee bisect-cfg bisect --help.",
        ),
        (("bisect", "a.py", "--jobs", "1.5"), "1.5 is not a whole number from 1 on."),
        (("recommend", "s", "--margin", "2"), "'--margin': '2' is not a finite number from 0 to 1."),
    ],
)
def test_what_was_typed_wrong_is_said_in_one_line(tool, words, said):
    done = tool(*words)
    assert done.status == 2 and said in done.err and done.out == ""


def test_what_a_study_runs_is_shown_as_one_would_type_it(tmp_path):
    from bisect_cfg.api import shown

    (tmp_path / "my study").mkdir()
    command = {"folder": str(tmp_path), "target": "my study", "python": "/env/python", "arguments": ["--lr", "1"]}
    assert shown(command) == f"cd {tmp_path} && /env/python 'my study/train.py' --lr 1"
    assert shown({**command, "target": "a.py"}) == f"cd {tmp_path} && /env/python a.py --lr 1"


LINES = (
    "studies/x.py --python python3 --good bf16=false --good g.yaml --only beta --except lr --pin seed=1 --study s/t "
    "--training 2 --from-checkpoint c --until-failure --isolate-data --log l --prove from-start --max-disk 1.5 "
    "--steps 3 --trial-timeout 5.0 --jobs 2 --devices 0,1 --first --confirm 3 --confidence 0.9 "
    "--failure any --prior flat --start cold --max-trials 9 --max-seconds 60.0 --storage sqlite:///x.db --env-cache e "
    "--no-where --no-recommend --no-environments --margin 0.2 --verify-steps 40 --verify-seeds 5 "
    "--remedies 2 --keep beta -- --lr 'a b'",
    "--good a=1 --bad b.yaml --config-format json --good-packages f.txt -- sort {flags}",
    ".",
)
"""Command lines with every option."""


def parsed(line: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str], str | None, Options]:
    """What the command line makes of a line."""
    given = []
    monkeypatch.setattr(api, "run", lambda *told: (given.extend(told[:4]), sys.exit(0)))
    with pytest.raises(SystemExit):
        cli.main(shlex.split(line), standalone_mode=False)
    return tuple(given)


@pytest.mark.parametrize("line", LINES)
def test_what_was_typed_can_be_told_again(line, monkeypatch):
    asked = parsed(f"bisect {line}", monkeypatch)
    again = api._typed(*asked)
    assert parsed(again.removeprefix("bisect-cfg "), monkeypatch) == asked


def test_every_option_is_typed_again():
    names = {flag.removeprefix("--no-").removeprefix("--") for line in LINES for flag in line.split()}
    fields = {flag_of(field.name).removeprefix("--") for field in dataclasses.fields(Options)}
    assert fields - names == set(NOT_REPEATED)
