"""The phase after isolation: find values that train, by running them.

What to run is decided by `recommend.plan` from what has been run; this module runs it, has it judged
(`recommend.case`) and records it in the study (`recommend.ledger`). Stopping it anywhere and starting it again, with
the same or other margins, seeds and weights, goes on from the recorded runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any

import optuna

from bisect_cfg.configuration import Outcome, difference
from bisect_cfg.recommend import joint
from bisect_cfg.recommend.candidates import ranked
from bisect_cfg.recommend.case import Case, Judgement, Wishes
from bisect_cfg.recommend.frontier import Frontier
from bisect_cfg.recommend.ledger import ATTRIBUTE, NOT_NEEDED, Runs
from bisect_cfg.recommend.order import look
from bisect_cfg.recommend.plan import MOST_ASKED, Candidate, Remedy, Status, Terms
from bisect_cfg.recommend.runs import Part, Question, Ran
from bisect_cfg.recommend.safe import Safe
from bisect_cfg.recommend.schedule import left_out
from bisect_cfg.trials.files import Traces
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.runs import Run, load_run
from bisect_cfg.trials.script import ScriptRunner

POLL_SECONDS = 1.0
"""How often a wait for parallel runs looks up, so that Ctrl-C arrives."""


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
        self._runner, self._wishes, self._searched = runner, wishes, len(report.rows)
        self._case = Case(runner, report, bad_run, good_run, wishes, folder_of)
        self._bad = runner.settings.bad
        self._started, self._finished = started, finished
        self.runs = Runs(study, difference(runner.settings.good, runner.settings.bad))
        self._running: dict[int, Question] = {}
        self._not_needed: set[int] = set()  # running, and without a say any more
        self._closing = threading.Lock()  # of a run, which either has a result or was interrupted
        self._pairs = self._case.frontiers_wanted() if wishes.frontier else []

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> Safe:
        """Run until every remedy is settled, or the budget is spent.

        Raises:
            KeyboardInterrupt: after the running trials were ended and closed.
        """
        self._recover()
        terms, candidates = self._case.terms(), self._case.candidates()
        self._budget = self._case.budget()
        known = self._case.known(candidates)
        pool = ThreadPoolExecutor(self._wishes.jobs) if self._wishes.jobs > 1 else None
        futures: dict[Future[None], int] = {}
        try:
            while True:
                remedies, questions = self._look(terms, candidates, known)
                open_questions = [q for q in questions if q.key not in {r.key for r in self._running.values()}]
                spent = self._spent() if questions else ""
                if not futures and (spent or not open_questions):
                    runs = [*known, *self.runs.ran()]
                    frontiers = tuple(joint.mapped(terms, pair, runs) for pair in self._pairs)
                    return self._answer(remedies, spent, frontiers)
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
            with self._closing:
                for number in list(self._running):
                    self.runs.void(number, "interrupted")
                self._running.clear()
            raise
        finally:
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)

    def _look(
        self, terms: Terms, candidates: Sequence[Candidate], known: Sequence[Ran]
    ) -> tuple[list[Remedy], list[Question]]:
        """Every remedy as far as it is known, and what is asked next, most wanted first."""
        running = dict(self._running)  # before what has run: a run that ends meanwhile is in both, never in neither
        runs = [*known, *self.runs.ran()]
        remedies, questions, open_ones = look(
            terms,
            candidates,
            runs,
            self._budget,
            self._wishes.keep,
            [q for q in running.values() if q.part is not Part.FRONTIER],
        )
        still = {question.key for question in open_ones}
        self._not_needed |= {n for n, q in running.items() if q.part is Part.VERIFY and q.key not in still}
        return remedies, questions or self._joint_questions(terms, runs)

    def _joint_questions(self, terms: Terms, runs: Sequence[Ran]) -> list[Question]:
        """Once every remedy is settled: the frontiers that were asked for, one after the other."""
        asked = sum(trial.user_attrs[ATTRIBUTE]["part"] == Part.FRONTIER for trial in self.runs.trials())
        if asked >= (self._wishes.frontier or 0):
            return []
        open_ones = (joint.next_question(terms, pair, runs) for pair in self._pairs)
        return [question for question in open_ones if question is not None][:1]

    def _spent(self) -> str:
        wishes = self._wishes
        done = self._searched + len(self.runs.trials())
        if wishes.max_trials is not None and done >= wishes.max_trials:
            return f"Stopped after {done} trials, as --max-trials asks."
        if wishes.deadline is not None and time.monotonic() > wishes.deadline:
            return "Stopped when the time was up, as --max-seconds asks."
        return ""

    def _answer(self, remedies: Sequence[Remedy], spent: str, frontiers: tuple[Frontier, ...]) -> Safe:
        rank = ranked(remedies, self._wishes.keep)
        first = self._case.seed(0)
        # A million may be wanted; those that ran, or could have been next, are named.
        seeds = min(self._wishes.verify_seeds, max([MOST_ASKED, *(len(remedy.passed) for remedy in rank)]))
        best = next((remedy for remedy in rank if remedy.status is not Status.REJECTED), None)
        prefix = None if best is None else self._case.prefix({**self._bad, **best.changes}, best.steps)
        return Safe(
            tuple(rank),
            tuple(self.runs.rows()),
            {number: {**said, "seed": self._case.seed(said["seed"])} for number, said in self.runs.details().items()},
            tuple(first + k for k in range(seeds)),
            prefix,
            spent,
            frontiers,
            frozenset(name.removeprefix("args.") for name in self._wishes.keep),
        )

    # ------------------------------------------------------------------------------------------------- one run

    def _begin(self, question: Question) -> int:
        number = self.runs.start(question, str(self._case.prefix(question.configuration, question.steps)))
        self._running[number] = question
        self._started(number, question)
        return number

    def _conduct(self, number: int) -> None:
        question = self._running[number]
        configuration = dict(question.configuration)
        if self._case.prefix(question.configuration, question.steps).skipped:
            configuration |= left_out(self._case.values(question.configuration))
        if question.seed:
            configuration["seed"] = self._case.seed(question.seed)

        def enough(traces: Traces) -> bool:
            return number in self._not_needed or self._case.certain(traces)

        run = self._runner.train(Plan(number, configuration, question.steps, enough=enough))
        if number in self._not_needed:
            with self._closing:
                if self._running.pop(number, None) is not None:
                    self.runs.void(number, NOT_NEEDED)
            return
        judged = self._case.judge(run, question)
        other = run.seen.died is not None and not self._runner.known.is_failure(run.seen.died)
        if other and self._runner.starts.level != "cold":
            # Neither healthy nor the failure under study: it may be owed to the warm start.
            run = self._runner.train(
                Plan(f"{number}-cold", configuration, question.steps, level="cold", enough=self._case.certain)
            )
            judged = self._case.judge(run, question)
        self._record(number, question, run, judged)

    def _record(self, number: int, question: Question, run: Run, judged: Judgement) -> None:
        values = {
            "seconds": round(run.seen.seconds, 6),
            "step": judged.failed_at or run.seen.steps,
            "text": judged.text,
            "attributes": {
                "folder": run.folder.name,
                "level": self._runner.starts.level,
                "horizon": question.steps,
                "steps": run.seen.steps,
                "remarks": [asdict(remark) for remark in run.seen.remarks],
            },
        }
        if judged.failed_at is not None:
            values["failed_at"] = judged.failed_at
        if judged.signature is not None:
            values["signature"] = judged.signature
        with self._closing:
            if number not in self._running:  # Ctrl-C came first
                return
            self.runs.finish(number, values, Outcome.PASS if judged.healthy else Outcome.FAIL)
            self._running.pop(number)
        self._finished(number, question, judged, run.seen.seconds)

    def _recover(self) -> None:
        """Take in the runs that a killed process left: those that had come to their end count."""
        for trial in self.runs.abandoned():
            run = load_run(self._runner.folder, trial.number)
            if run is None:
                self.runs.void(trial.number, "lost")
                continue
            asked = trial.user_attrs["recommend"]
            question = Question(
                asked["configuration"], asked["seed"], asked["steps"], Part(asked["part"]), trial.user_attrs["reason"]
            )
            self._running[trial.number] = question
            self._record(trial.number, question, run, self._case.judge(run, question))
