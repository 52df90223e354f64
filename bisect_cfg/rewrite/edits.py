"""Which parts of the user's own command and files to change, so that the run has other values.

A setting may be a flag of the command, an entry of a YAML, JSON or TOML file, or a value in Python. A place counts only
if the value there is the one that the run had. Where that is not certain (the value is computed, or given in two
places), the setting is left out, with the reason and with what to write instead.

An `Edit` is a span of a text as it is. Changes are made one after the other, each found and checked in the text with
those before it, and expressed as spans of the original. Nothing is written here; `bisect_cfg.rewrite.apply` does that.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisect_cfg.common.cells import SUFFIX, CellLine, cells_in, place_in, script_of
from bisect_cfg.common.configuration import Configuration, equal
from bisect_cfg.probe.redact import scrub
from bisect_cfg.rewrite import command_line, data, python
from bisect_cfg.rewrite.notebook import pieces_of
from bisect_cfg.rewrite.places import Places, places_of
from bisect_cfg.rewrite.recommended import Change as ShownChange
from bisect_cfg.rewrite.recommended import ShownEdit, Unplaced
from bisect_cfg.rewrite.spans import Change, Piece, Place, splice
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.launch_settings import PROCESSES
from bisect_cfg.targets.script import by_hand

__all__ = ["Edit", "Edits", "Places", "Unplaced", "edits_for", "places_of"]

SHOWN_PLACES = 3
"""So many places of a setting that is given in several are named."""

Changes = Mapping[str, ShownChange]
"""Setting -> what it is changed from, and to."""


@dataclass(frozen=True)
class Edit:
    """A part of a text to exchange.

    Attributes:
        path: the file, of a notebook the script that its cells amount to; None for the command line.
        start, end: of the part, in characters.
        new: what is to stand there.
        settings: names of the settings that it changes.
    """

    path: Path | None
    start: int
    end: int
    new: str
    settings: tuple[str, ...]

    @property
    def piece(self) -> Piece:
        return self.start, self.end, self.new


@dataclass(frozen=True)
class Edits:
    """What to change.

    Attributes:
        edits: by file, in the order of the text; the command line first.
        unplaced: what they do not change.
        texts: path -> text of all that they are about, as it is; None for the command line.
        command: the whole command from now on; "" where it stays as it is.
        config: of a command, the diff of its configuration file or arguments; "" for a script.
    """

    edits: tuple[Edit, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    texts: Mapping[Path | None, str] = field(default_factory=dict)
    command: str = ""
    config: str = ""

    @property
    def paths(self) -> list[Path]:
        """The files that change."""
        return list(dict.fromkeys(edit.path for edit in self.edits if edit.path is not None))

    def after(self, path: Path | None) -> str:
        """The text of a file, or the command line, with its edits."""
        return splice(self.texts[path], *(edit.piece for edit in self.edits if edit.path == path))

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
        flags = tuple(self._flag(edit) for edit in self.edits if edit.path is None)
        return *flags, *(shown for path in self.paths for shown in self._of_file(path))

    def _flag(self, edit: Edit) -> ShownEdit:
        old = self.texts[None][edit.start : edit.end].strip()
        return ShownEdit(scrub(old), scrub(edit.new.strip()), edit.settings)

    def _of_file(self, path: Path) -> Iterator[ShownEdit]:
        text, after = self.texts[path], self.after(path)
        edits = [edit for edit in self.edits if edit.path == path]
        inside = pieces_of(path, text, [edit.piece for edit in edits]) if path.suffix == SUFFIX else None
        file, pieces = (text, [edit.piece for edit in edits]) if inside is None else inside
        hashes = hash_of(file), hash_of(splice(file, *filter(None, pieces)))
        shift = 0
        for edit, piece in zip(edits, pieces, strict=True):
            start, end = _line_span(text, edit)
            new = splice(text[start:end], (edit.start - start, edit.end - start, edit.new))
            skipped, old, new = _without_common_lines(text[start:end], new)
            line = text.count("\n", 0, start) + 1 + skipped
            place = _cell_line(after, after.count("\n", 0, start + shift) + 1 + skipped, path)
            shift += _growth([edit])
            at = (line, None) if place is None else (place.line, place.cell)
            written = (*piece, *hashes) if piece is not None and scrub(piece[2]) == piece[2] else ()
            yield ShownEdit(scrub(old), scrub(new), edit.settings, str(path), *at, *written)


def hash_of(text: str) -> str:
    """A short hash of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---------------------------------------------------------------------------------------------------------- the edits


