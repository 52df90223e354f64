"""Environments are built once, by real uv, of packages that are wheels in a folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tools import wheel

from bisect_cfg.capture.distributions import installed_by
from bisect_cfg.errors import InputError
from bisect_cfg.runner import environments as module
from bisect_cfg.runner.environments import COMPLETE, CannotBuild, Environments

pytestmark = pytest.mark.training


def says(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_it_has_what_was_asked_for_and_is_built_once(tmp_path):
    lines = [wheel(tmp_path, "one", "1.0", requires=("absent>=3",)), wheel(tmp_path, "two", "2.0")]
    told: list = []
    environments = Environments(tmp_path / "cache", sys.executable, told.append)
    first = environments.of(lines)
    assert says(first.python, "import one, two; print(one.version, two.version)") == "1.0 2.0"
    assert set(installed_by(first.python).distributions) == {"one", "two"}
    assert environments.of(reversed(lines)).folder == first.folder
    assert told == [sorted(lines)] and environments.built == [first]
    second = environments.of([lines[0], wheel(tmp_path, "two", "2.1")])
    assert second.folder != first.folder
    assert says(second.python, "import two; print(two.version)") == "2.1"


def test_a_wheel_that_was_made_again_is_another_one(tmp_path):
    environments = Environments(tmp_path / "cache", sys.executable)
    first = environments.of([wheel(tmp_path, "one", "1.0")])
    line = wheel(tmp_path, "one", "1.0", "version = 'made again'")
    second = environments.of([line])
    assert first.folder != second.folder
    assert says(second.python, "import one; print(one.version)") == "made again"


@pytest.mark.slow
def test_several_that_want_the_same_one_build_it_once(tmp_path):
    lines, caches = [wheel(tmp_path, "one", "1.0")], [Environments(tmp_path / "cache", sys.executable) for _ in "1234"]
    threads = [threading.Thread(target=cache.of, args=(lines,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(cache.built) for cache in caches) == 1


@pytest.mark.slow
def test_what_one_has_compiled_another_need_not(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    environments = Environments(tmp_path / "cache", sys.executable)
    both = [[wheel(tmp_path, "one", "1.0"), wheel(tmp_path, "two", version)] for version in ("1.0", "2.0")]
    first, second = map(environments.of, both)
    says(first.python, "import one, two")
    environments.of(both[1])
    compiled = {path.name.partition(".")[0]: path for path in second.folder.rglob("__pycache__/*.pyc")}
    assert "one" in compiled and "two" not in compiled
    assert compiled["one"].samefile(next(first.folder.rglob("one.*.pyc")))
    assert says(second.python, "import one, two; print(one.version, two.version)") == "1.0 2.0"
    assert says(first.python, "import one, two; print(one.version, two.version)") == "1.0 1.0"


def test_one_that_was_interrupted_is_built_anew(tmp_path):
    environments = Environments(tmp_path / "cache", sys.executable)
    lines = [wheel(tmp_path, "one", "1.0")]
    folder = environments.of(lines).folder
    (folder / COMPLETE).unlink()
    next(folder.glob("lib/*/site-packages/one.py")).unlink()
    assert says(environments.of(lines).python, "import one; print(one.version)") == "1.0"


def test_what_cannot_be_built_leaves_nothing(tmp_path):
    environments = Environments(tmp_path / "cache", sys.executable)
    with pytest.raises(CannotBuild, match="missing"):
        environments.of([f"missing @ {(tmp_path / 'missing-1.0-py3-none-any.whl').as_uri()}"])
    assert [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


def test_without_uv_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as error:
        Environments(tmp_path / "cache", sys.executable).of(["one==1"])
    assert "pip install uv" in error.value.advice


@pytest.mark.slow
def test_without_a_network_what_uv_has_is_used(tmp_path):
    asked: list = []

    def run(command, log):
        asked.append(command)
        offline = "--offline" in command
        log.write_text("" if offline else "error: Failed to fetch: `https://...`\n dns error\n")
        (Path(command[-2 if offline else -1]) / "bin").mkdir(parents=True, exist_ok=True) if "venv" in command else None
        return 0 if offline or "venv" in command else 2

    environments = Environments(tmp_path / "cache", sys.executable, run=run)
    assert environments.of(["one==1"]).seconds is not None
    assert ["--offline" in command for command in asked] == [False, False, True]


def test_a_full_disk_is_said(tmp_path):
    def run(command, log):
        if "venv" in command:
            Path(command[-1]).mkdir()
            log.write_text("")
            return 0
        log.write_text("error: failed to write: No space left on device (os error 28)\n")
        return 2

    with pytest.raises(InputError, match="disk is full"):
        Environments(tmp_path / "cache", sys.executable, run=run).of(["one==1"])
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()], "half of one would keep it full"


@pytest.mark.slow
def test_pruning_removes_what_one_that_was_killed_has_left(tmp_path):
    cache = tmp_path / "cache"
    (cache / "ab" / "bin").mkdir(parents=True)
    for suffix in (".lock", ".log", ".txt"):
        (cache / f"ab{suffix}").touch()
    with (cache / "ab.lock").open() as stream:
        module.fcntl.flock(stream, module.fcntl.LOCK_EX)
        module.prune(cache)
        assert (cache / "ab").exists(), "somebody is at it"
    module.prune(cache)
    assert list(cache.iterdir()) == []


def test_pruning_removes_what_was_what_was_not_used_for_longest(tmp_path):
    environments = Environments(tmp_path / "cache", sys.executable)
    lines = [[wheel(tmp_path, "one", f"{number}.0")] for number in range(3)]
    folders = [environments.of(each).folder for each in lines]
    for number, folder in enumerate((folders[1], folders[2], folders[0])):
        module.os.utime(folder / COMPLETE, (number, number))
    room = sum(map(module.size_of, (folders[2], folders[0])))
    assert module.prune(tmp_path / "cache", room) == [folders[1]]
    assert module.prune(tmp_path / "cache") == [folders[2], folders[0]]
    assert list((tmp_path / "cache").iterdir()) == []
