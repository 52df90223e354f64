"""What people have instead of a log, opened: compressed, in UTF-16, a file of metrics, a notebook, a whole folder.

`sources` makes of each path what can be read: a stream of text, or rows of metrics. What cannot be read is an
`Unreadable` with the reason and what to give instead, never an empty log.
"""

from __future__ import annotations

import codecs
import csv
import html
import io
import json
import math
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import BinaryIO

from bisect_cfg.diagnosis._data_files import of_columns, of_runs
from bisect_cfg.diagnosis._metrics import Rows, canonical, row_of
from bisect_cfg.diagnosis._plain_text import plain
from bisect_cfg.diagnosis._rows import KNOWN, LAST_ROWS, Row
from bisect_cfg.diagnosis._types import Json

HALF_ZERO, STRAY_ZEROS = 0.8, 4
"""ASCII in UTF-16 has a zero in every second byte: in this share of them where some letters are others, and in fewer
than so many of the rest."""

STRANGE, UNDECODABLE = 0.1, 0.2
"""Shares of bytes that no text has, and of characters that are not UTF-8 beside a byte of that kind, beyond which a
file is binary: a log may hold a page of stray ones."""

LARGEST_JSON = 1 << 28
"""Bytes of a JSON file that is read whole; a larger one is no trainer's."""

MOST_LINES = 20_000
"""Lines of a table that are read: of more, an even share and the last ones."""

MOST_FILES = 64
"""Files of a folder that are read, the newest first: a launcher writes one or two for each rank."""

PEEK = 1 << 13
"""Bytes by which the kind of a file is told."""

LOGS = (".log", ".out", ".err", ".txt", ".stdout", ".stderr")
MESSAGES = frozenset({"message", "msg", "log", "textpayload", "raw", "line"})
COLLECTED = frozenset(
    {
        "timestamp",
        "time",
        "date",
        "ts",
        "lvl",
        "stream",
        "host",
        "service",
        "ingestiontime",
        "level",
        "severity",
        "logstreamname",
    }
)
"""What collectors of logs call the line that was printed, and something that stands beside it, in lower case."""

TRACES = frozenset(
    {"exc_info", "exc_text", "exception", "traceback", "stack_trace", "stacktrace", "stack", "exc", "trace"}
)
"""Where loggers that write JSON put the traceback of an error."""

LONG_FORM = (("tag", "metric", "name", "key"), ("value",), ("step", "global_step", "iteration"))
"""Columns of a table with a line for each value: which it is of, the value, the step."""

METRICS = ("trainer_state.json", "trainer_log.jsonl", "log_history.json", "metrics.jsonl", "logging.jsonl")
NO_LOGS = re.compile(
    r"requirements|merges\.txt|vocab|license|readme|special_tokens|added_tokens|pip|conda|constraints", re.I
)
"""Text files of a run's folder that are none of its output."""


CODE = frozenset(
    (
        ".c .cc .cpp .cxx .cu .cuh .h .hpp .java .kt .scala .go .rs .swift .js .mjs .cjs .jsx .ts .tsx .vue .css .php"
        " .rb .pl .pm .lua .r .jl .m4 .cs .vim .el .clj .hs .ml .sql .proto .pyx .pxd .pxi .pyi .py .ps1 .cmake"
        " .gradle .bats .tf"
    ).split()
)
MARKUP = frozenset(".jinja .jinja2 .j2 .pom .xsd .xsl .tex .bib .pod .po .pot .adoc .tmpl".split())
"""How the names of programs end, and of templates and sources of documents: nobody keeps what a run printed in them."""


class Unreadable(Exception):
    """A file that says nothing to us; the text says why, and what to give instead."""


@dataclass
class Source:
    """One file, opened.

    Attributes:
        name: what to call it, "" where it is the only one.
        stream: its text, None where it holds only metrics.
        rows: the rows of metrics of a file that holds them.
        quoting: what it is by its name's ending, if that is no log.
    """

    name: str
    stream: BinaryIO | None = None
    rows: list[Row] = field(default_factory=list)
    quoting: str = ""


