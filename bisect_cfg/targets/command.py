"""The user's own command line, taken apart: ``[NAME=VALUE ...] accelerate launch [flags] train.py [arguments]``.

What starts the training (accelerate, torchrun, deepspeed, TRL's command, ``uv run``, Python itself) is kept word for
word and run as it is; what has to be known of it is where the program stands among the words, which Python runs it, and
which port its processes meet at. `take_apart` is pure and says the former; `find_command` looks at the machine.

Which flags of a launcher take a value only its own parser knows. A program is told without it: it is the first word
that is a Python file. Where a module is launched (``-m``), and other flags stand before it, the launcher's own parser
is asked, in the Python it is installed for.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_cfg.configuration import Value
from bisect_cfg.errors import InputError
from bisect_cfg.targets.accelerate_file import launch_settings, processes_in, read_accelerate_file, read_deepspeed_file
from bisect_cfg.targets.programs import PYTHON, named_by, said_by

LAUNCHERS = ("accelerate", "accelerate-launch", "torchrun", "deepspeed", "trl", "uv")
"""Programs that start a training; besides, anything that is called ``python``."""

OURS = "bisect-cfg bisect --"
"""How a command is given to us."""

ANY_COMMAND = "Or say what varies, with --bad NAME=VALUE: then any command is run as it stands."
"""What else there is for a program that is no script and no launcher."""

SECONDS = 120.0
"""For the Python of a launcher to say something: it may have to import torch, from a cold disk."""

ONE_MACHINE = "bisect-cfg starts all processes of a trial on this machine; leave out what is for several machines."

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)

# Of Python's own options these take a value (https://docs.python.org/3/using/cmdline.html).
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")

_HERE = "LOCAL_MACHINE"
"""accelerate's word for this machine."""

_SEVERAL_MACHINES = ("num_machines", "nnodes", "num_nodes")
_MODULE = {"accelerate": ("-m", "--module"), "torchrun": ("-m", "--module"), "deepspeed": ("--module",)}
_PORT = {"accelerate": "--main_process_port", "torchrun": "--master_port", "deepspeed": "--master_port"}

_PROCESSES = {
    "accelerate": "--num_processes",
    "trl": "--num_processes",
    "torchrun": "--nproc_per_node",
    "deepspeed": "--num_gpus",
}
_SEVERAL = ("multi_gpu", "use_fsdp", "use_deepspeed", "cpu", "config_file", "accelerate_config")
"""Flags of accelerate (and of TRL's command) that say what the processes have to do with each other."""

_PARSERS = {
    "accelerate": "from accelerate.commands.launch import launch_command_parser as p; a = p().parse_args(sys.argv[1:])",
    "torchrun": "from torch.distributed.run import get_args_parser as p; a = p().parse_args(sys.argv[1:])",
}
_ASK_PARSER = "import json, sys\n%s\nprint(json.dumps([a.training_script, len(a.training_script_args)]))"
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
        kind: what starts the processes: "accelerate", "torchrun", "deepspeed", "trl" or "python".
        before: the words in front of the program; the first can be executed as it stands.
        program: script or module as it was typed.
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

    def command(self, arguments: Sequence[str], port: int | None = None, logs: Path | None = None) -> list[str]:
        """The whole command.

        Args:
            arguments: of the program.
            port: where the processes of the run are to meet; None: where the command itself says.
            logs: a folder for what the launcher itself writes, if it does; None: where it likes.
        """
        if port is None or self.kind == "python":
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
        """The same with another number of processes.

        Args:
            processes: how many.
            instead_of: how many it starts as it is.
        """
        plain = self.kind in ("accelerate", "trl") and all(self.value_of(flag) is None for flag in _SEVERAL)
        # Without a GPU accelerate starts several only if it is told so.
        several = ("--multi_gpu",) if plain and processes > 1 == instead_of else ()
        return replace(self, added=(*several, _PROCESSES[self.kind], str(processes)))

    def under(self, programs: Path) -> Launch:
        """The same with the programs of another environment.

        Args:
            programs: its folder of them (``bin``).
        """
        rest = self.before[self.wrapper :]  # `uv run` would take its own environment
        first = os.path.basename(rest[0]) if rest else "python"
        first = "python" if PYTHON.fullmatch(first) else first
        return replace(self, before=(str(programs / first), *rest[1:]), wrapper=0)

    def value_of(self, *names: str) -> str | None:
        """What a flag of the launcher was given, the last time it stands there."""
        return _value_in(self.before, names)

    def processes_asked(self, arguments: Sequence[str]) -> int | None:
        """How many processes the launcher is asked for, by a flag or by accelerate's file; None if that is left to it.

        Args:
            arguments: of the program; among those of TRL's command are the launcher's.

        Raises:
            InputError: accelerate's file cannot be read.
        """
        words = (*self.before, *(arguments if self.kind == "trl" else ()))
        asked = _value_in(words, ("num_processes", "nproc_per_node", "num_gpus"))
        if asked is not None:
            return int(asked) if asked.isdigit() else None
        path = _value_in(words, ("config_file",)) if self.kind == "accelerate" else None
        return processes_in(read_accelerate_file(Path(path))) if path else None


