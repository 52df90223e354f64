"""The phases for a training script, in order: reproduce, find the factors, warm up, baselines, isolate, answer.

`bisect_cfg.phases.bisection` knows how to isolate causes for any runner. What comes before it is specific to a script: run
the user's own command once, cold, to see how it fails and what it sets; find a faster sound way to start trials and
show that it fails the same way there; make sure that the good configuration works and can be afforded.

Everything that is found on the way lies in the study folder, and every phase first looks there: the same command
after a crash goes on where it was.
"""

from __future__ import annotations

import linecache
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bisect_cfg.capture.captured import read_capture
from bisect_cfg.capture.names import check_name, outdated_in, parse_pins, read_good
from bisect_cfg.capture.script import Script
from bisect_cfg.capture.settings import Settings, build_settings
from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.crash import refused_by_machine
from bisect_cfg.diagnosis import _packages
from bisect_cfg.diagnosis.environment import fingerprint
from bisect_cfg.diagnosis.signature import Signature
from bisect_cfg.diagnosis.where import Place
from bisect_cfg.errors import InputError, InputsChanged
from bisect_cfg.jsonfile import digest
from bisect_cfg.parameters import every
from bisect_cfg.phases.locate import localise
from bisect_cfg.phases.options import Options
from bisect_cfg.phases.recommend import SafeValues
from bisect_cfg.phases.start import NEEDED, Baselines
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, Raised, TrainBegin
from bisect_cfg.recommend.case import Wishes
from bisect_cfg.recommend.safe import Safe
from bisect_cfg.reports.answer import Answer
from bisect_cfg.reports.listener import Listener
from bisect_cfg.study.folder import identity_of, open_study
from bisect_cfg.trials.files import tail_of_log
from bisect_cfg.trials.inputs import Inputs
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.process import Patience
from bisect_cfg.trials.runs import Run, load_run
from bisect_cfg.trials.script import REPRODUCTION_PATIENCE, REPRODUCTION_STEPS, ScriptRunner, horizon_for
from bisect_cfg.trials.training import check_watched
from bisect_cfg.trials.verdict import FailureTest, same_as, widened

LIBRARIES = tuple(name for name in _packages.NAMES if name != "optuna")
"""Another version of one of these, or one more or less, and the trials of before say nothing any more."""


def bisect_script(script: Script, options: Options, listener: Listener) -> Answer:
    """Find which settings of a script make it fail.

    Raises:
        InputError: something about the input stands in the way.
        KeyboardInterrupt: after everything that runs was ended; the study can be resumed.
    """
    started = time.monotonic()
    environment = fingerprint(None if script.python == sys.executable else script.python)
    installed = environment.get("packages", {})
    libraries = {name: installed.get(name) for name in LIBRARIES}
    gpus = [gpu["name"] for gpu in environment.get("gpus") or ()]
    opened = open_study(script, options.study, options.identity(), options.restart, libraries, gpus)
    with opened as (folder, state):
        runner = ScriptRunner(
            script,
            folder,
            timeout=options.trial_timeout,
            jobs=options.jobs,
            devices=options.devices,
            inputs=Inputs(script, folder, state),
            on_progress=listener.step,
        )
        try:
            answer = _Phases(script, options, listener, folder, state, runner).run()
        finally:
            runner.close()
    return replace(answer, seconds=time.monotonic() - started)


TRIED_SECONDS = 30.0
TRIED_SHARE = 0.5
"""What the one run with costly defaults may take at the end: so many seconds, or this share of what the isolation
took."""

FRAMES_READ = 3
"""So many of the innermost frames of a traceback have their lines read for names of settings."""


def said_of(run: Run) -> str:
    """What a failing run said about itself: its message, and the lines of code that the exception left."""
    exception = run.traces.event(Raised) or Raised("", "", [])
    lines = [linecache.getline(path, line) for path, line, _ in exception.frames[-FRAMES_READ:]]
    return "\n".join([run.seen.message, exception.message, *lines])


# ------------------------------------------------------------------------------------------------------- the phases


class _Spent(Exception):
    """No further run is wanted."""


