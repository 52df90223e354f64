"""Rows of the dataset: which of them a step takes, which make it fail. Pure; `bisect_cfg.study.data_rows` asks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from bisect_cfg.common.json_files import JsonObject

OUTLYING = 3.0
OUTLYING_ODDS = 10.0
"""A row with so many times the text of the median one, or so little, is so much more likely to be at fault: what is
reported are rows that are far too long, or empty."""


@dataclass(frozen=True)
class RowsOfStep:
    """The rows that a step takes, or a batch of an evaluation."""

    step: int  # optimizer step of the training, counted from 1; the one that an evaluation comes before
    rows: tuple[int, ...]  # their places in the dataset, from 0
    characters: tuple[int | None, ...]  # text in each; None where that is not known
    healthy: tuple[int, ...] = ()  # rows of the steps before it in the same run, which passed
    total: int | None = None  # rows of the dataset; None if that is not known
    evaluated: bool = False  # whether they are of the evaluation set
    failing: tuple[int, ...] = ()  # those of them that are known to hold one at fault; (): that is known of all
    trained_characters: int = 0  # text in the longest row on which a run has trained; 0 if that is not known

    @property
    def place(self) -> str:
        """Where they are taken."""
        return f"the evaluation after step {self.step - 1}" if self.evaluated else f"step {self.step}"

    def longest(self) -> str:
        """That a row is longer than all on which it trains, in a sentence; "" if none is, or that is not known."""
        characters = max((length for length in self.characters if length is not None), default=0)
        if not 0 < self.trained_characters < characters:
            return ""
        return (
            f" Its longest row has {characters} characters; the longest on which it trained, {self.trained_characters}."
        )

    def others(self) -> list[int]:
        """For each row one to take in its place: of a healthy step, or where there was none before, of any other."""
        found = [row for row in self.healthy if row not in self.rows]
        if not found and self.total:
            found = [row for row in range(min(self.total, len(self.rows) * 2 + 1)) if row not in self.rows]
        return [found[place % len(found)] for place in range(len(self.rows))] if found else []

    def odds(self) -> dict[str, float]:
        """Row, as a factor is called -> odds that it is at fault."""
        known = [length for length in self.characters if length is not None]
        usual = statistics.median(known) if known else 0
        outlying = [
            length is not None and (length > OUTLYING * usual or length * OUTLYING < usual)
            for length in self.characters
        ]
        return {
            name_of(row): OUTLYING_ODDS if so or row in self.failing else 1.0
            for row, so in zip(self.rows, outlying, strict=True)
        }


@dataclass(frozen=True)
class FoundRows:
    """What came of it."""

    of: RowsOfStep  # the rows of the failing step
    guilty: tuple[tuple[int, ...], ...] = ()  # sets of rows; each set makes it fail; () if none could be told
    others: Mapping[int, int] | None = None  # row -> the row in its place with which it trains
    settings: tuple[str, ...] | None = None  # names of the settings that were as the user has them; None: all
    trials: int = 0  # how many runs it took
    complete: bool = True  # whether there is no other such set among the rows
    note: str = ""  # why there is no answer, in a sentence; "" if there is one

    def to_json(self) -> JsonObject:
        """For result.json."""
        return {
            "step": self.of.step,
            "dataset": "evaluation" if self.of.evaluated else "training",
            "rows": [
                {"row": row, "characters": length} for row, length in zip(self.of.rows, self.of.characters, strict=True)
            ],
            "guilty": [list(rows) for rows in self.guilty],
            "exchanged_for": {str(row): other for row, other in (self.others or {}).items()},
            "settings": None if self.settings is None else list(self.settings),
            "trials": self.trials,
            "complete": self.complete,
            "text": self.said(),
        }

    def said(self) -> str:
        """The answer in a sentence or two."""
        if self.note:
            return self.note
        lengths = dict(zip(self.of.rows, self.of.characters, strict=True))
        known = sorted(length for length in lengths.values() if length is not None)
        parts = []
        for rows in self.guilty:
            named = [f"row {row}{_text(lengths[row])}" for row in rows]
            does = "does" if len(rows) == 1 else "together do"
            which = "evaluation set" if self.of.evaluated else "dataset"
            parts.append(f"{' and '.join(named)} of the {which} {does} it")
        others = [f"row {(self.others or {}).get(row)}" for rows in self.guilty for row in rows]
        by_itself = ", each by itself" if len(parts) > 1 else ""
        their = "its" if len(others) == 1 else "their"
        spread = f" of {known[0]} to {known[-1]} characters" if known else ""
        of_them = f" {self.of.place[:1].upper()}{self.of.place[1:]} takes {len(lengths)} rows{spread}."
        moves = "" if self.of.evaluated else " Shuffling, or another seed, would only move the failure to another step."
        other = "" if self.complete else " There may be others: the search ended too early to tell."
        return (
            f"{'; '.join(parts)}{by_itself}: with {', '.join(others)} in {their} place it trains ({self.trials} runs; "
            "rows are counted from 0)."
            f"{moves}{of_them if len(lengths) > 1 else ''}{self.of.longest()}{other}"
        )


def _text(characters: int | None) -> str:
    if characters is None:
        return ""
    return " (no text)" if characters == 0 else f" ({characters} characters)"


def name_of(row: int) -> str:
    """A row of the dataset as a factor."""
    return f"row {row}"


def row_of(name: str) -> int:
    """The row of the dataset that a factor is."""
    return int(name.removeprefix("row "))
