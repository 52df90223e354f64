"""`Bisection`: ask, run, record, until nothing is left to ask.

The search decides (`bisect_cfg.search`), a runner runs (`bisect_cfg.trials`), the study remembers
(`bisect_cfg.study`); this module passes the word between them. It keeps nothing of its own: at every step the
question is recomputed from the study, so that stopping and starting again, here or elsewhere, changes
nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from threadpoolctl import ThreadpoolController

from bisect_cfg.configuration import UNSET, Outcome, configuration_of, difference, equal
from bisect_cfg.parameters.odds import odds_of
from bisect_cfg.reports.events import CauseFound, Concluded, Event, Progress, Resumed, TrialFinished, TrialStarted
from bisect_cfg.reports.report import Cause, Claim, Correction, Evidence, Report, wilson
from bisect_cfg.search import Ask, Conclusion, Done, FoundCause, Problem, State, look
from bisect_cfg.search import Claim as SearchClaim
from bisect_cfg.search.problem import bits
from bisect_cfg.study.encoding import result_of
from bisect_cfg.study.store import BEAT_SECONDS, Ledger
from bisect_cfg.study.trial import Runner, TrialRequest, TrialResult
from bisect_cfg.trials.function import FunctionRunner, identity_of

_OTHERS_POLL_SECONDS = 0.2
"""How often to look whether another process has finished what we wait for."""

_SHOWN_LENGTH = 60
"""Of a value in an error: enough to recognise it."""


class Bisection:
    """Find which of the settings that differ between two configurations make a run fail.

    Example:
        ```python
        report = Bisection(
            good={"bf16": False, "lr": 1e-6}, bad={"bf16": True, "lr": 1e-3}, trial=lambda c: not c["bf16"]
        ).run()
        report.causes[0].parameters  # ("bf16",)
        ```

    Args:
        good: the configuration that works, dotted name -> value.
        bad: the one that fails. Its order is the user's order of the factors.
        trial: ``trial(configuration)`` returns an `Outcome`, True (pass), False (fail), None (unresolved) or a
            `TrialResult`; an exception is a failure with that signature. Or a `Runner`.
        is_valid: ``is_valid(configuration)`` returns whether it can be built (or why not, as text); costs nothing, is
            asked often. What it raises comes up to the caller.
        isolation: "process" runs the function in a forked child, "none" in place. Not used with a `Runner`.
        storage: an Optuna storage or URL (``sqlite:///study.db``); None keeps the study in memory.
        study_name: name of the study in the storage.
        seed: reserved for decisions at random; there are none, equal records give equal questions.
        max_trials: stop after this many runs, with what is known by then.
        jobs: trials to run at once.
        strategy: "adaptive", "one-at-a-time" or "ddmin".
        first: stop at the first proven cause.
        confidence: probability the answer must reach, whether the failure always shows or comes and goes.
        prior: "risk" (odds by name), "flat", or name -> odds (1 is ordinary, missing names are ordinary).
        confirm: how often each claim of the answer (the cause fails, it passes without each one parameter, the
            correction passes) must have been observed itself. None, the default: once, and again as often as the
            failure rate leaves doubt: one to three trials more than at 0 for a single cause that always fails. 0: a
            larger subset's pass speaks for a smaller one, and up to a confidence of .95 the answer rests on 19
            failures in 20 being deterministic.
        loss: what resetting each factor gives up, name -> weight (1 if missing); corrections that give up less
            are tried and named first.
        work: what each factor's bad value is expected to multiply a trial's duration by, name -> ratio (1 if missing);
            trials that cost less for what they tell are asked first, also by the times seen.
        is_failure: whether a failing result is the failure under study; None: same signature as the bad
            configuration's. Any other failure is UNRESOLVED.
        on_event: called with `Resumed`, `TrialStarted`, `TrialFinished`, `CauseFound`, `Concluded`, from the
            thread that called `run`.
        max_seconds: start no trial after this long.
        timeout: seconds until a function in a child counts as hanging.
        identity: what else tells this study from others, name -> value that JSON can hold. It is kept with the study
            and compared: trials of something else are no evidence. None: the code of the function.

    Raises:
        TypeError: an argument is none of the kind that it should be.
        ValueError: an unknown strategy, prior or isolation, or a number out of its range.
        StudyMismatch: the storage holds a study of that name for other configurations, or of another identity.
    """

    def __init__(
        self,
        good: Mapping[str, Any],
        bad: Mapping[str, Any],
        trial: Callable[[dict[str, Any]], Any] | Runner,
        is_valid: Callable[[dict[str, Any]], Any] | None = None,
        isolation: str = "process",
        storage: str | optuna.storages.BaseStorage | None = None,
        study_name: str | None = None,
        seed: int = 0,
        max_trials: int | None = None,
        jobs: int = 1,
        *,
        strategy: str = "adaptive",
        first: bool = False,
        confidence: float = 0.95,
        prior: str | Mapping[str, float] = "risk",
        confirm: int | None = None,
        loss: Mapping[str, float] | None = None,
        work: Mapping[str, float] | None = None,
        is_failure: Callable[[TrialResult], bool] | None = None,
        on_event: Callable[[Event], None] | None = None,
        max_seconds: float | None = None,
        timeout: float | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        _check_kinds(
            {"good": good, "bad": bad},
            {"loss": loss, "work": work, "identity": identity, "prior": None if isinstance(prior, str) else prior},
            {"is_valid": is_valid, "is_failure": is_failure, "on_event": on_event},
        )
        runs = _is_runner(trial)
        if not (runs or callable(trial)):
            raise TypeError(f"trial must be a function that takes a configuration, or a Runner, not {_shown(trial)}")
        if not (storage is None or isinstance(storage, (str, optuna.storages.BaseStorage))):
            raise TypeError(
                f"storage must be an Optuna storage or its address ('sqlite:///study.db'), not {_shown(storage)}"
            )
        if not (study_name is None or isinstance(study_name, str)):
            raise TypeError(f"study_name must be a text, not {_shown(study_name)}")
        if strategy not in ("adaptive", "one-at-a-time", "ddmin"):
            raise ValueError(f"strategy must be 'adaptive', 'one-at-a-time' or 'ddmin', not {strategy!r}")
        _check_numbers(
            {"jobs": jobs, "max_trials": max_trials, "confirm": confirm},
            {"confidence": confidence, "max_seconds": max_seconds, "timeout": timeout},
            {"prior": {} if isinstance(prior, str) else prior, "loss": loss or {}, "work": work or {}},
        )
        if timeout == 0:
            raise ValueError("timeout must be above 0: no trial is over at once")
        none = sorted(name for name, ratio in (work or {}).items() if ratio == 0)
        if none:
            raise ValueError(f"work of {none[0]} must be above 0: it multiplies a trial's duration")
        if jobs < 1 or (confirm is not None and confirm < 0):
            raise ValueError("jobs must be at least 1 and confirm at least 0")
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, not {confidence!r}")
        self.good, self.bad, self.seed = dict(good), dict(bad), seed
        self.factors = difference(self.good, self.bad)
        self._runner: Runner = (
            trial if runs else FunctionRunner(trial, is_valid, isolation, timeout)  # type: ignore
        )
        self._max_trials, self._max_seconds, self._jobs = max_trials, max_seconds, jobs
        self._is_failure, self._on_event = is_failure, on_event
        self._valid_cache: dict[int, str | None] = {}
        names = tuple(factor.name for factor in self.factors)
        problem = Problem(
            names, self._valid, odds_of(names, prior), strategy=strategy, first=first, confidence=confidence,
            confirm=confirm, jobs=jobs, loss=tuple(float((loss or {}).get(name, 1.0)) for name in names),
            work=tuple(math.log((work or {}).get(name, 1.0)) for name in names) if work else (),
        )  # fmt: skip
        if identity is None and not runs:
            identity = identity_of(trial)
        self._ledger = Ledger(self.factors, problem, storage, study_name, self._classify, identity)
        self._running: dict[int, tuple[FrozenTrial, TrialRequest]] = {}
        self._announced: set[int] = set()
        # A decision multiplies small matrices; more threads make it no faster, and would take the cores of a trial.
        self._threads = ThreadpoolController()

    @property
    def study(self) -> optuna.Study:
        """The Optuna study behind it."""
        return self._ledger.study

    # ------------------------------------------------------------------------------ the public part

    def run(self) -> Report:
        """Run trials until the answer stands, or the budget is spent.

        Returns:
            The report. Calling it again on a finished study returns it without any trial.

        Raises:
            KeyboardInterrupt: after the running trials were ended and recorded as interrupted.
            TypeError: the trial function returned something that says neither pass nor fail; that run does not count.
            Exception: whatever `is_valid` raised.
        """
        self._ledger.enter()
        started = time.monotonic()
        lost = self._ledger.close_stale()
        known = len(self._ledger.records())
        if known or lost:
            self._emit(Resumed(known, lost))
        try:
            with self._heart(), self._pool() as pool:
                conclusion = self._refused_side() or self._loop(pool, started)
        finally:
            self._ledger.leave()
        report = self._report(conclusion)
        self._emit(Concluded(report))
        return report

    def add(self, configuration: Mapping[str, Any], result: TrialResult, purpose: str) -> None:
        """Record a trial that was run before the bisection started; it counts. Repeating the call does nothing.

        Args:
            configuration: what was run; each factor must have its good or its bad value.
            result: what came out.
            purpose: e.g. "bad baseline".

        Raises:
            ValueError: a factor has neither of its values.
        """
        mask = 0
        for index, factor in enumerate(self.factors):
            value = configuration.get(factor.name, UNSET)
            if equal(value, factor.bad):
                mask |= 1 << index
            elif not equal(value, factor.good):
                raise ValueError(f"{factor.name}={value!r} is neither the good nor the bad value")
        reference = result if mask == self._ledger.problem.full else self._reference()
        self._ledger.add(Ask(mask, 0, purpose), result, self._classify(result, mask, reference))

    def recorded(self, purpose: str) -> TrialResult | None:
        """The result of the first finished trial with this purpose, e.g. one added before the tool was
        killed."""
        for trial in self._ledger.trials():
            if trial.state.is_finished() and trial.user_attrs["purpose"] == purpose:
                return result_of(trial)
        return None

    def progress(self) -> Progress:
        """A snapshot for a live view; cheap enough to take after every event."""
        records = self._ledger.records()
        state = look(self._ledger.problem, records)
        finished = [r for r in records if r.outcome is not None]
        seconds = sum(r.seconds for r in finished) / len(finished) if finished else 0.0
        names = self._ledger.problem.names
        return Progress(
            len(finished),
            tuple(request for _, request in list(self._running.values())),
            len(self.factors),
            tuple(names[i] for i in bits(state.ruled_out)),
            tuple(names[i] for i in bits(state.suspected)),
            tuple(self._cause(found) for found in state.causes),
            _remaining(state, len(self.factors), len(finished)),
            seconds,
        )

    # ------------------------------------------------------------------------------------- the loop

    def _loop(self, pool: ThreadPoolExecutor | None, started: float) -> Conclusion:
        futures: dict[Future[TrialResult], int] = {}
        problem = self._ledger.problem
        try:
            while True:
                records = self._ledger.records()
                with self._threads.limit(limits=1, user_api="blas"):
                    state = look(problem, records)
                self._announce(state)
                if isinstance(state.question, Done):
                    self._drop(futures)
                    return state.question.conclusion
                spent = self._spent(records, started)
                if spent and not futures:
                    return state.partial(spent)
                if isinstance(state.question, Ask) and not spent and len(futures) < self._jobs:
                    trial = self._ledger.start(state.question, records)
                    if trial is None:
                        continue
                    request = self._request(trial, state.question)
                    self._running[trial.number] = (trial, request)
                    self._emit(TrialStarted(request))
                    if pool is None:
                        self._finish(trial.number, self._runner.run(request))
                    else:
                        futures[pool.submit(self._runner.run, request)] = trial.number
                    continue
                if not futures:  # another process runs what we wait for
                    time.sleep(_OTHERS_POLL_SECONDS)
                    self._ledger.close_stale()
                    continue
                ended, _ = wait(futures, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._finish(futures.pop(future), future.result())
        except BaseException:  # KeyboardInterrupt above all: nothing may be left running, in fact or on paper
            self._drop(futures)
            raise

    def _drop(self, futures: Mapping[Future[TrialResult], int]) -> None:
        """End what is running and close it in the study; its results are not needed."""
        for future in futures:
            future.cancel()
        interrupt = getattr(self._runner, "interrupt", None)
        if interrupt is not None and self._running:
            interrupt()
            wait(futures)
            getattr(self._runner, "go_on", lambda: None)()  # later phases run trials of their own
        for trial, _ in list(self._running.values()):
            self._ledger.void(trial, "interrupted")
        self._running.clear()

    def _finish(self, number: int, result: TrialResult) -> None:
        trial, request = self._running.pop(number)
        mask = self._ledger.mask(trial)
        reference = self._reference() or (result if mask == self._ledger.problem.full else None)
        outcome = self._classify(result, mask, reference)
        self._ledger.finish(trial, result, outcome)
        self._emit(TrialFinished(request, result, outcome or result.outcome))

    def _spent(self, records: Sequence[Any], started: float) -> str:
        if self._max_trials is not None and len(records) >= self._max_trials:
            return f"Stopped after {len(records)} trials, as max_trials asks."
        if self._max_seconds is not None and time.monotonic() - started > self._max_seconds:
            return "Stopped when the time was up, as max_seconds asks."
        return ""

    def _request(self, trial: FrozenTrial, ask: Ask) -> TrialRequest:
        subset = self._ledger.names(ask.subset)
        configuration = configuration_of(subset, self.good, self.bad)
        return TrialRequest(trial.number, configuration, subset, ask.purpose, ask.reason)

    @contextmanager
    def _pool(self) -> Iterator[ThreadPoolExecutor | None]:
        """Threads for several trials at once; a single one runs in the caller's thread, where Ctrl-C
        arrives."""
        if self._jobs == 1:
            yield None
            return
        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="bisect-cfg")
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _heart(self) -> Iterator[None]:
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(BEAT_SECONDS):
                self._ledger.beat()

        thread = threading.Thread(target=beat, name="bisect-cfg-heart", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()

    # ------------------------------------------------------------------------ validity and verdicts

    def _valid(self, mask: int) -> bool:
        if mask not in self._valid_cache:
            names = self._ledger.names(mask)
            self._valid_cache[mask] = self._runner.is_valid(configuration_of(names, self.good, self.bad))
        return self._valid_cache[mask] is None

    def _refused_side(self) -> Conclusion | None:
        """The answer where one of the two configurations is not valid and was not run; None if both are."""
        seen = {record.subset for record in self._ledger.records()}
        for side, mask, status in (
            ("good", 0, "baseline_fails"), ("bad", self._ledger.problem.full, "inconclusive")
        ):  # fmt: skip
            if mask not in seen and self.factors and not self._valid(mask):
                return Conclusion(status, notes=(f"The {side} configuration is not valid: {self._valid_cache[mask]}.",))
        return None

    def _reference(self) -> TrialResult | None:
        return self._ledger.reference(self._ledger.trials())

    def _classify(self, result: TrialResult, mask: int, reference: TrialResult | None) -> Outcome | None:
        """The bisection's verdict on a result; None while the failure under study is not known yet."""
        if result.outcome is not Outcome.FAIL:
            return result.outcome
        if mask == 0:  # whatever makes the good configuration fail, it is no baseline
            return Outcome.FAIL
        if self._is_failure is not None:
            return Outcome.FAIL if self._is_failure(result) else Outcome.UNRESOLVED
        if reference is None:
            return None
        return Outcome.FAIL if result.signature == reference.signature else Outcome.UNRESOLVED

    # ----------------------------------------------------------------------------------- the answer

    def _emit(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def _announce(self, state: State) -> None:
        for found in state.causes:
            if found.parameters not in self._announced:
                self._announced.add(found.parameters)
                self._emit(CauseFound(self._cause(found)))

    def _names(self, mask: int) -> tuple[str, ...]:
        return tuple(sorted(self._ledger.names(mask)))

    def _claim(self, claim: SearchClaim) -> Claim:
        subset = None if claim.subset is None else self._names(claim.subset)
        return Claim(subset, claim.seen, claim.runs, claim.numbers, claim.note)

    def _cause(self, found: FoundCause) -> Cause:
        names = self._names(found.parameters)
        levels = {f.name: {"good": f.good, "bad": f.bad} for f in self.factors}
        without = {self.factors[i].name: self._claim(c) for i, c in found.without.items()}
        reference = self._reference()
        return Cause(
            names,
            {name: levels[name] for name in names},
            self._names(found.companions),
            reference.signature if reference else None,
            Evidence(self._claim(found.fails), without),
            self._names(found.inseparable),
        )

    def _report(self, conclusion: Conclusion) -> Report:
        safe = None
        if conclusion.safe is not None:
            safe = configuration_of(self._ledger.names(conclusion.safe), self.good, self.bad)
        reference = self._reference()
        rows = tuple(self._rows())
        fails, runs = conclusion.reproduction
        return Report(
            conclusion.status,
            tuple(self._cause(found) for found in conclusion.causes),
            tuple(Correction(self._names(mask), self._claim(claim)) for mask, claim in conclusion.corrections),
            conclusion.complete,
            safe,
            reference.signature if reference else None,
            tuple((self._names(mask), self._names(cause)) for mask, cause in conclusion.masking),
            fails / runs if runs else None,
            wilson(fails, runs) if runs else None,
            conclusion.notes,
            rows,
            sum(row["seconds"] for row in rows),
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        trials = self._ledger.trials()
        outcomes = {record.number: record.outcome for record in self._ledger.records()}
        for trial in trials:
            if not trial.state.is_finished():
                continue
            result, attributes = result_of(trial), trial.user_attrs
            outcome = outcomes[trial.number] or result.outcome
            subset = set(attributes["subset"])
            yield {
                "number": trial.number,
                "outcome": outcome.value,
                "signature": result.signature,
                "seconds": result.seconds,
                "step": result.step,
                "purpose": attributes["purpose"],
                "reason": attributes["reason"],
                "companions": ", ".join(attributes["companions"]),
                **{f.name: f.bad if f.name in subset else f.good for f in self.factors},
            }


def _is_runner(trial: Any) -> bool:
    return all(callable(getattr(trial, name, None)) for name in ("run", "is_valid")) and not isinstance(trial, type)


def _check_kinds(configurations: Mapping[str, Any], tables: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
    """Raises a TypeError that names the argument which is not what it should be."""
    for name, value in configurations.items():
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} must be a dict of names and values, not {_shown(value)}")
    for name, value in tables.items():
        if not (value is None or isinstance(value, Mapping)):
            raise TypeError(f"{name} must be a dict with names as keys, not {_shown(value)}")
    for name, value in (*configurations.items(), *tables.items()):
        odd = [key for key in value or () if not isinstance(key, str)]
        if odd:
            raise TypeError(f"{name} must have texts as names, not {_shown(odd[0])}")
    for name, value in functions.items():
        if not (value is None or callable(value)):
            raise TypeError(f"{name} must be a function, not {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + '...'} ({type(value).__name__})"


def _check_numbers(
    counts: Mapping[str, Any], numbers: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> None:
    """Numbers are finite and counts are whole; NaN passes every comparison that is meant to refuse it.

    Raises:
        ValueError: names the argument.
    """
    for name, value in counts.items():
        least = 0 if name == "confirm" else 1
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least):
            raise ValueError(f"{name} must be a whole number from {least} on, not {value!r}")
    for name, value in numbers.items():
        if value is not None and not (_is_finite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number, not {value!r}")
    for name, table in tables.items():
        for key, value in table.items():
            if not (_is_finite(value) and value >= 0):
                raise ValueError(f"{name} of {key} must be a finite number, not {value!r}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _remaining(state: State, factors: int, finished: int) -> int:
    """The search's estimate of the trials to come; one from the number of factors while a baseline is open.

    One or two settings of 19 take 6 to 13 trials after the baselines, of 64 8 to 16: about twice log2 of their number.
    """
    if state.remaining or isinstance(state.question, Done):
        return state.remaining
    return max(2 - finished, 0) + 2 * (factors - 1).bit_length()
