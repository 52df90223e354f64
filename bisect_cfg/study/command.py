"""A command of any kind in the story: its first run, and its two sides.

What is isolated and how is the same as for a training script. There is no probe: factors are what the user gave, each
trial starts the command from nothing, and a failure has no place in a stack. Only the first run of a Python program is
watched, since it may train: that shows what its own parsers made of the command.
"""

from __future__ import annotations

from dataclasses import replace

from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.errors import InputError
from bisect_cfg.options import Options
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import tail_of_log
from bisect_cfg.runner.trials import horizon_for
from bisect_cfg.runner.verdict import CANNOT_RUN, SKIPPED
from bisect_cfg.store.inputs import changed_files
from bisect_cfg.study.environments import both_environments, not_rebuilt
from bisect_cfg.study.reproduce import FIRST, FIRST_STEPS, LINES_SHOWN, study_failure
from bisect_cfg.study.study import Study
from bisect_cfg.targets.command import CommandTarget, find_target
from bisect_cfg.targets.launchers import PROGRAM
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.script import Script

REBUILT = "bad-rebuilt"
REBUILT_TRIES = 3
"""What the questions of the runs in the user's environment as it was built anew begin with, and how often the command
may pass there: a failure can be random."""

UNWATCHED = "first, not watched"
"""The question of the first run as a command of what turned out to be no training: what ended the watched run was seen
with other eyes."""

GOOD = "good-cold"
"""The question of the run of the good side."""


def as_command(script: Script, options: Options, run: Run) -> CommandTarget | None:
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


def reproduce(study: Study) -> Status | None:
    """See the command fail with its bad side."""
    options, trials = study.options, study.trials
    watched = study.before(FIRST) is not None and study.before(FIRST).traces.events.rows
    question = UNWATCHED if watched else FIRST
    new = study.before(question) is None
    if new:
        so = "once more, not watched" if watched else "as it is, to see it fail"
        study.listener.phase("reproduce", f"running your command {so}")
    elif not watched:
        study.listener.phase("resume", f"continuing the study in {study.folder}")
    steps = options.steps or FIRST_STEPS
    run = _run(study, Plan(question, trials.settings.bad, steps, purpose=Purpose.BAD_BASELINE, stop=StopRule.DEATH))
    study.find(bad_run=run)
    failure = run.shown.signature
    study.listener.run_finished(Purpose.BAD_BASELINE, run, Outcome.FAIL if failure else Outcome.PASS)
    if new:  # a file that the command names and writes is no input
        study.state.written = sorted({*study.state.written, *changed_files(study.target, study.state)})
        study.state.save(study.folder)
    if failure is None:
        return Status.NO_FAILURE
    study_failure(study, run)
    # One that printed no metrics before it failed may print some where it does not.
    trials.horizon = options.steps or horizon_for(run.shown.step or 1)
    return None


def find_baselines(study: Study) -> Status | None:
    """See the command fail where its packages were built anew, if they vary, and pass with its good side."""
    again = _rebuilt(study)
    if again and study.outcome_of(again[-1]) is not Outcome.FAIL:
        study.find(again=tuple(again))
        return Status.INCONCLUSIVE
    study.again = tuple(again)
    study.listener.phase("good baseline", "making sure that the good configuration works")
    trials = study.trials
    run = _run(study, Plan(GOOD, trials.settings.good, trials.horizon, purpose=Purpose.GOOD_BASELINE))
    study.find(good_run=run)
    study.listener.run_finished(Purpose.GOOD_BASELINE, run, study.outcome_of_good(run))
    if study.outcome_of_good(run) is not Outcome.PASS:
        return Status.BASELINE_FAILS
    trials.standard = trials.standard.with_usual(run.shown)
    return None


def _rebuilt(study: Study) -> list[Run]:
    """Build the environments between which packages vary, and see the command fail in the bad one as in the user's own.

    Returns:
        The runs there, the last of which fails if any does; none if no package is another one in any trial.
    """
    trials, settings = study.trials, study.settings
    if not settings.overrides(settings.good):
        return []
    trials.packages = both_environments(study, settings)
    study.listener.phase("rebuilt", "making sure that it fails in an environment built anew as well")
    runs: list[Run] = []
    while len(runs) < REBUILT_TRIES and (not runs or study.outcome_of(runs[-1]) is Outcome.PASS):
        name = f"{REBUILT}-{len(runs) + 1}"
        runs.append(_run(study, Plan(name, settings.bad, trials.horizon, purpose=Purpose.BAD_AGAIN)))
        study.listener.run_finished(Purpose.BAD_AGAIN, runs[-1], study.outcome_of(runs[-1]))
    if study.outcome_of(runs[-1]) is not Outcome.FAIL:
        study.note(not_rebuilt(runs[-1], len(runs), settings))
    return runs


def _run(study: Study, plan: Plan) -> Run:
    """One of the runs before the search; read if it was made before.

    Raises:
        InputError: the command cannot be run, or says that it cannot be judged: then no trial says anything.
    """
    run = study.before(str(plan.name))
    if run is None or _says_nothing(run):  # what stood in its way may be gone now
        run = study.train(plan)
    died = run.seen.died
    if _says_nothing(run):
        side = "bad" if plan.purpose is Purpose.BAD_BASELINE else "good"
        log = "\n".join("    " + line for line in tail_of_log(run.folder / "log.txt", LINES_SHOWN))
        what = f"ended with exit status {died.name}, so it cannot be run"
        if died.kind == SKIPPED:
            what = "says that it cannot be judged (exit status 125)"
        raise InputError(
            f"With the {side} side the command {what}. It was: {study.target.shown}",
            f"Its last lines ({run.folder / 'log.txt'}):\n{log}" if log else "It printed nothing.",
        )
    return run


def _says_nothing(run: Run) -> bool:
    return run.seen.died is not None and run.seen.died.kind in (CANNOT_RUN, SKIPPED)
