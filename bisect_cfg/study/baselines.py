"""The baselines: a sound way to start trials, the bad configuration failing there, the good one training.

Every decision is recomputed from the runs, each of which answers a question that has a name: a study that is resumed
walks the same way again without a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from bisect_cfg.common.configuration import Outcome, Purpose, present
from bisect_cfg.common.parameters import names_it, parameter
from bisect_cfg.common.words import duration
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, CheckpointOrders, Origin
from bisect_cfg.runner.plan import PACE_STEPS, Plan
from bisect_cfg.runner.runs import Run, purpose_again
from bisect_cfg.runner.starts import COLD, STARTS
from bisect_cfg.runner.verdict import INVALID, REFUSED
from bisect_cfg.store.causes import Report
from bisect_cfg.study.study import Study
from bisect_cfg.targets.factors import Factor
from bisect_cfg.targets.launch_settings import PROCESSES, SHARDED, SHARDING

WARM_TRIES = 2
"""How often the bad configuration may pass at a warm start before that start is given up: a failure can be random, but
a start that hides it is of no use."""

COLD_TRIES = 3
"""The same for a cold start, which is the user's own command again: what does not fail a second time in so many runs
(and those at the warmer starts) is too rare to be isolated."""

BLAMED_AFTER = 3
"""Where the failure did not show at a warmer start, so many failures in a row at the next one put that down to the
start; otherwise to chance, and the passes count in how often it fails."""

COSTLY_FACTOR = 3.0
COSTLY_SECONDS = 5.0
"""The good configuration costs too much when its steps take this many times as long as those of the user's own, and
more than so many seconds each: library defaults can mean eight long completions where the user has one."""

NEEDED = "the good configuration ends in another failure without it"
"""Why a setting is pinned that the script cannot do without."""

NEEDED_TRIES = 8
"""Runs that look for settings that the good configuration needs: halving finds one of 128, and one that the failure
names is found at once."""

TRIED_SECONDS = 30.0
TRIED_SHARE = 0.5
"""What the one run with costly defaults may take at the end: so many seconds, or this share of the isolation's."""

DEFAULTS = "defaults-of-the-moved"
"""The question of that run."""


