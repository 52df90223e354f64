"""What every trial reads: a change to it while the tool runs stops it; what is put back lets it go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from tools import QUICK, Studied, asked, assert_clear, until
from toys import script

READS = """
    import sys, time
    import helper
    config = open(sys.argv[1]).read()
    open(sys.argv[2], "a").write("a line of its own\\n")
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, warmup_steps=7, max_grad_norm=0.2, adam_beta2=0.95,
        bf16=True, tf32=False, beta=0.04, temperature=0.9,
    )
    def step(number):
        time.sleep(0.03)
        if number == 2:
            import late
        if args.bf16 and args.beta and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""


@pytest.fixture
def reading(tool, library):
    """A script that reads all kinds of things, with a library of its own that has a version."""
    shutil.copytree(library, tool.folder / "library")
    for name in ("trl", "transformers"):
        package(tool, name, "9.1")
    tool.environment |= {"PYTHONPATH": str(tool.folder / "library")}
    script(tool.folder, READS)
    texts = {"helper.py": "limit = 1\n", "late.py": "limit = 1\n", "recipe.yaml": "a: 1\n", "run.log": ""}
    for name, text in texts.items():
        (tool.folder / name).write_text(text)
    return tool


def package(tool, name: str, version: str) -> None:
    info = tool.folder / f"library/{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


WORDS = ("train.py", *QUICK, "--", "recipe.yaml", "run.log")


def first_run(study: Studied) -> bool:
    return (study.folder / "trials/0/metrics.jsonl").exists()


def search(study: Studied) -> bool:
    return "search" in asked(study.folder)


def edit(tool, name: str) -> None:
    if name == "version":
        shutil.rmtree(tool.folder / "library/trl-9.1.dist-info")
        package(tool, "trl", "9.2")
    else:
        with (tool.folder / name).open("a") as stream:
            stream.write(" \n")


def changed_at(tool, moment: Callable[[Studied], bool], change: Callable[[], None]) -> tuple[int, str]:
    """Run, make a change at a moment; how it ended, and what was said."""
    study, process = Studied(tool.folder / "s"), tool.start("bisect", "--study", "s", *WORDS)
    until(lambda: moment(study) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    change()
    out, err = process.communicate(timeout=240)
    assert "Traceback" not in err
    tool.assert_nothing_left()
    return process.returncode, out + err


@pytest.mark.parametrize(
    ("moment", "name", "said"),
    [
        (first_run, "train.py", "train.py"),
        (search, "late.py", "late.py"),
        (search, "version", "trl (9.1 -> 9.2)"),
    ],
)
def test_what_changes_while_the_tool_runs(reading, moment, name, said):
    study = Studied(reading.folder / "s")
    status, told = changed_at(reading, moment, lambda: edit(reading, name))
    assert status == 3 and said in told and "changed while the trials ran" in told and "--restart" in told, told
    ended = study.ended
    again = reading("bisect", "--study", "s", *WORDS)
    if again.status == 0:  # nothing rested on it yet
        assert moment is first_run and study.causes == [["beta", "bf16"]]
        return
    assert_clear(again, said.partition(" ")[0], "--restart")
    assert study.ended == ended
    if name == "late.py":
        assert reading.bisect("--restart", *WORDS).causes == [["beta", "bf16"]]
        assert Studied(reading.folder / "s.old-1").ended == ended


def test_put_back_it_goes_on(reading):
    before, study = (reading.folder / "train.py").read_text(), Studied(reading.folder / "s")
    status, told = changed_at(reading, search, lambda: edit(reading, "train.py"))
    assert status == 3, told
    ended = study.ended
    (reading.folder / "train.py").write_text(before)
    assert reading.bisect(*WORDS).causes == [["beta", "bf16"]]
    assert ended.items() <= study.ended.items()


def test_what_is_no_change_and_what_is_no_input(reading):
    """A touch, the same content written again, another package, a log that the script writes; and a tool that is killed
    after the script has written to a file of its command line."""

    def change() -> None:
        (reading.folder / "train.py").touch()
        (reading.folder / "helper.new").write_text("limit = 1\n")
        (reading.folder / "helper.new").replace(reading.folder / "helper.py")
        package(reading, "other", "1.0")

    study, process = Studied(reading.folder / "s"), reading.start("bisect", "--study", "s", *WORDS)
    until(lambda: first_run(study))
    process.kill()
    process.communicate()
    assert (reading.folder / "run.log").read_text() and not study.ended
    status, told = changed_at(reading, search, change)
    assert status == 0, told
    assert len((reading.folder / "run.log").read_text().splitlines()) >= 2
    assert reading.bisect(*WORDS).causes == [["beta", "bf16"]]
