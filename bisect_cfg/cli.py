"""The command line: parse, call, print.

Nothing heavy is imported before a command needs it, and torch never is: `bisect-cfg --help` answers at once.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import click

from bisect_cfg import crash, interrupts
from bisect_cfg.entry import INTERRUPTED
from bisect_cfg.errors import InputError

SCRIPT_FLAG_ADVICE = "Options of your script go after `--`: bisect-cfg bisect train.py -- --config my.yaml"


class _Number(click.ParamType):
    """A finite number within bounds."""

    name = "number"

    def __init__(self, least: float = -math.inf, most: float = math.inf, above: bool = False) -> None:
        self._bounds = (least, most, above)

    def convert(self, value: Any, param: Any, context: Any) -> float:
        from bisect_cfg.capture.names import finite_number

        try:
            return float(finite_number(value, *self._bounds))
        except InputError as error:
            self.fail(error.message, param, context)


MORE_THAN_ANYONE_WAITS = 1e9
"""Thirty years in seconds: longer times overflow the system's clocks, and mean no limit anyway."""


class _Group(click.Group):
    def resolve_command(self, context: click.Context, arguments: list[str]) -> Any:
        try:
            return super().resolve_command(context, arguments)
        except click.UsageError:
            if arguments and (arguments[0].endswith(".py") or Path(arguments[0]).is_dir()):
                raise click.UsageError(f"Did you mean: bisect-cfg bisect {' '.join(arguments)}") from None
            raise


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="bisect-cfg", prog_name="bisect-cfg")
def cli() -> None:
    """Find which of your settings break a GRPO run, with short real trials, and prove it."""


