"""Environments are built once, by real uv, of packages that are wheels in a folder."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tools import wheel

from bisect_cfg.errors import InputError
from bisect_cfg.runner.environments import COMPLETE, CannotBuild, Environments, prune, size_of
from bisect_cfg.targets.packages import installed_by

pytestmark = pytest.mark.training


@pytest.fixture
def cache(tmp_path: Path) -> Environments:
    return Environments(tmp_path / "cache", sys.executable)


def says(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_it_has_what_was_asked_for_and_is_built_once(tmp_path) -> None:
    lines = [wheel(tmp_path, "one", "1.0", requires=("absent>=3",)), wheel(tmp_path, "two", "2.0")]
    told: list = []
    environments = Environments(tmp_path / "cache", sys.executable, told.append)
    first = environments.of(lines)
    assert says(first.python, "import one, two; print(one.version, two.version)") == "1.0 2.0"
    assert set(installed_by(first.python).distributions) == {"one", "two"}
    assert environments.of(reversed(lines)).folder == first.folder
    assert told == [sorted(lines)] and environments.built == [first]
    other = environments.of([lines[0], wheel(tmp_path, "two", "2.1")])
    again = environments.of([wheel(tmp_path, "one", "1.0", "version = 'made again'"), lines[1]])
    assert says(other.python, "import two; print(two.version)") == "2.1"
    assert says(again.python, "import one; print(one.version)") == "made again"
    folders = [one.folder for one in (first, other, again)]
    assert len(set(folders)) == 3 and list(environments.used) == folders


@pytest.mark.slow
def test_several_that_want_the_same_one_build_it_once(tmp_path) -> None:
    lines, caches = [wheel(tmp_path, "one", "1.0")], [Environments(tmp_path / "cache", sys.executable) for _ in "1234"]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda cache: cache.of(lines), caches))
    assert sum(len(cache.built) for cache in caches) == 1


def test_one_that_was_interrupted_is_built_anew(tmp_path, cache) -> None:
    lines = [wheel(tmp_path, "one", "1.0")]
    folder = cache.of(lines).folder
    (folder / COMPLETE).unlink()
    next(folder.glob("lib/*/site-packages/one.py")).unlink()
    assert says(cache.of(lines).python, "import one; print(one.version)") == "1.0"


def failing(words: str, *, online: bool = False):
    """uv where installing ends with these words; unless it is told to do without a network, if `online`."""

    def run(command, log: Path) -> int:
        fails = "venv" not in command and not (online and "--offline" in command)
        log.write_text(f"error: {words}\n" if fails else "")
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
        return 2 if fails else 0

    return run


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ("no version of one==7", CannotBuild, "one==7"),
        ("Failed to fetch: `https://...`\n dns error", CannotBuild, "no network"),
        ("failed to write: No space left on device (os error 28)", InputError, "disk is full"),
    ],
)
def test_why_one_cannot_be_built_is_said_and_nothing_of_it_is_left(tmp_path, words, error, said) -> None:
    with pytest.raises(error, match=said):
        Environments(tmp_path / "cache", sys.executable, run=failing(words)).of(["one==1"])
    left = [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]
    assert left == [], "half of one would keep a disk full"


def test_without_a_network_what_uv_has_is_used(tmp_path) -> None:
    run = failing("Failed to fetch: `https://...`\n dns error", online=True)
    assert Environments(tmp_path / "cache", sys.executable, run=run).of(["one==1"]).seconds is not None


def test_pruning_removes_what_was_not_used_for_longest_and_what_one_that_was_killed_has_left(tmp_path, cache) -> None:
    folders = [cache.of([wheel(tmp_path, "one", f"{number}.0")]).folder for number in range(3)]
    for number, folder in enumerate((folders[1], folders[2], folders[0])):
        os.utime(folder / COMPLETE, (number, number))
    assert prune(cache.folder, sum(map(size_of, (folders[2], folders[0])))) == [folders[1]]
    (cache.folder / "ab" / "bin").mkdir(parents=True)
    for suffix in (".lock", ".log", ".txt"):
        (cache.folder / f"ab{suffix}").touch()
    with (cache.folder / "ab.lock").open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert set(prune(cache.folder)) == {folders[2], folders[0]}
        assert (cache.folder / "ab").exists(), "somebody is at it"
    prune(cache.folder)
    assert list(cache.folder.iterdir()) == []
