"""Write the table of options of each command's page (docs/commands/*.md) from the parser itself.

python docs/options.py
"""

from __future__ import annotations

from pathlib import Path

import click

from bisect_cfg.cli import cli

PAGES = Path(__file__).resolve().parent / "commands"
BEGIN, END = "<!-- options: written by docs/options.py -->", "<!-- end of options -->"


def table(command: click.Command) -> str:
    """The options of a command as a table, each topic of its help under its title."""
    tables = []
    for topic, records in command.topics(click.Context(command, info_name=command.name)).items():
        rows = [f"| `{_cell(flag)}` | {_cell(' '.join(said.split()))} |" for flag, said in records]
        rows = [row for row in rows if "--help" not in row]
        if rows:
            tables.append("\n".join([f"**{topic}**", "", "| | |", "|---|---|", *rows]))
    return "\n\n".join(tables) or "None but `--help`."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def with_table(page: str, command: click.Command) -> str:
    """A page with the table in its place.

    Raises:
        ValueError: the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page of {command.name} has no place for its options")
    return f"{before}{begin}\n\n{table(command)}\n\n{end}{after}"


def main() -> None:
    """Write them all."""
    for name, command in cli.commands.items():
        path = PAGES / f"{name}.md"
        path.write_text(with_table(path.read_text(encoding="utf-8"), command), encoding="utf-8")


if __name__ == "__main__":
    main()