def _safe_value_options(command: Any) -> Any:
    """Options of the search for safe values, for the two commands that have it."""
    for option in reversed(
        (
            click.option("--keep", multiple=True, metavar="NAME", help="Prefer remedies that leave this setting as it is."),
            click.option("--margin", type=_Number(0, 1), default=0.5, show_default=True, help="How far a safe value stays back from the last healthy one, as a share of the way back to the good value."),
            click.option("--ratio", type=_Number(1, 100, above=True), default=1.5, show_default=True, help="How narrowly a threshold is bracketed: at most this ratio between the unhealthy and the healthy value."),
            click.option("--verify-steps", type=click.IntRange(1), help="Optimizer steps of each verification run. [four times a trial's, at least 30]"),
            click.option("--frontier", type=click.IntRange(1), metavar="RUNS", help="If a cause has two numeric settings, also map how far they can go together, in at most this many runs."),
            click.option("--verify-seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of runs of a verification, each with its own seed."),
            click.option("--remedies", type=click.IntRange(1), metavar="N", help="How many remedies to verify. [the one that gives up least, then others for as long as isolating the cause took]"),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@cli.command(
    epilog="""Exit status: 0 isolated; 1 nothing to isolate (yours passes, or the good configuration fails);
    2 wrong usage or input, or the system refused something; 3 inconclusive, or something
    that the trials read has changed; 70 a fault of bisect-cfg;
    130 interrupted (run the same command again to continue)."""
)
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF THE SCRIPT]")
@click.option("--study", type=click.Path(path_type=Path), help="Study folder. [bisect-cfg-studies/NAME]")
@click.option(
    "--good", multiple=True, metavar="FILE|NAME=VALUE", help="Change the good configuration. [the library's defaults]"
)
@click.option("--only", multiple=True, metavar="NAME", help="Vary only these settings.")
@click.option(
    "--except", "excluded", multiple=True, metavar="NAME", help="Leave these settings as the script has them."
)
@click.option("--pin", "pins", multiple=True, metavar="NAME=VALUE", help="Fix a setting in every trial.")
@click.option(
    "--steps", type=click.IntRange(1), help="Optimizer steps of a trial. [derived from the step at which yours fails]"
)
@click.option(
    "--trial-timeout",
    type=_Number(0.1, MORE_THAN_ANYONE_WAITS),
    metavar="SECONDS",
    help="A run without a step for this long counts as hung. [ten times its own longest silence, at least 20]",
)
@click.option(
    "--failure",
    metavar="any|signal|non-finite|REGEX",
    help="Which failures count. [only the one that your configuration shows]",
)
@click.option("--first", is_flag=True, help="Stop at the first proven cause.")
@click.option(
    "--confirm",
    type=click.IntRange(1),
    help="How often to run each claim of the answer. [until the failure rate leaves no doubt]",
)
@click.option(
    "--confidence",
    type=_Number(0.5, 0.9999),
    default=0.95,
    show_default=True,
    help="How sure the answer must be if the failure is random.",
)
@click.option(
    "--strategy",
    type=click.Choice(["adaptive", "one-at-a-time", "ddmin"]),
    default="adaptive",
    show_default=True,
    help="The search algorithm.",
)
@click.option(
    "--prior",
    type=click.Choice(["risk", "flat"]),
    default="risk",
    show_default=True,
    help="Suspect risky settings first, or all equally.",
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Trials that run in parallel.")
@click.option("--devices", default="", metavar="0,1,...", help="CUDA devices, one per job.")
@click.option(
    "--start",
    type=click.Choice(["config", "imports", "cold"]),
    help="Start trials no warmer than this. [the warmest that is sound]",
)
@click.option(
    "--level", type=click.Choice(["config", "imports", "cold"]), hidden=True, help="What --start was called before."
)
@click.option("--max-trials", type=click.IntRange(1), help="Stop after this many trials and report what is known.")
@click.option("--max-seconds", type=_Number(1, MORE_THAN_ANYONE_WAITS), help="Start no trial after this many seconds.")
@click.option("--storage", metavar="URL", help="Optuna storage. [SQLite in the study folder]")
@click.option("--python", metavar="PATH", help="Interpreter that runs the script. [this one]")
@click.option(
    "--no-recommend",
    "recommend",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Stop when the cause is known; do not look for safe values.",
)
@_safe_value_options
@click.option("--restart", is_flag=True, help="Begin a new study; the old one is kept beside it.")
@click.option(
    "--no-where",
    "where",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Skip the last run, which looks for the place where it fails.",
)
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
def bisect(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Isolate the settings that make TARGET fail: a training script, or a folder with train.py and good.yaml.

    TARGET is run as it is, in short trials that are prefixes of the real run. If it is killed or
    interrupted, run the same command again to continue.
    """
    from bisect_cfg.api import run
    from bisect_cfg.phases.options import Options
    from bisect_cfg.reports.answer import EXIT_STATUS

    devices = tuple(device.strip() for device in options.pop("devices").split(",") if device.strip())
    plain, python, level = options.pop("plain"), options.pop("python"), options.pop("level")
    options["start"] = options["start"] or level
    given = Options(devices=devices, **options)
    answer, _ = run(target, arguments, python, given, _console(), False if plain else None)
    return EXIT_STATUS[answer.status]


@cli.command(
    epilog="""Exit status: 0 a verified configuration was found; 2 wrong usage or input; 3 none was found,
    or not everything is settled; 130 interrupted (run the same command again to continue)."""
)
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF THE SCRIPT]")
@_safe_value_options
@click.option(
    "--storage", metavar="URL", help="Where the study was recorded. Needed only if that address has a password."
)
@click.option("--jobs", type=click.IntRange(1), help="Runs in parallel. [as in the bisection]")
@click.option("--max-trials", type=click.IntRange(1), help="Stop when the study has this many trials in total.")
@click.option("--max-seconds", type=_Number(1, MORE_THAN_ANYONE_WAITS), help="Start no run after this many seconds.")
@click.option("--python", metavar="PATH", help="Interpreter that runs the script. [this one]")
@click.option(
    "--trust",
    is_flag=True,
    help="Run what the folder says, even if it was made elsewhere or names another interpreter.",
)
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
def recommend(
    study: Path, arguments: tuple[str, ...], plain: bool, python: str | None, trust: bool, **options: Any
) -> int:
    """Find safe values again for an isolated STUDY (its folder), with another margin, more seeds, or
    other settings to keep.

    Runs that are already there count; only what is missing is run. A study keeps no secrets: if the script
    was given one (--token), give the script's arguments again after --.
    """
    from bisect_cfg.api import recommend_again

    _, result = recommend_again(study, options, _console(), False if plain else None, arguments, python, trust)
    recommended = result["recommendation"]
    return 0 if recommended is not None and recommended["verified"] else 3


@cli.command(
    epilog="Exit status: 0 a known failure; 1 a failure that is not known; 3 no failure found; 2 nothing that can be read."
)
@click.argument("logs", nargs=-1, required=True, metavar="FILE|FOLDER|- ...")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def explain(logs: tuple[str, ...], as_json: bool) -> int:
    """Say what is known about the failure in a log, with sources and cures. Needs no GPU, no script, no torch.

    It also reads trainer_state.json, JSON lines, CSV, notebooks and TensorBoard event files, compressed or
    not; several files of one run (.out and .err, one per rank); or the folder of a run.
    """
    from bisect_cfg.diagnosis.explain import explain_command

    return explain_command(*logs, as_json=as_json)


@cli.command(epilog="Exit status: 0 no findings (notes do not count); 1 findings; 2 wrong usage or input.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [-- ARGUMENTS | -- LAUNCHER COMMAND]")
@click.option(
    "--fingerprint",
    "recorded",
    multiple=True,
    metavar="FILE",
    help="Judge the environment that doctor --json (or a study's result.json) recorded on another machine; give several to compare them.",
)
@click.option("--python", metavar="PATH", help="Interpreter that trains. [this one]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(words: tuple[str, ...], recorded: tuple[str, ...], python: str | None, as_json: bool) -> int:
    """Check an environment and a configuration against known failures, before any training.

    \b
    bisect-cfg doctor                             the environment alone
    bisect-cfg doctor train.py -- --lr 1e-6       and what the script sets; nothing is trained
    bisect-cfg doctor -- accelerate launch train.py   every process that the launcher starts, compared

    The script is run as it is, up to its trainer. On each GPU a few small matrix products and copies are
    run, to see whether the results are right.
    """
    from bisect_cfg.doctor import examine

    diagnosis = examine(words, python=python, recorded=recorded)
    if as_json:
        import json

        click.echo(json.dumps(diagnosis.to_json(), indent=1))
    else:
        from bisect_cfg.reports.doctor import show

        show(diagnosis)
    return 0 if diagnosis.clean else 1


def _console() -> Any:
    from bisect_cfg.reports.console import console

    return console()


def main() -> None:
    """Entry point: errors become two lines and an exit status, whatever they are."""
    crash.prepare()
    interrupts.install()
    status: Any = crash.INTERNAL
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
    crash.leave(status if isinstance(status, int) else 0)


def _run() -> Any:
    try:
        return cli.main(standalone_mode=False)
    except click.exceptions.NoSuchOption as error:
        _complain(error.format_message(), SCRIPT_FLAG_ADVICE)
    except click.ClickException as error:
        _complain(error.format_message(), "See bisect-cfg --help.")
    except InputError as error:
        _complain(error.message, error.advice)
        return error.status
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except crash.OutputGone:
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


if __name__ == "__main__":
    main()
