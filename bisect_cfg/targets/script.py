"""A training script as the user starts it: path, arguments, interpreter, working directory."""

from __future__ import annotations

import difflib
import glob
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_cfg.common.cells import SUFFIX, script_of
from bisect_cfg.common.configuration import Configuration
from bisect_cfg.common.files import read_bytes
from bisect_cfg.common.fingerprint import PATIENCE
from bisect_cfg.common.json_files import write_text
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask_arguments, scrub
from bisect_cfg.store.inputs import hash_of
from bisect_cfg.store.state import TargetIdentity
from bisect_cfg.targets.interpreters import modules_of, said_by
from bisect_cfg.targets.launchers import OURS, Launch, find_command, is_launcher, lacking
from bisect_cfg.targets.notebook import Notebook, as_script, read_notebook

_TRAINS = re.compile(r"\b(?:trl|TrainingArguments)\b")
"""In the text of a script that is written to build a training config."""

SHOWN = 5
"""So many scripts are named where the one that was asked for is not there."""


@dataclass(frozen=True)
class Script:
    """A training script, a notebook, or a whole command that starts one; see `Target`.

    Attributes:
        path: the script as the user spelled it.
        arguments: what follows it on the command line.
        python: the interpreter; the user's environment is the one it belongs to.
        good_file: a YAML file that moves the good configuration, or None.
        launch: how the script is started, where that is more than ``python path arguments``.
        notebook: what `path` is as a script, if it is a notebook.
        program: the file that Python runs in its place.
    """

    probed = True
    factors = None

    path: Path
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    good_file: Path | None = None
    launch: Launch | None = None
    notebook: Notebook | None = None
    program: Path | None = None

    def written_in(self, folder: Path, *, masked: bool = False) -> Script:
        """The same, and if it is a notebook, with its script in a folder.

        Args:
            folder: that can be written.
            masked: whether secrets are left out of it: the runs are over.
        """
        if self.notebook is None:
            return self
        program = script_of(self.path, folder)
        write_text(program, scrub(self.notebook.text) if masked else self.notebook.text)
        return replace(self, program=program)

    @property
    def runs(self) -> Path:
        """The file that Python runs."""
        return self.program or self.path

    @property
    def what(self) -> str:
        """What to call it."""
        return "script" if self.notebook is None else "notebook"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not run as it stands there."""
        return () if self.notebook is None else self.notebook.notes

    @property
    def trains(self) -> bool:
        """Whether it, or a module beside it, is written to train: run as a command, it would do so unwatched."""
        texts = (path.read_text(errors="replace") for path in (self.path, *modules_of(self.path)))
        return any(_TRAINS.search(text) for text in texts)

    def under(self, python: str) -> Script:
        """The same, run by the interpreter of another environment."""
        launch = None if self.launch is None else self.launch.under(Path(python).parent)
        return replace(self, python=python, launch=launch)

    @property
    def command(self) -> list[str]:
        """The user's own command."""
        return self.command_at(None)

    def command_at(self, port: int | None, logs: Path | None = None) -> list[str]:
        """The user's own command, told where its processes meet and its launcher writes; see `Launch.command`."""
        if self.launch is not None:
            return self.launch.command(self.arguments, port, logs)
        return [self.python, str(self.runs), *self.arguments]

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that the command sets in front of everything."""
        if self.notebook is not None and "matplotlib" in self.notebook.text:
            return {"MPLBACKEND": os.environ.get("MPLBACKEND", "agg")}  # no windows, as in Jupyter
        return dict(self.launch.variables) if self.launch is not None else {}

    @property
    def shown_arguments(self) -> list[str]:
        """The arguments as they may be written down and printed: without secrets."""
        return list(mask_arguments(self.arguments))

    @property
    def shown(self) -> str:
        """The command as it may be printed."""
        variables = mask_arguments([f"{name}={value}" for name, value in self.variables.items()])
        return shlex.join([*variables, *mask_arguments(self.command)])

    @property
    def launcher(self) -> str:
        """What starts it: "python", or a launcher by its name."""
        return "python" if self.launch is None else self.launch.kind

    @property
    def name(self) -> str:
        """A short name for the study: the script's, or its folder's where every script is called train.py."""
        stem = self.path.resolve().stem
        name = self.path.resolve().parent.name or stem if stem in ("train", "main", "run") else stem
        # Bytes of a file name that are no text in this locale: a database takes none of them.
        return name.encode("utf-8", "backslashreplace").decode()

    def identity(self) -> TargetIdentity:
        """What makes this target this target; recorded with the study and compared when it is resumed."""
        return {
            "script": str(self.path.resolve()),
            "arguments": self.shown_arguments if self.launch is None else shlex.split(self.shown),
            "python": interpreter(self.python),
            "folder": os.getcwd(),
            "script_hash": hash_of(self.path),
            "good_file_hash": hash_of(self.good_file) if self.good_file else None,
            "files": {name: hash_of(Path(name)) for name in self.argument_files()},
        }

    def argument_files(self) -> list[str]:
        """Files named on the script's command line: a YAML or JSON config, data."""
        words = (*(self.launch.before[1:] if self.launch is not None else ()), *self.arguments)
        values = [word.partition("=")[2] or word for word in words]
        return sorted({value for value in values if Path(value).is_file()})

    def started(self, *told: object) -> None:
        """None: its probe is told what to change."""

    def by_hand(self, configuration: Configuration) -> None:
        """None: the script's own settings are to be changed."""


