"""Flags of a command line as argparse and its kin read them, and Hydra's ``training.learning_rate=0.02``: which words
give a setting, and what they are with another value."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Sequence

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.rewrite.spans import Change, Span, parsed, plain, same

_FLAG = re.compile(r"(?P<flag>-{1,2}[A-Za-z][\w.-]*|[+~]{0,2}[A-Za-z_][\w.@/]*(?==))(?P<value>=.*)?", re.DOTALL)


class Words:
    """The words of a command, each with what stands in its place, and the settings that were changed.

    Args:
        typed: the command.
        fields: settings of the training config; a flag of another name that takes no value is there or not.
    """

    def __init__(self, typed: Sequence[str], fields: Collection[str]) -> None:
        self._typed, self._fields = list(typed), fields
        self._now = [[word] for word in typed]
        self._changed: dict[int, tuple[int, list[str]]] = {}  # first word of a flag -> its end, names of settings
        self.added: Configuration = {}
        """Settings that are appended as flags."""

    @property
    def text(self) -> str:
        """The command as typed."""
        return shlex.join(self._typed)

    def names(self) -> set[str]:
        """The settings that are given as flags."""
        found = (_FLAG.fullmatch(word) for word in self._typed if word.startswith("--"))
        return {match["flag"].lstrip("-").replace("-", "_") for match in found if match}

    def change(
        self, name: str, change: Change, names: Collection[str], within: range, flags: Collection[str] = ()
    ) -> bool:
        """Change a setting, if these words give it; returns whether they do. Those with an index in `within` are looked
        at; `flags` is what the parser knows of it."""
        for at in (at for at in reversed(within) if self._now[at]):  # of two the last one counts
            found = self._replaced([word for now in self._now[at : within.stop] for word in now], change, names, flags)
            if found is None:
                continue
            count, new = found
            end, settings = self._changed.get(at, (at + count, []))
            self._now[at:end] = [new, *([] for _ in range(at + 1, end))]
            self._changed[at] = end, [*settings, name]
            return True
        return False

    def _replaced(
        self, words: Sequence[str], change: Change, names: Collection[str], flags: Collection[str]
    ) -> tuple[int, list[str]] | None:
        """How many words, from the first on, give a setting, and the new ones; None if they do not."""
        opposite = _opposites(flags)
        if words[0] in opposite and isinstance(change.new, bool):
            return 1, [opposite[words[0]]]
        match = _FLAG.fullmatch(words[0])
        called = match["flag"].lstrip("-+~").replace("-", "_").rpartition(".")[2] if match else ""
        if not match or not (called in names or (change.field and called == change.field)):
            return None
        found = _new(change, called in names, [match["value"][1:]] if match["value"] else _until_flag(words[1:]))
        if found is None:
            return None
        count, new = found
        switch = count == 0 and called not in self._fields
        if not new or (switch and plain(change.new) is False):
            return 1 if match["value"] else 1 + count, []
        if match["value"]:
            return 1, [f"{match['flag']}={new[0]}"]
        return 1 + count, [match["flag"], *new]

    def spans(self) -> list[Span]:
        """What changes, as spans of `text`."""
        found = []
        for first, (last, names) in sorted(self._changed.items()):
            start, end = len(shlex.join(self._typed[:first])) + bool(first), len(shlex.join(self._typed[:last]))
            new = shlex.join(self._now[first])
            found.append(Span(start if new else start - bool(first), end, new, tuple(names)))
        if self.added:
            new = "".join(f" --{name} {shlex.join(_texts(value))}" for name, value in self.added.items())
            found.append(Span(len(self.text), len(self.text), new, tuple(self.added)))
        return found


def _opposites(flags: Collection[str]) -> dict[str, str]:
    """``--flag`` -> ``--no-flag`` and the other way round, where a parser has both."""
    pairs = [(flag, f"--no{between}{flag[2:]}") for flag in flags for between in "-_"]
    both = [pair for pair in pairs if pair[1] in flags]
    return {one: other for pair in both for one, other in (pair, pair[::-1])}


def _until_flag(rest: Sequence[str]) -> list[str]:
    """What follows a flag, up to the next one; a negative number is none."""
    end = next((k for k, word in enumerate(rest) if _FLAG.fullmatch(word) and word.startswith("-")), len(rest))
    return list(rest[:end])


def _new(change: Change, named: bool, words: list[str]) -> tuple[int, list[str]] | None:
    """How many of the words after a flag are its value, and the new ones; None if the value is not the run's."""
    old, new = change.old, [] if change.new is None else _texts(change.new)
    if not named:  # a dictionary as JSON
        whole = _json(words[0]) if words else None
        if not isinstance(whole, dict) or not same(whole.get(change.key), old):
            return None
        kept = {**whole, change.key: plain(change.new)}
        return 1, _texts({key: value for key, value in kept.items() if new or key != change.key})
    if not words:  # --bf16 alone
        return (0, new) if equal(old, True) else None
    if isinstance(old, (list, tuple)) and len(words) == len(old) and all(map(same, words, old)):
        return len(words), new
    return (1, new) if same(words[0], old) or equal(_json(words[0]), old) else None


def _json(text: str) -> Value:
    try:
        return json.loads(text)
    except ValueError:
        return parsed(text)


def _texts(value: Value) -> list[str]:
    value = plain(value)
    if isinstance(value, (list, tuple)):
        return list(map(str, value))
    return [json.dumps(value) if isinstance(value, dict) else str(value)]
