"""Environments of other versions than ours, for tests that are marked slow: built by uv, kept from run to run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(os.environ.get("BISECT_CFG_ENVIRONMENTS", "~/.cache/bisect-cfg-environments")).expanduser()
"""Outside the repository; what is there may be deleted."""

PYTHONS = ("3.9", "3.10", "3.11", "3.12")
"""The oldest first: the first that is installed is taken, else the first that uv can install."""

BUILDING_SECONDS = 1200


def python_of(requirements: Path) -> Path:
    """The interpreter of an environment with these requirements; it is built where it is not there yet.

    uv links its packages from uv's own cache, so that building one again takes seconds.

    Raises:
        AssertionError: it cannot be built; with what uv said.
    """
    uv = shutil.which("uv")
    assert uv is not None, "uv builds the environment: https://docs.astral.sh/uv/getting-started/installation"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    place = FOLDER / f"{requirements.parent.name}-{digest}"
    if not place.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        made = place.with_name(f"{place.name}.{os.getpid()}")
        _create(uv, made)
        _say(uv, "pip", "install", "--python", made / "bin/python", "-r", requirements)
        try:
            made.rename(place)
        except OSError:  # somebody else was faster
            shutil.rmtree(made)
    return place / "bin/python"


def _create(uv: str, place: Path) -> None:
    failed = []
    for options in (["--no-python-downloads"], []):
        for version in PYTHONS:
            done = _run(uv, "venv", "--quiet", "--relocatable", *options, "--python", version, place)
            if done.returncode == 0:
                return
            failed.append(done.stderr)
    raise AssertionError(f"no Python of {', '.join(PYTHONS)}: {failed[-1]}")


def _say(*command: object) -> None:
    done = _run(*command)
    assert done.returncode == 0, done.stderr


def _run(*command: object) -> subprocess.CompletedProcess[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()  # whose shims hide all but one version
    own = [str(path) for path in sorted(pyenv.glob("versions/*/bin"))]
    path = os.pathsep.join([*own, os.environ.get("PATH", "")])
    return subprocess.run(
        [str(word) for word in command], env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=BUILDING_SECONDS,
    )  # fmt: skip