def interpreter(python: str) -> str:
    """An interpreter's path, the same however it is spelled: of the links in one environment's folder the file's own
    name."""
    path = os.path.abspath(shutil.which(python) or python)
    return os.path.join(os.path.dirname(path), os.path.basename(os.path.realpath(path)))


def sites_of(python: str) -> list[str]:
    """The folders in which an interpreter finds installed packages.

    Raises:
        InputError: it does not say so.
    """
    paths = sys.path
    if interpreter(python) != interpreter(sys.executable):
        paths = said_by([python, "-c", "import json, sys; print(json.dumps(sys.path))"], PATIENCE)
        if paths is None:
            raise InputError(f"{python} does not answer as a Python interpreter.", "--python takes the path of one.")
    return [path for path in dict.fromkeys(paths) if any(glob.iglob(os.path.join(glob.escape(path), "*.dist-info")))]


def find_script(target: str, arguments: Sequence[str] = (), python: str | None = None) -> Script:
    """Find what a TARGET on the command line means: a script, a folder with ``train.py`` (and ``good.yaml``), or the
    first word of a whole command.

    Raises:
        InputError: there is no such script, or it cannot be read.
    """
    started = next((word for word in arguments if word.endswith(SUFFIX)), None)
    if started and not any(word.endswith(".py") for word in (target, *arguments)) and not Path(target).is_file():
        raise InputError(
            f"{os.path.basename(target)} would run {started}, which bisect-cfg does itself.",
            f"Name the notebook alone: bisect-cfg bisect {shlex.quote(started)}",
        )
    if is_launcher(target) and not Path(target).is_dir():
        return _found(target, arguments, python)
    path, good = Path(target), None
    try:
        path.exists()
    except OSError as error:  # a name that no file can have
        raise InputError(f"There is no script {target[:80]}: {error.strerror}.") from None
    if path.is_dir():
        folder, path = path, path / "train.py"
        good = folder / "good.yaml" if (folder / "good.yaml").exists() else None
        if not path.exists():
            raise InputError(
                f"The folder {folder} has no train.py.",
                "Name the script itself, or a study folder that holds train.py (and, if you like, good.yaml).",
            )
    if path.suffix not in (".py", SUFFIX) and (shutil.which(target) or (arguments and not path.exists())):
        return _found(target, arguments, python)
    if not path.exists():
        raise InputError(f"There is no script {target}.", _similar(path))
    if path.suffix not in (".py", SUFFIX):
        quoted = shlex.quote(target)
        line = f"bash {quoted}" if path.suffix in (".sh", ".bash", "") else f"trl grpo --config {quoted}"
        raise InputError(f"{target} is not a Python script.", f"Put what runs it in front, as in: {OURS} {line}")
    try:
        read_bytes(path)
    except OSError as error:
        raise InputError(f"The script {target} cannot be read: {error.strerror}.") from None
    interpreter = python or sys.executable
    if shutil.which(interpreter) is None:
        raise InputError(
            f"There is no Python interpreter {interpreter}.", "--python takes its path, or a name on PATH."
        )
    notebook = None
    if path.suffix == SUFFIX:
        notebook = as_script(path, read_notebook(path), interpreter, lambda names: lacking(names, interpreter))
    return Script(path, tuple(arguments), interpreter, good, notebook=notebook)


def _found(first: str, more: Sequence[str], python: str | None) -> Script:
    """The script of a whole command."""
    launch, path, arguments, python = find_command([first, *more], python)
    plain = launch.kind == "python" and len(launch.before) == 1 and not (launch.module or launch.variables)
    return Script(path, arguments, python, None, None if plain else launch)


def _similar(path: Path) -> str:
    """What to do about a script that is not there: those that are, the most alike first."""
    module = path.suffix not in (".py", SUFFIX) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", str(path))
    if module or str(path) == "-m":
        return f"A module is started by python: {OURS} python -m {path if module else 'pkg.train'}"
    try:
        scripts = sorted(str(item) for item in path.parent.glob(f"*{SUFFIX if path.suffix == SUFFIX else '.py'}"))
    except OSError:
        scripts = []
    alike = difflib.get_close_matches(str(path), scripts, SHOWN, cutoff=0.5)
    shown = list(dict.fromkeys([*alike, *scripts]))[:SHOWN]
    more = f" and {len(scripts) - len(shown)} more" if len(scripts) > len(shown) else ""
    return f"There are: {', '.join(shown)}{more}" if shown else "Check the path; it is relative to where you are."
