"""Bisect a training script: the one call behind the command line, and what notebooks use."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_cfg import interrupts
from bisect_cfg.checks import PATHS, check_choices, check_nul, checked, comparable, encoded, from_python
from bisect_cfg.common.configuration import Status, Value
from bisect_cfg.common.fingerprint import fingerprint
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import HIDDEN, mask_arguments
from bisect_cfg.reports.answer import add_trial, write_answer
from bisect_cfg.reports.listener import Listener
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.store.invocation import read_command, write_command, written_here
from bisect_cfg.store.state import STATE_FILE
from bisect_cfg.study.options import OF_COMMANDS, Options
from bisect_cfg.study.story import bisect as tell_story
from bisect_cfg.targets.command import CommandTarget, find_target, is_any_command
from bisect_cfg.targets.good import parse_assignment
from bisect_cfg.targets.interpreters import runs_code
from bisect_cfg.targets.launchers import behind_env, is_launcher, starts_others
from bisect_cfg.targets.script import Script, find_script, interpreter

if TYPE_CHECKING:
    from bisect_cfg.reports.asked import Wanted
    from bisect_cfg.reports.notebook import Asks, StudyReport
    from bisect_cfg.reports.recorded import Recorded


@interrupts.obeyed()
def run(
    target: str, arguments: Sequence[str], python: str | None, options: Options, listener: Listener
) -> tuple[Answer, JsonObject]:
    """Bisect, show it, write the study's files.

    Args:
        target: a script, a folder, or the first word of a command.
        arguments: the words after it.
        python: the interpreter that trains; None for this one.
        options: of the user.
        listener: what is told all of it, entered already.

    Returns:
        The answer, and the content of result.json.
    """
    check_nul(options, [target, *arguments], python)
    script = _found(target, arguments, python, options)
    if isinstance(script, CommandTarget):
        return _run(script, target, arguments, python, options, listener)
    with _set(script.variables):
        return _run(script, target, arguments, python, options, listener)


def _found(target: str, arguments: Sequence[str], python: str | None, options: Options) -> Script | CommandTarget:
    """What the target is: a training script that is watched, or any command whose places are filled in."""
    words = [target, *arguments]
    told = any(getattr(options, name) for name in OF_COMMANDS)
    says = bool(options.good or options.good_packages)
    other = says and not is_launcher(behind_env(words)[0]) and Path(target).suffix not in (".py", ".ipynb")
    # What is not there is a program, or nothing; what has no suffix and cannot be executed is no script either.
    missing = not os.path.exists(target) or (os.path.isfile(target) and not Path(target).suffix)
    other = other and (shutil.which(target) is not None or missing)
    other = other or (says and runs_code(words))
    if not is_any_command(words, options.good, told, not other):
        return find_script(target, arguments, python=python)
    check_choices(options)
    try:
        return find_target(words, options.given(python))
    except InputError:
        if told or not starts_others(words):
            raise
        return find_script(target, arguments, python=python)  # the good side may be one of the training it starts


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """With environment variables set for us and for whatever we start, as a shell does for ``NAME=VALUE command``."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _run(
    script: Script | CommandTarget,
    target: str,
    arguments: Sequence[str],
    python: str | None,
    options: Options,
    listener: Listener,
) -> tuple[Answer, JsonObject]:
    from bisect_cfg.reports.page import write_report
    from bisect_cfg.reports.terminal import told

    options = checked(options, script)
    command = {"target": target, "arguments": list(arguments), "python": python, "folder": os.getcwd()}
    lines = {"own": script.shown, "bisect": _typed(target, arguments, python, options)}
    command |= {"options": asdict(options), "lines": lines}
    answer = tell_story(script, options, listener, begun=lambda folder: write_command(folder, command))
    environment = {}  # of a command nobody knows where it runs, if it is not a Python that it names
    if script.python:
        environment = fingerprint(None if script.python == sys.executable else script.python)
    result = write_answer(answer, environment, lambda result: told(answer, result))
    listener.answer(answer, result)
    write_report(answer.folder)
    if answer.stopped is not None:  # said last, as it asks for something to be done
        raise answer.stopped
    return answer, result


def _typed(target: str, arguments: Sequence[str], python: str | None, options: Options) -> str:
    """A command line that asks for the same bisection, without secrets."""
    words = ["bisect-cfg", "bisect"]
    own = mask_arguments([target, *arguments])
    given = [*(["--python", python] if python else []), *mask_arguments(list(options.words()))]
    if Path(target).suffix in (".py", ".ipynb") or Path(target).is_dir():
        return shlex.join([*words, target, *given, *(["--", *own[1:]] if arguments else [])])
    return shlex.join([*words, *given, "--", *own])


