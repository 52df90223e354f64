"""Values, counts and durations as people read them, and texts of others made safe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.common import words

NAMES = ["lr", "bf16", "optim", "beta", "seed", "epochs", "warmup", "clip"]


def test_values_are_written_as_the_user_would() -> None:
    shown = [words.show(value) for value in (None, 5e-6, True, "cosine", {"$dtype": "float16"}, {"$secret": "***"})]
    assert shown == ["default", "5e-06", "True", "cosine", "float16", "***"]
    assert words.show(None, "env.MODE") == "not set"
    assert words.show({"a": [{"$dtype": "int8"}, {"$object": "Adam"}]}) == "{'a': ['int8', 'Adam(...)']}"


def test_nothing_that_a_terminal_would_obey_is_shown() -> None:
    assert words.clean("a\x1b[31mred\x1b[0m \x07\u202eb") == "ared b"
    assert words.shown_safely("\x1b[31mours\x1b[0m\x1b]0;theirs\x07") == "\x1b[31mours\x1b[0m"
    assert words.clean(f"token=hf_{'a1B2' * 8}") == "token=***"


@given(st.text())
def test_whatever_a_text_holds_no_control_is_left_but_line_ends_and_tabs(text: str) -> None:
    cleaned = words.clean(text)
    assert all(letter in "\n\t" or ord(letter) >= 32 and not 0x7F <= ord(letter) <= 0x9F for letter in cleaned)
    assert words.clean(cleaned) == cleaned


def test_reasons_are_said_once() -> None:
    assert words.with_reasons({"a": "it is a place", "b": "it is chance", "c": "it is a place"}) == (
        "a, c (it is a place); b (it is chance)"
    )


def test_a_subset_in_the_fewest_words() -> None:
    said = {number: words.subset(NAMES[:number], NAMES) for number in (0, 1, 4, 7, 8)}
    assert said == {
        0: "the good configuration", 1: "only lr", 4: "yours without seed, epochs, warmup, clip",
        7: "yours without clip", 8: "your configuration",
    }  # fmt: skip
    many = [f"s{number}" for number in range(20)]
    assert words.subset(many[:7], many) == "only 7 settings: s0, s1, s2, s3, ..."


@pytest.mark.parametrize(("seconds", "said"), [
    (0.64, "0.6 s"), (47.2, "47 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (119.7, "2 min 0 s"),
])  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


def test_counts_and_shares() -> None:
    assert (words.count(1, "trial"), words.count(2, "trial"), words.percent(0.6316)) == ("1 trial", "2 trials", "63 %")


def test_the_program_is_called_as_the_user_called_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("env", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / words.PROGRAM).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    module = str(tmp_path / "bisect_cfg/__main__.py")
    for path, called, said in (
        ("path", "path/bisect-cfg", "bisect-cfg"),
        ("path", "env/bisect-cfg", "env/bisect-cfg"),
        ("path", module, "bisect-cfg"),
        ("none", "env/bisect-cfg", "env/bisect-cfg"),
        ("none", module, f"{sys.executable} -m bisect_cfg"),
        ("none", "train.py", "bisect-cfg"),
    ):
        monkeypatch.setenv("PATH", str(tmp_path / path))
        monkeypatch.setattr(sys, "argv", [called])
        assert words.program() == said
