"""What --help says, and what a shell completes."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import click
import pexpect
import pytest
from click.testing import CliRunner

from bisect_cfg.cli import OF_JOBS, bisect, cli, recommend
from bisect_cfg.options import EVERYDAY, OPTIONS, OUTPUT

COMMANDS = list(cli.commands.values())
SHELL_SECONDS = 60
"""A busy machine takes its time."""


def shown(command: click.Command, *options: str) -> str:
    said = CliRunner().invoke(command, options)
    assert said.exit_code == 0, said.output
    return said.output


def listed(text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)


def test_the_options_of_every_day_come_first_and_each_is_listed_once():
    said = shown(bisect, "--help")
    assert sorted(listed(said)) == sorted(
        [*(row.flag for row in {**OPTIONS, **OUTPUT}.values()), *(one.opts[0] for one in OF_JOBS), "--help"]
    )
    topics = re.findall(r"^(\S[^:]+):$", said, re.MULTILINE)
    assert topics[:2] == ["Everyday options", "What is compared"]
    first = said.partition("Everyday options:")[2].partition("What is compared:")[0]
    assert {name.removeprefix("--no-").strip("-").replace("-", "_") for name in listed(first)} == set(EVERYDAY)


def test_the_help_is_short_and_says_how_to_see_the_rest():
    short = shown(cli, "--help")
    assert len(short.splitlines()) <= 32 and "--help-all" in short
    everything = shown(cli, "--help-all")
    for command in COMMANDS:
        assert f" {command.name} [OPTIONS]" in everything
        assert set(listed(shown(command, "--help"))) <= set(listed(everything))
    assert "--ratio" not in shown(recommend, "--help") and "default" not in shown(recommend, "--help")


EXAMPLES = [
    example[1]
    for command in (cli, *COMMANDS)
    for example in re.finditer(r"^ *((?:\S+ \| |eval .*?)?bisect-cfg .+?)(?:  .*)?$", command.help, re.MULTILINE)
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_are_understood(line):
    words = shlex.split(re.search(r"bisect-cfg [^)>|]+", line)[0])[1:]
    name, command, rest = cli.resolve_command(click.Context(cli), words)
    command.make_context(name, rest).close()  # an unknown option or value is an error


@pytest.mark.parametrize("command", (cli, *COMMANDS), ids=lambda command: command.name)
def test_a_narrow_terminal_cuts_nothing(command):
    said = CliRunner().invoke(command, ["--help"], terminal_width=80).output
    assert max(map(len, said.splitlines())) <= 80 and "..." not in said.partition("\nCommands:")[2]


# ---------------------------------------------------------------------------------------------------------- completion


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> pexpect.spawn:
    """An interactive bash with the completion, in a folder with a script and a study."""
    folder = tmp_path_factory.mktemp("bash")
    (folder / "train_it.py").write_text("")
    (folder / "bisect-cfg-studies" / "mine").mkdir(parents=True)
    (folder / "bisect-cfg-studies" / "mine" / "state.json").write_text("{}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "TERM": "dumb", "PS1": "READY> ", "HOME": str(folder)}
    options = ["--norc", "--noprofile", "-i"]
    shell = pexpect.spawn("bash", options, env=environment, cwd=str(folder), encoding="utf-8", dimensions=(50, 200))
    shell.timeout = SHELL_SECONDS
    shell.sendline("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'")
    shell.sendline('eval "$(bisect-cfg completion bash)"; echo is $((40 + 2))')
    shell.expect("is 42")
    yield shell
    shell.close(force=True)


@pytest.mark.parametrize(
    ("begun", "completed"),
    [
        ("bisect-cfg rec", "bisect-cfg recommend "),
        ("bisect-cfg bisect --exc", "bisect-cfg bisect --exclude "),
        ("bisect-cfg bisect --start im", "bisect-cfg bisect --start imports "),
        ("bisect-cfg bisect --only learning_r", "bisect-cfg bisect --only learning_rate "),
        ("bisect-cfg bisect trai", "bisect-cfg bisect train_it.py "),
        ("bisect-cfg report ", "bisect-cfg report bisect-cfg-studies/mine "),
        ("bisect-cfg report x --format m", "bisect-cfg report x --format md "),
        ("bisect-cfg bisect --config-format t", "bisect-cfg bisect --config-format toml "),
    ],
)
def test_a_tab_completes_in_bash(bash, begun, completed):
    bash.send(begun + "\t")
    bash.expect_exact(completed)
    bash.sendcontrol("u")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_is_printed_for_a_shell_names_the_tool(shell):
    said = CliRunner().invoke(cli, ["completion", shell])
    assert said.exit_code == 0 and "_BISECT_CFG_COMPLETE=" in said.output and "bisect-cfg" in said.output
    assert CliRunner().invoke(cli, ["completion", "csh"]).exit_code == 2
