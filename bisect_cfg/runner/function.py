"""Run a Python function as the trial: for notebooks, other trainers and simulated oracles.

``trial(configuration)`` returns an `Outcome`, True (pass), False (fail), None (unresolved) or a whole `TrialResult`.
An exception is a failure, and its signature.

By default it runs in a *forked* child, so that a SIGFPE kills the child and not the kernel of the notebook. Forking
also makes closures, lambdas and functions typed into a notebook cell work, which a fresh interpreter could not import.
When a bisection begins, its supervisor is forked from the caller's process with the function as it is then; each trial
is forked from the supervisor, which also ends what the trial has started. A trial writes its result into a file in
memory; one that ends without has died, and its signal or exit status is the signature.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import pickle
import resource
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace

from bisect_cfg.common.configuration import Configuration, Outcome, Value, present, shown
from bisect_cfg.common.failures.signals import signal_name
from bisect_cfg.common.failures.signature import from_exception
from bisect_cfg.common.json_files import digest, strict
from bisect_cfg.probe.redact import scrub
from bisect_cfg.runner.supervisor import Run, Supervisor
from bisect_cfg.store.causes import RETURNED_FALSE
from bisect_cfg.store.interface import TrialRequest, TrialResult

UNUSABLE = "unusable answer"
"""Signature of a return value that is neither pass nor fail."""

TrialFunction = Callable[[dict[str, Value]], object]
"""A function of the user's, called with a configuration."""


class FunctionRunner:
    """A `Runner` around ``trial(configuration)``.

    Args:
        trial: returns an `Outcome`, True, False, None or a `TrialResult`.
        is_valid: returns False or a reason for a configuration that cannot be built, otherwise True or None.
        isolation: "process" (a forked child) or "none" (in place).
        timeout: seconds after which a child is killed and the trial is the failure "hang".
        deterministic: whether equal configurations are known to behave the same in each run.

    Raises:
        ValueError: a timeout without a child.
    """

    def __init__(
        self,
        trial: TrialFunction,
        is_valid: TrialFunction | None = None,
        isolation: str = "process",
        timeout: float | None = None,
        deterministic: bool = False,
    ) -> None:
        if isolation == "none" and timeout is not None:
            raise ValueError("a timeout needs isolation='process': a function running in place cannot be stopped")
        self._trial, self._is_valid, self._timeout, self._deterministic = trial, is_valid, timeout, deterministic
        self.in_place = isolation == "none"  # there are no children
        self._supervisor: Supervisor | None = None
        self._held: list[Value] = []
        self._running: set[Run] = set()

    def is_valid(self, configuration: Configuration) -> str | None:
        """None if valid, otherwise the reason. An exception of the user's function is a mistake in it, and passes."""
        answer = True if self._is_valid is None else self._is_valid(dict(configuration))
        if answer is None or answer is True:
            return None
        return answer.rstrip(".") if isinstance(answer, str) else (None if answer else "is_valid refuses it")

    @contextlib.contextmanager
    def standing(self, *sides: Configuration) -> Iterator[None]:
        """Fork the supervisor now, for all trials of this context. Values of the `sides` need not be picklable, other
        values must be."""
        if self.in_place:
            yield
            return
        self._held = [value for side in sides for value in side.values()]
        with contextlib.closing(Supervisor(call=functools.partial(_answer, self._trial, self._held))) as supervisor:
            self._supervisor = supervisor
            try:
                yield
            finally:
                self._supervisor = None

    def run(self, request: TrialRequest) -> TrialResult:
        """Call the function once.

        Raises:
            TypeError: what it returned is neither pass nor fail.
        """
        start, configuration = time.perf_counter(), request.configuration
        if self.in_place:
            result = call(self._trial, configuration)
        else:
            with contextlib.nullcontext() if self._supervisor else self.standing(configuration):
                result = self._in_child(configuration)
        if result.signature == UNUSABLE and result.outcome is Outcome.UNRESOLVED:
            raise TypeError(result.message)
        result = replace(result, seconds=result.seconds or time.perf_counter() - start)
        told = sorted(result.intermediate.items())
        if result.outcome is not Outcome.FAIL or not (told or self._deterministic):
            return result
        # Equal in two failing runs that behaved the same; see `Record.trace`.
        trace = digest([result.signature, [[step, float(value).hex()] for step, value in told]])
        return replace(result, attributes={"trace": trace, **result.attributes})

    def interrupt(self) -> None:
        """End all active trials."""
        for run in self._running.copy():  # other threads begin and end trials meanwhile
            run.end()

    def _in_child(self, configuration: dict[str, Value]) -> TrialResult:
        places = {id(value): place for place, value in enumerate(self._held)}
        new = {name: value for name, value in configuration.items() if id(value) not in places}
        message = pickle.dumps([{name: places.get(id(value)) for name, value in configuration.items()}, new])
        with open(os.memfd_create("answer"), "rb") as answer:
            run = present(self._supervisor).call(message, answer.fileno())
            self._running.add(run)
            try:
                code = run.wait(self._timeout)
            finally:
                run.end()
                self._running.discard(run)
            answer.seek(0)
            with contextlib.suppress(Exception):  # it died while writing, or its own code wrote there
                result: TrialResult = pickle.load(answer)
                return result
        if code is None:
            return TrialResult(Outcome.FAIL, "hang", f"no answer within {self._timeout:g} s")
        return _result_of_status(code)


