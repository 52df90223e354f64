"""Writing the edits: all files or none, old or new whoever is killed, and back where the script shows other values."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toys
from tools import assert_clear

from bisect_cfg.errors import InputError
from bisect_cfg.rewrite import apply as module
from bisect_cfg.rewrite.apply import Rewrite, apply, rewrites_of, told
from bisect_cfg.rewrite.edits import Edits, edits_of
from bisect_cfg.rewrite.recommended import Change as ShownChange
from bisect_cfg.rewrite.recommended import Recommended
from bisect_cfg.rewrite.spans import Change
from tests.rewrite.cases import LR, places

SCRIPT = "GRPOConfig(\n    learning_rate=LR,  # learning_rate of the paper\n    beta=0.5,\n)\n"
RATES = "LR = 2e-2  # 0.02 is bold\n"
BETA = Change("beta", 0.5, 0.04)


def recommended(edits: Edits, *changes: Change) -> Recommended:
    known = {one.name: ShownChange(one.old, one.new) for one in changes or (LR, BETA)}
    return Recommended(known, edits.shown(), edits.unplaced, edits.command or None)


@pytest.fixture
def found(tmp_path: Path) -> Recommended:
    """A recommendation about two files."""
    files = {tmp_path / "train.py": SCRIPT, tmp_path / "rates.py": RATES}
    for path, text in files.items():
        path.write_text(text)
    return recommended(edits_of(places(files), [LR, BETA]))


def texts(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("train.py", "rates.py")]


NEW = [SCRIPT.replace("0.5", "0.04"), RATES.replace("2e-2", "1.7e-05")]
GOOD = {"args.learning_rate": 1.7e-5, "args.beta": 0.04}


def applied(found: Recommended, built: dict | Exception | None = GOOD, agree: bool = True) -> tuple[int, str]:
    said: list[str] = []

    def build() -> dict:
        if isinstance(built, BaseException):
            raise built
        return built

    return apply(found, build if built is not None else None, lambda: agree, said.append), "\n".join(said)


def test_the_files_are_written_and_the_second_time_it_is_there(found: Recommended, tmp_path: Path) -> None:
    os.chmod(tmp_path / "train.py", 0o750)
    (tmp_path / "rates.py").rename(tmp_path / "own.py")
    (tmp_path / "rates.py").symlink_to("own.py")
    status, said = applied(found)
    assert (status, texts(tmp_path)) == (0, NEW) and "Your script builds the recommended configuration" in said
    assert stat.S_IMODE((tmp_path / "train.py").stat().st_mode) == 0o750 and (tmp_path / "rates.py").is_symlink()
    assert "the comment, it may no longer be right: # 0.02 is bold" in said and "of the paper" not in said
    status, said = applied(found, AssertionError())
    assert status == 0 and "there already" in said and sorted(path.name for path in tmp_path.iterdir()) == [
        "own.py", "rates.py", "train.py"
    ]  # fmt: skip


def test_without_agreement_nothing_is_written(found: Recommended, tmp_path: Path) -> None:
    status, said = applied(found, agree=False)
    assert (status, texts(tmp_path)) == (1, [SCRIPT, RATES]) and "Nothing was written" in said


@pytest.mark.parametrize("built", [{**GOOD, "args.beta": 0.5}, InputError("It dies."), KeyboardInterrupt()])
def test_where_the_script_shows_other_values_the_files_are_put_back(found: Recommended, tmp_path: Path, built) -> None:
    if isinstance(built, dict):
        status, said = applied(found, built)
        assert status == 1 and "beta is 0.5 in the configuration of your script, not 0.04" in said
        assert "learning_rate is" not in said
    else:
        with pytest.raises(type(built)):
            applied(found, built)
    assert texts(tmp_path) == [SCRIPT, RATES] and len(list(tmp_path.iterdir())) == 2


def test_what_was_not_seen_is_not_compared(found: Recommended, tmp_path: Path) -> None:
    status, said = applied(found, None)
    assert status == 0 and "not compared: learning_rate, beta" in said and "recommended" not in said


def test_a_file_that_was_changed_is_refused(found: Recommended, tmp_path: Path) -> None:
    (tmp_path / "rates.py").write_text(f"# mine\n{RATES}")
    with pytest.raises(InputError, match="rates.py is not the file that the study read") as raised:
        applied(found)
    assert "1.7e-05" in raised.value.advice and texts(tmp_path) == [SCRIPT, f"# mine\n{RATES}"]


def test_all_files_or_none(found: Recommended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[str] = []

    def replace(old: Path, new: Path) -> None:
        replaced.append(new.name)
        if len(replaced) == 2:
            raise OSError(28, "No space left on device")
        os.rename(old, new)

    monkeypatch.setattr(module.os, "replace", replace)
    with pytest.raises(InputError, match="No space left"):
        applied(found)
    assert texts(tmp_path) == [SCRIPT, RATES] and len(list(tmp_path.iterdir())) == 2


def test_half_of_it_is_there(found: Recommended, tmp_path: Path) -> None:
    """As after a kill between the two files."""
    (tmp_path / "train.py").write_text(NEW[0])
    assert applied(found)[0] == 0 and texts(tmp_path) == NEW


def test_an_edit_that_would_write_a_secret_is_made_by_hand(tmp_path: Path) -> None:
    path, token = tmp_path / "train.py", "hf_" + "a1B2" * 9
    text = f"GRPOConfig(learning_rate=2e-2, hub_token={token!r}, beta=0.5)\n"
    path.write_text(text)
    found = recommended(edits_of(places({path: text}), [LR, BETA]))
    assert token not in repr(found)
    with pytest.raises(InputError, match="cannot be written"):
        rewrites_of(found)


def test_a_command_line_is_told_and_not_written() -> None:
    changes = [LR, Change("env.A", "1", None)]
    edits = edits_of(places({}, ("--learning_rate", "0.02")), changes)
    status, said = applied(recommended(edits, *changes), AssertionError())
    assert status == 0 and "launch train.py --learning_rate 1.7e-05" in said and "By hand: unset A" in said


LOOP = """
import sys
from pathlib import Path
from bisect_cfg.rewrite.apply import Rewrite, _put
path, texts = sys.argv[1], [sys.argv[2] * 50000, sys.argv[3] * 50000]
print("ready", flush=True)
while True:
    _put([Rewrite(path, *texts)])
    texts.reverse()
