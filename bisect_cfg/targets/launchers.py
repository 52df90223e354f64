"""The user's own command line, taken apart: ``[NAME=VALUE ...] accelerate launch [flags] train.py [arguments]``.

What starts the training (accelerate, torchrun, deepspeed, TRL's command, ``uv run``, Python itself) is kept word for
word and run as it is; what has to be known of it is where the program stands among the words, which Python runs it, and
which port its processes meet at. A program that is none of these (``bash run.sh``, ``make train``) is run as it stands;
the probe follows what it starts. `take_apart` is pure; `find_command` looks at the machine.

Which flags of a launcher take a value only its own parser knows. The script is told without it: it is the first word
that is a Python file, or the word behind ``-m``. What is wrong with the flags the launcher itself says when it is run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_cfg.common.files import load_yaml, read_text
from bisect_cfg.errors import InputError
from bisect_cfg.targets.interpreters import PYTHON, named_by, said_by

LAUNCHERS = ("accelerate", "accelerate-launch", "torchrun", "deepspeed", "trl", "uv")
"""Programs that start a training; besides, anything that is called ``python``."""

PROGRAM = "program"
"""The kind of launch of a program that is no launcher."""

OURS = "bisect-cfg bisect --"
"""How a command is given to us."""

SECONDS = 120.0
"""For an interpreter to say something: it may have to be found by uv first."""

ONE_MACHINE = "bisect-cfg starts all processes of a trial on this machine; leave out what is for several machines."

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)

# Of Python's own options these take a value (https://docs.python.org/3/using/cmdline.html).
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")

_SEVERAL_MACHINES = ("num_machines", "nnodes", "num_nodes")
_MODULE = ("-m", "--module")
_PORT = {"accelerate": "--main_process_port", "torchrun": "--master_port", "deepspeed": "--master_port"}
_PROCESSES = {"torchrun": "--nproc_per_node", "deepspeed": "--num_gpus"}
_PROCESSES |= dict.fromkeys(("accelerate", "trl"), "--num_processes")

_SEVERAL = ("multi_gpu", "use_fsdp", "use_deepspeed", "cpu", "config_file", "accelerate_config")
"""Flags of accelerate (and of TRL's command) that say what the processes have to do with each other."""

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")

_BY_MODULE = {
    ("accelerate.commands.launch",): "accelerate",
    ("accelerate", "launch"): "accelerate",
    ("accelerate.commands.accelerate_cli", "launch"): "accelerate",
    ("torch.distributed.run",): "torchrun",
    ("torch.distributed.launch",): "torchrun",
}
"""Launchers as ``python -m`` starts them."""

_EXECUTABLE = "import json, sys; print(json.dumps(sys.executable))"
_HAS = "import importlib.util, json, sys; print(json.dumps(importlib.util.find_spec(sys.argv[1]) is not None))"
_FIND = (
    "import importlib.util, json, os, sys\nsys.path[0] = os.getcwd()\ns = importlib.util.find_spec(sys.argv[1])\n"
    "if s and s.submodule_search_locations: s = importlib.util.find_spec(sys.argv[1] + '.__main__')\n"
    "print(json.dumps(s and s.origin))"
)


@dataclass(frozen=True)
class Launch:
    """How a program is started, where that is more than ``python program``.

    Attributes:
        kind: what starts the processes: "accelerate", "torchrun", "deepspeed", "trl", "python" or `PROGRAM`.
        before: the words in front of the program; the first can be executed as it stands.
        program: script or module as it was typed; of `PROGRAM` the file that is run.
        module: whether it is a module.
        variables: environment variables that were set in front of it all, with their values.
        wrapper: how many of the words in front are ``uv run`` and its flags.
        added: flags of the launcher that a trial has besides. It takes the last value that a flag is given.
    """

    kind: str
    before: tuple[str, ...]
    program: str
    module: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    wrapper: int = 0
    added: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of ``accelerate launch``."""
        names = ("launch", "accelerate-launch", "accelerate.commands.launch")
        at = [place for place, word in enumerate(self.before) if os.path.basename(word) in names]
        return self.before[at[0] + 1 :] if at else ()

    def command(self, arguments: Sequence[str], port: int | None = None, logs: Path | None = None) -> list[str]:
        """The whole command.

        Args:
            arguments: of the program.
            port: where the processes of the run are to meet; None: where the command itself says.
            logs: a folder for what the launcher itself writes; None: where it likes.
        """
        if port is None or self.kind in ("python", PROGRAM):
            return [*self.before, self.program, *arguments]
        logged = [] if logs is None or self.kind == "deepspeed" else ["--log_dir", str(logs)]
        if self.kind == "trl":  # its flags and those of the launcher stand among each other; the last one counts
            return [*self.before, self.program, *arguments, *self.added, _PORT["accelerate"], str(port), *logged]
        endpoint = [word for word in self.before if _name(word) in ("rdzv_endpoint", "rdzv_backend", "standalone")]
        if endpoint and self.kind == "torchrun":
            flags = ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", f"bisect-cfg-{port}"]
        else:
            flags = [_PORT[self.kind], str(port)]
        return [*self.before, *self.added, *flags, *logged, self.program, *arguments]

    def with_processes(self, processes: int, instead_of: int) -> Launch:
        """The same with another number of processes instead of its own; a `PROGRAM` starts as many as it does."""
        if self.kind not in _PROCESSES:
            return self
        plain = self.kind in ("accelerate", "trl") and all(self.value_of(flag) is None for flag in _SEVERAL)
        # Without a GPU accelerate starts several only if it is told so.
        several = ("--multi_gpu",) if plain and processes > 1 == instead_of else ()
        return replace(self, added=(*several, _PROCESSES[self.kind], str(processes)))

    def under(self, programs: Path) -> Launch:
        """The same with the programs in another environment's ``bin``; a `PROGRAM` finds them on PATH."""
        if self.kind == PROGRAM:
            return self
        rest = self.before[self.wrapper :]  # `uv run` would take its own environment
        first = os.path.basename(rest[0]) if rest else "python"
        first = "python" if PYTHON.fullmatch(first) else first
        return replace(self, before=(str(programs / first), *rest[1:]), wrapper=0)

    def value_of(self, *names: str) -> str | None:
        """What a flag of the launcher was given, the last time it stands there."""
        return _value_in(self.before, names)

    def processes_asked(self, arguments: Sequence[str]) -> int | None:
        """How many processes a flag asks for; None if none does."""
        words = (*self.before, *(arguments if self.kind == "trl" else ()))  # TRL's command takes both kinds of flags
        asked = _value_in(words, ("num_processes", "nproc_per_node", "num_gpus"))
        return int(asked) if asked is not None and asked.isdigit() else None


def _value_in(words: Sequence[str], names: Collection[str]) -> str | None:
    found = None
    for position, word in enumerate(words):
        if word.startswith("-") and _name(word) in names:
            _, equals, value = word.partition("=")
            following = words[position + 1 : position + 2]
            found = value if equals else (following[0] if following else "")
    return found


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def accelerate_launch(launch: Launch | None, path: str, python: str) -> Launch:
    """The launch of several processes that accelerate's documentation shows, in place of a launch by Python alone
    (None: ``python path``)."""
    if launch is None:
        return Launch("accelerate", (python, "-m", "accelerate.commands.launch", "--multi_gpu"), path)
    own = launch.before[: launch.wrapper] or (python, "-m")
    command = ("accelerate", "launch") if launch.wrapper else ("accelerate.commands.launch",)
    module = ("-m",) if launch.module else ()
    return replace(launch, kind="accelerate", before=(*own, *command, "--multi_gpu", *module))


# ------------------------------------------------------------------------------------------------- what starts what


def is_launcher(word: str) -> bool:
    """Whether a word on our command line begins a command: a launcher, a Python, or ``NAME=VALUE``."""
    name = os.path.basename(word)
    return name in LAUNCHERS or PYTHON.fullmatch(name) is not None or _ASSIGNMENT.fullmatch(word) is not None


def starts_others(words: Sequence[str], is_file: Callable[[str], bool] = os.path.isfile) -> bool:
    """Whether a command is a shell with its script, or a program that builds by rules: it may start a training."""
    return (os.path.basename(words[0]) in _SHELLS and any(map(is_file, words[1:]))) or words[0] in ("make", "just")


def behind_env(words: Sequence[str]) -> list[str]:
    """A command without the ``env`` that only sets variables for it: what we set for a run can be varied, and not what
    `env` sets again."""
    only_sets = os.path.basename(words[0]) == "env" and len(words) > 1 and _ASSIGNMENT.fullmatch(words[1])
    return list(words[1:] if only_sets else words)


def launched_in(words: Sequence[str]) -> list[str]:
    """The command of a launcher in the words of a shell's line, with the variables before it; [] if there is none."""
    for place, word in enumerate(words):
        if is_launcher(word) and not _ASSIGNMENT.fullmatch(word):
            return [*(one for one in words[:place] if _ASSIGNMENT.fullmatch(one)), *words[place:]]
    return []


def take_apart(
    words: Sequence[str],
    is_file: Callable[[str], bool] = os.path.isfile,
    takes_value: Callable[[str], bool] = lambda flag: False,
) -> tuple[Launch, tuple[str, ...]]:
    """How the program of a command line is started, and the program's arguments.

    Args:
        words: of the command line.
        is_file: whether there is such a file.
        takes_value: whether a flag of ``uv run`` takes a value.

    Raises:
        InputError: there is no program in it, or it is one that is not supported.
    """
    rest, variables = behind_env(words), []
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables.append((name, value))
    if not rest:
        raise InputError("The command sets variables and starts nothing.", "Name the program after them.")
    launch, arguments = _launched(rest, is_file, takes_value)
    return replace(launch, variables=tuple(variables)), tuple(arguments)


_Parts = tuple[Launch, Sequence[str]]


def _launched(words: list[str], is_file: Callable[[str], bool], takes_value: Callable[[str], bool]) -> _Parts:
    name = os.path.basename(words[0])
    if name == "uv" and words[1:2] == ["run"]:
        return _under_uv(words, is_file, takes_value)
    if PYTHON.fullmatch(name):
        return _under_python(words, is_file)
    if name.endswith(".py"):  # of `uv run train.py`
        return Launch("python", (), words[0]), words[1:]
    if name == "trl" and words[1:] and not words[1].startswith("-"):
        return Launch("trl", (words[0],), words[1]), words[2:]
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _program("accelerate", words, 2, is_file)
    if name in ("accelerate-launch", "torchrun", "deepspeed"):
        return _program(name.removesuffix("-launch"), words, 1, is_file)
    # Any other program is known by the file that it is given, or by itself.
    at = next((place for place, word in enumerate(words[1:], 1) if is_file(word)), 0)
    return Launch(PROGRAM, tuple(words[:at]), words[at]), words[at + 1 :]


def _program(kind: str, words: list[str], start: int, is_file: Callable[[str], bool]) -> _Parts:
    """Where the program stands behind a launcher's flags."""
    for position in range(start, len(words)):
        word, following = words[position], words[position + 1 : position + 2]
        if word in _MODULE and following and not following[0].startswith("-"):
            launch = Launch(kind, tuple(words[: position + 1]), following[0], True)
            return _on_one_machine(launch), words[position + 2 :]
        if word.endswith(".py") and is_file(word):
            return _on_one_machine(Launch(kind, tuple(words[:position]), word)), words[position + 1 :]
    missing = next((word for word in words[start:] if word.endswith(".py")), None)
    if missing is not None:
        raise InputError(f"There is no script {missing}.", "Check the path; it is relative to where you are.")
    raise InputError(
        f"There is no Python script in `{' '.join(words)}`.",
        f"Name it after the flags, or a module right after -m: {' '.join(words)} train.py",
    )


def _under_python(words: list[str], is_file: Callable[[str], bool]) -> _Parts:
    position = 1
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-c", "-"):
        word = words[position]
        if word == "-m" and position + 1 < len(words):
            return _module_of_python(words, position + 1, is_file)
        if re.match(r"-[a-zA-Z]*[IES]", word):
            raise InputError(
                f"A Python that is started with {word} cannot be watched: it ignores the environment.",
                f"Leave {word} out.",
            )
        position += 2 if word in _PYTHON_VALUES else 1
    if position >= len(words) or words[position] in ("-c", "-"):
        raise InputError(
            "What is to be run must be a file or a module.", "As in: python train.py, or python -m pkg.train"
        )
    return Launch("python", tuple(words[:position]), words[position]), words[position + 1 :]


def _module_of_python(words: list[str], position: int, is_file: Callable[[str], bool]) -> _Parts:
    """``python -m pkg.train``; launchers can be started this way, too."""
    for module, kind in _BY_MODULE.items():
        after = position + len(module)
        if tuple(words[position:after]) == module:
            return _program(kind, words, after, is_file)
    return Launch("python", tuple(words[:position]), words[position], True), words[position + 1 :]


def _under_uv(words: list[str], is_file: Callable[[str], bool], takes_value: Callable[[str], bool]) -> _Parts:
    position = 2
    while position < len(words) and words[position].startswith("-") and words[position] not in _MODULE:
        if words[position] == "--":
            position += 1
            break
        position += 2 if takes_value(words[position]) else 1
    inner = words[position:]
    if not inner:
        raise InputError("`uv run` needs a program.", "For example: uv run train.py")
    if inner[0] in _MODULE:
        inner = ["python", "-m", *inner[1:]]  # the same, as uv's manual has it
    launch, arguments = _launched(inner, is_file, takes_value)
    return replace(launch, before=(*words[:position], *launch.before), wrapper=position), arguments


def _on_one_machine(launch: Launch) -> Launch:
    """The same, if all its processes are to run here.

    Raises:
        InputError: they are not: the first run would wait for the other machines.
    """
    told = launch.value_of("config_file") if launch.kind == "accelerate" else None
    asked = {name: launch.value_of(name) for name in _SEVERAL_MACHINES}
    asked |= {f"num_machines in {told}": _machines_in(told)} if told else {}
    for name, number in asked.items():
        if number not in (None, "1", "1:1"):
            raise InputError(f"{name}={number} asks for several machines (or for a changing number).", ONE_MACHINE)
    if launch.value_of("hostfile") is not None:
        raise InputError("A hostfile asks for several machines.", ONE_MACHINE)
    return launch


def _machines_in(path: str) -> str | None:
    """How many machines accelerate's file asks for; None if it does not say, or accelerate will refuse it."""
    try:
        content = load_yaml(read_text(path))
    except (OSError, ValueError):
        return None
    number = content.get("num_machines") if isinstance(content, dict) else None
    return None if number is None else str(number)


# ------------------------------------------------------------------------------------------------- on this machine


def find_command(words: Sequence[str], python: str | None = None) -> tuple[Launch, Path, tuple[str, ...], str]:
    """Find what a whole command means here.

    Args:
        words: the command.
        python: an interpreter beside which launchers are looked for first; None for this one, after PATH.

    Returns:
        How the program is started, its file, its arguments, and the interpreter that trains.

    Raises:
        InputError: the launcher or the program is not there, or the command is one that is not supported.
    """
    launch, arguments = take_apart(words, takes_value=_takes_value)
    path = dict(launch.variables).get("PATH")
    first = _executable(launch.before[0] if launch.before else launch.program, python, path)
    if launch.before:
        launch = replace(launch, before=(first, *launch.before[1:]))
    else:  # of a program alone
        launch = replace(launch, program=first)
    interpreter = _interpreter_of(launch, python)
    return launch, _file_of(launch, interpreter), arguments, interpreter


def _executable(word: str, python: str | None, path: str | None) -> str:
    """Where a program is: beside an interpreter that was named, on PATH, or beside our own."""
    named = os.path.dirname(os.path.abspath(shutil.which(python) or python)) if python else None
    for folders in (named, path or os.environ.get("PATH"), os.path.dirname(os.path.abspath(sys.executable))):
        found = shutil.which(word, path=folders) if folders else None
        if found is not None:
            return found
    name = os.path.basename(word)
    if os.path.isfile(word):
        started = "python" if word.endswith(".py") else "bash"
        raise InputError(f"{word} cannot be executed.", f"Put what runs it in front: {started} {word}")
    raise InputError(
        f"{name} is not installed here: it is neither on PATH nor beside {python or sys.executable}.",
        f"Install it (pip install {'torch' if name == 'torchrun' else name}), or name the Python that has it with "
        "--python.",
    )


def _interpreter_of(launch: Launch, python: str | None) -> str:
    """The Python that runs a launcher, and what it starts; of any program the one that a shell would find."""
    first = launch.before[0] if launch.before else launch.program
    if launch.wrapper:
        words = [*launch.before[: launch.wrapper], "python", "-c", _EXECUTABLE]
        return str(said_by(words, SECONDS) or python or sys.executable)
    if PYTHON.fullmatch(os.path.basename(first)):
        return first
    likely: tuple[str | None, ...] = (named_by(first), os.path.join(os.path.dirname(first), "python"), python)
    if launch.kind == PROGRAM:
        likely = (python, shutil.which("python"))
    return next((found for found in likely if found and os.access(found, os.X_OK)), sys.executable)


def _takes_value(flag: str) -> bool:
    """Whether a flag of ``uv run`` takes a value, as its own help says."""
    uv = shutil.which("uv")
    if uv is None or "=" in flag:
        return False
    try:
        said = subprocess.run([uv, "run", "--help"], capture_output=True, text=True, timeout=SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?:, --[\w-]+)? <", said) is not None


def _file_of(launch: Launch, python: str) -> Path:
    """The file of the program."""
    if launch.kind == "trl" or launch.module:
        module = f"trl.scripts.{launch.program}" if launch.kind == "trl" else launch.program
        path = said_by([python, "-c", _FIND, module], SECONDS)
        if not path:
            raise InputError(
                f"There is no module {module}.",
                f"It must be found by {python} from here; set PYTHONPATH in front of the command if it lies elsewhere.",
            )
        return Path(path)
    path = Path(launch.program)
    if not path.is_file():
        raise InputError(f"There is no script {launch.program}.", "Check the path; it is relative to where you are.")
    if not os.access(path, os.R_OK):
        raise InputError(f"The script {path} cannot be read.", "Check its permissions.")
    return path


def lacking(modules: Sequence[str], python: str) -> list[str]:
    """Which of some modules an interpreter cannot import."""
    return [module for module in modules if not said_by([python, "-c", _HAS, module], SECONDS)]
