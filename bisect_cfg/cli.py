"""The command line: parse, call, print.

Nothing heavy is imported before a command needs it, and torch never is: `bisect-cfg --help` answers at once.
"""

from __future__ import annotations

import contextlib
import math
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bisect_cfg import crash, interrupts
from bisect_cfg.errors import InputError
from bisect_cfg.interrupts import INTERRUPTED
from bisect_cfg.runner.starts import MORE_THAN_ANYONE_WAITS, STARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click.shell_completion import CompletionItem

    from bisect_cfg.reports.listener import Listener

SIMILAR = 0.75
"""From so much likeness on (`difflib`) an option may be the one that was meant: no --failure for --lr."""

SCRIPT_FLAG_ADVICE = "Options of your script go after `--`: bisect-cfg bisect train.py -- --config my.yaml"


class _Number(click.ParamType):
    """A finite number within bounds."""

    name = "number"

    def __init__(self, least: float = -math.inf, most: float = math.inf, above: bool = False) -> None:
        self._bounds = (least, most, above)

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> float:
        from bisect_cfg.common.numbers import finite_number

        try:
            return float(finite_number(value, *self._bounds))
        except InputError as error:
            self.fail(error.message, param, context)


class _Count(click.ParamType):
    """A whole number from 1 on."""

    name = "number"

    def convert(self, value: str | int, param: click.Parameter | None, context: click.Context | None) -> int:
        with contextlib.suppress(ValueError):
            if int(value) >= 1:
                return int(value)
        self.fail(f"{value} is not a whole number from 1 on.", param, context)


class _Group(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which they are needed

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(context, formatter)
        _write_examples(formatter, EXAMPLES)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, arguments)
        except click.UsageError:
            from bisect_cfg.targets.launchers import is_launcher

            if arguments and (
                arguments[0].endswith((".py", ".ipynb")) or Path(arguments[0]).is_dir() or is_launcher(arguments[0])
            ):
                raise click.UsageError(f"Did you mean: bisect-cfg bisect {' '.join(arguments)}") from None
            raise


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="bisect-cfg", prog_name="bisect-cfg")
def cli() -> None:
    """Find which of your settings break a GRPO run, with short real trials, and prove it."""


class _Option(click.Option):
    """An option that the help lists under the title of its section."""

    section = "Options"


def _help_all(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        context.meta[EVERY_OPTION] = True
        click.echo(context.get_help())
        context.exit()


EVERY_OPTION = "every option"
"""In `click.Context.meta`: the help is to show more than what matters most."""


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]]) -> None:
    """Commands with what each is for: beside them where there is room, else above."""
    widest = max(len(command) for command, _ in examples)
    beside = all(widest + len(words) + len("    # ") <= formatter.width for _, words in examples)
    with formatter.section("Examples"):
        for command, words in examples:
            if not beside:
                formatter.write(f"  # {words}\n")
            formatter.write(f"  {command:<{widest}}  # {words}\n" if beside else f"  {command}\n")


