"""Reproduce: the user's own command, cold, watched and redirected but otherwise unchanged. How it fails is studied."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from bisect_cfg.common.cells import code_cells, with_cells
from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.common.name import Name
from bisect_cfg.common.words import count
from bisect_cfg.errors import InputError, NeverConfigured
from bisect_cfg.probe.protocol import Completed, Origin, OtherSchedule, Raised, ResumeSkipped, Targets, TrainEnd
from bisect_cfg.runner.hang import HANG_SECONDS, HANG_TIMES, UNKNOWN_SECONDS, Patience
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.traces import tail_of_log, unprinted
from bisect_cfg.runner.training import check_watched
from bisect_cfg.runner.trials import horizon_for
from bisect_cfg.runner.verdict import Failure, Standard
from bisect_cfg.study.factors import say_what_is_not_in_force
from bisect_cfg.study.origin import LEAD, begin_as_it_did, check_loaded, own_checkpoints
from bisect_cfg.study.study import Study
from bisect_cfg.study.told_in_log import told_in
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.launchers import OURS, launched_in
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.pinned import why_pinned
from bisect_cfg.targets.suggestions import outdated_in

FIRST, BY_DATA = "first", "first, with the data alone"
"""The questions of the first run, and of one that looks whether the data of the failing step alone does it."""

FIRST_PATIENCE = Patience(1800.0, UNKNOWN_SECONDS, HANG_SECONDS, times=HANG_TIMES)
"""While nothing is known about the script's pace: half an hour to load data and a model, two minutes for the first
step; from there on the run shows its pace itself. `--trial-timeout` overrides all of it."""

FIRST_STEPS, FIRST_SECONDS = 100, 600.0
"""The first run of the bad configuration is given so many optimizer steps, or seconds of training, whichever is more,
to fail: reported failures come at 6, 8, 10, 25, 31, 59, 108, 115, 150 steps."""

LOG_MARGIN = 20
"""Steps after the one at which a log says that it failed: a log may end a few steps early, and a silent failure is
certain only some steps after it has begun."""

LEAST_LATE = 50
"""From this step on the data alone is tried first: the steps before it cost more than a start of the script."""

LINES_SHOWN = 8
"""Of the log of a run that never came to train."""

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


def reproduce(study: Study) -> Status | None:
    """See the command fail. That is the failure under study from here on, and says how long trials run.

    Raises:
        InputError: it never came to train, or does not fail as `--failure` asks.
        NeverConfigured: it ended before it built a training config.
    """
    run = _first_run(study)
    study.find(bad_run=run)
    begin_as_it_did(study, run)
    _check_that_it_trains(study, run)
    failure = run.shown.signature
    _say_which_training(study, run)
    _say_where_it_resumes(study, run)
    study.listener.run_finished(Purpose.BAD_BASELINE, run, Outcome.FAIL if failure else Outcome.PASS)
    if failure is None:
        _say_what_was_off(study, run)
        say_what_is_not_in_force(study, run)
        return Status.NO_FAILURE
    study_failure(study, run)
    study.trials.horizon = study.options.steps or horizon_for(run.shown.step)
    return None


def study_failure(study: Study, run: Run) -> None:
    """From here on, what this run shows is the failure under study.

    Raises:
        InputError: it does not fail as `--failure` asks.
    """
    failure, asked = run.shown.signature, study.options.failure
    before = frozenset(symptom.kind for symptom in run.shown.symptoms if symptom.step < (run.shown.step or 0))
    studied = Failure(failure, silent=run.shown.silent, asked=asked or "", despite=before)
    if not studied.includes(failure):
        raise InputError(
            f"The run fails, but not in the way --failure {asked} asks for: {failure}.",
            "Leave out --failure to study the failure it shows.",
        )
    study.trials.standard = Standard(studied)


# -------------------------------------------------------------------------------------------------------- the first run


def _first_run(study: Study) -> Run:
    """The run of the user's own command; or, where its log tells when it failed, one with the data of that step alone,
    if that shows the same."""
    steps = study.options.steps
    question = FIRST if steps is None else f"{FIRST}, {count(steps, 'step')}"
    by_data, run = study.before(BY_DATA), study.before(question)
    if run is None and by_data is None:
        by_data = _run_with_data(study)
    else:
        study.listener.phase("resume", f"continuing the study in {study.folder}")
    if run is None and by_data is not None and _shows_what_the_log_tells(study, by_data):
        return by_data
    if run is None:
        origin = study.trials.origin
        so = "as it is" if origin is None else f"from step {origin.step} on"
        study.listener.phase("reproduce", f"running your command {so}, to see it fail")
        run = study.train(_plan(study, question))
    return run


def _run_with_data(study: Study) -> Run | None:
    """Where a log tells at which step it failed, a few steps with the weights of step 0 and the data of that step: if
    they show the same, no run trains all the way there. None if there is no log."""
    options, failing = study.options, study.failing_step
    if failing is None or options.from_checkpoint is not None or options.training not in (None, 1):
        return None
    step = failing - LEAD
    if step < LEAST_LATE:
        return None
    study.listener.phase("reproduce", f"seeing whether the data of step {failing} does it by itself")
    study.trials.begin_at(Origin(None, step))
    try:
        return study.train(replace(_plan(study, BY_DATA), steps=LEAD + LOG_MARGIN, checkpoints=None))
    finally:
        study.trials.begin_at(None)


def _shows_what_the_log_tells(study: Study, run: Run) -> bool:
    log, died = study.options.log, run.seen.died
    return died is not None and run.seen.trained and (log is None or told_in(log, died, run.seen.message))


def _plan(study: Study, question: str) -> Plan:
    """Of the first run."""
    options, failing, origin = study.options, study.failing_step, study.trials.origin
    patience, timeout = FIRST_PATIENCE, options.trial_timeout
    if timeout is not None:
        patience = Patience(max(patience.before_training, timeout), timeout, timeout)
    begun = 0 if origin is None else origin.step
    steps = options.steps or (None if failing is None else max(failing - begun, 0) + LOG_MARGIN)
    return Plan(
        question,
        {},
        None if options.until_failure else steps or FIRST_STEPS,
        purpose=Purpose.BAD_BASELINE,
        least_seconds=0.0 if steps else min(FIRST_SECONDS, options.max_seconds or FIRST_SECONDS),
        checkpoints=own_checkpoints(study, failing),
        start=COLD,
        patience=patience,
        stop=StopRule.DEATH,
        targets=Targets(options.training),
        overrides={Name.of(name).full: value for name, value in study.pins.items()},
    )


def _say_which_training(study: Study, run: Run) -> None:
    """Of several trainings of a script, say which one this is about."""
    capture = read_capture(run.traces.events.rows)
    if capture is None:
        return
    training = capture.training
    trainer = f"{training.trainer} with {capture.args.cls}" if training.trainer else capture.args.cls
    if run.shown.signature is not None:
        if training.number > 1:
            before = "the one before it runs as it is" if training.number == 2 else "those before it run as they are"
            study.note(f"This is about training {training.number} of the script ({trainer}); {before}.")
    elif run.traces.completed is not None:
        study.note(f"Every training of the script ended well; there were {training.of}.")
    elif run.traces.event(TrainEnd) is not None:
        study.note(
            f"Training {training.number} of the script ({trainer}) stayed healthy as long as it was watched. If the "
            f"script trains more than once, name a later one (--training {training.number + 1})."
        )


def _say_where_it_resumes(study: Study, run: Run) -> None:
    """Of a script that goes on from a checkpoint by itself: from which, and that no run does."""
    skipped = run.traces.event(ResumeSkipped)
    if skipped is not None and study.options.from_checkpoint is None:
        study.note(
            f"Your script resumes from {skipped.path}. That would bring back its learning rate and the state of its "
            f"optimizer in every trial, so no run here resumes: each begins at step 0. To study the training from "
            f"there: --from-checkpoint {skipped.path}"
        )


def _say_what_was_off(study: Study, run: Run) -> None:
    """Of a healthy run: what of the user's own did not happen in it."""
    resolved = read_capture(run.traces.events.rows).args.resolved
    every = resolved.get("save_steps")
    by_steps = resolved.get("save_strategy") == "steps" and isinstance(every, (int, float)) and every <= run.seen.steps
    if by_steps or resolved.get("save_strategy") == "epoch":
        study.note(
            "Your checkpoints were not saved in this run, and what your script does when one is saved was not done: "
            "a failure of that would not show."
        )


