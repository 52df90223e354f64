"""Which parts of the user's own command and files to change, so that the run has other values.

A setting may be a flag of the command, an entry of a YAML, JSON or TOML file, or a value in Python. A place counts only
if the value there is the one that the run had. Where that is not certain (the value is computed, or given in two
places), the setting is left out, with the reason and with what to write instead.

All places are found in the texts as they are. What is to change in a text is collected, and spliced once; it counts
where the new text is proven to hold the wanted values and nothing else that is new. Nothing is written here:
`bisect_cfg.rewrite.apply` does that.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisect_cfg.common.cells import SUFFIX, CellLine, cells_in, code_cells, place_in, script_of
from bisect_cfg.common.configuration import UNSET, Configuration, equal, present
from bisect_cfg.common.files import read_text
from bisect_cfg.probe.redact import scrub
from bisect_cfg.rewrite import data, launch, python
from bisect_cfg.rewrite.command_line import Words
from bisect_cfg.rewrite.places import PYTHON, Places
from bisect_cfg.rewrite.recommended import Change as ShownChange
from bisect_cfg.rewrite.recommended import ShownEdit, Unplaced
from bisect_cfg.rewrite.spans import Change, Piece, Place, Span, spans_of, splice
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.launch_settings import PROCESSES
from bisect_cfg.targets.shell_line import shell_line

_NEXT_TEXT = r'(?:",\s*")??'
"""In a notebook's JSON, after the end of a line another text may begin, as most writers of notebooks have it."""

SHOWN_PLACES = 3
"""So many places of a setting that is given in several are named at most."""

Changes = Mapping[str, ShownChange]
"""Setting -> what it is changed from, and to."""


@dataclass(frozen=True)
class Edits:
    """What to change."""

    # by file, in the order of the text (of a notebook the script that its cells amount to); the command line, None,
    # comes first
    spans: Mapping[Path | None, Sequence[Span]] = field(default_factory=dict)
    unplaced: tuple[Unplaced, ...] = ()  # what they do not change
    # path -> text of all that they are about, as it is; None for the command line
    texts: Mapping[Path | None, str] = field(default_factory=dict)
    command: str = ""  # the whole command from now on; "" where it stays as it is
    config: str = ""  # of a command, the diff of its configuration file or arguments; "" for a script

    @property
    def paths(self) -> list[Path]:
        """The files that change."""
        return [path for path in self.spans if path is not None]

    def after(self, path: Path | None) -> str:
        """The text of a file, or the command line, with its edits."""
        return splice(self.texts[path], self.spans.get(path, ()))

    @property
    def diff(self) -> str:
        """The edits of files as a unified diff."""
        parts: list[str] = []
        for path in self.paths:
            before, after, names = {0: self.texts[path]}, {0: self.after(path)}, {0: str(path)}
            if path.suffix == SUFFIX:
                before, after = cells_in(before[0]), cells_in(after[0])
                names = {number: f"{path}, cell {number}" for number in before}
            for number, name in names.items():
                parts += difflib.unified_diff(_lines(before[number]), _lines(after[number]), name, name)
        return self.config or "".join(
            part if part.endswith("\n") else f"{part}\n\\ No newline at end of file\n" for part in parts
        )

    def shown(self) -> tuple[ShownEdit, ...]:
        """The edits as result.json has them, those of the command line first. One that would have to write a secret, or
        is in another cell than the notebook had when it ran, cannot be written."""
        flags = (
            ShownEdit(scrub(self.texts[None][start:end].strip()), scrub(new.strip()), names)
            for start, end, new, names in self.spans.get(None, ())
        )
        return *flags, *(shown for path in self.paths for shown in self._of_file(path))

    def _of_file(self, path: Path) -> Iterator[ShownEdit]:
        text = file = self.texts[path]
        first = [text.count("\n", 0, span.start) + 1 for span in self.spans[path]]
        cells = [cell_line(text, line, path) for line in first]
        spans: list[Span | None] = list(self.spans[path])
        if path.suffix == SUFFIX:
            with contextlib.suppress(OSError, ValueError):
                file = read_text(path)
            spans = [
                cell and _span_in_cell(file, cell, text[span.start : span.end], span.new)
                for cell, span in zip(cells, self.spans[path], strict=True)
            ]
        hashes = hash_of(file), hash_of(splice(file, filter(None, spans)))
        for lines, span, line, cell in zip(self.spans[path], spans, first, cells, strict=True):
            skipped, old, new = _without_common_lines(text[lines.start : lines.end], lines.new)
            secret = span is None or scrub(span.new) != span.new
            written = () if span is None or secret else (span.start, span.end, span.new, *hashes)
            at = str(path), (cell.line if cell else line) + skipped, cell and cell.cell
            yield ShownEdit(scrub(old), scrub(new), lines.names, *at, *written)