def _value_in(words: Sequence[str], names: Collection[str]) -> str | None:
    found = None
    for position, word in enumerate(words):
        if word.startswith("-") and _name(word) in names:
            _, equals, value = word.partition("=")
            following = words[position + 1 : position + 2]
            found = value if equals else (following[0] if following else "")
    return found


def accelerate_launch(launch: Launch | None, path: str, python: str) -> Launch:
    """The launch of several processes that accelerate's documentation shows, of a program that is started by Python.

    Args:
        launch: how the user starts it; None for ``python path``.
        path: of the program.
        python: that is to run it.
    """
    if launch is None:
        return Launch("accelerate", (python, "-m", "accelerate.commands.launch", "--multi_gpu"), path)
    own = launch.before[: launch.wrapper] or (python, "-m")
    command = ("accelerate", "launch") if launch.wrapper else ("accelerate.commands.launch",)
    module = ("-m",) if launch.module else ()
    return replace(launch, kind="accelerate", before=(*own, *command, "--multi_gpu", *module))


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class ParsedCommand:
    """A command line taken apart, before anything was looked at.

    Attributes:
        launch: how its program is started.
        arguments: of the program.
        asked: what stands behind the launcher, where only its own parser can say which word is the program (then
            ``launch.before`` has them all); empty otherwise.
    """

    launch: Launch
    arguments: tuple[str, ...]
    asked: tuple[str, ...] = ()


def is_launcher(word: str) -> bool:
    """Whether a word on our command line begins a command: a launcher, a Python, or ``NAME=VALUE``."""
    name = os.path.basename(word)
    return name in LAUNCHERS or PYTHON.fullmatch(name) is not None or _ASSIGNMENT.fullmatch(word) is not None


def started_by(words: Sequence[str]) -> list[str]:
    """The command of a launcher that the words behind a wrapper (``env``, ``nice -n 3``) hold, with the variables that
    stand before it; [] if they hold none."""
    for place, word in enumerate(words):
        script = word.endswith(".py") and os.path.isfile(word)
        if script or (is_launcher(word) and not _ASSIGNMENT.fullmatch(word)):
            variables = [one for one in words[:place] if _ASSIGNMENT.fullmatch(one)]
            return [*variables, *(["python"] if script else []), *words[place:]]
    return []


def not_a_launcher(name: str, started: Sequence[str]) -> tuple[str, str]:
    """What is said of a wrapper: that it is none, and the command to type in its place."""
    return (
        f"{name} is not a launcher that is known ({', '.join(LAUNCHERS)}, python).",
        f"Give the command that it starts: {OURS} {shlex.join(started)}",
    )


