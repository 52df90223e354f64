"""Run a Python function as the trial: for notebooks, other trainers and simulated oracles.

``trial(configuration)`` says what happened: an `Outcome`, True (pass), False (fail), None (unresolved) or a
whole `TrialResult`. An exception is a failure and the exception is its signature.

By default it runs in a *forked* child. Forking, rather than pickling the function over to a fresh
interpreter, is what lets closures, lambdas and functions typed into a notebook cell work; a SIGFPE then
kills the child and not the kernel of the notebook. What it has to say comes back through a pipe, in one
message; a child that ends without a message has died, and how it died (signal, exit status) is the signature.

Between us and the child stands, on Linux, a small process of our own that is the *child subreaper* of all that the
trial starts, whatever session or environment that gives itself: when the trial is over, or we are gone, it ends them
all and then itself, in the same way as the trial ended. (We are no subreaper: a notebook's kernel has other children.)
Elsewhere the child leads a process group, and what stays in that dies with it. All is forked by hand: `multiprocessing`
knows no process in between, which takes along what its child leaves and then ends by the same signal.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import inspect
import json
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace

from bisect_cfg.common.failures.signature import from_exception
from bisect_cfg.configuration import Configuration, Outcome, Value
from bisect_cfg.jsonfile import digest
from bisect_cfg.probe.secrets import scrub
from bisect_cfg.study.causes import RETURNED_FALSE
from bisect_cfg.study.interface import TrialRequest, TrialResult
from bisect_cfg.trials import reaper
from bisect_cfg.trials.process import end_of

_HEADER = struct.Struct("!Q")
_POLL_SECONDS = 0.02
"""How often a child's death is looked for where the system has no pidfd; far below what any trial takes."""

_SUBREAPER = sys.platform == "linux"
"""Whether a process can be the parent of those whose own parent has ended."""

_WATCHED = (signal.SIGCHLD, signal.SIGTERM)
"""What wakes the process in between: a child has ended, and the request to end the trial."""

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

    Raises:
        ValueError: an unknown isolation, or a timeout without a child.
    """

    def __init__(
        self,
        trial: TrialFunction,
        is_valid: TrialFunction | None = None,
        isolation: str = "process",
        timeout: float | None = None,
    ) -> None:
        if isolation not in ("process", "none"):
            raise ValueError(f"isolation must be 'process' or 'none', not {isolation!r}")
        if isolation == "none" and timeout is not None:
            raise ValueError("a timeout needs isolation='process': a function running in place cannot be stopped")
        if isolation == "process" and not hasattr(os, "fork"):
            raise ValueError("isolation='process' needs os.fork, which this system lacks; use isolation='none'")
        self._trial, self._is_valid, self._isolation, self._timeout = trial, is_valid, isolation, timeout
        self._children: set[int] = set()
        self._lock = threading.Lock()

    def is_valid(self, configuration: Configuration) -> str | None:
        """None if valid, otherwise the reason. What the user's function raises is a mistake in it, and comes up."""
        if self._is_valid is None:
            return None
        answer = self._is_valid(dict(configuration))
        if answer is None or answer is True:
            return None
        return answer.rstrip(".") if isinstance(answer, str) else (None if answer else "is_valid refuses it")

    def run(self, request: TrialRequest) -> TrialResult:
        """Call the function once, apart from us unless isolation is "none".

        Raises:
            TypeError: it returned something that says neither pass nor fail.
        """
        start = time.perf_counter()
        if self._isolation == "none":
            result = call(self._trial, request.configuration)
        else:
            result = self._run_in_child(request.configuration)
        if result.signature == UNUSABLE and result.outcome is Outcome.UNRESOLVED:
            raise TypeError(result.message)
        if result.seconds:
            return result
        return replace(result, seconds=time.perf_counter() - start)

    def interrupt(self) -> None:
        """Kill every child that is running now."""
        with self._lock:
            for child in self._children:
                _end(child)

    def _run_in_child(self, configuration: dict[str, Value]) -> TrialResult:
        reader, writer = os.pipe()
        for stream in (sys.stdout, sys.stderr):  # else the child inherits, and prints again, what we buffered
            with contextlib.suppress(Exception):
                stream.flush()
        parent = os.getpid()
        with self._lock:
            child = os.fork()
            if child == 0:  # neither returns
                main = functools.partial(_child_main, self._trial, configuration, reader, writer)
                _guarded(main, reader, writer, parent) if _SUBREAPER else main(parent)
            with contextlib.suppress(OSError):
                os.setpgid(child, child)  # in both, so that it holds whoever comes first
            self._children.add(child)
        os.close(writer)
        status: int | None = None
        try:
            message, status = _listen(child, reader, self._timeout)
        finally:
            os.close(reader)
            if status is None:
                _end(child)
                status = _reap(child)
            with self._lock:
                self._children.discard(child)
        if message is not None:
            return message
        if status is _TIMED_OUT:
            text = f"no answer within {self._timeout:g} s"
            return TrialResult(Outcome.FAIL, "hang", text)
        return _result_of_status(status)


_TIMED_OUT = -(10**6)
"""A wait status no process can have."""


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
    if isinstance(answer, TrialResult):
        return answer
    if isinstance(answer, Outcome):
        return TrialResult(answer, None if answer is Outcome.PASS else answer.value)
    if answer is None:
        return TrialResult(Outcome.UNRESOLVED, "unresolved", "the trial returned None")
    if isinstance(answer, bool) or type(answer).__name__ in ("bool_", "bool"):  # numpy's bool as well
        return (
            TrialResult(Outcome.PASS)
            if answer
            else TrialResult(Outcome.FAIL, RETURNED_FALSE, "the trial returned False")
        )
    text = (
        f"trial(configuration) returned {_short(answer)} ({type(answer).__name__}); it must return an Outcome, True "
        "(pass), False (fail), None (neither) or a TrialResult, or raise an exception to fail"
    )
    return TrialResult(Outcome.UNRESOLVED, UNUSABLE, text)


