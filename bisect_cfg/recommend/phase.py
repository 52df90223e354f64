"""The phase after isolation: find values that train, by running them.

What to run is decided by `recommend.plan` from what has been run; this module runs it, judges it
(`recommend.healthy`) and records it in the study (`recommend.ledger`). Stopping it anywhere and starting it again, with
the same or other margins, seeds and weights, goes on from the recorded runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import optuna

from bisect_cfg.factors import Outcome, difference, equal
from bisect_cfg.recommend import healthy, joint
from bisect_cfg.recommend.alternatives import Alternative, alternatives_for
from bisect_cfg.recommend.frontier import Frontier
from bisect_cfg.recommend.ledger import ATTRIBUTE, Runs
from bisect_cfg.recommend.plan import MARGIN, Problem, Question, Ran, Start, WayOut, follow, key_of
from bisect_cfg.recommend.scale import DEFAULT_RATIO, Axis, axis_of
from bisect_cfg.recommend.schedule import Prefix, left_out, prefix_for, total_steps
from bisect_cfg.recommend.ways import ALTERNATIVES_WANTED, ranked, starting_points
from bisect_cfg.reports import text
from bisect_cfg.trials import health
from bisect_cfg.trials.files import Traces
from bisect_cfg.trials.script import Run, ScriptRunner, load_run

VERIFY_FACTOR = 4
VERIFY_LEAST = 30
"""A verification runs for four horizons, 30 steps at least: long enough that what only begins in a trial shows, short
enough to be paid for three times. `--verify-steps` asks for more."""

DEFAULT_SEED = 42
"""transformers' default, for a training config that does not say."""

POLL_SECONDS = 1.0
"""How often a wait for parallel runs looks up, so that Ctrl-C arrives."""


@dataclass(frozen=True)
class Wishes:
    """What the user may say about this phase; see `bisect-cfg recommend --help`."""

    margin: float = MARGIN
    ratio: float = DEFAULT_RATIO
    verify_steps: int | None = None
    verify_seeds: int = 3
    keep: tuple[str, ...] = ()
    frontier: int | None = None  # at most so many runs; None: not asked for
    jobs: int = 1
    max_trials: int | None = None
    deadline: float | None = None  # on time.monotonic()'s clock


