"""A study from beginning to end: what both doors call, the command line and Python, and what notebooks use."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import msgspec

from bisect_cfg import interrupts
from bisect_cfg.common.configuration import Status, Value, check_value, present
from bisect_cfg.common.fingerprint import Fingerprint, fingerprint
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError
from bisect_cfg.options import OPTIONS, BisectOptions, Options, options_of, with_options
from bisect_cfg.probe.redact import HIDDEN, mask_arguments
from bisect_cfg.probe.values import encode
from bisect_cfg.report.answer import Answer, read_answer, write_answer
from bisect_cfg.report.events import Listener
from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.checkpoints import read_checkpoint
from bisect_cfg.store.folder import (
    lines_of,
    read_command,
    write_command,
    written_here,
)
from bisect_cfg.store.state import STATE_FILE
from bisect_cfg.store.storage import cannot_open, open_storage
from bisect_cfg.study.story import bisect as tell_story
from bisect_cfg.study.told_in_log import steps_reached
from bisect_cfg.targets.command import find_target, is_any_command
from bisect_cfg.targets.good import parse_assignment, parse_pins, read_good
from bisect_cfg.targets.interpreters import runs_code
from bisect_cfg.targets.launchers import behind_env, is_launcher, starts_others
from bisect_cfg.targets.packages import installed_by, read_packages
from bisect_cfg.targets.script import Script, find_script, interpreter
from bisect_cfg.targets.suggestions import check_name
from bisect_cfg.targets.target import Target, with_variables

if TYPE_CHECKING:
    from bisect_cfg.background import Running
    from bisect_cfg.report.events import Wanted
    from bisect_cfg.report.notebook import Asks, StudyReport
    from bisect_cfg.report.recorded import Recorded

SCRIPTS = (".py", ".ipynb")

TYPED = "BISECT_CFG_TYPED"
"""Variable of a job of Slurm with the command line that has submitted it."""


class Asked(msgspec.Struct):
    """How a study was last asked for, as command.json has it."""

    target: str
    arguments: list[str]
    folder: str  # from which the paths lead
    options: dict[str, Any]
    made: int | None = None  # number of the study's folder in the file system, when that was written

    @property
    def shown(self) -> str:
        """The user's own command, as one would type it; no secrets."""
        target = self.target
        if Path(self.folder, target).is_dir():
            target = str(Path(target) / "train.py")
        words = [target, *mask_arguments(self.arguments)]
        if target.endswith(".py") and not is_launcher(target):
            words = [self.options.get("python") or sys.executable, *words]
        return f"cd {shlex.quote(self.folder)} && {shlex.join(words)}"


# ------------------------------------------------------------------------------------------------------ one bisection


@interrupts.obeyed()
def run(
    target: str,
    arguments: Sequence[str],
    options: Options,
    listener: Listener,
    begun: Callable[[Path], None] = lambda folder: None,
) -> tuple[Findings, Answer]:
    """Bisect, show it to a listener (entered already), write the study's files; `begun` hears of the study's folder. It
    returns what the phases have found, and the answer; an InputError is what stands in the way, or has changed."""
    from bisect_cfg.report.answer_of import answer_of
    from bisect_cfg.report.html import write_report
    from bisect_cfg.report.recommendation import write_safe_config

    script = found_target(target, arguments, options)
    asked = {"target": target, "arguments": list(arguments), "folder": os.getcwd(), "options": asdict(options)}
    with with_variables(script):
        check(options, script)

        def begin(folder: Path) -> None:
            bisect = typed() or lines_of(folder).get("bisect", "")
            write_command(folder, {**asked, "lines": {"own": script.shown, "bisect": bisect}})
            begun(folder)

        found = tell_story(script, options, listener, begun=begin)
        environment: Fingerprint = {}  # of a command nobody knows where it runs, if it is not a Python that it names
        if script.python:
            environment = fingerprint(None if script.python == sys.executable else script.python)
        answer = answer_of(found, environment)
        write_safe_config(found, answer.recommendation)
        write_answer(answer, found.folder)
        listener.answer(answer, found.folder)
        write_report(found.folder)
    if found.stopped is not None:  # said last, as it asks for something to be done
        raise found.stopped
    return found, answer