class _Phases:
    """One pass through the phases; the order of the methods is the order of the work."""

    def __init__(
        self,
        script: Script,
        options: Options,
        listener: Listener,
        folder: Path,
        state: dict[str, Any],
        runner: ScriptRunner,
    ) -> None:
        self.script, self.options, self.listener = script, options, listener
        self.folder, self.state, self.runner = folder, state, runner
        self.notes: list[str] = []
        self.baselines = Baselines(options, listener, folder, state, runner, self._note)
        self._started = time.monotonic()
        self._bad_run: Run | None = None

    def run(self) -> Answer:
        self.runner.before_run = self._check_budget
        try:
            return self._run()
        except _Spent as spent:
            self._note(str(spent))
            return self._answer("inconclusive", bad_run=self._bad_run)

    def _check_budget(self) -> None:
        """What comes before the search counts as well.

        Raises:
            _Spent: --max-trials or --max-seconds is used up.
        """
        done, most = len(list((self.folder / "trials").glob("*/ending.json"))), self.options.max_trials
        if most is not None and done >= most:
            raise _Spent(f"Stopped after {done} trial{'' if done == 1 else 's'}, as --max-trials asks.")
        if self.options.max_seconds is not None and self._seconds_left() <= 0:
            raise _Spent("Stopped when the time was up, as --max-seconds asks.")

    def _seconds_left(self) -> float:
        return self._started + self.options.max_seconds - time.monotonic()

    def _run(self) -> Answer:
        options, runner = self.options, self.runner
        pins = parse_pins(options.pins)
        good = read_good(options.good, self.script.good_file)
        if options.failure:
            self._widened(Signature("exit"))  # a mistake in it is said before the first run

        bad_run = self._bad_run = self._reproduce(pins)
        failure = bad_run.seen.failure
        if failure is None:
            return self._answer("no_failure", bad_run=bad_run)
        is_failure = self._widened(failure) if options.failure else same_as(failure)
        if not is_failure(failure):
            raise InputError(
                f"The run fails, but not in the way --failure {options.failure} asks for: {failure}.",
                "Leave out --failure to study the failure it shows.",
            )
        runner.learn(is_failure=is_failure, silent=bad_run.seen.died is None)
        runner.horizon = self.options.steps or horizon_for(bad_run.seen.step)
        self.listener.reproduced(bad_run.seen, runner.horizon)
        return self._compare(bad_run, good, pins)

    def _compare(self, bad_run: Run, good: dict[str, Any], pins: dict[str, Any]) -> Answer:
        """Everything that comes after the reproduction: against one good configuration."""
        runner, unmoved = self.runner, good
        if self.state.get("risky_defaults"):
            good = {**self._without_risky_defaults(bad_run, good, pins), **good}
        settings = self._find_factors(bad_run, good, pins)
        self._check_wishes(settings)
        if not settings.factors:
            self.notes.append(
                "No setting differs from the good configuration: the failure is in the script, the data or the "
                "environment, or the good configuration must be changed with --good."
            )
            return self._answer("baseline_fails", settings=settings, bad_run=bad_run)

        warm_runs, good_run = self.baselines.find(bad_run)
        settings = runner.settings
        if good_run is None:
            runs = [bad_run, *warm_runs]
            self._note(
                f"Your configuration failed in 1 of {len(runs)} runs, and never again: too rarely to tell which setting "
                "makes it fail, if a setting does. If it fails more often elsewhere, run bisect-cfg there; if later, give "
                "--steps N."
            )
            return self._answer("inconclusive", settings=settings, bad_run=bad_run, again=tuple(warm_runs))
        if self.baselines.outcome_of(good_run) is Outcome.FAIL:
            safer = self._without_risky_defaults(bad_run, unmoved, pins)
            if safer and not self.state.get("risky_defaults"):
                named = ", ".join(f"{name}={value}" for name, value in safer.items())
                self._note(f"The library's own defaults fail as well; trying a good configuration with {named}.")
                self.baselines.keep("risky_defaults", True)
                return self._compare(bad_run, unmoved, pins)
        if self.baselines.outcome_of(good_run) is not Outcome.PASS:
            return self._answer("baseline_fails", settings=settings, bad_run=bad_run, good_run=good_run)
        for symptom in good_run.seen.symptoms:
            self._note(f"About the good configuration: {symptom.text}.")
        runner.learn(usual=frozenset(symptom.kind for symptom in good_run.seen.symptoms))
        return self._isolate(bad_run, warm_runs, good_run)

    def _without_risky_defaults(self, bad_run: Run, good: Mapping[str, Any], pins: Mapping[str, Any]) -> dict[str, Any]:
        """Values in place of defaults that are known to be at fault now and then, where the run has those defaults."""
        args = read_capture(bad_run.traces.events.rows).args
        said = {name.removeprefix("args.") for name in (*good, *pins)}
        known = {name: known.risky_default for name, known in every().items() if known.risky_default}
        return {
            name: before
            for name, (default, before) in known.items()
            if name not in said and args.resolved.get(name) == default
        }

    def _widened(self, failure: Signature) -> FailureTest:
        try:
            return widened(self.options.failure, failure)
        except ValueError as error:
            raise InputError(f"{error}.", "It takes any, signal, non-finite or a regular expression.") from None

    def _answer(self, status: str, **parts: Any) -> Answer:
        return Answer(
            status,
            self.folder,
            self.script,
            start=self.runner.starts.level,
            horizon=self.runner.horizon,
            notes=tuple(self.notes),
            **parts,
        )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.listener.note(text)

    # --------------------------------------------------------------------------------------------- reproduce

    def _reproduce(self, pins: dict[str, Any]) -> Run:
        """The user's own command, cold, watched and redirected but otherwise unchanged."""
        known = load_run(self.folder, 0)
        if known is not None:
            self.listener.phase("resume", f"continuing the study in {self.folder}")
            run = known
        else:
            self.listener.phase("reproduce", "running your command as it is, to see it fail")
            if self.options.start != "cold":
                self.runner.starts.prepare()
            timeout = self.options.trial_timeout
            patience = REPRODUCTION_PATIENCE
            if timeout is not None:
                patience = Patience(max(patience.before_training, timeout), timeout, timeout)
            encoded = {(name if "." in name else f"args.{name}"): value for name, value in pins.items()}
            plan = Plan(
                0,
                {},
                self.options.steps or REPRODUCTION_STEPS,
                level="cold",
                patience=patience,
                until_it_dies=True,
                overrides=encoded,
            )
            run = self.runner.train(plan)
        begun = run.traces.event(TrainBegin)
        self.runner.starts.seconds = begun.time if begun else run.seen.seconds
        self._check_that_it_trains(run)
        self.listener.run_finished(Purpose.BAD_BASELINE, run, Outcome.FAIL if run.seen.failure else Outcome.PASS)
        return run

    def _check_that_it_trains(self, run: Run) -> None:
        """A run that never came to its configuration has nothing to bisect.

        Raises:
            InputError: with the end of its log.
        """
        check_watched(run.traces)
        capture = read_capture(run.traces.events.rows)
        log = "\n".join("    " + line for line in tail_of_log(run.folder / "log.txt", 8))
        where = f"Its last lines ({run.folder / 'log.txt'}):\n{log}" if log else "It printed nothing."
        if run.seen.invalid is not None:
            raise InputError(
                f"Your configuration is not valid for the installed library, so no training ever starts: "
                f"{run.seen.invalid}",
                "There is nothing to bisect until it can be built.",
            )
        if capture is None:
            hint = f" {outdated}" if (outdated := outdated_in(log)) else ""
            if run.seen.died is not None and run.seen.died.kind == "no-training":
                what = "ended without ever building a training config (GRPOConfig or another TrainingArguments)"
            else:
                what = f"died before it built a training config: {run.seen.message or run.seen.died}"
            raise InputError(
                f"The script {self.script.path} {what}.{hint}",
                f"It must do so when started as: {self.script.shown}\n{where}",
            )
        if run.seen.died is not None and run.seen.died.kind == "no-training":
            raise InputError(
                f"The script {self.script.path} built its configuration and ended without training.",
                f"It must call the trainer's train() when started as: {self.script.shown}\n{where}",
            )

    # --------------------------------------------------------------------------------------------- factors

    def _find_factors(self, bad_run: Run, good: dict[str, Any], pins: dict[str, Any]) -> Settings:
        self.listener.phase("factors", "comparing your settings with the good ones")
        capture = self.runner.starts.capture = read_capture(bad_run.traces.events.rows)
        settings = build_settings(
            capture,
            self._resolve,
            good=good,
            pins=pins,
            only=self.options.only,
            excluded=self.options.excluded,
        )
        self._everything = settings
        needed = self.state.get("needed")
        settings = settings.without(self.state.get("moved", ()))
        settings = settings.without([needed], NEEDED) if needed else settings
        self.runner.learn(settings=settings)
        for note in settings.notes:
            self._note(note)
        self.listener.factors(settings)
        return settings

    def _check_wishes(self, settings: Settings) -> None:
        """Names after --keep must exist.

        Raises:
            InputError: with the nearest real name.
        """
        known = dict.fromkeys([*(factor.name for factor in settings.factors), *settings.capture.args.types], "")
        for name in self.options.keep:
            check_name(name.removeprefix("args."), known, "--keep")

    def _resolve(self, item: BuildRequest) -> BuildAnswer:
        """Resolve in the process that the trials will be forked from, if it has to be done at all."""

        def build(request: BuildRequest) -> BuildAnswer:
            next((level for level in self.baselines.levels() if self.baselines.bring_up(level)), None)
            return self.runner.starts.resolve(request)

        return self.runner.checks.resolve(item, build)

    # --------------------------------------------------------------------------------------------- isolate

    def _isolate(self, bad_run: Run, warm_runs: list[Run], good_run: Run) -> Answer:
        from sqlalchemy.exc import SQLAlchemyError

        from bisect_cfg.parameters.odds import odds_of
        from bisect_cfg.phases.bisection import Bisection
        from bisect_cfg.recommend.candidates import weight
        from bisect_cfg.study.encoding import result_of
        from bisect_cfg.study.store import StudyMismatch

        runner, options, settings = self.runner, self.options, self.runner.settings
        self.listener.phase("isolate", "")
        failure_seen = bad_run.seen.failure
        failure = failure_seen.kind if failure_seen else ""
        odds = odds_of(list(settings.bad), options.prior, failure, said_of(bad_run))
        try:
            storage, name, identity = self._study_in_storage(failure_seen)
            bisection = Bisection(
                settings.good,
                settings.bad,
                runner,
                storage=storage,
                study_name=name,
                identity=identity,
                max_trials=options.max_trials,
                jobs=options.jobs,
                strategy=options.strategy,
                first=options.first,
                confidence=options.confidence,
                prior=dict(zip(settings.bad, odds)) if odds else options.prior,
                confirm=options.confirm,
                loss={name: weight(name, options.keep) for name in settings.bad},
                work=settings.work_of_each(),
                is_failure=lambda result: True,  # the runner has compared signatures already
                on_event=self.listener.event,
                max_seconds=None if options.max_seconds is None else max(0.0, self._seconds_left()),
            )
        except StudyMismatch as error:
            raise InputError(str(error), "Start over with --restart, or name another folder with --study.") from None
        except (SQLAlchemyError, ImportError) as error:
            if refused_by_machine(error):
                raise
            where = options.storage or self.folder / "study.db"
            raise InputError(
                f"The storage {where} cannot be opened: {str(error).splitlines()[0]}.",
                "Check its address and that its database driver is installed."
                if options.storage
                else "Start over with --restart (the old study is kept beside it), or name another folder with --study.",
            ) from None
        runner.before_run = None  # from here on the search counts
        bisection.add(settings.bad, runner.judged(bad_run, None), Purpose.BAD_BASELINE)
        for run in warm_runs:
            bisection.add(settings.bad, runner.judged(run, runner.horizon), f"warm start: {run.folder.name}")
        bisection.add(settings.good, runner.judged(good_run, runner.horizon), Purpose.GOOD_BASELINE)
        runner.recall(result_of(trial) for trial in bisection.study.trials if trial.state.is_finished())
        self.listener.isolating(bisection.progress)
        report = bisection.run()
        details = {trial.number: trial.user_attrs.get("attributes", {}) for trial in bisection.study.trials}
        place = safe = stopped = None
        try:
            report = self._with_defaults_of_the_moved(report)
            place = self._place(settings, report, bad_run)
            if options.recommend and report.status == "isolated":
                safe = self._find_safe_values(bisection.study, report, bad_run, good_run, details)
                details = {**details, **safe.details}
                best = {**settings.bad, **safe.best.changes} if safe.best else None
                report = replace(report, rows=(*report.rows, *safe.rows), safe_configuration=best)
        except InputsChanged as error:  # the causes stand on what ran before
            stopped = error
            self._note(error.message)
        return self._answer(
            report.status,
            settings=settings,
            bad_run=bad_run,
            good_run=good_run,
            report=report,
            details=details,
            place=place,
            safe=safe,
            stopped=stopped,
        )

    def _study_in_storage(self, failure: Signature | None) -> tuple[Any, str, dict[str, Any]]:
        """The storage, the study's name there, and what tells it from the others."""
        from bisect_cfg.study.storage import open_storage, sqlite_storage, study_name

        address, keep, settings = self.options.storage, self.baselines.keep, self.runner.settings
        if "identity" not in self.state:  # settled once: later runs may learn of further inputs
            factors = {factor.name: [factor.good, factor.bad] for factor in settings.factors}
            keep("identity", identity_of(self.state, str(failure), factors))
        identity = self.state["identity"]
        if not address:
            return sqlite_storage(self.folder / "study.db"), self.script.name, identity
        storage, names = open_storage(address), self.state.get("studies", {})
        if digest(address) not in names:
            name = study_name(storage, self.script.name, identity, self.state.get("anew", False))
            keep("studies", {**names, digest(address): name})
        return storage, self.state["studies"][digest(address)], identity

    def _with_defaults_of_the_moved(self, report: Any) -> Any:
        """Where settings were taken over from the user because their defaults are costly: does the cause need them?

        One run of the cause with their defaults tells, if it fails soon enough to be affordable.
        """
        moved = [factor for factor in self._everything.factors if factor.name in self.state.get("moved", ())]
        if not moved or not report.causes:
            return report
        runner, settings = self.runner, self.runner.settings
        names = ", ".join(factor.name for factor in moved)
        cause = report.causes[0]
        configuration = {**settings.good, **{name: value["bad"] for name, value in cause.values.items()}}
        configuration.update({name: settings.bad[name] for name in cause.companions})
        configuration.update({factor.name: factor.reset for factor in moved})
        affordable = max(TRIED_SECONDS, TRIED_SHARE * report.seconds)
        run = load_run(self.folder, "defaults-of-the-moved")
        if run is None:
            self.listener.phase("defaults", f"trying the cause with the defaults of {names}")
            plan = Plan(
                "defaults-of-the-moved",
                configuration,
                runner.horizon,
                costly=lambda traces, seconds: seconds > affordable,
            )
            run = runner.train(plan)
        outcome = self.baselines.outcome_of(run)
        if outcome is Outcome.FAIL:
            self._note(f"With the library's {names} it fails too, so yours are no part of the cause.")
            return report
        if outcome is Outcome.PASS and not run.costly:
            self._note(
                f"With the library's {names} instead of yours it passes ({run.seen.steps} steps), so the failure "
                "needs your value as well."
            )
        else:
            self._note(
                f"Whether the failure needs your {names} was not settled: with the library's values a run takes too long."
            )
        return replace(report, complete=False)

    def _place(self, settings: Settings, report: Any, bad_run: Run) -> Place | None:
        """Where it fails, by one more run; it has no say in the answer."""
        if not self.options.where or not report.causes:
            return None
        self.listener.phase("where", "looking for the place where it fails, with the instruments on")
        return localise(self.runner, settings, report, bad_run)

    def _find_safe_values(
        self, study: Any, report: Any, bad_run: Run, good_run: Run, details: Mapping[int, Mapping[str, Any]]
    ) -> Safe:
        options = self.options
        self.listener.phase("safe values", "looking for safe values")
        wishes = Wishes(
            margin=options.margin,
            ratio=options.ratio,
            verify_steps=options.verify_steps,
            verify_seeds=options.verify_seeds,
            remedies=options.remedies,
            keep=options.keep,
            frontier=options.frontier,
            jobs=options.jobs,
            max_trials=options.max_trials,
            deadline=None if options.max_seconds is None else self._started + options.max_seconds,
        )
        return SafeValues(
            self.runner,
            study,
            report,
            bad_run,
            good_run,
            wishes,
            folder_of=lambda number: str(details.get(number, {}).get("folder", number)),
            started=self.listener.safe_run_started,
            finished=self.listener.safe_run_finished,
        ).run()
