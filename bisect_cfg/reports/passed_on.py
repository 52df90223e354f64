"""A study to be passed on: Markdown for an issue, and result.json; both without what names a person or a machine's
owner (`shared`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.reports import text
from bisect_cfg.reports.page import STATUS, answer_lines, commands, rows, title_of
from bisect_cfg.reports.recorded import Levels, Recorded
from bisect_cfg.reports.shared import shared

LONGEST_LINE = 800
"""Characters of a log's line that are shown, for the same reason: one may hold a batch, or a picture in base64."""

TRIALS_SHOWN = 60
"""An issue takes 65,536 characters; so many trials are listed, those that the answer rests on first."""

_TICKS = re.compile(r"`+")


def as_json(recorded: Recorded) -> str:
    """result.json, masked for others; of a study without an answer what there is of it, and why among the notes."""
    notes = [*filter(None, [recorded.said]), *recorded.result["notes"]]
    return json.dumps(shared({**recorded.result, "notes": notes}), indent=1) + "\n"


def as_markdown(recorded: Recorded) -> str:
    """What a maintainer needs: the answer, the minimal failing configuration, where it fails, versions, evidence."""
    log = recorded.log
    recorded = Recorded(recorded.folder, shared(recorded.result), recorded.said)
    parts = [*_head(recorded), *_configuration(recorded), *_failure(recorded.result, shared(log)), *_evidence(recorded)]
    return "\n\n".join([*parts, *_environment(recorded.result), *_again(recorded)]) + "\n"


def _head(recorded: Recorded) -> Iterator[str]:
    result = recorded.result
    yield f"### bisect-cfg: {_code(title_of(result))}, {STATUS.get(result['status'], '')}"
    lines = [(label, "".join(words for _, words in pieces).strip()) for label, pieces in answer_lines(recorded)]
    wide = 13 if any(label for label, _ in lines) else 0
    yield _block("\n".join(f"{label:<{wide}}{words}".rstrip() for label, words in lines))


def _configuration(recorded: Recorded) -> Iterator[str]:
    for cause in recorded.result["causes"]:
        wanted = {name: one["bad"] for name, one in cause["parameters"].items()}
        wanted |= {name: bad for name, (_, bad) in recorded.levels.items() if name in cause["companions"]}
        yield "**Minimal failing configuration**, all else at its good value"
        config = recorded.result["target"].get("config")
        if cause.get("command"):
            told = ", ".join(f"{name} = {text.show(value, name)}" for name, value in wanted.items())
            yield _block(f"# yours: {' '.join(told.split())}\n{cause['command']}", "sh")
            if cause["config"] is not None:
                yield f"with this as {_code(cause['config']['name'])}:\n\n" + _block(cause["config"]["text"])
            return
        if config is None:
            yield _block("\n".join(f"{name}: {text.show(value, name)}" for name, value in wanted.items()))
            return
        yield _block(_script(recorded, config, wanted), "python")


def _script(recorded: Recorded, config: str, wanted: Mapping[str, Value]) -> str:
    """A program that runs the user's own script with the minimal failing configuration."""
    settings = {**{name: good for name, (good, _) in recorded.levels.items()}, **wanted}
    placed = {name: value for name, value in settings.items() if "." not in name and _is_plain(value)}
    target = recorded.result["target"]
    words = [Path(target["script"]).name, *map(str, target["arguments"])]
    lines = [
        f"# Runs {words[0]}, beside which it lies.",
        "import runpy, sys, trl",
        "",
        "settings = {",
        *(f"    {name!r}: {value!r},{'  # yours' if name in wanted else ''}" for name, value in placed.items()),
        "}",
        *(_beside(name, settings[name], recorded.levels) for name in settings if name not in placed),
        *(
            [f"# It was shown from step {origin['step']} of the run on; from step 0, as here, it may take as long."]
            if (origin := recorded.result.get("origin"))
            else []
        ),
        f"begin = trl.{config}.__init__",
        f"trl.{config}.__init__ = lambda self, *args, **given: begin(self, *args, **{{**given, **settings}})",
        f"sys.argv = {words!r}",
        "runpy.run_path(sys.argv[0], run_name='__main__')",
    ]
    return "\n".join(lines)


