"""The command line: parse, call, print.

Nothing heavy is imported before a command needs it, and torch never is: `bisect-cfg --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bisect_cfg import crash
from bisect_cfg.errors import InputError
from bisect_cfg.options import (
    EVERYDAY,
    FILE,
    FOLDER,
    OPTIONS,
    OUTPUT,
    PROGRAM,
    SAFE_VALUES,
    SIMILAR,
    SWITCH,
    Kind,
    Option,
    options_of,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from bisect_cfg.reports.listener import Listener

COMPLETION_VARIABLE = "_BISECT_CFG_COMPLETE"
"""Set by a shell's function when it asks for completions (`click.Command.main`), together with `COMP_WORDS`."""

SCRIPT_FLAG_ADVICE = "Options of your script go after `--`: bisect-cfg bisect train.py -- --config my.yaml"

OWN = "Options"
"""The topic of flags that one command alone has."""

Examples = Sequence[tuple[str, str]]
"""Commands, and what each is for."""


# ------------------------------------------------------------------------------------------------ from table to flags


class _Type(click.ParamType):
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
        self.topic = "Everyday options" if row.name in EVERYDAY and row.topic != OWN else row.topic


def _flags(rows: Iterable[Option], unset: bool = False) -> list[_Option]:
    """The flags of some options.

    Args:
        rows: of the table.
        unset: whether what is not given is None, in place of its default.
    """
    short = {"quiet": "-q"}
    made = [_Option(row, short.get(row.name, "")) for row in rows]
    for one in made if unset else ():
        one.default, one.help = None, OPTIONS[one.name or ""].help
    return made


def _own(name: str, kind: Kind, help: str, otherwise: str = "", default: Any = None, topic: str = OWN) -> _Option:
    """A flag that one command alone has."""
    return _Option(Option(kind, help, otherwise, default, name, topic))


# -------------------------------------------------------------------------------------------------------- help pages


def _write_examples(formatter: click.HelpFormatter, examples: Examples) -> None:
    """Commands with what each is for: beside them where there is room, else above."""
    widest = max(len(command) for command, _ in examples)
    beside = all(widest + len(words) + len("    # ") <= formatter.width for _, words in examples)
    with formatter.section("Examples"):
        for command, words in examples:
            formatter.write(f"  {command:<{widest}}  # {words}\n" if beside else f"  # {words}\n  {command}\n")


