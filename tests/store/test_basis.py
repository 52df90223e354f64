"""What a study rests on: whether it is still the same, in words, and what makes two studies one."""

from __future__ import annotations

import copy
import json
import os

import pytest
from bisect_cfg.store.basis import (
    Basis,
    add_written,
    changed_versions,
    changes,
    check_target,
    files_of,
    hash_of,
    identity_of,
    read_basis,
    save_basis,
)
from hypothesis import given
from hypothesis import strategies as st
from targets import Target

from bisect_cfg.errors import InputError
from bisect_cfg.store import basis as module


def basis_of(target: Target, **more: object) -> Basis:
    return Basis(target=target.identity(), options={"only": []}, libraries={"trl": "1.16", "peft": None}, **more)


@given(one=st.binary(max_size=40), other=st.binary(max_size=40))
def test_files_have_one_hash_as_long_as_they_are_the_same(tmp_path_factory, one: bytes, other: bytes) -> None:
    folder = tmp_path_factory.mktemp("hash")
    (folder / "one").write_bytes(one)
    (folder / "other").write_bytes(other)
    assert (hash_of(folder / "one") == hash_of(folder / "other")) is (one == other)


@given(size=st.integers(9, 99), at=st.integers(0, 98), later=st.booleans())
def test_of_a_large_file_samples_are_read_and_its_time(tmp_path_factory, size: int, at: int, later: bool) -> None:
    path = tmp_path_factory.mktemp("hash") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "READ_WHOLE", 8)
        patch.setattr(module, "SAMPLE_BYTES", 2)
        path.write_bytes(bytes(size))
        os.utime(path, (1, 1))
        first = hash_of(path)
        path.write_bytes(bytes(min(at, size - 1)) + b"x" + bytes(size - 1 - min(at, size - 1)))
        os.utime(path, (1, 2 if later else 1))
        assert hash_of(path) != first  # 64 samples of two bytes reach everything in 99


def test_a_file_may_be_called_token_and_a_token_is_not_written(tmp_path) -> None:
    files = {"/data/api_key": "0123456789abcdef", "hf_token": "fedcba9876543210"}
    basis = basis_of(Target(tmp_path), modules=files, read=files)
    basis["target"]["files"], basis["options"]["hub_token"] = files, "opensesame-hub"
    save_basis(tmp_path, basis)
    kept = read_basis(tmp_path)
    assert kept["modules"] == kept["read"] == kept["target"]["files"] == files
    assert "opensesame" not in (tmp_path / "study.json").read_text()


def test_nothing_has_changed(tmp_path) -> None:
    target = Target(tmp_path)
    basis = basis_of(target, gpus=["H200"])
    assert changes(basis, target, {"only": []}, {"trl": "1.16"}, []) == []
    check_target(tmp_path, basis, target)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder, basis: (folder / "train.py").write_text("pass"), ["the script {folder}/train.py"]),
        (lambda folder, basis: (folder / "good.yaml").write_text("beta: 1"), ["the good file"]),
        (lambda folder, basis: basis["target"].update(good_file_hash=None), ["the good file"]),
        (
            lambda folder, basis: basis["target"].update(folder="/tmp"),
            ["the folder it is started in (/tmp -> {folder})"],
        ),
        (lambda folder, basis: basis["libraries"].update(trl="0.14"), ["trl (0.14 -> 1.16)"]),
        (lambda folder, basis: basis["libraries"].update(peft="0.1"), ["peft (0.1 -> not installed)"]),
        (lambda folder, basis: basis.update(gpus=["A100"]), ["the GPU (A100 -> H200)"]),
        (lambda folder, basis: basis["options"].update(only=["beta"]), ["--only"]),
        (lambda folder, basis: basis.update(read={f"{folder}/data": "0"}), ["the file {folder}/data"]),
        (lambda folder, basis: basis.update(read={f"{folder}/data": "0"}, written=[f"{folder}/data"]), []),
    ],
)
def test_what_has_changed_is_said(tmp_path, change, said) -> None:
    target = Target(tmp_path)
    basis = basis_of(target)
    change(tmp_path, basis)
    found = changes(basis, target, {"only": []}, {"trl": "1.16"}, ["H200"])
    assert list(map(str, found)) == [text.format(folder=tmp_path) for text in said]


options = st.dictionaries(
    st.sampled_from(["good", "pins", "from_checkpoint", "training", "failure"]), st.sampled_from([1, 2])
)


@given(options, options)
def test_an_option_that_is_left_out_has_changed_as_one_that_is_added(
    tmp_path_factory: pytest.TempPathFactory, then: dict, now: dict
) -> None:
    target = Target(tmp_path_factory.mktemp("target"))
    found = changes({**basis_of(target), "options": then}, target, now, {"trl": "1.16"}, [])
    assert {change.name for change in found} == {name for name in {*then, *now} if then.get(name) != now.get(name)}
    assert {str(change) for change in found} <= {"--good", "--pin", "--from-checkpoint", "--training", "--failure"}


