"""The command line as tests start it: in a process of its own, or forked from here, where imports are done."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psutil
import pytest

from bisect_cfg.probe.protocol import EVENTS_FILE, METRICS_FILE, Event, event_row
from bisect_cfg.runner.traces import Traces

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

MARK = "BISECT_CFG_TEST"

PATIENCE = 240.0
"""Seconds until a command counts as stuck; on an idle machine the longest takes ten."""


def slow(*values: object):
    """One of the parameters of a test that is run with `--slow` alone: another way through what the others show."""
    return pytest.param(*values, marks=pytest.mark.slow)


@dataclass(frozen=True)
class Said:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


def assert_clear(said, *words: str, status: int = 2) -> None:
    """An error for people: exit status, the words, no traceback of ours."""
    assert said.status == status, said.all
    assert not re.search("^Traceback", said.err, re.MULTILINE), said.err  # an indented one is the script's
    for word in words:
        assert word in said.all, said.all


class Tool:
    """`bisect-cfg` as a user starts it, in a folder, with a mark on everything that descends from it."""

    def __init__(self, folder: Path, python_path: Path | None) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark}
        if python_path is not None:
            self.environment["PYTHONPATH"] = str(python_path)

    def start(self, *arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bisect_cfg", *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **options,
        )  # fmt: skip

    def __call__(self, *arguments: object, seconds: float = 120) -> Said:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
        return Said(process.returncode, out, err)

    def bisect(self, *arguments: object, study: str = "s", status: int = 0, **options: Any) -> Studied:
        """Bisect to the end, with this exit status; nothing is left running."""
        said = self("bisect", "--study", study, *arguments, **options)
        assert said.status == status, said.all
        self.assert_nothing_left()
        return Studied(self.folder / study, said)

    def left(self) -> list[psutil.Process]:
        """Living processes that descend from a start of this tool."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def assert_nothing_left(self) -> None:
        with contextlib.suppress(AssertionError):
            until(lambda: not self.left())
        assert [process.cmdline() for process in self.left()] == []


QUICK = ("--no-recommend", "--no-where")
"""Options of a bisection of which the causes alone are looked at."""


class Studied:
    """A study folder, and what the command said that was the last to work in it."""

    def __init__(self, folder: Path, said: Said | None = None) -> None:
        self.folder, self.said = folder, said

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    @property
    def causes(self) -> list[list[str]]:
        return [sorted(cause["parameters"]) for cause in self.result["causes"]]

    @property
    def ended(self) -> dict[str, int]:
        """Folders of the runs that came to their end, with the time of that: one that is run again has another."""
        return {path.parent.name: path.stat().st_mtime_ns for path in self.folder.glob("trials/*/ending.json")}

    @property
    def recorded(self) -> dict[int, tuple]:
        """What the database has of each trial that is over, by number."""
        if not (self.folder / "study.db").exists():
            return {}
        return {
            trial.number: (trial.state, trial.value, trial.datetime_complete, trial.user_attrs.get("outcome"))
            for trials in recorded(f"sqlite:///{self.folder / 'study.db'}").values()
            for trial in trials
            if trial.state.is_finished()
        }


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for an event that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


BY_NAME = {"parameters", "passes_without", "changes", "ranges", "ranks"}
FREE = {"values", "suspicion", "configuration", "safe_configuration", "not_varied", "unvaried", "environment"}
"""Keys of result.json whose own keys are names of settings, each with something we write; and those of whose content
nothing more is said."""


def undocumented(result: dict[str, Any]) -> set[str]:
    """Keys of a result.json that docs/result.md and docs/recommendation.md do not have."""
    docs = Path(__file__).parents[1] / "docs"
    pages = "".join((docs / name).read_text() for name in ("result.md", "recommendation.md"))
    return set(_keys(result)) - set(re.findall(r"`([^`]*)`", pages))


def _keys(value: object) -> Iterator[str]:
    for part in value if isinstance(value, list) else ():
        yield from _keys(part)
    for key, part in value.items() if isinstance(value, dict) else ():
        yield key
        if key not in FREE:
            yield from _keys(list(part.values()) if key in BY_NAME and isinstance(part, dict) else part)


def recorded(address: str) -> dict[str, list[FrozenTrial]]:
    """The studies of a storage, by name, and their trials."""
    import optuna

    storage = optuna.storages.RDBStorage(address)
    try:
        names = optuna.get_all_study_names(storage)
        return {name: optuna.load_study(study_name=name, storage=storage).trials for name in names}
    finally:
        closed(storage)


