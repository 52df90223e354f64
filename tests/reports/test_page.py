"""report.html, Markdown and JSON of a study: what is in them, and what is not."""

from __future__ import annotations

import base64
import fcntl
import gzip
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from bisect_cfg import Bisection
from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError
from bisect_cfg.reports.answer import write_answer
from bisect_cfg.reports.page import commands, page
from bisect_cfg.reports.passed_on import as_json, as_markdown
from bisect_cfg.reports.recorded import read
from bisect_cfg.reports.shared import shared
from bisect_cfg.reports.terminal import told
from bisect_cfg.runner.verdict import Observation
from bisect_cfg.store.encoding import QUESTION
from bisect_cfg.store.invocation import write_command
from bisect_cfg.store.rows import recorded_trials
from bisect_cfg.store.state import State
from bisect_cfg.store.storage import sqlite_storage
from bisect_cfg.store.store import Store
from tests.reports import made


def study(
    folder: Path,
    *,
    metrics: Sequence[str] = ("loss", "grad_norm"),
    died: Observation = made.DIED,
    **changes: object,
) -> Path:
    """A study folder with an answer, as `made.answer` has it.

    Args:
        folder: made here.
        metrics: names of what each run traced.
        died: the failure.
        **changes: of the answer.
    """
    folder.mkdir(exist_ok=True)
    answer = made.answer(folder, **{"bad_run": made.run(folder, died), **changes})
    write_answer(answer, {"packages": {"trl": "1.0"}}, lambda result: told(answer, result))
    for number, steps in enumerate((3, 10, 3, 10)):
        trial = folder / "trials" / str(number)
        trial.mkdir(parents=True, exist_ok=True)
        lines = [{"step": step, "time": 0.1, **dict.fromkeys(metrics, step / 7)} for step in range(1, steps + 1)]
        (trial / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def plots(html: str) -> list[JsonObject]:
    """The plots in a page, unpacked."""
    packed = re.search(r'id="payload">([^<]*)<', html)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_page_answers_first_and_shows_the_trials(tmp_path: Path) -> None:
    html = page(read(study(tmp_path / "s")))
    answer, reasoning = html.split('id="reasoning"')
    assert "bf16 = True" in answer and "Fails 1/1 with only it changed" in answer
    assert reasoning.count("<td class=b>") == 4 == reasoning.count("<td class=g>")
    assert [one["title"] for one in plots(html)] == ["grad_norm", "loss"]
    assert [len(line["x"]) for line in plots(html)[1]["data"] if line["mode"] == "lines"] == [
        10,
        10,
        3,
        3,
    ]  # on top: those that fail


def test_an_option_is_one_word_whatever_stands_beside_it(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", status="no_failure", report=None, bad_run=made.run(tmp_path, made.HEALTHY))
    html = page(read(folder))
    assert '<span class="option">--until-failure</span> goes on' in html and "&lt;span" not in html
    assert re.search(r"\.option \{[^}]*nowrap", html)


def test_markdown_has_what_a_maintainer_needs(tmp_path: Path) -> None:
    words = as_markdown(read(study(tmp_path / "s")))
    assert "bf16: True" in words and "learning_rate: " not in words  # of a target that has no training config
    assert "SIGFPE" in words and "trl 1.0" in words


IDENTITY = {"script": "train.py", "arguments": [], "python": "", "folder": "/", "script_hash": "", "files": {}}
STATE = State({**IDENTITY, "good_file_hash": None}, {})


def begun(folder: Path) -> Path:
    """A study that has just been begun."""
    folder.mkdir(exist_ok=True)
    STATE.save(folder)
    return folder


def test_a_study_without_an_answer_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no study"):
        read(tmp_path)
    found = read(begun(tmp_path))
    assert "Nothing has been run" in page(found) and "Nothing has been run" in as_markdown(found)
    known = json.loads(as_json(found))
    assert known["status"] == "empty" and known["notes"] == [found.said]
    replace(STATE, study="name").save(tmp_path)
    assert read(tmp_path).said.endswith("named, and not in this folder.")
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
    assert found.result["status"] == "unfinished" and found.said.startswith("This study has no answer")
    for words in (page(found), as_markdown(found)):
        assert "def f(:" in words and "your configuration" in words
    assert "SyntaxError" in found.result["failure"]["message"]


@pytest.mark.parametrize(
    "changes",
    [{"status": 5}, {"target": None}, {"target": {"script": "x"}}, {"trials": [1]}, {"trials": [{}]}, {"causes": 3},
     {"trials": None}],
)  # fmt: skip
def test_what_has_not_the_form_of_an_answer_is_refused(tmp_path: Path, changes: JsonObject) -> None:
    path = study(tmp_path / "s") / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(
        InputError, match="result.json cannot be read: [a-z].*: (expected|object).*\n.*the file is rewritten"
    ):
        read(tmp_path / "s")


def test_where_nothing_can_be_written_a_copy_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    storage = f"sqlite:///{tmp_path / 's/study.db'}"
    Bisection({"a": 1}, {"a": 2}, lambda c: c["a"] < 2, isolation="none", storage=storage).run()
    before = recorded_trials(tmp_path / "s")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    (tmp_path / "s").rename(tmp_path / "t")
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "t").iterdir()}
    assert recorded_trials(tmp_path / "t") == before and before
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "t").iterdir()} == kept