def typed() -> str:
    """The command line that asks for this bisection, without secrets; "" where none does, as in a notebook."""
    if TYPED in os.environ:
        return os.environ[TYPED]
    words = mask_arguments(sys.argv[1:])
    return shlex.join(["bisect-cfg", *words]) if words[:1] == ["bisect"] else ""


def found_target(target: str, arguments: Sequence[str], options: Options) -> Target:
    """What the target is: a training script that is watched, or any command whose places are filled in.

    Raises:
        InputError: there is no such target.
    """
    words = [target, *arguments]
    if any("\0" in word for word in words):
        raise InputError("The command holds a NUL character, which no path can.", "Leave it out.")
    told = bool(options.bad or options.config_format)
    says = bool(options.good or options.good_packages)
    other = says and not is_launcher(behind_env(words)[0]) and Path(target).suffix not in SCRIPTS
    # What is not there is a program, or nothing; what has no suffix and cannot be executed is no script either.
    missing = not os.path.exists(target) or (os.path.isfile(target) and not Path(target).suffix)
    other = other and (shutil.which(target) is not None or missing)
    other = other or (says and runs_code(words))
    if not is_any_command(words, options.good, told, not other):
        return find_script(target, arguments, python=options.python)
    try:
        return find_target(words, options.given())
    except InputError:
        if told or not starts_others(words):
            raise
        return find_script(target, arguments, python=options.python)  # the good side may be one of what it starts


def check(options: Options, target: Target) -> None:
    """See what can be known to be wrong before anything runs; names of settings the first run shows (`targets.good`).

    Raises:
        InputError: says what is wrong, and what to do.
    """
    both = sorted(set(options.only) & set(options.exclude))
    if both:
        raise InputError(
            f"--only and --exclude both name {', '.join(both)}.",
            "A setting is either varied or left as the script has it.",
        )
    if not target.probed:
        for name in ("from_checkpoint", "longest_first", "isolate_data"):
            if getattr(options, name):
                raise InputError(f"{OPTIONS[name].flag} is for training scripts, not for any command.", "Leave it out.")
        for name in options.keep:
            check_name(name, present(target.factors).bad, "--keep")
    else:
        if options.good_packages is not None:
            read_packages(options.good_packages, installed_by(target.python))
        if options.from_checkpoint is not None:
            read_checkpoint(options.from_checkpoint)
        if options.log is not None:
            steps_reached(options.log)
        read_good(options.good, target.good_file)
        parse_pins(options.pin)
    if options.storage:
        try:
            open_storage(options.storage).get_all_studies()
        except Exception as error:
            raise cannot_open(options.storage, error) from None


# -------------------------------------------------------------------------------------------- a study that is there


class News(Listener):
    """Passes on to a view what is new where the causes are known already: the runs for safe values, and the answer."""

    def __init__(self, view: Listener) -> None:
        self._view = view
        for name in ("isolating", "step", "safe_runs_left", "safe_run_started", "safe_run_finished", "answer"):
            setattr(self, name, getattr(view, name))

    def phase(self, name: str, detail: str = "") -> None:
        if name == "safe values":
            self._view.phase(name, detail)
            self.note = self._view.note  # type: ignore[method-assign]  # from here on


def recommend_again(
    study: Path, wishes: Mapping[str, Value], listener: Listener, arguments: Sequence[str] = (), trust: bool = False
) -> Answer:
    """Look for safe values of a study that was isolated before, with some options other than there, and write its files
    anew. The script's arguments are given again where they hold a secret, as the study keeps none. A study that was not
    made here, or names another interpreter, must be trusted.

    Raises:
        InputError: it is no study, its script has changed, a secret or that trust is missing.
    """
    asked, options = _asked_before(study, wishes, arguments, trust)
    listener.note(f"Runs: {asked.shown}")
    with contextlib.suppress(InputError):  # a damaged answer is written anew
        answer = read_answer(study)
        if answer is not None and answer.status == Status.ISOLATED:
            listener = News(listener)
    with _where_it_began(asked):
        return run(asked.target, asked.arguments, options, listener)[1]


