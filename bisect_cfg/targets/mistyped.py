"""What to type in place of a command that cannot be bisected: the line that would work, where it can be told."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bisect_cfg.errors import InputError
from bisect_cfg.targets.command import ANY_COMMAND, LAUNCHERS, OURS, is_launcher, not_a_launcher, started_by

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_AND_THEN = re.compile(r"\s*(?:&&|;|\n)\s*")


def check_program(words: Sequence[str], instead_of_file: Callable[[Path], str]) -> None:
    """Refuse what is a program, but none that starts a training by itself.

    Args:
        words: of the command; the first is no file and no launcher.
        instead_of_file: what to type in place of a file that is no script.

    Raises:
        InputError: it is one, with the line that would work.
    """
    first, rest = words[0], list(words[1:])
    name = os.path.basename(first)
    whole = _split(first)
    if len(whole) > 1 and (is_launcher(whole[0]) or shutil.which(whole[0])):
        line = shlex.join([*whole, *rest])
        raise InputError("The whole command stands in quotes, as one word.", f"Leave them out: {OURS} {line}")
    if name in _SHELLS:
        raise InputError(
            f"{name} is a shell; trials start the training itself.", _instead_of_shell(rest, instead_of_file)
        )
    if started := started_by(rest):
        raise InputError(*not_a_launcher(name, started))
    at = next((place for place, word in enumerate(rest) if word in _SHELLS or _is_file(word, ".sh")), None)
    if at is not None:
        raise InputError(
            f"{name} is not a launcher that is known ({', '.join(LAUNCHERS)}, python).",
            _instead_of_shell(rest[at + (rest[at] in _SHELLS) :], instead_of_file),
        )
    if os.sep not in first and shutil.which(first) is None:
        return
    raise InputError(
        f"{name} starts no training that could be watched: it is neither a Python script nor a launcher that is known "
        f"({', '.join(LAUNCHERS)}, python).",
        f"Give the command that starts the training: {OURS} accelerate launch train.py\n{ANY_COMMAND}",
    )


def _instead_of_shell(rest: Sequence[str], instead_of_file: Callable[[Path], str]) -> str:
    """What to type in place of ``bash ...``."""
    for place, word in enumerate(rest):
        if re.fullmatch(r"-[a-z]*c", word) and place + 1 < len(rest):
            return _instead_of_text(rest[place + 1])
        if not word.startswith("-"):
            return instead_of_file(Path(word))
    return f"Give the command that starts the training: {OURS} accelerate launch train.py"


def _instead_of_text(text: str) -> str:
    parts = _AND_THEN.split(text.strip())
    at = next((place for place, part in enumerate(parts) if (words := _split(part)) and is_launcher(words[0])), None)
    if at is None:
        return f"Give the command that starts the training: {OURS} accelerate launch train.py"
    return f"Give the command that it runs: {' && '.join([*parts[:at], f'{OURS} {parts[at]}'])}"


def _is_file(word: str, suffix: str) -> bool:
    return word.endswith(suffix) and os.path.isfile(word)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()