# ------------------------------------------------------------------------------------- what is no failing training


def _check_that_it_trains(study: Study, run: Run) -> None:
    """A run that never came to train has nothing to bisect.

    Raises:
        InputError, NeverConfigured: with the end of its log.
    """
    check_watched(run.traces)
    if run.traces.event(OtherSchedule) is not None:
        raise InputError(
            f"The run says nothing about your configuration: {run.seen.message}.",
            "Take out of the script what loads it; --from-checkpoint DIR has every run begin at a checkpoint.",
        )
    check_loaded(run, study.options.from_checkpoint)
    if run.seen.invalid:
        raise InputError(
            f"Your configuration is not valid for the installed library, so no training ever starts: "
            f"{run.seen.died.message}",
            "There is nothing to bisect until it can be built.",
        )
    tail = tail_of_log(run.folder / "log.txt", LINES_SHOWN)
    lines = unprinted(run.traces, "\n".join(tail))[-LINES_SHOWN:] or tail
    log = "\n".join("    " + line for line in lines)
    where = f"Its last lines ({run.folder / 'log.txt'}):\n{with_cells(log)}" if log else "It printed nothing."
    hint = f" {outdated}" if (outdated := outdated_in(log)) else ""
    _check_launch(study, run, "\n".join(tail), where)
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
    capture = replace(capture, named=frozenset(study.good))
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
            f"{script.launcher} refuses the command, and starts nothing: {said}",
            f"It is: {script.shown}\n{where}",
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
