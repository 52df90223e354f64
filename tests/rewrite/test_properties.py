"""Whatever a file looks like, an edit of it gives one setting another value and leaves every other line as it is."""

from __future__ import annotations

import ast
import io
import json
import math
import tokenize
import tomllib

import pytest
import tomli_w
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bisect_cfg.rewrite.spans import Change
from tests.rewrite.cases import edited

NAME = "learning_rate"

numbers = st.one_of(
    st.integers(-1000, 100000),
    st.floats(1e-12, 1e12, allow_nan=False),
    st.floats(-1e3, -1e-9, allow_nan=False),
    st.sampled_from([1e-6, 1e-05, 5e-7, 1e22, 0.0, 1.0]),
)
words = st.text("abc#:'\"-é *&!{}[],%@`|>?~0", min_size=1, max_size=8).filter(lambda text: text.strip())
scalars = st.one_of(numbers, st.booleans(), words)
values = st.one_of(scalars, st.lists(scalars, min_size=1, max_size=3))
WORDS_OF_YAML = {"y", "n", "on", "off", "yes", "no", "null", "true", "false"}
keys = st.from_regex(r"[a-z]{1,6}", fullmatch=True).filter(lambda key: key not in WORDS_OF_YAML)
comments = st.sampled_from(["", "", "# mine", "# learning_rate: 3", "#", "#    - é"])


@st.composite
def documents(draw: st.DrawFn, old: object) -> str:
    """A YAML file of somebody who writes as they like, with the setting in one place of it."""

    def flow(value: object) -> str:
        style = draw(st.sampled_from([None, "'", '"'])) if isinstance(value, str) else None
        text = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=math.inf, allow_unicode=True)
        return text.splitlines()[0]

    def flow_inside(value: object) -> str:
        """As `flow`, where commas and brackets have a meaning."""
        return flow([value])[1:-1]

    def entry(key: str, value: object, indent: str) -> list[str]:
        gap, comment = draw(st.sampled_from([" ", "   "])), draw(comments)
        tail = f"  {comment}" if comment else draw(st.sampled_from(["", " "]))
        if isinstance(value, list) and key != NAME and draw(st.booleans()):
            inner = indent + draw(st.sampled_from(["", "  ", "    "]))
            return [f"{indent}{key}:{tail}", *(f"{inner}-{gap}{flow(item)}" for item in value)]
        return [f"{indent}{key}:{gap}{flow(value)}{tail}"]

    def mapping(indent: str, holds: bool, depth: int) -> list[str]:
        names = draw(st.lists(keys, max_size=4, unique=True))
        blocks = [entry(name, draw(values), indent) for name in names]
        if holds:
            deeper = depth < 3 and draw(st.booleans())
            if deeper and draw(st.booleans()):
                own = [
                    f"{indent}Holder: {{a: 1,  {NAME}: {flow_inside(old)} , b: "
                    f"[x]}}{draw(st.sampled_from(['', '  # flow']))}"
                ]
            elif deeper:
                inner = mapping(indent + draw(st.sampled_from(["  ", "    ", " "])), True, depth + 1)
                own = [f"{indent}Holder:  {draw(comments)}".rstrip(" "), *inner]
            else:
                own = entry(NAME, old, indent)
            blocks.insert(draw(st.integers(0, len(blocks))), own)
        lines = []
        for block in blocks:
            comment = draw(comments)
            lines += [
                *([indent + comment] if comment else []),
                *([""] if draw(st.booleans()) else []),
                *block,
            ]
        return lines

    start = draw(st.sampled_from([[], ["---"], ["# top", ""]]))
    ending = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    return ending.join([*start, *mapping("", True, 0)]) + draw(st.sampled_from(["", ending, ending + "# end" + ending]))


def found_in(data: object) -> dict | None:
    """The mapping that holds the setting."""
    if not isinstance(data, dict):
        return None
    return data if NAME in data else next(filter(None, map(found_in, data.values())), None)


def after(name: str, text: str, change: Change) -> str:
    found, left = edited(name, text, change)
    assert not left, left
    return found


