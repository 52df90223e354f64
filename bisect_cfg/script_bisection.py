"""The phases for a training script, in order: reproduce, find the factors, warm up, baselines, isolate, answer.

`bisect_cfg.bisection` knows how to isolate causes for any runner. What comes before it is specific to a script: run
the user's own command once, cold, to see how it fails and what it sets; find a faster sound way to start trials and
show that it fails the same way there; make sure that the good configuration works and can be afforded.

Everything that is found on the way lies in the study folder, and every phase first looks there: the same command
after a crash goes on where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bisect_cfg.diagnosis.environment import fingerprint
from bisect_cfg.diagnosis.signature import Signature
from bisect_cfg.errors import InputError
from bisect_cfg.factors import Outcome
from bisect_cfg.localise import Place, localise
from bisect_cfg.recommend.case import Judgement, Wishes
from bisect_cfg.recommend.phase import Safe, SafeValues
from bisect_cfg.recommend.plan import MARGIN
from bisect_cfg.recommend.runs import Question
from bisect_cfg.study_folder import open_study, save_state
from bisect_cfg.targets.names import SUCCESSORS, parse_assignment, read_good_file
from bisect_cfg.targets.script import Script, hash_of
from bisect_cfg.targets.settings import RESOURCES, Settings, build_settings, read_capture
from bisect_cfg.trials.files import tail_of_log
from bisect_cfg.trials.process import Patience
from bisect_cfg.trials.script import (
    LEVELS,
    REPRODUCTION_PATIENCE,
    REPRODUCTION_STEPS,
    Run,
    ScriptRunner,
    horizon_for,
    load_run,
)
from bisect_cfg.trials.verdict import FailureTest, Observation, judge, same_as, widened

LIBRARIES = ("torch", "transformers", "trl", "accelerate", "peft")
"""Another version of one of these and the trials of before say nothing any more."""

WARM_TRIES = 2
"""How often the bad configuration may pass at a start level before that level is given up: a failure can be random,
but a level that hides it is of no use."""

DEAR_FACTOR = 3.0
DEAR_SECONDS = 5.0
"""The good configuration cannot be afforded when its steps take this many times as long as those of the user's own,
and more than so many seconds each: library defaults can mean eight long completions where the user has one."""


@dataclass(frozen=True)
class Options:
    """What the command line can say; see `bisect-cfg bisect --help`."""

    study: Path | None = None
    good: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    steps: int | None = None
    trial_timeout: float | None = None
    jobs: int = 1
    devices: tuple[str, ...] = ()
    strategy: str = "adaptive"
    failure: str | None = None
    first: bool = False
    confirm: int = 3
    confidence: float = 0.95
    prior: str = "risk"
    level: str | None = None
    max_trials: int | None = None
    max_seconds: float | None = None
    storage: str | None = None
    restart: bool = False
    where: bool = True
    recommend: bool = True
    margin: float = MARGIN
    verify_steps: int | None = None
    verify_seeds: int = 3
    keep: tuple[str, ...] = ()
    frontier: int | None = None

    def identity(self) -> dict[str, Any]:
        """The options that change what the trials mean; a study keeps them."""
        return {
            "good": sorted(self.good),
            "pins": sorted(self.pins),
            "only": sorted(self.only),
            "except": sorted(self.excluded),
            "failure": self.failure,
        }


class Listener:
    """What a view hears of; every method may be overridden, none must be."""

    def phase(self, name: str, detail: str = "") -> None:
        """A new phase begins."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def step(self, number: int | str, steps: int, horizon: int | None) -> None:
        """A trial has made a step."""

    def run_finished(self, purpose: str, run: Run, outcome: Outcome | None) -> None:
        """One of the runs before the bisection proper is over."""

    def reproduced(self, seen: Observation, horizon: int) -> None:
        """The failure under study is known."""

    def factors(self, settings: Settings) -> None:
        """The factors are known."""

    def isolating(self, bisection: Any) -> None:
        """The bisection proper begins."""

    def event(self, event: Any) -> None:
        """An event of the bisection proper (see `bisect_cfg.bisection`)."""

    def safe_run_started(self, number: int, question: Question) -> None:
        """A run that looks for safe values begins."""

    def safe_run_finished(self, number: int, question: Question, judgement: Judgement, seconds: float) -> None:
        """... and has ended."""


