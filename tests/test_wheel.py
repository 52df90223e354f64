"""The wheel in an empty environment, outside of the checkout: what needs no training works without torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UV = [sys.executable, "-m", "uv"]
RENDER = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--fast", action="store_true")
if parser.parse_args().fast:
    raise RuntimeError("two workers took the same tile")
"""


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)


def uv(folder: Path, *arguments: str) -> str:
    """What uv prints, from its cache where that has everything: this environment was installed from it."""
    for offline in (["--offline"], []):
        ran = run([*UV, *arguments, *offline], folder)
        if ran.returncode == 0:
            return ran.stdout
    raise AssertionError(ran.stderr)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and what it asks for, in the versions of requirements.lock."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "bisect_cfg", folder / "source" / "bisect_cfg", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, folder / "source" / name)
    uv(folder, "build", "--wheel", "--out-dir", "dist", "source")
    (built,) = (folder / "dist").glob("*.whl")
    uv(folder, "venv", "--python", sys.executable, "venv")
    uv(folder, "pip", "install", "--python", "venv", "--constraints", "source/requirements.lock", str(built))
    return folder / "venv"


@pytest.mark.training
def test_the_wheel_works_without_torch(installed: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    of_training = {requirement.partition(">")[0] for requirement in project["optional-dependencies"]["train"]}
    packages = json.loads(uv(tmp_path, "pip", "list", "--python", str(installed), "--format", "json"))
    assert not of_training & {package["name"] for package in packages}
    assert list(installed.glob("lib/python*/site-packages/bisect_cfg/py.typed"))

    def tool(*arguments: str, status: int = 0) -> str:
        ran = run([str(installed / "bin" / "bisect-cfg"), *arguments], tmp_path)
        assert ran.returncode == status, ran.stdout + ran.stderr
        return ran.stdout

    assert tool("--version").split()[-1] == project["version"]
    (tmp_path / "render.py").write_text(RENDER)
    command = (str(installed / "bin" / "python"), "render.py", "--fast")
    assert "CAUSE   fast = True" in tool("bisect", "--study", "study", "--no-recommend", "--", *command)
    assert tool("report", "study", "--format", "html").strip() == "study/report.html"
    (tmp_path / "train.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert "[gpu-out-of-memory]" in tool("explain", "train.log")
    assert "torch is not installed in this environment" in tool("doctor", status=1)
