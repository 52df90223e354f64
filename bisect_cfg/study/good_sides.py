"""Good sides to look for where the good configuration fails as well: others are tried, one after another.

The first is the library's defaults and the defaults of the script's own settings, with what the user says. The next
ones keep what was changed before, unless that only led to a failure of its own. What the user says counts first in all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bisect_cfg.common.configuration import Configuration, Name, Outcome, Value, equal, present
from bisect_cfg.common.files import load_yaml
from bisect_cfg.common.parameters import every
from bisect_cfg.common.words import show
from bisect_cfg.probe.protocol import Raised
from bisect_cfg.runner.runs import Run
from bisect_cfg.study.study import Study
from bisect_cfg.targets.captured import OWN, Capture, has_tag
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.good import parse_value
from bisect_cfg.targets.launch_settings import LAUNCHER, PYTHON
from bisect_cfg.targets.pinned import pinned_by_name, without_good_value
from bisect_cfg.targets.suggestions import left_out

EXAMPLES = Path(__file__).parent / "examples.yaml"

REASONS, NAMED = 3, 6
"""So many reasons are named, and so many values of the script's own."""

_PRECISION = re.compile(r"bf(?:loat)?16|16BF", re.IGNORECASE)
"""bf16 in an error, as torch and CUDA spell it too."""

_WORKERS = re.compile(r"(?:^|[_.])workers$", re.IGNORECASE)
_PROCESSES = re.compile(r"(?:^|[_.])(?:procs?|processes)$", re.IGNORECASE)
"""In the name of a setting of the script's own: processes beside its own, of which there may be none; and all."""

_ADVICE = re.compile(
    r"(?P<name>\b[A-Za-z_][\w.]*)[`'\"]?(?:\s*=\s*|\s+to\s+)[`'\"]?(?P<value>[-+]?\d[\d.]*(?:e[-+]?\d+)?|\w[\w:.,-]*)"
)
"""``use_reentrant=False``, "set `beta` to 0"."""

_ONLY_SHOWS = re.compile(r"DEBUG|BLOCKING|_DSA$|ERROR|LOG|VERBOS|TRACE|WARN")
"""In the name of a variable that says more of a failure and cures none."""