def hash_of(text: str) -> str:
    """A short hash of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def edits_for(places: Places, changes: Changes) -> Edits:
    """The edits that make changes."""
    if places.command is not None:
        return _of_command(places.command, changes)
    return edits_of(places, wanted(present(places.settings), changes))


def wanted(settings: Factors, changes: Changes) -> list[Change]:
    """Changes with the values that the user wrote, not what the library made of them."""
    factors, args = {factor.name: factor for factor in settings.varied}, settings.capture.args
    found = []
    for name, change in changes.items():
        factor = factors.get(name)
        setting, _, key = name.partition(".")
        raw = args.raw.get(setting) if factor is None or factor.kind == "args" else change.before
        added = factor is None and equal(raw, args.defaults.get(setting))
        found.append(Change(name, change.before if key else raw, change.to, added))
    return found


def edits_of(places: Places, changes: Sequence[Change]) -> Edits:
    """The edits that make changes of a script's settings."""
    draft = _Draft(places)
    outside = [change for change in changes if change.name.startswith(launch.OUTSIDE)]
    several = not any(change.name == PROCESSES and change.new == 1 for change in outside)
    missing = [draft.launch(change, several) for change in outside]
    own = [change for change in changes if change not in outside]
    missing += [draft.make(change) for change in own if not change.added]
    missing += draft.add([change for change in own if change.added])
    flags = draft.words.spans()
    spans: dict[Path | None, Sequence[Span]] = {None: flags} if flags else {}
    spans |= {path: draft.spans[path] for path in sorted(draft.spans)}
    found = Edits(spans, tuple(one for one in missing if one is not None), draft.texts)
    return replace(found, command=shell_line(shlex.split(found.after(None)))) if flags else found


