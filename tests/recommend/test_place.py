"""Pieces of texts: what is exchanged, and what counts as the value that stands there."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bisect_cfg.common.configuration import equal
from bisect_cfg.recommend.edits._place import Change, parsed, plain, same, splice, whole_lines, without_item

numbers = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
values = (
    numbers | st.booleans() | st.none() | st.text("abc xyz_-", max_size=6).filter(lambda text: text == text.strip())
)


@given(st.lists(st.text("ab\n", max_size=4), min_size=1, max_size=6), st.data())
def test_splice_exchanges_these_pieces_and_nothing_else(parts: list[str], data: st.DataObject) -> None:
    new = data.draw(st.lists(st.none() | st.text("XY", max_size=3), min_size=len(parts), max_size=len(parts)))
    pieces, start = [], 0
    for part, instead in zip(parts, new, strict=True):
        if instead is not None and part:
            pieces.append((start, start + len(part), instead))
        start += len(part)
    expected = "".join(part if word is None or not part else word for part, word in zip(parts, new, strict=True))
    assert splice("".join(parts), *data.draw(st.permutations(pieces))) == expected


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=5), st.sampled_from([", ", ",", " , ", ",\n  "]), st.data())
def test_a_list_without_one_of_its_items(items: list[int], comma: str, data: st.DataObject) -> None:
    text, spans = "[", []
    for number, item in enumerate(items):
        text += comma if number else ""
        spans.append((len(text), len(text) + len(str(item))))
        text += str(item)
    gone = data.draw(st.integers(0, len(items) - 1))
    left = without_item(text + "]", spans, spans[gone])
    assert parsed(left) == items[:gone] + items[gone + 1 :]


@given(values)
def test_a_value_is_the_same_as_its_text(value: object) -> None:
    assert same(value, value) and same(str(value), value)
    assert equal(parsed(repr(value)), value)


@given(values, values)
def test_another_value_is_not_the_same(one: object, other: object) -> None:
    assume(not equal(one, other) and str(one) != str(other) and not equal(parsed(str(one)), other))
    assert not same(one, other)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6), ("10**-6", 1e-6), ("2 ** 10", 1024), ("1 / 4", 0.25), ("-(3)", -3), ("true", True),
        ("Null", None), ("'a b'", "a b"), ("[1, 2]", [1, 2]), ("8 * args.batch", "8 * args.batch"), ("1 / 0", "1 / 0"),
        ("9**9**9", "9**9**9"), ("__import__('os')", "__import__('os')"), ("(" * 500, "(" * 500),
    ],
)  # fmt: skip
def test_what_a_text_says(text: str, value: object) -> None:
    assert parsed(text) == value and type(parsed(text)) is type(value)


@pytest.mark.parametrize(
    ("before", "piece", "after", "lines"),
    [
        ("a\n", "  b: 1", ",  # why\nc", True), ("a\n", "b", "", True), ("", "b", "\n", True),
        ("a; ", "b", "\n", False), ("\n", "b", ", c\n", False), ("\n", "b", "  # c, d\n", True),
    ],
)  # fmt: skip
def test_lines_that_hold_nothing_else(before: str, piece: str, after: str, lines: bool) -> None:
    text = before + piece + after
    found = whole_lines(text, len(before), len(before + piece))
    assert (found is not None) is lines
    if found is not None:
        assert text[slice(*found)].strip().startswith(piece.strip())


def test_how_a_change_is_called_where_it_is_set() -> None:
    dtype = Change("model.dtype", {"$dtype": "float16"}, {"$dtype": "float32"})
    assert (dtype.field, dtype.key, dtype.names) == ("", "dtype", ("dtype", "torch_dtype"))
    inner = Change("generation_kwargs.top_p", 0.9, 1.0)
    assert (inner.field, inner.key, inner.names) == ("generation_kwargs", "top_p", ("top_p",))
    assert Change("beta", 0.1, 0.0).field == ""
    assert plain(dtype.new) == "float32" and plain(math.pi) == math.pi
