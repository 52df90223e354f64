"""What people have of a run, read in bounded memory: logs, compressed or in UTF-16, metrics as files, a whole folder.

`read` makes of each path a `Reading`: the lines that may matter, the events among them, the rows of metrics. What
cannot be read is an `Unreadable` with the reason and what to give instead, never an empty log.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import gzip
import io
import json
import lzma
import os
import re
import shlex
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bisect_cfg.common.conditions import LOOKED_AT
from bisect_cfg.common.failures.excerpt import LogLine, read_excerpt
from bisect_cfg.common.json_files import Json
from bisect_cfg.common.text import plain
from bisect_cfg.explain.events import Event, find_events
from bisect_cfg.explain.metric_facts import Rows
from bisect_cfg.explain.not_a_log import kind_of
from bisect_cfg.probe.redact import scrub

LARGEST_JSON = 1 << 26
"""Bytes of a JSON file that is read whole; a trainer's state of a hundred thousand rows has 40 MB."""

MOST_FILES, DEPTH = 64, 8
"""Files of a folder that are read (the newest first: a launcher writes one or two for each rank), and how deep."""

PEEK = 1 << 13
"""Bytes by which the kind of a file is found out."""

STRANGE, UNDECODABLE = 0.1, 0.2
"""Shares of control bytes, and of characters that are not UTF-8 beside one of them, beyond which a file is binary: a
log may hold a page of stray ones."""

PART = 1 << 13
"""Bytes or characters that are unpacked or decoded at a time."""

HALF_ZERO = 0.8
"""ASCII in UTF-16 has a zero in every second byte: in this share of them at least."""

_LOGS = (".log", ".out", ".err", ".txt", ".stdout", ".stderr")
_METRICS = ("trainer_state.json", "trainer_log.jsonl", "log_history.json", "metrics.jsonl", "logging.jsonl")
_NO_LOGS = re.compile(r"requirements|merges\.txt|vocab|license|readme|tokens|constraints", re.IGNORECASE)
_PASSED_OVER = {".git", "__pycache__", "site-packages", ".venv"}
_MESSAGES = ("message", "msg", "log", "textPayload", "line")
"""What collectors of logs call the printed line in their records."""

_KINDS = {
    b"\x89PNG": "a picture", b"\x7fELF": "a program", b"PAR1": "a Parquet table", b"SQLite": "a database",
    b"\x80": "a pickle", b"%PDF": "a PDF document", b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
}  # fmt: skip


_PACKED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
_SPECIAL = (
    (stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISDIR, "a folder"),
)  # fmt: skip


class Unreadable(Exception):
    """A file that says nothing to us; the text says why, and what to give instead."""


@dataclass
class Source:
    """One file, opened: its text as a stream, or the rows of metrics that it holds; `name` is "" for the only one."""

    name: str
    stream: BinaryIO | None = None
    rows: list[dict[str, Json]] = field(default_factory=list)
    file: BinaryIO | None = None


@dataclass
class Reading:
    """One file, read to its end.

    Attributes:
        name: of the file, "" where it is the only one.
        lines: what is kept of its lines.
        count: how many lines it has.
        rows: its rows of metrics.
        events: the failures that it prints.
        not_a_log: what it is, if it is no log; then it has no events.
        ends: the text of its beginning and its end.
    """

    name: str
    lines: Sequence[LogLine]
    count: int
    rows: Rows
    events: list[Event]
    not_a_log: str
    ends: str


def read(paths: Iterable[str]) -> tuple[list[Reading], list[str]]:
    """Reads what the paths name ("-": standard input), and says what could not be read.

    Raises:
        Unreadable: nothing of it can be read.
    """
    sources, problems = open_sources(paths)
    readings = [read_source(source) for source in sources]
    for source in sources:
        if source.file is not None:
            source.file.close()
    return readings, problems


def read_source(source: Source) -> Reading:
    """Reads one file to its end."""
    rows = rows_of(source)
    if source.stream is None:
        return Reading(source.name, [], 0, rows, [], "", "")
    excerpt = read_excerpt(source.stream, rows.feed)
    text = "\n".join(line.shown for line in excerpt.lines)
    ends = text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]}\n{text[-LOOKED_AT:]}"
    no_log = kind_of(ends, excerpt.whole and len(text) <= 2 * LOOKED_AT)
    events = [] if no_log else find_events(excerpt.lines, source.name)
    return Reading(source.name, excerpt.lines, excerpt.count, rows, events, no_log, ends)


def rows_of(source: Source) -> Rows:
    """The rows that a file of metrics holds; those of a log are added as it is read."""
    rows = Rows()
    for number, values in enumerate(source.rows, 1):
        text = ", ".join(f"{name}={value}" for name, value in values.items() if isinstance(value, (int, float)))
        rows.add(values, number, text)
    return rows


