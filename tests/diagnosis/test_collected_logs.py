"""Logs that the entries were not written from: how many are answered rightly, and none wrongly where nothing failed."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_paths, explain_text
from tests.diagnosis.collected import AFTER, BEFORE, HEALTHY, SHAPES, Report


def judged(report: Report) -> str:
    """How the first match answers a report."""
    matches = explain_text(report.log).matches
    if not matches:
        return "nothing"
    first = matches[0].entry.id
    return "right" if first in report.right else "related" if first in report.related else "wrong"


@pytest.mark.parametrize("reports", [BEFORE, AFTER], ids=["before", "after"])
def test_most_are_answered_rightly_and_hardly_any_wrongly(reports: list[Report]) -> None:
    answers = {report.source: judged(report) for report in reports}
    counts = Counter(answers.values())
    assert counts["right"] >= 0.9 * len(reports), {source: how for source, how in answers.items() if how != "right"}
    assert counts["wrong"] <= 0.03 * len(reports), [source for source, how in answers.items() if how == "wrong"]


@pytest.mark.parametrize("report", SHAPES, ids=lambda report: report.source)
def test_a_failure_in_any_shape(report: Report) -> None:
    assert judged(report) == "right", [match.entry.id for match in explain_text(report.log).matches]


def test_there_are_enough() -> None:
    assert len(BEFORE) + len(AFTER) >= 60 and len(HEALTHY) >= 60


@pytest.mark.parametrize("log", HEALTHY.values(), ids=HEALTHY.keys())
def test_nothing_is_found_where_nothing_failed(log: str) -> None:
    found = explain_text(log)
    assert not found.matches, found.matches[0].entry.id
    assert found.status == NO_FAILURE, found.error


@pytest.mark.parametrize("report", [*BEFORE[::3], *AFTER[::3]], ids=lambda report: report.source)
def test_every_failure_is_shown_whatever_is_known_of_it(report: Report) -> None:
    found = explain_text(report.log)
    assert found.error is not None or found.matches


PROGRESS = "".join(f"\r {i % 100}%|####      | {i}/99999 [00:01<00:09, 9.55s/it]\n" for i in range(25_000))


@pytest.mark.parametrize("report", AFTER[::6], ids=lambda report: report.source)
def test_the_same_answer_in_any_wrapping(report: Report, tmp_path: Path) -> None:
    plain = [match.entry.id for match in explain_text(report.log).matches][:1]
    wrapped = {
        "progress": (PROGRESS * 2 + report.log + PROGRESS * 2).encode(),
        "ranks": "".join(
            f"[rank{rank}]: {line}\n"
            for line in report.log.splitlines()
            for rank in range(8)
            if not line.startswith("[rank")
        ).encode()
        or report.log.encode(),
        "UTF-16": report.log.encode("utf-16"),
        "gzip": gzip.compress(report.log.encode()),
        "box": "".join(
            f"│ {line[at : at + 76]:<76} │\n"
            for line in report.log.splitlines()
            for at in range(0, max(len(line), 1), 76)
        ).encode(),
    }
    for name, content in wrapped.items():
        if name == "ranks" and "[rank" in report.log:
            continue
        path = tmp_path / "train.log"
        path.write_bytes(content)
        explanation, _ = explain_paths([str(path)])
        assert [match.entry.id for match in explanation.matches][:1] == plain, name
