"""The phase after isolation: find values that train, by running them.

What to run is decided by `recommend.remedy` from what has been run; this module runs it, has it judged
(`recommend.isolated`) and records it in the study (`recommend.safe_trials`). Stopping it anywhere and starting it
again, with the same or other margins, seeds and weights, goes on from the recorded runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bisect_cfg.configuration import Outcome
from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.phases.bisection import Bisection
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.limits import Limits
from bisect_cfg.phases.loop import Turn, work_off
from bisect_cfg.recommend import joint
from bisect_cfg.recommend.alternatives import Alternative
from bisect_cfg.recommend.attempts import Aim, Attempt, Ran
from bisect_cfg.recommend.frontier import Frontier
from bisect_cfg.recommend.isolated import Health, IsolatedScript, Wishes
from bisect_cfg.recommend.isolated_command import IsolatedCommand
from bisect_cfg.recommend.order import Left, left, look
from bisect_cfg.recommend.proposals import ranked
from bisect_cfg.recommend.remedy import MOST_ASKED, Remedy, RemedyStatus
from bisect_cfg.recommend.safe import Safe
from bisect_cfg.recommend.safe_trials import SafeTrials
from bisect_cfg.reports.text import unhealthy
from bisect_cfg.study.causes import Report
from bisect_cfg.study.store import Store, Void
from bisect_cfg.trials.command_runner import CommandRunner
from bisect_cfg.trials.environments import CannotBuild
from bisect_cfg.trials.files import Traces
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.runner import ScriptRunner
from bisect_cfg.trials.runs import Run, intermediate_of, what_ended
from bisect_cfg.trials.start_points import COLD


@dataclass(eq=False)
class _Begun:
    """A run that was begun; `needed` ends when its result cannot change anything any more."""

    number: int
    attempt: Attempt
    needed: bool = True


@dataclass(frozen=True)
class _Came:
    """What came of it; `judged` is None where it was not needed any more, `run` where its packages cannot be had."""

    run: Run | None
    judged: Health | None = None


class SafeValues:
    """The phase for one isolated script, or command.

    Args:
        runner: of the study, with its settings, start and horizon known.
        store: of the study.
        report: of the bisection; its status is "isolated".
        bad_run: the reproduction.
        good_run: the good baseline, which healthy is measured against.
        wishes: of the user.
        folder_of: trial number of the search -> name of its folder.
        started: called with (number, attempt) when a run begins.
        finished: called with (number, attempt, health, seconds) when it has ended.
        foreseen: called with what is left to be run, before a run begins.
        limits: of the user; None for none.
    """

    def __init__(
        self,
        runner: ScriptRunner | CommandRunner,
        store: Store,
        report: Report,
        bad_run: Run,
        good_run: Run,
        wishes: Wishes,
        folder_of: Callable[[int], str],
        started: Callable[[int, Attempt], None] = lambda number, attempt: None,
        finished: Callable[[int, Attempt, Health, float], None] = lambda *said: None,
        foreseen: Callable[[Left], None] = lambda left: None,
        limits: Limits | None = None,
    ) -> None:
        self._runner, self._wishes, self._searched = runner, wishes, len(report.rows)
        isolated = IsolatedCommand if isinstance(runner, CommandRunner) else IsolatedScript
        self._isolated = isolated(runner, report, bad_run, good_run, wishes, folder_of)
        self._bad = runner.settings.bad
        self._started, self._finished, self._foreseen = started, finished, foreseen
        self._limits = limits or Limits()
        self._trials = SafeTrials(store)
        self.running: list[_Begun] = []

    def run(self) -> Safe:
        """Run until every remedy is settled, or the budget is spent.

        Raises:
            KeyboardInterrupt: after the running trials were ended and closed.
        """
        with self._trials.store.alive():
            self._recover()
            self._terms, self._proposals = self._isolated.terms(), self._isolated.proposals()
            self._budget = self._isolated.budget()
            self._pairs = self._isolated.frontiers_wanted() if self._wishes.frontier else []
            self._known = self._isolated.known(self._proposals)
            work_off(self, self._wishes.jobs)
        runs = [*self._known, *self._trials.ran()]
        frontiers = tuple(joint.mapped(self._terms, pair, runs) for pair in self._pairs)
        return self._answer(self._remedies, self._spent, frontiers)

    # ------------------------------------------------------------------------------------------- what to run next

    def turn(self) -> _Begun | Turn:
        self._remedies, attempts = self._look()
        self._spent = self._limits.spent(self._searched + len(self._trials.all())) if attempts else ""
        running = {begun.attempt.key for begun in self.running}
        open_questions = [] if self._spent else [attempt for attempt in attempts if attempt.key not in running]
        if not open_questions:
            return Turn.WAIT if self.running else Turn.DONE
        if len(self.running) >= self._wishes.jobs:
            return Turn.WAIT
        attempt = open_questions[0]
        runs = [*self._known, *self._trials.ran()]
        self._foreseen(left(self._terms, self._proposals, runs, self._budget, self._wishes.keep))
        number = self._trials.start(attempt, str(self._isolated.prefix(attempt.configuration, attempt.steps)))
        begun = _Begun(number, attempt)
        self.running.append(begun)
        self._started(number, attempt)
        return begun

    def _look(self) -> tuple[list[Remedy], list[Attempt]]:
        """Every remedy as far as it is known, and what is asked next, most wanted first."""
        runs = [*self._known, *self._trials.ran()]
        running = [begun.attempt for begun in self.running if begun.attempt.aim is not Aim.FRONTIER]
        remedies, attempts, open_ones = look(
            self._terms, self._proposals, runs, self._budget, self._wishes.keep, running
        )
        still = {attempt.key for attempt in open_ones}
        for begun in self.running:
            if begun.attempt.aim is Aim.VERIFY and begun.attempt.key not in still:
                begun.needed = False
        return remedies, attempts or self._joint_questions(runs)

    def _joint_questions(self, runs: Sequence[Ran]) -> list[Attempt]:
        """Once every remedy is settled: the frontiers that were asked for, one after the other."""
        if self._trials.asked(Aim.FRONTIER) >= (self._wishes.frontier or 0):
            return []
        open_ones = (joint.next_attempt(self._terms, pair, runs) for pair in self._pairs)
        return [attempt for attempt in open_ones if attempt is not None][:1]

    def _answer(self, remedies: Sequence[Remedy], spent: str, frontiers: tuple[Frontier, ...]) -> Safe:
        rank = ranked(remedies, self._wishes.keep)
        first = self._isolated.seed(0)
        # A million may be wanted; those that ran, or could have been next, are named.
        seeds = min(self._wishes.verify_seeds, max([MOST_ASKED, *(len(remedy.passed) for remedy in rank)]))
        best = next((remedy for remedy in rank if remedy.status is not RemedyStatus.REJECTED), None)
        prefix = None if best is None else self._isolated.prefix({**self._bad, **best.changes}, best.steps)
        details = self._trials.details()
        return Safe(
            tuple(rank),
            tuple(self._trials.rows()),
            {number: {**said, "seed": self._isolated.seed(said["seed"])} for number, said in details.items()},
            tuple(first + k for k in range(seeds)),
            prefix,
            spent,
            frontiers,
            frozenset(name.removeprefix("args.") for name in self._wishes.keep),
        )

    # ------------------------------------------------------------------------------------------------- one run

    def conduct(self, begun: _Begun) -> _Came:
        number, attempt = begun.number, begun.attempt
        configuration, steps = self._isolated.ordered(attempt)

        def enough(traces: Traces) -> bool:
            return not begun.needed or self._isolated.certain(traces)

        try:
            run = self._runner.train(Plan(number, configuration, steps, enough=enough))
        except CannotBuild as error:
            return _Came(None, Health(False, why=str(error).splitlines()[-1]))
        if not begun.needed:
            return _Came(run)
        if self._is_doubtful(run):
            warm = run.seen.died
            run = self._runner.train(
                Plan(_cold(number), configuration, steps, start=COLD, enough=self._isolated.certain)
            )
            self._runner.seen_cold(str(warm), run.seen.died is not None and str(run.seen.died) == str(warm))
        return _Came(run, self._isolated.health_of(run, attempt))

    def _is_doubtful(self, run: Run) -> bool:
        """Whether it is neither healthy nor the failure under study, which may be owed to the warm start."""
        died = run.seen.died
        return died is not None and not self._runner.known.is_failure(died) and self._runner.doubts(str(died))

    def record(self, begun: _Begun, came: _Came) -> None:
        run, judged = came.run, came.judged
        if judged is None:
            self._trials.store.void(begun.number, Void.NOT_NEEDED)
            self.running.remove(begun)
            return
        values: JsonObject = {
            "seconds": 0.0 if run is None else round(run.seen.seconds, 6),
            "step": judged.failed_at or (0 if run is None else run.seen.steps if run.seen.counted else None),
            "text": unhealthy(judged),
        }
        if run is not None:
            values["attributes"] = {
                "folder": run.folder.name,
                "level": run.start or self._runner.start,
                "horizon": begun.attempt.steps,
                "steps": run.seen.steps,
                "remarks": [asdict(remark) for remark in run.seen.remarks],
            }
        if judged.failed_at is not None:
            values["failed_at"] = judged.failed_at
        if judged.signature is not None:
            values["signature"] = judged.signature
        intermediate = {} if run is None else intermediate_of(run.traces.metrics.rows)
        self._trials.finish(begun.number, values, Outcome.PASS if judged.healthy else Outcome.FAIL, intermediate)
        self.running.remove(begun)
        made = begun.attempt.steps if run is None else min(begun.attempt.steps, run.seen.steps or begun.attempt.steps)
        self._finished(begun.number, replace(begun.attempt, steps=made), judged, values["seconds"])

    def wait_for_others(self) -> None:
        raise AssertionError("one process looks for safe values at a time")  # the folder is locked

    def interrupt(self) -> None:
        self._runner.interrupt()

    def go_on(self) -> None:
        self._runner.go_on()

    def close(self, begun: _Begun) -> None:
        self._trials.store.void(begun.number, Void.INTERRUPTED)

    def _recover(self) -> None:
        """Take in the runs that a killed process left: those that settle something count, as `conduct` has it."""
        for number, attempt in self._trials.abandoned():
            cold, warm = (self._isolated.load(self._runner.folder, name) for name in (_cold(number), number))
            run = cold or warm
            judged = None if run is None else self._isolated.health_of(run, attempt)
            # What was still to be seen cold, or was cut short because it was not needed any more, says nothing.
            unsettled = judged is None or (cold is None and self._is_doubtful(run))
            watched = self._isolated.ends_its_training
            if unsettled or (judged.healthy and watched and what_ended(run) == "stopped"):
                self._trials.store.void(number, Void.LOST)
                continue
            begun = _Begun(number, attempt)
            self.running.append(begun)
            self.record(begun, _Came(run, judged))


def find_safe_values(
    context: Context,
    bisection: Bisection,
    report: Report,
    bad_run: Run,
    good_run: Run,
    details: Mapping[int, JsonObject],
    cures: Sequence[Alternative] = (),
) -> Safe:
    """Look for safe values once the causes are known.

    Args:
        context: of this pass.
        bisection: of whose study the runs are trials.
        report: of the isolation.
        bad_run: the reproduction.
        good_run: the good baseline.
        details: by trial number, what the runner kept of it.
        cures: of a known issue, to be tried first.
    """
    context.listener.phase("safe values", "looking for safe values")
    options = context.options
    wishes = Wishes(
        margin=options.margin,
        ratio=options.ratio,
        verify_steps=options.verify_steps,
        verify_seeds=options.verify_seeds,
        remedies=options.remedies,
        keep=options.keep,
        frontier=options.frontier,
        jobs=options.jobs,
        cures=tuple(cures),
    )
    return SafeValues(
        context.runner,
        bisection.store,
        report,
        bad_run,
        good_run,
        wishes,
        folder_of=lambda number: str(details.get(number, {}).get("folder", number)),
        started=context.listener.safe_run_started,
        finished=context.listener.safe_run_finished,
        foreseen=context.listener.safe_runs_left,
        limits=context.limits,
    ).run()


def _cold(number: int) -> str:
    """Folder of the run that is repeated from a cold start."""
    return f"{number}-cold"
