"""The command line: parse, call, print.

Nothing heavy is imported before a command needs it, and torch never is: `bisect-cfg --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bisect_cfg import crash
from bisect_cfg.errors import InputError
from bisect_cfg.kinds import ASSIGNMENTS, CLUSTER, FILE, FOLDER, PROGRAM, SWITCH, Kind
from bisect_cfg.options import EVERYDAY, OPTIONS, OUTPUT, SAFE_VALUES, SIMILAR, Option, Options, options_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from bisect_cfg.report.events import Listener

COMPLETION_VARIABLE = "_BISECT_CFG_COMPLETE"
"""Set by a shell's function when it asks for completions (`click.Command.main`), together with `COMP_WORDS`."""

SCRIPT_FLAG_ADVICE = "Options of your script go after `--`: bisect-cfg bisect train.py -- --config my.yaml"

EVERY_DAY, OWN = "Everyday options", "Options"
"""Topics: of what most may want to say, and of flags that one command alone has."""


# ------------------------------------------------------------------------------------------------ from table to flags


class _Type(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click alone
    """The values of an option, as they are typed and completed; whether they fit is seen for both doors alike."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.name = kind, kind.metavar or "text"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        return self.kind.typed(value) if isinstance(value, str) else value

    def shell_complete(self, context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        offered = self.kind.completes
        if offered == "setting":
            from bisect_cfg.common.parameters import every

            offered = tuple(every())
        elif offered == "study":
            from bisect_cfg.store.folder import STUDIES
            from bisect_cfg.store.state import STATE_FILE

            offered = tuple(sorted(str(path.parent) for path in STUDIES.glob(f"*/{STATE_FILE}"))) or "dir"
        if offered in ("file", "dir"):
            return [CompletionItem(incomplete, type=offered)]
        return [CompletionItem(name) for name in offered if name.startswith(incomplete)]


class _Option(click.Option):
    """A flag of an option of the table."""

    def __init__(self, row: Option, short: str = "") -> None:
        names = [row.flag, row.name, *filter(None, [short])]
        details: dict[str, Any] = {"is_flag": True, "flag_value": row.default is not True}
        if row.kind is not SWITCH:
            details = {"type": _Type(row.kind), "metavar": row.kind.metavar, "multiple": row.kind.items is not None}
        super().__init__(names, help=row.said, default=row.default, **details)
        self.topic = EVERY_DAY if row.name in EVERYDAY and row.topic != OWN else row.topic


def _flags(rows: Iterable[Option], unset: bool = False) -> list[_Option]:
    """The flags of some options; unset: what is not given is None, in place of its default."""
    short = {"quiet": "-q", "verbose": "-v"}
    made = [_Option(row, short.get(row.name, "")) for row in rows]
    for one in made if unset else ():
        one.default, one.help = None, OPTIONS[one.name or ""].help
    return made


def _own(name: str, kind: Kind, help: str, otherwise: str = "", topic: str = OWN) -> _Option:
    """A flag that one command alone has."""
    return _Option(Option(kind, help, otherwise, None if kind.items is None else (), name, topic))


# -------------------------------------------------------------------------------------------------------- help pages


class _Command(click.Command):
    """A command whose help is its docstring, and its options by topic, those of every day first."""

    def topics(self, context: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Topic -> flags and their help."""
        found: dict[str, list[tuple[str, str]]] = {EVERY_DAY: []}
        for one in self.get_params(context):
            record = one.get_help_record(context) if isinstance(one, click.Option) else None
            if record is not None:
                found.setdefault(getattr(one, "topic", OWN), []).append(record)
        return {topic: records for topic, records in found.items() if records}

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for topic, records in self.topics(context).items():
            with formatter.section(topic):
                formatter.write_dl(records)


class _Group(click.Group):
    command_class = _Command

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they are needed

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if arguments and arguments[0] not in self.commands and Path(arguments[0]).exists():
            raise click.UsageError(f"Did you mean: bisect-cfg bisect {' '.join(arguments)}")
        return super().resolve_command(context, arguments)


def _help_all(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        pages = [context.get_help()]
        for name, command in cli.commands.items():
            with click.Context(command, info_name=name, parent=context) as inner:
                pages.append(command.get_help(inner))
        click.echo("\n\n".join(pages))
        context.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
              help="Show the help of every command.")  # fmt: skip
@click.version_option(package_name="bisect-cfg", prog_name="bisect-cfg")
def cli() -> None:
    """Find which of your settings break a GRPO run, with short real trials, and prove it.

    \b
      bisect-cfg bisect train.py      which setting breaks it, what to use instead
      bisect-cfg explain train.log    only a log is left
      bisect-cfg doctor train.py      before you train
    """


# ---------------------------------------------------------------------------------------------------------- commands


class _Bisect(_Command):
    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Everything behind a launcher's name is the launcher's, as if ``--`` stood before it."""
        from bisect_cfg.targets.launchers import is_launcher

        takes_value = {name for one in self.params if not getattr(one, "is_flag", False) for name in one.opts}
        position = 0
        while position < len(arguments) and arguments[position].startswith("-") and arguments[position] != "--":
            position += 2 if arguments[position] in takes_value else 1
        command = arguments[position:]
        if command and command[0] != "--" and is_launcher(command[0]) and not Path(command[0]).is_dir():
            arguments = [*arguments[:position], "--", *command]
        return super().parse_args(context, arguments)


FINGERPRINTS = replace(FILE, items=tuple)
TRUST = _own("trust", SWITCH, "Run what the folder says, even if it was made elsewhere.", topic="The study")
STUDY = click.argument("study", type=_Type(replace(FOLDER, completes="study")))
ARGUMENTS = click.argument("arguments", nargs=-1, type=_Type(FILE), metavar="[-- ARGUMENTS OF THE SCRIPT]")


OF_JOBS = [
    _own("slurm", ASSIGNMENTS, "With --on slurm: options of sbatch, as in partition=gpu,nodes=4,time=2:00:00.",
         topic="How trials are run"),
    _own("dry_run", SWITCH, "With --on slurm: show the job file, and submit nothing.", topic="How trials are run"),
]  # fmt: skip


@cli.command(cls=_Bisect, params=[*_flags(OPTIONS.values()), *OF_JOBS, *_flags(OUTPUT.values())])
@click.argument("target", type=_Type(FILE))
@ARGUMENTS
def bisect(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Which settings make a training, or any command, fail.

    TARGET is a training script or notebook, a folder with train.py and good.yaml, a whole command that trains, or any
    command. It is run as it is, in short trials that are prefixes of the real run. If it is killed or interrupted, run
    the same command again to continue.

    \b
      bisect-cfg bisect train.py                       all that is not a default
      bisect-cfg bisect train.py -- --lr 1e-6          flags of the script's own
      bisect-cfg bisect -- accelerate launch train.py  a launcher, or python -m
      bisect-cfg bisect train.py --good bf16=false     your idea of what works
      bisect-cfg bisect train.py --good packages.trl=0.19.0
      bisect-cfg bisect --good g.yaml --bad b.yaml -- program {flags}

    Exit status: 0 isolated; 1 nothing to isolate (yours passes, or the good configuration fails); 2 wrong usage or
    input, or the system refused something; 3 inconclusive, or something that the trials read has changed; 70 a fault of
    bisect-cfg; 130 interrupted, 143 by SIGTERM.
    """
    shown = {name: options.pop(name) for name in OUTPUT}
    slurm, dry_run = (options.pop(one.name) for one in OF_JOBS)
    given = options_of(options)
    if given.on == "slurm":
        return _in_job(target, arguments, given, slurm, dry_run)
    if slurm or dry_run:
        raise InputError("--slurm and --dry-run are for jobs of Slurm.", "Add --on slurm.")
    from bisect_cfg.api import run
    from bisect_cfg.common.configuration import Status
    from bisect_cfg.report.answer import EXIT_STATUS

    with _shown(**shown) as listener:
        _, answer = run(target, arguments, given, listener)
    return EXIT_STATUS[Status(answer.status)]


def _in_job(target: str, arguments: tuple[str, ...], options: Options, slurm: tuple[str, ...], dry_run: bool) -> int:
    """Have this very command run in a job of Slurm."""
    from bisect_cfg.job import run_in_job

    context, flags = click.get_current_context(), list[str]()
    for one in context.command.params:
        name, given = one.name or "", context.params[one.name or ""]
        typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if typed and isinstance(one, click.Option) and name not in ("on", "slurm", "dry_run", "study", "restart"):
            for value in given if one.multiple else [given]:
                flags += one.opts[:1] if one.is_flag else [*one.opts[:1], str(value)]

    def wants_to_cancel() -> bool | None:
        return click.confirm("Cancel it?", err=True) if sys.stdin.isatty() else None

    return run_in_job(target, arguments, options, flags, slurm, dry_run, wants_to_cancel)


@cli.command(
    params=[
        *_flags((row for row in SAFE_VALUES.values() if row.name != "recommend"), unset=True),
        *_flags((OPTIONS[name] for name in ("jobs", "max_trials", "max_seconds", "python", "storage")), unset=True),
        TRUST,
        *_flags(OUTPUT.values()),
    ],
)
@STUDY
@ARGUMENTS
def recommend(study: str, arguments: tuple[str, ...], trust: bool, **options: Any) -> int:
    """Safe values again, for a study: more seeds, another margin.

    Runs that are already there count; only what is missing is run. What is not given is as in the bisection. A study
    keeps no secrets: if the script was given one (--token), give the script's arguments again after --.

    \b
      bisect-cfg recommend STUDY --verify-seeds 10     surer
      bisect-cfg recommend STUDY --keep learning_rate  if anything else helps

    Exit status: 0 a verified configuration was found; 2 wrong usage or input; 3 none was found, or not everything is
    settled; 130 interrupted, 143 by SIGTERM (run the same command again to continue).
    """
    shown = {name: options.pop(name) for name in OUTPUT}
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    options_of(given)  # said before anything else
    from bisect_cfg.api import recommend_again

    with _shown(**shown) as listener:
        answer = recommend_again(Path(study), given, listener, arguments, trust)
    return 0 if answer.recommendation is not None and answer.recommendation.verified else 3


@cli.command(params=[_own("yes", SWITCH, "Write without asking."), *_flags([OPTIONS["python"]], unset=True), TRUST])
@STUDY
@ARGUMENTS
def apply(study: str, arguments: tuple[str, ...], yes: bool, trust: bool, python: str | None) -> int:
    """Write the recommended change into your files.

    Your script is then run up to its configuration, without training. If that does not have the recommended
    values, the files are put back. A file that was changed since the study is left alone.

    \b
      bisect-cfg apply bisect-cfg-studies/train        shows, asks, writes, checks
      bisect-cfg apply bisect-cfg-studies/train --yes  without asking

    Exit status: 0 your files have the change; 1 they do not: you did not agree, or your script did not build the
    recommended configuration and they were put back; 2 wrong usage or input, or a file was changed.
    """
    from bisect_cfg.api import apply
    from bisect_cfg.common.words import clean

    def agree() -> bool:
        if not yes and not sys.stdin.isatty():
            raise InputError("Nobody can be asked here, so nothing was written.", "To write without asking: --yes")
        return yes or click.confirm("Write this?")

    return apply(Path(study), agree, lambda line: click.echo(clean(line)), arguments, trust, python)


@cli.command()
@STUDY
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json"]),
    default="html",
    show_default=True,
    help="html: STUDY/report.html, one file that needs no network. md: for an issue. json: result.json.",
)
@click.option("--open", "look", is_flag=True, help="Show report.html in a browser.")
def report(study: str, form: str, look: bool) -> int:
    """A study to look at, or to paste into an issue.

    It may be finished, running or interrupted; nothing is run. Home directories and secrets are masked, so that it
    can be shown to others.

    \b
      bisect-cfg report bisect-cfg-studies/train --open
      bisect-cfg report bisect-cfg-studies/train --format md > issue.md

    Exit status: 0; 2 the folder holds no study, or something cannot be written.
    """
    from bisect_cfg.report.html import FILE as PAGE
    from bisect_cfg.report.html import write_report
    from bisect_cfg.report.markdown import as_json, as_markdown
    from bisect_cfg.report.recorded import read

    if form != "html":
        click.echo((as_markdown if form == "md" else as_json)(read(Path(study))), nl=False)
        return 0
    try:
        path = write_report(Path(study))
    except OSError as error:
        raise InputError(
            f"{Path(study) / PAGE} cannot be written: {error.strerror}.",
            "--format md and --format json print, and write nothing.",
        ) from None
    click.echo(path)
    if look:
        click.launch(path.absolute().as_uri())
    return 0


