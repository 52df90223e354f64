"""Which lines of the user's own files to change: file, line, old, new.

A setting may be a flag of the command, an entry of a YAML file (Hydra's folders of them too), of JSON or of TOML, or a
value in Python: a keyword of the call that builds the training config, an entry of a dictionary that is unpacked
there, an attribute that is set afterwards, a field's default, an argparse default, or a constant that one
of these names. A place counts only if the value there is the one the run was seen to use. Where it cannot
be said with certainty (the value is computed, it is given in two places), that is said, and what to write
instead; nothing is guessed.

The files themselves are never written.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from bisect_cfg.common.cells import SUFFIX, cells_in, is_made, place_in
from bisect_cfg.common.configuration import Value
from bisect_cfg.recommend.edits._place import Change, Occurrence

__all__ = ["Change", "Edit", "Edits", "Unplaced", "configures", "find_edits", "own_yaml"]

SAVED = "transformers_version"
"""A key of what is saved with a model, generation_config.json above all."""

SHOWN_PLACES = 3
"""So many places of a setting that is given in several are named."""


@dataclass(frozen=True)
class Edit:
    """One place to change.

    Attributes:
        path: the file; None for the command line.
        line: number, from 1, that the text has or will have; 0 for the command line.
        old: the text now, without the end of its last line; "" if it is new.
        new: what it should be; "" if it goes.
        names: settings that it changes.
        cell: of a notebook the cell that `line` counts in; None for other files.
    """

    path: Path | None
    line: int
    old: str
    new: str
    names: tuple[str, ...]
    cell: int | None = None

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.path else "the command line"
        if self.cell is not None:
            where = f"{self.path}, cell {self.cell}, line {self.line}"
        return f"{where}: {self.old.strip() or '(add)'} -> {self.new.strip() or '(remove it)'}"


@dataclass(frozen=True)
class Unplaced:
    """A setting that no edit changes.

    Attributes:
        name: of the setting.
        why: what stands in the way.
        add: what to write instead, and where.
    """

    name: str
    why: str
    add: str


@dataclass(frozen=True)
class Edits:
    """What to change, and what that makes of the files.

    Attributes:
        edits: in the order of the files, the command line first.
        unplaced: what is not in them.
        before: path -> text of the files that change, as it is.
        after: path -> text as it should be.
    """

    edits: tuple[Edit, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    before: Mapping[Path, str] = field(default_factory=dict)
    after: Mapping[Path, str] = field(default_factory=dict)

    @property
    def diff(self) -> str:
        """The edits of files as a unified diff."""
        parts: list[str] = []
        for path, after in self.after.items():
            if path.suffix == SUFFIX:
                cells = cells_in(self.before[path])
                texts = [(f"{path}, cell {n}", cells[n], text) for n, text in cells_in(after).items()]
            else:
                texts = [(str(path), self.before[path], after)]
            for name, old, new in texts:
                parts += difflib.unified_diff(_lines(old), _lines(new), name, name)
        return "".join(part if part.endswith("\n") else f"{part}\n\\ No newline at end of file\n" for part in parts)


def find_edits(
    changes: Sequence[Change],
    arguments: Sequence[str] = (),
    python: Iterable[Path] = (),
    yamls: Iterable[Path] = (),
    *,
    config: str = "GRPOConfig",
    fields: Collection[str] = (),
    assigned: Collection[str] = (),
    launcher: Sequence[str] = (),
    notebook: Path | None = None,
    built: Mapping[str, tuple[str, int]] | None = None,
) -> Edits:
    """Where to make changes.

    Args:
        changes: what to change.
        arguments: of the script, as on the command line; they win over files.
        python: the script first, then what else of the user's it imports.
        yamls: YAML, JSON and TOML files that the run was configured by.
        config: the class of the training config.
        fields: of the training config.
        assigned: those that the run was seen to set as attributes of the finished config.
        launcher: the words that start the script.
        notebook: what the script was made of, which is to be changed in its place.
        built: namespace of settings -> the line (absolute path, number) that was seen to build what has them.
    """
    from bisect_cfg.recommend.edits import _python
    from bisect_cfg.recommend.edits._launch import OUTSIDE

    scripts, configs = _read(python), _read(yamls)
    switches = _python.switches(scripts)

    def files() -> _Files:
        return _Files(dict(scripts), dict(configs), arguments, config, fields, assigned, switches, built or {})

    together, alone = files(), []
    launch = [change for change in changes if change.name.startswith(OUTSIDE)]
    unplaced = [missing for change in launch if (missing := together.launch(change, launch, launcher)) is not None]
    for change in launch:
        if change.name not in {missing.name for missing in unplaced}:
            alone.append(((change.name,), files()))
            alone[-1][1].launch(change, launch, launcher)
    changes = [change for change in changes if change not in launch]
    set_now = [[change] for change in changes if not change.added]
    new_ones = [change for change in changes if change.added]
    for group in [*set_now, *([new_ones] if new_ones else [])]:
        missing = together.make(group)
        unplaced += missing
        if not missing:
            alone.append((tuple(change.name for change in group), files()))
            alone[-1][1].make(group)
    before = {**configs, **scripts}
    after = {path: text for path, text in together.texts.items() if text != before[path]}
    found = [edit for path, text in after.items() for edit in _hunks(path, before[path], text, alone)]

    def own(path: Path) -> Path:
        return notebook if notebook is not None and is_made(path) else path

    return Edits(
        (*together.flags, *(replace(edit, path=own(edit.path)) for edit in found)),
        tuple(unplaced),
        {own(path): before[path] for path in after},
        {own(path): text for path, text in after.items()},
    )


def own_yaml(
    path: Path, changes: Sequence[Change], fields: Collection[str] = (), without: Collection[str] = ()
) -> tuple[str, list[str]] | None:
    """A user's YAML file with changes, and nothing else changed or added.

    Args:
        path: of the file.
        changes: to make in it; what it does not hold yet is added where the training config is.
        fields: of the training config.
        without: keys that are left out.

    Returns:
        The text, and the names of changes that it cannot hold; None if a key cannot be left out.
    """
    from bisect_cfg.recommend.edits import _yaml

    text, left = _read([path]).get(path, ""), []
    for change in changes:
        files = _Files({}, {path: text}, (), "", fields)
        placed = not files.make([change]) or (change.name in fields and files.add([change]))
        left += [] if placed else [change.name]
        text = files.yamls[path]
    for name in without:
        shorter = _yaml.without(text, name)
        if shorter is None:
            return None
        text = shorter
    return text, left


@dataclass
class _Files:
    """The files as they become, one change after the other."""

    python: dict[Path, str]
    yamls: dict[Path, str]
    arguments: Sequence[str]
    config: str
    fields: Collection[str]
    assigned: Collection[str] = ()
    switches: Collection[str] = ()
    built: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flags: list[Edit] = []

    @property
    def texts(self) -> dict[Path, str]:
        return {**self.yamls, **self.python}

    def make(self, changes: Sequence[Change]) -> list[Unplaced]:
        """Make one change, or add settings in one place; returns what cannot be made, and why."""
        if changes[0].added:
            return [] if self.add(changes) else [self.missing(change, []) for change in changes]
        (change,) = changes
        names, tried, seen = set(change.names), set[str](), list[Occurrence]()
        while names:
            if self._flag(change, names):
                return []
            here = self._places(change, names)
            matching = [place for place in here if place.matches]
            text = matching[0].put(change.new) if len(matching) == 1 else None
            if text is not None:
                self._write(matching[0].path, text)
                return []
            if matching:
                return [self.missing(change, matching)]
            seen += here
            tried |= names
            names = {name for place in here for name in place.read_from} - tried
        return [self.missing(change, seen)]

    def launch(self, change: Change, together: Sequence[Change], words: Sequence[str]) -> Unplaced | None:
        """Make a change of how the script is launched; returns what cannot be made.

        Args:
            change: of one setting.
            together: all changes of the launch.
            words: that start the script.
        """
        from bisect_cfg.recommend.edits import _launch

        several = not any(other.name == _launch.PROCESSES and other.new == 1 for other in together)
        made = _launch.changed(change, several, words, self.yamls)
        if made is None:
            return Unplaced(change.name, _launch.place(change), _launch.advice(change))
        place, text = made
        if isinstance(place, Path):
            self._write(place, text)
        else:
            self.flags.append(Edit(None, 0, place, text, (change.name,)))
        return None

    def add(self, changes: Sequence[Change]) -> bool:
        """Add settings that the user does not set so far; returns whether that can be done."""
        from bisect_cfg.recommend.edits import _command_line, _python

        values = {change.name: change.new for change in changes}
        if any("." in name for name in values):
            return False
        for path in sorted(self.yamls, key=lambda path: -_language(path).count(self.yamls[path], self.fields)):
            text = _language(path).added(path, self.yamls[path], values, self.fields)
            if text is not None:
                self._write(path, text)
                return True
        found = _python.added(self.python, values, self.config, self.built) if self.python else None
        if found is not None:
            self._write(*found)
            return True
        if _command_line.names_in(self.arguments) & set(self.fields):
            self.flags.append(Edit(None, 0, "", _command_line.added(values), tuple(values)))
            return True
        return False

    def missing(self, change: Change, seen: Sequence[Occurrence]) -> Unplaced:
        """Why a change cannot be made, and what to write instead."""
        from bisect_cfg.recommend.edits import _python

        where = " and ".join(self._at(place.path, place.line) for place in seen[:SHOWN_PLACES])
        if len(seen) > SHOWN_PLACES:
            where += f" and {len(seen) - SHOWN_PLACES} more"
        value = _python.literal(change.new)
        wanted = f"{change.key}={value}"
        if len(seen) == 1 and seen[0].matches:
            return Unplaced(change.name, f"{where} cannot be changed alone", f"set {change.name} to {value}")
        if any(place.matches for place in seen):
            return Unplaced(change.name, f"it is given at {where}", f"set {change.name} to {value} where it is meant")
        if seen:
            return Unplaced(change.name, f"{where} computes it: {seen[0].shown}", f"write {wanted} there")
        place = bool(self.python) and "." not in change.name
        call = _python.config_call(self.python, self.config, self.built) if place else None
        add = f"add {wanted} to {self.config}(...) at {self._at(*call)}" if call else f"set {change.name} to {value}"
        for given in _python.unpacked(self.python, self.config, self.built)[-1:] if call else ():
            # Python takes no keyword twice, and it may be in there.
            instead = f'**{{**{given}, "{change.key}": {value}}}'
            add = f"write {instead} in place of **{given} in {self.config}(...) at {self._at(*call)}"
        return Unplaced(change.name, "it is not a plain value in your files", add)

    def _at(self, path: Path, line: int) -> str:
        return str(place_in(self.texts.get(path, ""), line, path) or f"{path}:{line}")

    def _flag(self, change: Change, names: Collection[str]) -> bool:
        from bisect_cfg.recommend.edits import _command_line

        if change.name in self.assigned:  # it was set after the command line was read
            return False
        found = _command_line.change_in(self.arguments, change, names, self.switches)
        if found is not None:
            self.flags.append(Edit(None, 0, *found, (change.name,)))
        return found is not None

    def _places(self, change: Change, names: Collection[str]) -> list[Occurrence]:
        """Those that decide: in YAML, if the value is there, else in Python."""
        from bisect_cfg.recommend.edits import _python

        assigned = change.name in self.assigned
        inside = [
            place
            for path, text in self.yamls.items()
            for place in _language(path).places(path, text, change, names)
            if not assigned
        ]
        if any(place.matches for place in inside) or not self.python:
            return inside
        return [*inside, *_python.places(self.python, change, names, self.config, assigned, self.built)]

    def _write(self, path: Path, text: str) -> None:
        (self.yamls if path in self.yamls else self.python)[path] = text


def _language(path: Path) -> ModuleType:
    """What reads and changes a file that configures a run."""
    if path.suffix == ".toml":
        from bisect_cfg.recommend.edits import _toml

        return _toml
    from bisect_cfg.recommend.edits import _yaml

    return _yaml


def configures(path: Path, fields: Collection[str]) -> bool:
    """Whether a file holds a training config: a mapping of which half at least are fields of it. What a model is saved
    with holds some of them too."""
    text = _read([path]).get(path, "")

    def holds(value: Value) -> bool:
        if isinstance(value, list):
            return any(map(holds, value))
        if not isinstance(value, dict):
            return False
        own = sum(key in fields for key in value)
        return (0 < len(value) <= 2 * own and SAVED not in value) or any(map(holds, value.values()))

    return holds(_language(path).read(path, text))


def _hunks(path: Path, before: str, after: str, alone: Sequence[tuple[tuple[str, ...], _Files]]) -> list[Edit]:
    """What changes in one file, a line or a block at a time.

    Args:
        path: of the file.
        before: its text.
        after: what it should be.
        alone: (names, the files as these settings alone change them).
    """
    old, new = _lines(before), _lines(after)
    touched = [
        (name, start, end)
        for names, files in alone
        for start, end, _, _ in _blocks(old, _lines(files.texts[path]))
        for name in names
    ]
    found = []
    for start, end, begin, stop in _blocks(old, new):
        names = [n for n, s, e in touched if max(s, start) < min(e, end) or (s == e and start <= s <= end)]
        texts = ("".join(lines).rstrip("\r\n") for lines in (old[start:end], new[begin:stop]))
        place = place_in(after, begin + 1, path)
        line, cell = (start + 1, None) if place is None else (place.line, place.cell)
        found.append(Edit(path, line, *texts, tuple(dict.fromkeys(names)), cell))
    return found


def _blocks(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """(from, to) of the lines that change in both texts; lines that stand for one another are taken one at a time."""
    found = []
    for what, start, end, begin, stop in _matched(before, after):
        if what == "equal":
            continue
        left, right = before[start:end], after[begin:stop]
        same_count = len(left) == len(right)
        heads = [(what, 0, len(left), 0, len(right))] if same_count else _matched(*map(_heads, (left, right)))
        for inner, s, e, b, t in heads:
            if same_count or inner == "equal":
                found += [(start + s + k, start + s + k + 1, begin + b + k, begin + b + k + 1) for k in range(e - s)]
            else:
                found.append((start + s, start + e, begin + b, begin + t))
    return found


def _matched(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    return difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()


def _heads(lines: Sequence[str]) -> list[str]:
    """What lines begin with, which is the name of what is set there."""
    return [re.match(r"\W*\w*", line).group() for line in lines]


def _lines(text: str) -> list[str]:
    """Lines as editors and `patch` count them; `str.splitlines` ends one at a form feed too."""
    return list(io.StringIO(text, newline="\n"))


def _read(paths: Iterable[Path]) -> dict[Path, str]:
    """The texts of those files that are text, with the line ends they have."""
    found: dict[Path, str] = {}
    for path in paths:
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                found.setdefault(path, stream.read())
        except (OSError, UnicodeDecodeError):
            continue
    return found