def sources(paths: Iterable[str]) -> tuple[list[Source], list[str]]:
    """Opens what the paths name, and says what could not be read.

    Raises:
        Unreadable: nothing of it can be read.
    """
    opened: list[Source] = []
    problems: list[str] = []
    paths = list(paths)
    several = len(paths) > 1 or (paths[0] != "-" and Path(paths[0]).is_dir())
    for given in paths:
        members = _members(Path(given)) if given != "-" and Path(given).is_dir() else [given]
        if not members:
            problems.append(f"{given}: there is no log in this folder, and no file of metrics")
        for member in members:
            try:
                source = open_source(str(member))
            except Unreadable as error:
                problems.append(f"{member}: {error}")
                continue
            except (OSError, EOFError) as error:
                problems.append(f"{member}: {getattr(error, 'strerror', None) or error}")
                continue
            source.name = _short(str(member), given) if several else ""
            source.quoting = _by_ending(str(member))
            opened.append(source)
    if not opened:
        raise Unreadable("; ".join(problems))
    # Several files are read in the order in which they would have been printed: metrics first, errors last.
    opened.sort(key=lambda source: (bool(source.stream), source.name.endswith((".err", ".stderr", "stderr.log"))))
    return opened, problems


def _by_ending(path: str) -> str:
    ending = Path(path).suffix.lower()
    return "source code" if ending in CODE else "a template or the source of a document" if ending in MARKUP else ""


def open_source(path: str) -> Source:
    """Opens one file.

    Raises:
        Unreadable: it is of a kind that holds no text and no metrics we can read.
        OSError: the system refuses it.
    """
    if path == "-":
        if sys.stdin is None:
            raise OSError(0, "standard input is closed")
        return _text("", sys.stdin.buffer)
    name = Path(path).name
    if Path(path).is_dir():
        return Source("", rows=_mlflow(Path(path)))
    if "tfevents" in name:
        return Source("", rows=_events(path))
    if name.endswith(".wandb"):
        raise Unreadable("W&B's own binary file; give files/output.log of the same run, or its history as JSON or CSV")
    stream = Path(path).open("rb")  # closed with the process, which reads it to its end
    unpacked = _unpacked(stream)
    if unpacked is not stream and not unpacked.peek(1):
        raise Unreadable("it is compressed, and nothing can be unpacked from it")
    return _text(name, unpacked)


def _text(name: str, stream: io.BufferedReader) -> Source:
    stream = _utf8(stream)
    head = stream.peek(PEEK)[:PEEK] if hasattr(stream, "peek") else b""
    if _binary(head):
        raise Unreadable(f"it is not text{_kind(head)}; give what the run printed, or its trainer_state.json")
    name = re.sub(r"\.(?:gz|zst|xz|bz2)$", "", name)
    first = head.lstrip()[:1]
    if name.endswith((".json", ".ipynb")) or (first in (b"{", b"[") and not name.endswith((".jsonl", ".log", ".out"))):
        found = _json(stream, name)
        if found is not None:
            return found
    if first == b"<" and (found := _page(stream)) is not None:
        return found
    if name.endswith((".csv", ".tsv")) or _has_columns(head):
        return _csv(stream, name)
    if _OF_MLFLOW.match(head) and (called := _metric_of(name)) in KNOWN:
        return Source("", rows=_rows(_of_mlflow(stream.read(LARGEST_JSON), called)))
    if first == b"{" and (key := _message_of(_first_line(head))):
        return Source("", io.BufferedReader(_Messages(stream, key)))
    return Source("", stream)


_OF_MLFLOW = re.compile(rb"\d{10,13} \S+ \d+\r?\n")
"""A line of the file that MLflow keeps for a metric: a time, the value, the step."""


def _of_mlflow(content: bytes, called: str) -> Iterator[dict[str, str]]:
    values = (line.split() for line in content.decode("utf-8", "replace").splitlines())
    return ({"step": one[2], called: one[1]} for one in values if len(one) == 3)