class _Command(click.Command):
    """A command whose help shows examples, and its options by topic, those of every day first.

    Args:
        *arguments: as of a `click.Command`.
        examples: commands, and what each is for.
        **details: as of a `click.Command`.
    """

    def __init__(self, *arguments: Any, examples: Examples = (), **details: Any) -> None:
        super().__init__(*arguments, **details)
        self.examples = examples

    def topics(self, context: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Topic -> flags and their help."""
        found: dict[str, list[tuple[str, str]]] = {"Everyday options": []}
        for one in self.get_params(context):
            record = one.get_help_record(context) if isinstance(one, click.Option) else None
            if record is not None:
                found.setdefault(getattr(one, "topic", "Options"), []).append(record)
        return {topic: records for topic, records in found.items() if records}

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        for topic, records in self.topics(context).items():
            with formatter.section(topic):
                formatter.write_dl(records)


class _Group(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they are needed

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(context, formatter)
        _write_examples(formatter, EXAMPLES)

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


EXAMPLES = (
    ("bisect-cfg bisect train.py", "which setting breaks it, and what to use instead"),
    ("bisect-cfg explain train.log", "only a log is left"),
    ("bisect-cfg doctor train.py", "before you train"),
)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
              help="Show the help of every command.")  # fmt: skip
@click.version_option(package_name="bisect-cfg", prog_name="bisect-cfg")
def cli() -> None:
    """Find which of your settings break a GRPO run, with short real trials, and prove it."""


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


STUDY = click.argument("study", type=_Type(replace(FOLDER, completes="study")))
ARGUMENTS = click.argument("arguments", nargs=-1, type=_Type(FILE), metavar="[-- ARGUMENTS OF THE SCRIPT]")


@cli.command(
    cls=_Bisect,
    short_help="Which settings make a training, or any command, fail.",
    examples=(
        ("bisect-cfg bisect train.py", "each setting, against the library's defaults"),
        ("bisect-cfg bisect train.py -- --lr 1e-6", "what follows -- is the script's own"),
        ("bisect-cfg bisect -- accelerate launch train.py", "with a launcher, or python -m"),
        ("bisect-cfg bisect train.py --good bf16=false", "your idea of what works; also a YAML file"),
        ("bisect-cfg bisect train.py --good packages.trl=0.19.0", "it worked with another version"),
        ("bisect-cfg bisect --good g.yaml --bad b.yaml -- program {flags}", "any program: {flags} are what differs"),
    ),
    params=_flags([*OPTIONS.values(), *OUTPUT.values()]),
    epilog="""Exit status: 0 isolated; 1 nothing to isolate (yours passes, or the good configuration fails);
    2 wrong usage or input, or the system refused something; 3 inconclusive, or something
    that the trials read has changed; 70 a fault of bisect-cfg;
    130 interrupted (run the same command again to continue).""",
)
@click.argument("target", type=_Type(FILE))
@ARGUMENTS
def bisect(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Isolate the settings that make TARGET fail: a training script or notebook, a folder with train.py and good.yaml,
    a whole command that trains, or any command.

    TARGET is run as it is, in short trials that are prefixes of the real run. If it is killed or
    interrupted, run the same command again to continue.
    """
    shown = {name: options.pop(name) for name in OUTPUT}
    given = options_of(options)
    from bisect_cfg.api import run
    from bisect_cfg.reports.answer import EXIT_STATUS

    with _shown(**shown) as listener:
        answer, _ = run(target, arguments, given, listener)
    return EXIT_STATUS[answer.status]


@cli.command(
    cls=_Command,
    short_help="Safe values again, for a study: more seeds, another margin.",
    examples=(
        ("bisect-cfg recommend STUDY --verify-seeds 10", "surer, from the runs that are there already"),
        ("bisect-cfg recommend STUDY --keep learning_rate", "leave this one as it is, if anything else helps"),
    ),
    params=[
        *_flags((row for row in SAFE_VALUES.values() if row.name != "recommend"), unset=True),
        *_flags((OPTIONS[name] for name in ("jobs", "max_trials", "max_seconds", "python", "storage")), unset=True),
        _own(
            "trust",
            SWITCH,
            "Run what the folder says, even if it was made elsewhere or names another interpreter.",
            topic="The study",
        ),  # fmt: skip
        *_flags(OUTPUT.values()),
    ],
    epilog="""What is not given is as in the bisection. Exit status: 0 a verified configuration was found; 2 wrong
    usage or input; 3 none was found, or not everything is settled; 130 interrupted (run the same command again to
    continue).""",
)
@STUDY
@ARGUMENTS
def recommend(study: str, arguments: tuple[str, ...], trust: bool, **options: Any) -> int:
    """Find safe values again for an isolated STUDY (its folder), with another margin, more seeds, or
    other settings to keep.

    Runs that are already there count; only what is missing is run. A study keeps no secrets: if the script
    was given one (--token), give the script's arguments again after --.
    """
    shown = {name: options.pop(name) for name in OUTPUT}
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    options_of(given)  # said before anything else
    from bisect_cfg.api import recommend_again

    with _shown(**shown) as listener:
        result = recommend_again(Path(study), given, listener, arguments, trust)
    recommended = result["recommendation"]
    return 0 if recommended is not None and recommended["verified"] else 3


@cli.command(
    cls=_Command,
    short_help="Write the recommended change into your files.",
    examples=(
        ("bisect-cfg apply bisect-cfg-studies/train", "shows the edits, asks, writes, and checks them"),
        ("bisect-cfg apply bisect-cfg-studies/train --yes", "without asking"),
    ),
    params=[
        _own("yes", SWITCH, "Write without asking."),
        _own("python", PROGRAM, "Interpreter that runs the script.", "as in the bisection"),
        _own("trust", SWITCH, "Run what the folder says, even if it was made elsewhere."),
    ],
    epilog="""Exit status: 0 your files have the change; 1 they do not: you did not agree, or your script did not
    build the recommended configuration and they were put back; 2 wrong usage or input, or a file was changed.""",
)
@STUDY
@ARGUMENTS
def apply(study: str, arguments: tuple[str, ...], yes: bool, trust: bool, python: str | None) -> int:
    """Write what a STUDY (its folder) recommends into your own files.

    Your script is then run up to its configuration, without training. If that does not have the recommended
    values, the files are put back. A file that was changed since the study is left alone.
    """
    from bisect_cfg.api import apply
    from bisect_cfg.reports.text import clean

    def agree() -> bool:
        if not yes and not sys.stdin.isatty():
            raise InputError("Nobody can be asked here, so nothing was written.", "To write without asking: --yes")
        return yes or click.confirm("Write this?")

    return apply(Path(study), agree, lambda line: click.echo(clean(line)), arguments, trust, python)


@cli.command(
    cls=_Command,
    short_help="A study to look at, or to paste into an issue.",
    examples=(
        ("bisect-cfg report bisect-cfg-studies/train --open", "in a browser"),
        ("bisect-cfg report bisect-cfg-studies/train --format md > issue.md", "for an issue"),
    ),
    epilog="Exit status: 0; 2 the folder holds no study, or something cannot be written.",
)
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
    """Show a STUDY (its folder): finished, running or interrupted. Runs nothing.

    Home directories, user names and secrets are masked, so that it can be shown to others.
    """
    from bisect_cfg.reports.page import FILE as PAGE
    from bisect_cfg.reports.page import write_report
    from bisect_cfg.reports.passed_on import as_json, as_markdown
    from bisect_cfg.reports.recorded import read

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


@cli.command(
    cls=_Command,
    short_help="What is known about the failure in a log.",
    examples=(
        ("bisect-cfg explain train.log", "or a .gz, a notebook, trainer_state.json, CSV"),
        ("bisect-cfg explain logs/", "a run's folder: all its ranks"),
        ("dmesg | bisect-cfg explain -", "what comes through a pipe"),
    ),
    params=[_own("all", SWITCH, "Print all evidence, causes and sources."), AS_JSON],
    epilog="Exit status: 0 a known failure; 1 a failure that is not known; 3 no failure found; 2 nothing that can be "
    "read.",
)
@click.argument("logs", nargs=-1, required=True, metavar="FILE|FOLDER|- ...", type=_Type(FILE))
def explain(logs: tuple[str, ...], **options: bool) -> int:
    """Say what is known about the failure in a log, with sources and cures. Needs no GPU, no script, no torch.

    It also reads trainer_state.json, JSON lines, CSV and notebooks, compressed (gz, xz, bz2) or in UTF-16;
    several files of one run (.out and .err, one per rank); or the folder of a run.
    """
    from bisect_cfg.explain import explain_command

    return explain_command(*logs, json=options["json"], everything=options["all"])


@cli.command(
    cls=_Command,
    short_help="Check environment and settings before you train.",
    examples=(
        ("bisect-cfg doctor", "the environment alone"),
        ("bisect-cfg doctor train.py -- --lr 1e-6", "and what the script sets; nothing is trained"),
        ("bisect-cfg doctor -- accelerate launch train.py", "every process that the launcher starts, compared"),
        ("bisect-cfg doctor --fingerprint their.json", "what doctor --json recorded on another machine"),
    ),
    params=[
        _own("fingerprint", replace(FILE, items=tuple), "Judge the environment that doctor --json recorded on "
             "another machine; give several to compare them.", default=()),
        _own("python", PROGRAM, "Interpreter that trains.", "this one"),
        AS_JSON,
    ],
    epilog="Exit status: 0 no findings (notes do not count); 1 findings; 2 wrong usage or input.",
)  # fmt: skip
@click.argument("words", nargs=-1, type=_Type(FILE), metavar="[TARGET] [-- ARGUMENTS | -- LAUNCHER COMMAND]")
def doctor(words: tuple[str, ...], fingerprint: tuple[str, ...], python: str | None, **options: bool) -> int:
    """Check an environment and a configuration against known failures, before any training.

    The script is run as it is, up to its trainer. On each GPU a few small matrix products and copies are
    run, to see whether the results are right.
    """
    from bisect_cfg.doctor.examine import examine

    diagnosis = examine(words, python=python, recorded=fingerprint)
    if options["json"]:
        import json

        click.echo(json.dumps(diagnosis.to_json(), indent=1))
    else:
        from bisect_cfg.reports.examination import show

        show(diagnosis)
    return 0 if diagnosis.clean else 1


@cli.command(
    cls=_Command,
    short_help="Environments of other packages that trials ran in: list, prune.",
    examples=(
        ("bisect-cfg envs", "what there is, and how large"),
        ("bisect-cfg envs prune --keep 10", "remove the oldest until 10 GiB are left"),
    ),
    params=[_own("env_cache", FOLDER, "Where they lie.", "bisect-cfg-studies/environments")],
    epilog="Exit status: 0; 2 wrong usage or input.",
)
@click.argument("action", type=click.Choice(["list", "prune"]), default="list", metavar="[list|prune]")
@click.option("--keep", type=click.FloatRange(0), default=0, metavar="GIB", help="What may stay, when pruning.")
def envs(action: str, env_cache: str | None, keep: float) -> int:
    """List the environments that were built for trials with other packages, or remove them (prune)."""
    from bisect_cfg.runner.environments import CACHE, complete_in, prune, size_of
    from bisect_cfg.store.folder import STUDIES

    folder = Path(env_cache) if env_cache else STUDIES / CACHE
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}.", "--env-cache names the one that the bisection was given.")
    if action == "prune":
        gone = prune(folder, int(keep * 2**30))
        click.echo(f"{len(gone)} removed, {sum(map(size_of, complete_in(folder))) / 2**30:.1f} GiB left in {folder}")
        return 0
    for one in complete_in(folder):
        click.echo(f"{size_of(one) / 2**30:6.1f} GiB  {one}")
    return 0


