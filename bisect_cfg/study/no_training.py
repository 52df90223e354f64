"""A run that is no failing training: refused, with the end of its log, or run as a command of any kind."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bisect_cfg.common.cells import code_cells
from bisect_cfg.common.words import count
from bisect_cfg.errors import InputError, NeverConfigured
from bisect_cfg.options import Options
from bisect_cfg.probe.protocol import Completed, OtherSchedule, Raised
from bisect_cfg.runner.runs import LINES_SHOWN, Run, last_lines
from bisect_cfg.runner.traces import tail_of_log
from bisect_cfg.runner.training import check_watched
from bisect_cfg.study.origin import check_loaded
from bisect_cfg.study.study import Study
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.command import CommandTarget, find_target
from bisect_cfg.targets.launchers import OURS, PROGRAM, launched_in
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.pinned import why_pinned
from bisect_cfg.targets.suggestions import outdated_in
from bisect_cfg.targets.target import Target

_PARSER = re.compile(
    r"^(?:[aA]ccelerate|torchrun|run\.py|deepspeed|runner\.py|trl)\b.*?: error: (?P<said>.+)", re.MULTILINE
)
"""How the parser of a launcher's flags refuses them."""

_LAUNCHERS_CODE = re.compile(
    r"/(?:accelerate/(?:commands|utils/launch)|torch/distributed/(?:run|launcher|elastic)|deepspeed/launcher)"
)

_STANDARD_LIBRARY = re.compile(r"^<|/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)")
"""Files of Python itself, and code that has none (a dataclass's own ``__init__``): whoever called it speaks."""

_CHILD_FAILED = ("CalledProcessError", "ChildFailedError")
"""What a launcher raises when what it has started has failed."""

_NO_DEVICE = re.compile(r"invalid device ordinal|Duplicate GPU detected", re.IGNORECASE)
"""What CUDA and NCCL say to a process that has no GPU of its own."""


def check_that_it_trains(study: Study, run: Run) -> None:
    """A run of a script that never came to train has nothing to bisect.

    Raises:
        InputError, NeverConfigured: with the end of its log.
    """
    if not study.target.probed:
        return
    check_watched(run.traces)
    if run.traces.event(OtherSchedule) is not None:
        raise InputError(
            f"The run says nothing about your configuration: {run.seen.message}.",
            "Take out of the script what loads it; --from-checkpoint DIR has every run begin at a checkpoint.",
        )
    check_loaded(run, study.options.from_checkpoint)
    died = run.seen.died
    if died is not None and run.seen.invalid:
        raise InputError(
            f"Your configuration is not valid for the installed library, so no training ever starts: {died.message}",
            "There is nothing to bisect until it can be built.",
        )
    tail, where = "\n".join(tail_of_log(run.folder / "log.txt", LINES_SHOWN)), last_lines(run)
    hint = f" {outdated}" if (outdated := outdated_in(where)) else ""
    _check_launch(study, run, tail, where)
    _check_trainings(study, run, hint, where)
    script, never_trained = study.target, run.seen.died is not None and run.seen.died.kind == "no-training"
    if read_capture(run.traces.events.rows) is None and (never_trained or not _own_settings_vary(study, run)):
        what = f"died before it built a training config: {run.seen.message or run.seen.died}"
        if never_trained:
            what = "ended without ever building a training config (GRPOConfig or another TrainingArguments)"
        other = ""
        if study.options.good and script.notebook is None:
            other = "If it trains with neither, say what varies: with --bad NAME=VALUE it is run as any command.\n"
        if script.notebook is not None and (line := launched_by(script.path)):
            other = f"It starts a training in a shell; bisect that: {OURS} {line}\n"
        raise NeverConfigured(
            f"The {script.what} {script.path} {what}.{hint}",
            f"{other}It must do so when started as: {script.shown}\n{where}",
        )
    if never_trained:
        raise InputError(
            f"The {script.what} {script.path} built its configuration and ended without training.",
            f"It must call the trainer's train() when started as: {script.shown}\n{where}",
        )


