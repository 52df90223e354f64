"""The baselines of a script: a sound way to start trials, the bad configuration failing there, the good one training.

What is decided here is recomputed from the runs: each answers a question that has a name, and a study that is resumed
walks the same way again without a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from bisect_cfg.capture.captured import read_capture
from bisect_cfg.capture.launched import PROCESSES, SHARDED, SHARDING
from bisect_cfg.configuration import Configuration, Factor, Outcome, Purpose, Value
from bisect_cfg.parameters import every, parameter
from bisect_cfg.parameters.odds import names_it
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, CheckpointOrders, Origin
from bisect_cfg.reports.text import duration
from bisect_cfg.runner.plan import PACE_STEPS, Plan
from bisect_cfg.runner.runs import Run, purpose_again
from bisect_cfg.runner.starts import COLD, STARTS
from bisect_cfg.runner.verdict import INVALID
from bisect_cfg.store.causes import Report
from bisect_cfg.study.study import Study

WARM_TRIES = 2
"""How often the bad configuration may pass at a warm start before that start is given up: a failure can be
random, but a start that hides it is of no use."""

COLD_TRIES = 3
"""The same for a cold start, which is the user's own command again: what does not fail a second time in so many runs
(and those at the warmer starts) is too rare to be isolated."""

BLAMED_AFTER = 3
"""Where the failure did not show at a warmer start, so many failures in a row at the next one put that down to the
start; otherwise to chance, and the passes count in how often it fails."""

COSTLY_FACTOR = 3.0
COSTLY_SECONDS = 5.0
"""The good configuration cannot be afforded when its steps take this many times as long as those of the user's own,
and more than so many seconds each: library defaults can mean eight long completions where the user has one."""

NEEDED = "the good configuration ends in another failure without it"
"""Why a setting is not varied that the script cannot do without."""

NEEDED_TRIES = 8
"""So many runs, at most, look for settings of the user's that the good configuration cannot do without: halving finds
one of 128, and one that the failure names is found at once."""

TRIED_SECONDS = 30.0
TRIED_SHARE = 0.5
"""What the one run with costly defaults may take at the end: so many seconds, or this share of what the isolation
took."""

DEFAULTS = "defaults-of-the-moved"
"""The question of that run."""


def without_risky_defaults(bad_run: Run, good: Configuration, pins: Configuration) -> dict[str, Value]:
    """Values in place of defaults that are known to be at fault now and then, where the run has those defaults."""
    args = read_capture(bad_run.traces.events.rows).args
    said = {name.removeprefix("args.") for name in (*good, *pins)}
    known = {name: known.risky_default for name, known in every().items() if known.risky_default}
    return {
        name: before
        for name, (default, before) in known.items()
        if name not in said and args.resolved.get(name) == default
    }


class Baselines:
    """Finds them, once with the library's own defaults and, where those fail too, without the risky ones.

    Attributes:
        moved: name -> the factor that keeps the user's value, as its default cannot be afforded.
    """

    _at = ""  # of the questions: where the runs begin

    def __init__(self, study: Study) -> None:
        self._study, self._runner = study, study.runner
        self.moved: dict[str, Factor] = {}
        self._needed: list[str] = []
        self._tries = 0  # runs that looked for what is needed
        self._settled: str | None = None  # the start that was settled on
        self._unsound: dict[str, str] = {}  # start -> why trials cannot begin there
        self._passed: list[Run] = []  # runs of the bad configuration that passed at a start that was given up

    def begin_at(self, origin: Origin | None) -> None:
        """Look for them anew where the runs begin at another step."""
        self._at = "" if origin is None else f"-from-{origin.step}"
        if origin is not None and origin.checkpoint is None:
            self._at = f"-data-of-{origin.step}" + (f"-{origin.draw}" if origin.draw else "")
        self._settled, self._passed, self._tries = None, [], 0

    def fails_once(self, checkpoints: CheckpointOrders | None = None) -> Run | None:
        """The run in which the bad configuration fails where runs begin now, at the first start that comes up; None if
        it does not fail in one.

        Args:
            checkpoints: how that run saves some of its own.
        """
        start = next(filter(self.come_up, self.allowed()), None)
        if start is None:
            return None
        run = self._run(self._bad_plan(start, 1, checkpoints))
        return run if self._study.outcome_of(run) is Outcome.FAIL else None

    def find(self, bad_run: Run) -> tuple[list[Run], Run | None]:
        """Find the fastest way to start trials at which both configurations behave as they should.

        At a sound start the bad configuration fails as it does cold, and the good one passes. A script can make a
        start unsound in ways that only show in the second trial (it deletes a folder that all forks share), so a
        good configuration that dies is tried at the next start before it is believed.

        Returns:
            The further runs of the bad configuration that count, and the run of the good one; None in its place if
            the failure never showed again.
        """
        self._keep(self.moved)  # what a first pass, with the risky defaults, has found
        self._keep(self._needed, NEEDED)
        good_run, outcome = None, Outcome.UNRESOLVED
        again: list[Run] = []
        ended: list[tuple[str, list[Run], Run]] = []  # starts at which the good configuration met another failure
        for start in self.allowed():
            found = self._warm_start(start)
            if found is None:
                continue
            again = found
            good_run = self._good_baseline(bad_run, start)
            outcome = self._study.outcome_of_good(good_run)
            if outcome is Outcome.UNRESOLVED:
                ended.append((start, again, good_run))
                good_run = self._keeping(bad_run, start, good_run, named=True)
                outcome = self._study.outcome_of_good(good_run)
            if outcome is Outcome.UNRESOLVED and start != COLD:
                self._study.note(
                    f"In trials {STARTS[start].said} the good configuration ends with {good_run.shown.signature}; "
                    "trying a colder start."
                )
                continue
            break
        if good_run is None:
            return self._passed, None
        if outcome is Outcome.UNRESOLVED:
            start, again, good_run = self._with_what_it_needs(bad_run, ended)
            outcome = self._study.outcome_of_good(good_run)
        self._settled = start
        self._study.listener.run_finished(Purpose.GOOD_BASELINE, good_run, outcome)
        return again, good_run

    def _with_what_it_needs(self, bad_run: Run, ended: list[tuple[str, list[Run], Run]]) -> tuple[str, list[Run], Run]:
        """The script cannot do without something of the user's (`max_steps` for data of unknown length): find that
        setting and leave it as it is; then what it dies of next, if it does.

        Args:
            bad_run: the reproduction.
            ended: start, runs of the bad configuration there, and how the good one ended there, coldest last.

        Returns:
            The start, the runs of the bad configuration that count, and the run of the good one; the coldest of `ended`
            if no single setting is enough.
        """
        start, again, good_run = ended[-1]
        for other in ended:  # what a cold start shows as well is not owed to the warm one
            same = str(other[2].shown.signature) == str(good_run.shown.signature)
            if same and (other[0] == start or self.bring_up(other[0])):
                start, again, good_run = other
                break
        good_run = self._keeping(bad_run, start, good_run)
        if self._study.outcome_of_good(good_run) is Outcome.UNRESOLVED and not self._needed:
            return ended[-1]
        return start, again, good_run

    def _keeping(self, bad_run: Run, start: str, good_run: Run, named: bool = False) -> Run:
        """Leave as the user has it what the good configuration cannot do without, one setting after another.

        Args:
            bad_run: the reproduction.
            start: of the runs.
            good_run: how the good configuration ended there.
            named: only a setting that the failure names, if it names one alone.

        Returns:
            The last run of the good configuration.
        """
        while self._study.outcome_of_good(good_run) is Outcome.UNRESOLVED:
            name = self._find_needed(good_run, start, self._allowed(bad_run), named)
            if name is None:
                break
            value, ending = self._runner.settings.bad[name], good_run.shown.signature
            why = f"ends with {ending}" if ending.kind != INVALID else f"cannot begin ({ending.message})"
            self._study.note(f"The good configuration {why} unless it keeps your {name}={value}: not varied.")
            self._needed.append(name)
            self._keep([name], NEEDED)
            good_run = self._good_baseline(bad_run, start)
        return good_run

    def _find_needed(self, good_run: Run, start: str, allowed: float, only_named: bool) -> str | None:
        """The setting with whose user's value the good configuration does not end as it did, by halving; those that the
        failure names come first. None if there is no such one."""
        settings = self._runner.settings
        names = sorted(settings.good, key=lambda name: not names_it(good_run.seen.message, name))
        named = sum(names_it(good_run.seen.message, name) for name in names)
        if only_named:
            names = names[:named] if named == 1 else []
        found = False
        while not found and self._tries < NEEDED_TRIES and names:
            self._tries += 1
            half = names[: named if 0 < named < len(names) else (len(names) + 1) // 2]
            named = 0
            kept = {**settings.good, **{name: settings.bad[name] for name in half}}
            alone = self._good_name(start, [*self._needed, *half])
            last = len(half) == 1  # then it is a run of what will be the good configuration
            name = alone if last else f"good-{start}{self._at}-half-{self._tries}"
            purpose = Purpose.GOOD_BASELINE if last else Purpose.CHECK
            run = self._run(Plan(name, kept, None, purpose=purpose, max_step_seconds=allowed))
            gone = run.costly or str(run.shown.signature) != str(good_run.shown.signature)
            found = gone and len(half) == 1
            names = half if gone else names[len(half) :]
        return names[0] if found else None

    def _keep(self, names: Collection[str], *reason: str) -> None:
        """Leave these as the user has them."""
        if names:
            self._runner.learn(settings=self._runner.settings.without(names, *reason))

    def _good_name(self, start: str, needed: Sequence[str], moved: int = 0) -> str:
        """The question of a run of the good configuration."""
        name = f"good-{start}{self._at}" + ("-without-risky-defaults" if self._study.spared else "")
        return name + "".join(f"-with-{one}" for one in needed) + (f"-affordable-{moved}" if moved else "")

    def allowed(self) -> tuple[str, ...]:
        """The starts still to be considered: none warmer than was settled before, or than the user allows."""
        wanted = [start for start in (self._settled, self._study.options.start) if start]
        order = tuple(STARTS)
        return order[max((order.index(start) for start in wanted), default=0) :]

    def bring_up(self, start: str) -> bool:
        """Have trials start so; whether that is sound. If not, the user hears why, once."""
        reason = self._unsound.get(start) or self._runner.starts.start_at(start)
        if reason is not None and start not in self._unsound:
            if reason not in self._unsound.values():
                self._study.note(f"Trials are not {STARTS[start].said}: {reason}.")
            self._unsound[start] = reason
        return reason is None

    def resolve(self, request: BuildRequest) -> BuildAnswer:
        """What a configuration resolves to, in the process that the trials will be forked from."""
        next((start for start in self.allowed() if self.come_up(start)), None)
        return self._runner.starts.resolve(request)

    def come_up(self, start: str) -> bool:
        """As `bring_up`. Where runs began so before, or had to begin colder, that is known; the server comes up when a
        trial needs it."""
        order = tuple(STARTS)
        colder = order[order.index(start) + 1 :]
        if self._was_used(start):
            self._runner.starts.recall(start)
            return True
        return not any(map(self._was_used, colder)) and self.bring_up(start)

    def _warm_start(self, start: str) -> list[Run] | None:
        """See the bad configuration fail from a start; None if that is of no use."""
        self._study.listener.phase("warm start", f"start {start!r}")
        if not self.come_up(start):
            return None
        runs: list[Run] = []
        tries = COLD_TRIES if start == COLD else WARM_TRIES
        wanted = BLAMED_AFTER if self._passed else 1
        while len(runs) < tries or (0 < self._fails(runs) < wanted and len(runs) < wanted):
            run = self._run(self._bad_plan(start, len(runs) + 1))
            runs.append(run)
            outcome = self._study.outcome_of(run)
            self._study.listener.run_finished(purpose_again(start), run, outcome)
            if outcome is Outcome.FAIL and self._fails(runs) >= wanted:
                break
        if self._fails(runs):
            steady = self._fails(runs) == len(runs)
            if self._passed and not steady:  # chance, not the start
                return [*self._passed, *runs]
            return runs
        self._passed += [run for run in runs if self._study.outcome_of(run) is Outcome.PASS]
        shown = runs[-1].shown.signature
        ending = "passes" if shown is None else f"ends with {shown}"
        if start != COLD:
            self._study.note(f"In trials {STARTS[start].said} the bad configuration {ending}; trying a colder start.")
        return None

    def _was_used(self, start: str) -> bool:
        return self._study.before(self._bad_question(start, 1)) is not None

    def _bad_question(self, start: str, number: int) -> str:
        return f"bad-{start}{self._at}-{number}"

    def _bad_plan(self, start: str, number: int, checkpoints: CheckpointOrders | None = None) -> Plan:
        """A run of the bad configuration, before it is known for how many steps."""
        name = self._bad_question(start, number)
        return Plan(name, self._runner.settings.bad, None, purpose=purpose_again(start), checkpoints=checkpoints)

    def _fails(self, runs: list[Run]) -> int:
        return sum(self._study.outcome_of(run) is Outcome.FAIL for run in runs)

    def _run(self, plan: Plan) -> Run:
        return self._study.made(replace(plan, steps=self._runner.horizon))

    def _good_baseline(self, bad_run: Run, start: str) -> Run:
        """Run the good configuration; where it cannot be afforded, move into it what of the user's makes it cheaper.

        One setting at a time, the one that is predicted to save most first, so that as much as possible is varied.
        """
        self._study.listener.phase("good baseline", "making sure the good configuration trains")
        because = ""
        while True:
            name = self._good_name(start, self._needed, len(self.moved))
            good, allowed = self._runner.settings.good, self._allowed(bad_run)
            run = self._run(Plan(name, good, None, purpose=Purpose.GOOD_BASELINE, max_step_seconds=allowed))
            reason = self._unaffordable(run, bad_run)
            names = self._savers(run) if reason else []
            if not names:
                break
            because = because or reason
            self.moved |= {one.name: one for one in self._runner.settings.factors if one.name in names}
            self._keep(names)
        if because:
            self._study.note(
                f"With the library's defaults the good configuration costs too much here ({because}), so it keeps your "
                f"{', '.join(self.moved)}. What it keeps is not varied, unless you name it with --only."
            )
        return run

    def _allowed(self, bad_run: Run) -> float:
        """Seconds that a step of the good configuration may take."""
        return max(COSTLY_SECONDS, COSTLY_FACTOR * self._pace_of(bad_run))

    def _savers(self, run: Run) -> list[str]:
        """The fewest settings whose user's values are predicted to make the good configuration affordable."""
        settings = self._runner.settings
        spared = {name.removeprefix("args.") for name in self._study.options.only}
        script = [factor.name for factor in settings.factors if factor.kind != "launch"]
        costs = {name: parameter(name.split(".")[0]).resource for name in script}
        left = [name for name, what in costs.items() if what and name not in spared]
        work = settings.work(settings.good)
        saving = {name: work / settings.work({**settings.good, name: settings.bad[name]}) for name in left}
        memory = run.seen.died is not None and run.seen.died.kind == "out-of-memory"
        order = sorted((name for name in left if saving[name] > 1), key=lambda name: -saving[name])
        if memory:
            order = [name for name in order if "memory" in costs[name]]
        launch = [name for name in self._shared_out() if name not in spared] if memory else []
        for first in [*([launch] if launch else []), *([name] for name in order or left)]:
            for chosen in (first, *([*first, other] for other in left if other not in first)):
                smaller = settings.without(chosen)
                if self._runner.checks.error(smaller.args_item(smaller.good)) is None:
                    return list(chosen)
        return left

    def _shared_out(self) -> list[str]:
        """The settings by which a model is shared out among processes: one that does not fit one device needs them.
        First how, and among how many; then what belongs to that."""
        settings = self._runner.settings
        shared = any(one.name == SHARDING and one.value in SHARDED for one in settings.capture.asked)
        launch = [factor.name for factor in settings.factors if factor.kind == "launch"] if shared else []
        return [name for name in launch if name in (SHARDING, PROCESSES)] or launch

    def _pace_of(self, run: Run) -> float:
        """Seconds a step of a run; of one that failed in its first step, what it spent in training."""
        return run.seen.pace or max(run.seen.seconds - self._runner.starts.first.seconds, 0.0)

    def _unaffordable(self, good: Run, bad: Run) -> str:
        theirs, allowed = self._pace_of(bad), self._allowed(bad)
        if good.seen.died is not None and good.seen.died.kind == "out-of-memory":
            return "it runs out of memory"
        hung = good.seen.died is not None and good.seen.died.kind == "hang"
        if hung and not (bad.seen.died is not None and bad.seen.died.kind == "hang"):
            return "its steps take too long"
        ours = good.seen.pace
        if good.costly and good.seen.steps < PACE_STEPS:
            return f"its steps take more than {duration(allowed)}, yours {duration(theirs)}"
        if ours is not None and ours > allowed:
            return f"its steps take {duration(ours)}, yours {duration(theirs)}"
        return ""