@cli.command(
    cls=_Command,
    short_help="Completion for bash, zsh and fish.",
    examples=(
        ('eval "$(bisect-cfg completion bash)"', "in ~/.bashrc"),
        ('eval "$(bisect-cfg completion zsh)"', "in ~/.zshrc, after compinit"),
        ("bisect-cfg completion fish | source", "in ~/.config/fish/config.fish"),
    ),
    epilog="Exit status: 0; 2 another shell than these.",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print what makes a shell complete commands, options, their values and files at a TAB."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "bisect-cfg", COMPLETION_VARIABLE).source())
    return 0


def _shown(plain: bool, quiet: bool, json_lines: bool) -> Listener:
    """What shows how it goes, in the form that was asked for."""
    if json_lines:
        from bisect_cfg.reports.json_lines import JsonLines

        return JsonLines(sys.stdout)
    from bisect_cfg.reports.console import console
    from bisect_cfg.reports.live import Quiet, View

    return Quiet(console()) if quiet else View(console(), live=False if plain else None)


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
        error.possibilities = get_close_matches(error.option_name, error.possibilities or (), cutoff=SIMILAR)
        raise InputError(error.format_message(), SCRIPT_FLAG_ADVICE) from None
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bisect-cfg"
        raise InputError(error.format_message(), f"See {command} --help.") from None
    except click.Abort:
        raise KeyboardInterrupt from None
