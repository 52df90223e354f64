"""The folder of a study: whose it is, whether it still fits, who works in it.

``study.json`` says what the study is of (the script and a hash of it, its arguments, the options that change what
trials mean) and what was decided on the way (the start level, settings moved into the good configuration). Trials of
a script that has changed since are no evidence, so a study that no longer fits is refused, never mixed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import make_folder, private, write_json
from bisect_cfg.targets.script import Script, hash_of


def default_folder(script: Script) -> Path:
    """``bisect-cfg-studies/NAME`` here, or NAME-2, ... where another script has that name."""
    base = Path("bisect-cfg-studies")
    for number in range(1, 1000):
        folder = base / (script.name if number == 1 else f"{script.name}-{number}")
        state = _read_state(folder)
        if state is None:
            return folder
        same = {"script", "arguments"}
        if all(state["target"].get(key) == script.identity()[key] for key in same):
            return folder
    raise InputError("bisect-cfg-studies/ has a thousand studies of this name.", "Name one with --study DIR.")


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / "study.json").read_text())
        if not (isinstance(state, dict) and all(isinstance(state.get(key), dict) for key in ("target", "options"))):
            raise ValueError("it does not describe a study")
        _check_types(state)
        return state
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / 'study.json'} cannot be read: {error}.", "Name another folder with --study, or remove it."
        ) from None


def _check_types(state: Mapping[str, Any]) -> None:
    """Raises ValueError where a value is none that we write: somebody edited the file, or it is not ours."""
    target, tables = state["target"], ("libraries", "modules")
    right = isinstance(target.get("script"), str) and isinstance(target.get("arguments"), list)
    right = right and all(isinstance(one, str) for one in target["arguments"])
    right = right and {"script_hash", "good_file_hash"} <= target.keys()
    for table in (target.get("files", {}), *(state.get(name, {}) for name in tables)):
        right = right and isinstance(table, dict) and all(isinstance(one, (str, type(None))) for one in table.values())
    right = right and isinstance(state.get("moved", []), list) and isinstance(state.get("level", ""), (str, type(None)))
    if not right:
        raise ValueError("it does not describe a study")


@contextlib.contextmanager
def open_study(
    script: Script,
    folder: Path | None,
    options: Mapping[str, Any],
    restart: bool = False,
    libraries: Mapping[str, str] | None = None,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Open or make the study folder; it is locked while we work in it.

    Args:
        script: the target.
        folder: where; None for the default.
        options: those that change what the trials mean; kept with the study and compared when it is resumed.
        restart: put an old study aside and begin anew.
        libraries: name -> version of what the script trains with; another version is another study.

    Yields:
        The folder, and the study's state (see `save_state`).

    Raises:
        InputError: not writable, of another script, changed since, or in use.
    """
    folder = (folder or default_folder(script)).absolute()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder.", "Name another folder with --study.")
    try:
        if restart and folder.exists():
            _put_aside(folder, script)
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        make_folder(folder / "trials")
        lock = open(folder / "lock", "w", opener=private)
    except OSError as error:
        raise InputError(
            f"The study folder {folder} cannot be written: {error.strerror}.",
            "Name another one with --study DIR.",
        ) from None
    with lock:
        _take(lock, folder)
        state = _read_state(folder)
        if state is None:
            if any(entry.name not in ("trials", "lock") for entry in folder.iterdir()):
                raise InputError(
                    f"{folder} is not empty and holds no study.", "Name an empty or new folder with --study."
                )
            state = {"target": script.identity(), "options": dict(options), "libraries": dict(libraries or {})}
            save_state(folder, state)
        _check_target(folder, script)
        _check_unchanged(folder, state, script, options, libraries or {})
        yield folder, state


def _take(lock: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            f"Another bisect-cfg is working in {folder}.", "Wait for it, or name another folder with --study."
        ) from None


def _put_aside(folder: Path, script: Script) -> None:
    """Rename the old study, unless it is another script's or somebody works in it."""
    _check_target(folder, script)
    with open(folder / "lock", "w", opener=private) as lock:
        _take(lock, folder)
        names = (folder.with_name(f"{folder.name}.old-{i}") for i in range(1, 1000))
        folder.rename(next(path for path in names if not path.exists()))


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the study's state, all or nothing."""
    write_json(folder / "study.json", state)


def write_command(folder: Path, command: Mapping[str, Any]) -> None:
    """Keep how the study was last asked for, so that `bisect-cfg recommend` can ask again."""
    write_json(folder / "command.json", json.loads(json.dumps(command, default=str)))


def read_command(folder: Path) -> dict[str, Any]:
    """How the study was last asked for.

    Raises:
        InputError: it is no study, or one that was never finished.
    """
    try:
        command = json.loads((folder / "command.json").read_text())
        return {name: command[name] for name in ("target", "arguments", "python", "folder", "options")}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if _read_state(folder) is None:
        raise InputError(f"{folder} holds no study.", "Name the folder that `bisect-cfg bisect` has written.")
    raise InputError(
        f"The study in {folder} has not come to an answer yet.", "Finish it with `bisect-cfg bisect` first."
    )


def _check_target(folder: Path, script: Script) -> None:
    state = _read_state(folder)
    if state is None:
        return
    theirs, ours = state["target"], script.identity()
    if theirs["script"] != ours["script"]:
        raise InputError(
            f"{folder} is a study of another script: {theirs['script']}.", "Name another folder with --study DIR."
        )
    if theirs["arguments"] != ours["arguments"]:
        raise InputError(
            f"{folder} is a study of the same script with other arguments: {' '.join(theirs['arguments']) or '(none)'}.",
            "Name another folder with --study DIR.",
        )


def _check_unchanged(
    folder: Path,
    state: dict[str, Any],
    script: Script,
    options: Mapping[str, Any],
    libraries: Mapping[str, str],
) -> None:
    theirs, ours = state["target"], script.identity()
    changed = [
        what
        for key, what in (("script_hash", f"the script {script.path}"), ("good_file_hash", "the good file"))
        if theirs[key] != ours[key]
    ]
    changed += [f"the file {path}" for path in _changed_files(state)]
    changed += [
        f"{name} ({version} -> {theirs_now})"
        for name, version in state.get("libraries", {}).items()
        if (theirs_now := libraries.get(name)) != version
    ]
    for key, value in options.items():
        if state["options"].get(key) != value:
            changed.append(f"--{key}")
    good_side = {"the good file", "--good", "--only", "--except", "--failure"}
    if changed and set(changed) <= good_side and _only_reproduced(folder):
        # The good configuration and the choice of factors were typed wrong, and nothing rests on them yet.
        state.update(target=ours, options=dict(options))
        save_state(folder, state)
        return
    if changed:
        raise InputError(
            f"Since the study in {folder} was begun, {' and '.join(changed)} changed: its trials say nothing about "
            "the new state.",
            "Start anew with --restart (the old study is kept beside it), or name another folder with --study DIR.",
        )


def _changed_files(state: Mapping[str, Any]) -> list[str]:
    """Files of the user's that the study rests on and that are not what they were."""
    known = {**state["target"].get("files", {}), **state.get("modules", {})}
    return [path for path, digest in known.items() if not Path(path).is_file() or hash_of(Path(path)) != digest]


def _only_reproduced(folder: Path) -> bool:
    """Whether no trial but the first run of the user's own command has been started."""
    return all(path.name.split(".")[0] == "0" for path in (folder / "trials").iterdir())