def open_sources(paths: Iterable[str]) -> tuple[list[Source], list[str]]:
    """Opens what the paths name, metrics first and files of errors last, as they would have been printed.

    Raises:
        Unreadable: nothing of it can be read.
    """
    opened: list[Source] = []
    problems: list[str] = []
    paths = list(paths)
    several = len(paths) > 1 or (paths[0] != "-" and os.path.isdir(paths[0]))
    for given in paths:
        folder = given != "-" and os.path.isdir(given)
        members = _members(Path(given)) if folder else [given]
        if not members:
            problems.append(f"{given}: there is no log in this folder that can be read, and no file of metrics")
        for member in map(str, members):
            try:
                source = open_source(member)
            except Unreadable as error:
                problems.append(f"{shlex.quote(member)}: {error}")
                continue
            except (OSError, EOFError, ValueError) as error:
                problems.append(f"{shlex.quote(member)}: {getattr(error, 'strerror', None) or error}")
                continue
            name = str(Path(member).relative_to(given)) if folder else Path(member).name
            source.name = scrub(name) if several else ""
            opened.append(source)
    if not opened:
        raise Unreadable("; ".join(problems))
    opened.sort(key=lambda source: (bool(source.stream), source.name.endswith((".err", ".stderr", "stderr.log"))))
    return opened, problems


def open_source(path: str) -> Source:
    """Opens one file; "-" is standard input.

    Raises:
        Unreadable: it is of a kind that holds no text and no metrics we can read.
        OSError: the system refuses it.
    """
    if path == "-":
        if sys.stdin is None:
            raise OSError(0, "standard input is closed")
        return _open_packed("", io.BufferedReader(sys.stdin.buffer))
    status = os.stat(path)  # not by Path, to which an empty name is the folder one is in
    if not stat.S_ISREG(status.st_mode):
        what = next((kind for holds, kind in _SPECIAL if holds(status.st_mode)), "no file")
        raise Unreadable(f"it is {what}; to read from one: cat {shlex.quote(path)} | bisect-cfg explain -")
    name = Path(path).name
    if name.endswith(".wandb") or "tfevents" in name:
        raise Unreadable("a binary file of a tracker; give the run's output.log, or its history as JSON or CSV")
    if not status.st_size:
        return Source("", io.BytesIO())  # the kernel's own files have no size either, and some are never read to an end
    file = Path(path).open("rb")
    try:
        source = _open_packed(name, file)
    except BaseException:
        file.close()
        raise
    source.file = file  # whoever reads it to its end closes it
    return source


def _open_packed(name: str, stream: io.BufferedReader[Any]) -> Source:
    """Opens a stream that may be compressed, whatever its name says."""
    opener = next((opener for magic, opener in _PACKED if stream.peek(8).startswith(magic)), None)
    if opener is None:
        return _open_text(name, stream)
    unpacked = io.BufferedReader(_Parts(_until_cut(opener(stream))))
    if not unpacked.peek(1):
        raise Unreadable("it is compressed, and nothing can be unpacked from it")
    return _open_text(re.sub(r"\.(?:gz|xz|bz2)$", "", name), unpacked)


class _Parts(io.RawIOBase):
    """A stream that is made part by part."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._rest = parts, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # all it is given
        self._rest = self._rest or next(self._parts, b"")
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _until_cut(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """What can be unpacked: a log is cut off if its run was killed while it wrote."""
    with contextlib.suppress(EOFError, OSError, lzma.LZMAError, zlib.error):
        while data := stream.read(PART):
            yield data


def _open_text(name: str, stream: io.BufferedReader[Any]) -> Source:
    head = stream.peek(PEEK)[:PEEK]
    if encoding := _utf16(head):
        text = codecs.getreader(encoding)(stream, "replace")
        stream = io.BufferedReader(_Parts(_as_utf8(text)))
        head = stream.peek(PEEK)[:PEEK]
    strange = sum(head.count(byte) for byte in (*range(7), *range(14, 27), *range(28, 32), 127))
    undecodable = head.decode("utf-8", "replace").count("\ufffd")
    binary = strange > STRANGE * len(head) or (strange > 0 and undecodable > UNDECODABLE * len(head))
    kind = next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), "")
    if binary or kind:
        raise Unreadable(
            f"it is {kind or 'binary'}, not text; give what the run printed, its folder, or its trainer_state.json"
        )
    if name.endswith((".json", ".ipynb")):
        return _open_json(stream)
    if name.endswith((".csv", ".tsv")):
        return _open_csv(stream)
    first = _record(head.lstrip().split(b"\n", 1)[0])
    if first is not None and (key := next((one for one in _MESSAGES if isinstance(first.get(one), str)), "")):
        return Source("", io.BufferedReader(_Parts(_messages(stream, key))))
    return Source("", stream)


def _as_utf8(text: codecs.StreamReader) -> Iterator[bytes]:
    while part := text.read(PART):
        yield part.encode("utf-8", "replace")


def _messages(stream: BinaryIO, key: str) -> Iterator[bytes]:
    """What was printed, out of a collector's records with a line each; a line that is none stays as it is."""
    while line := stream.readline(LARGEST_JSON):
        record = _record(line) or {}
        parts = [record.get(key), record.get("exc_info") or record.get("traceback")]
        texts = [one.rstrip("\n") for one in parts if isinstance(one, str)]
        yield ("\n".join(texts) + "\n").encode("utf-8", "replace") if texts and "loss" not in record else line


