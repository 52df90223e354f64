"""Ctrl-C at a moment when it can be obeyed.

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
from types import FrameType

INTERRUPTED = 130
"""Exit status, as a shell gives it for SIGINT."""

AGAIN_SECONDS = 0.05
"""How long until the signal is sent again: a statement of the database, or a callback, has returned by then."""

_NOT_INSIDE = (f"{os.sep}sqlalchemy{os.sep}",)
"""Packages that are not to be interrupted: none of their calls here takes longer than the database's own time limit."""


def end(number: int, frame: FrameType | None) -> None:
    """Handles SIGINT while nothing has begun."""
    try:
        os.write(2, b"\nInterrupted before anything ran.\n")
    except OSError:  # nobody reads it
        pass
    os._exit(INTERRUPTED)


def install() -> None:
    """Handles SIGINT of this process; does nothing where it is ignored (`nohup`, a background job of a script)."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end):
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _send_swallowed_again


def _interrupt(number: int, frame: FrameType | None) -> None:
    inside = frame
    while inside is not None:
        if any(package in inside.f_code.co_filename for package in _NOT_INSIDE):
            _send_again()
            return
        inside = inside.f_back
    raise KeyboardInterrupt


def _send_swallowed_again(unraisable: sys.UnraisableHookArgs) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _send_again()
    else:
        sys.__unraisablehook__(unraisable)


def _send_again() -> None:
    main_thread = threading.main_thread().ident
    timer = threading.Timer(AGAIN_SECONDS, signal.pthread_kill, (main_thread, signal.SIGINT))
    timer.daemon = True  # a process that has ended meanwhile needs no signal
    timer.start()