def test_a_first_run_that_was_interrupted_is_no_empty_study(tmp_path: Path) -> None:
    first = begun(tmp_path) / "trials" / "0"
    first.mkdir(parents=True)
    (first / "log.txt").write_text("loading\n")
    write_command(tmp_path, {"lines": {"own": "python train.py", "bisect": "bisect-cfg bisect train.py --only lr"}})
    words = as_markdown(read(tmp_path))
    assert "it ended while its first run was running" in words and "loading" in words
    assert "```sh\npython train.py\nbisect-cfg bisect train.py --only lr\n```" in words


def test_what_is_typed_again_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anneliese")
    found = read(study(tmp_path / "s"))
    assert "Isolate it" not in dict(commands(found))
    line = "bisect-cfg bisect /home/anneliese/train.py --good hub_token=hf_abcdefghijklmnop"
    write_command(tmp_path / "s", {"lines": {"own": "", "bisect": line}})
    assert dict(commands(found))["Isolate it"] == "bisect-cfg bisect ~/train.py --good hub_token=***"


def test_a_path_with_a_blank_under_the_home_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = dict(commands(read(study(tmp_path / "my runs"))))
    assert found["Safe values again, surer"] == "bisect-cfg recommend ~/'my runs' --verify-seeds 10"


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


def test_homes_and_names_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = study(tmp_path / "s", notes=("see /home/anneliese/x, anneliese@gpu1 and " + str(tmp_path / "y"),))
    found = read(folder)
    for words in (page(found), as_markdown(found), as_json(found)):
        assert "anneliese" not in words and str(tmp_path) not in words
    assert "see ~/x, user@gpu1 and ~/y" in as_json(found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/anneliese/x.py and anneliese@gpu1", "~/x.py and user@gpu1"),
        ("/Users/bo/run: /scratch/bo/cache", "~/run: /scratch/user/cache"),
        ("/home/data/set of data, data.py", "~/set of data, data.py"),
        ("https://host/home/page and a/home/b", "https://host/home/page and a/home/b"),
        ("train owns train.py, retrain and train_it", "user owns train.py, retrain and train_it"),
        ("/work/x.py", "/work/x.py"),
    ],
)
def test_what_names_a_person_and_what_does_not(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "train")
    monkeypatch.setenv("HOME", "/home/train")
    assert shared({"key": [text, 1, None]}) == {"key": [shown, 1, None]}


def test_everybodys_account_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setenv("HOME", "/root")
    assert shared("the root cause in /root/x, /rooted, root@gpu") == "the root cause in ~/x, /rooted, root@gpu"