@pytest.mark.parametrize(("other", "said"), [("script", "another script"), ("arguments", "other arguments: (none)")])
def test_a_study_of_something_else_is_refused(tmp_path, other, said) -> None:
    target = Target(tmp_path)
    basis = basis_of(target)
    if other == "script":
        basis["target"]["script"] = "/elsewhere/train.py"
    else:
        target.arguments = ["--fast"]
    with pytest.raises(InputError, match="study of") as error:
        check_target(tmp_path, basis, target)
    assert said in error.value.message


versions = st.dictionaries(st.sampled_from(["trl", "torch", "peft"]), st.none() | st.sampled_from(["1", "2"]))


@given(versions, versions)
def test_versions_are_the_same_or_named(then: dict, now: dict) -> None:
    found = changed_versions(Basis(libraries=then), now)
    assert [text.split(" ")[0] for text in found] == [name for name in then if then[name] != now.get(name)]


tables = st.dictionaries(st.sampled_from(["/s/a.py", "/s/b.py"]), st.sampled_from(["0", "1"]))
parts = st.fixed_dictionaries(
    {
        "modules": tables,
        "read": tables,
        "libraries": versions,
        "gpus": st.lists(st.just("H200"), max_size=1),
        "options": st.fixed_dictionaries({"only": st.lists(st.just("beta"), max_size=1)}),
        "target": st.fixed_dictionaries(
            {
                "script": st.just("/s/train.py"),
                "script_hash": st.sampled_from(["0", "1"]),
                "arguments": st.lists(st.just("-v"), max_size=1),
                "good_file_hash": st.none() | st.just("1"),
                "files": tables,
            }
        ),
    }
)


@given(parts, parts, st.sampled_from(["SIGFPE", "RuntimeError"]), st.sampled_from([0.1, 0.2]))
def test_two_studies_are_one_if_they_rest_on_the_same(one, other, failure, bad) -> None:
    first = identity_of(one, failure, {"beta": [0.0, bad]})
    json.dumps(first)
    same = {**one, "modules": {**one["modules"], **one["read"]}, "read": {}} == {
        **other,
        "modules": {**other["modules"], **other["read"]},
        "read": {},
    }
    assert (first == identity_of(other, failure, {"beta": [0.0, bad]})) is same
    assert first != identity_of(one, failure, {"beta": [0.0, 0.3]})
    assert first != identity_of(one, "hang", {"beta": [0.0, bad]})
    # What only later runs have imported has no part in it.
    assert first == identity_of({**one, "later_modules": {"/s/c.py": "0"}}, failure, {"beta": [0.0, bad]})
    assert identity_of({**one, "identity": {"script": "x"}}, failure, {}) == {"script": "x"}  # written down before


def test_it_is_read_as_it_was_written(tmp_path) -> None:
    target = Target(tmp_path, "--steps", "3")
    basis = basis_of(target, modules={"/a.py": "0"}, gpus=["H200"])
    assert read_basis(tmp_path) is None
    save_basis(tmp_path, basis)
    assert read_basis(tmp_path) == basis
    assert files_of(target, basis) == {
        str(target.path): hash_of(target.path), str(target.good_file): hash_of(target.good_file), "/a.py": "0"
    }  # fmt: skip
    add_written(basis, ["/b", "/a.py"])
    add_written(basis, ["/c"])
    assert basis["written"] == ["/a.py", "/b", "/c"] and "/a.py" not in files_of(target, basis)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("table", ["modules", "later_modules", "read"])
def test_a_file_without_a_name_is_refused(tmp_path, table: str) -> None:
    save_basis(tmp_path, basis_of(Target(tmp_path), **{table: {"": "0"}}))
    with pytest.raises(InputError, match="does not describe a study"):
        read_basis(tmp_path)


@given(st.data())
def test_what_somebody_edited_is_refused_in_words(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("basis")
    whole = copy.deepcopy(dict(basis_of(Target(folder), modules={"/a.py": "0"}, written=["/b"])))
    place = data.draw(st.sampled_from([whole, whole["target"]]))
    key = data.draw(st.sampled_from(sorted(place)))
    place[key] = data.draw(json_values)
    (folder / "study.json").write_text(json.dumps(whole))
    try:
        found = read_basis(folder)
    except InputError as error:
        assert str(folder / "study.json") in error.message and error.advice
    else:  # then it can be worked with
        assert found == whole
        changes(found, Target(folder), {}, {}, [])
        json.dumps(identity_of(found, "", {}))