def take_apart(
    words: Sequence[str],
    is_file: Callable[[str], bool] = os.path.isfile,
    takes_value: Callable[[str], bool] = lambda flag: False,
) -> ParsedCommand:
    """Say what starts what.

    Args:
        words: of the command line.
        is_file: whether there is such a file.
        takes_value: whether a flag of ``uv run`` takes a value.

    Raises:
        InputError: there is no program in it, or it is one that is not supported.
    """
    variables = []
    rest = list(words)
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables.append((name, value))
    if not rest:
        raise InputError("The command sets variables and starts nothing.", "Name the program after them.")
    inner = started_by(rest[1:]) if not is_launcher(rest[0]) and not rest[0].endswith(".py") else []
    if inner:
        told = [f"{name}={value}" for name, value in variables]
        raise InputError(*not_a_launcher(os.path.basename(rest[0]), [*told, *inner]))
    parts = _launched(rest, is_file, takes_value)
    return replace(parts, launch=replace(parts.launch, variables=tuple(variables)))


def _launched(words: list[str], is_file: Callable[[str], bool], takes_value: Callable[[str], bool]) -> ParsedCommand:
    first, name = words[0], os.path.basename(words[0])
    if name == "uv":
        return _under_uv(words, is_file, takes_value)
    if PYTHON.fullmatch(name):
        return _under_python(words, is_file)
    if name.endswith(".py"):  # of `uv run train.py`
        return ParsedCommand(Launch("python", (), first), tuple(words[1:]))
    if name == "trl":
        if len(words) < 2 or words[1].startswith("-"):
            raise InputError("`trl` needs a command.", "For example: trl grpo --config recipe.yaml")
        return ParsedCommand(Launch("trl", (first,), words[1]), tuple(words[2:]))
    if name == "accelerate":
        if words[1:2] != ["launch"]:
            raise InputError(
                f"`{' '.join(words[:2])}` starts no training.", "For example: accelerate launch --multi_gpu train.py"
            )
        return _program("accelerate", words, 2, is_file)
    kind = {"accelerate-launch": "accelerate"}.get(name, name)
    if kind not in _PORT:
        raise InputError(
            f"{first} is neither a script nor a launcher that is known ({', '.join(LAUNCHERS)}, python).",
            f"Give the script that trains, as in uv run train.py. {ANY_COMMAND}",
        )
    return _program(kind, words, 1, is_file)


def _program(kind: str, words: list[str], start: int, is_file: Callable[[str], bool]) -> ParsedCommand:
    """Where the program stands behind a launcher's flags."""
    for position in range(start, len(words)):
        word = words[position]
        if word in _MODULE[kind]:
            following = words[position + 1 : position + 2]
            if not following or following[0].startswith("-"):
                return ParsedCommand(Launch(kind, tuple(words), "", True), (), tuple(words[start:]))
            launch = Launch(kind, tuple(words[: position + 1]), following[0], True)
            return ParsedCommand(_on_one_machine(launch), tuple(words[position + 2 :]))
        if word.endswith(".py") and is_file(word):
            launch = Launch(kind, tuple(words[:position]), word)
            return ParsedCommand(_on_one_machine(launch), tuple(words[position + 1 :]))
    missing = next((word for word in words[start:] if word.endswith(".py")), None)
    if missing is not None:
        raise InputError(f"There is no script {missing}.", "Check the path; it is relative to where you are.")
    raise InputError(
        f"There is no Python script in `{' '.join(words)}`.",
        f"Name it after the flags: {' '.join(words)} train.py",
    )


