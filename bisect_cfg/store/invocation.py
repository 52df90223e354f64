"""How a study was last asked for, so that `bisect-cfg recommend` can ask again; and whether it was asked for here.

``command.json`` is written before the first run, and may be lost: the same `bisect-cfg bisect` command writes it again,
without a trial.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from bisect_cfg.common.json_files import JsonObject, write_json
from bisect_cfg.errors import InputError
from bisect_cfg.store.folder import check_entries
from bisect_cfg.store.state import STATE_FILE, read_state


def write_command(folder: Path, command: JsonObject) -> None:
    """Keep how the study was last asked for: "target", "arguments", "folder" (where it was asked), "options", and
    "lines" (see `lines_of`)."""
    made = {**json.loads(json.dumps(command, default=str)), "made": folder.stat().st_ino}
    write_json(folder / "command.json", made)


def written_here(folder: Path, command: JsonObject) -> bool:
    """Whether a study's command, as `read_command` found it, was written by this user into this very folder.

    A folder's number in the file system stays the same when it is renamed and when the machine starts anew. A copy has
    another one, and so has what was unpacked or downloaded, whatever it says of itself.
    """
    mine = os.getuid()
    try:
        for path in (folder, folder / "command.json", folder / STATE_FILE):
            known = os.stat(path)
            if known.st_uid != mine or known.st_mode & stat.S_IWOTH:
                return False
        return bool(command["made"] == folder.stat().st_ino)
    except OSError:
        return False


def lines_of(folder: Path) -> dict[str, str]:
    """What is typed: "own", the user's own command; "bisect", to ask for the study again. Empty if it is not known."""
    try:
        lines = json.loads((folder / "command.json").read_text())["lines"]
        return {name: lines[name] for name in ("own", "bisect") if isinstance(lines[name], str)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_command(folder: Path) -> JsonObject:
    """How the study was last asked for.

    Raises:
        InputError: it is no study, or one that was never finished.
    """
    check_entries(folder)
    try:
        (folder / "result.json").stat()
        command = json.loads((folder / "command.json").read_text())
        known = ("target", "arguments", "folder", "options")
        return {**{name: command[name] for name in known}, "made": command.get("made")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    if read_state(folder) is None:
        raise InputError(f"{folder} holds no study.", "Name the folder that `bisect-cfg bisect` has written.")
    raise InputError(f"The study in {folder} has no answer yet.", "Finish it with `bisect-cfg bisect` first.")
