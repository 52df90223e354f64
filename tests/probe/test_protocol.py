"""What the tool and the probe say to each other comes across as it was said."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.probe import children, protocol
from bisect_cfg.probe.protocol import (
    Event,
    Message,
    Orders,
    Reply,
    Request,
    event_row,
    read,
    to_json,
)
from bisect_cfg.runner.traces import read_event

PROBE = Path(protocol.__file__).parent

ENCODED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


def messages(cls: type) -> st.SearchStrategy:
    """Instances of a message, with all its fields or with its defaults."""
    hints = typing.get_type_hints(cls, vars(protocol))
    wanted, may_lack = {}, {}
    for one in dataclasses.fields(cls):
        needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        (wanted if needed else may_lack)[one.name] = values(hints[one.name])
    return st.fixed_dictionaries(wanted, optional=may_lack).map(lambda given: cls(**given))


def values(hint: object) -> st.SearchStrategy:
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is object:
        return ENCODED
    if kind is tuple:
        return st.tuples(*map(values, parts))
    if kind is list:
        return st.lists(values(parts[0]), max_size=2)
    if kind is dict:
        return st.dictionaries(st.text(max_size=3), values(parts[1]), max_size=2)
    if parts:
        return st.one_of(*map(values, parts))
    if dataclasses.is_dataclass(hint):
        return messages(hint)
    if hint is float:
        return st.floats(allow_nan=False)
    return st.none() if hint is type(None) else st.from_type(hint)


@pytest.mark.parametrize("cls", Event.known.values(), ids=Event.known)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_every_event_is_read_back_as_it_was_written(cls: type[Event], data: st.DataObject) -> None:
    event = data.draw(messages(cls))
    found = read_event(json.loads(json.dumps(event_row(event, 1.25))))
    assert found == event and type(found) is cls and found.time == 1.25


@pytest.mark.parametrize("family", [Orders, Request, Reply])
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_orders_questions_and_answers_come_across(family: type[Message], data: st.DataObject) -> None:
    for cls in family.known.values():
        message = data.draw(messages(cls))
        assert read(family, json.loads(json.dumps(to_json(message)))) == message


def test_the_probe_writes_no_other_events_and_all_of_these() -> None:
    written = set()
    for path in PROBE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("record.event", "protocol.event_row"):
                name = ast.unparse(node.args[0]).partition("(")[0]
                written.add(getattr(protocol, name.removeprefix("protocol."), name))
    elsewhere = {protocol.Over, protocol.Unwatched}  # below
    written.discard("happened")  # in `record.event` itself
    assert written | elsewhere == set(Event.known.values())


def test_what_is_written_where_nothing_can_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(children.state, "folder", str(tmp_path))
    monkeypatch.setattr(children, "hold", lambda code: None)
    children.over(-8)
    assert read_event(json.loads((tmp_path / protocol.EVENTS_FILE).read_text())) == protocol.Over(-8, os.getpid())


def test_the_helper_that_asks_gdb_finds_it() -> None:
    command = [sys.executable, "-S", "-E", str(PROBE / "native.py"), "1", "/no/such/folder", "gdb"]
    assert subprocess.run(command, timeout=60).returncode == 0  # process 1 did not start it: nothing to do


@pytest.mark.parametrize("row", [
    None, [], 3, "x", {}, {"event": 3}, {"event": ["a"]}, {"event": "of a later version", "time": 1.0},
    {"event": "exception"}, {"event": "over", "code": True}, {"event": "over", "code": 1, "time": "x"},
    {"event": "exception", "type": "E", "message": "m", "frames": [["a", 3]]},
    {"event": "opened", "path": "x", "mode": "r", "stamp": [1, 2]}, {"event": "config"},
    {"event": "train_begin", "modules": 3}, {"event": "resolved", "kind": "args", "index": 0, "values": []},
])  # fmt: skip
def test_what_is_no_event_is_passed_over(row: object) -> None:
    assert read_event(row) is None


def test_an_event_of_another_version_lacks_some_fields_and_has_others() -> None:
    row = {"event": "train_begin", "time": 2, "own_files": ["a.py"], "world_size": None, "args": 1}
    found = read_event(row)
    assert (found.args, found.world_size, found.first, found.time) == (1, 1, True, 2)