Again = Callable[[Path, str, Value], str]
"""(study, what is missing, its value) -> what to write, so that it is there."""


def _recommended(study: Path, name: str, value: Value, command: str = "recommend") -> str:
    """As one types it."""
    words = ["--", *value] if isinstance(value, list) else [f"--{name}", *([] if value is True else [str(value)])]
    return f"bisect-cfg {command} {shlex.quote(str(study))} {shlex.join(words)}"


def _loaded(study: Path, name: str, value: Value) -> str:
    """As it is written in a notebook."""
    return f"bisect_cfg.load({str(study)!r}, {name}={value!r})"


def recommend_again(
    study: Path,
    wishes: Mapping[str, Value],
    listener: Listener,
    arguments: Sequence[str] = (),
    python: str | None = None,
    trust: bool = False,
) -> tuple[Answer, JsonObject]:
    """Look for safe values of a study that was isolated before, and write its files anew.

    Args:
        study: its folder.
        wishes: option name -> value; None leaves it as the study had it.
        listener: what is told all of it, entered already.
        arguments: of the script, in place of those that the study has: it keeps no secrets.
        python: the interpreter that trains; None for this one.
        trust: run what the study's folder says, with the interpreter that it names, wherever it comes from.

    Raises:
        InputError: it is no study, its script has changed, a secret is missing, or it would run what nobody here has
            asked for.
    """
    command, options = _asked_before(study, wishes, arguments, python, trust)
    runs = shown({**command, "arguments": mask_arguments(command["arguments"])})
    listener.note(f"Runs: {runs}")
    with _where_it_began(command):
        return run(command["target"], command["arguments"], command["python"], options, listener)


def apply(
    study: Path,
    agree: Callable[[], bool],
    say: Callable[[str], None],
    arguments: Sequence[str] = (),
    python: str | None = None,
    trust: bool = False,
) -> int:
    """Write what a study recommends into the user's files, and see that the script then has these values.

    Args:
        study: its folder.
        agree: asks whether the files shall be written.
        say: prints a line.
        arguments: as for `recommend_again`.
        python: the same.
        trust: the same.

    Returns:
        The exit status; see `bisect_cfg.rewrite.apply.apply`.

    Raises:
        InputError: as `recommend_again`; a file was changed since, or cannot be written.
    """
    from bisect_cfg.doctor.examine import configuration_of
    from bisect_cfg.rewrite.apply import apply, recommendation_of

    found = recommendation_of(study)
    study = study.absolute()
    unused = {"storage": "sqlite://"}  # no trial is looked at, so that no password is asked for
    command, options = _asked_before(study, unused, arguments, python, trust, partial(_recommended, command="apply"))

    def build() -> JsonObject:
        script = _found(command["target"], command["arguments"], command["python"], options)
        with _set(script.variables):
            return configuration_of(script)

    with _where_it_began(command):
        return apply(found, build, agree, say)


@interrupts.obeyed()
def ask(
    study: Path,
    wanted: Wanted,
    *,
    arguments: Sequence[str] = (),
    python: str | None = None,
    storage: str | None = None,
    trust: bool = False,
    listener: Listener | None = None,
) -> tuple[int, Recorded]:
    """Run one more trial in a study that has an answer, and write its files anew.

    Args:
        study: its folder.
        wanted: names of the settings that are bad, all others good; or values in place of the user's own.
        arguments: as for `recommend_again`.
        python: the same.
        storage: where its trials are, if it has a password that the study does not keep.
        trust: as for `recommend_again`.
        listener: hears of the run.

    Returns:
        The number of the trial, and what the study holds then.

    Raises:
        InputError: as `recommend_again`; a name or a value that cannot be; it has not come to its search.
    """
    from bisect_cfg.reports.page import write_report
    from bisect_cfg.reports.recorded import read

    study = study.absolute()
    if isinstance(wanted, Mapping):
        given = (parse_assignment((name, comparable(str(name), one)), "ask()") for name, one in wanted.items())
        wanted = {name: encoded(name, value) for name, value in given}
    command, options = _asked_before(study, {"storage": storage}, arguments, python, trust, _loaded)
    with _where_it_began(command):
        script = _found(command["target"], command["arguments"], command["python"], options)
        with _set({} if isinstance(script, CommandTarget) else script.variables):
            answer = tell_story(script, checked(options, script), listener or Listener(), wanted)
    if answer.asked is None:
        why = {
            Status.NO_FAILURE: "your configuration does not fail",
            Status.BASELINE_FAILS: "the good configuration fails",
        }
        raise InputError(
            f"Nothing can be asked in the study {study}: {why.get(answer.status, 'its search has not begun')}.",
            "Run its `bisect` again first." if answer.status not in why else "",
        )
    add_trial(study, answer.asked)
    write_report(study)
    return answer.asked["number"], read(study)


