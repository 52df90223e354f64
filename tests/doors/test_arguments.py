"""What is given at the Python doors and makes no sense: one sentence that names it, before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools import assert_clear, slow

import bisect_cfg
from bisect_cfg import Bisection, Outcome, TrialResult
from bisect_cfg.common.configuration import check_value
from bisect_cfg.errors import InputError

ROOT = Path(__file__).parents[2]
GOOD, BAD = {"lr": 1e-6, "bf16": False}, {"lr": 1e-3, "bf16": True}
NAN, INF, NUL = float("nan"), float("inf"), "a\0b"
ITSELF: list[object] = [1]
ITSELF.append({"a": ITSELF})


class Odd:
    """An object that does not let itself be compared or shown."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __repr__ = __eq__


def table(names: str, rows: list[tuple]) -> pytest.MarkDecorator:
    """Rows of a test, called by their numbers and last entries: some of the values have no text."""
    return pytest.mark.parametrize(names, rows, ids=[f"{number}-{row[-1]}" for number, row in enumerate(rows)])


def never(configuration: dict) -> bool:
    raise AssertionError("it ran")


@table("name, value, error, words", [
    *((name, value, TypeError, f"{name} must be a dict") for name in ("good", "bad") for value in ([1], "bf16", None)),
    ("identity", 3, TypeError, "identity must be a dict"),
    *((name, 3, ValueError, f"{name} must be .*a dict") for name in ("prior", "loss", "work")),
    *((name, {1: 2}, TypeError, f"{name} must be a dict") for name in ("good", "identity")),
    *((name, 3, TypeError, f"{name} must be a function") for name in ("trial", "is_valid", "is_failure", "on_event")),
    ("trial", None, TypeError, "trial must be a function"), ("jobs", None, ValueError, "jobs must be"),
    *((name, value, ValueError, f"{name} must be a whole number") for name in ("max_trials", "jobs", "confirm")
      for value in (NAN, INF, -1, 0, 1.5, True, "3", np.array([1, 2]))),
    *((name, value, ValueError, f"{name} must be a finite number") for name in ("timeout", "max_seconds", "confidence")
      for value in (NAN, INF, -1, 1e300, 10**400, True, "3", np.array([1, 2]))),
    ("timeout", 0, ValueError, "above 0"), ("confidence", 1, ValueError, "up to 0.9999"),
    *((name, {"lr": value}, ValueError, f"{name} must be .* numbers") for name in ("prior", "loss", "work")
      for value in (NAN, INF, -1, 10**400, True, "3", None, np.array([1, 2]))),
    *(("prior", {"lr": value}, ValueError, "from 1e-06 up to 1e.06") for value in (1e308, 1e-308, 0)),
    ("work", {"lr": 0}, ValueError, "above 0"), ("prior", "risky", ValueError, "prior must be 'risk'"),
    *(("storage", value, TypeError, "storage must be an Optuna storage") for value in (3, NUL, "sqlite:///a\0b")),
    ("study_name", 3, TypeError, "study_name must be a text"), ("isolation", "thread", ValueError, "isolation"),
    *(("bad", {name: 1}, ValueError, f"{name} is a column") for name in ("seconds", "outcome")),
])  # fmt: skip
def test_arguments_are_checked_before_anything_runs(tmp_path, monkeypatch, name, value, error, words) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words) as raised:
        Bisection(**{"good": GOOD, "bad": BAD, "trial": never, name: value})
    assert "\n" not in str(raised.value) and not os.listdir(tmp_path)


