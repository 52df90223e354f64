"""The tool killed anywhere goes on where it was: same answer, no finished trial run again, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tools import recorded, slow
from toys import script

KILLS = 10

SLOW_ENOUGH_TO_BE_KILLED = """
    import time
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, warmup_steps=7, max_grad_norm=0.2, adam_beta2=0.95,
        bf16=True, tf32=False, beta=0.04, temperature=0.9,
    )
    def step(number):
        time.sleep(0.02)
        if args.bf16 and args.beta and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
    open("done.txt", "w").write("after training")
"""


def finished_folders(study: Path) -> dict[str, int]:
    """Trial folders that came to their end, with the time of that."""
    return {path.parent.name: path.stat().st_mtime_ns for path in study.glob("trials/*/ending.json")}


def finished_trials(study: Path) -> dict[int, tuple]:
    """The finished trials in the Optuna study: number -> (state, value, when)."""
    if not (study / "study.db").exists():
        return {}
    return {
        trial.number: (trial.state, trial.value, trial.datetime_complete, trial.user_attrs.get("outcome"))
        for trials in recorded(f"sqlite:///{study / 'study.db'}").values()
        for trial in trials
        if trial.state.is_finished()
    }


def causes(study: Path) -> tuple:
    result = json.loads((study / "result.json").read_text())
    return result["status"], result["complete"], [sorted(cause["parameters"]) for cause in result["causes"]]


def test_killed_ten_times(tool):
    script(tool.folder, SLOW_ENOUGH_TO_BE_KILLED.replace("0.02", "0.005"))
    started = time.monotonic()
    assert tool("bisect", "train.py", "--study", "whole").status == 0
    whole = time.monotonic() - started

    moments, landed, studies = random.Random(2906), 0, 0
    while landed < KILLS:  # a study that was finished too soon for all of them is followed by another
        study = tool.folder / f"s{studies}"
        studies += 1
        finished = False
        while landed < KILLS and not finished:
            before, trials = finished_folders(study), finished_trials(study)
            process = tool.start("bisect", "train.py", "--study", study.name, "--jobs", 1 + landed % 2)
            time.sleep(moments.uniform(0.1, 0.45) * whole)
            finished = process.poll() is not None
            if not finished:
                process.send_signal(signal.SIGKILL)
                landed += 1
            process.communicate()
            tool.assert_nothing_left()
            after, then = finished_folders(study), finished_trials(study)
            assert before == {name: after.get(name) for name in before}, "a finished trial ran again"
            assert trials == {number: then.get(number) for number in trials}, "a finished trial was changed"
        before, trials = finished_folders(study), finished_trials(study)
        said = tool("bisect", "train.py", "--study", study.name)
        assert said.status == 0, said.all
        assert before.items() <= finished_folders(study).items()
        assert trials.items() <= finished_trials(study).items()
        assert causes(study) == causes(tool.folder / "whole") == ("isolated", True, [["beta", "bf16"]])
        (trials,) = recorded(f"sqlite:///{study / 'study.db'}").values()
        assert [trial.number for trial in trials if not trial.state.is_finished()] == []
    assert {path.name for path in tool.folder.iterdir()} == {"train.py", "whole", *(f"s{n}" for n in range(studies))}
    tool.assert_nothing_left()


SWALLOWS = """
import os, signal, sys, time, weakref
from bisect_cfg import interrupts

class Thing:
    pass

