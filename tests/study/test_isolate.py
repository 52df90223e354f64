"""What the search is told besides the settings: the lines of code that a failure came through."""

from __future__ import annotations

from dataclasses import replace

from bisect_cfg.probe.protocol import Raised
from bisect_cfg.study.isolate import FRAMES_READ, _said_of
from tests.report.made import DIED, run


def test_lines_of_the_innermost_frames_are_read(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text("".join(f"use(setting_{number})\n" for number in range(1, 10)))
    frames = [(str(path), number, "f") for number in range(1, 10)]
    said = _said_of(run(tmp_path, replace(DIED, message="it died"), Raised("ValueError", "no good", frames)))
    assert said.startswith("it died\nno good")
    assert [f"setting_{number}" in said for number in range(1, 10)] == [False] * (9 - FRAMES_READ) + [
        True
    ] * FRAMES_READ
    assert _said_of(run(tmp_path, DIED)).strip() == "SIGFPE"
