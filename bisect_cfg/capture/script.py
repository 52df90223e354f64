"""A training script as the user starts it: path, arguments, interpreter, working directory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.errors import InputError
from bisect_cfg.probe.secrets import HIDDEN, is_secret_name, mask_arguments
from bisect_cfg.study.basis import hash_of


@dataclass(frozen=True)
class Script:
    """What to run.

    Attributes:
        path: the script as the user spelled it.
        arguments: what follows it on the command line.
        python: the interpreter; the user's environment is the one it belongs to.
        good_file: a YAML file that moves the good configuration, or None.
    """

    path: Path
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    good_file: Path | None = None

    @property
    def command(self) -> list[str]:
        """The user's own command."""
        return [self.python, str(self.path), *self.arguments]

    @property
    def shown_arguments(self) -> list[str]:
        """The arguments as they may be written down and printed: without secrets."""
        return mask_arguments(self.arguments)

    @property
    def shown(self) -> str:
        """The command as it may be printed."""
        return shlex.join([self.python, str(self.path), *self.shown_arguments])

    @property
    def by_hand(self) -> str:
        """The command for a shell; where it had a secret, whoever runs it puts that into a variable."""
        words, flag = [shlex.quote(self.python), shlex.quote(str(self.path))], ""
        for own, shown in zip(self.arguments, self.shown_arguments, strict=True):
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

    @property
    def name(self) -> str:
        """A short name for the study: the script's, or its folder's where every script is called train.py."""
        stem = self.path.resolve().stem
        name = self.path.resolve().parent.name or stem if stem in ("train", "main", "run") else stem
        # Bytes of a file name that are no text in this locale: a database takes none of them.
        return name.encode("utf-8", "backslashreplace").decode()

    def identity(self) -> dict[str, object]:
        """What makes this target this target; recorded with the study and compared when it is resumed."""
        return {
            "script": str(self.path.resolve()),
            "arguments": self.shown_arguments,
            "python": interpreter(self.python),
            "folder": os.getcwd(),
            "script_hash": hash_of(self.path),
            "good_file_hash": hash_of(self.good_file) if self.good_file else None,
            "files": {name: hash_of(Path(name)) for name in self.argument_files()},
        }

    def argument_files(self) -> list[str]:
        """Files named on the script's command line: a YAML or JSON config, data."""
        values = [argument.partition("=")[2] or argument for argument in self.arguments]
        return sorted({value for value in values if Path(value).is_file()})


def interpreter(python: str) -> str:
    """An interpreter's path, the same however it is spelled: of the links in one environment's folder the file's own
    name."""
    path = os.path.abspath(shutil.which(python) or python)
    return os.path.join(os.path.dirname(path), os.path.basename(os.path.realpath(path)))


def find_script(
    target: str, arguments: Sequence[str] = (), good_file: str | None = None, python: str | None = None
) -> Script:
    """Find what a TARGET on the command line means: a script, or a folder with ``train.py`` (and ``good.yaml``).

    Raises:
        InputError: there is no such script, or it cannot be read.
    """
    path = Path(target)
    try:
        path.exists()
    except (OSError, ValueError) as error:  # a name that no file can have
        raise InputError(f"There is no script {target[:80]}: {getattr(error, 'strerror', error)}.") from None
    beside: Path | None = None
    if path.is_dir():
        folder, path = path, path / "train.py"
        beside = folder / "good.yaml"
        if not path.exists():
            raise InputError(
                f"The folder {folder} has no train.py.",
                "Name the script itself, or a study folder that holds train.py (and, if you like, good.yaml).",
            )
    if not path.exists():
        raise InputError(f"There is no script {target}.", _similar(path))
    if path.suffix != ".py":
        raise InputError(f"{target} is not a Python script.", "Name the .py file that you would start with `python`.")
    if not os.access(path, os.R_OK):
        raise InputError(f"The script {target} cannot be read.", "Check its permissions.")
    good = Path(good_file) if good_file else (beside if beside is not None and beside.exists() else None)
    if good is not None and not good.is_file():
        raise InputError(f"There is no file {good}.", "--good takes a YAML file or name=value.")
    interpreter = python or sys.executable
    if shutil.which(interpreter) is None:
        raise InputError(
            f"There is no Python interpreter {interpreter}.", "--python takes its path, or its name on PATH."
        )
    return Script(path, tuple(arguments), interpreter, good)


def _similar(path: Path) -> str:
    try:
        scripts = sorted(str(item) for item in path.parent.glob("*.py"))[:5]
    except OSError:
        scripts = []
    return f"There are: {', '.join(scripts)}" if scripts else "Check the path; it is relative to where you are."
