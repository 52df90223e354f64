"""Scripts that train in another process than the one that was started: watched and redirected like any other.

In each way the training's failure is the trial's, the user's checkpoint stays as it is, and what the script would do
after its training does not happen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import QUICK

from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.probe.protocol import Opened
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.trials import Trials
from bisect_cfg.store.inputs import Inputs
from bisect_cfg.store.state import State
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.script import Script

SCRIPT = """
    import multiprocessing, os, signal, subprocess, sys, time
    from pathlib import Path

    way, me = sys.argv[1], [sys.executable, os.path.abspath(__file__), sys.argv[1]]
    small = {"INNER": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def train():
        import early
        from trl import GRPOConfig, GRPOTrainer

        args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True, temperature=0.9)
        import late

        def step(number):
            Path(args.output_dir, "checkpoint").write_text("overwritten")
            fatal = {3e-4: signal.SIGFPE, 4e-4: signal.SIGKILL}.get(args.learning_rate)
            if number == 3 and args.bf16 and args.learning_rate == 5e-4:
                raise ValueError("the reward is wrong")
            if number == 3 and args.bf16 and fatal:
                os.kill(os.getpid(), fatal)

        GRPOTrainer(args, step).train()

    def started(method):
        process = multiprocessing.get_context(method).Process(target=train)
        process.start()
        process.join()

    def environment_changed(**more):
        os.environ.update(INNER="1", **more)
        return me

    def forked():
        if os.fork() == 0:
            train()
            os._exit(0)
        os.wait()

    WAYS = {
        "execv": lambda: os.execv(sys.executable, environment_changed()),
        "call": lambda: subprocess.call(me, env={**os.environ, "INNER": "1"}),
        "system": lambda: os.system(" ".join(environment_changed(PYTHONPATH=small["PYTHONPATH"]))),
        "spawn": lambda: started("spawn"),
        "fork": lambda: started("fork"),
        "os.fork": forked,
        "not waited for": lambda: time.sleep(subprocess.Popen(me, env=small) and 60),
    }
    if __name__ == "__main__" and os.environ.get("INNER") == "1":
        train()
    elif __name__ == "__main__":
        WAYS[way]()
        Path("after.txt").write_text("")
"""

WAYS = (
    "execv", "call", "system", "spawn", "fork", "os.fork", "not waited for",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write(tmp_path)
    (tmp_path / "study/trials").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(library))
    yield tmp_path
    assert (tmp_path / "out/checkpoint").read_text() == "the user's own"
    assert os.listdir(tmp_path / "out") == ["checkpoint"]


def write(folder: Path) -> None:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    (folder / "out").mkdir()
    (folder / "out/checkpoint").write_text("the user's own")
    for name in ("early.py", "late.py"):
        (folder / name).write_text("")


def train(folder: Path, way: str, name: str, inputs: Inputs | None = None, **overrides: object) -> Run:
    runner = Trials(LocalEngine(Site(Script(folder / "train.py", (way,)), folder / "study"), 1))
    runner.inputs = inputs
    args = {f"args.{key}": value for key, value in overrides.items()}
    try:
        return runner.train(Plan(name, {}, 5, start="cold", patience=Patience(60, 20, 20), overrides=args))
    finally:
        runner.site.close()


@pytest.mark.parametrize("way", WAYS)
def test_training_in_another_process(folder, way):
    run = train(folder, way, "fails")
    log = (run.folder / "log.txt").read_text()
    assert run.seen.died is not None, log
    assert (run.seen.died.name, run.shown.step) == ("SIGFPE", 3), (run.seen, log)
    capture = read_capture(run.traces.events.rows)
    assert capture.started and capture.args.raw["learning_rate"] == 3e-4
    assert list((run.folder / "output").rglob("out/checkpoint"))

    script = Script(folder / "train.py", (way,))
    state = State({**script.identity(), "files": {}}, {})
    run = train(folder, way, "passes", Inputs(script, folder / "study", state, ()), bf16=False)
    assert run.shown.signature is None and run.seen.steps == 5, run.seen
    assert not (folder / "after.txt").exists()
    heard = {Path(row.path).name for row in run.traces.all(Opened) if row.mode == "m"}
    assert {"early.py", "late.py"} <= heard <= {"train.py", "early.py", "late.py", "sitecustomize.py"}
    assert {str(folder / "early.py"), str(folder / "late.py")} <= set(state.read)


@pytest.mark.parametrize("way", ["call", "not waited for"])
def test_how_such_a_training_ends(folder, way):
    run = train(folder, way, "killed", learning_rate=4e-4)
    assert run.seen.died.name == "SIGKILL", (run.seen, (run.folder / "log.txt").read_text())
    run = train(folder, way, "raises", learning_rate=5e-4)
    assert run.seen.died.name == "ValueError" and run.seen.message == "ValueError: the reward is wrong"
    if way != "not waited for":  # that one sleeps on
        run = train(folder, way, "invalid", per_device_train_batch_size=0)
        assert run.seen.invalid and "must be positive" in run.seen.message and not run.seen.trained


def test_the_answer_is_right(tool):
    write(tool.folder)
    study = tool.bisect("train.py", *QUICK, "--", "call")
    assert study.causes == [["bf16", "learning_rate"]]
    assert study.result["start"] == "cold" and study.result["complete"]
    assert "the training runs in another process" in study.said.out
    assert (tool.folder / "out/checkpoint").read_text() == "the user's own"
    left = {path.name for path in tool.folder.iterdir()} - {"__pycache__"}  # Python's own, as in any run of the script
    assert left == {"train.py", "early.py", "late.py", "out", "s"}


@pytest.mark.parametrize("way", ["call", "os.fork"])
def test_repeated_by_hand(folder, way):
    run = train(folder, way, "fails")
    for _ in range(2):
        done = subprocess.run(["sh", run.folder / "command.sh"], capture_output=True, text=True)
        # Ended with its training.
        assert done.returncode in (-signal.SIGFPE, -signal.SIGKILL, 128 + signal.SIGFPE), done.stderr
        assert not (folder / "after.txt").exists()
        (saved,) = (run.folder / "by-hand/output").rglob("out/checkpoint")
        assert saved.read_text() == "overwritten"
