"""Write the edits of a study into the user's own files, and prove them.

The files must be as they were when the study read them. All new texts are written beside the files first and then put
in their place, each by one rename: whoever is killed leaves the old file or the new one. Then the script is run up to
its configuration; where that does not have the recommended values, the files are put back.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.configuration import Name, Value, present
from bisect_cfg.common.files import read_text
from bisect_cfg.common.words import short_path
from bisect_cfg.errors import InputError
from bisect_cfg.rewrite.edits import hash_of
from bisect_cfg.rewrite.recommended import Change, Recommended, ShownEdit
from bisect_cfg.rewrite.spans import Span, plain, same, splice
from bisect_cfg.targets.captured import look_up

Built = Mapping[str, Value]
"""Full name of a setting -> the value that the script's configuration has, encoded."""

_COMMENT = re.compile(r"(?:^|\s)#(?P<text>.*)")


class Rewrite(NamedTuple):
    """A file, by the path that result.json has, with its text and that with the edits: the same if they are there."""

    path: str
    before: str
    after: str

    @property
    def file(self) -> Path:
        """The file itself, behind any link to it."""
        return Path(os.path.realpath(self.path))


def rewrites_of(found: Recommended) -> list[Rewrite]:
    """The files that a recommendation changes, in the folder from which their paths lead.

    Raises:
        InputError: one is not as the study read it, or an edit cannot be written.
    """
    made = []
    for path in dict.fromkeys(edit.file for edit in found.edits if edit.file is not None):
        edits = [edit for edit in found.edits if edit.file == path]
        by_hand = "\n".join(["Change it by hand:", *(f"{_where(edit)}: {edit.new.strip()}" for edit in edits)])
        spans = [Span(edit.start or 0, edit.end or 0, edit.text) for edit in edits if edit.text is not None]
        if len(spans) < len(edits):
            raise InputError(f"An edit of {path} cannot be written.", by_hand)
        try:
            text = read_text(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
        after = text if hash_of(text) == edits[0].after else splice(text, spans)
        if hash_of(after) != edits[0].after or (after != text and hash_of(text) != edits[0].before):
            message = f"{path} is not the file that the study read: it was changed since. Nothing was written."
            raise InputError(message, by_hand)
        made.append(Rewrite(path, text, after))
    return made


def apply(
    found: Recommended, build: Callable[[], Built] | None, agree: Callable[[], bool], say: Callable[[str], None]
) -> int:
    """Show the edits of a recommendation, write them into the files, and see that the script then has its values.

    Args:
        found: the recommendation of result.json.
        build: runs the script up to its configuration; None where it is about a later training of it, which begins
            when those before it are over.
        agree: asks whether the files shall be written.
        say: prints a line.

    Returns:
        The exit status: 0 the files have the edits; 1 they have not: nobody agreed, or they were put back.

    Raises:
        InputError: see `rewrites_of`; or the script does not come to its configuration: the files were put back.
    """
    rewrites = rewrites_of(found)
    for line in told(found):
        say(line)
    new = [one for one in rewrites if one.before != one.after]
    if not new:
        if rewrites:
            say("The change is there already: nothing to write.")
        return 0 if rewrites or found.command else 1
    if not agree():
        say("Nothing was written.")
        return 1
    paths = ", ".join(short_path(one.path) for one in new)
    try:
        _put(new)
        built: Built = {}
        if build is not None:
            say("Running your script up to its configuration ...")
            built = build()
        wrong, unseen = differences(found, built)
    except BaseException:
        _put_back(new)
        raise
    if not wrong:
        say(f"Written: {paths}." + ("" if unseen else " Your script builds the recommended configuration."))
        if unseen:
            say(f"Not seen in the configuration of your script, so not compared: {', '.join(unseen)}.")
        return 0
    _put_back(new)
    for name, has in wrong.items():
        say(f"{name} is {has!r} in the configuration of your script, not {found.changes[name].to!r}.")
    say(f"So this is not the place where it is set. Put back as it was: {paths}.")
    return 1


def differences(found: Recommended, built: Built) -> tuple[dict[str, Value], list[str]]:
    """Of the settings that edits of files change, those that have another value than recommended, with that value; and
    those of which nothing was seen."""
    edited = dict.fromkeys(name for edit in found.edits if edit.file is not None for name in edit.settings)
    wrong, unseen = dict[str, Value](), list[str]()
    for name in edited:
        space, key = Name.of(name)
        known = {full.removeprefix(f"{space}."): value for full, value in built.items() if full.startswith(f"{space}.")}
        if not known or (space in ("launch", "script") and key not in known):
            unseen.append(name)
            continue
        has, wanted = plain(known.get(key, look_up(known, key))), plain(found.changes[name].to)
        if not same(has, wanted) and not (has is None and wanted in (None, "(unset)")):
            wrong[name] = has
    return wrong, unseen


# ---------------------------------------------------------------------------------------------------------- in words


def told(found: Recommended) -> Iterator[str]:
    """The edits of a recommendation, one place after the other, and what is to be done by hand."""
    for edit in found.edits:
        if edit.file is not None:
            yield _where(edit)
            yield from (f"  - {line}" for line in edit.old.splitlines())
            yield from (f"  + {line}" for line in edit.new.splitlines())
            yield from stale_comments(edit, found.changes)
    for missing in found.unplaced:
        yield f"By hand: {missing.add} ({missing.why})."
    if found.command:
        yield "Start your run like this from now on:"
        yield f"  {found.command}"


def stale_comments(edit: ShownEdit, changes: Mapping[str, Change]) -> Iterator[str]:
    """Comments on the new lines that speak of the setting or of its old value."""
    for comment in filter(None, map(_COMMENT.search, edit.new.splitlines())):
        for name in edit.settings:
            words = {name.rpartition(".")[2], str(changes[name].before)}
            if any(re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", comment["text"]) for word in words):
                yield f"  Look at the comment, it may no longer be right: #{comment['text']}"
                break


def _where(edit: ShownEdit) -> str:
    cell = "" if edit.cell is None else f", cell {edit.cell}, line {edit.line}"
    return f"{short_path(present(edit.file))}{cell or ':' + str(edit.line)}"


# ---------------------------------------------------------------------------------------------------------- on the disk


def _put_back(rewrites: Sequence[Rewrite]) -> None:
    """Put the old texts back, but for files that somebody has changed since."""
    ours = [one for one in rewrites if one.file.exists() and read_text(one.file) == one.after]
    _put([Rewrite(one.path, one.after, one.before) for one in ours])


def _put(rewrites: Sequence[Rewrite]) -> None:
    """Write all new texts beside the files, with their mode and owner, then put each in its place.

    Raises:
        InputError: one cannot be written, or is not what it was.
    """
    beside = [one.file.with_name(f".{one.file.name}.bisect-cfg") for one in rewrites]
    path = ""
    try:
        for new, (path, _, after) in zip(beside, rewrites, strict=True):
            new.unlink(missing_ok=True)
            with open(new, "x", encoding="utf-8", newline="") as stream:
                stream.write(after)
                stream.flush()
                os.fsync(stream.fileno())
            shutil.copymode(path, new)
            with contextlib.suppress(OSError):
                shutil.chown(new, os.stat(path).st_uid, os.stat(path).st_gid)
        for new, one in zip(beside, rewrites, strict=True):
            path = one.path
            if read_text(path) != one.before:
                raise OSError(0, "it was changed meanwhile")
            os.replace(new, one.file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {why}.", "Your files are as they were.") from None
    finally:
        for new in beside:
            new.unlink(missing_ok=True)
