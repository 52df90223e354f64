"""The trials of a bisection, asked for and recorded until the search concludes: what its loop works off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import FrozenTrial
from threadpoolctl import ThreadpoolController

from bisect_cfg.common.configuration import Configuration, Purpose, Status, Subset, configuration_of
from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.engines.nodes import next_check, odd_nodes, without_lost
from bisect_cfg.report.events import BisectionEvent, CauseFound, TrialFinished, TrialStarted
from bisect_cfg.search import Ask, Conclusion, Done, State, look, not_needed
from bisect_cfg.store.interface import Engine, Runner, TrialRequest, run_alone
from bisect_cfg.store.sampler import SearchTrials
from bisect_cfg.store.store import Void
from bisect_cfg.study.ask import REASON
from bisect_cfg.study.loop import Action, Limits, run_loop


@dataclass(eq=False)
class _Begun:
    """A trial that runs; `needed` ends when its result cannot change anything any more."""

    trial: FrozenTrial
    request: TrialRequest
    node: str = ""  # where it is to run; "": anywhere
    needed: bool = True


class Isolation:
    """The search's questions, one trial each.

    Args:
        trials: as the store has them, and the problem.
        runner: of the trials.
        good: the whole good configuration, with what is the same in both.
        bad: the same of the bad one.
        emit: told what happens.
    """

    def __init__(
        self,
        trials: SearchTrials,
        runner: Runner,
        good: Configuration,
        bad: Configuration,
        emit: Callable[[BisectionEvent], None],
    ) -> None:
        self._trials, self._runner = trials, runner
        self._good, self._bad, self._emit = good, bad, emit
        self._limits = Limits()
        self._conclusion, self.stopped = Conclusion(Status.INCONCLUSIVE), ""
        self.running: list[_Begun] = []
        self._came = False  # whether something has come since it was looked what is not needed any more
        self._announced: set[int] = set()
        # A decision multiplies small matrices; more threads make it no faster, and would take the cores of a trial.
        self._threads = ThreadpoolController()

    def run(self, limits: Limits) -> Conclusion:
        """Run trials until the search concludes, or the budget is spent."""
        self._limits, self._conclusion = limits, Conclusion(Status.INCONCLUSIVE)
        with self._engine() as self._at:
            run_loop(self, self._at)
        return self._conclusion

    def run_alone(self, trial: FrozenTrial, configuration: Configuration, subset: Subset) -> None:
        """Run and record a trial that a reader asks for, and nothing beside it."""
        begun = self._begin(trial, configuration, subset, Purpose.ASKED, REASON)
        try:
            with self._engine() as engine:
                self.record(begun, run_alone(engine, self.asked(begun)))
        except BaseException:
            self.close(begun)
            self.running.clear()
            raise

    def next_action(self) -> _Begun | Action:
        problem, up, node = self._trials.problem, self._at.nodes, ""
        if up:
            self._trials.odd = odd_nodes(problem, self._trials.records(odd=True), up)
            self._at.leave_out(self._trials.odd)
        records = self._trials.records()
        with self._threads.limit(limits=1, user_api="blas"):
            state = look(problem, records)
            if len(self.running) > 1 and self._came and hasattr(self._runner, "engine"):  # which can end them
                self._end(not_needed(problem, records))
        self._announce(state)
        question, concluded = state.question, None
        if isinstance(question, Done):
            concluded = question.conclusion
        check = next_check(problem, records, up, concluded) if up else None
        question, node = check or (question, "")
        if isinstance(question, Done):
            self._conclude(without_lost(problem, records, question.conclusion))
            return Action.DONE
        spent = self._limits.spent(self._trials.store.count())
        if spent and not self.running:
            self._conclude(state.partial(spent))
            self.stopped = spent
            return Action.DONE
        if spent or not isinstance(question, Ask) or len(self.running) >= problem.jobs:
            return Action.WAIT
        trial = self._trials.begin(question, state.suspicion, node)
        subset = self._trials.names(question.subset)
        configuration = configuration_of(subset, self._good, self._bad)
        return self._begin(trial, configuration, subset, question.purpose, question.reason, node)

    def _end(self, numbers: Collection[int]) -> None:
        """End trials that are not needed any more."""
        self._came = False
        for begun in self.running:
            if begun.needed and begun.trial.number in numbers:
                begun.needed = False
                self._at.end(begun.trial.number)

    def _conclude(self, conclusion: Conclusion) -> None:
        self._conclusion = replace(conclusion, notes=(*conclusion.notes, *self._trials.odd.values()))

    def _begin(
        self, trial: FrozenTrial, configuration: Configuration, subset: Subset, purpose: Purpose, reason: str,
        node: str = "",
    ) -> _Begun:  # fmt: skip
        """Take a trial that is written as begun among those that run."""
        begun = _Begun(trial, TrialRequest(trial.number, dict(configuration), subset, purpose, reason), node)
        self.running.append(begun)
        self._emit(TrialStarted(begun.request))
        return begun

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine[Any, Any]]:
        """Where trials run: an engine of the runner's own, or one that has it run them here."""
        if hasattr(self._runner, "engine"):
            yield self._runner.engine
            return
        in_place = getattr(self._runner, "in_place", False)
        engine: LocalEngine[Any, Any] = LocalEngine(self._runner, self._trials.problem.jobs, in_place)
        with contextlib.closing(engine):
            yield engine

    def asked(self, begun: _Begun) -> object:
        asked = getattr(self._runner, "asked", None)
        plan = begun.request if asked is None else asked(begun.request)
        return replace(plan, node=begun.node) if begun.node else plan

    def record(self, begun: _Begun, result: Any) -> None:
        self._came = True
        if not begun.needed:
            self._trials.store.void(begun.trial.number, Void.NOT_NEEDED)
            self.running.remove(begun)
            return
        if hasattr(self._runner, "told"):
            result = self._runner.told(result)
        outcome = self._trials.finish(begun.trial, result)
        self.running.remove(begun)
        self._emit(TrialFinished(begun.request, result, outcome))

    def close(self, begun: _Begun) -> None:
        self._trials.store.void(begun.trial.number, Void.INTERRUPTED)

    def _announce(self, state: State) -> None:
        for found in state.causes:
            if found.parameters not in self._announced:
                self._announced.add(found.parameters)
                self._emit(CauseFound(self._trials.cause(found)))