def _mlflow(folder: Path) -> list[Row]:
    """The rows of a run of MLflow, which keeps a file for each metric."""
    steps: dict[str, dict[str, str]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stat().st_size <= LARGEST_JSON:
            for one in _of_mlflow(path.read_bytes(), _metric_of(path.name)):
                steps.setdefault(one["step"], {}).update(one)
    numbered = {int(step): row for step, row in steps.items() if step.isdecimal()}
    rows = _rows(numbered[step] for step in sorted(numbered))
    if not rows:
        raise Unreadable("a folder of MLflow's without metrics that we know")
    return rows


def _metric_of(name: str) -> str:
    """The metric that a file is called by."""
    return canonical(name.partition(".")[0])


def _first_line(head: bytes) -> object:
    """The value that the first line is in JSON; None if it is none."""
    try:
        return json.loads(head.lstrip().split(b"\n", 1)[0])
    except ValueError:
        return None


def _message_of(record: object) -> str:
    """Under which key a record of a collector of logs has the line that was printed; "" if it is none.

    As CloudWatch, Datadog, Google's and Docker's exports call it; it stands beside a time or a place.
    """
    if not isinstance(record, dict):
        return ""
    if not {str(name).strip("@_").lower() for name in record} & COLLECTED:
        return ""
    return next((name for name in record if name and name.strip("@_").lower() in MESSAGES), "")


def _printed(record: dict[str, object], key: str) -> str:
    """What a record says: its line, and the traceback that a logger has put beside it."""
    traces = (value for name, value in record.items() if name.lower() in TRACES and isinstance(value, str))
    return "\n".join([str(record.get(key) or "").rstrip("\n"), *traces])


def _trace_in(record: Mapping[str, Json]) -> str:
    """The traceback that an editor or a launcher has put into a file of its own; "" if there is none.

    VS Code keeps a cell's error as `name`, `message` and `stack`; torch's elastic launcher as a `message` with an
    `extraInfo` (https://docs.pytorch.org/docs/stable/elastic/errors.html).
    """
    inner = record.get("message")
    if isinstance(inner, dict):
        extra = inner.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        said = str(inner.get("message") or "")
    else:
        stack, said = record.get("stack") or record.get("traceback"), f"{record.get('name')}: {inner}"
    if not isinstance(stack, str) or "Traceback" not in stack:
        return ""
    stack = "\n".join(map(plain, stack.split("\n")))
    return stack if said.rpartition(": ")[2].strip() in stack else f"{stack}\n{said}"


def _joined(lines: Iterable[str]) -> io.BufferedReader:
    """Lines that a collector has kept one by one, as they were printed."""
    text = "\n".join(line.rstrip("\n") for line in lines) + "\n"
    return io.BufferedReader(io.BytesIO(text.encode("utf-8", "replace")))  # type: ignore[arg-type]


class _Changed(io.RawIOBase):
    """A stream with its bytes changed, a part at a time."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._rest = stream, b""

    def readable(self) -> bool:
        return True

    def part(self, size: int) -> bytes:
        """The next part, of about so many bytes where that can be chosen; empty at the end."""
        raise NotImplementedError

    def readinto(self, buffer: bytearray | memoryview) -> int:
        self._rest = self._rest or self.part(len(buffer))
        taken = self._rest[: len(buffer)]
        buffer[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)


class _Messages(_Changed):
    """What was printed, out of a stream of records with a line each; a line that is none stays as it is."""

    def __init__(self, stream: BinaryIO, key: str) -> None:
        super().__init__(stream)
        self._key = key

    def part(self, size: int) -> bytes:
        line = self._stream.readline()
        record = _first_line(line)
        if isinstance(record, dict) and isinstance(record.get(self._key), str):
            if any(canonical(name) in KNOWN for name in record):
                return line  # a row of metrics, with a word for what it is
            return _printed(record, self._key).encode("utf-8", "replace") + b"\n"
        return line


def _utf8(stream: io.BufferedReader) -> io.BufferedReader:
    """The stream, recoded where PowerShell's `>` wrote UTF-16."""
    if not hasattr(stream, "peek"):
        stream = io.BufferedReader(stream)
    head = stream.peek(256)[:256]
    encoding = ""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        encoding = "utf-16"
    elif len(head) > 16 and head[1::2].count(0) > HALF_ZERO * len(head[1::2]) and head[::2].count(0) < STRAY_ZEROS:
        encoding = "utf-16-le"
    elif len(head) > 16 and head[::2].count(0) > HALF_ZERO * len(head[::2]) and head[1::2].count(0) < STRAY_ZEROS:
        encoding = "utf-16-be"
    if not encoding:
        return stream
    return io.BufferedReader(_Recoded(stream, encoding))


class _Recoded(_Changed):
    """A stream in another encoding, as UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        super().__init__(stream)
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def part(self, size: int) -> bytes:
        while True:
            data = self._stream.read(size)
            text = self._decoder.decode(data, final=not data)
            if text or not data:
                return text.encode("utf-8", "replace")


def _unpacked(stream: BinaryIO) -> io.BufferedReader:
    head = stream.peek(8)[:8]  # type: ignore[attr-defined]
    if head.startswith(b"\x1f\x8b"):
        import gzip

        return io.BufferedReader(_Cut(gzip.GzipFile(fileobj=stream)))
    if head.startswith(b"BZh"):
        import bz2

        return io.BufferedReader(_Cut(bz2.BZ2File(stream)))
    if head.startswith(b"\xfd7zXZ"):
        import lzma

        return io.BufferedReader(_Cut(lzma.LZMAFile(stream)))
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(stream)
    if head.startswith(b"PK\x03\x04"):
        raise Unreadable("it is a zip archive; unpack it and give the folder")
    return stream


class _Cut(io.RawIOBase):
    """A compressed stream that ends where it was cut off: the log of a run that was killed while it wrote."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (EOFError, OSError):
            data = b""
        buffer[: len(data)] = data
        return len(data)


def _zstd(stream: BinaryIO) -> io.BufferedReader:
    try:
        from compression import zstd  # Python 3.14

        return io.BufferedReader(_Cut(zstd.ZstdFile(stream)))
    except ImportError:
        pass
    try:
        import zstandard

        return io.BufferedReader(_Cut(zstandard.ZstdDecompressor().stream_reader(stream)))
    except ImportError:
        pass
    import shutil
    import subprocess

    if shutil.which("zstd") is None:
        raise Unreadable("it is compressed with zstd, which needs `pip install zstandard` here (or unpack it: zstd -d)")
    process = subprocess.Popen(["zstd", "-dcq"], stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return process.stdout


def _binary(head: bytes) -> bool:
    """Whether this is no text in any encoding: a log may hold stray bytes, not mostly them."""
    if not head:
        return False
    strange = sum(head.count(byte) for byte in (*range(7), *range(14, 27), *range(28, 32), 127))
    undecodable = head.decode("utf-8", "replace").count("\ufffd")
    return strange > STRANGE * len(head) or (strange > 0 and undecodable > UNDECODABLE * len(head))


def _kind(head: bytes) -> str:
    kinds = {
        b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture", b"\x7fELF": "a program", b"PAR1": "a Parquet table",
        b"SQLite": "a database", b"\x80": "a pickle", b"%PDF": "a PDF document",
    }  # fmt: skip
    return next((f" but {kind}" for magic, kind in kinds.items() if head.startswith(magic)), "")


def _json(stream: io.BufferedReader, name: str) -> Source | None:
    """A trainer's state, a history, or a notebook; None for a log that only begins like JSON, or lines of JSON."""
    if not name.endswith((".json", ".ipynb")):
        line = stream.peek(PEEK)[:PEEK].split(b"\n")[0].strip()
        if line not in (b"{", b"["):
            return None
    data = stream.read(LARGEST_JSON + 1)
    if len(data) > LARGEST_JSON:
        raise Unreadable("a JSON file of that size is no trainer's state")
    try:
        content = json.loads(data)
    except ValueError:
        whole = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
        key = _message_of(_first_line(data[:PEEK]))
        return Source("", io.BufferedReader(_Messages(whole, key)) if key else whole)
    if isinstance(content, dict) and isinstance(content.get("cells"), list):
        text, rows = _notebook(content["cells"])
        return Source("", io.BufferedReader(io.BytesIO(text.encode("utf-8", "replace"))), rows)  # type: ignore[arg-type]
    if isinstance(content, dict) and (trace := _trace_in(content)):
        return Source("", _joined(trace.split("\n")))
    records = content.get("events", content.get("logs")) if isinstance(content, dict) else content
    if isinstance(records, list) and records and (key := _message_of(records[0])):
        return Source("", _joined(_printed(one, key) for one in records if isinstance(one, dict)))
    rows = _rows_in(content, name)
    if rows or (isinstance(content, dict) and "log_history" in content):
        return Source("", rows=rows)
    return Source("", io.BufferedReader(io.BytesIO(data)))  # type: ignore[arg-type]


def _rows_in(content: object, title: str) -> list[Row]:
    """The rows that a JSON file has in one of its lists: of tables, of columns, or of pairs of step and value."""
    if isinstance(content, list):
        points = _points(content)
        # TensorBoard's own export has time, step and value, and the metric's name in the file's.
        return _rows(content) or _rows({"step": step, _metric_of(title): at} for step, at in points)
    if not isinstance(content, dict):
        return []
    lists = {name: values for name, values in content.items() if isinstance(values, list)}
    series = {name: found for name, values in lists.items() if (found := dict(_points(values)))}
    if series:
        steps = sorted({step for found in series.values() for step in found})
        told = ({name: found[step] for name, found in series.items() if step in found} for step in steps)
        return _rows({"step": step, **values} for step, values in zip(steps, told, strict=True))
    columns = [values for values in lists.values() if values and not isinstance(values[0], (dict, list))]
    names = [name for name, values in lists.items() if values and not isinstance(values[0], (dict, list))]
    rows = _rows(dict(zip(names, values, strict=True)) for values in zip(*columns, strict=False))
    inner = [_rows(values) for name, values in lists.items() if values and isinstance(values[0], dict)]
    inner += [_rows_in(part, title) for part in content.values() if isinstance(part, dict)]
    return max((rows, *inner), key=len)


def _points(values: Sequence[object]) -> list[tuple[float, float]]:
    """Steps and values of a list of pairs, or of triples that begin with a time; none for another list."""
    number = (int, float)
    if not values or not all(
        isinstance(one, list) and len(one) in (2, 3) and all(isinstance(part, number) for part in one) for one in values
    ):
        return []
    return [(one[-2], one[-1]) for one in values]


def _rows(items: Iterable[object]) -> list[Row]:
    found = []
    for index, item in enumerate(items):
        if isinstance(item, dict):
            row = row_of(index + 1, item)
            if row is not None:
                found.append(row)
    return found


def _notebook(cells: list[dict[str, Json]]) -> tuple[str, list[Row]]:
    """What the cells of a notebook printed, and the tables that its trainer drew."""
    parts: list[str] = []
    rows: list[Row] = []
    for cell in cells:
        for output in cell.get("outputs") or [] if isinstance(cell, dict) else []:
            if output.get("output_type") == "error":
                parts += map(plain, output.get("traceback") or [])
                parts += [] if output.get("traceback") else [f"{output.get('ename')}: {output.get('evalue')}"]
                continue
            shown = output.get("data") or {}
            page = "".join(shown.get("text/html") or [])
            if page:
                rows += _html(page)
            parts.append("".join(output.get("text") or shown.get("text/plain") or []))
    return "\n".join(parts) + "\n", rows


def _page(stream: io.BufferedReader) -> Source | None:
    """A notebook that was exported or copied as HTML: its tables of metrics, and the rest without marks; None for
    another page, of which nothing is taken from the stream."""
    if not stream.seekable():
        return None
    data = stream.read(LARGEST_JSON)
    stream.seek(0)
    page = data.decode("utf-8", "replace")
    rows = [row for table in re.split(r"(?=<table\b)", page) for row in _html(table)]
    if not rows and not _NOTEBOOK.search(page):
        return None
    plain_text = html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"(?s)<(style|script|table)\b.*?</\1>", "", page)))
    return Source("", _joined(plain_text.split("\n")), rows)


