"""Tracebacks of interleaved ranks: what is skipped for speed is what says nothing."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.diagnosis import _logs

WHO = st.sampled_from(["", "[rank0]: ", "[rank1]: ", "(pid=7) ", "2026-11-21 10:00:00,123 ", "\x1b[31m", "\ufeff"])
SAID = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 3, in main',
        '  File "/b/trl/grpo_trainer.py", line 30, in _generate',
        "    return self.model(inputs)",
        "    raise ValueError(message)",
        "ValueError: 3 is wrong",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "\x1b[1mKeyError\x1b[0m: 'text'",
        "AssertionError",
        "AssertionError:",
        "Ошибка: this is prose",
        "The answer is: 7",
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
        "{'loss': 0.1, 'grad_norm': 0.2}",
        "train.sh: line 3:   41 Floating point exception(core dumped) python train.py",
        "",
        "\t^^^^^",
    ]
)
END = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])
LINE = st.builds(lambda who, said, end: [who + said + end], WHO, SAID, END)
RAISED = st.sampled_from(
    [
        "AssertionError",
        "\x1b[1mKeyError\x1b[0m: 'text'",
        "a.b.StopIteration",
        "Fehlerä: x",
        "KeyboardInterrupt:",
    ]
)
TRACEBACK = st.builds(
    lambda who, source, raised, end: [
        who + said + end
        for said in (
            "Traceback (most recent call last):",
            '  File "/a/train.py", line 3, in main',
            source,
            raised,
        )
    ],
    WHO,
    SAID,
    RAISED,
    END,
)


def read(text: str) -> _logs.LogEvidence:
    return _logs.read(io.BytesIO(text.encode()))


@given(st.lists(LINE | TRACEBACK, max_size=12))
def test_skipping_lines_changes_nothing(parts: list[list[str]]) -> None:
    text = "".join(line for part in parts for line in part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_logs, "_OF_TRACEBACK", re.compile(rb"(?s)."))
        every_line = read(text)
    assert read(text) == every_line


def test_the_end_is_found_between_the_lines_of_another_rank() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 3, in main',
        "    step()",
        "ValueError: 3",
    ]
    other = [line.replace("3", "4") for line in lines]
    evidence = read("".join(f"[rank0]: {one}\n[rank1]: {two}\n" for one, two in zip(lines, other, strict=True)))
    assert [(one.type_name, one.message, one.line) for one in evidence.tracebacks] == [
        ("ValueError", "3", 7),
        ("ValueError", "4", 8),
    ]
    assert all(one.frames == [("/a/train.py", "main")] for one in evidence.tracebacks)


def test_a_traceback_that_never_ends_is_given_up() -> None:
    begun = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in main\n'
    assert read(begun + "prose\n" * (_logs.LONGEST_PAUSE - 1) + "ValueError: x\n").tracebacks
    assert not read(begun + "prose\n" * _logs.LONGEST_PAUSE + "ValueError: x\n").tracebacks
