"""Where `bisect-cfg` begins: Ctrl-C, or SIGTERM, ends it properly from the first moment on.

Before anything heavy is imported, which takes seconds on a busy machine, there is a handler that just ends the process;
there is nothing to be tidied up yet. The other one of `bisect_cfg.interrupts` takes over from it.
"""

from bisect_cfg.interrupts import end, install


def main() -> None:
    """Entry point of the command."""
    install(end)
    from bisect_cfg.cli import main as command

    command()
