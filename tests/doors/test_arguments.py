"""What is given at the Python doors and makes no sense: a sentence that names it, before anything runs."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tools import assert_clear, slow

import bisect_cfg
from bisect_cfg import Bisection, Outcome, TrialResult
from bisect_cfg.configuration import DEEPEST, checked_value
from bisect_cfg.errors import InputError

ROOT = Path(__file__).parents[2]
GOOD, BAD = {"lr": 1e-6, "bf16": False}, {"lr": 1e-3, "bf16": True}
ITSELF: list[object] = [1]
ITSELF.append(ITSELF)
DEEP = functools.reduce(lambda inner, _: [inner], range(DEEPEST + 2), 1)


def table(names: str, rows: list[tuple]) -> pytest.MarkDecorator:
    """Rows of a test, called by number and last entry: some of the values have no text."""
    return pytest.mark.parametrize(names, rows, ids=[f"{number}-{row[-1]}" for number, row in enumerate(rows)])


class Odd:
    """An object that does not let itself be compared, shown or taken for true."""

    def __init__(self, *refuses: str) -> None:
        self.refuses = refuses

    def _of(self, what: str, otherwise: object) -> object:
        if what in self.refuses:
            raise RuntimeError(f"no {what}")
        return otherwise

    def __eq__(self, other: object) -> object:
        return self._of("eq", self is other)

    def __repr__(self) -> str:
        return str(self._of("repr", "odd"))

    def __bool__(self) -> bool:
        return bool(self._of("bool", True))


def never(configuration: dict) -> bool:
    raise AssertionError("it ran")


async def asynchronous(configuration: dict) -> bool:
    return True


def generator(configuration: dict):
    yield True


class Asynchronous:
    async def __call__(self, configuration: dict) -> bool:
        return True


# ------------------------------------------------------------------------------------------------------- Bisection


ARGUMENTS = [
    *((name, value, TypeError, f"{name} must be a dict") for name in ("good", "bad") for value in ([1], "bf16", None)),
    ("good", {1: 2}, TypeError, "good must have strings as names, not 1"),
    ("good", {b"lr": 2}, TypeError, "good must have strings as names, not b'lr'"),
    ("bad", {"": 1}, ValueError, "bad has the name ''"), ("bad", {" ": 1}, ValueError, "bad has the name ' '"),
    ("bad", {"a\0": 1}, ValueError, "bad has the name"), ("bad", {"\ud800": 1}, ValueError, "bad has the name"),
    ("bad", {"seconds": 1}, ValueError, "seconds is a column"), ("bad", {"outcome": 1}, ValueError, "is a column"),
    *((name, value, ValueError, f"{name} must be a whole number from {least} on")
      for name, least in (("max_trials", 1), ("jobs", 1), ("confirm", 1), ("seed", 0))
      for value in (math.nan, math.inf, -1, 1.5, True, "3", np.array([1]), torch.tensor(1))),
    *((name, value, ValueError, f"{name}: ")
      for name in ("timeout", "max_seconds", "confidence")
      for value in (math.nan, math.inf, -1, 1e300, 10**400, 10**5000, True, "3", b"3", 1j, np.array([1]))),
    ("timeout", 0, ValueError, "timeout: 0 .* above 0"), ("confidence", 1, ValueError, "confidence: 1 .* to 0.9999"),
    *((name, {"lr": value}, ValueError, f"{name} of lr: ")
      for name in ("prior", "loss", "work")
      for value in (math.nan, math.inf, -1, 1e308, 10**400, True, "3", None, np.array([1]))),
    ("prior", {"lr": 0}, ValueError, "prior of lr"), ("work", {"lr": 0}, ValueError, "work of lr"),
    ("prior", {"lr": 1e-308}, ValueError, "prior of lr"), ("prior", "risky", ValueError, "prior must be 'risk'"),
    *((name, 3, TypeError, f"{name} must be a dict") for name in ("prior", "loss", "work", "identity")),
    ("loss", {2: 1.0}, TypeError, "loss must have strings as names"), ("prior", None, TypeError, "prior must be"),
    *(("identity", {"a": value}, TypeError, "identity must have values that JSON can hold")
      for value in (object(), ITSELF, math.nan)),
    ("storage", 3, TypeError, "storage must be an Optuna storage"),
    *(("storage", address, InputError, "The storage .* cannot be opened")
      for address in ("", "x", "nonsense://x", "sqlite:///a\0b", "sqlite:///\ud800", "sqlite:////no/such/folder/x.db")),
    *(("study_name", name, TypeError, "study_name must be a string") for name in (3, b"s", "a\0b", "\ud800")),
    *((name, "no", TypeError, f"{name} must be True or False") for name in ("first", "progress")),
    ("isolation", "thread", ValueError, "isolation must be 'process' or 'none'"),
    *((name, value, TypeError, f"{name} must be a function")
      for name in ("trial", "is_valid", "is_failure", "on_event") for value in (3, "f", True)),
    ("trial", None, TypeError, "trial must be a function"),
    *((name, function, TypeError, words)
      for name in ("trial", "is_valid", "is_failure", "on_event")
      for function, words in (
          (asynchronous, f"{name} must not be `async def`"), (Asynchronous(), f"{name} must not be `async def`"),
          (functools.partial(asynchronous), f"{name} must not be `async def`"),
          (generator, f"{name} must return its answer"), (lambda a, b: True, f"{name} must take one argument"),
          (lambda: True, f"{name} must take one argument"), (lambda *, a: True, f"{name} must take one argument"),
      )),
]  # fmt: skip


@table("name, value, error, words", ARGUMENTS)
def test_arguments_are_checked_before_anything_runs(tmp_path, monkeypatch, name, value, error, words) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        Bisection(**{"good": GOOD, "bad": BAD, "trial": never, name: value})
    assert not os.listdir(tmp_path)


VALUES = [
    *((value, TypeError, "neither True nor False")
      for value in (np.array([1, 2]), np.array([1]), np.array(1), torch.tensor([1.0]), torch.tensor(1), Odd("eq"))),
    ([np.array([1, 2])], TypeError, "contains a numpy.ndarray"), ({"a": np.array(1)}, TypeError, "numpy.ndarray"),
    (Odd("repr"), TypeError, "cannot be shown"), ({1: 2}, TypeError, "the key 1 "), ([{(1,): 2}], TypeError, "the key"),
    (ITSELF, ValueError, "contains itself"), (DEEP, ValueError, f"{DEEPEST} levels deep"),
    (10**400, ValueError, "larger than any float"), ([10**5000], ValueError, "larger than any float"),
    ("\ud800", ValueError, "half a character"),
]  # fmt: skip


@table("value, error, words", VALUES)
def test_values_that_cannot_be_compared_or_written(value, error, words) -> None:
    for good, bad in (({"x": 1}, {"x": value}), ({"x": value}, {"x": 1}), ({"x": value}, {"x": value})):
        with pytest.raises(error, match=f"x in .*{words}"):
            Bisection({**GOOD, **good}, {**BAD, **bad}, never)
    bisection = Bisection(GOOD, BAD, never)
    with pytest.raises((error, TypeError), match="lr"):
        bisection.ask({"lr": value})
    with pytest.raises(InputError, match=words):
        bisect_cfg.bisect(command=["sort", "{flags}"], good=GOOD, bad={**BAD, "x": value})


@pytest.mark.parametrize(("given", "taken"), [
    (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (np.str_("a"), "a"), (np.longdouble(2), 2.0),
    ([np.int8(1), (np.float64(2.0),)], [1, (2.0,)]), ({"a": np.int64(1)}, {"a": 1}),
])  # fmt: skip
def test_numbers_of_numpy_become_those_of_python(given, taken) -> None:
    seen = []
    Bisection({"x": None}, {"x": given}, lambda c: seen.append(c["x"]), isolation="none").run()
    assert repr(seen[0]) == repr(taken)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
)


@given(PLAIN | st.sampled_from([torch.float16, Outcome.PASS, Path("a"), never, int, {1, 2}, b"a", 1j, Odd()]))
def test_what_can_be_compared_and_shown_is_taken_as_it_is(value) -> None:
    assert checked_value("x", value) is value


@pytest.mark.training
@pytest.mark.parametrize("value", ["{'b', 'a', 'c'}", "frozenset('xyz')", "object()", "print"])
def test_a_value_that_json_cannot_hold_is_the_same_in_another_process(tmp_path, value) -> None:
    code = f"""
        from bisect_cfg import Bisection
        Bisection({{"x": 1}}, {{"x": {value}}}, print, storage="sqlite:///s.db")
    """
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environment, cwd=tmp_path)


# --------------------------------------------------------------------------------------- what comes of the functions


PASSES, FAILS = (Outcome.PASS, None), (Outcome.FAIL, "x")


def with_(**fields: object) -> Callable[[bool], TrialResult]:
    return lambda passed: TrialResult(*(PASSES if passed else FAILS), **fields)


ANSWERS = [
    *((lambda passed, value=value: value, "must return an Outcome, True")
      for value in (0, 1, "pass", 0.5, Outcome, "fail", torch.tensor(True), np.array([True]), Odd("repr", "bool"))),
    (lambda passed: asynchronous({}), "coroutine"), (lambda passed: generator({}), "generator"),
    (lambda passed: TrialResult("fail"), "the outcome 'fail' .* such as Outcome.FAIL"),
    (lambda passed: TrialResult(Outcome.FAIL, ValueError("x")), "the signature"), (with_(message=b"x"), "the message"),
    *((with_(seconds=value), "the seconds") for value in ("1", math.nan, math.inf, -1)), (with_(step="x"), "the step"),
    (with_(attributes=None), "the attributes"), (with_(intermediate=None), "the intermediate"),
    (with_(intermediate={"a": 1}), "the intermediate"), (with_(intermediate={1: "b"}), "the intermediate"),
]  # fmt: skip


@table("answer, words", ANSWERS)
def test_an_answer_that_says_nothing_is_a_mistake_in_the_function(answer, words) -> None:
    refused = Bisection(GOOD, BAD, lambda c: answer(not c["bf16"]), isolation="none")
    with pytest.raises(TypeError, match=words):
        refused.run()
    assert not refused.rows()  # that run does not count
    with pytest.raises(TypeError, match=words):
        refused.add(BAD, answer(False), "bad baseline")


@pytest.mark.training
@pytest.mark.parametrize("answer", [lambda passed: 0, slow(lambda passed: TrialResult("fail")), with_(seconds="1")])
def test_an_answer_that_says_nothing_comes_out_of_a_child_as_well(tmp_path, answer) -> None:
    parts = {"storage": f"sqlite:///{tmp_path}/study.db", "identity": {}}
    with pytest.raises(TypeError, match="returned"):
        Bisection(GOOD, BAD, lambda c: answer(not c["bf16"]), **parts).run()
    report = Bisection(GOOD, BAD, lambda c: not c["bf16"], **parts).run()
    assert report.causes[0].parameters == ("bf16",) and "unresolved" not in set(report.trials["outcome"])


@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.training)])
@pytest.mark.parametrize("answer", [
    np.bool_, lambda passed: Outcome.PASS if passed else Outcome.FAIL,
    with_(seconds=np.float32(1), step=np.int64(3), intermediate={np.int64(1): np.float32(2)},
          attributes={"number": np.float32(1), "itself": ITSELF, 1: object(), "odd": Odd("repr")}),
])  # fmt: skip
def test_answers_with_numbers_of_numpy_and_odd_attributes(isolation, answer) -> None:
    report = Bisection(GOOD, BAD, lambda c: answer(not c["bf16"]), isolation=isolation).run()
    assert report.causes[0].parameters == ("bf16",) and len(report.trials)


def test_what_is_added_is_what_a_trial_may_return() -> None:
    bisection = Bisection(GOOD, BAD, lambda c: not c["bf16"], isolation="none")
    bisection.add(BAD, Outcome.FAIL, "bad baseline")
    bisection.add(GOOD, np.bool_(True), "good baseline")
    assert bisection.run().causes[0].parameters == ("bf16",)


@table("arguments, error, words", [
    ((BAD, "fail", "bad baseline"), TypeError, "result is 'fail'"),
    ((3, True, "bad baseline"), TypeError, "configuration must be a dict"),
    (({"lr": 1e-3}, True, "search"), ValueError, "neither the good nor the bad value"),
    (({**BAD, "lr": np.array([1, 2])}, True, "search"), ValueError, "neither the good nor the bad value"),
    ((BAD, True, "baseline"), ValueError, "purpose must be one of bad baseline, good baseline"),
    ((BAD, True, None), ValueError, "purpose must be"), ((BAD, True, "search", 3), TypeError, "run must be a string"),
])  # fmt: skip
def test_what_cannot_be_added(arguments, error, words) -> None:
    bisection = Bisection(GOOD, BAD, never)
    with pytest.raises(error, match=words):
        bisection.add(*arguments)
    assert not bisection.rows()


@pytest.mark.parametrize("answer", [np.array([1, 2]), Odd("bool")])
@pytest.mark.parametrize("name", ["is_valid", "is_failure"])
def test_what_is_neither_true_nor_false_comes_up(name, answer) -> None:
    with pytest.raises(TypeError, match=f"{name} returned .* neither true nor false"):
        Bisection(GOOD, BAD, lambda c: not c["bf16"], isolation="none", **{name: lambda _: answer}).run()


@pytest.mark.parametrize("function", [
    functools.wraps(lambda a, b: None)(lambda c: not c["bf16"]), functools.partial(lambda a, c: not c["bf16"], 1),
    type("Unreadable", (), {"__signature__": "no", "__call__": lambda self, c: not c["bf16"]})(),
    lambda c, more=None: not c["bf16"],
])  # fmt: skip
def test_functions_that_can_be_called_are_taken(function) -> None:
    assert Bisection(GOOD, BAD, function, isolation="none").run().causes[0].parameters == ("bf16",)


# ---------------------------------------------------------------------------------------------------- bisect(), load()


HALF, NUL = "\ud800", "a\0b"


@table("arguments, options, error, words", [
    *(((word,), {}, InputError, "TARGET") for word in (NUL, HALF, b"train.py", ["train.py"])),
    *((("train.py", [word]), {}, InputError, "The command") for word in (NUL, HALF, b"a", None)),
    *((("train.py", words), {}, TypeError, "a list of strings") for words in ("abc", b"abc", 3, None)),
    *(((), {"command": words}, TypeError, "a list of strings") for words in ("abc", 3, None)),
    (("train.py",), {"python": NUL}, InputError, "--python: 'a.x00b'"),
    (("train.py",), {"python": 3}, InputError, "--python takes text"),
    *((("train.py",), {name: value}, InputError, f"--{name.replace('_', '-')}")
      for name in ("study", "good_packages", "from_checkpoint", "log", "env_cache", "storage", "failure", "preset")
      for value in (NUL, HALF, b"x", 3, ["a"])),
    *((("train.py",), {name: value}, InputError, "--" + {"pins": "pin", "excluded": "except"}.get(name, name))
      for name in ("only", "excluded", "keep", "good", "pins", "devices") for value in (NUL, [NUL], b"x", object())),
    *((("train.py",), {"good": {name: 1}}, InputError, "--good") for name in (b"lr", 1, NUL, HALF)),
    (("train.py",), {"good": {"lr": math.nan}}, InputError, "NaN"),
    *((("train.py",), {"good": {"lr": value}}, InputError, "lr is .* cannot be handed to another process")
      for value in (object(), [object()], {"a": b"x"}, 1j)),
    *((("train.py",), {name: value}, InputError, name.replace("_", "-"))
      for name in ("jobs", "max_trials", "confirm", "steps", "trial_timeout", "max_seconds", "confidence", "ratio")
      for value in (math.nan, math.inf, -1, 0, 1e300, 10**400, True, "3", b"3", np.array([1]))),
    *((("train.py",), {name: "no"}, InputError, f"--{name} takes true or false") for name in ("first", "restart")),
])  # fmt: skip
def test_what_bisect_is_given_is_checked_before_anything_runs(
    tmp_path, monkeypatch, arguments, options, error, words
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(error, match=words):
        bisect_cfg.bisect(*arguments, **options)
    assert os.listdir(tmp_path) == ["train.py"]


# -------------------------------------------------------------------------------------------- warnings that are errors


SEARCH = """
import tempfile
from bisect_cfg import Bisection, load
names = [f"x{i}" for i in range(12)]
good, bad = dict.fromkeys(names, 0), {**dict.fromkeys(names, 1), "lr": 1e-3, "kwargs": {"a": [1]}, "flag": True}
address = f"sqlite:///{tempfile.mkdtemp()}/study.db"
bisection = Bisection(good, bad, lambda c: not (c["x1"] and c["x7"]), storage=address, jobs=2)
report = bisection.run()
report.trials, report.ask("x1"), report.plot_matrix(), report._repr_html_(), load(address).trials
print(report.causes[0].parameters)
"""


@pytest.mark.training
def test_warnings_that_are_errors_break_no_search_of_a_function(tmp_path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SEARCH], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert (done.stdout, done.stderr) == ("('x1', 'x7')\n", "")


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
    assert said.status == 0 and "Cause  bf16" in said.out and not said.err, said.all
    said = fresh_tool("bisect", "none.py", "--study", "t")
    assert_clear(said, "There is no script none.py")
