"""Data in which errors are told of is no log; the records of a collector of logs are one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.diagnosis._data_files import data_in_json, of_columns, of_runs
from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_paths, explain_text
from tests.diagnosis.collected import AFTER, BEFORE

LAYOUTS: dict[str, Callable[[Sequence[dict]], str]] = {
    "a list": lambda records: json.dumps(records),
    "a list, indented": lambda records: json.dumps(records, indent=2),
    "a line each": lambda records: "".join(f"{json.dumps(record)}\n" for record in records),
    "a service's answer": lambda records: json.dumps({"total": len(records), "next": None, "items": records}, indent=1),
}
TOLD: dict[str, Callable[[str], dict]] = {
    "a ticket": lambda log: {"id": 7, "title": "it died", "state": "closed", "body": log, "labels": ["bug"]},
    "a talk": lambda log: {"role": "user", "content": log},
    "a channel": lambda log: {"type": "message", "user": "U7", "text": log, "ts": "1763.1"},
    "a data set": lambda log: {
        "question": f"Why do I get this?\n{log}",
        "answer": "The rate is too high.",
        "source": "x",
    },
}


@settings(deadline=None, max_examples=60)
@given(st.sampled_from((*BEFORE, *AFTER)), st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(TOLD)))
def test_no_failure_that_data_tell_of_is_told_as_one(report, layout: str, kind: str) -> None:
    found = explain_text(LAYOUTS[layout]([TOLD[kind](report.log)] * 3))
    assert found.status == NO_FAILURE and not found.matches


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_the_records_of_a_log_are_no_such_data(layout: str) -> None:
    line = {"level": "error", "message": "torch.OutOfMemoryError: CUDA out of memory.", "time": "2026-03-02T10:00:00Z"}
    assert data_in_json(LAYOUTS[layout]([line] * 3), whole=True) == ""


def test_the_answer_of_a_server_that_failed_is_read() -> None:
    found = explain_text('{"object": "error", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}\n')
    assert found.status != NO_FAILURE


@given(st.text(), st.booleans())
def test_any_text_can_be_asked(text: str, whole: bool) -> None:
    assert isinstance(data_in_json(text, whole), str)
    assert isinstance(data_in_json(f"[{text}", whole), str)


def test_a_part_of_a_long_list_is_told_by_its_first_records() -> None:
    text = json.dumps([{"question": "2 + 2?", "answer": "4"}] * 50)
    assert data_in_json(text[:-30], whole=False) == "rows of a data set"
    assert data_in_json(text[:300] + "\n$ python train.py\n", whole=True) == ""


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["run", "state", "learning_rate", "final_reward"], "a table of runs"),
        (["Step", "state", "reward"], ""),
        (["id", "title", "status"], "a table of tickets"),
        (["timestamp", "status", "message"], ""),
        (["run", "state"], ""),
    ],
)
def test_tables_by_their_columns(names: list[str], kind: str) -> None:
    assert of_columns(names) == kind


def test_a_table_with_a_line_for_each_run_is_no_series(tmp_path: Path) -> None:
    header = "run_name,learning_rate,reward,loss\n"
    table = tmp_path / "sweep.csv"
    table.write_text(header + "a,1e-6,0.61,0.1\nb,1e-4,0.0,nan\nc,5e-6,0.0,nan\nd,1e-3,0.0,nan\n")
    assert explain_paths([str(table)])[0].status == NO_FAILURE
    lines = [{"name": "one", "step": "1"}, {"name": "one", "step": "2"}]
    assert not of_runs(["name", "step"], lines)


def test_a_value_is_called_by_its_file_where_tensorboard_leaves_it_out(tmp_path: Path) -> None:
    lines = [f"{1.7e9 + step},{step},{0.5 if step < 60 else 0.0}\n" for step in range(120)]
    named, unnamed = tmp_path / "grpo_reward.csv", tmp_path / "export.csv"
    for path in (named, unnamed):
        path.write_text("Wall time,Step,Value\n" + "".join(lines))
    assert explain_paths([str(named)])[0].matches
    assert not explain_paths([str(unnamed)])[0].matches
