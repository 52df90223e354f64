"""report.html: a study in one file that needs no network, to be read, printed, mailed and shown.

The page is made of result.json and the traces of the trials (`recorded`), masked for others' eyes (`shared`). Texts
are escaped by Jinja2. Plotly and the data of the plots lie in the page compressed, which every browser of the last
years unpacks: so the page takes two megabytes and not six. Its scripts carry a nonce, and the page forbids itself every
connection: what a name or a message brings along can neither run nor fetch anything.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_cfg.common.configuration import Status, Value
from bisect_cfg.common.json_files import JsonObject, write_text
from bisect_cfg.reports import figures, text
from bisect_cfg.reports.answer import by_hand
from bisect_cfg.reports.recorded import Levels, Recorded, asked, level, read, ruled_out
from bisect_cfg.reports.said import Line
from bisect_cfg.reports.shared import shared
from bisect_cfg.store.invocation import lines_of
from bisect_cfg.targets.command import telling_word

if TYPE_CHECKING:
    import jinja2

FILE = "report.html"
"""Its name in the study folder."""

GLYPHS = {"pass": "✓", "fail": "✕", "unresolved": "?", "running": "…"}
WORDS = {"pass": "passes", "fail": "fails", "unresolved": "unresolved", "running": "is running"}

STATUS = {
    Status.ISOLATED: "isolated",
    Status.NO_FAILURE: "does not fail",
    Status.BASELINE_FAILS: "the good configuration fails as well",
    Status.INCONCLUSIVE: "inconclusive",
    "running": "running",
    "unfinished": "no answer yet",
    "empty": "nothing run yet",
}

COMPRESSION = 6
"""Of gzip: one more makes the page 0.2 % smaller, and takes a third longer."""

ENVIRONMENT = ("python", "cuda", "driver", "platform", "cpus", "memory_mb")
"""What is shown of the environment beside packages and GPUs."""


ABOUT_THE_FOLDER = re.compile(r"To repeat the \w+ \w+ run:|.*\. Everything is in ")
"""Lines of the answer for whoever has the study at hand: a report has commands of its own, and how long it took."""

_OPTION = re.compile(r"(--\w[\w-]*)")
"""An option in a sentence: a browser would break the line within it."""


@dataclass(frozen=True)
class Row:
    """A trial in the tables.

    Attributes:
        number: of the trial.
        outcome: "pass", "fail", "unresolved" or "running".
        what: what it tests.
        came: what came out, and when.
        seconds: how long it took, in words.
        reason: why it was asked.
        cleared: which settings it ruled out.
        evidence: whether the answer rests on it.
    """

    number: int
    outcome: str
    what: str
    came: str
    seconds: str
    reason: str
    cleared: str
    evidence: bool


def write_report(folder: Path) -> Path:
    """Write report.html of a study into its folder.

    Returns:
        Its path.

    Raises:
        InputError: the folder holds no study.
        OSError: it cannot be written.
    """
    path = folder / FILE
    write_text(path, page(read(folder)))
    return path


def page(recorded: Recorded) -> str:
    """The report of a study, as HTML."""
    recorded = replace(recorded, result=shared(recorded.result))
    sections = {
        "suspicion": list(filter(None, [figures.suspicion(recorded)])),
        "trace": figures.traces(recorded),
        "range": figures.ranges(recorded),
    }
    drawn = [plot for plots in sections.values() for plot in plots]
    payload = [{"name": one.name, "title": one.title, "data": one.data, "layout": one.layout} for one in drawn]
    result = recorded.result
    return _template().render(
        recorded=recorded,
        result=result,
        status=STATUS.get(result["status"], result["status"]),
        title=title_of(result),
        guilty=", ".join(sorted(recorded.guilty)),
        facts=list(_facts(result)),
        answer=answer_lines(recorded),
        matrix=_matrix(recorded),
        rows=rows(recorded),
        sections=sections,
        log=shared(recorded.log),
        commands=commands(recorded),
        packages=result["environment"].get("packages") or {},
        machine=_machine(result["environment"]),
        show=text.show,
        others=text.others,
        nonce=secrets.token_urlsafe(12),
        plotly=_plotly(),
        payload=_packed(json.dumps(payload, separators=(",", ":"), allow_nan=False)),
        glyphs=GLYPHS,
        words=WORDS,
    )


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["options_apart"] = _OPTION.split
    return environment.get_template("report.html")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs())


def _packed(words: str) -> str:
    return base64.b64encode(gzip.compress(words.encode(), COMPRESSION, mtime=0)).decode()


# ------------------------------------------------------------------------------------------------------ the answer


def title_of(result: JsonObject) -> str:
    """What is studied: the name of the script, or of what the command runs."""
    target = result["target"]
    script = Path(target["script"])
    if script.suffix not in (".py", ".ipynb"):
        script = Path(
            telling_word(shlex.split(target.get("command") or shlex.join([str(script), *target["arguments"]])))
        )
    return script.name or "a study"


def _facts(result: JsonObject) -> Iterator[str]:
    """The study in a line: how many trials, how long, where."""
    yield text.count(len(result["trials"]), "trial")
    if result["seconds"]:
        yield text.duration(result["seconds"])
    if result["horizon"]:
        yield f"trials of at most {text.count(result['horizon'], 'step')} each, more for safe values"
    packages = result["environment"].get("packages") or {}
    yield from (f"{name} {packages[name]}" for name in ("trl", "transformers", "torch") if packages.get(name))
    yield from sorted({str(gpu.get("name", gpu)) for gpu in result["environment"].get("gpus") or ()})


def answer_lines(recorded: Recorded) -> list[tuple[str, Line]]:
    """The answer in the words of the terminal: each line's label ("Cause", "Where") and its pieces."""
    lines: list[tuple[str, Line]] = [("", [("bold", recorded.said)])] if recorded.said else []
    told = recorded.result["said"] or list(_in_short(recorded.result))
    for line in told:
        if ABOUT_THE_FOLDER.match("".join(str(words) for _, words in line)):
            continue
        pieces = [(str(style), str(words)) for style, words in line]
        label = ""
        if pieces and "bold" in pieces[0][0] and len(pieces) > 1 and (pieces[0][1] + pieces[1][1]).find("  ") > 0:
            label, pieces = pieces[0][1].strip(), pieces[1:]
        while pieces and not pieces[0][1].strip():  # it is shown beside its label, not behind blanks
            pieces = pieces[1:]
        if pieces:
            pieces[0] = (pieces[0][0], pieces[0][1].lstrip())
        if label or any(words.strip() for _, words in pieces):
            lines.append((label, pieces))
    return lines


