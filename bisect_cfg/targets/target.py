"""What is run: a target. Scripts, launched scripts, notebooks and commands of any kind are told apart here alone.

A script is run with a probe in it, which shows what it sets, changes it, and tells how the training goes. A command of
any kind is started as it stands with other values in its places; of what it does its output and its end are known.
Whoever works with a target asks it for what there is to ask, and of a command there often is nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from bisect_cfg.common.configuration import Configuration
from bisect_cfg.probe.redact import HIDDEN, is_secret_name, mask_arguments
from bisect_cfg.store import inputs
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.launchers import Launch
from bisect_cfg.targets.notebook import Notebook


class ByHand(NamedTuple):
    """How a configuration is run by hand: the line for a shell, and the name and text of the file that it names."""

    line: str
    file: tuple[str, str] | None


class Started(NamedTuple):
    """What starts a trial: its words, the environment variables that it sets or (None) unsets, and the line for a shell
    that does the same again."""

    words: list[str]
    variables: Mapping[str, str | None]
    by_hand: str


class Target(inputs.Target, Protocol):
    """What is run, and what it sets. `path` is the file that is run, `program` one in its place; `python` trains ("" if
    that is not known), and `good_file` beside it moves the good configuration. Where it is not `probed`, no probe is in
    its runs."""

    @property
    def factors(self) -> Factors | None:
        """What varies, where that is known before anything runs; None: the first run shows it."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """Of the script."""
        ...

    @property
    def launch(self) -> Launch | None:
        """How its program is started, where that is more than ``python path arguments``."""
        ...

    @property
    def notebook(self) -> Notebook | None:
        """What `path` is as a script, if it is a notebook."""
        ...

    @property
    def what(self) -> str:
        """It is called."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What is not run as it stands there."""
        ...

    @property
    def launcher(self) -> str:
        """What starts its processes, where that varies; "" otherwise."""
        ...

    @property
    def trains(self) -> bool:
        """Whether it is written to train: run as a command, it would do so unwatched."""
        ...

    @property
    def command(self) -> list[str]:
        """The user's own command."""
        ...

    @property
    def shown(self) -> str:
        """The same as it may be printed."""
        ...

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that it sets in front of everything."""
        ...

    def written_in(self, folder: Path, *, masked: bool = False) -> Self:
        """The same with what it needs in a folder, secrets left out or not."""
        ...

    def under(self, python: str) -> Self:
        """The same with the interpreter and the programs of another environment."""
        ...

    def started(
        self, configuration: Configuration, folder: Path, given: Mapping[str, str], device: str | None
    ) -> Started | None:
        """What starts a trial as it stands, in a folder and in an environment that has given variables; None where a
        probe is told what to change."""
        ...

    def by_hand(self, configuration: Configuration) -> ByHand | None:
        """How a configuration is run by hand; None where the user's own files are to be changed for that."""
        ...


def is_masked(name: str, value: str) -> bool:
    """Whether ``NAME=VALUE`` holds a secret, so that it is written down nowhere."""
    word = f"{name}={value}"
    return list(mask_arguments([word])) != [word]


def shell_line(command: Sequence[str]) -> str:
    """A command for a shell; where it had a secret, whoever runs it puts that into a variable."""
    words, flag = [shlex.quote(command[0])], ""
    for own, shown in zip(command[1:], mask_arguments(command[1:]), strict=True):
        if own == shown:
            words.append(shlex.quote(own))
        else:
            name = flag if shown == HIDDEN else shown.partition("=")[0]
            name = name if is_secret_name(name, own) else "secret"
            variable = re.sub(r"\W+", "_", name.strip("-")).upper() or "SECRET"
            before, _, after = shown.partition(HIDDEN)
            asked = f'"${{{variable}:?the study keeps no secrets, give this one in {variable}}}"'
            words.append((shlex.quote(before) if before else "") + asked + (shlex.quote(after) if after else ""))
        flag = own
    return " ".join(words)