def _under_python(words: list[str], is_file: Callable[[str], bool]) -> ParsedCommand:
    position = 1
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
        if word == "-m":
            return _module_of_python(words, position, is_file)
        if word in ("-c", "-"):
            raise InputError(
                "What is to be run must be a file or a module.", "Put the code into a file: python train.py"
            )
        if re.match(r"-[a-zA-Z]*[IES]", word):
            raise InputError(
                f"A Python that is started with {word} cannot be watched: it ignores the environment.",
                f"Leave {word} out.",
            )
        position += 2 if word in _PYTHON_VALUES else 1
    if position >= len(words):
        raise InputError(f"`{' '.join(words)}` runs no script.", "Name the script that you would start with it.")
    return ParsedCommand(Launch("python", tuple(words[:position]), words[position]), tuple(words[position + 1 :]))


def _module_of_python(words: list[str], position: int, is_file: Callable[[str], bool]) -> ParsedCommand:
    """``python -m pkg.train``; launchers can be started this way, too."""
    if position + 1 >= len(words):
        raise InputError("`python -m` needs a module.", "For example: python -m pkg.train")
    module, upto = words[position + 1], position + 2
    if module == "trl":
        raise InputError(
            "TRL is no module that can be started.", f"Give its command: {OURS} {shlex.join(['trl', *words[upto:]])}"
        )
    kind = {
        "accelerate.commands.launch": "accelerate",
        "torch.distributed.run": "torchrun",
        "torch.distributed.launch": "torchrun",
    }.get(module)
    if kind is not None:
        return _program(kind, words, upto, is_file)
    if module in ("accelerate", "accelerate.commands.accelerate_cli") and words[upto : upto + 1] == ["launch"]:
        return _program("accelerate", words, upto + 1, is_file)
    return ParsedCommand(Launch("python", tuple(words[:upto][:-1]), module, True), tuple(words[upto:]))


def _under_uv(words: list[str], is_file: Callable[[str], bool], takes_value: Callable[[str], bool]) -> ParsedCommand:
    if words[1:2] != ["run"]:
        raise InputError(f"`{' '.join(words[:2])}` starts no training.", "For example: uv run train.py")
    position = 2
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-m", "--module"):
        if words[position] == "--":
            position += 1
            break
        position += 2 if takes_value(words[position]) else 1
    inner = words[position:]
    if not inner:
        raise InputError("`uv run` needs a program.", "For example: uv run train.py")
    if inner[0] in ("-m", "--module"):
        inner = ["python", "-m", *inner[1:]]  # the same, as uv's manual has it
    parts = _launched(inner, is_file, takes_value)
    before = (*words[:position], *parts.launch.before)
    return replace(parts, launch=replace(parts.launch, before=before, wrapper=position))


def _on_one_machine(launch: Launch) -> Launch:
    """The same, if all its processes are to run here.

    Raises:
        InputError: they are not.
    """
    for name in _SEVERAL_MACHINES:
        number = launch.value_of(name)
        if number is not None and number not in ("1", "1:1"):
            raise InputError(f"{name}={number} asks for several machines (or for a changing number).", ONE_MACHINE)
    if launch.value_of("hostfile") is not None:
        raise InputError("A hostfile asks for several machines.", ONE_MACHINE)
    return launch


def _check_files(launch: Launch) -> None:
    """Refuse what accelerate would refuse of the files that it is given, before anything runs.

    Raises:
        InputError: one of them cannot be read, or asks for what is not supported.
    """
    told, deepspeed = launch.value_of("config_file"), launch.value_of("deepspeed_config_file")
    if told:
        content = read_accelerate_file(Path(told))
        check_one_machine(content, told)
        launch_settings(content, Path())
    if deepspeed:
        read_deepspeed_file(Path(deepspeed))


def check_one_machine(content: Mapping[str, Value], path: str) -> None:
    """Refuse a file of accelerate's that asks for several machines, or for a machine somewhere else.

    Raises:
        InputError: it does.
    """
    machines, place = content.get("num_machines"), content.get("compute_environment", _HERE)
    if isinstance(machines, int) and machines > 1:
        raise InputError(f"{path} asks for {machines} machines (num_machines).", ONE_MACHINE)
    if place != _HERE:
        raise InputError(f"{path} asks for {place} (compute_environment).", f"Trials run here: {_HERE}.")