AS_JSON = _own("json", SWITCH, "Print everything as JSON.")


@cli.command(params=[_own("all", SWITCH, "Print all evidence, causes and sources."), AS_JSON])
@click.argument("logs", nargs=-1, required=True, metavar="FILE|FOLDER|- ...", type=_Type(FILE))
def explain(logs: tuple[str, ...], **options: bool) -> int:
    """What is known about the failure in a log.

    With sources and cures; needs no GPU, no script, no torch. It also reads trainer_state.json, JSON lines, CSV and
    notebooks, compressed too (gz, xz, bz2); several files of one run (.out and .err, one per rank); or the
    folder of a run.

    \b
      bisect-cfg explain train.log
      bisect-cfg explain logs/        a run's folder: all its ranks
      dmesg | bisect-cfg explain -    what comes through a pipe

    Exit status: 0 a known failure; 1 a failure that is not known; 3 no failure found; 2 nothing that can be read.
    """
    from bisect_cfg.explain import explain_command

    return explain_command(*logs, json=options["json"], everything=options["all"])


@cli.command(
    params=[
        _own("fingerprint", FINGERPRINTS, "What doctor --json recorded elsewhere; several: compare them."),
        _own("python", PROGRAM, "Interpreter that trains.", "this one"),
        _own("on", CLUSTER, "Compare all nodes of a cluster."),
        AS_JSON,
    ]
)
@click.argument("words", nargs=-1, type=_Type(FILE), metavar="[TARGET] [-- ARGUMENTS | -- LAUNCHER COMMAND]")
def doctor(
    words: tuple[str, ...], fingerprint: tuple[str, ...], python: str | None, on: str | None, **options: bool
) -> int:
    """Check environment and settings before you train.

    The script is run as it is, up to its trainer, and nothing is trained. On each GPU a few small matrix products and
    copies are run, to see whether the results are right.

    \b
      bisect-cfg doctor                                the environment alone
      bisect-cfg doctor train.py -- --lr 1e-6          and what the script sets
      bisect-cfg doctor -- accelerate launch train.py  its processes, compared
      bisect-cfg doctor --fingerprint their.json       another machine's
      bisect-cfg doctor --on ray                       all nodes of a cluster

    Exit status: 0 no findings (notes do not count); 1 findings; 2 wrong usage or input.
    """
    from bisect_cfg.doctor.examine import examine

    nodes = {}
    if on is not None:
        from bisect_cfg.engines.cluster import EVERY_SLOT, fingerprints_of, ray_command

        nodes = fingerprints_of(ray_command(on, EVERY_SLOT, None), python or sys.executable)
    diagnosis = examine(words, python=python, recorded=fingerprint, nodes=nodes)
    if options["json"]:
        import json

        click.echo(json.dumps(diagnosis.to_json(), indent=1))
    else:
        from bisect_cfg.doctor.show import show

        show(diagnosis)
    return 0 if diagnosis.clean else 1