def _own_settings_vary(study: Study, run: Run) -> bool:
    """Whether a run that died before it built a training config had settings of its script's own that may be why. Where
    packages are to vary, or the script is not written to train, it is run as any command instead."""
    options, capture = study.options, read_capture(run.traces.events.rows, configured=False)
    packages = options.good_packages or any(name.startswith(PACKAGE) for name in (*study.good, *study.pins))
    if capture is None or packages or not study.target.trains:
        return False
    capture = replace(capture, named=study.good)
    own = capture.others.values()
    return any(not why_pinned(capture, source, key) for source in own for key in source.set_by_user)


def _check_launch(study: Study, run: Run, log: str, where: str) -> None:
    """What a launcher cannot start, or refuses to, is no failure of a training."""
    script = study.target
    if script.launch is None:
        return
    if _NO_DEVICE.search(run.seen.message):
        raise InputError(
            "There are more processes than GPUs: each of them needs one of its own.",
            "Start as many as there are, or see what CUDA_VISIBLE_DEVICES hides.",
        )
    # TRL's own command has built its configs by then.
    unbegun = script.launcher != "python" and run.traces.begun is None
    said = refusal(log, run.traces.event(Raised)) if unbegun else ""
    if said:
        raise InputError(
            f"{script.launcher} refuses the command, and starts nothing: {said}", f"It is: {script.shown}\n{where}"
        )


def refusal(log: str, raised: Raised | None) -> str:
    """What a launcher says that does not even start the script; "" if it is not the launcher that speaks.

    Args:
        log: what the run has printed last.
        raised: what its first process died of.
    """
    match = _PARSER.search(log)
    if match is not None:
        return match["said"]
    if raised is None or raised.type in _CHILD_FAILED:
        return ""
    files = [path for path, _, _ in raised.frames if not _STANDARD_LIBRARY.search(path)]
    return f"{raised.type}: {raised.message}" if files and _LAUNCHERS_CODE.search(files[-1]) else ""


def _check_trainings(study: Study, run: Run, hint: str, where: str) -> None:
    """Of several trainings of a script, the wanted one must be there; and what dies outside of all is not bisected."""
    wanted, before = study.options.training or 1, len(run.traces.all(Completed))
    if run.traces.begun is None and before < wanted - 1:
        raise InputError(
            f"There is no training {wanted}: after {count(before, 'training')} the script ended with "
            f"{run.seen.message or run.seen.died}.",
            f"It must train {count(wanted, 'time')} when started as: {study.target.shown}\n{where}",
        )
    raised, completed = run.traces.event(Raised), run.traces.completed
    if run.shown.signature is None and completed is not None and raised is not None and raised.final:
        ended = "The training" if completed.number == 1 else f"Training {completed.number}"
        raise InputError(
            f"{ended} ended well; after it, in no training, the script dies with {raised.type}: {raised.message}",
            f"What fails outside a training is not bisected: it needs no trials to be seen.{hint}\n{where}",
        )


def launched_by(notebook: Path) -> str:
    """The first command of a launcher that a notebook's cells give to a shell (``!accelerate launch``, ``%%bash``); ""
    if there is none."""
    for cell in code_cells(notebook.read_text(encoding="utf-8-sig")):
        shell = cell.lstrip().startswith(("%%bash", "%%sh"))
        for line in cell.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("!").split()
            if "install" not in words and (shell or line.strip().startswith("!")) and (found := launched_in(words)):
                return " ".join(found)
    return ""


def as_command(script: Target, options: Options, run: Run) -> CommandTarget | None:
    """A script that builds no training config, as a command of any kind; None where nothing of it varies as such: it is
    a notebook, or one that trains and dies before, and no packages are to vary.

    Of such a program the good side is what its own parsers have as defaults. What the good side says of a training
    config has no meaning for a command, and is left out.

    Args:
        script: that was run.
        options: of the user.
        run: that it was.

    Raises:
        InputError: what is installed does not differ, or cannot be varied; or what is named does not.
    """
    packages = [one for one in options.good if (one if isinstance(one, str) else one[0]).startswith(PACKAGE)]
    varies, trains = bool(packages or options.good_packages), script.trains
    if script.notebook is not None or (trains and not varies):
        return None
    known = varies and script.launcher != PROGRAM  # which Python a shell runs, only the user can say
    given = replace(options.given(), python=script.python if known else None)
    try:
        return find_target(script.command, given, None if trains else run.traces.events.rows)
    except InputError:
        if varies:
            return find_target(script.command, replace(given, good=packages))
        if options.good:
            raise
        return None
