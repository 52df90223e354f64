"""What recording and comparing share: the parts, and the files of their answers."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PLAIN_BYTES = 300_000  # what is longer is kept compressed


def chosen(names: Sequence[str]) -> list[str]:
    """The parts that are named, all of them where none is."""
    known = sorted(path.stem for path in (HERE / "parts").glob("[a-z]*.py"))
    unknown = sorted({*names} - {*known})
    if unknown:
        raise SystemExit(f"There is no part {', '.join(unknown)}; there are {', '.join(known)}.")
    return list(names) or known


def computed(part: str) -> dict[str, str]:
    """Id -> answer of a part with today's code, as JSON with sorted keys."""
    found: dict[str, str] = {}
    for name, answer in importlib.import_module(f"golden.parts.{part}").answers():
        if name in found:
            raise SystemExit(f"{part} has two answers for {name}.")
        found[name] = _text(answer)
    return found


def recorded(part: str) -> dict[str, str]:
    """Id -> answer of a part as it was recorded."""
    plain, packed = _files(part)
    text = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else plain.read_text(encoding="utf-8")
    return {row["id"]: _text(row["answer"]) for row in map(json.loads, text.splitlines())}


def record(part: str, found: dict[str, str]) -> Path:
    """Write the answers of a part; the file."""
    lines = (f'{{"answer": {answer}, "id": {json.dumps(name)}}}\n' for name, answer in sorted(found.items()))
    content = "".join(lines).encode()
    plain, packed = _files(part)
    path, other = (packed, plain) if len(content) > PLAIN_BYTES else (plain, packed)
    other.unlink(missing_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path == packed else content)
    return path


def _text(answer: object) -> str:
    return json.dumps(answer, sort_keys=True)


def _files(part: str) -> list[Path]:
    return [HERE / "answers" / f"{part}.jsonl{suffix}" for suffix in ("", ".gz")]