_NOT_THE_USERS = re.compile(r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/")
"""Files that are no code of the user's."""

_OF_THE_MACHINE = ("signal", "cuda-error", "out-of-memory", "hang")
"""Kinds of failures of which the driver, the libraries or the machine may be the reason."""


class GoodSide(NamedTuple):
    """One to try: its name, of which its question is made, what it is in words, and what it changes."""

    name: str
    said: str
    values: Configuration


@dataclass
class GoodSides:
    """Those of a study.

    Attributes:
        values: what the one in force changes of the first, by name.
        name: of the one in force, "" for the first.
        tried: what all of them but the first are, in words.
        first: the first one's settings, and how its run ended (None: nothing differed from it).
        _passed_over: names of those that were tried.
        _harmless: what they have changed that led to no failure of its own.
        _ending: how the first one ended.
    """

    values: dict[str, Value] = field(default_factory=dict)
    name: str = ""
    tried: list[str] = field(default_factory=list)
    first: tuple[Factors, Run | None] | None = None
    _passed_over: set[str] = field(default_factory=set)
    _harmless: dict[str, Value] = field(default_factory=dict)
    _ending: str = ""

    def go_on(self, study: Study, good_run: Run | None) -> bool:
        """Take up the next one, and say so; False if there is none left.

        Args:
            study: its settings are those of the one in force.
            good_run: how that ended; None if nothing differs from it.
        """
        self.first = self.first or (study.settings, good_run)
        ended = good_run or present(study.answer.bad_run)
        ending = str(ended.shown.signature)
        if good_run is None or study.outcome_of_good(good_run) is Outcome.FAIL or ending in ("", self._ending):
            self._harmless = self.values
        self._ending = self._ending or ending
        return self.take_up(study, ended)

    def end(self, study: Study) -> None:
        """Answer that the first one fails as well, with the likeliest reasons and what was tried besides."""
        settings, good_run = present(self.first)
        study.trials.known_settings = settings
        if not settings.varied:
            study.note(
                "No setting differs from the good configuration: the failure is in the script, the data or the "
                "environment, or the good configuration must be changed with --good."
            )
        why = tuple(reasons(present(study.answer.bad_run), good_run, settings))[:REASONS]
        study.find(settings=settings, good_run=good_run, tried=tuple(self.tried), reasons=why)

    def take_up(self, study: Study, ended: Run) -> bool:
        """Take up the next one, after one that ended so or could not be built; False if there is none left."""
        settings, _ = present(self.first)
        if not settings.seen:  # nobody knows what its settings mean
            return False
        said = {Name.of(name).full for name in (*study.good, *study.pins)}
        for one in good_sides(present(study.answer.bad_run), ended, settings):
            left = {*said, *left_out(list(one.values), study.options.only, study.options.exclude)}
            values = {name: value for name, value in one.values.items() if not {name, Name.of(name).full} & left}
            if one.name in self._passed_over or all(_in_force(settings, *item) for item in values.items()):
                continue
            self._passed_over.add(one.name)
            self.name, self.values = one.name, {**self._harmless, **values}
            named = ", ".join(f"{name}={show(value, name)}" for name, value in values.items())
            self.tried.append(f"{one.said} ({named})")
            study.note(f"The good configuration fails as well; trying another one: {self.tried[-1]}.")
            return True
        return False


def good_sides(bad_run: Run, good_run: Run, settings: Factors) -> Iterator[GoodSide]:
    """Those that may be tried after the first, in their order.

    Args:
        bad_run: the reproduction.
        good_run: how the good configuration ended that was tried last.
        settings: of the first.
    """
    capture = settings.capture
    yield GoodSide("without-risky-defaults", "without defaults that fail on some machines",
                   without_risky_defaults(bad_run, capture))  # fmt: skip
    own = {name: good for name, (good, _) in pinned_by_name(capture, settings.not_varied).items()
           if Name.of(name).space in OWN and not has_tag(good)}  # fmt: skip
    yield GoodSide("own-defaults", "the script's own settings at their defaults, whatever they name", own)
    library = {name: value for name, value in capture.args.defaults.items()
               if name in capture.args.set_by_user and name not in settings.not_varied
               and isinstance(value, (int, float, str)) and not _in_force(settings, name, value)}  # fmt: skip
    yield GoodSide("library-defaults", "the library's defaults, whatever the script's own are", library)
    example = examples().get(capture.args.cls)
    if example is not None:
        of_version = {name: value for name, value in example["settings"].items() if name in capture.args.types}
        yield GoodSide("example", f"the documented example of {capture.args.cls}", of_version)
    yield GoodSide("fewer-processes", "fewer processes", fewer_processes(capture))
    yield GoodSide("hint", "what the failure's message says", advised(good_run.seen.message, capture))


@cache
def examples() -> Mapping[str, Any]:
    """Training config -> the settings of its documented example, and where that stands."""
    found: Mapping[str, Any] = load_yaml(EXAMPLES.read_text(encoding="utf-8"))
    return found


def without_risky_defaults(bad_run: Run, capture: Capture) -> dict[str, Value]:
    """Values in place of defaults that are known to fail on some machines, where the run has those defaults and its
    error names them, or is a crash of compiled code, which names nothing."""
    shown = bad_run.shown.signature
    crashed = shown is not None and shown.kind in ("signal", "cuda-error")
    if not crashed and not _PRECISION.search(f"{shown} {bad_run.shown.message}"):
        return {}
    risky = {name: known.risky_default for name, known in every().items() if known.risky_default}
    return {name: before for name, (default, before) in risky.items() if capture.args.resolved.get(name) == default}


def fewer_processes(capture: Capture) -> dict[str, Value]:
    """One GPU in place of several, and no further processes that the script starts by settings of its own."""
    found: dict[str, Value] = {}
    if capture.args.devices > 1:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        found = {LAUNCHER: PYTHON, "env.CUDA_VISIBLE_DEVICES": first}
    for own in (one for one in capture.others.values() if one.kind == "script"):
        for key, value in own.defaults.items():
            if isinstance(value, int) and value > 1:
                found |= {str(own.name(key)): 0} if _WORKERS.search(key) else {}
                found |= {str(own.name(key)): 1} if _PROCESSES.search(key) else {}
    return found


def advised(message: str, capture: Capture) -> dict[str, Value]:
    """The settings that a message names with a value, and variables of the environment likewise."""
    known = {str(source.name(key)): source for source in (capture.args, *capture.others.values()) for key in source.raw}
    by_last = {name.rpartition(".")[2]: name for name in reversed(known)}
    found: dict[str, Value] = {}
    for match in _ADVICE.finditer(message):
        said, text = match["name"].lstrip("-"), match["value"].rstrip(".,")
        name = said if said in known else by_last.get(said)
        if name is not None:
            found[name] = parse_value(text)
        elif re.fullmatch(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+", said) and not _ONLY_SHOWS.search(said):
            found[f"env.{said}"] = text
    return found


def _in_force(settings: Factors, name: str, value: Value) -> bool:
    """Whether the first good side has a value anyway."""
    space, key = Name.of(name)
    if space == "env":
        return os.environ.get(key) == value
    if name in settings.good:
        return equal(settings.good[name], value)
    of_kind = [settings.capture.args] if space == "args" else settings.capture.others.values()
    return any(str(one.name(key)) == name and equal((one.resolved or one.raw).get(key), value) for one in of_kind)


# --------------------------------------------------------------------------------------------------- where none trains


def reasons(bad_run: Run, good_run: Run | None, settings: Factors) -> Iterator[str]:
    """The reasons that the good configuration fails as well, in whole sentences, the likeliest first.

    Args:
        bad_run: the reproduction.
        good_run: of the good configuration; None if nothing differs from it.
        settings: of both.
    """
    good_run = good_run or bad_run
    shown, bad = good_run.shown.signature, bad_run.shown.signature
    if shown is not None and bad is not None and not shown.same(bad):
        yield "The script may need settings that the good configuration has not: it ends in another failure than yours."
    if shown is not None and shown.kind in _OF_THE_MACHINE:
        yield "The machine, its driver or an installed package may be at fault: `bisect-cfg doctor` looks at them."
    raised = good_run.failing[1].event(Raised)
    path, line, function = raised.frames[-1] if raised is not None and raised.frames else ("<>", 0, "")
    if not _NOT_THE_USERS.search(path):
        place = f"{os.path.basename(path)}:{line}, in {function}"
        yield f"Your own code may be at fault, whatever the settings are: {place}."
    told = ", ".join([*without_good_value(settings.not_varied), *pinned_by_name(settings.capture, settings.not_varied)])
    if told:
        yield f"A setting that no run varied may be at fault (--good gives it a good value): {told}."
    constants = [
        f"{own.name(key)}={show(own.raw[key])}"
        for own in settings.capture.others.values()
        for key in own.raw.keys() - {*own.flags, *own.set_by_user}
        if own.kind == "script" and key in own.defaults
    ]
    if constants:
        named = ", ".join(sorted(constants)[:NAMED])
        yield f"A value of your own code may be at fault (--good NAME=VALUE has it varied): {named}."
    step = good_run.shown.step_of_training
    if step and step == bad_run.shown.step_of_training:
        yield f"The data of step {step} may be at fault: both fail there."
    elif not step:
        yield "The model, the data or what is installed may be at fault: it fails before the first step of training."