@dataclass(frozen=True)
class Safe:
    """What came out.

    Attributes:
        ways: the ways out, the best verified one first.
        rows: one row a run of this phase, as in the report of the bisection.
        details: by trial number, see `Runs.details`.
        seeds: the seeds of a verification.
        full_rate: how the runs met the full learning rate.
        spent: why it ended before all was settled, "" if it did not.
        frontiers: of the causes that are two numbers, if asked for.
    """

    ways: tuple[WayOut, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    details: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    full_rate: str = ""
    spent: str = ""
    frontiers: tuple[Frontier, ...] = ()

    @property
    def best(self) -> WayOut | None:
        """The verified way that gives up least, else the one that is farthest."""
        kept = [way for way in self.ways if way.status != "rejected"]
        return kept[0] if kept else None


@dataclass(frozen=True)
class Judgement:
    """Whether a run was healthy, and if not, since when and why."""

    healthy: bool
    text: str = ""
    failed_at: int | None = None
    signature: str | None = None


class SafeValues:
    """The phase for one isolated script.

    Args:
        runner: of the study, with its settings, level and horizon known.
        study: the Optuna study.
        report: of the bisection; its status is "isolated".
        bad_run: the reproduction.
        good_run: the good baseline, which healthy is measured against.
        wishes: of the user.
        folder_of: trial number of the search -> name of its folder.
        started: called with (number, question) when a run begins.
        finished: called with (number, question, judgement, seconds) when it has ended.
    """

    def __init__(
        self,
        runner: ScriptRunner,
        study: optuna.Study,
        report: Any,
        bad_run: Run,
        good_run: Run,
        wishes: Wishes,
        folder_of: Callable[[int], str],
        started: Callable[[int, Question], None] = lambda number, question: None,
        finished: Callable[[int, Question, Judgement, float], None] = lambda *said: None,
    ) -> None:
        self._runner, self._report, self._wishes = runner, report, wishes
        self._settings = runner.settings
        self._good_rows = good_run.traces.metrics.rows
        self._usual = frozenset(symptom.kind for symptom in good_run.seen.symptoms)
        self._total = total_steps(bad_run.traces.events.rows)
        self._resolved = dict(self._settings.capture.args.resolved)
        self._folder_of = folder_of
        self._started, self._finished = started, finished
        self.runs = Runs(study, difference(self._settings.good, self._settings.bad))
        self._horizon = runner.horizon
        self._verify_steps = wishes.verify_steps or max(VERIFY_FACTOR * self._horizon, VERIFY_LEAST)
        self._running: dict[int, Question] = {}
        self._pairs = self._frontiers_wanted() if wishes.frontier else []

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> Safe:
        """Run until every way is settled, or the budget is spent.

        Raises:
            KeyboardInterrupt: after the running trials were ended and closed.
        """
        self._recover()
        problem, starts = self._problem(), self._starts()
        known = self._known(starts)
        pool = ThreadPoolExecutor(self._wishes.jobs) if self._wishes.jobs > 1 else None
        futures: dict[Future[None], int] = {}
        try:
            while True:
                ways, questions = self._look(problem, starts, known)
                open_questions = [q for q in questions if q.key not in {r.key for r in self._running.values()}]
                spent = self._spent() if questions else ""
                if not futures and (spent or not open_questions):
                    runs = [*known, *self.runs.ran()]
                    frontiers = tuple(joint.mapped(problem, pair, runs) for pair in self._pairs)
                    return self._answer(self._look(problem, starts, known, whole=True)[0], spent, frontiers)
                if not spent and open_questions and len(futures) < self._wishes.jobs:
                    number = self._begin(open_questions[0])
                    if pool is None:
                        self._conduct(number)
                    else:
                        futures[pool.submit(self._conduct, number)] = number
                    continue
                ended, _ = wait(futures, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    futures.pop(future)
                    future.result()
        except BaseException:  # Ctrl-C above all: nothing may be left running, in fact or on paper
            self._runner.interrupt()
            for number in list(self._running):
                self.runs.void(number, "interrupted")
            self._running.clear()
            raise
        finally:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)

    def _look(
        self, problem: Problem, starts: Sequence[Start], known: Sequence[Ran], whole: bool = False
    ) -> tuple[list[WayOut], list[Question]]:
        """Every way as far as it is known, and what is asked next, most wanted first.

        Unless the whole is asked for, a single worker stops at the first way that is not settled.
        """
        runs = [*known, *self.runs.ran()]
        ways: list[WayOut] = []
        questions: list[Question] = []
        alternatives = 0
        for start in starts:
            extra = bool(start.why) and set(start.changes) != set(start.resets)
            if extra and alternatives >= ALTERNATIVES_WANTED:
                continue
            way, missing = follow(problem, start, runs)
            alternatives += extra and way.status == "verified"
            ways.append(way)
            questions += missing
            if missing and self._wishes.jobs == 1 and not whole:
                break
        return ways, questions or self._joint_questions(problem, runs)

    def _joint_questions(self, problem: Problem, runs: Sequence[Ran]) -> list[Question]:
        """Once every way is settled: the frontiers that were asked for, one after the other."""
        asked = sum(trial.user_attrs[ATTRIBUTE]["part"] == joint.PART for trial in self.runs.trials())
        if asked >= (self._wishes.frontier or 0):
            return []
        open_ones = (joint.next_question(problem, pair, runs) for pair in self._pairs)
        return [question for question in open_ones if question is not None][:1]

    def _spent(self) -> str:
        wishes = self._wishes
        done = len(self._report.rows) + len(self.runs.trials())
        if wishes.max_trials is not None and done >= wishes.max_trials:
            return f"Stopped after {done} trials, as --max-trials asks."
        if wishes.deadline is not None and time.monotonic() > wishes.deadline:
            return "Stopped when the time was up, as --max-seconds asks."
        return ""

    def _answer(self, ways: Sequence[WayOut], spent: str, frontiers: tuple[Frontier, ...]) -> Safe:
        rank = ranked(ways, self._wishes.keep)
        first = self._seed(0)
        best = next((way for way in rank if way.status != "rejected"), None)
        prefix = "" if best is None else str(self._prefix({**self._settings.bad, **best.changes}, best.steps))
        return Safe(
            tuple(rank),
            tuple(self.runs.rows()),
            {number: {**said, "seed": self._seed(said["seed"])} for number, said in self.runs.details().items()},
            tuple(first + k for k in range(self._wishes.verify_seeds)),
            prefix,
            spent,
            frontiers,
        )

    # ------------------------------------------------------------------------------------------------- one run

    def _begin(self, question: Question) -> int:
        number = self.runs.start(question, str(self._prefix(question.configuration, question.steps)))
        self._running[number] = question
        self._started(number, question)
        return number

    def _conduct(self, number: int) -> None:
        question = self._running[number]
        configuration = dict(question.configuration)
        if self._prefix(question.configuration, question.steps).skipped:
            configuration |= left_out(self._values(question.configuration))
        if question.seed:
            configuration["seed"] = self._seed(question.seed)
        run = self._runner.train(number, configuration, question.steps, enough=self._certain)
        judged = self._judge(run, question)
        if run.seen.died is not None and not self._runner.is_failure(run.seen.died) and self._runner.level != "cold":
            # Neither healthy nor the failure under study: it may be owed to the warm start.
            run = self._runner.train(f"{number}-cold", configuration, question.steps, level="cold", enough=self._certain)
            judged = self._judge(run, question)
        self._record(number, question, run, judged)

    def _record(self, number: int, question: Question, run: Run, judged: Judgement) -> None:
        values = {
            "seconds": round(run.seen.seconds, 6),
            "step": judged.failed_at or run.seen.steps,
            "text": judged.text,
            "attributes": {
                "folder": run.folder.name,
                "level": self._runner.level,
                "horizon": question.steps,
                "steps": run.seen.steps,
                "remarks": list(run.seen.remarks),
            },
        }
        if judged.failed_at is not None:
            values["failed_at"] = judged.failed_at
        if judged.signature is not None:
            values["signature"] = judged.signature
        if number in self._running:  # not after Ctrl-C
            self.runs.finish(number, values, Outcome.PASS if judged.healthy else Outcome.FAIL)
            self._running.pop(number)
            self._finished(number, question, judged, run.seen.seconds)

    def _certain(self, traces: Traces) -> bool:
        """Whether a run shows already that it is not healthy."""
        found = health.symptoms(traces.metrics.rows, ended=False)
        return any(symptom.kind not in self._usual for symptom in found)

    def _judge(self, run: Run, question: Question) -> Judgement:
        seen, values = run.seen, self._values(question.configuration)
        if seen.invalid is not None:
            return Judgement(False, f"cannot be built: {seen.invalid}", 0, "invalid")
        if seen.died is not None:
            said = text.failure(seen.died.kind, seen.died.name, seen.message, seen.step)
            return Judgement(False, said, seen.step, str(seen.died))
        rows = run.traces.metrics.rows
        found = healthy.deviations(rows, self._good_rows, usual=self._usual, scaler=values.get("fp16") is True)
        if found:
            return Judgement(False, found[0].text, found[0].step, f"not healthy: {found[0].metric}")
        ended = run.traces.event("train_end") or {}
        cut_off = ended.get("stopped") == "horizon"
        if cut_off and healthy.reached_full_rate(rows, values.get("learning_rate")) is False:
            return Judgement(False, "its warmup was not over when it ended", None, "not healthy: warmup")
        return Judgement(True)

    def _recover(self) -> None:
        """Take in the runs that a killed process left: those that had come to their end count."""
        for trial in self.runs.abandoned():
            run = load_run(self._runner.folder, trial.number)
            if run is None:
                self.runs.void(trial.number, "lost")
                continue
            asked = trial.user_attrs["recommend"]
            question = Question(
                asked["configuration"], asked["seed"], asked["steps"], asked["part"], trial.user_attrs["reason"]
            )
            self._running[trial.number] = question
            self._record(trial.number, question, run, self._judge(run, question))

    # ------------------------------------------------------------------------------------------------- the problem

    def _problem(self) -> Problem:
        bad = self._settings.bad
        whole = [row for row in self._report.rows if all(equal(row[name], bad[name]) for name in bad)]
        fails = {row["number"] for row in whole if row["outcome"] == "fail"}
        for cause in self._report.causes:
            fails |= set(cause.evidence.fails.trials)
        passes = sum(row["outcome"] == "pass" for row in whole)
        return Problem(
            bad,
            lambda configuration, steps: self._prefix(configuration, steps).steps,
            self._horizon,
            self._verify_steps,
            self._wishes.verify_seeds,
            lambda configuration: self._runner.is_valid(configuration) is None,
            self._wishes.margin,
            (passes, max(1, len(fails))),
        )

    def _starts(self) -> list[Start]:
        report, settings = self._report, self._settings
        causes = [cause.parameters for cause in report.causes]
        tested = [c for c in report.corrections if c.passes.subset is not None and c.passes.seen == c.passes.runs > 0]
        return starting_points(
            settings.good,
            settings.bad,
            causes,
            [correction.parameters for correction in tested],
            self._axis,
            [self._alternatives(cause) for cause in report.causes],
            self._wishes.keep,
        )

    def _frontiers_wanted(self) -> list[joint.Pair]:
        causes = [cause.parameters for cause in self._report.causes]
        corrections = [correction.parameters for correction in self._report.corrections]
        return joint.pairs(self._settings.good, causes, corrections, self._axis)

    def _axis(self, name: str, changes: Mapping[str, Any]) -> Axis | None:
        factor = next(factor for factor in self._settings.factors if factor.name == name)
        kind = self._settings.capture.args.types.get(name, "") if factor.kind == "args" else ""
        rest = {**self._settings.bad, **changes}
        return axis_of(
            name,
            factor.good,
            factor.bad,
            ratio=self._wishes.ratio,
            whole=False if "float" in kind and "int" not in kind and "steps" not in name else None,
            is_valid=lambda value: self._runner.is_valid({**rest, name: value}) is None,
        )

    def _alternatives(self, cause: Any) -> list[Alternative]:
        """Known alternatives that this script can be given and this library accepts."""
        settings = self._settings
        values = {name: (levels["good"], levels["bad"]) for name, levels in cause.values.items()}
        fields = settings.capture.args.types
        offers = alternatives_for(values, {**self._resolved, **settings.bad}, fields)
        loads = any(kind in settings.capture.others for kind in ("load", "modelcfg"))
        names = {factor.name for factor in settings.factors}
        kept = []
        for offer in offers:
            changes = {name.removeprefix("args."): value for name, value in offer.settings.items()}
            settable = all(
                name in names or name.split(".")[0] in fields or (loads and name.startswith("model."))
                for name in changes
            )
            if settable and self._runner.is_valid({**settings.bad, **changes}) is None:
                kept.append(Alternative(changes, offer.why, offer.source))
        return kept

    def _known(self, starts: Sequence[Start]) -> list[Ran]:
        """Runs of the search that say something about the beginning of a way."""
        wanted = {key_of({**self._settings.bad, **start.changes}, 0) for start in starts}
        found = []
        for row in self._report.rows:
            configuration = {name: row[name] for name in self._settings.bad}
            key = key_of(configuration, 0)
            if key not in wanted or row["outcome"] != "pass":
                continue
            run = load_run(self._runner.folder, self._folder_of(row["number"]))
            if run is None:
                continue
            steps = run.seen.steps
            judged = self._judge(run, Question(configuration, 0, steps, "reset", ""))
            if judged.signature != "not healthy: warmup":
                found.append(Ran(key, steps, judged.healthy, row["number"], judged.failed_at, judged.text))
        return found

    def _values(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """The training config's settings under a configuration, by bare name."""
        return {**self._resolved, **configuration}

    def _prefix(self, configuration: Mapping[str, Any], steps: int) -> Prefix:
        return prefix_for(self._values(configuration), self._total, steps, self._horizon)

    def _seed(self, number: int) -> int:
        base = self._resolved.get("seed")
        return (base if isinstance(base, int) else DEFAULT_SEED) + number