def untouched(text: str, edited_text: str) -> int:
    """How many lines two texts begin and end with alike."""
    ours, theirs = text.split("\n"), edited_text.split("\n")
    first = next((k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    rest = [*zip(ours[first:][::-1], theirs[first:][::-1], strict=False)]
    return first + next((k for k, (a, b) in enumerate(rest) if a != b), len(rest))


@pytest.mark.training
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_yaml(data: st.DataObject) -> None:
    old, new = data.draw(values, "old"), data.draw(values, "new")
    assume((type(old), old) != (type(new), new) and old != new)
    text = data.draw(documents(old), "document")
    wanted = yaml.safe_load(text)
    found_in(wanted)[NAME] = new
    changed = after("config.yaml", text, Change(NAME, old, new))
    got = yaml.safe_load(changed)
    assert got == wanted and type(found_in(got)[NAME]) is type(new)
    assert untouched(text, changed) >= len(text.split("\n")) - 1


tables = st.dictionaries(keys, st.recursive(values, lambda inner: st.dictionaries(keys, inner, max_size=3)), max_size=4)


@pytest.mark.parametrize("name", ["c.json", "c.toml"])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(tables, tables, values, values, st.sampled_from([None, 1, 4]))
def test_json_and_toml(name: str, above: dict, within: dict, new: object, old: object, indent: int | None) -> None:
    assume(type(new) is not type(old) or new != old)
    content = {**above, "Holder": {"x_": 1, **within, NAME: old}}
    read = json.loads if name == "c.json" else tomllib.loads
    text = json.dumps(content, indent=indent) if name == "c.json" else tomli_w.dumps(content)
    content = read(text)
    changed = read(after(name, text, Change(NAME, old, new)))
    content["Holder"].pop(NAME)
    assert changed["Holder"].pop(NAME, None) == new and changed == content


# ----------------------------------------------------------------------------------------------------------- Python


def literals(value: object) -> st.SearchStrategy[str]:
    if isinstance(value, float) and math.isfinite(value):
        return st.sampled_from([repr(value), f"({value!r})"])
    return st.just(repr(value))


@st.composite
def scripts(draw: st.DrawFn, old: object) -> str:
    """A script that builds a config, with the setting in one of the places where people write it."""
    literal = draw(literals(old))
    comment = lambda: draw(st.sampled_from(["", "", "  # mine", "  # é learning_rate=3", " #"]))  # noqa: E731
    besides = draw(
        st.lists(st.tuples(keys.filter(str.isidentifier), values), max_size=3, unique_by=lambda pair: pair[0])
    )
    besides = [(f"{name}_", value) for name, value in besides]
    way = draw(st.sampled_from(["keyword", "constant", "dictionary", "default", "option", "attribute", "parameter"]))
    lines = [
        "import os",
        "",
        f"text = 'learning_rate={literal}'" if "'" not in literal else "",
        f"x = 1{comment()}",
    ]
    given_as, head = {"keyword": (literal, []), "constant": ("RATE", [f"RATE = {literal}{comment()}"]),
                      "parameter": ("rate", [])}.get(way, (None, []))  # fmt: skip
    if way == "default":
        head = ["class Mine:", f"    learning_rate: object = {literal}{comment()}", "    other: int = 3"]
    if way == "option":
        head = [
            "p = argparse.ArgumentParser()",
            f"p.add_argument('--learning-rate',  default={literal}, help='é'){comment()}",
        ]
    pairs = [(name, repr(value)) for name, value in besides]
    if way == "dictionary":
        inner = [f'    "{name}":  {value},{comment()}' for name, value in [*pairs, (NAME, literal)]]
        head, pairs = ["options = {", *inner, "}"], []
    if given_as is not None:
        pairs.insert(draw(st.integers(0, len(pairs))), (NAME, given_as))
    star = ["**options"] if way == "dictionary" else []
    words_ = [*(f"{name}={value}" for name, value in pairs), *star]
    if draw(st.booleans()):
        call = ["GRPOConfig(", *(f"    {word},{comment()}" for word in words_), ")"]
    else:
        call = [f"GRPOConfig( {', '.join(words_)} ){comment()}"]
    if way == "parameter":
        lines += [
            f"def main(a=1, rate={literal}):{comment()}",
            f"    return {call[0]}",
            *(f"    {line}" for line in call[1:]),
        ]
    else:
        lines += [*head, f"args = {call[0]}", *call[1:]]
    if way == "attribute":
        lines.append(f"args.learning_rate = {literal}{comment()}")
    ending = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    return ending.join([*lines, "train(args)", ""])


def comments_of(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.training
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_python(data: st.DataObject) -> None:
    old = data.draw(values, "old")
    new = data.draw(values.filter(lambda value: value != old), "new")
    text = data.draw(scripts(old), "script")
    edited = after("train.py", text, Change(NAME, old, new))
    changed = [(a, b) for a, b in zip(text.split("\n"), edited.split("\n"), strict=True) if a != b]
    assert len(changed) == 1  # one line, and as many as before
    assert comments_of(text) == comments_of(edited)
    parts = _different(ast.parse(text), ast.parse(edited))
    assert [(ast.literal_eval(a), ast.literal_eval(b)) for a, b in parts] == [(old, new)]


def _different(old: ast.AST, new: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """The largest expressions that differ between two programs, without what is the same in both."""
    if ast.dump(old) == ast.dump(new):
        return []
    parts, others = list(ast.iter_child_nodes(old)), list(ast.iter_child_nodes(new))
    is_value = isinstance(old, (ast.Constant, ast.List, ast.UnaryOp))
    if is_value or not parts or len(parts) != len(others):
        return [(old, new)]
    return [pair for a, b in zip(parts, others, strict=True) for pair in _different(a, b)]