def _asked_before(
    study: Path,
    wishes: Mapping[str, Value],
    arguments: Sequence[str],
    python: str | None,
    trust: bool,
    again: Again = _recommended,
) -> tuple[JsonObject, Options]:
    """How a study is asked again: what is run, with its arguments, and the options. See `recommend_again`."""
    command = _of_right_shape(read_command(study), study)
    command["python"] = _trusted_python(study, command, python, trust, again)
    known = {field.name for field in fields(Options)}
    before = dict(command["options"])
    before.setdefault("start", before.get("level"))  # what it was called before
    options = {name: value for name, value in before.items() if name in known}
    options |= {name: value for name, value in wishes.items() if value is not None}
    for limit in ("max_trials", "max_seconds"):
        options[limit] = wishes.get(limit)
    options = {name: _tuples(value) for name, value in options.items()}
    options |= {"study": study.absolute(), "recommend": True, "restart": False, "flags": True}
    options |= {name: Path(text) for name in PATHS if isinstance(text := options.get(name), str)}
    recorded = command["arguments"]
    if not arguments and any(HIDDEN in argument for argument in recorded):
        raise InputError(
            f"The script of this study was given a secret, which the study does not keep: {shlex.join(recorded)}",
            f"Give its arguments again: {again(study, 'arguments', recorded)}",
        )
    if HIDDEN in str(options.get("storage") or ""):
        raise InputError(
            f"The storage of this study has a password, which the study does not keep: {options['storage']}",
            f"Give its address again: {again(study, 'storage', options['storage'])}",
        )
    return {**command, "arguments": tuple(arguments) or tuple(recorded)}, Options(**options)


@contextlib.contextmanager
def _where_it_began(command: JsonObject) -> Iterator[None]:
    """In the folder from which the script's paths lead."""
    try:
        with contextlib.chdir(command["folder"]):
            yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.isdir(command["folder"]):
            raise
        raise InputError(
            f"The study was started in {command['folder']}, which is not there any more: {error.strerror}.",
            "Move it back, or begin a new study with `bisect-cfg bisect` where the script is now.",
        ) from None


def _of_right_shape(command: JsonObject, study: Path) -> JsonObject:
    """The recorded command, if it is one that was written by us.

    Raises:
        InputError: it is damaged.
    """
    options, arguments = command["options"], command["arguments"]
    right = isinstance(options, dict) and isinstance(arguments, list) and all(isinstance(a, str) for a in arguments)
    right = right and all(isinstance(command[name], str) for name in ("target", "folder"))
    right = right and os.path.isabs(command["folder"])  # another one would lead anywhere
    if not (right and isinstance(command["python"], (str, type(None)))):
        raise InputError(
            f"{study / 'command.json'} is damaged: it does not say what was run.",
            "Run the same `bisect-cfg bisect` command again: no trial is repeated, and the file is rewritten.",
        )
    return command


def _tuples(value: Value) -> Value:
    """Lists of JSON as the tuples that they were, pairs of name and value among them."""
    if not isinstance(value, list):
        return value
    return tuple((one[0], one[1]) if isinstance(one, list) and len(one) == 2 else one for one in value)


def _trusted_python(study: Path, command: JsonObject, python: str | None, trust: bool, again: Again) -> str | None:
    """The interpreter to run what a study's folder asks for.

    A folder can come from anywhere, and what it holds would be run. So it must have been written where it lies, and the
    interpreter must be the one we run under, unless this call says otherwise.

    Raises:
        InputError: not so.
    """
    if python is not None:
        command = {**command, "python": python}
    would = f"It would run: {shown(command)}"
    if not (trust or written_here(study, command)):
        raise InputError(
            f"The study {study} was not made here: it was copied, or comes from somebody else.\n{would}",
            f"If that is what you want: {again(study, 'trust', True)}",
        )
    named = command["python"]
    if not (trust or python is not None or named is None or interpreter(named) == interpreter(sys.executable)):
        raise InputError(
            f"The study {study} asks for another interpreter than this one.\n{would}",
            f"If that is what you want: {again(study, 'python', named)}",
        )
    return named


