"""Run a Python function as the trial: for notebooks, other trainers and simulated oracles.

``trial(configuration)`` says what happened: an `Outcome`, True (pass), False (fail), None (unresolved) or a
whole `TrialResult`. An exception is a failure and the exception is its signature.

By default it runs in a *forked* child. Forking, rather than pickling the function over to a fresh interpreter, is what
lets closures, lambdas and functions typed into a notebook cell work; a SIGFPE then kills the child and not the kernel
of the notebook. When a bisection begins, its supervisor is forked from the caller's process and holds the function as
it is then; each trial is forked from the supervisor, which ends with it all that it has started. What a trial has to
say it writes into a file in memory; one that ends without has died, and how it died (signal, exit status) is the
signature.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import json
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace

from bisect_cfg.common.failures.signature import from_exception
from bisect_cfg.configuration import Configuration, Outcome, Value, shown
from bisect_cfg.jsonfile import digest
from bisect_cfg.probe.secrets import scrub
from bisect_cfg.runner.supervisor import Run, Supervisor
from bisect_cfg.store.causes import RETURNED_FALSE
from bisect_cfg.store.interface import TrialRequest, TrialResult

_HEADER = struct.Struct("!Q")

UNUSABLE = "unusable answer"
"""Signature of a return value that says neither pass nor fail."""


TrialFunction = Callable[[dict[str, Value]], object]
"""A function of the user's, of a configuration."""


class FunctionRunner:
    """A `Runner` around ``trial(configuration)``.

    Args:
        trial: returns an `Outcome`, True, False, None or a `TrialResult`.
        is_valid: returns False (or a reason as text) for a configuration that cannot be built, else True
            or None. None in its place: every configuration is valid.
        isolation: "process" (a forked child) or "none" (in place).
        timeout: seconds after which a child is killed and the trial is the failure "hang"; needs a child.
        deterministic: whether equal configurations are known to do the same in each run.

    Attributes:
        in_place: whether there are no children.

    Raises:
        ValueError: an unknown isolation, or a timeout without a child.
    """

    def __init__(
        self,
        trial: TrialFunction,
        is_valid: TrialFunction | None = None,
        isolation: str = "process",
        timeout: float | None = None,
        deterministic: bool = False,
    ) -> None:
        if isolation not in ("process", "none"):
            raise ValueError(f"isolation must be 'process' or 'none', not {isolation!r}")
        if isolation == "none" and timeout is not None:
            raise ValueError("a timeout needs isolation='process': a function running in place cannot be stopped")
        if isolation == "process" and sys.platform != "linux":
            raise ValueError("isolation='process' needs Linux; use isolation='none'")
        self._trial, self._is_valid, self._timeout, self._deterministic = trial, is_valid, timeout, deterministic
        self.in_place = isolation == "none"
        self._supervisor: Supervisor | None = None
        self._held: list[Value] = []
        self._running: set[Run] = set()
        self._lock = threading.Lock()

    def is_valid(self, configuration: Configuration) -> str | None:
        """None if valid, otherwise the reason. What the user's function raises is a mistake in it, and comes up."""
        if self._is_valid is None:
            return None
        answer = self._is_valid(dict(configuration))
        if answer is None or answer is True:
            return None
        return answer.rstrip(".") if isinstance(answer, str) else (None if answer else "is_valid refuses it")

    @contextlib.contextmanager
    def standing(self, *sides: Configuration) -> Iterator[None]:
        """Within it, trials are forked from one process that is forked from this one now.

        Args:
            *sides: configurations whose values trials may be given; any other value must be one that pickle takes.
        """
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
        """Call the function once, apart from us unless isolation is "none".

        Raises:
            TypeError: it returned something that says neither pass nor fail.
        """
        start = time.perf_counter()
        if self.in_place:
            result = call(self._trial, request.configuration)
        elif self._supervisor is None:
            with self.standing(request.configuration):
                result = self._in_child(request.configuration)
        else:
            result = self._in_child(request.configuration)
        if result.signature == UNUSABLE and result.outcome is Outcome.UNRESOLVED:
            raise TypeError(result.message)
        result = result if result.seconds else replace(result, seconds=time.perf_counter() - start)
        trace = self._trace(result)
        return replace(result, attributes={"trace": trace, **result.attributes}) if trace else result

    def _trace(self, result: TrialResult) -> str:
        """What two failing runs of one configuration share that did the same; "" where that is not known."""
        told = sorted(result.intermediate.items())
        if result.outcome is not Outcome.FAIL or not (told or self._deterministic):
            return ""
        return digest([result.signature, [[step, float(value).hex()] for step, value in told]])

    def interrupt(self) -> None:
        """End every trial that is running now."""
        with self._lock:
            running = list(self._running)
        for run in running:
            run.end()

    def _in_child(self, configuration: dict[str, Value]) -> TrialResult:
        message = io.BytesIO()
        _Pickler(message, self._held).dump(dict(configuration))
        with open(os.memfd_create("answer"), "rb") as answer:
            run = self._supervisor.call(message.getvalue(), answer.fileno())
            with self._lock:
                self._running.add(run)
            try:
                code = run.wait(self._timeout)
            finally:
                run.end()
                with self._lock:
                    self._running.discard(run)
            answer.seek(0)
            header = answer.read(_HEADER.size)
            data = answer.read(_HEADER.unpack(header)[0]) if len(header) == _HEADER.size else b""
        if data and len(data) == _HEADER.unpack(header)[0]:
            return _decode(data)
        if code is None:
            return TrialResult(Outcome.FAIL, "hang", f"no answer within {self._timeout:g} s")
        return _result_of_status(code)


