"""Whatever people have of a run is read in bounded memory, or refused with a reason."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from bisect_cfg.common.failures.excerpt import read_excerpt
from bisect_cfg.explain import KNOWN, NO_FAILURE, UNREADABLE, Explanation, explain_readings
from bisect_cfg.explain.reader import Unreadable, open_sources, read
from bisect_cfg.explain.text import as_json, render

ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/opt/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py", line 9, in train\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
ROW = "{'loss': 0.01, 'grad_norm': 0.3, 'learning_rate': 1e-06, 'reward': 0.3, 'reward_std': 0.1, 'entropy': 0.4}\n"


ROWS = [{"step": step, "loss": 0.1, "grad_norm": float("nan")} for step in range(9)]


def as_lines(records: Iterable[dict]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def explained(*paths: Path) -> Explanation:
    return explain_readings(read(map(str, paths))[0])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.log", ERROR.encode()),
        ("train.log.gz", gzip.compress(ERROR.encode(), mtime=0)),
        ("train.log.xz", lzma.compress(ERROR.encode())),
        ("train.log.bz2", bz2.compress(ERROR.encode())),
        ("utf16.log", ERROR.encode("utf-16")),
        ("utf16-without-a-mark.log", ERROR.encode("utf-16-le")),
        ("collected.jsonl", as_lines({"ts": 1, "message": line} for line in ERROR.splitlines()).encode()),
        ("run.ipynb", json.dumps({"cells": [{"outputs": [{"text": ERROR.splitlines(True)}]}]}).encode()),
        ("error.json", json.dumps({"message": {"message": "x", "extraInfo": {"py_callstack": ERROR}}}).encode()),
    ],
)  # fmt: skip
def test_an_error_in_every_format(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = explained(path)
    assert found.status == KNOWN and found.lead is not None and found.lead.entry.id == "gpu-out-of-memory"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer_state.json", json.dumps({"log_history": ROWS})),
        ("metrics.csv", "step,run - train/loss,run - train/grad_norm\n" + "".join(f"{i},0.1,nan\n" for i in range(9))),
        ("metrics.jsonl", as_lines(ROWS)),
    ],
)  # fmt: skip
def test_metrics_in_every_format(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    found = explained(path)
    assert found.rows == 9 and found.lead is not None and found.lead.entry.id == "non-finite-gradient"


@pytest.mark.parametrize(
    "outputs",
    [
        "7",
        "[null]",
        '[{"text": [null]}]',
        '[{"text": 1}]',
        '[{"output_type": "error", "traceback": 7}]',
        '[{"data": "x"}]',
    ],
)
def test_a_notebook_of_wrong_types_is_read(outputs: str, tmp_path: Path) -> None:
    path = tmp_path / "run.ipynb"
    path.write_text(f'{{"cells": [{{"outputs": {outputs}}}]}}')
    assert explained(path).status in (1, NO_FAILURE)


def test_an_integer_beyond_every_float_is_infinite(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps([{"loss": 10**309, "grad_norm": -(10**400)}] * 9))
    assert explained(path).rows == 9


def test_no_secret_is_repeated_anywhere(tmp_path: Path) -> None:
    token, password = "hf_Ab3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zBcD", "Sup3rS3cretPw"
    path = tmp_path / "train.log"
    typed = f"$ python train.py --token {token} --x password: {password}\n"
    path.write_text(
        f'{typed}Traceback (most recent call last):\n  File "train.py", line 2, in f\nRuntimeError: {token} x\n'
    )
    found = explained(path)
    said = as_json(found) + render(found, everything=True)
    assert token not in said and password not in said and "bisect-cfg bisect train.py" in said


def test_a_folder_of_64_ranks_is_one_run(tmp_path: Path) -> None:
    for rank in range(64):
        text = ROW * 20 + (
            ERROR if rank == 37 else "[E ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout\n"
        )
        (tmp_path / f"rank{rank:02}.log").write_text(text)
    (tmp_path / "requirements.txt").write_text("torch==2.6\n")
    found = explained(tmp_path)
    assert found.lead is not None and found.lead.entry.id == "gpu-out-of-memory" and found.error is not None
    assert found.error.file == "rank37.log" and found.lines == 64 * 21 + 3


def test_a_compressed_log_that_was_cut_off_ends_there(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress((ROW * 9 + ERROR + os.urandom(50_000).hex()).encode())[:-9_000])
    assert explained(path).status == KNOWN


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.gz", gzip.compress(b"x" * 99, mtime=0)[:12] + bytes(range(200, 250))),
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(99)),
        ("a.bin", bytes(range(256)) * 9),
        ("a.gz", b"\x1f\x8b\x08" + bytes(9)),
    ],
)
def test_what_cannot_be_read_is_said(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(Unreadable, match="not text|unpacked"):
        open_sources([str(path)])


def test_a_pipe_a_device_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(Unreadable, match="pipe|device|no log"):
            open_sources([str(path)])


def test_a_long_log_is_read_in_little_memory_and_counted() -> None:
    class Endless(io.RawIOBase):
        left = 100

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return (ERROR if self.left == 50 else "").encode() + block if self.left >= 0 else b""

    block = ROW.encode() * 9000
    tracemalloc.start()
    try:
        found = read_excerpt(Endless())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.count == 100 * 9000 + 4 and not found.whole
    assert any("CUDA out of memory" in line.text for line in found.lines)
    assert len(found.lines) < 40_000 and most < 20 * len(block), most


@pytest.mark.parametrize("how", ["--all", "--json"])
@pytest.mark.parametrize("name", ["evil\x1b[31m\u202e.log", "two\nlines.log"])
def test_only_printable_text_comes_out(name: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f"\x1b]0;owned\x07{ERROR}\u202e\ufffe\ue000KeyError: '\x1b[2J\x9b31m'\n")
    command = [sys.executable, "-m", "bisect_cfg", "explain", str(path), how]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONUTF8": "1"})
    said = done.stdout + done.stderr
    assert done.returncode in (KNOWN, NO_FAILURE, UNREADABLE, 1) and all(
        one == "\n" or one.isprintable() for one in said
    )
