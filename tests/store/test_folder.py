"""The folder of a study: which one, whose it is, who works in it, and that one which is refused stays as it was."""

from __future__ import annotations

import os

import pytest
from targets import Target

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.errors import InputError
from bisect_cfg.store.encoding import QUESTION
from bisect_cfg.store.folder import default_folder, is_at_work, open_study
from bisect_cfg.store.state import State, read_state
from bisect_cfg.store.store import Store


@pytest.fixture
def target(tmp_path, monkeypatch) -> Target:
    monkeypatch.chdir(tmp_path)
    return Target(tmp_path)


def opened(target, folder=None, written=(), storage=None, restart=False, **now):
    now = State(target.identity(), **{"options": {}, **now})
    return open_study(target, now, folder, storage=storage, restart=restart, written=lambda folder: written)


def refused(target, folder, *words: str, **studied) -> None:
    with pytest.raises(InputError) as error, opened(target, folder, **studied):
        pass
    for word in words:
        assert word in f"{error.value.message} {error.value.advice}"


def run(store: Store, purpose: Purpose) -> None:
    number = store.begin({}, {QUESTION: purpose.value, "purpose": purpose.value}).number
    store.finish(number, {"outcome": "fail"}, Outcome.FAIL)


def test_another_script_of_that_name_gets_the_next_folder(target, tmp_path) -> None:
    (tmp_path / "other").mkdir()
    other = Target(tmp_path / "other")
    with opened(target) as (first, *_), opened(other) as (second, *_):
        assert (first.name, second.name) == ("train", "train-2")
    assert (default_folder(target).name, default_folder(other).name) == ("train", "train-2")
    target.arguments = ["--fast"]
    assert default_folder(target).name == "train-3"


def test_one_works_in_it_and_writes_to_its_study_at_a_time(target, tmp_path) -> None:
    folder, address = tmp_path / "s", f"sqlite:///{tmp_path}/shared.db"
    with opened(target, folder, storage=address) as (_, state, store):
        assert is_at_work(folder)
        for restart in (False, True):
            refused(target, folder, f"Another bisect-cfg (process {os.getpid()}) is working in", restart=restart)
    with store.alive():  # as Optuna's tools find it, elsewhere
        refused(target, folder, f"Process {os.getpid()} is working in the study '{state.study}'", storage=address)
    assert not is_at_work(folder)
    with opened(target, folder, storage=address):
        pass


def test_a_shared_storage_has_one_study_for_each_folder(target, tmp_path) -> None:
    """And one more after a restart."""
    address = f"sqlite:///{tmp_path}/shared.db"

    def name_in(folder: str, runs: int, **studied) -> str:
        with opened(target, tmp_path / folder, storage=address, **studied) as (_, _, store):
            assert store.count() == runs
            run(store, Purpose.BAD_BASELINE)
            return store.study.study_name

    first, second, anew = name_in("one", 0), name_in("two", 0), name_in("two", 0, restart=True)
    assert first.startswith("train-") and len({first, second, anew}) == 3
    assert name_in("one", 1) == first and name_in("two", 1) == anew


@pytest.mark.parametrize("name", ["s", "a?b#c", "{x} 100%20 ~", "a:b@c"])
def test_a_study_goes_on_as_it_was_begun(target, tmp_path, name: str) -> None:
    same = {"options": {"only": []}, "libraries": {"trl": "1"}}
    with opened(target, tmp_path / name, gpus=["A", "B"], **same) as (folder, begun, store):
        assert begun == State(target.identity(), {"only": []}, {"trl": "1"}, ["A", "B"])
        run(store, Purpose.BAD_BASELINE)
    with opened(target, folder, **same) as (_, again, store):
        assert again == begun and store.count() == 1 and (folder / "study.db").exists()


@pytest.mark.parametrize("earlier", [False, True])
def test_a_restart_keeps_the_old_study_beside_it(target, tmp_path, earlier: bool) -> None:
    if earlier:
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "study.json").write_text("{}")
        refused(target, tmp_path / "s", "earlier version", "--restart")
    for number in range(3):
        with opened(target, tmp_path / "s", restart=True) as (folder, _, store):
            assert store.count() == 0
            (folder / "trials" / str(number)).mkdir()
    kept = sorted(path for path in tmp_path.glob("s.old-*"))
    assert [path.name for path in kept] == [f"s.old-{number}" for number in range(1, len(kept) + 1)]
    assert len(kept) == 2 + earlier and (kept[-1] / "trials" / "1").is_dir()


@pytest.mark.parametrize("purposes", [[], [Purpose.BAD_BASELINE], [Purpose.BAD_BASELINE, Purpose.GOOD_BASELINE]])
def test_the_good_side_may_change_while_nothing_rests_on_it(target, tmp_path, purposes: list[Purpose]) -> None:
    folder = tmp_path / "s"
    with opened(target, folder, options={"good": []}) as (_, _, store):
        for purpose in purposes:
            run(store, purpose)
    target.good_file.write_text("beta: 1\n")
    before, changed = read_state(folder), {"good": ["lr=1"]}
    if Purpose.GOOD_BASELINE in purposes:
        refused(target, folder, "the good file and --good changed", "--restart", options=changed)
        assert read_state(folder) == before
        return
    with opened(target, folder, options=changed) as (_, state, store):
        assert state.options == changed and state.target == target.identity() and store.count() == len(purposes)


def test_what_runs_have_written_is_no_input(target, tmp_path) -> None:
    folder, cache = tmp_path / "s", tmp_path / "cache"
    with opened(target, folder) as (_, state, _):
        state.read = {str(cache): "0"}
        state.save(folder)
    refused(target, folder, f"the file {cache} changed")
    with opened(target, folder, written=[str(cache)]) as (_, state, _):
        assert state.written == [str(cache)]


@pytest.mark.parametrize(
    "name", ["lock", "state.json", "study.db", "study.db-wal", "result.json.new", "trials", "trials/3", "server/log"]
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_refused(target, tmp_path, name: str, kind: str) -> None:
    """Neither does a pipe block, nor is a link followed, whatever the name: it is said, and nothing happens."""
    folder, mine = tmp_path / "s", tmp_path / "mine"
    mine.write_text("mine")
    with opened(target, folder):
        (folder / "server").mkdir()
    place = folder / name
    if place.is_dir():
        place.rmdir()
    place.unlink(missing_ok=True)
    place.symlink_to(mine) if kind == "link" else os.mkfifo(place)
    odd = "a symbolic link" if kind == "link" else "neither a file nor a folder"
    for restart in (False, True):
        refused(target, folder, f"{place} is {odd}", "--study", restart=restart)
    assert mine.read_text() == "mine" and not list(tmp_path.glob("s.old-*"))


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: folder.write_text("mine"),
        lambda folder: (folder.mkdir(), (folder / "notes.txt").write_text("mine")),
        lambda folder: (folder / "trials" / "0").mkdir(parents=True),
        lambda folder: (folder.mkdir(), (folder / "lock").write_text("theirs")),
        lambda folder: (folder.mkdir(), (folder / "lock").symlink_to(folder.parent / "train.py")),
    ],
    ids=["a file", "notes", "trials", "a lock of others", "a link named lock"],
)
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_no_study_is_left_alone(target, tmp_path, make, restart: bool) -> None:
    def listing() -> dict:
        return {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")}

    make(tmp_path / "s")
    before = listing()
    refused(target, tmp_path / "s", str(tmp_path / "s"), "--study", restart=restart)
    assert listing() == before and target.path.read_text() == "print()"
