"""What is installed, what a file says was installed where it worked, and which mixtures of the two can be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.errors import InputError
from bisect_cfg.targets.packages import (
    Distribution,
    Installed,
    Mixtures,
    checked_level,
    installed_by,
    line_of,
    missing_in,
    read_packages,
    shown_levels,
)

MARKERS = {"python_version": "3.11", "sys_platform": "linux", "platform_machine": "x86_64"}


def package(name: str, version: str, *requires: str) -> Distribution:
    return Distribution(name, version, version, requires)


def together(*packages: Distribution) -> dict[str, Distribution]:
    return {one.name: one for one in packages}


HERE = Installed(together(package("torch", "2.5.1+cu121"), package("numpy", "1.26.4")), MARKERS, sys.executable)


def read(folder: Path, text: str, name: str = "good.txt") -> dict[str, str]:
    path = folder / name
    path.write_text(text)
    return read_packages(path, HERE)


def test_this_interpreter():
    found = installed_by(sys.executable)
    assert found.distributions["pytest"].version == pytest.__version__
    assert line_of("pytest", found.levels["pytest"]) == f"pytest=={pytest.__version__}"
    assert any("iniconfig" in asks for asks in found.distributions["pytest"].requires)


def test_an_interpreter_that_is_none(tmp_path):
    with pytest.raises(InputError, match="does not say what it has installed"):
        installed_by(str(tmp_path / "python"))


def test_what_pip_freeze_prints(tmp_path):
    text = f"""\
# comment
-i https://pypi.org/simple
--extra-index-url https://download.pytorch.org/whl/cu121
Transformers==4.57.1  # the good one
flash_attn @ file:///wheels/flash_attn-2.7.4-cp311-cp311-linux_x86_64.whl#sha256=abc
trl @ git+https://github.com/huggingface/trl@0123456789abcdef0123456789abcdef01234567
vllm==0.10.2 ; sys_platform == 'linux'
pywin32==306 ; sys_platform == 'win32'
torch==2.5.1+cu121 \\
    --hash=sha256:00 \\
    --hash=sha256:11
numpy>=1.26
-e {tmp_path}/ours#egg=ours
"""
    assert read(tmp_path, text) == {
        "transformers": "4.57.1",
        "flash-attn": "@ file:///wheels/flash_attn-2.7.4-cp311-cp311-linux_x86_64.whl#sha256=abc",
        "trl": "@ git+https://github.com/huggingface/trl@0123456789abcdef0123456789abcdef01234567",
        "vllm": "0.10.2",
        "torch": "2.5.1+cu121",
        "ours": f"-e {tmp_path}/ours",
    }


def test_wheels_by_their_paths(tmp_path):
    found = read(tmp_path, "./wheels/my_lib-1.0-py3-none-any.whl\nhttps://host/other-2.0-py3-none-any.whl\n")
    assert found == {
        "my-lib": f"@ {(tmp_path / 'wheels/my_lib-1.0-py3-none-any.whl').as_uri()}",
        "other": "@ https://host/other-2.0-py3-none-any.whl",
    }


@pytest.mark.parametrize("key", ["package", "packages"])
def test_locks(tmp_path, key):
    text = f"""
        lock-version = "1.0"
        [[{key}]]
        name = "Transformers"
        version = "4.57.1"
        [[{key}]]
        name = "mine"
        version = "0"
        source = {{ editable = "." }}
    """
    assert read(tmp_path, text, "uv.lock") == {"transformers": "4.57.1"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no package"),
        ("transformers>=4.57", "does not say which version"),
        ("numpy>=2", "does not say which version"),
        ("vllm", "does not say which version"),
        ("-r other.txt", "other files"),
        ("a==1\na==2", "is listed twice"),
        ("-e ./sources", "which package is"),
        ("this is prose about versions", "is not a requirement"),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path, text, says):
    with pytest.raises(InputError, match=says):
        read(tmp_path, text)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_packages(tmp_path / "none.txt", HERE)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="it is not a text file"):
        read_packages(tmp_path / "binary.txt", HERE)


@pytest.mark.parametrize("level", ["4.57.1", "2.5.1+cu121", "@ file:///x.whl", "-e /sources", None])
def test_levels(level):
    assert checked_level("packages.x", level) == level
    assert checked_level("packages.x", "") is None
    assert checked_level("packages.x", "None") is None


@pytest.mark.parametrize(
    ("level", "says"), [("newest", "is not a version"), (2.1, "is a number"), (True, "is a number")]
)
def test_what_is_no_level(level, says):
    with pytest.raises(InputError, match=says):
        checked_level("packages.x", level)


def test_a_wheel_is_shown_by_its_version():
    one, other = "@ file:///a/x-1.0-py3-none-any.whl#sha256=ab", "@ https://b/x-2.0+local-py3-none-any.whl"
    assert shown_levels(one, other) == ("1.0", "2.0+local")
    assert shown_levels("1.0", other) == ("1.0", "2.0+local")
    assert shown_levels(None, other) == ("not installed", "2.0+local")
    assert shown_levels("1.0", one) == ("1.0", one)  # the same version from elsewhere


def test_what_is_missing():
    there = together(
        package("trl", "1.0", "transformers>=5", "absent; sys_platform == 'win32'", "peft; extra == 'peft'"),
        package("transformers", "4.57", "torch>2", "tokenizers"),
        package("torch", "2.5.1+cu121"),
        package("old", "2004d", "this is none"),
    )
    assert sorted(map(str, missing_in(there, MARKERS))) == [
        "transformers asks for tokenizers, and it is not there",
        "trl asks for transformers>=5, and there is 4.57",
    ]


def test_versions_that_need_each_other():
    good = together(package("trl", "1", "transformers<5"), package("transformers", "4"), package("other", "1"))
    bad = together(package("trl", "2", "transformers>=5"), package("transformers", "5"), package("other", "2"))
    mixtures = Mixtures(good, bad, MARKERS)
    assert mixtures.error({"trl", "transformers"}.__contains__) is None
    assert mixtures.error({"other"}.__contains__) is None
    assert mixtures.error({"trl"}.__contains__) == "trl asks for transformers>=5, and there is 4"
    assert mixtures.error({"transformers", "other"}.__contains__) == "trl asks for transformers<5, and there is 5"


NAMES = ("a", "b", "c", "d")
versions = st.integers(1, 3).map(str)
requirements = st.builds(lambda name, sign, version: f"{name}{sign}{version}", st.sampled_from(NAMES),
                         st.sampled_from(("<=", ">=", "==")), versions)  # fmt: skip
environments = st.fixed_dictionaries(
    {},
    optional={
        name: st.builds(lambda version, asks, name=name: package(name, version, *asks), versions,
                        st.lists(requirements, max_size=2))
        for name in NAMES
    },
)  # fmt: skip


@given(environments, environments, st.sets(st.sampled_from(NAMES)))
def test_both_environments_are_valid_and_a_mixture_is_if_nothing_new_is_missing(good, bad, chosen):
    mixtures = Mixtures(good, bad, MARKERS)
    assert mixtures.error(lambda name: False) is None
    assert mixtures.error(lambda name: True) is None
    mixed = {name: one for name in NAMES if (one := (bad if name in chosen else good).get(name)) is not None}
    asked = {(one.package, one.asks) for each in (good, bad) for one in missing_in(each, MARKERS)}
    new = {(one.package, one.asks) for one in missing_in(mixed, MARKERS)} - asked
    assert (mixtures.error(chosen.__contains__) is None) is (not new)