class _Command(click.Command):
    """A command whose help shows examples, and of many options those that matter most.

    Args:
        *arguments: as of a `click.Command`.
        examples: commands, and what each is for.
        most_wanted: names of the options that --help shows; none: all. Then --help-all shows the others, by section.
        **details: as of a `click.Command`.
    """

    def __init__(
        self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), most_wanted: Sequence[str] = (), **details: Any
    ) -> None:
        super().__init__(*arguments, **details)
        self.examples, self.most_wanted = examples, most_wanted
        if most_wanted:
            more: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _help_all}
            self.params.append(_Option(["--help-all"], help="Show every option, by what it is about.", **more))

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            _write_examples(formatter, self.examples)
        sections: dict[str, list[tuple[str, str]]] = {}
        short = bool(self.most_wanted) and EVERY_OPTION not in context.meta
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
            title = getattr(parameter, "section", _Option.section)
            if record is not None and (not short or title == _Option.section or parameter.name in self.most_wanted):
                sections.setdefault(_Option.section if short else title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Bisect(_Command):
    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Everything behind a launcher's name is the launcher's, as if ``--`` stood before it."""
        from bisect_cfg.targets.launchers import is_launcher

        takes_value = {name for one in self.params if not getattr(one, "is_flag", False) for name in one.opts}
        position = 0
        while position < len(arguments) and arguments[position].startswith("-"):
            word = arguments[position]
            if word in ("-m", "--module"):
                raise click.UsageError(
                    f"A module is started by python: bisect-cfg bisect -- python {' '.join(arguments[position:])}"
                )
            if word == "--":
                return super().parse_args(context, arguments)
            position += 2 if word in takes_value else 1
        command = arguments[position:]
        if command and is_launcher(command[0]) and not Path(command[0]).is_dir():
            arguments = [*arguments[:position], "--", *command]
        return super().parse_args(context, arguments)


def _files(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """For a shell: any file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def _studies(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """For a shell: the studies where they lie by default, else any folder."""
    from click.shell_completion import CompletionItem

    from bisect_cfg.store.folder import STUDIES
    from bisect_cfg.store.state import STATE_FILE

    found = sorted(str(path.parent) for path in STUDIES.glob(f"*/{STATE_FILE}"))
    return [CompletionItem(path) for path in found if path.startswith(begun)] or [CompletionItem(begun, type="dir")]


def _settings(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """For a shell: names of settings that something is known of."""
    from click.shell_completion import CompletionItem

    from bisect_cfg.common.parameters import every

    return [CompletionItem(name) for name in every() if name.startswith(begun)]


def _one_of(*names: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """For a shell: these names."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in names if name.startswith(begun)]

    return complete


def _option(names: str, text: str, **details: Any) -> _Option:
    default = details.get("default", "")
    return _Option(names.split(), help=text, show_default=default != "" and default is not True, **details)


def _section(title: str, *options: _Option) -> list[_Option]:
    for option in options:
        option.section = title
    return list(options)


COUNT: dict[str, Any] = {"type": _Count(), "metavar": "N"}
OFF: dict[str, Any] = {"is_flag": True, "default": True, "flag_value": False}
"""Of a flag that switches off what is on by default."""
SECONDS = _Number(1, MORE_THAN_ANYONE_WAITS)

OUTPUT = _section(
    "Output",
    _option("--plain", "Plain lines instead of the live view.", is_flag=True),
    _option("--quiet -q", "Nothing but the answer.", is_flag=True),
    _option("--json-lines", "Every event as a line of JSON, the last one the answer (docs/result.md).", is_flag=True),
)
AS_JSON = _option("--json as_json", "Print everything as JSON.", is_flag=True)

COMPARED = _section(
    "What is compared",
    _option(
        "--good",
        "Change the good configuration. [the library's defaults]",
        multiple=True,
        metavar="FILE|NAME=VALUE",
        shell_complete=_files,
    ),
    _option(
        "--bad",
        "Of any command: the values that fail; none: the flag is left out. [those that stand in the command]",
        multiple=True,
        metavar="FILE|NAME=VALUE",
        shell_complete=_files,
    ),
    _option(
        "--good-packages",
        "The packages with which it worked: what `pip freeze` printed there, or a lock. Those that differ are varied.",
        type=click.Path(path_type=Path),
        metavar="FILE",
    ),
    _option("--only", "Vary only these settings.", multiple=True, metavar="NAME", shell_complete=_settings),
    _option(
        "--except excluded",
        "Leave these settings as the script has them.",
        multiple=True,
        metavar="NAME",
        shell_complete=_settings,
    ),
    _option("--pin pins", "Fix a setting in every trial.", multiple=True, metavar="NAME=VALUE"),
    _option(
        "--failure",
        "Which failures count. [only the one that your configuration shows]",
        metavar="any|signal|non-finite|REGEX",
    ),
)

TRIALS = _section(
    "How trials are run",
    _option(
        "--training",
        "Which training of a script that trains several times. [the first of GRPO]",
        **COUNT,
    ),
    _option(
        "--from-checkpoint",
        "Go on from this checkpoint of your run (its folder, checkpoint-N): no trial makes the steps before it.",
        type=click.Path(path_type=Path),
        metavar="DIR",
    ),
    _option(
        "--log",
        "The log (or metrics) of a run that failed: tells at which step; the first run then goes on to it.",
        type=click.Path(path_type=Path),
        metavar="FILE",
    ),
    _option(
        "--prove",
        "Where trials begin at a checkpoint: run the final claims from step 0 as well, or not. "
        "[if that takes no longer than the search did]",
        type=click.Choice(["from-start", "from-checkpoint"]),
    ),
    _option(
        "--isolate-data",
        "Also find the rows of the dataset that make the failing step fail.",
        is_flag=True,
    ),
    _option(
        "--until-failure",
        "Let the first run go on until it fails. [it stops after 100 steps or ten minutes, whichever is later]",
        is_flag=True,
    ),
    _option(
        "--max-disk",
        "What the first run's own checkpoints may take, in GB; 0: it saves none. [a tenth of what is free]",
        type=_Number(0, 1e6),
        metavar="GB",
    ),
    _option("--steps", "Optimizer steps of a trial. [derived from the step at which yours fails]", **COUNT),
    _option(
        "--trial-timeout",
        "A run without a step for this long counts as hung. [ten times its own longest silence, at least 20]",
        type=_Number(0.1, MORE_THAN_ANYONE_WAITS),
        metavar="SECONDS",
    ),
    _option("--jobs", "Trials that run in parallel.", **COUNT, default=1),
    _option("--devices", "CUDA devices, one per job.", default="", metavar="0,1,..."),
    _option(
        "--start", "Start trials no warmer than this. [the warmest that is sound]", type=click.Choice(list(STARTS))
    ),
    _option("--level", "What --start was called before.", type=click.Choice(list(STARTS)), hidden=True),
    _option("--python", "Interpreter that runs the script. [this one]", metavar="PATH", shell_complete=_files),
)

SEARCH = _section(
    "How sure, how long",
    _option(
        "--confirm", "How often to run each claim of the answer. [until the failure rate leaves no doubt]", **COUNT
    ),
    _option(
        "--confidence", "How sure the answer must be if the failure is random.", type=_Number(0.5, 0.9999), default=0.95
    ),
    _option("--first", "Stop at the first proven cause.", is_flag=True),
    _option(
        "--prior", "Suspect risky settings first, or all equally.", type=click.Choice(["risk", "flat"]), default="risk"
    ),
    _option("--no-where where", "Skip the last run, which looks for the place where it fails.", **OFF),
    _option("--max-trials", "Stop after this many trials and report what is known.", **COUNT),
    _option("--max-seconds", "Start no trial after this many seconds.", type=SECONDS),
)

ANY_COMMAND = _section(
    "Any command (see --bad): {config}, {flags}, {NAME} and {folder} in it are replaced",
    _option(
        "--config-format",
        "Of {config}: yaml, json, toml. [that of the file given]",
        metavar="NAME",
        shell_complete=_one_of("yaml", "json", "toml"),
    ),
)

NO_RECOMMEND = _section(
    "Safe values",
    _option("--no-recommend recommend", "Stop when the cause is known; do not look for safe values.", **OFF),
)

SAFE_VALUES = _section(
    "Safe values",
    _option(
        "--no-environments environments",
        "Do not build environments to try known cures that are other versions of a package.",
        **OFF,
    ),
    _option(
        "--keep",
        "Prefer remedies that leave this setting as it is.",
        multiple=True,
        metavar="NAME",
        shell_complete=_settings,
    ),
    _option(
        "--margin",
        "How far a safe value stays back from the last healthy one, as a share of the way back to the good value.",
        type=_Number(0, 1),
        default=0.5,
    ),
    _option("--verify-steps", "Optimizer steps of each verification run. [four times a trial's, at least 30]", **COUNT),
    _option("--verify-seeds", "Number of runs of a verification, each with its own seed.", **COUNT, default=3),
    _option(
        "--remedies",
        "How many remedies to verify. [the best one, then others for as long as isolating the cause took]",
        **COUNT,
    ),
)

STUDY = _section(
    "The study",
    _option("--study", "Study folder. [bisect-cfg-studies/NAME]", type=click.Path(path_type=Path)),
    _option(
        "--env-cache",
        "Where environments of other packages are built and kept. [beside the studies]",
        type=click.Path(path_type=Path),
        metavar="DIR",
    ),
    _option("--restart", "Begin a new study; the old one is kept beside it.", is_flag=True),
    _option("--storage", "Optuna storage. [SQLite in the study folder]", metavar="URL"),
)


EXAMPLES = (
    ("bisect-cfg bisect train.py", "which setting breaks it, and what to use instead"),
    ("bisect-cfg explain train.log", "only a log is left"),
    ("bisect-cfg doctor train.py", "before you train"),
)

BISECT_EXAMPLES = (
    ("bisect-cfg bisect train.py -- --lr 1e-6", "what follows -- is the script's own"),
    ("bisect-cfg bisect -- accelerate launch train.py", "with a launcher, or python -m"),
    ("bisect-cfg bisect train.py --good bf16=false", "your idea of what works; also a YAML file"),
    ("bisect-cfg bisect train.py --good packages.trl=0.19.0", "it worked with another version"),
    ("bisect-cfg bisect --good g.yaml --bad b.yaml -- program {flags}", "any program: {flags} are what differs"),
)

BISECT_MOST_WANTED = (
    "good", "only", "excluded", "python", "from_checkpoint", "jobs", "max_seconds", "keep", "recommend", "study",
    "restart", "quiet",
)  # fmt: skip
"""What most who bisect may want to say, of more than forty options."""

RECOMMEND_EXAMPLES = (
    ("bisect-cfg recommend STUDY --verify-seeds 10", "surer, from the runs that are there already"),
    ("bisect-cfg recommend STUDY --keep learning_rate", "leave this one as it is, if anything else helps"),
)


@cli.command(
    cls=_Bisect,
    short_help="Which settings make a training, or any command, fail.",
    examples=BISECT_EXAMPLES,
    most_wanted=BISECT_MOST_WANTED,
    params=[*COMPARED, *ANY_COMMAND, *TRIALS, *SEARCH, *NO_RECOMMEND, *SAFE_VALUES, *STUDY, *OUTPUT],
    epilog="""Exit status: 0 isolated; 1 nothing to isolate (yours passes, or the good configuration fails);
    2 wrong usage or input, or the system refused something; 3 inconclusive, or something
    that the trials read has changed; 70 a fault of bisect-cfg;
    130 interrupted (run the same command again to continue).""",
)
@click.argument("target", shell_complete=_files)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF THE SCRIPT]", shell_complete=_files
)
def bisect(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Isolate the settings that make TARGET fail: a training script or notebook, a folder with train.py and good.yaml,
    a whole command that trains, or any command.

    TARGET is run as it is, in short trials that are prefixes of the real run. If it is killed or
    interrupted, run the same command again to continue.
    """
    from bisect_cfg.api import run
    from bisect_cfg.reports.answer import EXIT_STATUS
    from bisect_cfg.study.options import Options

    devices = tuple(device.strip() for device in options.pop("devices").split(",") if device.strip())
    plain, quiet, json_lines = (options.pop(name) for name in ("plain", "quiet", "json_lines"))
    python, level = options.pop("python"), options.pop("level")
    options["start"] = options["start"] or level
    given = Options(devices=devices, **options)
    with _shown(plain, quiet, json_lines) as listener:
        answer, _ = run(target, arguments, python, given, listener)
    return EXIT_STATUS[answer.status]


@cli.command(
    cls=_Command,
    short_help="Safe values again, for a study: more seeds, another margin.",
    examples=RECOMMEND_EXAMPLES,
    params=[
        *SAFE_VALUES,
        *OUTPUT,
        _option(
            "--storage", "Where the study was recorded. Needed only if that address has a password.", metavar="URL"
        ),
        _option("--jobs", "Runs in parallel. [as in the bisection]", **COUNT),
        _option("--max-trials", "Stop when the study has this many trials in total.", **COUNT),
        _option("--max-seconds", "Start no run after this many seconds.", type=SECONDS),
        _option("--python", "Interpreter that runs the script. [this one]", metavar="PATH", shell_complete=_files),
        _option(
            "--trust",
            "Run what the folder says, even if it was made elsewhere or names another interpreter.",
            is_flag=True,
        ),
    ],
    epilog="""Exit status: 0 a verified configuration was found; 2 wrong usage or input; 3 none was found,
    or not everything is settled; 130 interrupted (run the same command again to continue).""",
)
@click.argument("study", type=click.Path(path_type=Path), shell_complete=_studies)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF THE SCRIPT]", shell_complete=_files
)
def recommend(
    study: Path,
    arguments: tuple[str, ...],
    plain: bool,
    quiet: bool,
    json_lines: bool,
    python: str | None,
    trust: bool,
    **options: Any,
) -> int:
    """Find safe values again for an isolated STUDY (its folder), with another margin, more seeds, or
    other settings to keep.

    Runs that are already there count; only what is missing is run. A study keeps no secrets: if the script
    was given one (--token), give the script's arguments again after --.
    """
    from bisect_cfg.api import recommend_again

    with _shown(plain, quiet, json_lines) as listener:
        _, result = recommend_again(study, options, listener, arguments, python, trust)
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
        _option("--yes", "Write without asking.", is_flag=True),
        _option("--python", "Interpreter that runs the script. [this one]", metavar="PATH", shell_complete=_files),
        _option("--trust", "Run what the folder says, even if it was made elsewhere.", is_flag=True),
    ],
    epilog="""Exit status: 0 your files have the change; 1 they do not: you did not agree, or your script did not
    build the recommended configuration and they were put back; 2 wrong usage or input, or a file was changed.""",
)
@click.argument("study", type=click.Path(path_type=Path), shell_complete=_studies)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF THE SCRIPT]", shell_complete=_files
)
def apply(study: Path, arguments: tuple[str, ...], yes: bool, python: str | None, trust: bool) -> int:
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

    return apply(study, agree, lambda line: click.echo(clean(line)), arguments, python, trust)


