"""The default storage of a study: an SQLite file in its folder."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy

from bisect_cfg.jsonfile import private

BUSY_SECONDS = 60
"""How long to wait for another process that writes to the same study."""


def sqlite_storage(path: Path) -> optuna.storages.RDBStorage:
    """Open (or make) the study's database.

    A finished trial is some ten small transactions. With a write-ahead log they need no flush to the disk each, and
    still survive the death of any process; only a power cut may cost the last of them, never the file.
    """

    def connected(connection: Any, record: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

    # Listening on the class covers the connections that Optuna opens while it is constructed.
    os.close(private(path, os.O_RDWR | os.O_CREAT))  # SQLite gives its other files the same mode
    sqlalchemy.event.listen(sqlalchemy.pool.Pool, "connect", connected)
    try:
        return optuna.storages.RDBStorage(
            f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": BUSY_SECONDS}}
        )
    finally:
        sqlalchemy.event.remove(sqlalchemy.pool.Pool, "connect", connected)
