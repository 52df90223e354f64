"""Where `bisect-cfg` begins: Ctrl-C ends it properly from the first moment on.

Before anything heavy is imported, which takes seconds on a busy machine, there is a handler that just ends the process;
there is nothing to be tidied up yet. The other one of `bisect_cfg.interrupts` takes over from it.
"""

import signal

from bisect_cfg.interrupts import end


def main() -> None:
    """Entry point of the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored (`nohup`)
        signal.signal(signal.SIGINT, end)
    from bisect_cfg.cli import main as command

    command()