@cli.command(
    cls=_Command,
    short_help="A study to look at, or to paste into an issue.",
    examples=(
        ("bisect-cfg report bisect-cfg-studies/train --open", "in a browser"),
        ("bisect-cfg report bisect-cfg-studies/train --format md > issue.md", "for an issue"),
    ),
    epilog="""Exit status: 0; 2 the folder holds no study, or something cannot be written.""",
)
@click.argument("study", type=click.Path(path_type=Path), shell_complete=_studies)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json"]),
    default="html",
    show_default=True,
    help="html: STUDY/report.html, one file that needs no network. md: for an issue. json: result.json.",
)
@click.option("--open", "look", is_flag=True, help="Show report.html in a browser.")
def report(study: Path, form: str, look: bool) -> int:
    """Show a STUDY (its folder): finished, running or interrupted. Runs nothing.

    Home directories, user names and secrets are masked, so that it can be shown to others.
    """
    from bisect_cfg.reports.page import FILE, write_report
    from bisect_cfg.reports.passed_on import as_json, as_markdown
    from bisect_cfg.reports.recorded import read

    if form != "html":
        click.echo((as_markdown if form == "md" else as_json)(read(study)), nl=False)
        return 0
    try:
        path = write_report(study)
    except OSError as error:
        raise InputError(
            f"{study / FILE} cannot be written: {error.strerror}.",
            "--format md and --format json print, and write nothing.",
        ) from None
    click.echo(path)
    if look:
        click.launch(path.absolute().as_uri())
    return 0


