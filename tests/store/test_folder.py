"""The folder of a study: which one, whose it is, who works in it, and that one which is refused stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bisect_cfg.store.basis import read_basis, save_basis
from targets import Target

from bisect_cfg.errors import InputError
from bisect_cfg.store.folder import check_entries, default_folder, open_study, put_trial_aside


@pytest.fixture
def target(tmp_path, monkeypatch) -> Target:
    monkeypatch.chdir(tmp_path)
    return Target(tmp_path)


def test_another_script_of_that_name_gets_the_next_folder(target, tmp_path) -> None:
    (tmp_path / "other").mkdir()
    other = Target(tmp_path / "other")
    with open_study(target, None, {}) as (first, _), open_study(other, None, {}) as (second, _):
        assert (first.name, second.name) == ("train", "train-2")
    assert (default_folder(target).name, default_folder(other).name) == ("train", "train-2")
    target.arguments = ["--fast"]
    assert default_folder(target).name == "train-3"


def test_one_works_in_it_at_a_time(target, tmp_path) -> None:
    with open_study(target, tmp_path / "s", {}), pytest.raises(InputError, match="Another bisect-cfg is working"):
        with open_study(target, tmp_path / "s", {}):
            pass
    with open_study(target, tmp_path / "s", {}):
        pass


def test_a_study_goes_on_as_it_was_begun(target, tmp_path) -> None:
    with open_study(target, tmp_path / "s", {"only": []}, libraries={"trl": "1"}, gpus=["B", "A", "A"]) as (_, begun):
        assert begun == {
            "target": target.identity(), "options": {"only": []}, "libraries": {"trl": "1"}, "gpus": ["A", "B"],
            "anew": False,
        }  # fmt: skip
    with open_study(target, tmp_path / "s", {"only": []}, libraries={"trl": "1"}) as (_, again):
        assert again == begun


def test_a_restart_keeps_the_old_study_beside_it(target, tmp_path) -> None:
    for number in range(3):
        with open_study(target, tmp_path / "s", {}, restart=True) as (folder, basis):
            (folder / "trials" / str(number)).mkdir()
            assert basis["anew"]
    assert sorted(path.name for path in tmp_path.glob("s*")) == ["s", "s.old-1", "s.old-2"]
    assert [path.name for path in (tmp_path / "s.old-1" / "trials").iterdir()] == ["0"]


@pytest.mark.parametrize("trials", [[], ["0"], ["0", "0.interrupted-1"]])
def test_the_good_side_may_change_while_nothing_rests_on_it(target, tmp_path, trials: list[str]) -> None:
    folder = tmp_path / "s"
    with open_study(target, folder, {"good": []}):
        for name in trials:
            (folder / "trials" / name).mkdir()
    target.good_file.write_text("beta: 1\n")
    with open_study(target, folder, {"good": ["lr=1"]}) as (_, basis):
        assert basis["options"] == {"good": ["lr=1"]} and basis["target"] == target.identity()
    assert sorted(path.name for path in (folder / "trials").iterdir()) == trials


def test_the_good_side_may_not_change_once_a_trial_rests_on_it(target, tmp_path) -> None:
    folder = tmp_path / "s"
    with open_study(target, folder, {"good": []}):
        for name in ("0", "bad-config-1"):
            (folder / "trials" / name).mkdir()
    target.good_file.write_text("beta: 1\n")
    before = read_basis(folder)
    with pytest.raises(InputError, match="the good file and --good changed"):
        with open_study(target, folder, {"good": ["lr=1"]}):
            pass
    assert read_basis(folder) == before


def test_another_number_of_steps_makes_the_first_run_anew(target, tmp_path) -> None:
    folder = tmp_path / "s"
    with open_study(target, folder, {"steps": None}):
        (folder / "trials" / "0").mkdir()
    with open_study(target, folder, {"steps": 5}):
        assert [path.name for path in (folder / "trials").iterdir()] == ["0.interrupted-1"]


def test_what_runs_have_written_is_no_input(target, tmp_path) -> None:
    folder, cache = tmp_path / "s", tmp_path / "cache"
    with open_study(target, folder, {}) as (_, basis):
        save_basis(folder, {**basis, "read": {str(cache): "0"}})
    with pytest.raises(InputError, match="the file .*cache changed"):
        with open_study(target, folder, {}):
            pass
    with open_study(target, folder, {}, written=lambda folder: [str(cache)]) as (_, basis):
        assert basis["written"] == [str(cache)]


@pytest.mark.parametrize("name", ["study.json", "result.json", "trials", "trials/3", "server/log.txt"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_refused(target, tmp_path, name: str, kind: str) -> None:
    folder, mine = tmp_path / "s", tmp_path / "mine"
    mine.write_text("mine")
    with open_study(target, folder, {}):
        (folder / "server").mkdir()
    place = folder / name
    if place.is_dir():
        place.rmdir()
    place.unlink(missing_ok=True)
    place.symlink_to(mine) if kind == "link" else os.mkfifo(place)
    if name == "study.json":
        (folder / "trials" / "0").mkdir()
    with pytest.raises(InputError) as error:
        with open_study(target, folder, {}):
            pass
    assert str(place) in error.value.message and mine.read_text() == "mine"


@pytest.mark.parametrize("content", ["a file", "notes.txt", "trials/0"])
def test_what_is_no_study_is_left_alone(target, tmp_path, content: str) -> None:
    folder = tmp_path / "s"
    if content == "a file":
        folder.write_text("mine")
    else:
        (folder / content).parent.mkdir(parents=True)
        (folder / content).mkdir() if "/" in content else (folder / content).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError):
        with open_study(target, folder, {}, restart=True):
            pass
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_other_things_may_hold_links(tmp_path) -> None:
    (tmp_path / "notes").mkdir()
    check_entries(tmp_path)
    (tmp_path / "here").symlink_to(tmp_path)
    with pytest.raises(InputError, match="holds no study"):
        check_entries(tmp_path)


def test_traces_of_a_trial_are_kept_beside_it(tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "0").mkdir()
        put_trial_aside(tmp_path / "0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.interrupted-1", "0.interrupted-2"]