@dataclass(frozen=True)
class Answer:
    """What came out, for the reports.

    Attributes:
        status: as in result.json.
        folder: the study folder.
        script: the target.
        settings: the factors; None if it did not come to that.
        bad_run: the first reproduction.
        report: of the bisection proper; None if it did not come to that.
        level: how trials were started.
        horizon: steps per trial.
        notes: sentences for the user.
        details: by trial number, what the runner kept of it (folder, steps, remarks, ...).
        seconds: wall-clock time of this call.
        place: where the failure happens; None if it was not looked for, or nothing came out.
        safe: what was found to train; None if it did not come to that.
    """

    status: str
    folder: Path
    script: Script
    settings: Settings | None = None
    bad_run: Run | None = None
    good_run: Run | None = None
    report: Any = None
    level: str = "cold"
    horizon: int | None = None
    notes: tuple[str, ...] = ()
    details: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    place: Place | None = None
    safe: Safe | None = None


def bisect_script(script: Script, options: Options, listener: Listener) -> Answer:
    """Find which settings of a script make it fail.

    Raises:
        InputError: something about the input stands in the way.
        KeyboardInterrupt: after everything that runs was ended; the study can be resumed.
    """
    started = time.monotonic()
    installed = fingerprint(None if script.python == sys.executable else script.python).get("packages", {})
    libraries = {name: version for name, version in installed.items() if name in LIBRARIES}
    with open_study(script, options.study, options.identity(), options.restart, libraries) as (folder, state):
        runner = ScriptRunner(
            script,
            folder,
            timeout=options.trial_timeout,
            jobs=options.jobs,
            devices=options.devices,
            on_progress=listener.step,
        )
        try:
            answer = _Phases(script, options, listener, folder, state, runner).run()
        finally:
            runner.close()
    return replace(answer, seconds=time.monotonic() - started)


