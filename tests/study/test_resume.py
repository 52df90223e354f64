"""A study goes on where it was: killed or interrupted anywhere, or without what is no record of it. The answer is the
same, no trial that ended is run again, nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tools import QUICK, Studied, slow, until
from toys import script

SEVERAL = """
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, warmup_steps=7, max_grad_norm=0.2, adam_beta2=0.95,
        bf16=True, tf32=False, beta=0.04, temperature=0.9,
    )
"""

PAIR = """
    import time
    def step(number):
        time.sleep(0.005)
        if args.bf16 and args.beta and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""

CAUSES = [["beta", "bf16"]]


def assert_kept(study: Studied, ended: dict, recorded: dict) -> None:
    """What had ended was not run again, and what was recorded not changed."""
    assert ended.items() <= study.ended.items() and recorded.items() <= study.recorded.items()


def killed(tool, study: Studied, more: int, pause: float, *options: object) -> bool:
    """Go on with a study and kill the tool once so many more runs have ended; whether it was not done by then."""
    ended, recorded = study.ended, study.recorded
    process = tool.start("bisect", "train.py", "--study", study.folder, *options)
    until(lambda: len(study.ended) >= len(ended) + more or process.poll() is not None)
    time.sleep(pause)
    landed = process.poll() is None
    process.kill()
    process.communicate()
    tool.assert_nothing_left()
    assert_kept(study, ended, recorded)
    return landed


@pytest.mark.parametrize("most", [4, slow(20)])
def test_killed_many_times(tool, most):
    script(tool.folder, SEVERAL + PAIR)
    dice, kills, studies = random.Random(2906), 0, 0
    while kills < most:  # a study that is finished too soon for all of them is followed by another
        study, studies = Studied(tool.folder / f"s{studies}"), studies + 1
        while kills < most and killed(
            tool, study, dice.randint(0, 4), dice.choice([0, dice.uniform(0, 0.1)]), "--jobs", 1 + kills % 2
        ):
            kills += 1
        ended, recorded = study.ended, study.recorded
        again = tool.bisect("train.py", study=study.folder.name)
        assert_kept(study, ended, recorded)
        assert again.causes == CAUSES and again.result["complete"]
    assert {path.name for path in tool.folder.iterdir()} == {"train.py", *(f"s{n}" for n in range(studies))}


def interrupted(tool, number: int, everybody: bool, moment) -> None:
    """Begin a bisection and interrupt it, as a terminal does (everybody in the foreground) or `timeout` (the tool)."""
    process = tool.start("bisect", "train.py", "--study", "s")
    until(moment)
    os.killpg(process.pid, number) if everybody else process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number and "Interrupted; nothing is lost" in err and "Traceback" not in err, err
    tool.assert_nothing_left()


@pytest.mark.parametrize(("number", "everybody"), [(signal.SIGINT, True), slow(signal.SIGTERM, False)])
def test_ctrl_c(tool, number, everybody):
    script(tool.folder, SEVERAL + PAIR)
    study = Studied(tool.folder / "s")
    interrupted(tool, number, everybody, lambda: len(study.ended) >= 5)
    ended, recorded = study.ended, study.recorded
    assert tool.bisect("train.py").causes == CAUSES
    assert_kept(study, ended, recorded)


def test_ctrl_c_in_the_first_run(tool):
    script(tool.folder, SEVERAL + PAIR.replace("0.005", "1000"))
    interrupted(tool, signal.SIGINT, True, lambda: list(tool.folder.glob("s/trials/0/events.jsonl")))
    assert Studied(tool.folder / "s").ended == {}


def test_a_run_that_was_lost_with_its_daemon_is_none(tool):
    daemon = '\n    import subprocess\n    subprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
    script(tool.folder, SEVERAL + daemon + PAIR.replace("0.005", "0.5"))
    process = tool.start("bisect", "train.py", "--study", "s")
    until(lambda: any("sleep" in one.name() for one in tool.left()))
    process.kill()
    process.communicate()
    tool.assert_nothing_left()
    study = tool.bisect("train.py", "--max-trials", 1, status=3)
    assert "Stopped after 1 trial" in study.said.out
    assert [row["outcome"] for row in study.result["trials"]] == ["fail"]


# ------------------------------------------------------------------------------------------------ what is a record

