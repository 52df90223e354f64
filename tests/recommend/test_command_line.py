"""Settings on a command line: found where they are given, changed there and nowhere else."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.recommend.edits._command_line import added, change_in, names_in
from bisect_cfg.recommend.edits._place import Change, same

NAME = "learning_rate"
others = st.lists(
    st.sampled_from([("--bf16",), ("--beta", "0.1"), ("--warmup=0.2",), ("data.jsonl",), ("--betas", "0.9", "-0.5")]),
    max_size=4,
)
numbers = st.integers(0, 10**6) | st.floats(0, 1e6, allow_nan=False)


@given(others, others, numbers, numbers, st.sampled_from(["--{} {}", "--{}={}", "training.{}={}", "+{}={}"]))
def test_a_setting_is_changed_where_it_is_given(before, after, old, new, form: str) -> None:
    words = shlex.split(form.format(NAME, repr(old)))
    arguments = [*(word for one in before for word in one), *words, *(word for one in after for word in one)]
    found = change_in(arguments, Change(NAME, old, new), {NAME}, {"bf16"})
    assert found is not None
    was, now = found
    assert shlex.split(was) == words and len(shlex.split(now)) == len(words)
    assert same(shlex.split(now)[-1].rpartition("=")[2], new)
    assert now.replace(str(new), "") == was.replace(repr(old), "")


@given(others, numbers)
def test_what_is_not_given_is_not_found(arguments, old) -> None:
    assert change_in([word for one in arguments for word in one], Change(NAME, old, 1), {NAME}, {"bf16"}) is None


@pytest.mark.parametrize(
    ("arguments", "change", "expected"),
    [
        (["--lr", "1", "--lr", "2"], Change("lr", 2, 3), ("--lr 2", "--lr 3")),  # the last one counts
        (["--bf16"], Change("bf16", True, False), ("--bf16", "")),
        (["--bf16", "True"], Change("bf16", True, None), ("--bf16 True", "")),
        (["--betas", "0.9", "0.95"], Change("betas", [0.9, 0.95], [0.9, 0.999]),
         ("--betas 0.9 0.95", "--betas 0.9 0.999")),
        (["--dtype", "float16"], Change("model.dtype", {"$dtype": "float16"}, {"$dtype": "float32"}),
         ("--dtype float16", "--dtype float32")),
        (["--kwargs", '{"a": 1, "b": 2}'], Change("kwargs.a", 1, 3),
         ("--kwargs '{\"a\": 1, \"b\": 2}'", "--kwargs '{\"a\": 3, \"b\": 2}'")),
        (["--kwargs", '{"a": 1, "b": 2}'], Change("kwargs.a", 1, None),
         ("--kwargs '{\"a\": 1, \"b\": 2}'", "--kwargs '{\"b\": 2}'")),
        (["--min-p", "0.1"], Change("min_p", 0.1, 0.0), ("--min-p 0.1", "--min-p 0.0")),
        (["--lr", "5"], Change("lr", 2, 3), None),  # another value than the run's
    ],
)  # fmt: skip
def test_forms(arguments: list[str], change: Change, expected: tuple[str, str] | None) -> None:
    switches = {"bf16"} if arguments == ["--bf16"] else set()
    assert change_in(arguments, change, set(change.names), switches) == expected


@given(st.dictionaries(st.from_regex(r"[a-z]{2}[a-z_]{0,6}", fullmatch=True), numbers | st.booleans(), max_size=4))
def test_what_is_added_can_be_found_again(values: dict[str, object]) -> None:
    arguments = shlex.split(added(values))
    assert names_in(arguments) == set(values)
    for name, value in values.items():
        assert change_in(arguments, Change(name, value, 7), {name}, set()) is not None
