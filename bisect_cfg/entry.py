"""Where `bisect-cfg` begins: Ctrl-C ends it properly from the first moment on.

Before anything else is imported, which takes seconds on a busy machine, there is a handler that just ends the process;
there is nothing to be tidied up yet. `bisect_cfg.interrupts` takes over from it.
"""

import os
import signal

INTERRUPTED = 130
"""Exit status, as a shell gives it for SIGINT."""


def end(number: int, frame: object) -> None:
    """Handles SIGINT while nothing has begun."""
    try:
        os.write(2, b"\nInterrupted before anything ran.\n")
    except OSError:  # nobody reads it
        pass
    os._exit(INTERRUPTED)


def main() -> None:
    """Entry point of the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored (`nohup`)
        signal.signal(signal.SIGINT, end)
    from bisect_cfg.cli import main as command

    command()