def _beside(name: str, value: Value, levels: Levels) -> str:
    """What the program cannot set; a value of the user's is in the script already."""
    yours = name in levels and levels[name][1] == value
    return f"# {'In your script already' if yours else 'Set by hand'}: {name} = {text.show(value, name)}"


def _is_plain(value: Value) -> bool:
    """Whether Python can write it: not what the probe has marked as more than JSON can hold."""
    return "'$" not in repr(value)


def _failure(result: JsonObject, log: list[str]) -> Iterator[str]:
    failure, where = result["failure"], result["where"]
    if log and (failure is not None or not result["said"]):
        yield _folded("Last lines of the first run", _block("\n".join(map(_shortened, log))))
    if failure is None:
        return
    lines = [f"- message: {_code(failure['message'])}", f"- signature: {_code(failure['signature'])}"]
    if failure.get("step") is not None:
        lines.append(f"- step: {failure['step'] or 'before the first'}")
    if where and where["same_failure"]:
        for name in ("line", "operation", "module", "native", "text"):
            if where.get(name):
                lines.append(f"- {name}: {_code(where[name])}")
    if result.get("rows"):
        lines.append(f"- data: {_code(result['rows']['text'])}")
    yield "**Failure**\n\n" + "\n".join(lines)


def _evidence(recorded: Recorded) -> Iterator[str]:
    every = rows(recorded)
    if not every:
        return
    shown = sorted(every, key=lambda row: not row.evidence)[:TRIALS_SHOWN]
    lines = ["| trial | outcome | tested | asked |", "|--:|---|---|---|"]
    for row in sorted(shown, key=lambda row: row.number):
        lines.append(f"| {row.number} | {_cell(row.came)} | {_cell(row.what)} | {_cell(row.reason)} |")
    left = len(every) - len(shown)
    more = [f"{text.count(left, 'trial')} more in the study."] if left else []
    yield _folded(f"{text.count(len(every), 'trial')}", "\n\n".join(["\n".join(lines), *more]))


def _environment(result: JsonObject) -> Iterator[str]:
    known = result["environment"]
    words = [f"{name} {version}" for name, version in (known.get("packages") or {}).items() if version]
    words += [f"{name} {known[name]}" for name in ("python", "cuda", "driver", "platform") if known.get(name)]
    words += [str(gpu.get("name", gpu)) for gpu in known.get("gpus") or ()]
    if words:
        yield "**Environment**\n\n" + _code(", ".join(words))


def _again(recorded: Recorded) -> Iterator[str]:
    lines = [command for label, command in commands(recorded) if label in ("Your command", "Isolate it")]
    yield "**To do it again**\n\n" + _block("\n".join(lines), "sh")


def _code(words: Value) -> str:
    """A text as it is, in one line: in as many backticks as it needs."""
    plain = " ".join(text.clean(words).split())
    ticks = "`" * (1 + max(map(len, _TICKS.findall(plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def _block(words: str, language: str = "") -> str:
    """A text as it is, fenced by more backticks than it has."""
    plain = text.clean(words)
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(plain)), default=0))
    return f"{fence}{language}\n{plain}\n{fence}"


def _shortened(line: str) -> str:
    left = len(line) - LONGEST_LINE
    return line if left <= 0 else f"{line[:LONGEST_LINE]} ... ({left} more characters)"


def _cell(words: str) -> str:
    """A text in a table, where nothing of it is a sign."""
    plain = " ".join(text.clean(words).split())
    return re.sub(r"([\\`*_{}\[\]<>|#@!&~])", r"\\\1", plain)


def _folded(title: str, words: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{words}\n\n</details>"
