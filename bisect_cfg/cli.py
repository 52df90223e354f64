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
        from bisect_cfg.targets.names import finite_number

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
            click.option("--keep", multiple=True, metavar="NAME", help="Rather change anything else than this setting."),
            click.option("--margin", type=_Number(0, 1), default=0.5, show_default=True, help="How far a safe value stays back from the last healthy one: a share of the way to the good one."),
            click.option("--ratio", type=_Number(1, 100, above=True), default=1.5, show_default=True, help="How narrow a threshold is bracketed: unhealthy over healthy value."),
            click.option("--verify-steps", type=click.IntRange(1), help="Optimizer steps of a verification. [four times a trial's, at least 30]"),
            click.option("--frontier", type=click.IntRange(1), metavar="RUNS", help="Where a cause is two numbers, also map how far they can go together, with at most so many runs."),
            click.option("--verify-seeds", type=click.IntRange(1), default=3, show_default=True, help="Seeds of a verification."),
            click.option("--remedies", type=click.IntRange(1), metavar="N", help="Verify so many ways out. [the one that gives up least, and others for as long as isolating the cause took]"),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@cli.command(
    epilog="""Exit status: 0 isolated; 1 nothing to isolate (yours passes, or the good configuration fails);
    2 wrong usage or input, or the machine refuses; 3 inconclusive, or something
    changed that the trials read; 70 a fault of bisect-cfg;
    130 interrupted (the same command goes on where it was)."""
)
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF THE SCRIPT]")
@click.option("--study", type=click.Path(path_type=Path), help="Study folder. [bisect-cfg-studies/NAME]")
@click.option("--good", multiple=True, metavar="FILE|NAME=VALUE", help="Move the good configuration (default: the library's defaults).")
@click.option("--only", multiple=True, metavar="NAME", help="Vary only these settings.")
@click.option("--except", "excluded", multiple=True, metavar="NAME", help="Leave these settings as the script has them.")
@click.option("--pin", "pins", multiple=True, metavar="NAME=VALUE", help="Fix a setting for every trial.")
@click.option("--steps", type=click.IntRange(1), help="Optimizer steps a trial runs. [from the step at which yours fails]")
@click.option("--trial-timeout", type=_Number(0.1, MORE_THAN_ANYONE_WAITS), metavar="SECONDS", help="No step for this long is a hang. [ten times the longest silence of the run itself, at least 20]")
@click.option("--failure", metavar="any|signal|non-finite|REGEX", help="Which failures count. [exactly the one your configuration shows]")
@click.option("--first", is_flag=True, help="Stop at the first proven cause.")
@click.option("--confirm", type=click.IntRange(1), help="How often every claim of the answer is run; by default as often as the failure rate leaves doubt.")
@click.option("--confidence", type=_Number(0.5, 0.9999), default=0.95, show_default=True, help="For failures that come and go.")
@click.option("--strategy", type=click.Choice(["adaptive", "one-at-a-time", "ddmin"]), default="adaptive", show_default=True, help="How to search.")
@click.option("--prior", type=click.Choice(["risk", "flat"]), default="risk", show_default=True, help="Suspect risky settings first, or all alike.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Trials at once.")
@click.option("--devices", default="", metavar="0,1,...", help="CUDA devices, one for each job.")
@click.option("--level", type=click.Choice(["config", "imports", "cold"]), help="Start trials no warmer than this. [the warmest that is sound]")
@click.option("--max-trials", type=click.IntRange(1), help="Stop after this many trials with what is known.")
@click.option("--max-seconds", type=_Number(1, MORE_THAN_ANYONE_WAITS), help="Start no trial after this long.")
@click.option("--storage", metavar="URL", help="Optuna storage. [SQLite in the study folder]")
@click.option("--python", metavar="PATH", help="Interpreter that runs the script. [this one]")
@click.option("--no-recommend", "recommend", is_flag=True, default=True, flag_value=False, help="Stop when the cause is known; look for no safe values.")
@_safe_value_options
@click.option("--restart", is_flag=True, help="Begin anew; the old study is kept beside it.")
@click.option("--no-where", "where", is_flag=True, default=True, flag_value=False, help="Leave out the last run, which looks where it fails.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
def bisect(target: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Isolate the settings that make TARGET fail: a training script, or a folder with train.py and good.yaml.

    TARGET is run as it is, with short trials that are prefixes of the real run. Killed or interrupted, the same
    command goes on where it was.
    """
    from bisect_cfg.api import run
    from bisect_cfg.reports.answer import EXIT_STATUS
    from bisect_cfg.script_study import Options

    devices = tuple(device.strip() for device in options.pop("devices").split(",") if device.strip())
    plain, python = options.pop("plain"), options.pop("python")
    given = Options(devices=devices, **options)
    answer, _ = run(target, arguments, python, given, _console(), False if plain else None)
    return EXIT_STATUS[answer.status]


@cli.command(
    epilog="""Exit status: 0 a verified configuration was found; 2 wrong usage or input; 3 none was found, or not all is
    settled; 130 interrupted (the same command goes on where it was)."""
)
@click.argument("study", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS OF THE SCRIPT]")
@_safe_value_options
@click.option("--storage", metavar="URL", help="Where the study was recorded, if its address has a password.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at once. [as in the bisection]")
@click.option("--max-trials", type=click.IntRange(1), help="Stop when the study has this many trials in all.")
@click.option("--max-seconds", type=_Number(1, MORE_THAN_ANYONE_WAITS), help="Start no run after this long.")
@click.option("--python", metavar="PATH", help="Interpreter that runs the script. [this one]")
@click.option("--trust", is_flag=True, help="Run what the folder names, though it was made elsewhere or names another interpreter.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
def recommend(
    study: Path, arguments: tuple[str, ...], plain: bool, python: str | None, trust: bool, **options: Any
) -> int:
    """Find safe values again for an isolated STUDY (its folder), with other margins, seeds or wishes.

    Every run that is there already counts; only what is missing is run. A study keeps no secrets: where the script was
    given one (--token), give the script's arguments again after --.
    """
    from bisect_cfg.api import recommend_again

    _, result = recommend_again(study, options, _console(), False if plain else None, arguments, python, trust)
    recommended = result["recommendation"]
    return 0 if recommended is not None and recommended["verified"] else 3


@cli.command(
    epilog="Exit status: 0 something is known about it; 1 a failure that nothing is known about; 3 no failure in it; 2 it cannot be read."
)
@click.argument("logs", nargs=-1, required=True, metavar="FILE|FOLDER|- ...")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def explain(logs: tuple[str, ...], as_json: bool) -> int:
    """Say what is known about the failure in a log, with sources and cures. Needs no GPU, no script, no torch.

    Also takes what is there instead of a log: trainer_state.json, JSON lines, CSV, a notebook, TensorBoard's event
    files, all of it compressed; several files of one run (.out and .err, one for each rank), or its folder.
    """
    from bisect_cfg.diagnosis.explain import explain_command

    return explain_command(*logs, as_json=as_json)


@cli.command(
    epilog="Exit status: 0 nothing is known against it (notes aside); 1 findings; 2 wrong usage or input."
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [-- ARGUMENTS | -- LAUNCHER COMMAND]")
@click.option("--fingerprint", "recorded", multiple=True, metavar="FILE", help="Judge the environment that doctor --json (or a study's result.json) recorded on another machine; several are compared.")
@click.option("--python", metavar="PATH", help="Interpreter that trains. [this one]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(words: tuple[str, ...], recorded: tuple[str, ...], python: str | None, as_json: bool) -> int:
    """Say what is known against an environment and a configuration, before a trial is spent.

    \b
    bisect-cfg doctor                             the environment alone
    bisect-cfg doctor train.py -- --lr 1e-6       and what the script sets; it is not trained
    bisect-cfg doctor -- accelerate launch train.py   every process that this starts, compared

    The script is run as it is, up to its trainer. Where there are GPUs, a few small products and copies show whether
    they compute what they should.
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
    click.echo("\nInterrupted; nothing is lost. The same command goes on where this one was.", err=True)
    return INTERRUPTED


def _complain(message: str, advice: str) -> None:
    from bisect_cfg.reports.text import clean

    if message:
        click.echo(clean(f"bisect-cfg: {message}"), err=True)
    if advice:
        click.echo(clean(advice), err=True)


if __name__ == "__main__":
    main()