_NOTEBOOK = re.compile(r"jp-Notebook|nbconvert")


def _html(page: str) -> list[Row]:
    """The rows of a table that the Trainer's notebook callback draws."""
    lines = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr.*?>(.*?)</tr>", page, re.S)
    ]
    lines = [[re.sub(r"<[^>]+>", "", cell).strip() for cell in line] for line in lines if line]
    if not lines or "Step" not in lines[0]:
        return []
    cells = ([None if cell == "No log" else cell for cell in line] for line in lines[1:] if len(line) == len(lines[0]))
    return _rows(dict(zip(lines[0], line, strict=True)) for line in cells)


def _has_columns(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace")
    names = {canonical(cell.strip("\" '\r")) for cell in re.split(r"[,\t;]", first)}
    return (
        first.count(",") + first.count("\t") + first.count(";") > 0
        and len(names & (KNOWN | {"step"})) > 1
        and ":" not in first
    )


def _csv(stream: io.BufferedReader, title: str = "") -> Source:
    """A table of metrics, with a column each or with a line for each value; lines that a collector has kept; or, of
    columns that nobody knows, the text as it is. TensorBoard names the metric of its one column in the file's name,
    people rename the file to it."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
    first = text.readline()
    if first.startswith("# "):
        title, first = first.strip(), text.readline()
    delimiter = max(",\t;", key=first.count)
    names = next(csv.reader([first], delimiter=delimiter), [])
    # W&B's export calls a column "run name - train/loss", with columns for its minimum and maximum beside it.
    names = ["" if re.search(r"__(?:MIN|MAX|STEP)$", name) else name.rpartition(" - ")[2] for name in names]
    if [name.lower() for name in names] == ["wall time", "step", "value"]:
        tag = _TAG.search(title)
        names[-1] = tag["tag"] if tag else _metric_of(title.strip("# ").rpartition("/")[2])
    key = _message_of(dict.fromkeys(names))
    if key:
        return Source("", _joined(_in_time([line for line in csv.reader(text, delimiter=delimiter)], names, key)))
    kept = _thinned(text)
    if delimiter == ";":
        kept = [_DECIMAL_COMMA.sub(r"\1.\2", line) for line in kept]
    lines = [dict(zip(names, line, strict=False)) for line in csv.reader(kept, delimiter=delimiter)]
    series = [] if of_columns(names) or of_runs(names, lines) else _by_step(lines, names) or lines
    rows = _rows({n: v for n, v in line.items() if n and v} for line in series)
    if not rows and names[:2] == ["Wall time", "Step"]:
        rows = _unnamed(lines, names[-1])
    if not rows:
        return Source("", _joined([first, *kept]))
    # What a run printed may stand below the table that it drew.
    beside = ["", *("" if len(line.split(delimiter)) >= len(names) else line for line in kept)]
    return Source("", _joined(beside) if any(_TROUBLE.search(line) for line in beside) else None, rows)


def _unnamed(lines: Sequence[Mapping[str, str]], column: str) -> list[Row]:
    """The rows of a value whose name is not told, if it goes as a reward that was learnt and is gone: it rose, with the
    noise of a reward, broke away, and hardly moves any more. A schedule has no noise, a loss does not rise first."""
    found = _rows({"step": line.get("Step"), "reward": line.get(column)} for line in lines)
    values = [row.values["reward"] for row in found]
    trial = Rows()
    for row in found:
        trial.add(row)
    onset = trial.facts().get("collapse")
    at = next((index for index, row in enumerate(found) if onset and row.line >= onset[0].line), 0)
    before, after = values[: at - at // UNNAMED_PARTS], values[at + (len(values) - at) // 2 :]
    if min(len(before), len(after)) < UNNAMED_ROWS or not all(map(math.isfinite, values)):
        return []
    half = len(before) // 2
    rose = fmean(before[half:]) - fmean(before[:half])
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(before, before[1:], before[2:], strict=False))
    if rose <= 0 or turns < UNNAMED_TURNS * len(before) or pstdev(after) > UNNAMED_STILL * pstdev(before):
        return []
    return [replace(row, text=row.text.replace("reward=", "value, read as a reward=")) for row in found]


UNNAMED_PARTS, UNNAMED_ROWS, UNNAMED_TURNS, UNNAMED_STILL = 5, 10, 0.2, 0.3
"""The last of so many parts before the break may belong to it; on each side of it so many rows are needed. A reward
turns from up to down, or down to up, in half of its steps, a schedule never; what is gone moves by less than this share
of what it moved before."""

_TROUBLE = re.compile(r"Traceback \(most recent|(?:Error|Exception): |[Cc]ore dumped|Killed")

_DECIMAL_COMMA = re.compile(r"(?<![\d,])(-?\d+),(\d+)(?![\d,])")
_TAG = re.compile(r"\btag-(?P<tag>[\w.-]+?)(?:\.csv)?$")


def _in_time(lines: list[list[str]], names: list[str], key: str) -> list[str]:
    """The printed lines in the order in which they were: some collectors give the last one first."""
    at = names.index(key)
    lines = [line for line in lines if len(line) > at]
    clocks = [place for place, name in enumerate(names) if name.strip("@_").lower() in ("timestamp", "time", "date")]
    if clocks and lines and lines[0][clocks[0]] > lines[-1][clocks[0]]:
        lines.reverse()
    return [line[at] for line in lines]


def _by_step(lines: list[dict[str, str]], names: list[str]) -> list[dict[str, str]]:
    """The rows of a table with a line for each value, as TensorBoard exports it; none if it is not one."""
    known = {name.lower(): name for name in names}
    found = [next((known[one] for one in wanted if one in known), "") for wanted in LONG_FORM]
    if not all(found):
        return []
    tag, value, step = found
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        if line.get(tag) and line.get(value):
            rows.setdefault(line.get(step, ""), {"step": line.get(step, "")})[line[tag]] = line[value]
    return list(rows.values())


def _thinned(lines: Iterable[str]) -> list[str]:
    """All lines where they are not very many, otherwise evenly spread ones and all of the last."""
    kept: list[tuple[int, str]] = []
    last: deque[tuple[int, str]] = deque(maxlen=LAST_ROWS)
    step = 1
    for numbered in enumerate(lines):
        last.append(numbered)
        if numbered[0] % step == 0:
            kept.append(numbered)
            if len(kept) > MOST_LINES:
                del kept[1::2]
                step *= 2
    return [line for at, line in kept if at < last[0][0]] + [line for _, line in last]


def _events(path: str) -> list[Row]:
    """The scalars of a TensorBoard event file, by TensorBoard's own reader."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError:
        raise Unreadable(
            "a TensorBoard event file, which needs `pip install tensorboard` here; or give trainer_state.json "
            "of a checkpoint"
        ) from None
    steps: dict[int, dict[str, float]] = {}
    for event in LegacyEventFileLoader(path).Load():
        for value in event.summary.value if event.HasField("summary") else ():
            number: float | None = None
            if value.HasField("simple_value"):
                number = value.simple_value
            elif value.HasField("tensor") and value.tensor.float_val:
                number = value.tensor.float_val[0]
            if number is not None:
                steps.setdefault(event.step, {"step": event.step})[value.tag] = number
    rows = _rows(steps[step] for step in sorted(steps))
    if not rows:
        raise Unreadable("a TensorBoard event file without scalars that we know")
    return rows


def _members(folder: Path) -> list[str]:
    """The files of a run's folder that say how it went: logs of every rank, and one file of metrics."""
    logs: list[Path] = []
    metrics: list[Path] = []
    runs: set[Path] = set()
    for path in _walk(folder):
        name = re.sub(r"\.(?:gz|zst|xz|bz2)$", "", path.name)
        if path.parent.name == "metrics" and not path.suffix and _peeked(_OF_MLFLOW, path):
            runs.add(path.parent)
        elif name.endswith((".csv", ".tsv")) and _metric_columns(path):
            metrics.append(path)
        elif name in METRICS or "tfevents" in name or (name.endswith(".jsonl") and _metric_lines(path)):
            metrics.append(path)
        elif name.endswith(LOGS) and not NO_LOGS.search(name) or name in ("stdout", "stderr", "nohup.out"):
            logs.append(path)
    newest = lambda path: path.stat().st_mtime  # noqa: E731
    states = [path for path in metrics if path.name == "trainer_state.json"]
    of_rows = (".jsonl", ".json", ".csv", ".tsv")
    others = sorted((path for path in metrics if path.suffix in of_rows), key=newest)
    # Every checkpoint has a state, and the last one has all rows; event files say the same once more.
    chosen = [max(states, key=lambda path: (path.stat().st_size, newest(path)))] if states else others[-1:]
    if not chosen:
        chosen = sorted((path for path in metrics if "tfevents" in path.name), key=newest)[-1:]
    chosen = chosen or sorted(runs, key=newest)[-1:]
    return [str(path) for path in chosen + sorted(logs, key=newest, reverse=True)[:MOST_FILES]]


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if (
            path.is_file()
            and not any(part in (".git", "__pycache__", "site-packages", ".venv") for part in parts)
            and len(parts) < 8
        ):
            if path.stat().st_size:
                yield path


def _peeked(pattern: re.Pattern[bytes], path: Path) -> bool:
    with path.open("rb") as stream:
        return pattern.match(stream.read(PEEK)) is not None


def _metric_columns(path: Path) -> bool:
    with path.open("rb") as stream:
        names = re.split(r"[,;\t]", stream.readline(PEEK).decode("utf-8", "replace"))
    return len(KNOWN & {canonical(name.strip().strip("\"'")) for name in names}) > 1


def _metric_lines(path: Path) -> bool:
    with path.open("rb") as stream:
        line = stream.readline(PEEK)
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, dict) and len(KNOWN & {canonical(str(name)) for name in first}) > 1


def _short(member: str, given: str) -> str:
    path = Path(member)
    return str(path.relative_to(given)) if Path(given).is_dir() else path.name