def edits_for(places: Places, changes: Changes) -> Edits:
    """The edits that make changes."""
    if places.command is not None:
        return _of_command(places.command, changes)
    return edits_of(places, wanted(places.settings, changes))


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
    launch = [change for change in changes if change.name.startswith(command_line.OUTSIDE)]
    own = [change for change in changes if change not in launch]
    missing = [draft.launch(change, launch) for change in launch]
    missing += [draft.make(change) for change in own if not change.added]
    missing += draft.add([change for change in own if change.added])
    paths = sorted(draft.edits, key=lambda path: (path is not None, str(path)))
    edits = tuple(edit for path in paths for edit in draft.edits[path])
    found = Edits(edits, tuple(one for one in missing if one is not None), draft.originals)
    return replace(found, command=by_hand(shlex.split(found.after(None)))) if None in draft.edits else found


class _Draft:
    """The texts as they become, one change after the other: those of the launch first."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._own: int | None = None  # index of the first word of the command that is the script's own argument
        self.originals: dict[Path | None, str] = {None: shlex.join(places.words), **places.files, **places.python}
        self.edits: dict[Path | None, list[Edit]] = {}
        self._switches = python.switches(places.python)

    def text(self, path: Path | None) -> str:
        return splice(self.originals[path], *(edit.piece for edit in self.edits.get(path, ())))

    @property
    def _python(self) -> dict[Path, str]:
        return {path: self.text(path) for path in self._places.python}

    def _write(self, path: Path | None, piece: Piece, *names: str) -> None:
        self.edits[path] = _composed(self.edits.get(path, []), path, self.text(path), piece, names)

    def make(self, change: Change) -> Unplaced | None:
        """Make one change; returns why it cannot be made."""
        names, tried, seen = set(change.names), set[str](), list[tuple[Path, Place]]()
        while names:
            if change.name not in self._places.assigned and self._flag(change, names):
                return None
            here = self._found(change, names)
            matching = [one for one in here if one[1].matches]
            piece = matching[0][1].put(change.new) if len(matching) == 1 else None
            if piece is not None:
                self._write(matching[0][0], piece, change.name)
                return None
            seen += here
            if matching:
                return self._missing(change, matching)
            tried |= names
            names = {name for _, place in here for name in place.read_from} - tried
        return self._missing(change, seen)

    def launch(self, change: Change, together: Sequence[Change]) -> Unplaced | None:
        """Make a change of how the script is launched, as one of several; returns why it cannot be made."""
        several = not any(other.name == PROCESSES and other.new == 1 for other in together)
        ways = list(command_line.spellings(change, several))
        for one, names in ways:
            if self._flag(one, names, change.name):
                return None
        for one, names in ways:
            for path in self._places.files:
                found = data.places(path, self.text(path), one, names)
                matching = [place for place in found if place.matches]
                piece = matching[0].put(one.new) if len(matching) == 1 else None
                if piece is not None:
                    self._write(path, piece, change.name)
                    return None
        return Unplaced(change.name, command_line.where(change), command_line.advice(change))

    def add(self, changes: Sequence[Change]) -> list[Unplaced]:
        """Add settings that the user does not set so far beside the others of the training config."""
        values, fields = {change.name: change.new for change in changes}, self._places.fields
        if not values:
            return []
        files = {path: self.text(path) for path in self._places.files}
        ranked = sorted(files, key=lambda path: -data.count(path, files[path], fields))
        found = [(path, data.added(path, files[path], values, fields)) for path in ranked]
        found = [(path, piece) for path, piece in found if piece is not None]
        if not found and (made := python.added(self._python, values, self._places.config, self._places.built)):
            found = [made]
        if not found and command_line.names_in(self._places.words) & set(fields):
            found = [(None, command_line.added(self.text(None), values))]
        if not found or any("." in name for name in values):
            return [self._missing(change, []) for change in changes]
        self._write(*found[0], *values)
        return []

    def _flag(self, change: Change, names: Collection[str], name: str = "") -> bool:
        """Change a flag of the script, or of the launcher where `name` is that of a setting of the launch."""
        words = shlex.split(self.text(None))
        if name:
            within, switches = range(1, self._places.launcher), command_line.SWITCHES.values()
        else:
            self._own = len(words) - self._places.arguments if self._own is None else self._own
            within, switches = range(self._own, len(words)), self._switches
        flags = self._places.flags.get(change.key, ())
        piece = command_line.piece_of(words, within, change, names, switches, flags)
        if piece is not None:
            self._write(None, piece, name or change.name)
        return piece is not None

    def _found(self, change: Change, names: Collection[str]) -> list[tuple[Path, Place]]:
        """The places that decide: in files of data, if the value is there, else in Python."""
        assigned = change.name in self._places.assigned
        inside = [
            (path, place)
            for path in (() if assigned else self._places.files)
            for place in data.places(path, self.text(path), change, names)
        ]
        if any(place.matches for _, place in inside):
            return inside
        config, built = self._places.config, self._places.built
        return [*inside, *python.places(self._python, change, names, config, assigned, built)]

    def _missing(self, change: Change, seen: Sequence[tuple[Path, Place]]) -> Unplaced:
        """Why a change cannot be made, and what to write instead."""
        where = " and ".join(self._at(path, place.start) for path, place in seen[:SHOWN_PLACES])
        if len(seen) > SHOWN_PLACES:
            where += f" and {len(seen) - SHOWN_PLACES} more"
        value = python.literal(change.new)
        matching = [place for _, place in seen if place.matches]
        if matching and len(seen) == 1:
            return Unplaced(change.name, f"{where} cannot be changed alone", f"set {change.name} to {value}")
        if matching:
            return Unplaced(change.name, f"it is given at {where}", f"set {change.name} to {value} where it is meant")
        if command_line.names_in(self._places.words) & set(change.names):
            return Unplaced(change.name, "the command gives it", f"set {change.name} to {value} there")
        if seen:
            why = f"{where} computes it: {seen[0][1].shown}"
            return Unplaced(change.name, why, f"write {change.key}={value} there")
        places, add = self._places, f"set {change.name} to {value}"
        call = None if "." in change.name else python.call_of(self._python, places.config, places.built)
        if call is not None:
            path, start, stars = call
            add = f"add {change.key}={value} to {places.config}(...) at {self._at(path, start)}"
            if stars:  # Python takes no keyword twice, and it may be in there
                there = f"{places.config}(...) at {self._at(path, start)}"
                add = f'write **{{**{stars}, "{change.key}": {value}}} in place of **{stars} in {there}'
        return Unplaced(change.name, "it is not a plain value in your files", add)

    def _at(self, path: Path, start: int) -> str:
        text = self.text(path)
        line = text.count("\n", 0, start) + 1
        return str(_cell_line(text, line, path) or f"{path}:{line}")


def _composed(edits: Sequence[Edit], path: Path | None, text: str, piece: Piece, names: tuple[str, ...]) -> list[Edit]:
    """Edits of an original text, and one more of what they make of it, as edits of the original; one for each line.

    Args:
        edits: in their order.
        path: of the text.
        text: what they make of the original.
        piece: a span of it.
        names: of the settings that the piece changes.
    """
    start, end, new = piece
    first, last, shift = start, end, 0
    before, joined, after = list[Edit](), list[Edit](), list[Edit]()
    for edit in edits:
        begin, stop = edit.start + shift, edit.start + shift + len(edit.new)
        shift += _growth([edit])
        if stop < start and (path is None or "\n" in text[stop:start]):
            before.append(edit)
        elif begin > end and (path is None or "\n" in text[end:begin]):
            after.append(edit)
        else:
            joined.append(edit)
            first, last, names = min(first, begin), max(last, stop), (*edit.settings, *names)
    first_there = first - _growth(before)
    last_there = last - _growth(before) - _growth(joined)
    new = text[first:start] + new + text[end:last]
    return [*before, Edit(path, first_there, last_there, new, tuple(dict.fromkeys(names))), *after]


def _growth(edits: Sequence[Edit]) -> int:
    """How much longer edits make their text."""
    return sum(len(edit.new) - (edit.end - edit.start) for edit in edits)


def _of_command(target: CommandTarget, changes: Changes) -> Edits:
    """The edits of a command of any kind: of the arguments that give settings as they were typed."""
    bad, template = target.factors.bad, target.template
    safe = {**bad, **{name: change.to for name, change in changes.items()}}
    words, edits, located = list[str](), list[Edit](), set[str]()
    for part in template.parts:
        if isinstance(part, str):
            words.append(part)
            continue
        start = len(shlex.join(words)) + bool(words)
        words += part.words
        if part.name in bad:
            located.add(part.name)
            new = part.put(safe.get(part.name, command_line.UNSET), template.spelling)
            if new != list(part.words):
                edits.append(Edit(None, start, len(shlex.join(words)), shlex.join(new), (part.name,)))
    other = [name for name in safe if safe[name] != bad.get(name, command_line.UNSET) and name not in located]
    config = "CONFIG" if target.config(safe) is None else "safe_config.yaml"
    before, after = (_given(target, levels) for levels in (bad, safe))
    return Edits(
        tuple(edits),
        tuple(_unplaced(target, name, safe) for name in other),
        {None: shlex.join(words)},
        by_hand(target.words(safe, config, "FOLDER")),
        "".join(difflib.unified_diff(before, after, "your configuration", "safe")),
    )


def _unplaced(target: CommandTarget, name: str, safe: Configuration) -> Unplaced:
    """What to do about a setting that does not stand in the command."""
    new = safe.get(name)
    if name.startswith(command_line.OUTSIDE):
        change = Change(name, target.factors.bad.get(name), target.factors.overrides(safe).get(name, new))
        return Unplaced(name, command_line.where(change), command_line.advice(change))
    add = f"leave {name} out" if new in (None, command_line.UNSET) else f"write {name}: {new} there"
    return Unplaced(name, "--bad gives it", add)


def _given(target: CommandTarget, configuration: Configuration) -> list[str]:
    """What the program is given, one line for each argument, or for each line of its configuration file."""
    config = target.config(configuration)
    if config is not None:
        return config.splitlines(keepends=True)
    return [f"{shlex.quote(word)}\n" for word in target.words(configuration, "{config}", "{folder}")]


# -------------------------------------------------------------------------------------------------------------- lines


def _lines(text: str) -> list[str]:
    """Lines as editors and `patch` count them; `str.splitlines` ends one at a form feed too."""
    return list(io.StringIO(text, newline="\n"))


def _cell_line(text: str, line: int, path: Path) -> CellLine | None:
    """The line of a cell that a line of a notebook's script stands for."""
    return place_in(text, line, script_of(path, path.parent)) if path.suffix == SUFFIX else None


def _line_span(text: str, edit: Edit) -> tuple[int, int]:
    """Where the lines begin and end that an edit changes."""
    start = text.rfind("\n", 0, edit.start) + 1
    if edit.end > edit.start and text[edit.end - 1] == "\n":
        return start, edit.end
    end = text.find("\n", edit.end)
    return start, len(text) if end < 0 else end + 1


def _without_common_lines(old: str, new: str) -> tuple[int, str, str]:
    """How many lines two blocks begin with alike, and both without these and those that they end with alike."""
    ours, theirs = _lines(old), _lines(new)
    first = 0
    while first < min(len(ours), len(theirs)) and ours[first] == theirs[first]:
        first += 1
    while len(ours) > first and len(theirs) > first and ours[-1] == theirs[-1]:
        ours, theirs = ours[:-1], theirs[:-1]
    return first, "".join(ours[first:]).rstrip("\r\n"), "".join(theirs[first:]).rstrip("\r\n")