@cli.command(
    cls=_Command,
    short_help="What is known about the failure in a log.",
    examples=(
        ("bisect-cfg explain train.log", "or a .gz, a notebook, trainer_state.json, CSV"),
        ("bisect-cfg explain logs/", "a run's folder: all its ranks"),
        ("dmesg | bisect-cfg explain -", "what comes through a pipe"),
    ),
    params=[_option("--all everything", "Print all evidence, causes and sources.", is_flag=True), AS_JSON],
    epilog="Exit status: 0 a known failure; 1 a failure that is not known; 3 no failure found; 2 nothing that can be "
    "read.",
)
@click.argument("logs", nargs=-1, required=True, metavar="FILE|FOLDER|- ...", shell_complete=_files)
def explain(logs: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """Say what is known about the failure in a log, with sources and cures. Needs no GPU, no script, no torch.

    It also reads trainer_state.json, JSON lines, CSV and notebooks, compressed (gz, xz, bz2) or in UTF-16;
    several files of one run (.out and .err, one per rank); or the folder of a run.
    """
    from bisect_cfg.explain import explain_command

    return explain_command(*logs, json=as_json, everything=everything)


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
        _option(
            "--fingerprint recorded",
            "Judge the environment that doctor --json recorded on another machine; give several to compare them.",
            multiple=True,
            metavar="FILE",
            shell_complete=_files,
        ),
        _option("--python", "Interpreter that trains. [this one]", metavar="PATH", shell_complete=_files),
        AS_JSON,
    ],
    epilog="Exit status: 0 no findings (notes do not count); 1 findings; 2 wrong usage or input.",
)
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[TARGET] [-- ARGUMENTS | -- LAUNCHER COMMAND]",
    shell_complete=_files,
)
def doctor(words: tuple[str, ...], recorded: tuple[str, ...], python: str | None, as_json: bool) -> int:
    """Check an environment and a configuration against known failures, before any training.

    The script is run as it is, up to its trainer. On each GPU a few small matrix products and copies are
    run, to see whether the results are right.
    """
    from bisect_cfg.doctor.examine import examine

    diagnosis = examine(words, python=python, recorded=recorded)
    if as_json:
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
    params=[
        _option(
            "--env-cache",
            "Where they lie. [bisect-cfg-studies/environments]",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="DIR",
        ),
        _option("--keep", "What may stay when pruning, in GiB.", type=_Number(0), default=0.0, metavar="GIB"),
    ],
    epilog="Exit status: 0; 2 wrong usage or input.",
)
@click.argument("action", type=click.Choice(["list", "prune"]), default="list", metavar="[list|prune]")
def envs(action: str, env_cache: Path | None, keep: float) -> int:
    """List the environments that were built for trials with other packages, or remove them (prune)."""
    from bisect_cfg.runner.environments import CACHE, complete_in, prune, size_of
    from bisect_cfg.store.folder import STUDIES

    folder = env_cache or STUDIES / CACHE
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