# ------------------------------------------------------------------------------------------------- on this machine


@dataclass(frozen=True)
class Found:
    """A command that can be started.

    Attributes:
        launch: how the program is started.
        path: the program's file.
        arguments: of the program.
        python: the interpreter that trains.
    """

    launch: Launch
    path: Path
    arguments: tuple[str, ...]
    python: str


def find_command(words: Sequence[str], python: str | None = None) -> Found:
    """Find what a whole command means here.

    Args:
        words: the command.
        python: an interpreter beside which launchers are looked for first; None for this one, after PATH.

    Raises:
        InputError: the launcher or the program is not there, or the command is one that is not supported.
    """
    parts = take_apart(words, takes_value=_takes_value)
    variables = dict(parts.launch.variables)
    first = parts.launch.before[0] if parts.launch.before else parts.launch.program
    executable = _executable(first, python, variables.get("PATH"))
    launch = replace(parts.launch, before=(executable, *parts.launch.before[1:]))
    interpreter = _interpreter_of(launch, python)
    if parts.asked:
        launch, arguments = _as_its_parser_says(launch, parts, interpreter)
    else:
        arguments = parts.arguments
    if launch.kind == "accelerate":
        _check_files(launch)
    return Found(launch, _file_of(launch, interpreter), arguments, interpreter)


def _executable(word: str, python: str | None, path: str | None) -> str:
    folders = [os.path.dirname(os.path.abspath(shutil.which(python) or python))] if python else []
    found = shutil.which(word, path=folders[0]) if folders and os.sep not in word else None
    beside = os.path.dirname(os.path.abspath(sys.executable))
    found = found or shutil.which(word, path=path) or (shutil.which(word, path=beside) if os.sep not in word else None)
    if found is None:
        name = os.path.basename(word)
        if word.endswith(".py") and os.path.isfile(word):
            raise InputError(f"{word} is a script, not a program.", f"Put python in front of it: python {word}")
        raise InputError(
            f"{name} is not installed here: it is neither on PATH nor beside {python or sys.executable}.",
            f"Install it (pip install {'torch' if name == 'torchrun' else name}), or name the Python that has it with "
            "--python.",
        )
    return found


def _interpreter_of(launch: Launch, python: str | None) -> str:
    """The Python that runs a launcher, and what it starts."""
    first = launch.before[0]
    if launch.wrapper:
        words = [*launch.before[: launch.wrapper], "python", "-c", _EXECUTABLE]
        return str(said_by(words, SECONDS) or python or sys.executable)
    if PYTHON.fullmatch(os.path.basename(first)):
        return first
    for found in (named_by(first), os.path.join(os.path.dirname(first), "python"), python):
        if found and os.access(found, os.X_OK):
            return found
    return sys.executable


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


def _as_its_parser_says(launch: Launch, parts: ParsedCommand, python: str) -> tuple[Launch, tuple[str, ...]]:
    parser = _PARSERS.get(launch.kind)
    found = said_by([python, "-c", _ASK_PARSER % parser, *parts.asked], SECONDS) if parser else None
    if not found:
        raise InputError(
            f"Cannot tell which module `{' '.join(launch.before)}` starts.", "Put -m right before the module."
        )
    program, count = found
    words = launch.before
    position = len(words) - count - 1
    return replace(launch, before=words[:position], program=program), words[position + 1 :]


def _file_of(launch: Launch, python: str) -> Path:
    """The file of the program."""
    if launch.kind == "trl":
        path = said_by([python, "-c", _FIND, f"trl.scripts.{launch.program}"], SECONDS)
        if not path:
            raise InputError(
                f"TRL has no command `trl {launch.program}` that trains, or is not installed for {python}."
            )
        return Path(path)
    if launch.module:
        path = said_by([python, "-c", _FIND, launch.program], SECONDS)
        if not path:
            raise InputError(
                f"There is no module {launch.program}.",
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