class Baselines:
    """Finds them; once more for each good side that is tried after one that fails (`good_sides`).

    Attributes:
        moved: name -> the factor that keeps the user's value, as its default costs too much.
        last: the runs of the bad configuration at the start that was tried last.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._trials = study, study.trials
        self.moved: dict[str, Factor] = {}
        self.last: list[Run] = []
        self._needed: list[str] = []
        self._by_checkpoint: list[tuple[int, Factor]] = []  # what only the checkpoint needs where runs begin
        self._unsound: dict[str, str] = {}  # start -> why trials cannot begin there
        self._settled: str | None = None  # the start that was settled on
        self._passed: list[Run] = []  # runs of the bad configuration that passed at a start that was given up
        self._tries = 0  # runs that looked for what is needed
        self._at = ""  # of the questions: where the runs begin

    def begin_at(self, origin: Origin | None) -> None:
        """Look for them anew, where the runs begin at another step."""
        self._at = "" if origin is None else f"-from-{origin.step}"
        if origin is not None and origin.checkpoint is None:
            self._at = f"-data-of-{origin.step}" + (f"-{origin.draw}" if origin.draw else "")
        self._settled, self._passed, self._tries = None, [], 0
        self._needed = [name for name in self._needed if all(name != one.name for _, one in self._by_checkpoint)]
        self._trials.known_settings = self._trials.settings.with_again(reversed(self._by_checkpoint))
        self._by_checkpoint = []

    def fails_once(self, checkpoints: CheckpointOrders | None = None) -> Run | None:
        """A run in which the bad configuration fails where runs begin now, at the first start that comes up; None if it
        does not fail. `checkpoints`: how that run saves some."""
        start = next(filter(self._come_up, self._allowed_starts()), None)
        run = None if start is None else self._run(self._bad_plan(start, 1, checkpoints))
        return run if run is not None and self._study.outcome_of(run) is Outcome.FAIL else None

    def resolve(self, request: BuildRequest) -> BuildAnswer:
        """What a configuration resolves to, in the process that the trials will be forked from."""
        next(filter(self._come_up, self._allowed_starts()), None)
        return self._study.site.starts.resolve(request)

    def find(self, bad_run: Run) -> tuple[list[Run], Run | None]:
        """Find the fastest start at which both configurations behave as they should: the bad one fails as it does cold,
        and the good one passes.

        A script can make a start unsound in ways that only the second trial shows (it deletes a folder that all forks
        share), so a good configuration that dies is tried at the next start before that is believed; not so one that
        cannot begin (its adapter has other weights than the checkpoint), which no start cures.

        Returns:
            The further runs of the bad configuration that count, and the run of the good one; None in its place if
            the failure never showed again.
        """
        self._pin(self.moved)  # what a first pass, with the risky defaults, has found
        self._pin(self._needed, NEEDED)
        study, good_run, outcome = self._study, None, Outcome.UNRESOLVED
        again: list[Run] = []
        ended: list[tuple[str, list[Run], Run]] = []  # starts at which the good configuration met another failure
        for start in self._allowed_starts():
            found = self._failing_from(start)
            if found is None:
                continue
            again, good_run = found, self._good_baseline(bad_run, start)
            if study.outcome_of_good(good_run) is Outcome.UNRESOLVED:
                ended.append((start, again, good_run))
                good_run = self._with_needed_pinned(bad_run, start, good_run, only_named=True)
            outcome = study.outcome_of_good(good_run)
            if (
                outcome is not Outcome.UNRESOLVED
                or start == COLD
                or present(good_run.shown.signature).kind in (INVALID, REFUSED)
            ):
                break
            study.note(
                f"In trials {STARTS[start].said} the good configuration ends with {good_run.shown.signature}; "
                "trying a colder start."
            )
        if good_run is None:
            return self._passed, None
        if outcome is Outcome.UNRESOLVED:
            start, again, good_run = self._with_what_it_needs(bad_run, ended)
            outcome = study.outcome_of_good(good_run)
        self._settled = start
        study.listener.run_finished(Purpose.GOOD_BASELINE, good_run, outcome)
        return again, good_run

    # ------------------------------------------------------------------------------------------------------- starts

    def _allowed_starts(self) -> tuple[str, ...]:
        """The starts to consider, warmest first: none warmer than was settled before, or than the user allows."""
        packages = self._trials.packages
        if packages is not None and packages.varied:  # a server has the packages of the user's environment
            return (COLD,)
        order = tuple(STARTS)
        coldest = "" if self._study.target.probed else COLD
        wanted = [start for start in (self._settled, self._study.options.start, coldest) if start]
        return order[max((order.index(start) for start in wanted), default=0) :]

    def _come_up(self, start: str) -> bool:
        """Have trials start so; whether that is sound. If not, the user hears why, once. Where runs began so before, or
        had to begin colder, that is known; the server comes up when a trial needs it."""
        order = tuple(STARTS)
        if self._was_used(start):
            self._study.site.starts.start = start
            return True
        return not any(map(self._was_used, order[order.index(start) + 1 :])) and self._bring_up(start)

    def _was_used(self, start: str) -> bool:
        return self._study.store.number_of(self._bad_question(start, 1)) is not None

    def _bring_up(self, start: str) -> bool:
        reason = self._unsound.get(start) or self._study.site.starts.start_at(start)
        if reason is not None and start not in self._unsound:
            if reason not in self._unsound.values():
                self._study.note(f"Trials are not {STARTS[start].said}: {reason}.")
            self._unsound[start] = reason
        return reason is None

    def _failing_from(self, start: str) -> list[Run] | None:
        """Runs in which the bad configuration fails from a start; None if that start is of no use."""
        study, packages = self._study, self._trials.packages
        if packages is not None and packages.varied:
            study.listener.phase("rebuilt", "making sure that it fails in an environment built anew as well")
        elif study.target.probed:
            study.listener.phase("warm start", f"start {start!r}")
        else:  # the first run has shown it: so trials start, with nothing in them and in no other environment
            return []
        if not self._come_up(start):
            return None
        self.last = runs = list[Run]()
        fails, wanted = 0, BLAMED_AFTER if self._passed else 1
        tries = COLD_TRIES if start == COLD else WARM_TRIES
        while fails < wanted and (len(runs) < tries or (fails and len(runs) < wanted)):
            run = self._run(self._bad_plan(start, len(runs) + 1))
            runs.append(run)
            outcome = study.outcome_of(run)
            fails += outcome is Outcome.FAIL
            study.listener.run_finished(purpose_again(start), run, outcome)
        if fails:
            by_chance = self._passed and fails < len(runs)  # not the start
            return [*self._passed, *runs] if by_chance else runs
        self._passed += [run for run in runs if study.outcome_of(run) is Outcome.PASS]
        if start != COLD:
            shown = runs[-1].shown.signature
            ending = "passes" if shown is None else f"ends with {shown}"
            study.note(f"In trials {STARTS[start].said} the bad configuration {ending}; trying a colder start.")
        return None

    def _bad_question(self, start: str, number: int) -> str:
        return f"bad-{start}{self._at}-{number}"

    def _bad_plan(self, start: str, number: int, checkpoints: CheckpointOrders | None = None) -> Plan:
        name, bad = self._bad_question(start, number), self._trials.settings.bad
        return Plan(name, bad, None, purpose=purpose_again(start), checkpoints=checkpoints)

    def _run(self, plan: Plan) -> Run:
        return self._study.made(replace(plan, steps=self._trials.horizon))

    # -------------------------------------------------------------------------------- what the good configuration needs

    def _with_what_it_needs(self, bad_run: Run, ended: list[tuple[str, list[Run], Run]]) -> tuple[str, list[Run], Run]:
        """Pin what the script cannot do without (`max_steps` for data of unknown length), at the warmest start at which
        the good configuration fails as it does cold.

        Args:
            bad_run: the reproduction.
            ended: start, runs of the bad configuration there, and how the good one ended there, coldest last.

        Returns:
            The same with the good configuration as it then ends; the coldest of `ended` if no single setting is enough.
        """
        coldest = start, again, good_run = ended[-1]
        for other in ended:
            same = str(other[2].shown.signature) == str(good_run.shown.signature)
            if same and (other[0] == start or self._bring_up(other[0])):
                start, again, good_run = other
                break
        good_run = self._with_needed_pinned(bad_run, start, good_run)
        unresolved = self._study.outcome_of_good(good_run) is Outcome.UNRESOLVED
        return coldest if unresolved and not self._needed else (start, again, good_run)

    def _with_needed_pinned(self, bad_run: Run, start: str, good_run: Run, only_named: bool = False) -> Run:
        """Pin the settings that the good configuration needs, one after another; its last run.

        Args:
            bad_run: the reproduction.
            start: of the runs.
            good_run: how the good configuration ended there.
            only_named: only a setting that the failure names, if it names one alone.
        """
        while self._study.outcome_of_good(good_run) is Outcome.UNRESOLVED:
            name = self._find_needed(good_run, start, self._allowed_seconds(bad_run), only_named)
            if name is None:
                break
            value, ending = self._trials.settings.bad[name], good_run.shown.signature
            cannot_begin = present(ending).kind in (INVALID, REFUSED)
            why = f"cannot begin ({good_run.shown.message})" if cannot_begin else f"ends with {ending}"
            self._study.note(f"The good configuration {why} unless it keeps your {name}={value}: not varied.")
            self._needed.append(name)
            if cannot_begin and self._trials.origin is not None:
                varied = self._trials.settings.varied
                self._by_checkpoint += [one for one in enumerate(varied) if one[1].name == name]
            self._pin([name], NEEDED)
            good_run = self._good_baseline(bad_run, start)
        return good_run

    def _find_needed(self, good_run: Run, start: str, allowed: float, only_named: bool) -> str | None:
        """The setting with whose user's value the good configuration does not end as it did, by halving; those that the
        failure names come first. None if there is none, or what it leads to is the failure under study."""
        settings = self._trials.settings
        if not settings.seen:
            return None
        names = sorted(settings.good, key=lambda name: not names_it(good_run.seen.message, name))
        named = sum(names_it(good_run.seen.message, name) for name in names)
        if only_named:
            names = names[:named] if named == 1 else []
        while self._tries < NEEDED_TRIES and names:
            self._tries += 1
            half = names[: named if 0 < named < len(names) else (len(names) + 1) // 2]
            named = 0
            kept = {**settings.good, **{name: settings.bad[name] for name in half}}
            question, purpose = f"{self._good_question(start, ())}-half-{self._tries}", Purpose.CHECK
            if len(half) == 1:  # then it is a run of what will be the good configuration
                question, purpose = self._good_question(start, [*self._needed, *half]), Purpose.GOOD_BASELINE
            run = self._run(Plan(question, kept, None, purpose=purpose, max_step_seconds=allowed))
            gone = run.costly or str(run.shown.signature) != str(good_run.shown.signature)
            if gone and len(half) == 1:
                return None if self._study.outcome_of(run) is Outcome.FAIL else half[0]
            names = half if gone else names[len(half) :]
        return None

    def _pin(self, names: Collection[str], *reason: str) -> None:
        """Leave these as the user has them."""
        if names:
            self._trials.known_settings = self._trials.settings.without(names, *reason)

    def _good_question(self, start: str, needed: Sequence[str], moved: int = 0) -> str:
        name = f"good-{start}{self._at}" + (f"-{self._study.sides.name}" if self._study.sides.name else "")
        return name + "".join(f"-with-{one}" for one in needed) + (f"-affordable-{moved}" if moved else "")

    # ------------------------------------------------------------------------------------ what the good one may cost

    def _good_baseline(self, bad_run: Run, start: str) -> Run:
        """Run the good configuration. Where it costs too much, it keeps values of the user's that make it cheaper, one
        at a time, the one that is predicted to save most first, so that as much as possible is varied."""
        self._study.listener.phase("good baseline", "making sure that the good configuration works")
        because, allowed = "", self._allowed_seconds(bad_run)
        while True:
            question, good = self._good_question(start, self._needed, len(self.moved)), self._trials.settings.good
            run = self._run(Plan(question, good, None, purpose=Purpose.GOOD_BASELINE, max_step_seconds=allowed))
            reason = self._too_costly(run, bad_run)
            names = self._savers(run) if reason else []
            if not names:
                break
            because = because or reason
            self.moved |= {one.name: one for one in self._trials.settings.varied if one.name in names}
            self._pin(names)
        if because:
            self._study.note(
                f"With the library's defaults the good configuration costs too much here ({because}), so it keeps your "
                f"{', '.join(self.moved)}. What it keeps is not varied, unless you name it with --only."
            )
        return run

    def _pace_of(self, run: Run) -> float:
        """Seconds a step of a run; of one that failed in its first step, what it spent in training."""
        return run.seen.pace or max(run.seen.seconds - self._study.site.starts.seconds, 0.0)

    def _allowed_seconds(self, bad_run: Run) -> float:
        """Seconds that a step of the good configuration may take."""
        return max(COSTLY_SECONDS, COSTLY_FACTOR * self._pace_of(bad_run))

    def _too_costly(self, good: Run, bad: Run) -> str:
        """Why the good configuration costs too much; "" if it does not."""
        if not self._trials.settings.seen:  # nobody knows what its settings mean
            return ""
        theirs, allowed, ours = self._pace_of(bad), self._allowed_seconds(bad), good.seen.pace
        died, of_bad = (run.seen.died.kind if run.seen.died is not None else "" for run in (good, bad))
        if died == "out-of-memory":
            return "it runs out of memory"
        if died == "hang" != of_bad:
            return "its steps take too long"
        if good.costly and good.seen.steps < PACE_STEPS:
            return f"its steps take more than {duration(allowed)}, yours {duration(theirs)}"
        if ours is not None and ours > allowed:
            return f"its steps take {duration(ours)}, yours {duration(theirs)}"
        return ""

    def _savers(self, run: Run) -> list[str]:
        """The fewest settings whose user's values are predicted to make the good configuration affordable."""
        settings = self._trials.settings
        only = {name.removeprefix("args.") for name in self._study.options.only}
        script = [factor.name for factor in settings.varied if factor.kind != "launch"]
        costs = {name: parameter(name.split(".")[0]).resource for name in script}
        left = [name for name, what in costs.items() if what and name not in only]
        work = settings.work(settings.good)
        saving = {name: work / settings.work({**settings.good, name: settings.bad[name]}) for name in left}
        order = sorted((name for name in left if saving[name] > 1), key=lambda name: -saving[name])
        launch: list[str] = []
        if run.seen.died is not None and run.seen.died.kind == "out-of-memory":
            order = [name for name in order if "memory" in costs[name]]
            launch = [name for name in self._sharing() if name not in only]
        for first in [*([launch] if launch else []), *([name] for name in order or left)]:
            for chosen in (first, *([*first, other] for other in left if other not in first)):
                smaller = settings.without(chosen)
                if self._study.site.checks.error(smaller.build_request(smaller.good)) is None:
                    return list(chosen)
        return left

    def _sharing(self) -> list[str]:
        """The settings by which a model is shared out among processes, which one that does not fit one device needs:
        how, and among how many; otherwise whatever belongs to that."""
        settings = self._trials.settings
        shared = any(one.name == SHARDING and one.value in SHARDED for one in settings.capture.asked)
        launch = [factor.name for factor in settings.varied if factor.kind == "launch"] if shared else []
        return [name for name in launch if name in (SHARDING, PROCESSES)] or launch


def with_defaults_of_the_moved(study: Study, report: Report) -> Report:
    """Where settings keep the user's values because their defaults cost too much: does the cause need them? One run of
    the cause with their defaults tells, if it fails soon enough. The report is not complete where it does not."""
    moved, settings = list(study.baselines.moved.values()), study.settings
    if not moved or not report.causes:
        return report
    names, cause = ", ".join(factor.name for factor in moved), report.causes[0]
    configuration = {
        **settings.good,
        **{name: value["bad"] for name, value in cause.values.items()},
        **{name: settings.bad[name] for name in cause.companions},
        **{factor.name: factor.reset for factor in moved},
    }
    affordable = max(TRIED_SECONDS, TRIED_SHARE * report.seconds)
    plan = Plan(DEFAULTS, configuration, study.trials.horizon, purpose=Purpose.CHECK, max_seconds=affordable)
    if study.before(DEFAULTS) is None:
        study.listener.phase("defaults", f"trying the cause with the defaults of {names}")
    run = study.made(plan, limited=False)
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
