"""Wheels of stand-ins, and an environment that has one: what the studies of package versions are made with."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: str = "") -> Path:
    """A wheel of some text files.

    Args:
        folder: where it is put.
        name: of the package.
        version: of the package.
        files: path in site-packages -> text.
        requires: a package that it asks for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    asks = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        **files,
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asks}",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: study\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**files, record: "".join(f"{one},,\n" for one in (*files, record))}.items():
            archive.writestr(inside, text)
    return path


def environment(folder: Path, *wheels: Path) -> None:
    """An environment, ``folder/env``, with what the interpreter has that runs this, and some wheels besides."""
    from uv import find_uv_bin

    uv, python = find_uv_bin(), str(folder / "env" / "bin" / "python")
    here = subprocess.run([uv, "pip", "freeze", "--python", sys.executable], capture_output=True, text=True, check=True)
    lines = [line for line in here.stdout.splitlines() if not line.startswith("-e") and "bisect" not in line]
    (folder / "environment.txt").write_text("\n".join([*lines, *(str(one.resolve()) for one in wheels)]) + "\n")
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder / "env")], check=True)
    install = [uv, "pip", "install", "-q", "--no-deps", "--python", python, "-r", str(folder / "environment.txt")]
    subprocess.run(install, check=True)