def _in_short(result: JsonObject) -> Iterator[Line]:
    """The answer of a study that recorded no words: of one without an answer, or of an earlier version."""
    failure = result["failure"]
    for cause in result["causes"]:
        for name, value in cause["parameters"].items():
            yield [("bold", "Cause  "), ("bold red", f"{name} = {text.show(value['bad'], name)}  "),
                   ("green", f"good: {text.show(value['good'], name)}")]  # fmt: skip
    if failure is not None:
        at = f" at step {failure['step']}" if failure.get("step") else ""
        yield [("bold", "Failure  "), ("", f"{failure['message']}{at}")]
    found = result["recommendation"]
    if found is not None:
        label = "Use instead  " if found["verified"] else "Not verified  "
        changed = ", ".join(f"{name}: {text.show(change['to'], name)}" for name, change in found["changes"].items())
        yield [("bold", label), ("bold green", changed)]
    for note in result["notes"]:
        yield [("yellow", note)]


# ------------------------------------------------------------------------------------------------------ the trials


def rows(recorded: Recorded) -> list[Row]:
    """Every trial in words."""
    levels, evidence = recorded.levels, set(recorded.evidence)
    cleared = ruled_out(recorded.trials, figures.SUSPECTED)
    return [
        Row(
            row["number"],
            row["outcome"] if row["outcome"] in GLYPHS else "unresolved",
            asked(row, levels),
            _came(row),
            "" if row["seconds"] is None else text.duration(row["seconds"]),
            row["reason"] or row["purpose"],
            ", ".join(cleared.get(row["number"], ())),
            row["number"] in evidence,
        )
        for row in recorded.trials
    ]


def _came(row: JsonObject) -> str:
    said = WORDS.get(row["outcome"], str(row["outcome"]))
    if row["outcome"] == "pass":
        return f"{said}, {text.count(row['step'], 'step')}" if row["step"] else said
    at = f" at step {row['step']}" if row["step"] else " before training" if row["step"] == 0 else ""
    told = row["signature"] and row["signature"] != row["outcome"]  # a function that returns False says no more
    return f"{said}{at}: {text.clean(row['signature'])}" if told else said + at


def _matrix(recorded: Recorded) -> list[tuple[str, bool, str, str, list[str]]]:
    """Factor -> whether it is in a cause, its values, and a letter for each trial: b bad, g good, o elsewhere."""
    levels, guilty = recorded.levels, recorded.guilty
    return [
        (name, name in guilty, text.show(good, name), text.show(bad, name), _letters(recorded, name, levels))
        for name, (good, bad) in levels.items()
    ]


def _letters(recorded: Recorded, name: str, levels: Levels) -> list[str]:
    return [level(row["values"], name, levels)[0] if row["values"] else "g" for row in recorded.trials]


# ------------------------------------------------------------------------------------------------- to do it again


def commands(recorded: Recorded) -> list[tuple[str, str]]:
    """What to type: label and command."""
    target, lines = recorded.result["target"], shared(lines_of(recorded.folder))
    own = target.get("command") or lines.get("own") or shlex.join([target["script"], *target["arguments"]])
    found = [("Your command", own), *([("Isolate it", lines["bisect"])] if lines else [])]
    study = shlex.quote(str(shared(str(recorded.folder))))
    for label, path in by_hand(recorded.result, recorded.folder).items():
        found.append((f"{label.capitalize()} run", f"sh {study}/{path.relative_to(recorded.folder)}"))
    if recorded.result["status"] == Status.ISOLATED:
        found.append(("Safe values again, surer", f"bisect-cfg recommend {study} --verify-seeds 10"))
    return [(label, _typable(command)) for label, command in found]


def _typable(command: str) -> str:
    """A command whose paths are masked: no shell looks for a home in quotes."""
    return re.sub(r"(?<=\s)'~/", "~/'", command)


def _machine(environment: Mapping[str, Value]) -> list[tuple[str, str]]:
    known = [(name.replace("_", " "), str(environment[name])) for name in ENVIRONMENT if environment.get(name)]
    for gpu in environment.get("gpus") or ():
        known.append(("GPU", ", ".join(f"{name} {value}" for name, value in gpu.items() if value)))
    known += [(str(name), str(value)) for name, value in (environment.get("variables") or {}).items()]
    return known