@cli.command(params=[_own("env_cache", FOLDER, "Where they lie.", "bisect-cfg-studies/environments")])
@click.argument("action", type=click.Choice(["list", "prune"]), default="list", metavar="[list|prune]")
@click.option("--keep", type=click.IntRange(0), default=0, metavar="GIB", help="What may stay, when pruning.")
def envs(action: str, env_cache: str | None, keep: int) -> int:
    """Environments built for trials: list, prune.

    \b
      bisect-cfg envs                    what there is, and how large
      bisect-cfg envs prune --keep 10    remove the oldest until 10 GiB are left

    Exit status: 0; 2 wrong usage or input.
    """
    from bisect_cfg.runner.environments import CACHE, complete_in, prune, size_of
    from bisect_cfg.store.folder import STUDIES

    folder = Path(env_cache) if env_cache else STUDIES / CACHE
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}.", "--env-cache names the one that the bisection was given.")
    if action == "prune":
        gone = prune(folder, keep * 2**30)
        click.echo(f"{len(gone)} removed, {sum(map(size_of, complete_in(folder))) / 2**30:.1f} GiB left in {folder}")
        return 0
    for one in complete_in(folder):
        click.echo(f"{size_of(one) / 2**30:6.1f} GiB  {one}")
    return 0


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Completion for bash, zsh and fish.

    Prints what makes a shell complete commands, options, their values and files at a TAB.

    \b
      eval "$(bisect-cfg completion bash)"     in ~/.bashrc
      eval "$(bisect-cfg completion zsh)"      in ~/.zshrc, after compinit
      bisect-cfg completion fish | source      in ~/.config/fish/config.fish

    Exit status: 0; 2 another shell than these.
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "bisect-cfg", COMPLETION_VARIABLE).source())
    return 0