# ------------------------------------------------------------------------------------------------------- the phases


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
        self._unsound: dict[str, str] = {}  # level -> why trials cannot start there
        self._started = time.monotonic()

    def run(self) -> Answer:
        options, runner = self.options, self.runner
        pins = dict(parse_assignment(text, "--pin") for text in options.pins)
        good = self._read_good()
        if options.failure:
            self._widened(Signature("exit"))  # a mistake in it is said before the first run

        bad_run = self._reproduce(pins)
        failure = bad_run.seen.failure
        if failure is None:
            return self._answer("no_failure", bad_run=bad_run)
        runner.is_failure = self._widened(failure) if options.failure else same_as(failure)
        if not runner.is_failure(failure):
            raise InputError(
                f"The run fails, but not in the way that --failure {options.failure} asks for: {failure}.",
                "Leave --failure out to study the failure that it shows.",
            )
        runner.silent = bad_run.seen.died is None
        runner.horizon = self.options.steps or horizon_for(bad_run.seen.step)
        self.listener.reproduced(bad_run.seen, runner.horizon)

        settings = self._find_factors(bad_run, good, pins)
        if not settings.factors:
            self.notes.append(
                "No setting differs from the good configuration: the failure is in the script, the data or the "
                "environment, or the good configuration has to be moved with --good."
            )
            return self._answer("baseline_fails", settings=settings, bad_run=bad_run)

        warm_runs, good_run = self._baselines(bad_run)
        settings = runner.settings
        if self._outcome(good_run) is not Outcome.PASS:
            return self._answer("baseline_fails", settings=settings, bad_run=bad_run, good_run=good_run)
        for symptom in good_run.seen.symptoms:
            self._note(f"A remark on the good configuration: {symptom.text}.")
        runner.usual = frozenset(symptom.kind for symptom in good_run.seen.symptoms)
        runner.good_pace = good_run.seen.pace
        return self._isolate(bad_run, warm_runs, good_run)

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
            level=self.runner.level,
            horizon=self.runner.horizon,
            notes=tuple(self.notes),
            **parts,
        )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.listener.note(text)

    # --------------------------------------------------------------------------------------------- reproduce

    def _read_good(self) -> dict[str, Any]:
        good: dict[str, Any] = {}
        if self.script.good_file is not None:
            good.update(read_good_file(self.script.good_file))
        for text in self.options.good:
            if "=" not in text and Path(text).is_file():
                good.update(read_good_file(Path(text)))
            else:
                good.update([parse_assignment(text, "--good")])
        return good

    def _reproduce(self, pins: dict[str, Any]) -> Run:
        """The user's own command, cold, watched and redirected but otherwise unchanged."""
        known = load_run(self.folder, 0)
        if known is not None:
            self.listener.phase("resume", f"going on with the study in {self.folder}")
            run = known
        else:
            self.listener.phase("reproduce", "running your command as it is, to see it fail")
            if self.options.level != "cold":
                self.runner.prepare_server()
            timeout = self.options.trial_timeout
            patience = REPRODUCTION_PATIENCE
            if timeout is not None:
                patience = Patience(max(patience.before_training, timeout), timeout, timeout)
            encoded = {(name if "." in name else f"args.{name}"): value for name, value in pins.items()}
            run = self.runner.train(
                0,
                {},
                self.options.steps or REPRODUCTION_STEPS,
                level="cold",
                patience=patience,
                until_it_dies=True,
                overrides=encoded,
            )
        begun = run.traces.event("train_begin")
        if "modules" not in self.state:
            files = (begun or {}).get("own_files", ())
            self._keep("modules", {path: hash_of(Path(path)) for path in files if Path(path).is_file()})
        self.runner.start_seconds = begun["time"] if begun else run.seen.seconds
        self._check_that_it_trains(run)
        self.listener.run_finished("bad baseline", run, Outcome.FAIL if run.seen.failure else Outcome.PASS)
        return run

    def _check_that_it_trains(self, run: Run) -> None:
        """A run that never came to its configuration has nothing to bisect.

        Raises:
            InputError: with the end of its log.
        """
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
            hint = next((f" {name}: {text}" for name, text in SUCCESSORS.items() if name in log), "")
            if run.seen.died is not None and run.seen.died.kind == "no-training":
                what = "ended without ever building a training config (GRPOConfig or another TrainingArguments)"
            else:
                what = f"died before it built a training config: {run.seen.message or run.seen.died}"
            raise InputError(
                f"The script {self.script.path} {what}.{hint}",
                f"It must do so when started as: {' '.join(self.script.command)}\n{where}",
            )
        if run.seen.died is not None and run.seen.died.kind == "no-training":
            raise InputError(
                f"The script {self.script.path} built its configuration and ended without training.",
                f"It must call the trainer's train() when started as: {' '.join(self.script.command)}\n{where}",
            )

    # --------------------------------------------------------------------------------------------- factors

    def _find_factors(self, bad_run: Run, good: dict[str, Any], pins: dict[str, Any]) -> Settings:
        self.listener.phase("factors", "comparing your settings with the good ones")
        capture = self.runner.capture = read_capture(bad_run.traces.events.rows)
        settings = build_settings(
            capture,
            self._resolve,
            good=good,
            pins=pins,
            only=self.options.only,
            excluded=self.options.excluded,
        )
        settings = settings.without(self.state.get("moved", ()))
        self.runner.settings = settings
        for note in settings.notes:
            self._note(note)
        self.listener.factors(settings)
        return settings

    def _resolve(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Resolve in the process that the trials will be forked from, if it has to be done at all."""

        def build(request: Mapping[str, Any]) -> dict[str, Any]:
            next((level for level in self._levels() if self._bring_up(level)), None)
            return self.runner.resolve(request)

        return self.runner.checks.resolve(item, build)

    # --------------------------------------------------------------------------------------------- baselines

    def _baselines(self, bad_run: Run) -> tuple[list[Run], Run]:
        """Find the fastest way to start trials at which both configurations behave as they should.

        At a sound level the bad configuration fails as it does cold, and the good one passes. A script can make a
        level unsound in ways that only show in the second trial (it deletes a folder that all forks share), so a
        good configuration that dies is tried at the next level before it is believed.

        Returns:
            The runs of the bad configuration at the chosen level, and the run of the good one.
        """
        for level in self._levels():
            warm_runs = self._warm_start(level)
            if warm_runs is None:
                continue
            good_run = self._good_baseline(bad_run, level)
            outcome = self._outcome(good_run)
            if outcome is Outcome.UNRESOLVED and level != "cold":
                self._note(
                    f"Started at level {level} the good configuration ends with {good_run.seen.failure}; "
                    "trying a start from further back."
                )
                continue
            break
        self._keep("level", level)
        self.listener.run_finished("good baseline", good_run, outcome)
        return warm_runs, good_run

    def _outcome(self, run: Run) -> Outcome:
        return judge(run.seen, self.runner.is_failure, frozenset(run.seen.silent_kinds))[0]

    def _levels(self) -> tuple[str, ...]:
        """The start levels still to be considered: none warmer than was settled before, or than the user allows."""
        wanted = [level for level in (self.state.get("level"), self.options.level) if level]
        return LEVELS[max((LEVELS.index(level) for level in wanted), default=0) :]

    def _bring_up(self, level: str) -> bool:
        reason = self._unsound.get(level) or self.runner.start_server(level)
        if reason is not None and level not in self._unsound:
            self._unsound[level] = reason
            self._note(f"Trials cannot start at level {level}: {reason}.")
        return reason is None

    def _warm_start(self, level: str) -> list[Run] | None:
        """Bring a level up and see the bad configuration fail there; None if the level is of no use."""
        self.listener.phase("warm start", f"level {level}")
        if self.state.get("level") == level:
            self.runner.level = level  # settled before; the server comes up when a trial needs it
        elif not self._bring_up(level):
            return None
        if level == "cold":
            return []
        runs = []
        for attempt in range(WARM_TRIES):
            run = self._baseline(f"bad-{level}-{attempt + 1}", self.runner.settings.bad)
            runs.append(run)
            outcome = self._outcome(run)
            self.listener.run_finished("warm start", run, outcome)
            if outcome is Outcome.FAIL:
                return runs
        shown = runs[-1].seen.failure
        self._note(
            f"Started at level {level} the bad configuration "
            f"{'passes' if shown is None else f'ends with {shown}'}; trying a start from further back."
        )
        return None

    def _keep(self, key: str, value: Any) -> None:
        if self.state.get(key) != value:
            self.state[key] = value
            save_state(self.folder, self.state)

    def _baseline(self, name: str, configuration: dict[str, Any]) -> Run:
        known = load_run(self.folder, name)
        if known is not None:
            return known
        return self.runner.train(name, configuration, self.runner.horizon)

    def _good_baseline(self, bad_run: Run, level: str) -> Run:
        """Run the good configuration; move the user's resource settings into it if it cannot be afforded."""
        self.listener.phase("good baseline", "making sure the good configuration trains")
        moved = "moved" in self.state
        run = self._baseline(f"good-{level}{'-affordable' if moved else ''}", self.runner.settings.good)
        if not moved:
            reason = self._unaffordable(run, bad_run)
            names = [
                factor.name
                for factor in self.runner.settings.factors
                if factor.name.split(".")[0] in RESOURCES and factor.name not in self.options.only
            ]
            if reason and names:
                self._keep("moved", names)
                self._keep("moved_because", reason)
                self.runner.settings = self.runner.settings.without(names)
                run = self._baseline(f"good-{level}-affordable", self.runner.settings.good)
        if self.state.get("moved"):
            self._note(
                f"With the library's defaults the good configuration cannot be afforded here "
                f"({self.state['moved_because']}), so it keeps your {', '.join(self.state['moved'])}. "
                "Name them with --only to vary them all the same."
            )
        return run

    def _unaffordable(self, good: Run, bad: Run) -> str:
        if good.seen.died is not None and good.seen.died.kind == "out-of-memory":
            return "it runs out of memory"
        hung = good.seen.died is not None and good.seen.died.kind == "hang"
        if hung and not (bad.seen.died is not None and bad.seen.died.kind == "hang"):
            return "its steps take too long"
        theirs = bad.seen.pace or (bad.seen.seconds - self.runner.start_seconds)
        ours = good.seen.pace
        if ours is not None and ours > DEAR_SECONDS and ours > DEAR_FACTOR * theirs:
            return f"its steps take {ours:.0f} s, yours {theirs:.0f} s"
        return ""

    # --------------------------------------------------------------------------------------------- isolate

    def _isolate(self, bad_run: Run, warm_runs: list[Run], good_run: Run) -> Answer:
        from sqlalchemy.exc import SQLAlchemyError

        from bisect_cfg.bisection import Bisection
        from bisect_cfg.recommend.ways import weight
        from bisect_cfg.storage import sqlite_storage
        from bisect_cfg.study import StudyMismatch

        runner, options, settings = self.runner, self.options, self.runner.settings
        self.listener.phase("isolate", "")
        try:
            bisection = Bisection(
                settings.good,
                settings.bad,
                runner,
                storage=options.storage or sqlite_storage(self.folder / "study.db"),
                study_name=self.script.name,
                max_trials=options.max_trials,
                jobs=options.jobs,
                strategy=options.strategy,
                first=options.first,
                confidence=options.confidence,
                prior=options.prior,
                confirm=options.confirm,
                loss={name: weight(name, options.keep) for name in settings.bad},
                is_failure=lambda result: True,  # the runner has compared signatures already
                on_event=self.listener.event,
                max_seconds=options.max_seconds,
            )
        except StudyMismatch as error:
            raise InputError(str(error), "Start anew with --restart, or name another folder with --study.") from None
        except (SQLAlchemyError, ImportError) as error:
            where = options.storage or self.folder / "study.db"
            raise InputError(
                f"The storage {where} cannot be opened: {str(error).splitlines()[0]}.",
                "Check its address and that its database driver is installed." if options.storage else
                "Start anew with --restart (the old study is kept beside it), or name another folder with --study.",
            ) from None
        bisection.add(settings.bad, runner.judged(bad_run, None), "bad baseline")
        for run in warm_runs:
            bisection.add(settings.bad, runner.judged(run, runner.horizon), f"warm start: {run.folder.name}")
        bisection.add(settings.good, runner.judged(good_run, runner.horizon), "good baseline")
        self.listener.isolating(bisection)
        report = bisection.run()
        details = {trial.number: trial.user_attrs.get("attributes", {}) for trial in bisection.study.trials}
        place = self._place(settings, report, bad_run)
        safe = None
        if options.recommend and report.status == "isolated":
            safe = self._find_safe_values(bisection.study, report, bad_run, good_run, details)
            details = {**details, **safe.details}
            best = {**settings.bad, **safe.best.changes} if safe.best else report.safe_configuration
            report = replace(report, rows=(*report.rows, *safe.rows), safe_configuration=best)
        return self._answer(
            report.status,
            settings=settings,
            bad_run=bad_run,
            good_run=good_run,
            report=report,
            details=details,
            place=place,
            safe=safe,
        )

    def _place(self, settings: Settings, report: Any, bad_run: Run) -> Place | None:
        """Where it fails, by one more run; it has no say in the answer."""
        if not self.options.where or not report.causes:
            return None
        self.listener.phase("where", "looking where it fails, with the instruments on")
        return localise(self.runner, settings, report, bad_run)

    def _find_safe_values(
        self, study: Any, report: Any, bad_run: Run, good_run: Run, details: Mapping[int, Mapping[str, Any]]
    ) -> Safe:
        options = self.options
        self.listener.phase("safe values", "looking for values that train")
        wishes = Wishes(
            margin=options.margin,
            verify_steps=options.verify_steps,
            verify_seeds=options.verify_seeds,
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