def _short(answer: object) -> str:
    try:
        return repr(answer)[:60]
    except Exception:  # a __repr__ of the user's own
        return "something"


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


def _child_main(
    trial: TrialFunction,
    configuration: dict[str, Value],
    reader: int,
    writer: int,
    parent: int,
) -> None:
    status = 0
    try:
        os.close(reader)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the parent's affair; it kills our group
        _no_core_dump()
        faulthandler.disable()  # a signal is an answer here, not a reason to print every thread's stack
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        result = call(trial, configuration)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        data = _encode(result)
        view = memoryview(_HEADER.pack(len(data)) + data)
        while view:
            view = view[os.write(writer, view) :]
    except BaseException:
        status = 70  # EX_SOFTWARE: our own code broke; the parent reports it as a failed exit
    finally:
        os._exit(status)


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


def _die_with(parent: int) -> None:
    """Ask Linux to kill us when the thread that forked us ends, lest a killed parent leaves trials behind."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(Exception):
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(70)


def _no_core_dump() -> None:
    with contextlib.suppress(Exception):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# --------------------------------------------------------------------------- the process in between


def _guarded(main: Callable[[int], None], reader: int, writer: int, parent: int) -> None:
    """Run `main` in a child of this process, end all that it leaves behind, and end as it did. Never returns."""
    status = 70  # EX_SOFTWARE, as in the child
    try:
        os.setpgid(0, 0)
        _no_core_dump()
        faulthandler.disable()  # it would report the signal that we end ourselves with
        wakes, woken = os.pipe()
        os.set_blocking(woken, False)
        actions = {number: signal.getsignal(number) for number in _WATCHED}
        stopped: list[int] = []
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)  # a kernel's event loop had its own, which is not ours
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        reaper.become_subreaper()
        ours = os.getpid()
        trial = os.fork()
        if not trial:
            signal.set_wakeup_fd(-1)
            for number, action in actions.items():
                signal.signal(number, signal.SIG_DFL if action is None else action)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            main(ours)
        os.close(reader)
        os.close(writer)
        status = _wait(trial, wakes, stopped, parent)
        reaper.end_descendants(ours)
    finally:
        if status < 0:
            number = signal.Signals(-status)
            if number is not signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
            os.kill(os.getpid(), number)
        os._exit(status if status >= 0 else 70)


def _wait(trial: int, wakes: int, stopped: list[int], parent: int) -> int:
    """How the trial ended, by itself or because we were asked to end it (`stopped` is filled then) or have lost the
    parent.

    Returns:
        As `os.waitstatus_to_exitcode` gives it.
    """
    lost = end_of(parent)
    watched = [wakes] if lost is None else [wakes, lost]
    while (status := _try_reap(trial)) is None:
        if stopped or os.getppid() != parent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(trial, signal.SIGKILL)
            return _reap(trial)
        if wakes in select.select(watched, [], [], None if lost is not None else _POLL_SECONDS)[0]:
            os.read(wakes, 4096)
    return status


# -------------------------------------------------------------------------------- the parent's side


def _listen(child: int, reader: int, timeout: float | None) -> tuple[TrialResult | None, int | None]:
    """Wait for the child's message or its death; the death is collected only if it came without a message.

    The pipe's end of file is not waited for: a grandchild that outlives the child would hold it open.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    buffer = b""
    pidfd = end_of(child)
    try:
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None, _end_and_reap(child)
            watched = [reader] if pidfd is None else [reader, pidfd]
            wait = left if pidfd is not None else min(_POLL_SECONDS, left or _POLL_SECONDS)
            ready, _, _ = select.select(watched, [], [], wait)
            ended = pidfd in ready if pidfd is not None else False
            if ended and reader not in ready:  # it may have answered between the kernel's two looks
                ready = select.select([reader], [], [], 0)[0]
            status = _try_reap(child) if pidfd is None and reader not in ready else None
            if reader in ready:
                chunk = os.read(reader, 1 << 16)
                buffer += chunk
                if len(buffer) >= _HEADER.size:
                    (length,) = _HEADER.unpack_from(buffer)
                    if len(buffer) >= _HEADER.size + length:
                        return _decode(buffer[_HEADER.size : _HEADER.size + length]), None
                if chunk:
                    continue
                return None, _reap(child)  # the child closed the pipe: it is gone or going
            if ended:
                return None, _reap(child)
            if status is not None:
                return None, status
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _reap(child: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # someone else's SIGCHLD handler was faster
        return 0


def _try_reap(child: int) -> int | None:
    pid, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _end_and_reap(child: int) -> int:
    _end(child)
    _reap(child)
    return _TIMED_OUT


def _end(child: int) -> None:
    """Have a trial's processes ended: by the one that stands between us, or ourselves. It is not waited for."""
    if not _SUBREAPER:
        _kill_group(child)
    elif _is_unreaped(child):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGTERM)


def _kill_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if _is_unreaped(child):
            os.kill(child, signal.SIGKILL)


def _is_unreaped(child: int) -> bool:
    """Whether the process is still ours to signal: once reaped, its number may belong to someone else."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def describe(trial: Callable[..., object]) -> str:
    """Where a function comes from, for messages: ``train.py:my_trial``."""
    name = getattr(trial, "__qualname__", type(trial).__name__)
    try:
        return f"{os.path.basename(inspect.getsourcefile(trial) or '?')}:{name}"
    except TypeError:
        return name


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
