"""Ctrl-C at a moment when it can be obeyed, and what a scheduler, `timeout` or a terminal that closes sends alike.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside SQLAlchemy that means a traceback in its
log and a connection in an unknown state; inside a weakref callback or a `__del__` it is printed and forgotten, and the
run goes on. So the signal waits until SQLAlchemy has returned, and where it was swallowed all the same it is sent
again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
"""Exit status of Ctrl-C, as a shell gives it; of another signal it is another one, see `status_of`."""

BY_SIGNAL = 128
"""What a shell adds to the number of a signal."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They all mean: end now."""

AGAIN_SECONDS = 0.05
"""How long until the signal is sent again: a statement of the database, or a callback, has returned by then."""

_NOT_INSIDE = (f"{os.sep}sqlalchemy{os.sep}",)
"""Packages that are not to be interrupted: none of their calls here takes longer than the database's own time limit."""


def end(number: int, frame: FrameType | None) -> None:
    """Handles these signals while nothing has begun."""
    with suppress(OSError):  # nobody reads it
        os.write(2, b"\nInterrupted before anything ran.\n")
    os._exit(BY_SIGNAL + number)


def status_of(interrupt: KeyboardInterrupt) -> int:
    """The exit status of what was interrupted so, as a shell gives it: 130, after SIGTERM 143."""
    return BY_SIGNAL + getattr(interrupt, "number", signal.SIGINT)


def install(handler: Callable[[int, FrameType | None], None] | None = None) -> None:
    """Handles these signals of this process; does nothing where one is ignored (`nohup`, a background job of a script).

    Args:
        handler: of them; None: each becomes a KeyboardInterrupt.
    """
    if handler is None:
        sys.unraisablehook = _send_swallowed_again
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL, end):
            signal.signal(number, handler or _interrupt)


def let_end() -> None:
    """All is done, or was told: from here on these signals end the process silently, as its interpreter ends."""
    for number in SIGNALS:
        if signal.getsignal(number) in (_interrupt, end):
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def obeyed() -> Iterator[None]:
    """While it lasts, Ctrl-C ends what runs as soon as the database has returned: in a notebook, or a caller's script.

    Its KeyboardInterrupt inside of a transaction would leave the database locked by ourselves, and recording that the
    trial was interrupted would wait for it until the database's own time limit. Does nothing outside of the main
    thread, and where somebody has a handler of their own.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    hook = sys.unraisablehook
    sys.unraisablehook = _send_swallowed_again
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook


class _Interrupted(KeyboardInterrupt):
    """By another signal than SIGINT: knows which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _interrupt(number: int, frame: FrameType | None) -> None:
    inside = frame
    while inside is not None:
        if any(package in inside.f_code.co_filename for package in _NOT_INSIDE):
            _send_again(number)
            return
        inside = inside.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else _Interrupted(number)


def _send_swallowed_again(unraisable: sys.UnraisableHookArgs) -> None:
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _send_again(getattr(unraisable.exc_value, "number", signal.SIGINT))
    else:
        sys.__unraisablehook__(unraisable)


def _send_again(number: int) -> None:
    main_thread = threading.main_thread().ident
    timer = threading.Timer(AGAIN_SECONDS, signal.pthread_kill, (main_thread, number))
    timer.daemon = True  # a process that has ended meanwhile needs no signal
    timer.start()
