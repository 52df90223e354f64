"""report.html: a study in one file that needs no network, to be read, printed, mailed and shown.

The page is made of the answer and the traces of the trials (`recorded`), made anonymous for others' eyes. Texts are
escaped by Jinja2, data by JSON without `<`; the page forbids itself every connection, so that what a name or a message
brings along can fetch nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_cfg.common.configuration import Status
from bisect_cfg.common.json_files import JsonObject, write_text
from bisect_cfg.common.words import count, duration, show
from bisect_cfg.report import figures
from bisect_cfg.report.answer import EMPTY, RUNNING, UNFINISHED, Answer
from bisect_cfg.report.figures import Plot
from bisect_cfg.report.line import ARROW, EDIT, GOOD, GUILTY, Line
from bisect_cfg.report.lines import lines_of, others
from bisect_cfg.report.recorded import GLYPHS, WORDS, Recorded, anonymous, read, rows, shared
from bisect_cfg.store.folder import lines_of as command_lines_of
from bisect_cfg.targets.command import telling_word

if TYPE_CHECKING:
    import jinja2

FILE = "report.html"
"""Its name in the study folder."""

STATUS = {
    Status.ISOLATED: "isolated",
    Status.NO_FAILURE: "does not fail",
    Status.BASELINE_FAILS: "the good configuration fails as well",
    Status.INCONCLUSIVE: "inconclusive",
    RUNNING: "running",
    UNFINISHED: "no answer yet",
    EMPTY: "nothing run yet",
}

ENVIRONMENT = ("python", "cuda", "driver", "platform", "cpus", "memory_mb")
"""What is shown of the environment beside packages and GPUs."""

_OPTION = re.compile(r"(--\w[\w-]*)")
"""An option in a sentence: a browser would break the line within it."""


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
    log = shared(recorded.log)
    folder, recorded = recorded.folder, anonymous(recorded)
    answer = recorded.answer
    suspicion = figures.suspicion(recorded)
    sections = {"suspicion": [] if suspicion is None else [suspicion], "trace": figures.traces(recorded)}
    lines = lines_of(answer, None if folder is None else Path(shared(str(folder))))
    every = rows(answer)
    return _template().render(
        answer=answer,
        status=STATUS.get(answer.status, answer.status),
        title=title_of(answer),
        guilty=", ".join(sorted(answer.guilty)),
        facts=list(_facts(answer)),
        lines=[(line, list(_pieces(line))) for line in _answer_first(lines)],
        matrix=[(name, name in answer.guilty, show(one.good), show(one.bad), _letters(answer, name))
                for name, one in answer.levels.items()],
        rows=every,
        trials={trial.number: trial for trial in answer.trials},
        sections=sections,
        log=log,
        commands=commands(answer, folder),
        packages=answer.environment.get("packages") or {},
        machine=_machine(answer.environment),
        show=show,
        others=others(answer),
        plotly=_plotly(),
        payload=_payload([plot for plots in sections.values() for plot in plots]),
        glyphs=GLYPHS,
        words=WORDS,
    )  # fmt: skip


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

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _payload(plots: list[Plot]) -> str:
    """The plots as JSON that may stand in a script element."""
    data = [{"name": one.name, "title": one.title, "data": one.data, "layout": one.layout} for one in plots]
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


# ------------------------------------------------------------------------------------------------------- the answer


def title_of(answer: Answer) -> str:
    """What is studied: the name of the script, or of what the command runs."""
    target = answer.target
    script = Path(target.script)
    if script.suffix not in (".py", ".ipynb"):
        script = Path(telling_word(shlex.split(target.command or shlex.join([str(script), *target.arguments]))))
    return script.name or "a study"


def _facts(answer: Answer) -> Iterator[str]:
    """The study in a line: how many trials, how long, where."""
    yield count(len(answer.trials), "trial")
    if answer.seconds:
        yield duration(answer.seconds)
    if answer.horizon:
        yield f"trials of {count(answer.horizon, 'step')} or more"
    packages = answer.environment.get("packages") or {}
    yield from (f"{name} {packages[name]}" for name in ("trl", "transformers", "torch") if packages.get(name))
    yield from sorted({str(gpu.get("name", gpu)) for gpu in answer.environment.get("gpus") or ()})


def _pieces(line: Line) -> Iterator[tuple[str, str]]:
    """The parts of a line, each with its class."""
    if line.kind == GUILTY:
        yours, _, good = line.text.partition(GOOD)
        yield "bold red", yours.rstrip()
        yield "green", f"good: {good}"
    elif line.kind == EDIT and ARROW in line.text:
        old, _, new = line.text.partition(ARROW)
        yield "red", old
        yield "", "→"
        yield "green", new
    else:
        yield line.kind, line.text


def _answer_first(lines: list[Line]) -> list[Line]:
    """A page is read from its top; it needs no line that says how to see it."""
    first = next((at for at, line in enumerate(lines) if line.label.startswith(("CAUSE", "RESULT"))), 0)
    return [line for line in (*lines[first:], *lines[:first]) if line.label != "MORE"]


def _letters(answer: Answer, name: str) -> list[str]:
    """A letter for each trial: b bad, g good, o elsewhere."""
    return [answer.level(trial, name)[0] if trial.values else "g" for trial in answer.trials]


# ------------------------------------------------------------------------------------------------- to do it again


def commands(answer: Answer, folder: Path | None) -> list[tuple[str, str]]:
    """What to type: label and command."""
    target, lines = answer.target, {} if folder is None else shared(command_lines_of(folder))
    own = target.command or lines.get("own") or shlex.join([target.script, *target.arguments])
    found = [("Your command", own), *([("Isolate it", lines["bisect"])] if "bisect" in lines else [])]
    if folder is not None:
        study = shlex.quote(str(shared(str(folder))))
        for label, path in answer.repeated_by(folder).items():
            found.append((f"{label.capitalize()} run", f"sh {study}/{path.relative_to(folder)}"))
        if answer.status == Status.ISOLATED:
            found.append(("Safe values again, surer", f"bisect-cfg recommend {study} --verify-seeds 10"))
    return [(label, _typable(command)) for label, command in found]


def _typable(command: str) -> str:
    """A command whose paths are masked: no shell looks for a home in quotes."""
    return re.sub(r"(?<=\s)'~/", "~/'", command)


def _machine(environment: JsonObject) -> list[tuple[str, str]]:
    known = [(name.replace("_", " "), str(environment[name])) for name in ENVIRONMENT if environment.get(name)]
    for gpu in environment.get("gpus") or ():
        known.append(("GPU", ", ".join(f"{name} {value}" for name, value in gpu.items() if value)))
    known += [(str(name), str(value)) for name, value in (environment.get("variables") or {}).items()]
    return known