class _Pickler(pickle.Pickler):
    """Writes a value that the reader holds as well as its place there: it may be one that pickle does not take."""

    def __init__(self, stream: io.BytesIO, held: list[Value]) -> None:
        super().__init__(stream)
        self._places = {id(value): place for place, value in enumerate(held)}

    def persistent_id(self, value: object) -> int | None:
        return self._places.get(id(value))


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` wrote."""

    def __init__(self, stream: io.BytesIO, held: list[Value]) -> None:
        super().__init__(stream)
        self._held = held

    def persistent_load(self, place: int) -> Value:
        return self._held[place]


def call(trial: TrialFunction, configuration: dict[str, Value]) -> TrialResult:
    """Call the function here and translate whatever happens; KeyboardInterrupt passes through."""
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
    """A function's return value as a result; what has no meaning as one is UNRESOLVED with the signature `UNUSABLE`."""
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
    """A failure whose signature is the exception's type and its normalised message, as for a script."""
    text = scrub(_said(error))
    name = type(error).__name__
    return TrialResult(Outcome.FAIL, str(from_exception(name, text, ())), " ".join(f"{name}: {text}".split())[:500])


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # a __str__ of the user's own
        return f"(its text cannot be had: {type(broken).__name__})"


def _result_of_exit(code: object) -> TrialResult:
    if code in (None, 0):
        text = "the trial exited with status 0 and without an answer"
        return TrialResult(Outcome.UNRESOLVED, "no answer", text)
    text = code if isinstance(code, str) else f"the trial exited with status {code}"
    return TrialResult(Outcome.FAIL, f"exit status {1 if isinstance(code, str) else code}", text)


def _result_of_status(status: int) -> TrialResult:
    """The result of a child that ended without a message; `status` as from `os.waitstatus_to_exitcode`."""
    if status >= 0:
        return _result_of_exit(status)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return TrialResult(Outcome.FAIL, name, f"the trial was killed by {name}")


# --------------------------------------------------------------------------------- the child's side


def _answer(trial: TrialFunction, held: list[Value], message: bytes, answer: int) -> None:
    """Call the function of a configuration and write down what came of it.

    Args:
        trial: the function.
        held: see `_Unpickler`.
        message: the configuration.
        answer: descriptor of the file for it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.disable()  # a signal is an answer here, not a reason to print every thread's stack
    result = call(trial, _Unpickler(io.BytesIO(message), held).load())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    data = _encode(result)
    view = memoryview(_HEADER.pack(len(data)) + data)
    while view:
        view = view[os.write(answer, view) :]


def _encode(result: TrialResult) -> bytes:
    """Pickle, if the parent is sure to understand it: only what JSON can hold may be among the attributes."""
    attributes = {}
    for name, value in dict(result.attributes).items():
        try:
            json.dumps(value)
            attributes[str(name)] = value
        except (TypeError, ValueError):
            attributes[str(name)] = repr(value)
    plain = (
        result.outcome.value,
        None if result.signature is None else str(result.signature),
        str(result.message),
        float(result.seconds),
        None if result.step is None else int(result.step),
        json.dumps(attributes),
        {int(step): float(value) for step, value in dict(result.intermediate).items()},
    )
    return pickle.dumps(plain)


def _decode(data: bytes) -> TrialResult:
    outcome, signature, message, seconds, step, attributes, intermediate = pickle.loads(data)
    return TrialResult(Outcome(outcome), signature, message, seconds, step, json.loads(attributes), intermediate)


def identity_of(function: Callable[..., object]) -> dict[str, str]:
    """What tells a trial function from another one: its code, as this Python compiles it, whatever it closes over.

    Returns:
        One entry, named after the Python so that others do not compare it; none for what is not written in Python.
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
