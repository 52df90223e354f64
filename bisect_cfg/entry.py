"""Where `bisect-cfg` begins: Ctrl-C, or SIGTERM, ends it properly from the first moment on.

Before anything heavy is imported, which takes seconds on a busy machine, there is a handler that just ends the process;
there is nothing to be tidied up yet. The other one of `bisect_cfg.interrupts` takes over from it.
"""

import _signal  # built in, where `signal` has yet to be imported

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # silent until there is a handler of ours


def main() -> None:
    """Entry point of the command."""
    from bisect_cfg import interrupts

    interrupts.install(interrupts.end)
    from bisect_cfg import crash

    crash.run(_command)


def _command() -> int:
    from bisect_cfg import cli, interrupts

    interrupts.install()
    return cli.run()