def with_defaults_of_the_moved(study: Study, report: Report) -> Report:
    """Where settings were taken over from the user because their defaults are costly: does the cause need them?

    One run of the cause with their defaults tells, if it fails soon enough to be affordable.

    Returns:
        The report, which is not complete where that is not settled.
    """
    taken = list(study.baselines.moved.values())
    if not taken or not report.causes:
        return report
    runner, settings = study.runner, study.runner.settings
    names = ", ".join(factor.name for factor in taken)
    cause = report.causes[0]
    configuration = {
        **settings.good,
        **{name: value["bad"] for name, value in cause.values.items()},
        **{name: settings.bad[name] for name in cause.companions},
        **{factor.name: factor.reset for factor in taken},
    }
    affordable = max(TRIED_SECONDS, TRIED_SHARE * report.seconds)
    run = study.before(DEFAULTS)
    if run is None:
        study.listener.phase("defaults", f"trying the cause with the defaults of {names}")
        plan = Plan(DEFAULTS, configuration, runner.horizon, purpose=Purpose.CHECK, max_seconds=affordable)
        run = study.train(plan, limited=False)
    outcome = study.outcome_of(run)
    if outcome is Outcome.FAIL:
        study.note(f"With the library's {names} it fails too, so what you set there is not part of the cause.")
        return report
    if outcome is Outcome.PASS and not run.costly:
        study.note(
            f"With the library's {names} instead of yours it passes ({run.seen.steps} steps), so the failure needs "
            "your value as well."
        )
    else:
        study.note(
            f"Whether the failure needs your {names} was not settled: with the library's values a run takes too long."
        )
    return replace(report, complete=False)