def call(trial: TrialFunction, configuration: dict[str, Value]) -> TrialResult:
    """Call the function in this process and translate whatever happens; KeyboardInterrupt passes."""
    try:
        answer = trial(dict(configuration))
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        return _result_of_exit(error.code)
    except BaseException as error:
        return result_of_exception(error)
    return result_of_answer(answer)


def result_of_answer(answer: object) -> TrialResult:
    """A function's return value as a result; UNRESOLVED with the signature `UNUSABLE` if it cannot be one."""
    if isinstance(answer, TrialResult) and isinstance(answer.outcome, Outcome):
        return answer
    if isinstance(answer, Outcome):
        return TrialResult(answer, None if answer is Outcome.PASS else answer.value)
    if answer is None:
        return TrialResult(Outcome.UNRESOLVED, "unresolved", "the trial returned None")
    if type(answer).__name__ in ("bool", "bool_"):  # numpy's as well
        passed = TrialResult(Outcome.PASS)
        return passed if answer else TrialResult(Outcome.FAIL, RETURNED_FALSE, "the trial returned False")
    text = (
        f"{shown(answer)} is no answer of a trial: it must return an Outcome such as Outcome.FAIL, True (pass), "
        "False (fail), None (neither) or a TrialResult with an Outcome, or raise an exception to fail"
    )
    return TrialResult(Outcome.UNRESOLVED, UNUSABLE, text)


def result_of_exception(error: BaseException) -> TrialResult:
    """A failure whose signature is the exception's type and its normalised message, as from a script's log."""
    name = type(error).__name__
    try:
        text = scrub(str(error))
    except Exception as broken:  # a __str__ of the user's own
        text = f"(its text cannot be had: {type(broken).__name__})"
    return TrialResult(Outcome.FAIL, str(from_exception(name, text, ())), " ".join(f"{name}: {text}".split())[:500])


def _result_of_exit(code: object) -> TrialResult:
    if code in (None, 0):
        text = "the trial exited with status 0 and without an answer"
        return TrialResult(Outcome.UNRESOLVED, "no answer", text)
    text = code if isinstance(code, str) else f"the trial exited with status {code}"
    return TrialResult(Outcome.FAIL, f"exit status {1 if isinstance(code, str) else code}", text)


def _result_of_status(status: int) -> TrialResult:
    """The result of a child that ended without one; `status` is negative for a signal."""
    if status >= 0:
        return _result_of_exit(status)
    name = signal_name(-status) or f"signal {-status}"
    return TrialResult(Outcome.FAIL, name, f"the trial was killed by {name}")


# --------------------------------------------------------------------------------- the child's side


def _answer(trial: TrialFunction, held: list[Value], message: bytes, answer: int) -> None:
    """Call the function in the child and write its result to the descriptor.

    `message` is the configuration as a pickle: name -> place in `held`, whose values need not be picklable, as they are
    inherited; and name -> value for the others.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.disable()  # a signal is a result here, and no reason to print stacks
    places, new = pickle.loads(message)
    result = call(trial, {name: new[name] if place is None else held[place] for name, place in places.items()})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with open(answer, "wb", closefd=False) as stream:
        pickle.dump(_plain(result), stream)


def _plain(result: TrialResult) -> TrialResult:
    """A result of plain values, which the caller's process can load; attributes as JSON has them."""
    return TrialResult(
        result.outcome,
        None if result.signature is None else str(result.signature),
        str(result.message),
        float(result.seconds),
        None if result.step is None else int(result.step),
        strict(dict(result.attributes)),
        {int(step): float(value) for step, value in dict(result.intermediate).items()},
    )


# --------------------------------------------------------------------------------- identity


def identity_of(function: Callable[..., object]) -> dict[str, str]:
    """A digest of a trial function's compiled code, without what it closes over.

    Returns:
        One entry, named after this Python so that another does not compare it; none if it is not written in Python.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):  # an object that can be called
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    return {f"trial function (Python {sys.version_info.major}.{sys.version_info.minor})": digest(_parts(code))}


def _parts(code: types.CodeType) -> list[object]:
    def constant(value: object) -> object:
        if isinstance(value, types.CodeType):
            return _parts(value)
        return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)

    return [code.co_code.hex(), code.co_names, code.co_varnames, [constant(value) for value in code.co_consts]]