class _Draft:
    """What is to change so far."""

    def __init__(self, places: Places) -> None:
        self._places, self.words = places, Words(places.words, places.fields)
        self.texts = dict[Path | None, str]([(None, self.words.text), *places.files.items(), *places.python.items()])
        self.spans: dict[Path, list[Span]] = {}
        self._pieces: dict[Path, list[tuple[str, Piece]]] = {}

    def _take(self, path: Path, names: Collection[str], piece: Piece | None) -> bool:
        """Change a part of a file as well, for these settings; returns whether that is proven to be right."""
        if piece is None:
            return False
        text, pieces = self.texts[path], [*self._pieces.get(path, ()), *((name, piece) for name in names)]
        goal = {node: new for _, one in pieces for node, new in one.goal.items()}
        proven = python.proven if path.suffix in PYTHON else data.proven
        spans = spans_of(text, pieces)
        if not proven(path, text, splice(text, spans), goal):
            return False
        self._pieces[path], self.spans[path] = pieces, spans
        return True

    def make(self, change: Change) -> Unplaced | None:
        """Make one change; returns why it cannot be made."""
        places, names, tried, seen = self._places, set(change.names), set[str](), list[tuple[Path, Place]]()
        own, flags = range(len(places.words) - places.arguments, len(places.words)), places.flags.get(change.key, ())
        while names:
            if change.name not in places.assigned and self.words.change(change.name, change, names, own, flags):
                return None
            here = self._found(change, names)
            matching = [one for one in here if one[1].matches]
            if len(matching) == 1 and self._take(matching[0][0], [change.name], matching[0][1].put(change.new)):
                return None
            seen += here
            if matching:
                return self._missing(change, matching)
            tried |= names
            names = {name for _, place in here for name in place.read_from} - tried
        return self._missing(change, seen)

    def launch(self, change: Change, several: bool) -> Unplaced | None:
        """Make a change of how the script is launched; returns why it cannot be made."""
        ways = list(launch.spellings(change, several))
        for one, names in ways:
            if self.words.change(change.name, one, names, range(1, self._places.launcher)):
                return None
        for one, names in (way for way in ways if way[0].new is not None):  # no launcher's file has a null
            for path in self._places.files:
                matching = [place for place in data.places(path, self.texts[path], one, names) if place.matches]
                if len(matching) == 1 and self._take(path, [change.name], matching[0].put(one.new)):
                    return None
        return launch.by_hand(change)

    def add(self, changes: Sequence[Change]) -> list[Unplaced]:
        """Add settings that the user does not set so far beside the others of the training config."""
        values, places = {change.name: change.new for change in changes}, self._places
        if not values or any("." in name for name in values):
            return [self._missing(change, []) for change in changes]
        files = places.files
        for path in sorted(files, key=lambda path: -data.count(path, files[path], places.fields)):
            piece = data.added(path, files[path], values, places.fields)
            if self._take(path, list(values), piece):
                return []
        found = python.added(places, values)
        if found is not None and self._take(found[0], list(values), found[1]):
            return []
        if self.words.names() & set(places.fields):
            self.words.added = values
            return []
        return [self._missing(change, []) for change in changes]

    def _found(self, change: Change, names: Collection[str]) -> list[tuple[Path, Place]]:
        """The places that decide: in files of data, if the value is there, else in Python."""
        files = {} if change.name in self._places.assigned else self._places.files
        found = [(path, place) for path, text in files.items() for place in data.places(path, text, change, names)]
        if any(place.matches for _, place in found):
            return found
        return [*found, *python.places(self._places, change, names)]

    def _missing(self, change: Change, seen: Sequence[tuple[Path, Place]]) -> Unplaced:
        """Why a change cannot be made, and what to write instead."""
        where = " and ".join(self._at(path, place.start) for path, place in seen[:SHOWN_PLACES])
        value = python.literal(change.new)
        add = f"set {change.name} to {value}"
        if any(place.matches for _, place in seen):
            return Unplaced(change.name, f"it is given at {where}", f"{add} where it is meant")
        if self.words.names() & set(change.names):
            return Unplaced(change.name, "it is given there", f"{add} on the command line")
        if seen:
            path, place = seen[0]
            why = f"it is computed there: {place.shown}"
            return Unplaced(change.name, why, f"write {change.key}={value} at {self._at(path, place.start)}")
        call = None if "." in change.name else python.call_of(self._places)
        if call is not None:
            add = f"give {self._places.config}(...) at {self._at(*call)} {change.key}={value}"
        return Unplaced(change.name, "it is not a plain value in your files", add)

    def _at(self, path: Path, start: int) -> str:
        line = self.texts[path].count("\n", 0, start) + 1
        return str(cell_line(self.texts[path], line, path) or f"{path}:{line}")


def cell_line(text: str, line: int, path: Path) -> CellLine | None:
    """The line of a cell that a line of a notebook's script stands for; None for one of another file."""
    return place_in(text, line, script_of(path, path.parent)) if path.suffix == SUFFIX else None