def _record(line: bytes) -> dict[str, Json] | None:
    """The mapping that a line is in JSON; None if it is none."""
    try:
        found = json.loads(line) if line[:1] == b"{" else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _utf16(head: bytes) -> str:
    """The encoding, where PowerShell's `>` wrote UTF-16; "" for another one."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if len(head) > 16:
        for encoding, zeros, letters in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
            if zeros.count(0) > HALF_ZERO * len(zeros) and letters.count(0) < len(letters) / 10:
                return encoding
    return ""


def _open_json(stream: io.BufferedReader[Any]) -> Source:
    """A trainer's state, a history, a notebook; otherwise its text."""
    data = stream.read(LARGEST_JSON + 1)
    if len(data) > LARGEST_JSON:
        raise Unreadable("a JSON file of that size is no trainer's state; give what the run printed")
    text = Source("", io.BytesIO(data))
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return text
    if isinstance(content, dict) and isinstance(content.get("cells"), list):
        return Source("", io.BytesIO("\n".join(_outputs(content["cells"])).encode("utf-8", "replace")))
    if isinstance(content, dict) and isinstance(message := content.get("message"), dict):
        # torch's elastic launcher: https://docs.pytorch.org/docs/stable/elastic/errors.html
        stack = (message.get("extraInfo") or {}).get("py_callstack")
        return Source("", io.BytesIO(str(stack or message.get("message")).encode("utf-8", "replace")))
    history = content.get("log_history") if isinstance(content, dict) else content
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    return Source("", rows=rows) if any("loss" in row or "reward" in row for row in rows) else text


def _outputs(cells: Iterable[Json]) -> Iterator[str]:
    """What the cells of a notebook printed."""
    for cell in cells:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            if not isinstance(output, dict):
                continue
            data = output.get("data")
            if output.get("output_type") == "error":
                yield from map(plain, _joined(output.get("traceback"), "\n").split("\n"))
                yield f"{output.get('ename')}: {output.get('evalue')}"
            else:
                yield _joined(output.get("text") or (data.get("text/plain") if isinstance(data, dict) else ""))


def _joined(text: Json, between: str = "") -> str:
    """What a notebook has as one text or as a list of lines."""
    return text if isinstance(text, str) else between.join(map(str, text)) if isinstance(text, list) else ""


def _open_csv(stream: io.BufferedReader[Any]) -> Source:
    """A table of metrics with a column each, as W&B exports it (`run name - train/loss`); otherwise its text."""
    data = stream.read(LARGEST_JSON)
    text = data.decode("utf-8-sig", "replace")
    first = text.split("\n", 1)[0]
    delimiter = max(",\t;", key=first.count)
    table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names = ["" if re.search(r"__(?:MIN|MAX)$", name) else name.rpartition(" - ")[2] for name in next(table, [])]
        rows: list[dict[str, Json]] = [
            {n: _number(v) for n, v in zip(names, line, strict=False) if n and v} for line in table
        ]
    except csv.Error:
        rows = []
    known = {name.rpartition("/")[2] for name in (rows[0] if rows else ())} & {"loss", "reward", "grad_norm", "entropy"}
    return Source("", rows=rows) if known else Source("", io.BytesIO(data))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _members(folder: Path) -> list[Path]:
    """The files of a run's folder that say how it went: its logs, and one file of metrics."""
    logs: list[Path] = []
    metrics: list[Path] = []
    for path in _files(folder):
        name = re.sub(r"\.(?:gz|xz|bz2)$", "", path.name)
        if name in _METRICS:
            metrics.append(path)
        elif (name.endswith(_LOGS) and not _NO_LOGS.search(name)) or name in ("stdout", "stderr", "nohup.out"):
            logs.append(path)
    newest = sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_FILES]
    # Every checkpoint has a state, and the last one has all rows.
    return sorted(metrics, key=lambda path: (path.stat().st_mtime, path.stat().st_size))[-1:] + newest


def _files(folder: Path) -> Iterator[Path]:
    """The regular files of a folder that hold something, `DEPTH` deep, in the order of their names."""
    for root, folders, names in os.walk(folder):
        deep = len(Path(root).relative_to(folder).parts) >= DEPTH - 1
        folders[:] = [] if deep else sorted({*folders} - _PASSED_OVER)
        for path in (Path(root, name) for name in sorted(names)):
            with contextlib.suppress(OSError):  # gone meanwhile, or a link to nothing
                if stat.S_ISREG((status := path.stat()).st_mode) and status.st_size:
                    yield path