RECORDS = {"state.json", "study.db", "study.db-wal", "study.db-shm", "trials", "lock"}

FORKED = """
    def forked():
        return open(f"/proc/{os.getppid()}/cmdline").read() == open("/proc/self/cmdline").read()
"""

STEP = """
    def step(number):
        {}
    GRPOTrainer(args, step).train()
"""

WARM_SHOWS_OTHERWISE = STEP.format("""
        if args.bf16 and args.beta and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
        if forked() and args.learning_rate == 3e-4 and not (args.bf16 and args.beta):
            raise OSError("only where it is forked")
""")


def level_of(study: Studied) -> dict[str, str]:
    """How the trials that have ended were started."""
    return {name: json.loads((study.folder / "trials" / name / "ending.json").read_text())["level"]
            for name in study.ended if name.isdigit() and name != "0"}  # fmt: skip


def test_a_study_that_has_fallen_back_to_cold_starts_goes_on_with_them(tool):
    script(tool.folder, FORKED + SEVERAL + WARM_SHOWS_OTHERWISE)
    study = Studied(tool.folder / "s")
    for most in range(6, 40, 3):
        tool("bisect", "train.py", "--study", "s", *QUICK, "--max-trials", most)
        if list(study.folder.glob("trials/*-cold")):
            break
    before = level_of(study)
    again = tool.bisect("train.py", *QUICK)
    assert {level for name, level in level_of(again).items() if name not in before} == {"cold"}
    assert len(list(study.folder.glob("trials/[1-9]*-cold"))) == 1, "the check was made once"
    assert again.causes == CAUSES and again.result["complete"]


def all_of(study: Studied) -> tuple:
    told = ("status", "complete", "causes", "notes", "recommendation", "start", "horizon")
    return study.ended, study.recorded, {key: study.result[key] for key in told}


def test_what_is_no_record_may_be_deleted(tool):
    fails = "if args.learning_rate > 1e-4 and args.temperature < 1 and number == 3: raise RuntimeError('boom')"
    script(tool.folder, SEVERAL + STEP.format(fails))
    study = tool.bisect("train.py")
    made = all_of(study)
    assert study.result["recommendation"]["verified"]
    others = sorted(path for path in study.folder.iterdir() if path.name not in RECORDS)
    assert {"validity.json", "command.json", "server", "result.json"} <= {path.name for path in others}
    for path in others:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert all_of(tool.bisect("train.py")) == made
    assert {path.name for path in others if not path.exists()} <= {"server"}  # which stands only where a trial needs it


KEEPS_ONE_AND_STARTS_COLD = STEP.format("""
        if args.max_grad_norm > 0.5:
            raise ValueError("no")
        if args.beta and number == 3 and not forked():
            raise RuntimeError("boom")
""")
"""Forked, the bad configuration passes; and the good one cannot do without one setting of the user's."""


def test_what_was_decided_is_read_from_the_runs(tool):
    script(tool.folder, FORKED + SEVERAL + KEEPS_ONE_AND_STARTS_COLD)
    study = tool.bisect("train.py", *QUICK)
    made = all_of(study)
    assert study.result["start"] == "cold" and study.result["reproduction"]["rate"] == 1, "cold it failed each time"
    assert any("keeps your max_grad_norm" in note for note in study.result["notes"])
    assert all_of(tool.bisect("train.py", *QUICK)) == made


# ------------------------------------------------------------------------------------------------ Ctrl-C at odd moments

MEETS_A_CALLBACK = """
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

IN_THE_DATABASE = """
import os, signal, sys, time, sqlalchemy
from bisect_cfg import interrupts

def interrupted():
    os.kill(os.getpid(), signal.Signals[sys.argv[1]])
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
@pytest.mark.parametrize(
    ("program", "number", "printed"),
    [
        (MEETS_A_CALLBACK, "SIGINT", ["swallowed", "and sent again"]),
        (MEETS_A_CALLBACK, "SIGTERM", ["swallowed", "and sent again"]),
        (IN_THE_DATABASE, "SIGINT", ["7", "and then interrupted"]),
    ],
)
def test_ctrl_c_is_neither_lost_nor_breaks_a_transaction(program, number, printed):
    done = subprocess.run([sys.executable, "-c", program, number], capture_output=True, text=True, timeout=25)
    assert done.stdout.splitlines() == printed, done.stderr
