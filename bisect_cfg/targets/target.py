"""What is run: a target. Scripts, launched scripts, notebooks and commands of any kind are told apart here alone.

A script is run with a probe in it, which shows what it sets, changes it, and tells how the training goes. A command of
any kind is started as it stands with other values in its places; of what it does its output and its end are known
(`probed` is false). Whoever works with a target asks it for what there is to ask, and of a command there often is
nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.script import Script

Target = Script | CommandTarget
"""Both answer to the same names: `path` is the file that is run, `program` one in its place, `python` trains ("" if
that is not known), and what of it varies is in `factors`; None: the first run shows it."""


@contextlib.contextmanager
def with_variables(target: Target) -> Iterator[None]:
    """With a script's variables set for us and what we start, as a shell does for ``NAME=VALUE command``."""
    before = {name: os.environ.get(name) for name in target.variables}
    os.environ.update(target.variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