def _span_in_cell(text: str, place: CellLine, old: str, new: str) -> Span | None:
    """The span that gives some lines of a cell other words; None if the file has these lines otherwise.

    Each text that may be these lines is exchanged, and the cells are read again: with the right one only they differ.
    """
    try:
        cells = code_cells(text)
        before = "".join(line + "\n" for line in cells[place.cell - 1].split("\n")[: place.line - 1])
        after = cells[place.cell - 1][len(before) :]
    except (ValueError, IndexError):
        return None
    if not after.startswith(old) and old.endswith("\n"):  # the last line of a cell
        old, new = old[:-1], new.removesuffix("\n")
    wanted = [*cells[: place.cell - 1], before + new + after[len(old) :], *cells[place.cell :]]
    for in_ascii in (False, True):
        written = (json.dumps(part, ensure_ascii=in_ascii)[1:-1] for part in old.split("\n"))
        for found in re.finditer((r"\\n" + _NEXT_TEXT).join(map(re.escape, written)), text):
            span = Span(*found.span(), json.dumps(new, ensure_ascii=in_ascii)[1:-1])
            if code_cells(splice(text, [span])) == [cell for cell in wanted if cell.strip()]:
                return span
    return None


# ------------------------------------------------------------------------------------------------ a command of any kind


def _of_command(target: CommandTarget, changes: Changes) -> Edits:
    """The edits of a command of any kind: of the arguments that give settings as they were typed."""
    bad, template = target.factors.bad, target.template
    safe = {**bad, **{name: change.to for name, change in changes.items()}}
    words, spans, located = list[str](), list[Span](), set[str]()
    for part in template.parts:
        if isinstance(part, str):
            words.append(part)
            continue
        start = len(shlex.join(words)) + bool(words)
        words += part.words
        if part.name in bad:
            located.add(part.name)
            new = part.put(safe.get(part.name, UNSET), template.spelled)
            if new != list(part.words):
                spans.append(Span(start, len(shlex.join(words)), shlex.join(new), (part.name,)))
    other = [name for name in safe if safe[name] != bad.get(name, UNSET) and name not in located]
    config = "CONFIG" if target.config(safe) is None else "safe_config.yaml"
    before, after = (list(_given(target, levels)) for levels in (bad, safe))
    return Edits(
        {None: spans} if spans else {},
        tuple(_unplaced(target, name, safe) for name in other),
        {None: shlex.join(words)},
        shell_line(target.words(safe, config, "FOLDER")),
        "".join(difflib.unified_diff(before, after, "your configuration", "safe")),
    )


def _unplaced(target: CommandTarget, name: str, safe: Configuration) -> Unplaced:
    """What to do about a setting that does not stand in the command."""
    new = safe.get(name)
    if name.startswith(launch.OUTSIDE):
        return launch.by_hand(Change(name, target.factors.bad.get(name), target.factors.overrides(safe).get(name, new)))
    return Unplaced(name, "--bad gives it", f"leave {name} out" if new in (None, UNSET) else f"set {name} to {new}")


def _given(target: CommandTarget, configuration: Configuration) -> Iterator[str]:
    """What the program is given, one line for each argument, or for each line of its configuration file."""
    config = target.config(configuration)
    if config is not None:
        yield from config.splitlines(keepends=True)
    else:
        yield from (f"{shlex.quote(word)}\n" for word in target.words(configuration, "{config}", "{folder}"))


# -------------------------------------------------------------------------------------------------------------- lines


def _lines(text: str) -> list[str]:
    """Lines as editors and `patch` count them; `str.splitlines` ends one at a form feed too."""
    return list(io.StringIO(text, newline="\n"))


def _without_common_lines(old: str, new: str) -> tuple[int, str, str]:
    """How many lines two blocks begin with alike, and both without these and those that they end with alike."""
    ours, theirs = _lines(old), _lines(new)
    first = len(os.path.commonprefix([ours, theirs]))
    last = len(os.path.commonprefix([ours[first:][::-1], theirs[first:][::-1]]))
    old, new = ("".join(lines[first : len(lines) - last]).rstrip("\r\n") for lines in (ours, theirs))
    return first, old, new