"""


def test_whoever_is_killed_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for number in range(6):
        path.write_text("old\n" * 50000)
        command = [sys.executable, "-c", LOOP, str(path), "old\n", "new\n"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            time.sleep(0.003 * number)
            process.send_signal(signal.SIGKILL)
        assert path.read_text() in ("old\n" * 50000, "new\n" * 50000)
    module._put([Rewrite(str(path), path.read_text(), "x = 1\n")])  # what was left beside it does no harm
    assert path.read_text() == "x = 1\n" and len(list(tmp_path.iterdir())) == 1


def test_what_is_told(found: Recommended, tmp_path: Path) -> None:
    assert list(told(found))[:4] == [
        f"{tmp_path / 'rates.py'}:1", "  - LR = 2e-2  # 0.02 is bold", "  + LR = 1.7e-05  # 0.02 is bold",
        "  Look at the comment, it may no longer be right: # 0.02 is bold",
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("name", ["train.py", "train.ipynb"])
def test_the_command(tool, name) -> None:
    notebook = name.endswith("ipynb")
    path = toys.notebook(tool.folder, toys.PREFIX, toys.FAILS) if notebook else toys.script(tool.folder)
    tool("bisect", name, "--study", "s", "--no-recommend")
    before = path.read_text()
    assert_clear(tool("apply", "nosuch"), "nosuch holds no finished study")
    assert_clear(tool("apply", "s"), "--yes")
    assert path.read_text() == before
    done = tool("apply", "s", "--yes")
    assert done.status == 0 and "Your script builds the recommended configuration" in done.out, done.all
    after = path.read_text()
    assert after != before and len(after.splitlines()) == len(before.splitlines())
    assert "there already" in tool("apply", "s", "--yes").out and path.read_text() == after
    path.write_text(after + "\n")
    assert_clear(tool("apply", "s", "--yes"), "was changed since")
