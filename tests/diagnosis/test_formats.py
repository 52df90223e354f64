"""What people have instead of a log is read; what cannot be read is said to be unreadable, never to be fine."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bisect_cfg.diagnosis import _formats
from bisect_cfg.diagnosis._formats import open_source, sources
from bisect_cfg.diagnosis.explain import NO_FAILURE, UNREADABLE, explain_command, explain_paths

ALIVE = {"loss": 0.0, "grad_norm": 0.3, "reward": 0.3, "reward_std": 0.2, "entropy": 1.1, "frac_reward_zero_std": 0.1}
DEAD = {"loss": 0.0, "grad_norm": 0.0, "reward": 0.0, "reward_std": 0.0, "entropy": 0.001, "frac_reward_zero_std": 1.0}
COLLAPSED = [{"step": i, **(ALIVE if i < 20 else DEAD)} for i in range(60)]
SOUND = [{"step": i, **ALIVE, "reward": 0.3 + i / 100} for i in range(60)]
ERROR = "Traceback (most recent call last):\n  File \"a.py\", line 3, in x\nRuntimeError: 'weight' must be 2-D\n"


def csv(rows: list[dict[str, Any]], separator: str = ",", prefix: str = "train/") -> str:
    names = [name if name == "step" else prefix + name for name in rows[0]]
    return "\n".join(separator.join(map(str, line)) for line in [names, *(row.values() for row in rows)]) + "\n"


def notebook(rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ["Step", *list(rows[0])[1:]])
    body = "".join("<tr>" + "".join(f"<td>{value}</td>" for value in row.values()) + "</tr>" for row in rows)
    page = f"<table><tr>{head}</tr>{body}</table>"
    return json.dumps({"cells": [{"outputs": [{"output_type": "display_data", "data": {"text/html": [page]}}]}]})


FORMATS = {
    "trainer_state.json": lambda rows: json.dumps({"log_history": rows}, indent=2),
    "state.json": lambda rows: json.dumps({"log_history": rows}),
    "history.json": lambda rows: json.dumps(rows),
    "columns.json": lambda rows: json.dumps({name: [row[name] for row in rows] for name in rows[0]}),
    "metrics.jsonl": lambda rows: "".join(
        json.dumps({f"train/{name}": value for name, value in row.items()}) + "\n" for row in rows
    ),
    "metrics.csv": csv,
    "metrics.tsv": lambda rows: csv(rows, "\t"),
    "output.log": lambda rows: "".join(f"{row}\n" for row in rows),
    "table.txt": lambda rows: csv(rows, "\t", "").replace("step\tloss", "Step\tTraining Loss"),
    "run.ipynb": notebook,
    "long.csv": lambda rows: "wall_time,step,tag,value\n" + "".join(
        f"176{row['step']},{row['step']},train/{name},{value}\n"
        for row in rows for name, value in row.items() if name != "step"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_metrics_in_every_shape(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FORMATS[name](COLLAPSED))
    explanation, problems = explain_paths([str(path)])
    assert explanation.matches[0].entry.id == "policy-collapse" and explanation.rows == 60 and not problems
    path.write_text(FORMATS[name](SOUND))
    sound, _ = explain_paths([str(path)])
    assert not sound.matches and sound.status == NO_FAILURE and sound.rows == 60


PRINTED = ["starting", *ERROR.splitlines(), "[rank0]: a line with, a comma"]
TIMES = [f"2025-11-04T08:11:{second:02}Z" for second in range(len(PRINTED))]


def table(order: int) -> str:
    lines = [
        f'{time},trainer-9,"{line.replace(chr(34), chr(34) * 2)}"' for time, line in zip(TIMES, PRINTED, strict=True)
    ]
    return "\n".join(["Date,Host,Message", *lines[::order]]) + "\n"


def records(key: str, clock: str) -> list[dict[str, str]]:
    return [{clock: time, key: line} for time, line in zip(TIMES, PRINTED, strict=True)]


COLLECTED = {
    "extract.csv": table(1),
    "newest-first.csv": table(-1),
    "cloudwatch.json": json.dumps({"events": records("message", "timestamp")}, indent=1),
    "list.json": json.dumps(records("textPayload", "timestamp")),
    "docker.json": "".join(json.dumps({**row, "log": row["log"] + "\n"}) + "\n" for row in records("log", "time")),
    "lines.jsonl": "".join(json.dumps(row) + "\n" for row in records("@message", "@timestamp")),
    "logger.jsonl": "".join(json.dumps(row) + "\n" for row in records("message", "time")[:1])
    + json.dumps({"time": TIMES[1], "level": "ERROR", "message": "training failed", "exc_info": ERROR})
    + "\n",
    "unknown.csv": "a,b\n" + ERROR,
}


@pytest.mark.parametrize("name", COLLECTED)
def test_what_a_collector_of_logs_has_kept(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(COLLECTED[name])
    explanation, problems = explain_paths([str(path)])
    assert explanation.matches[0].entry.id == "zero3-empty-weight" and not problems


def test_a_notebook_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.ipynb"
    lines = [
        "\x1b[0;31mKeyError\x1b[0m                  Traceback (most recent call last)",
        "\x1b[0;31mKeyError\x1b[0m: 'prompt'",
    ]
    path.write_text(json.dumps({"cells": [{"outputs": [{"output_type": "error", "traceback": lines}]}]}))
    explanation, _ = explain_paths([str(path)])
    assert explanation.matches[0].entry.id == "missing-prompt-column"


@pytest.mark.parametrize("order", [("run.out", "run.err"), ("run.err", "run.out")])
def test_two_streams_of_a_run(order: tuple[str, str], tmp_path: Path) -> None:
    """Rows of the one file do not tell that an error of the other was survived."""
    (tmp_path / "run.out").write_text(FORMATS["output.log"](SOUND))
    (tmp_path / "run.err").write_text(ERROR)
    explanation, _ = explain_paths([str(tmp_path / name) for name in order])
    assert explanation.matches[0].entry.id == "zero3-empty-weight"
    assert explanation.error is not None and (explanation.error.file, explanation.error.number) == ("run.err", 3)


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "checkpoint-60" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"log_history": SOUND}))
    (tmp_path / "requirements.txt").write_text("torch==2.9.0\n")
    for rank in range(3):
        (tmp_path / f"rank{rank}.log.gz").write_bytes(gzip.compress(b"fine\n" if rank != 1 else ERROR.encode()))
    explanation, problems = explain_paths([str(tmp_path)])
    assert explanation.matches[0].entry.id == "zero3-empty-weight" and explanation.rows == 60 and not problems
    assert explanation.error is not None and explanation.error.file == "rank1.log.gz"
    (tmp_path / "rank2.log").write_bytes(os.urandom(5000))
    assert explain_command(str(tmp_path)) == 0
    assert "rank2.log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20),
        ("events.out.tfevents.1.node", b"\x18\x00\x00\x00\x00\x00\x00\x00" * 50),
        ("run-abc.wandb", b":W&B" + bytes(300)),
        ("weights.bin", bytes(range(256)) * 40),
        ("log.zip", b"PK\x03\x04" + bytes(100)),
        ("log.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 50),
    ],
)
def test_what_cannot_be_read_is_not_fine(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert explain_command(str(path)) == UNREADABLE
    said = capsys.readouterr()
    assert name in said.err and not said.out


def test_a_folder_without_a_log_and_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_command(str(tmp_path)) == UNREADABLE
    (tmp_path / "empty.log").touch()
    assert explain_command(str(tmp_path / "empty.log")) == NO_FAILURE
    assert "not one line" in capsys.readouterr().out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text(ERROR)
    assert explain_command(str(tmp_path / "a.log"), as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == 0 and told["error"]["line"] == 3 and told["matches"][0]["id"] == "zero3-empty-weight"
    assert told["matches"][0]["sources"] and told["signature"]["kind"] == "exception"


def test_a_table_of_very_many_rows_is_read_evenly_and_its_end_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_formats, "MOST_LINES", 400)
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,reward\n" + "".join(f"{at},0.1,{at / 5000}\n" for at in range(5000)))
    rows = open_source(str(path)).rows
    steps = [int(row.values["step"]) for row in rows]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-256:] == [*range(4744, 5000)]
    assert len(steps) < 700 and max(after - before for before, after in itertools.pairwise(steps)) <= 32


def test_records_of_a_logger_with_metrics_and_a_traceback(tmp_path: Path) -> None:
    rows = "".join(
        json.dumps({"ts": "2025", "lvl": "info", "msg": "loss", "step": at, "loss": 0.9, "lr": 1e-5}) + "\n"
        for at in range(9)
    )
    trace = 'Traceback (most recent call last):\n  File "/app/c.py", line 61, in on_step_end\n    assert ok\n'
    trace += "AssertionError: mix\n"
    path = tmp_path / "run.jsonl"
    path.write_text(rows + json.dumps({"ts": "2025", "lvl": "error", "msg": "uncaught exception", "exc": trace}) + "\n")
    found = explain_paths([str(path)])[0]
    assert found.error is not None and found.error.text == "AssertionError: mix" and found.rows == 9


def test_docker_s_records_in_a_file_that_is_called_json(tmp_path: Path) -> None:
    path = tmp_path / "container.json"
    said = ["Traceback (most recent call last):\n", '  File "/w/a.py", line 2, in f\n', "AttributeError: no writer\n"]
    path.write_text(
        "".join(json.dumps({"log": line, "stream": "stderr", "time": "2025-07-19T10:20"}) + "\n" for line in said)
    )
    found = explain_paths([str(path)])[0]
    assert found.error is not None and found.error.text == "AttributeError: no writer"


def test_a_folder_of_mlflow_and_one_of_a_table(tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "1" / "abc"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("end_time: 1\n")
    for name, first in (("reward", 0.4), ("grad_norm", 0.3), ("eval_win_rate", 0.5)):
        lines = (f"17689114800{at:02} {first + at / 100} {at}\n" for at in range(40))
        (run / "metrics" / name).write_text("".join(lines))
    found, problems = sources([str(tmp_path / "mlruns")])
    assert not problems and [len(source.rows) for source in found] == [40]
    assert {"reward", "grad_norm"} <= found[0].rows[0].values.keys()
    table = tmp_path / "rllib" / "progress.csv"
    table.parent.mkdir()
    lines = [f"{0.4 + at / 100},{at},0.01,{1.2 - at / 100}" for at in range(40)]
    table.write_text("episode_reward_mean,training_iteration,kl,entropy\n" + "\n".join(lines) + "\n")
    (table.parent / "words.csv").write_text("prompt,answer\na,b\n")
    found, problems = sources([str(table.parent)])
    assert not problems and len(found) == 1
