"""Where a study lives: an SQLite file in its folder, or a storage that it shares with other studies. And that one
process at a time writes there: a locked file, which the system unlocks when its process dies, however that is. The
number of the process stands in it, so that whoever comes second can be told. Processes on other machines are not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import optuna
import sqlalchemy

from bisect_cfg.common.json_files import JsonObject, private
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import scrub

Made = TypeVar("Made")

BUSY_SECONDS = 60
"""How long to wait for another process that writes to the same study."""

OPENING_ATTEMPTS = 8
"""Optuna creates its tables in several transactions; the loser of a race finds them there a moment later."""

BESIDE = ", "
"""Between the name of a study and what else is searched in it: "train, rows of step 8" is one of its own."""


def sqlite_storage(path: Path) -> optuna.storages.RDBStorage:
    """Open (or make) the study's database.

    A finished trial is some ten small transactions. With a write-ahead log they need no flush to the disk each, and
    still survive the death of any process; only a power cut may cost the last of them, never the file.
    """

    def connected(connection: object, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

    # Listening on the class covers the connections that Optuna opens while it is constructed.
    os.close(private(path, os.O_RDWR | os.O_CREAT))  # SQLite gives its other files the same mode
    sqlalchemy.event.listen(sqlalchemy.pool.Pool, "connect", connected)
    try:
        # A path is no address: ? and # mean something there.
        address = sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
        return optuna.storages.RDBStorage(address, engine_kwargs={"connect_args": {"timeout": BUSY_SECONDS}})
    finally:
        sqlalchemy.event.remove(sqlalchemy.pool.Pool, "connect", connected)


def open_storage(address: str) -> optuna.storages.BaseStorage:
    """Open (or make) a storage that the user named; other studies may be opening it at the same time. What Optuna and
    SQLAlchemy raise comes up: ValueError, ImportError, SQLAlchemyError."""
    url, engine = sqlalchemy.engine.make_url(address), JsonObject()
    if url.get_backend_name() == "sqlite":  # no write-ahead log: it may lie on a network disk
        engine = {"connect_args": {"timeout": BUSY_SECONDS}}
        if url.database and url.database != ":memory:" and not url.database.startswith("file:"):
            with contextlib.suppress(OSError):  # that it cannot be made, whoever opens it says
                os.close(private(url.database, os.O_RDWR | os.O_CREAT | os.O_EXCL))  # only its owner can read it

    def opened() -> optuna.storages.BaseStorage:
        with warnings.catch_warnings():  # of arguments in the address that its driver leaves alone, twice
            warnings.simplefilter("ignore", sqlalchemy.exc.SAWarning)
            if engine:
                return optuna.storages.RDBStorage(address, engine_kwargs=engine)
            return optuna.storages.get_storage(address)

    return patiently(opened)


def patiently(make: Callable[[], Made]) -> Made:
    """What `make` makes, tried again where another process, which makes the tables of one new database at the same
    time, may have been in its way."""
    for attempt in range(1, OPENING_ATTEMPTS):
        try:
            return make()
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.OperationalError) as error:
            if "unable to open" in str(error):  # a folder that is not there will not come
                raise
            time.sleep(0.1 * attempt)
    return make()


CHECK_ADDRESS = "Check its address, that the database can be reached and written, and that its driver is installed."


def cannot_open(storage: object, error: Exception, advice: str = CHECK_ADDRESS) -> InputError:
    """What is said of a storage (its address, or its file) that the driver of its database could not open."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    return InputError(f"The storage {scrub(str(storage))} cannot be opened: {scrub(said[0].rstrip('.'))}.", advice)


# --------------------------------------------------------------------------------- one writer

_held: set[IO[str]] = set()


def _let_go() -> None:
    for stream in _held:
        stream.close()


os.register_at_fork(after_in_child=_let_go)  # a child that outlives its parent would hold the file on


class Held(RuntimeError):
    """Another process has the file, or another part of this one; its number is 0 where it is not known."""

    def __init__(self, process: int) -> None:
        super().__init__(f"process {process}" if process else "another process")
        self.process = process


@contextlib.contextmanager
def locked(path: Path, passing: bool = False) -> Iterator[None]:
    """With a file locked, which is made if it is not there (no link is followed), and removed again where it is only
    for `passing`.

    Raises:
        Held: somebody else has it.
        OSError: it cannot be made.
    """
    with open(private(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK), "r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(int(f"0{stream.read()}")) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        _held.add(stream)
        try:
            yield
        finally:
            _held.discard(stream)
            stream.truncate(0)
            if passing:
                path.unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Whether somebody has locked a file at this moment."""
    with contextlib.suppress(OSError), open(private(path, os.O_RDONLY)) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def place_of(key: str) -> Path:
    """The file to lock for what has no folder of its own."""
    return Path(tempfile.gettempdir(), f"bisect-cfg-{os.getuid()}-{key}.lock")