COMPLETION_VARIABLE = "_BISECT_CFG_COMPLETE"
"""Set by the shell's function when it asks for completions (`click.Command.main`)."""


def _shown(plain: bool, quiet: bool, json_lines: bool) -> Listener:
    """What shows how it goes, in the form that was asked for."""
    if json_lines:
        from bisect_cfg.reports.json_lines import JsonLines

        return JsonLines(sys.stdout)
    from bisect_cfg.reports.console import console
    from bisect_cfg.reports.live import Quiet, View

    return Quiet(console()) if quiet else View(console(), live=False if plain else None)


def main() -> None:
    """Entry point: errors become two lines and an exit status, whatever they are."""
    crash.prepare()
    interrupts.install()
    status = crash.INTERNAL
    try:
        status = _run()
    except crash.OutputGone as error:
        ended = crash.explained(error)
        crash.discard_output()
        status = ended.status
        with contextlib.suppress(crash.OutputGone):
            _complain(ended.message, ended.advice)
    except KeyboardInterrupt:  # while it was told how it ended
        status = INTERRUPTED
    crash.leave(status)


def _run() -> int:
    try:
        return int(cli.main(prog_name="bisect-cfg", standalone_mode=False) or 0)  # --help returns nothing
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
    except click.exceptions.NoSuchOption as error:
        error.possibilities = get_close_matches(error.option_name, error.possibilities or (), cutoff=SIMILAR)
        _complain(error.format_message(), SCRIPT_FLAG_ADVICE)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        _complain(error.format_message(), f"See {context.command_path if context else 'bisect-cfg'} --help.")
    except InputError as error:
        _complain(error.message, error.advice)
        return error.status
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except (crash.OutputGone, SystemExit):  # the latter: what a shell asked for is printed
        raise
    except BaseException as error:
        if crash.was_interrupted(error):
            return _interrupted()
        ended = crash.explained(error) or crash.internal(error)
        _complain(ended.message, ended.advice)
        return ended.status
    return crash.USAGE


def _interrupted() -> int:
    click.echo("\nInterrupted; nothing is lost. Run the same command again to continue.", err=True)
    return INTERRUPTED


def _complain(message: str, advice: str) -> None:
    from bisect_cfg.reports.text import clean

    if message:
        click.echo(clean(f"bisect-cfg: {message}"), err=True)
    if advice:
        click.echo(clean(advice), err=True)
