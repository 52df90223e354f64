"""A study to be passed on: Markdown for an issue, and result.json; both without what names a person or a machine's
owner (`anonymous`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bisect_cfg.common import words
from bisect_cfg.common.configuration import Value
from bisect_cfg.report.answer import Answer, plain
from bisect_cfg.report.html import STATUS, commands, title_of
from bisect_cfg.report.line import as_text
from bisect_cfg.report.lines import lines_of
from bisect_cfg.report.recorded import Recorded, anonymous, rows, shared

LONGEST_LINE = 800
"""Characters of a log's line that are shown, for the same reason: one may hold a batch, or a picture in base64."""

TRIALS_SHOWN = 60
"""An issue takes 65,536 characters; so many trials are listed, those that the answer rests on first."""

_TICKS = re.compile(r"`+")


def as_json(recorded: Recorded) -> str:
    """result.json, made anonymous for others; of a study without an answer what there is of it."""
    return json.dumps(plain(anonymous(recorded).answer), indent=1) + "\n"


def as_markdown(recorded: Recorded) -> str:
    """What a maintainer needs: the answer, the minimal failing configuration, where it fails, versions, evidence."""
    log, folder = recorded.log, recorded.folder
    answer = anonymous(recorded).answer
    parts = [*_head(answer, folder), *_configuration(answer), *_failure(answer, shared(log)), *_evidence(answer)]
    return "\n\n".join([*parts, *_environment(answer), *_again(answer, folder)]) + "\n"


def _head(answer: Answer, folder: Path | None) -> Iterator[str]:
    yield f"### bisect-cfg: {_code(title_of(answer))}, {STATUS.get(answer.status, '')}"
    shown = (line for line in lines_of(answer) if not line.detail and line.label not in ("RUN", "LOG"))
    yield _block(as_text(shown))


def _configuration(answer: Answer) -> Iterator[str]:
    for cause in answer.causes:
        wanted = {name: levels.bad for name, levels in cause.levels.items()}
        wanted |= {name: levels.bad for name, levels in answer.levels.items() if name in cause.companions}
        yield "**Minimal failing configuration**, all else at its good value"
        if cause.command:
            yours = ", ".join(f"{name} = {words.show(value, name)}" for name, value in wanted.items())
            yield _block(f"# yours: {' '.join(yours.split())}\n{cause.command}", "sh")
            if cause.config is not None:
                yield f"with this as {_code(cause.config.name)}:\n\n" + _block(cause.config.text)
        else:
            goods = {name: levels.good for name, levels in answer.levels.items() if name not in wanted}
            lines = [f"{name}: {words.show(value, name)}  # yours" for name, value in wanted.items()]
            lines += [f"{name}: {words.show(value, name)}" for name, value in goods.items()]
            yield _block("\n".join(lines), "yaml")
        return


def _failure(answer: Answer, log: list[str]) -> Iterator[str]:
    failure, where = answer.failure, answer.where
    if log and (failure is not None or answer.unfinished):
        yield _folded("Last lines of the first run", _block("\n".join(map(_shortened, log))))
    if failure is None:
        return
    lines = [f"- message: {_code(failure.message)}", f"- signature: {_code(failure.signature)}"]
    if failure.step is not None:
        lines.append(f"- step: {failure.step or 'before the first'}")
    if where is not None and where.same_failure:
        known = {name: getattr(where, name) for name in ("line", "operation", "module", "native", "text")}
        lines += [f"- {name}: {_code(value)}" for name, value in known.items() if value]
    if answer.rows is not None:
        lines.append(f"- data: {_code(answer.rows['text'])}")
    yield "**Failure**\n\n" + "\n".join(lines)


def _evidence(answer: Answer) -> Iterator[str]:
    every = rows(answer)
    if not every:
        return
    shown = sorted(every, key=lambda row: not row.evidence)[:TRIALS_SHOWN]
    lines = ["| trial | outcome | tested | asked |", "|--:|---|---|---|"]
    for row in sorted(shown, key=lambda row: row.number):
        lines.append(f"| {row.number} | {_cell(row.came)} | {_cell(row.what)} | {_cell(row.reason)} |")
    left = len(every) - len(shown)
    more = [f"{words.count(left, 'trial')} more in the study."] if left else []
    yield _folded(words.count(len(every), "trial"), "\n\n".join(["\n".join(lines), *more]))


def _environment(answer: Answer) -> Iterator[str]:
    known = answer.environment
    parts = [f"{name} {version}" for name, version in (known.get("packages") or {}).items() if version]
    parts += [f"{name} {known[name]}" for name in ("python", "cuda", "driver", "platform") if known.get(name)]
    parts += [str(gpu.get("name", gpu)) for gpu in known.get("gpus") or ()]
    if parts:
        yield "**Environment**\n\n" + _code(", ".join(parts))


def _again(answer: Answer, folder: Path | None) -> Iterator[str]:
    lines = [command for label, command in commands(answer, folder) if label in ("Your command", "Isolate it")]
    yield "**To do it again**\n\n" + _block("\n".join(lines), "sh")


def _code(text: Value) -> str:
    """A text as it is, in one line: in as many backticks as it needs."""
    plain = " ".join(words.clean(text).split())
    ticks = "`" * (1 + max(map(len, _TICKS.findall(plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def _block(text: str, language: str = "") -> str:
    """A text as it is, fenced by more backticks than it has."""
    plain = words.clean(text)
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(plain)), default=0))
    return f"{fence}{language}\n{plain}\n{fence}"


def _shortened(line: str) -> str:
    left = len(line) - LONGEST_LINE
    return line if left <= 0 else f"{line[:LONGEST_LINE]} ... ({left} more characters)"


def _cell(text: str) -> str:
    """A text in a table, where nothing of it is a sign."""
    plain = " ".join(words.clean(text).split())
    return re.sub(r"([\\`*_{}\[\]<>|#@!&~])", r"\\\1", plain)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"
