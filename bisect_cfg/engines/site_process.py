"""A site as a process of its own: it reads what it is to do on its standard input, and says on its standard output what
came of it, a line of JSON each (see `bisect_cfg.engines.lines`).

    it reads                                     it says
    hello      what is run, where                hello     what is installed here, and which files it sees
    learn      what the first run has shown
    ask        can this be forked, be built?     answer    that, or why there is none
    run        a plan                            progress  metric rows;  answer  the result, or why there is none
    end        a run that nobody needs any more
    interrupt, go_on
    alive                                        alive     every second or two

It ends, and everything that it has started, when its input does, or is silent: whoever holds the other end is gone, or
cannot be reached, and has the trial run elsewhere. It has left the process that started it by then (a double fork), so
that nobody who ends his own children leaves half of it.

    python -m bisect_cfg.engines.site_process
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.fingerprint import fingerprint
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.engines.lines import line_of, message_in
from bisect_cfg.errors import InputError
from bisect_cfg.runner.environments import Environments
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.supervisor import SupervisorKilled
from bisect_cfg.store.inputs import hash_of

ALIVE_SECONDS = 2.0
"""How often a site says that it is there; the tool gives it up after `sites.SILENT_SECONDS`."""

ALONE_SECONDS = 20.0
"""A site that hears nothing for so long ends. The tool says every second that it is there."""


OF_THE_MACHINE = (
    "HOSTNAME", "TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR", "DISPLAY", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "DBUS_SESSION_BUS_ADDRESS", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "JOURNAL_STREAM",
    "INVOCATION_ID",
)  # fmt: skip
OF_THE_JOB = ("SLURM_", "SLURMD_", "RAY_", "PMI_", "PMIX_", "OMPI_", "PBS_", "LSB_", "KUBERNETES_", "BISECT_CFG_")
"""Variables, and beginnings of variables, that say something about one machine or one job: no site takes them from the
user's environment (docs/cluster.md lists them)."""


class SiteProcess:
    """The process. Serve, then close it."""

    def __init__(self, asked: BinaryIO, told: BinaryIO) -> None:
        self._asked, self._told, self._lock = asked, told, threading.Lock()
        self._site: Any = None  # before the hello
        self._heard = time.monotonic()
        self._sent: dict[int | str, int] = {}  # name of a run -> how many of its rows were told

    def serve(self) -> None:
        """Do what is asked, until nobody asks any more."""
        threading.Thread(target=self._stay_in_touch, daemon=True).start()
        for line in self._asked:
            self._heard = time.monotonic()
            message = message_in(line)
            getattr(self, f"_on_{message.pop('op')}")(**message)

    def close(self) -> None:
        """End everything that was started."""
        if self._site is not None:
            self._site.close()

    def _say(self, **message: object) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):  # nobody listens: the input ends, too
            self._told.write(line_of(message))
            self._told.flush()

    def end_with_job(self, *signalled: object) -> NoReturn:
        """SIGTERM: the job or the machine ends, and trials get it as well. What they die of says nothing of them."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._told.fileno())
        self._give_up()

    def _stay_in_touch(self) -> None:
        while time.monotonic() - self._heard < ALONE_SECONDS:
            time.sleep(ALIVE_SECONDS)
            self._say(op="alive")
        self._give_up()

    def _give_up(self) -> NoReturn:
        """End: another site takes over."""
        self.close()
        os._exit(1)

    def _on_alive(self) -> None:
        """The tool is there."""

    def _on_hello(
        self, target: Any, setup: JsonObject, environment: dict[str, str], cwd: str, files: list[str], word: str
    ) -> None:
        """Become a site of this study."""
        os.environ.clear()
        for name, value in environment.items():
            if name not in OF_THE_MACHINE and not name.startswith(OF_THE_JOB):
                os.environ[name] = value
        folder, seen = Path(setup["folder"]), False
        with contextlib.suppress(OSError):
            os.chdir(cwd)
            seen = (folder / setup["word"]).read_text() == word
        hashes: dict[str, str | None] = dict.fromkeys(files)
        for path in files:
            with contextlib.suppress(OSError):
                hashes[path] = hash_of(Path(path))
        found = fingerprint(None if target.python == sys.executable else target.python) if target.python else {}
        if seen:
            self._site = Site(
                target, folder, timeout=setup["timeout"], jobs=setup["jobs"], devices=setup["devices"],
                on_progress=self._progress, name=setup["name"], node=setup["node"],
            )  # fmt: skip
        version = metadata.version("bisect-cfg")
        self._say(op="hello", hashes=hashes, fingerprint=found, version=version, sees=seen)

    def _on_learn(self, **learned: Any) -> None:
        self._site.starts.learn(**learned)

    def _on_environments(self, folder: Path, base: str) -> None:
        self._site.environments = Environments(folder, base, run=self._site.program)

    def _on_ask(self, number: int, what: str, about: Any) -> None:
        self._answer(number, lambda: getattr(self._site.starts, what)(about))

    def _on_run(self, number: int, start: str, plan: Plan) -> None:
        self._site.starts.start = start
        self._sent[plan.name] = 0
        self._answer(number, lambda: self._site.run(plan))

    def _answer(self, number: int, work: Callable[[], object]) -> None:
        """Do something in a thread, which may take minutes, and say what came of it."""

        def answer() -> None:
            told: JsonObject = {}
            try:
                told["value"] = work()
            except KeyboardInterrupt:
                told["interrupted"] = []
            except SupervisorKilled:
                self._give_up()
            except InputError as error:
                told["error"] = [error.message, error.advice]
            except Exception as error:
                told["fault"] = [f"a site on {socket.gethostname()}: {type(error).__name__}: {error}"]
            self._say(op="answer", number=number, **told)

        threading.Thread(target=answer, daemon=True).start()

    def _progress(self, name: int | str, rows: Sequence[Row], steps: int | None) -> None:
        sent, self._sent[name] = self._sent.get(name, 0), len(rows)
        self._say(op="progress", name=name, rows=list(rows[sent:]), steps=steps)

    def _on_end(self, name: int | str) -> None:
        self._site.end(name)

    def _on_interrupt(self) -> None:
        self._site.interrupt()

    def _on_go_on(self) -> None:
        self._site.go_on()


def main() -> None:
    """Leave the process that started this one, and serve."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):  # for others: what ends it is the end of its input
        signal.signal(number, signal.SIG_IGN)
    asked, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # whatever prints goes to the log
    process = SiteProcess(asked, told)
    signal.signal(signal.SIGTERM, process.end_with_job)
    try:
        process.serve()
    finally:
        process.close()
        os._exit(0)  # threads that wait for nothing any more


if __name__ == "__main__":
    main()
