"""Where a study lives: an SQLite file in its folder, or a storage that it shares with other studies."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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