def asked(study: Path) -> dict[str, Path]:
    """What each run of a study is, as its database has it: its question, or otherwise its purpose, -> its folder; of
    several the last. Nothing while there is no database."""
    found: dict[str, Path] = {}
    if not (study / "study.db").exists():
        return found
    with contextlib.closing(sqlite3.connect(f"file:{study}/study.db?mode=ro", uri=True)) as database:
        for key in ("purpose", "question"):
            known = (
                "select number, value_json from trials join trial_user_attributes using (trial_id) where key = ? "
                "order by number"
            )
            with contextlib.suppress(sqlite3.OperationalError):  # its tables are being made
                rows = database.execute(known, [key])
                found |= {json.loads(value): study / "trials" / str(number) for number, value in rows}
    return found


@functools.cache
def import_what_commands_import() -> None:
    """What commands import, in part only where they come to it, and read of files that never change. A first study is
    made and thrown away: with it Optuna and SQLAlchemy have set up what each process sets up once."""
    for name in (
        "zoneinfo",
        *(f"bisect_cfg.{room}" for room in ("api", "cli", "study.story", "explain", "rewrite.edits", "doctor.examine")),
        *(f"bisect_cfg.{room}" for room in ("report.answer_of", "report.html", "report.live", "report.markdown")),
        *(f"bisect_cfg.{room}" for room in ("report.insights", "report.terminal", "search", "store.store")),
    ):  # fmt: skip
        importlib.import_module(name)
    sys.modules["bisect_cfg.explain.knowledge"].load()
    page = sys.modules["bisect_cfg.report.html"]
    page._template(), page._plotly()  # what every page has, compressed
    from bisect_cfg import Bisection

    with tempfile.TemporaryDirectory() as folder:
        storage = sys.modules["bisect_cfg.store.storage"].sqlite_storage(Path(folder) / "study.db")
        sides = {"good": {"a": 1}, "bad": {"a": 2}, "trial": lambda configuration: configuration["a"] < 2}
        Bisection(**sides, isolation="none", storage=storage).run()
        closed(storage)


def closed(storage: RDBStorage) -> None:
    """Leave no connection to a database open, for a command that is forked later would inherit it."""
    storage.remove_session()
    storage.engine.dispose()


class Forked:
    """A command that was forked from here, with what `subprocess.Popen` has of it."""

    def __init__(self, run: Callable[[int, int], NoReturn]) -> None:
        self._streams = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            run(*(stream.fileno() for stream in self._streams))

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"no end within {timeout:.0f} s")
            time.sleep(0.01)
        texts = []
        for stream in self._streams:
            with stream:
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "replace"))
        return texts[0], texts[1]


class ForkedTool(Tool):
    """As `Tool`, forked from this process, which has imported what the command needs."""

    def start(self, *arguments: object, prepare: Callable[[], None] = lambda: None, **streams: str) -> Forked:
        """Start a command.

        Args:
            arguments: of `bisect-cfg`.
            prepare: called in the child first, to set limits.
            streams: "stdout" or "stderr" -> path to write to in place of what is captured.
        """
        import_what_commands_import()
        return Forked(lambda out, err: self._become(list(map(str, arguments)), out, err, prepare, streams))

    def __call__(self, *arguments: object, seconds: float = PATIENCE, **options: Any) -> Said:
        process = self.start(*arguments, **options)
        out, err = process.communicate(seconds)
        return Said(process.returncode, out, err)

    def _become(
        self, arguments: list[str], out: int, err: int, prepare: Callable[[], None], streams: dict[str, str]
    ) -> NoReturn:
        status = 99
        try:
            gc.freeze()  # what this process holds open is not the command's to close
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(self.folder)
            os.environ.clear()
            os.environ.update(self.environment)
            sys.path[:0] = [str(self.folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            out = os.open(streams["stdout"], os.O_WRONLY) if "stdout" in streams else out
            err = os.open(streams["stderr"], os.O_WRONLY) if "stderr" in streams else err
            for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
                os.dup2(source, target)
            os.closerange(3, 1024)
            sys.argv = ["bisect-cfg", *arguments]
            sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            prepare()
            from sqlalchemy import Engine

            from bisect_cfg.entry import main

            try:
                main()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 98
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for engine in [made for made in gc.get_objects() if isinstance(made, Engine)]:
                engine.dispose()  # as the end of an interpreter would: SQLite takes its log into the database
        finally:
            os._exit(status)


def wheel(folder: Path, name: str, version: str, text: str = "", requires: tuple[str, ...] = ()) -> str:
    """A wheel of one module, as the line that installs it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    asks = "".join(f"Requires-Dist: {one}\n" for one in requires)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text or f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asks}")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"{name} @ {path.as_uri()}"


def traces_of(folder: Path, *events: Event, rows: Iterable[Mapping[str, object]] = ()) -> Traces:
    """What a probe wrote into a run's folder: these events and metric rows, read to their end."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in ((EVENTS_FILE, [event_row(event, 1.0) for event in events]), (METRICS_FILE, rows)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    traces = Traces(folder)
    traces.read()
    return traces
