"""Other people's tools on the same oracles: one module each, named after what it imports.

A module has `PACKAGE`, the name on PyPI (`TITLE` where the algorithm is that of `textbook.py`), and
`solve(oracle, repeats)`. Each calls its tool through the interface its
own documentation shows, with its defaults. What the tool launches is counted, no more and no less: one that
never runs the good configuration is not charged for it. `repeats` is how often a passing configuration is run
before it is believed, for failures that are random; a tool that has an option of its own for that uses it, the
others get a test function that repeats. `SETTINGS`, if there, are the values of `repeats` that make sense for it.
An invalid configuration does not show the failure.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

NAMES = (
    "rimbisect",
    "lithium",
    "ddmin",
    "failmin",
    "shrinkray",
    "envbisect",
    "picire",
    "mlbisect",
    "optuna_tpe",
    "one_at_a_time",
    "textbook_ddmin",
)


def load(name: str) -> tuple[ModuleType, str] | None:
    """The adapter of a tool and the tool's name with its version; None, with a line, if it is not installed."""
    try:
        adapter = importlib.import_module(f"peers.{name}_peer")
        return adapter, getattr(adapter, "TITLE", "") or f"{adapter.PACKAGE} {version(adapter.PACKAGE)}"
    except (ImportError, PackageNotFoundError) as error:
        print(f"{name} is left out: {error}")
        return None
