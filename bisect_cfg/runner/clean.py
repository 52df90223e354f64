"""Cleaning the folder of a run that is over: a log of bounded length, no secrets in any text, no large models."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from bisect_cfg.common.json_files import private, write_text
from bisect_cfg.probe import redact
from bisect_cfg.probe.protocol import EVENTS_FILE, STACKS_FILE
from bisect_cfg.probe.saves import OUTPUT
from bisect_cfg.runner.environments import size_of

LOG_HEAD, LOG_TAIL = 1 << 20, 3 << 20
"""Bytes of a log that are kept: how it began, and what came before its end. Signatures are read from less."""

KEPT_BYTES = 256 << 20
"""What a trial's callbacks and stages saved is kept up to this size, for a look at it; models of each trial would fill
the disk."""


def clean_folder(folder: Path) -> None:
    """Shorten the log of the run in `folder`, take secrets out of it, of its configuration and of the traces, and
    models out of its output.

    Nothing is raised: on a full disk a text that cannot be rewritten is emptied instead.
    """
    with contextlib.suppress(OSError):
        _shorten(folder / "log.txt")
    for path in (folder / "log.txt", folder / STACKS_FILE, *folder.glob("config.*")):
        _rewrite(path, redact.scrub)
    for path in (folder / EVENTS_FILE, *folder.glob("children/*.jsonl")):
        _rewrite(path, lambda text: "\n".join(map(_scrub_row, text.split("\n"))))
    with contextlib.suppress(OSError):
        if size_of(folder / OUTPUT) > KEPT_BYTES:
            shutil.rmtree(folder / OUTPUT, ignore_errors=True)


def _shorten(path: Path) -> None:
    with open(path, "r+b", opener=private) as log:
        size = os.fstat(log.fileno()).st_size
        if size <= LOG_HEAD + LOG_TAIL:
            return
        head = log.read(LOG_HEAD)
        head = head[: head.rfind(b"\n") + 1] or head
        log.seek(size - LOG_TAIL)
        _, _, tail = log.read(LOG_TAIL).partition(b"\n")  # the rest of a line says little
        log.seek(log.truncate(len(head)))
        log.write(f"\n[... {size - len(head) - len(tail)} bytes left out here ...]\n\n".encode() + tail)


def _scrub_row(line: str) -> str:
    """A line of JSON without the secrets in its texts; it stays JSON."""
    try:
        row = json.loads(line)
        masked = redact.mask(row)
        return line if masked == row else json.dumps(masked)
    except (ValueError, RecursionError):
        return str(redact.scrub(line))


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Rewrite a text in its place if `change` changes it; a link is not followed."""
    if path.is_symlink() or not path.is_file():
        return
    try:
        with open(path, "rb", opener=private) as stream:
            text = stream.read().decode("utf-8", "surrogateescape")
        changed = change(text)
        if changed != text:
            write_text(path, changed)
    except OSError:
        with contextlib.suppress(OSError):  # what cannot be made clean is not kept
            os.truncate(path, 0)