interrupts.install()
thing = Thing()
number = signal.Signals[sys.argv[1]]
reference = weakref.ref(thing, lambda _: (os.kill(os.getpid(), number), time.sleep(0.2)))
try:
    del thing
    print("swallowed", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    print("and sent again")
"""


@pytest.mark.training
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_ctrl_c_that_meets_a_weakref_callback_is_not_lost(number):
    done = subprocess.run([sys.executable, "-c", SWALLOWS, number], capture_output=True, text=True, timeout=25)
    assert done.stdout.split("\n")[:2] == ["swallowed", "and sent again"], done.stderr


IN_THE_DATABASE = """
import os, signal, time, sqlalchemy
from bisect_cfg import interrupts

def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    return 7

interrupts.install()
connection = sqlalchemy.create_engine("sqlite://").connect()
connection.connection.create_function("interrupted", 0, interrupted)
try:
    print(connection.exec_driver_sql("select interrupted()").scalar(), flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    print("and then interrupted")
"""


@pytest.mark.training
def test_ctrl_c_waits_for_the_database():
    done = subprocess.run([sys.executable, "-c", IN_THE_DATABASE], capture_output=True, text=True, timeout=25)
    assert (done.stdout, done.stderr) == ("7\nand then interrupted\n", "")


@pytest.mark.parametrize("jobs", [1, slow(3)])
def test_ctrl_c(tool, jobs):
    script(tool.folder, SLOW_ENOUGH_TO_BE_KILLED)
    study = tool.folder / "s"
    process = tool.start("bisect", "train.py", "--study", "s", "--jobs", jobs)
    deadline = time.monotonic() + 60
    while len(finished_folders(study)) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody in the foreground
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Interrupted; nothing is lost" in err and "Traceback" not in err
    tool.assert_nothing_left()
    before, trials = finished_folders(study), finished_trials(study)
    assert len(before) >= 5
    assert tool("bisect", "train.py", "--study", "s").status == 0
    assert before.items() <= finished_folders(study).items()
    assert trials.items() <= finished_trials(study).items()
    assert causes(study) == ("isolated", True, [["beta", "bf16"]])


@pytest.mark.parametrize("moment", ["first run", slow("hang")])
def test_ctrl_c_in_the_first_run(tool, moment):
    text = SLOW_ENOUGH_TO_BE_KILLED.replace("0.02", "1000" if moment == "hang" else "0.5")
    script(tool.folder, text)
    process = tool.start("bisect", "train.py", "--study", "s")
    deadline = time.monotonic() + 60
    while not list(tool.folder.glob("s/trials/0/events.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    tool.assert_nothing_left()
    assert finished_folders(tool.folder / "s") == {}


@pytest.mark.slow
def test_ended_by_others(tool):
    script(tool.folder, SLOW_ENOUGH_TO_BE_KILLED)
    process = tool.start("bisect", "train.py", "--study", "s")
    deadline = time.monotonic() + 60
    while len(finished_folders(tool.folder / "s")) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # to the tool alone, as `timeout` and schedulers do
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Interrupted; nothing is lost" in err and "Traceback" not in err
    tool.assert_nothing_left()
    before = finished_folders(tool.folder / "s")
    assert len(before) >= 3 and tool("bisect", "train.py", "--study", "s").status == 0
    assert before.items() <= finished_folders(tool.folder / "s").items()


def test_trials_with_daemons_are_cleared_up_after_a_kill(tool):
    daemon = '\n    import subprocess\n    subprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
    script(tool.folder, daemon + SLOW_ENOUGH_TO_BE_KILLED.replace("0.02", "0.5"))
    process = tool.start("bisect", "train.py", "--study", "s")
    deadline = time.monotonic() + 60
    while not any("sleep" in p.name() for p in tool.left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert any("sleep" in p.name() for p in tool.left())
    process.kill()
    process.communicate()
    tool.assert_nothing_left()
    said = tool("bisect", "train.py", "--study", "s", "--max-trials", 1)  # the run that was lost is none
    assert "Stopped after 1 trial" in said.out, said.all
    rows = json.loads((tool.folder / "s" / "result.json").read_text())["trials"]
    assert [row["outcome"] for row in rows] == ["fail"]


WARM_SHOWS_OTHERWISE = """
    def forked():
        return open(f"/proc/{os.getppid()}/cmdline").read() == open("/proc/self/cmdline").read()
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, warmup_steps=7, max_grad_norm=0.2, adam_beta2=0.95,
        bf16=True, tf32=False, beta=0.04, temperature=0.9,
    )
    def step(number):
        if args.bf16 and args.beta and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
        if forked() and args.learning_rate == 3e-4 and not (args.bf16 and args.beta):
            raise OSError("only where it is forked")
    GRPOTrainer(args, step).train()
"""


def starts(study: Path) -> dict[int, str]:
    """How the numbered trials were started."""
    found = {}
    for path in study.glob("trials/*/ending.json"):
        if path.parent.name.isdigit() and path.parent.name != "0":
            found[int(path.parent.name)] = json.loads(path.read_text())["level"]
    return dict(sorted(found.items()))


def test_a_study_that_has_fallen_back_to_cold_starts_goes_on_with_them(tool):
    script(tool.folder, WARM_SHOWS_OTHERWISE)
    study = tool.folder / "s"
    options = ("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    for most in range(6, 40, 3):
        tool(*options, "--max-trials", most)
        if list(study.glob("trials/*-cold")):
            break
    before = starts(study)
    said = tool(*options)
    assert said.status == 0, said.all
    after = {number: start for number, start in starts(study).items() if number not in before}
    assert after and set(after.values()) == {"cold"}, (before, after)
    assert len(list(study.glob("trials/[1-9]*-cold"))) == 1, "the check was made once"
    assert causes(study) == ("isolated", True, [["beta", "bf16"]])
