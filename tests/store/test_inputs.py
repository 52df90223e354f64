"""What a study rests on, whether that is still the same, in words, and what makes two studies one."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from targets import Target

from bisect_cfg.errors import InputError
from bisect_cfg.store import inputs as module
from bisect_cfg.store.inputs import changes, check_target, hash_of
from bisect_cfg.store.state import STATE_FILE, State, read_state

VERSIONS = {"trl": "1.16", "peft": None}


def state_of(target: Target, **more: object) -> State:
    return State(target.identity(), **{"options": {"only": []}, "libraries": VERSIONS, **more})


@given(one=st.binary(max_size=40), other=st.binary(max_size=40))
def test_files_have_one_hash_as_long_as_they_are_the_same(tmp_path_factory, one: bytes, other: bytes) -> None:
    folder = tmp_path_factory.mktemp("hash")
    (folder / "one").write_bytes(one)
    (folder / "other").write_bytes(other)
    assert (hash_of(folder / "one") == hash_of(folder / "other")) is (one == other)


def test_of_a_large_file_the_size_and_the_time_count(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "READ_WHOLE", 8)
    found = set()
    for content, seconds in ((b"a" * 9, 1), (b"b" * 9, 1), (b"a" * 10, 1), (b"a" * 9, 2)):
        (tmp_path / "data").write_bytes(content)
        os.utime(tmp_path / "data", (1, seconds))
        found.add(hash_of(tmp_path / "data"))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder, state: None, []),
        (lambda folder, state: (folder / "train.py").write_text("pass"), ["the script {folder}/train.py"]),
        (lambda folder, state: (folder / "good.yaml").write_text("beta: 1"), ["the good file"]),
        (lambda folder, state: state.target.update(good_file_hash=None), ["the good file"]),
        (
            lambda folder, state: state.target.update(folder="/tmp"),
            ["the folder it is started in (/tmp -> {folder})"],
        ),
        (lambda folder, state: state.libraries.update(trl="0.14"), ["trl (0.14 -> 1.16)"]),
        (lambda folder, state: state.libraries.update(peft="0.1"), ["peft (0.1 -> not installed)"]),
        (lambda folder, state: state.gpus.append("A100"), ["the GPU (A100 -> H200)"]),
        (lambda folder, state: state.read.update({f"{folder}/data": "0"}), ["the file {folder}/data"]),
        (
            lambda folder, state: (state.read.update({f"{folder}/d": "0"}), state.written.append(f"{folder}/d")),
            [],  # what runs write themselves is no input
        ),
    ],
)
def test_what_has_changed_is_said(tmp_path, change, said) -> None:
    target = Target(tmp_path)
    state = state_of(target, libraries=dict(VERSIONS), gpus=[], read={}, written=[])
    change(tmp_path, state)
    found = changes(state, state_of(target, libraries={"trl": "1.16"}, gpus=["H200"]), target)
    assert list(found) == [text.format(folder=tmp_path) for text in said]


options = st.dictionaries(
    st.sampled_from(["good", "pin", "from_checkpoint", "training", "failure"]), st.sampled_from([1, 2])
)
versions = st.dictionaries(st.sampled_from(["trl", "torch", "peft"]), st.none() | st.sampled_from(["1", "2"]))


@given(options, options, versions, versions)
def test_options_and_versions_are_the_same_or_named(tmp_path_factory, then, now, had, has) -> None:
    """One that is left out has changed as one that is added."""
    target = Target(tmp_path_factory.mktemp("target"))
    found = changes(state_of(target, options=then, libraries=had), state_of(target, options=now, libraries=has), target)
    assert {name for name in found.values() if name} == {
        name for name in {*then, *now} if then.get(name) != now.get(name)
    }
    flags = {"--good", "--pin", "--from-checkpoint", "--training", "--failure"}
    assert {text for text, name in found.items() if name} <= flags
    assert [text.split(" ")[0] for text, name in found.items() if not name] == [
        name for name in had if had[name] != has.get(name)
    ]


@pytest.mark.parametrize(("other", "said"), [("script", "another script"), ("arguments", "other arguments: (none)")])
def test_a_study_of_something_else_is_refused(tmp_path, other, said) -> None:
    target = Target(tmp_path)
    state = state_of(target)
    check_target(tmp_path, state, target)
    if other == "script":
        state.target["script"] = "/elsewhere/train.py"
    else:
        target.arguments = ["--fast"]
    with pytest.raises(InputError, match="study of") as error:
        check_target(tmp_path, state, target)
    assert said in error.value.message


tables = st.dictionaries(st.sampled_from(["/s/a.py", "/s/b.py"]), st.sampled_from(["0", "1"]))
states = st.builds(
    State,
    target=st.fixed_dictionaries(
        {
            "script": st.just("/s/train.py"),
            "arguments": st.lists(st.just("-v"), max_size=1),
            "python": st.just("python3"),
            "folder": st.just("/s"),
            "script_hash": st.sampled_from(["0", "1"]),
            "good_file_hash": st.none() | st.just("1"),
            "files": tables,
        }
    ),
    options=st.fixed_dictionaries({"only": st.lists(st.just("beta"), max_size=1)}),
    libraries=versions,
    gpus=st.lists(st.just("H200"), max_size=1),
    read=tables,
)


@given(states)
def test_the_state_is_read_as_it_was_written(tmp_path_factory, state: State) -> None:
    folder = tmp_path_factory.mktemp("state")
    assert read_state(folder) is None
    state.save(folder)
    assert read_state(folder) == state


def test_a_file_may_be_called_token_and_a_token_is_not_written(tmp_path) -> None:
    files = {"/data/api_key": "0123456789abcdef", "hf_token": "fedcba9876543210"}
    state = state_of(Target(tmp_path), read=files, options={"hub_token": "opensesame-hub"})
    state.target["files"] = files
    state.save(tmp_path)
    kept = read_state(tmp_path)
    assert kept.read == kept.target["files"] == files
    assert "opensesame" not in (tmp_path / STATE_FILE).read_text()


@pytest.mark.parametrize("text", ["", '{"target": ', "[" * 99_999, "{}"])
def test_a_state_that_is_damaged_is_refused_in_words(tmp_path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(InputError) as error:
        read_state(tmp_path)
    assert str(tmp_path / STATE_FILE) in error.value.message and error.value.advice
