"""What the folder of a study holds, finished, running, interrupted or damaged."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.errors import InputError
from bisect_cfg.report import recorded
from bisect_cfg.report.html import page
from bisect_cfg.report.markdown import as_json, as_markdown
from bisect_cfg.report.recorded import Recorded, read, read_metrics
from bisect_cfg.store.causes import Levels
from bisect_cfg.store.encoding import QUESTION
from bisect_cfg.store.folder import write_command
from bisect_cfg.store.storage import sqlite_storage
from bisect_cfg.store.store import Store
from tests.report import made
from tests.report.cases import BAD, GOOD, ONE
from tests.report.made import STATE, begun


def test_a_study_without_an_answer_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no study"):
        read(tmp_path)
    found = read(begun(tmp_path))
    assert "Nothing has been run" in page(found) and "Nothing has been run" in as_markdown(found)
    known = json.loads(as_json(found))
    assert known["status"] == "empty" and known["notes"] == list(found.answer.notes)
    replace(STATE, study="name").save(tmp_path)
    assert read(tmp_path).answer.notes[0].endswith("named, and not in this folder.")
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is at work in this study: 0 trials done" in as_markdown(read(tmp_path))


def test_a_first_run_that_never_came_to_train_is_shown_with_its_log(tmp_path: Path) -> None:
    first = begun(tmp_path) / "trials" / "0"
    first.mkdir(parents=True)
    (first / "ending.json").write_text(json.dumps({"exit_code": 1, "hang": None, "seconds": 0.3, "steps": 0}))
    store = Store((), sqlite_storage(tmp_path / "study.db"), "train")
    number = store.begin({}, {QUESTION: "bad-config", "purpose": Purpose.BAD_BASELINE.value}).number
    store.finish(number, {"outcome": "fail"}, Outcome.FAIL)
    (first / "log.txt").write_text("    def f(:\nSyntaxError: invalid syntax\n")
    found = read(tmp_path)
    assert found.answer.status == "unfinished" and found.answer.notes[0].startswith("This study has no answer")
    for words in (page(found), as_markdown(found)):
        assert "def f(:" in words and "your configuration" in words
    assert "SyntaxError" in found.answer.failure.message


def test_a_first_run_that_was_interrupted_is_no_empty_study(tmp_path: Path) -> None:
    first = begun(tmp_path) / "trials" / "0"
    first.mkdir(parents=True)
    (first / "log.txt").write_text("loading\n")
    write_command(tmp_path, {"lines": {"own": "python train.py", "bisect": "bisect-cfg bisect train.py --only lr"}})
    words = as_markdown(read(tmp_path))
    assert "it ended while its first run was running" in words and "loading" in words
    assert "```sh\npython train.py\nbisect-cfg bisect train.py --only lr\n```" in words


def test_a_long_line_of_the_log_leaves_room_in_an_issue(tmp_path: Path) -> None:
    first = begun(tmp_path) / "trials" / "0"
    first.mkdir(parents=True)
    (first / "ending.json").write_text(json.dumps({"exit_code": 1, "hang": None, "seconds": 0.3, "steps": 0}))
    (first / "log.txt").write_text("loading\n" + "z" * 60_000 + "\n")
    words = as_markdown(read(tmp_path))
    assert len(words) < 4_000 and "more characters)" in words and "loading" in words


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    (begun(tmp_path) / "study.db").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(InputError, match="study.db cannot be opened.*\n.*--restart"):
        read(tmp_path)


def test_a_study_at_work_again_shows_the_answer_that_it_had(tmp_path: Path) -> None:
    folder = made.study(tmp_path / "s")
    STATE.save(folder)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = read(folder).answer
    assert answer.status == "isolated" and answer.notes[0].startswith("bisect-cfg is at work in this study again")


def test_metrics_are_read_as_far_as_they_can_be(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    rows = [{"step": step, "training": 1 + (step > 5), "loss": 1.0} for step in range(1, 30)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(f"[]\n{text}" + '{"step": 30, "lo')
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(6, 30)), "of the last training"


def test_what_a_trial_tests() -> None:
    def shown(purpose: Purpose, **values: object) -> str:
        return recorded.tested(replace(ONE.trials[0], purpose=purpose.value, values=values and {**BAD, **values}), ONE)

    assert (
        shown(Purpose.SEARCH, **GOOD) == "the good configuration"
        and shown(Purpose.SEARCH, **BAD) == "your configuration"
    )
    assert shown(Purpose.SEARCH, bf16=False, beta=0.0) == "yours without bf16, beta"
    assert shown(Purpose.SEARCH, **{**GOOD, "bf16": True}) == "only bf16"
    assert shown(Purpose.RECOMMEND, bf16=False) == "bf16: False" and shown(Purpose.ASKED, beta=7) == "beta: 7"
    assert shown(Purpose.GOOD_BASELINE) == "the good configuration", "it ended before its settings were known"


def test_levels_are_those_of_the_causes_first_then_of_the_two_ends() -> None:
    assert list(ONE.levels)[0] == "bf16" and ONE.levels.keys() == BAD.keys()
    assert ONE.levels["beta"] == Levels(0.0, 0.1) and ONE.evidence == (0, 1, 2, 7, 8, 9)
    assert Recorded(None, ONE).shown_in_full == set(ONE.evidence)
