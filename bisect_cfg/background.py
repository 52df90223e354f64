"""A bisection in a process of its own, so that a notebook's cells, or a script, go on meanwhile.

The process is a child with a session of its own: an interrupted cell does not end it, and it ends with its parent, as
its standard input then closes. What it has to say comes through a pipe, a JSON object a line: the "folder", what
a notebook shows of it now ("shown"), and how it "ended" if it did not come to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bisect_cfg import crash, interrupts
from bisect_cfg.errors import InputError
from bisect_cfg.options import Options
from bisect_cfg.probe.redact import mask_arguments

if TYPE_CHECKING:
    from bisect_cfg.report.notebook import StudyReport


class Running:
    """A bisection that goes on in a process of its own; ``bisect(..., wait=False)`` returns it.

    Attributes:
        folder: of the study; None until it has begun.
    """

    def __init__(
        self,
        run: Callable[..., object],
        target: str,
        arguments: Sequence[str],
        options: Options,
        load: Callable[[Path], StudyReport],
    ) -> None:
        from bisect_cfg.report.notebook_view import in_notebook, in_page

        self.folder: Path | None = None
        self._what = shlex.join(mask_arguments([target, *arguments]))
        self._load, self._ended = load, crash.Ended(0)
        self._handle: Any = in_page({"text/plain": "Starting ..."}) if in_notebook() else None
        read, write = os.pipe()
        self._process = subprocess.Popen(  # -P: no module beside the notebook is taken for one of Python's
            [sys.executable, "-P", "-m", "bisect_cfg.background", str(write)],
            stdin=subprocess.PIPE, pass_fds=[write], start_new_session=True,
        )  # fmt: skip
        os.close(write)
        assert self._process.stdin is not None
        pickle.dump((run, target, tuple(arguments), options, self._handle is not None), self._process.stdin)
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._read, args=(read,), name="bisect-cfg-background", daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        where = "" if self.folder is None else f" in {self.folder}"
        return f"<bisection of {self._what}, {'over' if self.done else 'running'}{where}>"

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._process.poll() is not None

    @property
    def report(self) -> StudyReport:
        """What is known by now.

        Raises:
            InputError: the study has not begun, or was refused.
        """
        if self.folder is None:
            self._refuse()
            raise InputError("The study has not begun yet.", "Ask again in a few seconds, or wait().")
        return self._load(self.folder)

    def wait(self, timeout: float | None = None) -> StudyReport:
        """Wait for its end, for at most so many seconds. To interrupt the waiting does not interrupt the bisection.

        Raises:
            InputError: something about the input stands in the way; says what to do.
            TimeoutError: it goes on for longer.
        """
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise TimeoutError(f"the bisection of {self._what} is not over after {timeout} s")
        self._process.wait()
        self._refuse()
        return self.report

    def stop(self) -> StudyReport:
        """End it, as Ctrl-C does: nothing is lost, and the same call goes on. What is known then."""
        if not self.done:
            self._process.send_signal(signal.SIGINT)
        return self.wait()

    def _refuse(self) -> None:
        """Raise what ended it, if that was neither an answer nor a signal."""
        status, message, advice = self._ended
        if message:
            raise (RuntimeError(f"{message}\n{advice}") if status == crash.INTERNAL else InputError(message, advice))
        died = self._process.poll()
        if died and self.folder is None:
            raise InputError(f"The bisection ended with status {died} before its study began.", "Start it again.")

    def _read(self, read: int) -> None:
        with os.fdopen(read, encoding="utf-8") as lines:
            for told in map(json.loads, lines):
                if "folder" in told:
                    self.folder = Path(told["folder"])
                elif "shown" in told:
                    with contextlib.suppress(Exception):  # a page that cannot be drawn stops no bisection
                        self._handle.update(told["shown"], raw=True)
                else:
                    self._ended = crash.Ended(*told["ended"])


def _work() -> int:
    """What the process does."""
    from bisect_cfg.report.live import View
    from bisect_cfg.report.notebook_view import NotebookView
    from bisect_cfg.report.terminal import console

    interrupts.install()
    asked = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    run, target, arguments, options, notebook = pickle.load(asked)

    def end_with_parent() -> None:
        asked.read()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8") as lines:
        os.set_inheritable(lines.fileno(), False)

        def tell(**said: object) -> None:
            lines.write(json.dumps(said) + "\n")

        handle = SimpleNamespace(update=lambda shown, raw: tell(shown=shown))  # as IPython's, in the other process
        view = NotebookView(lambda shown: handle) if notebook else View(console(), live=False)
        try:
            with view:
                run(target, arguments, options, view, begun=lambda folder: tell(folder=str(folder.absolute())))
        except BaseException as error:
            ended = crash.ended_by(error)
            tell(ended=ended)
            return ended.status
    return 0


if __name__ == "__main__":
    interrupts.install(interrupts.end)
    crash.run(_work)