@table("value, error, words", [
    *((value, TypeError, "cannot be compared as a whole")
      for value in (np.array([1, 2]), np.array([1]), np.array([]), Odd(), [np.array([1, 2])],
                    {"a": (np.array([1, 2]),)})),
    *((value, ValueError, "contains itself") for value in (ITSELF, ITSELF[1])),
])  # fmt: skip
def test_values_that_cannot_be_compared_or_written(value, error, words) -> None:
    for good, bad in ((1, value), (value, 1), (value, value)):
        with pytest.raises(error, match=f"x in .*{words}"):
            Bisection({**GOOD, "x": good}, {**BAD, "x": bad}, never)
    bisection = Bisection(GOOD, BAD, never)
    with pytest.raises(error, match=f"lr in ask.*{words}"):
        bisection.ask({"lr": value})
    with pytest.raises(ValueError, match="neither the good nor the bad value"):
        bisection.add({**BAD, "lr": value}, Outcome.FAIL, "search")
    for words_of_command in ({"target": "train.py"}, {"command": ["sort", "{flags}"], "bad": BAD}):
        with pytest.raises(InputError, match=f"x .*{words}"):
            bisect_cfg.bisect(**words_of_command, good={**GOOD, "x": value})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
OBJECTS = [np.float32(0.5), np.int64(3), np.bool_(True), np.dtype(int), Outcome.PASS, Path("a"), never, {1, 2}, b"a"]


@given(st.recursive(SCALARS | st.sampled_from(OBJECTS), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_what_can_be_compared_is_taken(value) -> None:
    check_value("x", value)


ANSWERS = ["fail", 0, np.array([True, False]), Odd(), Outcome, TrialResult("fail", "x"), TrialResult(None)]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_that_says_nothing_is_a_mistake_in_the_function(answer) -> None:
    refused = Bisection(GOOD, BAD, lambda c: answer, isolation="none")
    with pytest.raises(TypeError, match="must return an Outcome such as Outcome.FAIL, True"):
        refused.run()
    assert not refused.rows()  # that run does not count


@pytest.mark.training
@pytest.mark.parametrize("answer", [0, TrialResult("fail"), slow("pass")])
def test_such_an_answer_comes_out_of_a_child_as_well(tmp_path, answer) -> None:
    parts = {"storage": f"sqlite:///{tmp_path}/study.db", "identity": {}}
    with pytest.raises(TypeError, match="must return an Outcome"):
        Bisection(GOOD, BAD, lambda c: answer if c["bf16"] else True, **parts).run()
    report = Bisection(GOOD, BAD, lambda c: not c["bf16"], **parts).run()
    assert report.causes[0].parameters == ("bf16",) and "unresolved" not in set(report.trials["outcome"])


@table("arguments, options, words", [
    ((NUL,), {}, "The command holds a NUL"), (("train.py", [NUL]), {}, "The command holds a NUL"),
    ((), {"command": ["sort", "{flags}", NUL], "good": GOOD, "bad": BAD}, "The command holds a NUL"),
    *((("train.py",), {name: NUL}, f"{name} must be .*, not 'a.x00b'")
      for name in ("study", "python", "good_packages", "from_checkpoint", "log", "env_cache", "storage", "failure")),
])  # fmt: skip
def test_nul_in_paths_and_words(tmp_path, monkeypatch, arguments, options, words) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(InputError, match=words):
        bisect_cfg.bisect(*arguments, **options)
    assert os.listdir(tmp_path) == ["train.py"]


def test_warnings_that_are_errors_break_no_search_of_a_script(fresh_tool) -> None:
    (fresh_tool.folder / "train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "def step(number):\n"
        "    if args.bf16 and number == 3:\n"
        "        raise ValueError('nan')\n"
        "args = GRPOConfig(output_dir='out', learning_rate=3e-4, bf16=True)\n"
        "GRPOTrainer(args, step).train()\n"
    )
    fresh_tool.environment["PYTHONWARNINGS"] = "error"
    said = fresh_tool("bisect", "train.py", "--study", "s", "--confirm", "1")
    assert said.status == 0 and "CAUSE   bf16" in said.out and not said.err, said.all
    assert_clear(fresh_tool("bisect", "none.py", "--study", "t"), "There is no script none.py")
