"""Reproduce: the user's own command, cold, watched and redirected but otherwise unchanged. How it fails is studied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bisect_cfg.common.configuration import Name, Outcome, Purpose, Status
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.words import count
from bisect_cfg.errors import InputError, NeverConfigured
from bisect_cfg.probe.protocol import Origin, ResumeSkipped, Targets, TrainEnd
from bisect_cfg.runner.hang import HANG_SECONDS, HANG_TIMES, UNKNOWN_SECONDS, Patience
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.trials import horizon_for
from bisect_cfg.runner.verdict import Failure, Standard
from bisect_cfg.store.inputs import changed_files
from bisect_cfg.study.begin import begin
from bisect_cfg.study.data_rows import LEAD
from bisect_cfg.study.factors import say_what_is_not_in_force
from bisect_cfg.study.no_training import as_command, check_that_it_trains
from bisect_cfg.study.origin import begin_as_it_did, own_checkpoints
from bisect_cfg.study.study import Phase, Study
from bisect_cfg.study.told_in_log import told_in
from bisect_cfg.targets.captured import read_capture

FIRST, BY_DATA, LONGEST = "first", "first, with the data alone", "first, with the longest rows first"
"""The questions of the first run, and of two that look whether the data of the failing step alone does it, or the
longest rows of the dataset."""

UNWATCHED = "first, not watched"
"""The question of the first run as a command of what turned out to be no training: what ended the watched run was seen
with other eyes."""

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


def reproduce(study: Study) -> Status | Phase | None:
    """See the command fail. That is the failure under study from here on, and says how long trials run. A script that
    never builds a training config may be run as any command instead.

    Raises:
        InputError: it never came to train, or does not fail as `--failure` asks.
        NeverConfigured: it ended before it built a training config, and nothing of it varies as a command's does.
    """
    run = _sooner(study, _first_run(study))
    study.find(bad_run=run)
    begin_as_it_did(study, run)
    try:
        check_that_it_trains(study, run)
    except NeverConfigured:
        command = as_command(study.target, study.options, run)
        if command is None:
            raise
        study.note(
            "The script ends before it builds a training config, so it is run as any command: each trial from its "
            "beginning, and it writes where it always does."
        )
        begin(study, command)
        return reproduce
    failure = run.shown.signature
    _say_which_training(study, run)
    _say_where_it_resumes(study, run)
    study.listener.run_finished(Purpose.BAD_BASELINE, run, Outcome.FAIL if failure else Outcome.PASS)
    if failure is None and _goes_on_where_it_resumes(study, run):
        return reproduce
    if failure is None:
        _say_what_was_off(study, run)
        say_what_is_not_in_force(study, run)
        return Status.NO_FAILURE
    _study_failure(study, run, failure)
    study.trials.horizon = study.options.steps or horizon_for(run.steps_shown)
    return None


def _study_failure(study: Study, run: Run, failure: Signature) -> None:
    """From here on, what this run shows is the failure under study.

    Raises:
        InputError: it does not fail as `--failure` asks.
    """
    asked = study.options.failure
    before = frozenset(symptom.kind for symptom in run.shown.symptoms if symptom.step < (run.shown.step or 0))
    studied = Failure(failure, silent=run.shown.silent, asked=asked or "", despite=before)
    if not studied.includes(failure):
        raise InputError(
            f"The run fails, but not in the way --failure {asked} asks for: {failure}.",
            "Leave out --failure to study the failure it shows.",
        )
    study.trials.standard, study.trials.failed = Standard(studied), run


# -------------------------------------------------------------------------------------------------------- the first run


def _first_run(study: Study) -> Run:
    """The run of the user's own command; or, where its log tells when it failed, one with the data of that step alone,
    if that shows the same."""
    steps, origin = study.options.steps, study.trials.origin
    question = FIRST if steps is None else f"{FIRST}, {count(steps, 'step')}"
    so = "as it is, to see it fail"
    if origin is not None:
        question, so = f"{question}, from step {origin.step}", f"from step {origin.step} on, to see it fail"
    by_data, run = study.before(BY_DATA), study.before(question)
    if run is not None and run.traces.events.rows and not study.target.probed:
        question, so = UNWATCHED, "once more, not watched"
        run = study.before(question)
    elif run is None and by_data is None:
        by_data = _run_with_data(study)
    else:
        study.listener.phase("resume", f"continuing the study in {study.folder}")
    if run is None and by_data is not None and _shows_what_the_log_tells(study, by_data):
        return by_data
    if run is None:
        study.listener.phase("reproduce", f"running your command {so}")
        run = study.train(_plan(study, question))
        if not study.target.probed:  # a file that the command names and writes is no input
            state = study.state
            state.written = sorted({*state.written, *changed_files(study.target, state)})
            state.save(study.folder)
    return run


def _run_with_data(study: Study) -> Run | None:
    """Where a log tells at which step it failed, a few steps with the weights of step 0 and the data of that step: if
    they show the same, no run trains all the way there. None if there is no log."""
    options, failing = study.options, study.failing_step
    if failing is None or options.from_checkpoint is not None or options.training not in (None, 1):
        return None
    if not study.target.probed:
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


def _sooner(study: Study, run: Run) -> Run:
    """Where memory runs out late: the run that takes the longest rows first, if it does so sooner; all trials take them
    first then. What is safe with them is safe with all."""
    failure, trials, step = run.shown.signature, study.trials, run.shown.step_of_training or 0
    if failure is None or failure.kind != "out-of-memory" or step <= LEAD:
        return run
    if trials.longest_first or not any(run.taken):
        return run
    trials.longest_first = True
    study.listener.phase("reproduce", f"memory runs out at step {step}: seeing whether the longest rows do it sooner")
    again = study.made(replace(_plan(study, LONGEST), steps=LEAD, least_seconds=0.0, checkpoints=None))
    same = again.shown.signature is not None and again.shown.signature.same(failure)
    at = (again.shown.step_of_training or 0) if same else step
    trials.longest_first = at < step
    if not trials.longest_first:
        return run
    study.note(
        f"Your run is out of memory at step {step}; with the longest rows of the dataset first, at step {at}. Every "
        "trial takes these first."
    )
    return again


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
        {} if study.trials.known_settings is None else study.settings.bad,
        None if options.until_failure else steps or FIRST_STEPS,
        purpose=Purpose.BAD_BASELINE,
        least_seconds=0.0 if steps else min(FIRST_SECONDS, options.max_seconds or FIRST_SECONDS),
        checkpoints=own_checkpoints(study, failing),
        start=COLD,
        patience=patience if study.target.probed else None,
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
        if training.of > 1:
            study.note(f"Every training of the script ended well; there were {training.of}.")
    elif run.traces.event(TrainEnd) is not None:
        study.note(
            f"Training {training.number} of the script ({trainer}) stayed healthy as long as it was watched. If the "
            f"script trains more than once, name a later one (--training {training.number + 1})."
        )


def _say_where_it_resumes(study: Study, run: Run) -> None:
    """Of a script that goes on from a checkpoint by itself: from which, and that no run does."""
    skipped = run.traces.event(ResumeSkipped)
    if skipped is not None and study.options.from_checkpoint is None and run.shown.signature is not None:
        study.note(
            f"Your script resumes from {skipped.path}. That would bring back its learning rate and the state of its "
            f"optimizer in every trial, so no run here resumes: each begins at step 0. To study the training from "
            f"there: --from-checkpoint {skipped.path}"
        )


def _goes_on_where_it_resumes(study: Study, run: Run) -> bool:
    """Whether a script that does not fail from step 0 resumes by itself: then it is run from there."""
    skipped = run.traces.event(ResumeSkipped)
    if skipped is None or study.options.from_checkpoint is not None:
        return False
    study.note(f"From step 0 your command does not fail. It resumes from {skipped.path}, so it is run from there.")
    study.options = replace(study.options, from_checkpoint=Path(skipped.path))
    begin(study, study.target)
    return True


def _say_what_was_off(study: Study, run: Run) -> None:
    """Of a healthy run: what of the user's own did not happen in it."""
    capture = read_capture(run.traces.events.rows)
    resolved = {} if capture is None else capture.args.resolved
    every = resolved.get("save_steps")
    by_steps = resolved.get("save_strategy") == "steps" and isinstance(every, (int, float)) and every <= run.seen.steps
    if by_steps or resolved.get("save_strategy") == "epoch":
        study.note(
            "Your checkpoints were not saved in this run, and what your script does when one is saved was not done: "
            "a failure of that would not show."
        )