def apply(
    study: Path,
    agree: Callable[[], bool],
    say: Callable[[str], None],
    arguments: Sequence[str],
    trust: bool,
    python: str | None = None,
) -> int:
    """`bisect_cfg.rewrite.apply.apply` of what a study recommends; its exit status. InputErrors are as in
    `recommend_again`, and where a file was changed since, or cannot be written."""
    from bisect_cfg.doctor.examine import configuration_of
    from bisect_cfg.rewrite.apply import apply
    from bisect_cfg.rewrite.recommended import Recommended

    answer = read_answer(study)
    if answer is None:
        raise InputError(f"{study} holds no finished study.", "Name the folder that `bisect-cfg bisect` has written.")
    found = answer.recommendation
    if found is None:
        raise InputError(f"The study in {study} recommends no change.", f"See: bisect-cfg report {study} --format md")
    wishes = {"python": python, "storage": "sqlite://"}  # no trial is looked at: no password is asked for
    asked, options = _asked_before(study.absolute(), wishes, arguments, trust)

    def build() -> JsonObject:
        script = found_target(asked.target, asked.arguments, options)
        assert isinstance(script, Script)  # an answer about a command has no training
        with with_variables(script):
            return configuration_of(script)

    with _where_it_began(asked):
        edits = Recommended(found.changes, found.edits, found.unplaced, found.command)
        return apply(edits, build if answer.target.training == 1 else None, agree, say)


@interrupts.obeyed()
def ask(
    study: Path, wanted: Wanted, listener: Listener, arguments: Sequence[str], trust: bool, **wishes: Value
) -> tuple[int, Recorded]:
    """Run one more trial in a study that has an answer, and write its files anew; its number, and what the study holds
    then. An InputError as in `recommend_again`, and for a name or a value that cannot be."""
    from bisect_cfg.report.html import write_report
    from bisect_cfg.report.recorded import read

    study = study.absolute()
    if isinstance(wanted, Mapping):
        given = [(name, encoded(str(name), one)) for name, one in wanted.items()]
        wanted = dict(parse_assignment(one, "ask()") for one in given)
    asked, options = _asked_before(study, wishes, arguments, trust)
    with _where_it_began(asked):
        target = found_target(asked.target, asked.arguments, options)
        with with_variables(target):
            check(options, target)
            found = tell_story(target, options, listener, wanted)
    if found.asked is None:
        why = {
            Status.NO_FAILURE: "your configuration does not fail",
            Status.BASELINE_FAILS: "the good configuration fails",
        }
        raise InputError(
            f"Nothing can be asked in the study {study}: {why.get(found.status, 'its search has not begun')}.",
            "Run its `bisect` again first." if found.status not in why else "",
        )
    answer = read_answer(study)
    if answer is not None:
        trials = sorted((*answer.trials, found.asked), key=attrgetter("number"))
        write_answer(msgspec.structs.replace(answer, trials=tuple(trials)), study)
    write_report(study)
    return found.asked.number, read(study)


def _asked_before(
    study: Path, wishes: Mapping[str, Value], arguments: Sequence[str], trust: bool
) -> tuple[Asked, Options]:
    """How a study is asked again: what is run, and the options. See `recommend_again`.

    A folder can come from anywhere, and what it holds would be run: so it must have been written where it lies, and
    its interpreter must be the one we run under, unless this call names one, or says that it is trusted.
    """
    try:
        asked = msgspec.convert(read_command(study), Asked)
        wishes = {name: value for name, value in wishes.items() if value is not None}
        limits = {name: wishes.get(name) for name in ("max_trials", "max_seconds")}  # of one pass alone
        own = {"study": study.absolute(), "recommend": True, "restart": False}
        options = options_of({**asked.options, **wishes, **limits, **own})
    except (msgspec.ValidationError, TypeError):
        raise InputError(
            f"{study / 'command.json'} is damaged, or of another version: it does not say what was run.",
            "Run the same `bisect-cfg bisect` command again: no trial is repeated, and the file is rewritten.",
        ) from None
    asked.options["python"] = options.python
    named = options.python if not trust and "python" not in wishes else None
    if not trust and not written_here(study, {"made": asked.made}):
        why, advice = "was not made here: it was copied, or comes from somebody else", "--trust, in Python trust=True."
    elif named is not None and interpreter(named) != interpreter(sys.executable):
        why, advice = "asks for another interpreter than this one", f"--python {named}, in Python python={named!r}."
    elif not arguments and any(HIDDEN in argument for argument in asked.arguments):
        again = shlex.join(asked.arguments)
        why = "was given a secret in its arguments, which it does not keep"
        advice = f"Add them with it: -- {again}, in Python arguments=[...]."
    elif HIDDEN in str(options.storage or ""):
        why = f"has a password in its storage {options.storage}, and does not keep it"
        advice = "Add it: --storage URL, in Python storage=URL."
    else:
        asked.arguments = list(arguments) or asked.arguments
        return asked, options
    if advice.startswith("--"):
        advice = f"If that is what you want: {advice}"
    raise InputError(f"The study {study} {why}.\nIt would run: {asked.shown}", advice)