def _shown(plain: bool, quiet: bool, verbose: bool, json_lines: bool) -> Listener:
    """What shows how it goes, in the form that was asked for."""
    if json_lines:
        from bisect_cfg.report.json_lines import JsonLines

        return JsonLines(sys.stdout)
    from bisect_cfg.report.live import Quiet, View
    from bisect_cfg.report.terminal import console

    return Quiet(console(), verbose) if quiet else View(console(), False if plain else None, verbose)


def run() -> int:
    """Run the command that was typed.

    Returns:
        The exit status.

    Raises:
        InputError: it was typed wrong; and whatever the command raises.
    """
    if not {"COMP_WORDS", "COMP_CWORD"} <= os.environ.keys() and "complete" in os.environ.get(COMPLETION_VARIABLE, ""):
        del os.environ[COMPLETION_VARIABLE]  # it was exported by mistake: no shell asks
    try:
        return int(cli.main(prog_name="bisect-cfg", standalone_mode=False) or 0)  # --help returns nothing
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return crash.USAGE
    except click.exceptions.NoSuchOption as error:
        near = get_close_matches(error.option_name, error.possibilities or (), cutoff=SIMILAR)
        error.possibilities = near  # type: ignore[misc]  # to click it is final
        raise InputError(error.format_message(), SCRIPT_FLAG_ADVICE) from None
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bisect-cfg"
        raise InputError(error.format_message(), f"See {command} --help.") from None
    except click.Abort as error:  # click has made it of the interrupt, which knows the signal; or of the input's end
        interrupt = error.__context__
        raise (interrupt if isinstance(interrupt, KeyboardInterrupt) else KeyboardInterrupt()) from None
