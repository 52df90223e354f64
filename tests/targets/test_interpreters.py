"""Which Python a command runs, and the same command in another environment."""

from __future__ import annotations

import os

import pytest

from bisect_cfg.errors import InputError
from bisect_cfg.targets.interpreters import moved, python_of, runs_code


def program(path, text="", kind=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(kind)
    return str(path)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """An environment of the user's, and another one; the system has a shell and a Python too."""
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pyvenv.cfg").write_text("")
        program(tmp_path / folder / "bin" / "python3")
        program(tmp_path / folder / "bin" / "python")
        program(tmp_path / folder / "bin" / "ray")
    program(tmp_path / "own/bin/ruff", "\x7fELF")
    python = str(tmp_path / "own/bin/python3")
    program(tmp_path / "own/bin/verl", f"#!{python}\n")
    program(tmp_path / "own/bin/long", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    program(tmp_path / "tools/mine", f"#!{python}\n")
    program(tmp_path / "system/python3")
    for name in ("bash", "env", "uv"):
        program(tmp_path / "system" / name, "\x7fELF")
    program(tmp_path / "system/through-env", "#!/usr/bin/env -S python3 -I\n")
    monkeypatch.setenv("PATH", str(tmp_path / "system"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("word", "python"),
    [
        ("own/bin/python3", "own/bin/python3"),
        ("python3", "system/python3"),
        ("own/bin/verl", "own/bin/python3"),
        ("own/bin/long", "own/bin/python3"),
        ("tools/mine", "own/bin/python3"),
        ("through-env", "system/python3"),
        ("own/bin/ruff", "own/bin/python"),
    ],
)
def test_the_first_word_tells(own, word, python):
    assert python_of([word, "x"]) == str(own / python)
    assert python_of([word, "x"], "own/bin/python3") == str(own / "own/bin/python3")


def test_what_cannot_be_told_is_said(own):
    with pytest.raises(InputError, match="Which Python `bash` runs") as error:
        python_of(["bash", "run.sh"])
    assert "--python" in error.value.advice
    with pytest.raises(InputError, match="`uv` chooses the environment"):
        python_of(["uv", "run", "train.py"], "own/bin/python3")
    with pytest.raises(InputError, match="no Python interpreter nowhere"):
        python_of(["bash"], "nowhere")


@pytest.mark.parametrize(
    ("command", "is_code"),
    [
        ("python -c x", True),
        ("own/bin/python3.11 -u -Ic x -m y", True),
        ("python -u t.py -c x", False),
        ("sh -c x", False),
    ],
)
def test_code_in_an_argument(command, is_code):
    assert runs_code(command.split()) is is_code


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["own/bin/python3", "t.py", "a b"], ["other/bin/python3", "t.py", "a b"]),
        (["own/bin/ruff", "--x"], ["other/bin/ruff", "--x"]),
        (["own/bin/verl", "--x"], ["other/bin/verl", "--x"]),  # where nothing has it, that is said before it is run
        (["tools/mine", "--x"], ["other/bin/python3", "tools/mine", "--x"]),
        (["bash", "own/bin/ray", "python3", "own/bin/none", "x=own/bin/ray"],
         ["bash", "other/bin/ray", "python3", "own/bin/none", "x=own/bin/ray"]),
    ],
)  # fmt: skip
def test_the_programs_of_another_environment(own, words, becomes):
    found = moved(words, str(own / "own/bin/python3"), str(own / "other/bin/python3"))
    assert [os.path.relpath(one, own) if os.path.isabs(one) else one for one in found] == becomes