@contextlib.contextmanager
def _where_it_began(asked: Asked) -> Iterator[None]:
    """In the folder from which the script's paths lead."""
    if not os.path.isdir(asked.folder):
        raise InputError(
            f"The study was started in {asked.folder}, which is not there any more.",
            "Move it back, or begin a new study with `bisect-cfg bisect` where the script is now.",
        )
    with contextlib.chdir(asked.folder):
        yield


# ------------------------------------------------------------------------------------------------------- from Python


def encoded(name: str, value: Value) -> Value:
    """A value as it is handed to another process; InputError if it cannot be."""
    try:
        check_value(name, value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{error}.") from None
    made = encode(value)
    if isinstance(made, dict) and ({"$opaque", "$object"} & made.keys()):
        raise InputError(
            f"{name}: a {type(value).__name__} cannot be handed to another process.",
            "Give a number, a string, True, False, None, a torch.dtype, or a list or dict of these.",
        )
    return value if isinstance(value, float) else made


@overload
def bisect(
    target: str | Path | None = None,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    wait: Literal[True] = True,
    **options: Unpack[BisectOptions],
) -> StudyReport: ...


@overload
def bisect(
    target: str | Path | None = None,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    wait: Literal[False],
    **options: Unpack[BisectOptions],
) -> Running: ...


def bisect(
    target: str | Path | None = None,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    wait: bool = True,
    **options: Unpack[BisectOptions],
) -> StudyReport | Running:
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
        wait: False: return at once; it goes on in a process of its own, which ends with this one.
        **options: those of `bisect-cfg bisect`, of the same names with underscores; a flag that may be given several
            times takes a list, or a dict where it gives values, and ``--no-where`` is ``where=False``.

    Returns:
        The same report as `Bisection.run`, with the recommendation, plots and traces; the files are in its folder. With
        ``wait=False`` what has `report`, `wait()` and `stop()`.

    Raises:
        InputError: something about the input stands in the way; says what to do.
        TypeError: an unknown option, or neither a target nor a command.
    """
    from bisect_cfg.background import Running
    from bisect_cfg.report.live import View
    from bisect_cfg.report.notebook import of_folder
    from bisect_cfg.report.notebook_view import NotebookView, in_notebook
    from bisect_cfg.report.terminal import console

    if (target is None) is (not command) or (command and arguments) or isinstance(command, str):
        raise TypeError("bisect() takes a target with its arguments, or command=[...], a list of strings")
    if command:
        target, *arguments = command
    for name in ("good", "bad", "pin"):
        if isinstance(given := options.get(name), Mapping):
            options[name] = [(str(key), encoded(str(key), value)) for key, value in given.items()]
    made, arguments = options_of(options, "bisect"), tuple(map(str, arguments))
    asks = partial(_asks, arguments=arguments, python=made.python, storage=made.storage, trust=True)
    if not wait:
        return Running(run, str(target), arguments, made, lambda folder: of_folder(folder, asks(folder)))
    with NotebookView() if in_notebook() else View(console(), live=False) as view:
        found, _ = run(str(target), arguments, made, view)
    return of_folder(found.folder, asks(found.folder))


with_options(bisect, OPTIONS)


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

    Raises:
        InputError: there is no study.
        TypeError: it is neither a folder nor an address.
    """
    from bisect_cfg.report.notebook import of_folder, of_storage

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
        from bisect_cfg.report.notebook_view import AskedView, in_notebook

        with AskedView(wanted) if in_notebook() else Listener() as listener:
            return ask(folder, wanted, listener, **how)

    return asks