def shown(command: JsonObject) -> str:
    """A study's command as one would type it."""
    target = command["target"]
    if Path(command["folder"], target).is_dir():
        target = str(Path(target) / "train.py")
    words = [target, *command["arguments"]]
    if target.endswith(".py") and not is_launcher(target):
        words = [command["python"] or sys.executable, *words]
    return f"cd {shlex.quote(command['folder'])} && {shlex.join(words)}"


def bisect(
    target: str | Path | None = None,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    python: str | None = None,
    **options: Any,
) -> StudyReport:
    """Find which settings of a training script, or of any command, make it fail, with progress printed as it goes.

    Example:
        ```python
        report = bisect_cfg.bisect("train.py", ["--config", "recipe.yaml"], study="my-study")
        report.trials

        bisect_cfg.bisect(command=["sort", "{flags}", "names.txt"], good={"unique": False}, bad={"unique": True})
        ```

    Args:
        target: a script, or a folder with train.py and good.yaml.
        arguments: of the script.
        command: in place of both, a whole command, as after ``bisect-cfg bisect --``.
        python: the interpreter that trains; None for this one.
        **options: those of `bisect-cfg bisect`, with underscores (`study`, `good`, `only`, `excluded`, `pins`,
            `training`, `steps`, `trial_timeout`, `confirm`, `jobs`, `recommend`, `keep`, ...). `good`, `bad` and `pins`
            may be dicts.

    Returns:
        The same report as `Bisection.run`, with the recommendation, plots and traces; the files are in its folder.

    Raises:
        InputError: something about the input stands in the way; says what to do.
        TypeError: an unknown option, or neither a target nor a command.
    """
    from bisect_cfg.reports.console import console
    from bisect_cfg.reports.jupyter import NotebookView, in_notebook
    from bisect_cfg.reports.live import View
    from bisect_cfg.reports.notebook import of_folder, with_plots
    from bisect_cfg.reports.recorded import read

    if (target is None) is (not command) or (command and arguments) or isinstance(command, str):
        raise TypeError("bisect() takes a target with its arguments, or command=[...], a list of strings")
    if command:
        target, *arguments = command
    given = from_python(options)
    arguments = tuple(map(str, arguments))
    with NotebookView() if in_notebook() else View(console(), live=False) as view:
        answer, result = run(str(target), arguments, python, given, view)
    asks = _asks(answer.folder, arguments=arguments, python=python, storage=given.storage, trust=True)
    if answer.report is not None:
        report = replace(answer.report, recommendation=result["recommendation"])
        return with_plots(report, read(answer.folder), asks)
    return of_folder(answer.folder, asks)


def load(
    study: str | Path,
    study_name: str | None = None,
    *,
    arguments: Sequence[str] = (),
    python: str | None = None,
    storage: str | None = None,
    trust: bool = False,
) -> StudyReport:
    """A study from its folder or its storage: finished, running, or interrupted. Runs nothing until it is asked to.

    Args:
        study: the folder that `bisect` has written, or the storage of a `Bisection` (``"sqlite:///study.db"``).
        study_name: which study of the storage, if it has several.
        arguments: of the script, for `StudyReport.ask`, where they hold a secret: the study keeps none.
        python: the interpreter that trains, for the same, where it is not this one.
        storage: the address of its trials: for the same, where it has a password; for those of a study without an
            answer, where they are elsewhere.
        trust: let `ask` run what the folder says, wherever it comes from.

    Returns:
        The report, with plots and frames.

    Raises:
        InputError: there is no study.
        TypeError: it is neither a folder nor an address.
    """
    from bisect_cfg.reports.notebook import of_folder, of_storage

    if not isinstance(study, (str, os.PathLike)) or not str(study):
        raise TypeError(f"load() takes the folder of a study or the address of a storage, not {study!r}")
    path = Path(study)
    if "://" in str(study):  # the database of a folder's study is a part of it
        path = Path(str(study).removeprefix("sqlite:///")).parent
        if not (str(study).startswith("sqlite:///") and (path / STATE_FILE).exists()):
            return of_storage(str(study), study_name)
    asks = _asks(path, arguments=tuple(map(str, arguments)), python=python, storage=storage, trust=trust)
    return of_folder(path, asks, storage)


def _asks(folder: Path, **how: Any) -> Asks:
    """What runs one more trial of a study's folder; see `ask`."""

    def asks(wanted: Wanted) -> tuple[int, Recorded]:
        from bisect_cfg.reports.jupyter import AskedView, in_notebook

        with AskedView(wanted) if in_notebook() else Listener() as listener:
            return ask(folder, wanted, listener=listener, **how)

    return asks
