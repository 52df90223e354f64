"""A command with places in it: what becomes of its arguments, and what is said where something has no place."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import ConfigBuilt
from bisect_cfg.targets.command import find_target, is_any_command
from bisect_cfg.targets.pinned import NAMES_A_PLACE, NO_DEFAULT
from bisect_cfg.targets.sides import Given
from bisect_cfg.targets.template import read_value

ARGUMENTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).filter(
    lambda text: text.strip().lower() not in ("nan", "+nan", "-nan")  # a value that no run could have
)


def target(*words, good=(), bad=(), **more):
    return find_target(["sh", *words], Given(good=good, bad=bad, **more))


def command(found, side, config="CONFIG", folder="FOLDER"):
    """The arguments of a trial with one whole side."""
    return found.words(getattr(found.factors, side), config, folder)[1:]


@settings(max_examples=60, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=4), ARGUMENTS, st.sampled_from(["text", "typed"]))
@example(["a b", '"', "'", "$HOME; rm -rf x"], "{{\n", "text")
@example(["*", "é漢\u202e", "\\", "--x"], "{config}", "typed")
@example(["null", "007", "1e-3", " "], "#", "text")
def test_a_real_program_gets_every_value_and_every_text_unchanged(tmp_path_factory, values, text, given_as):
    folder = tmp_path_factory.mktemp("argv")
    names = [f"v{number}" for number in range(len(values))]
    bad = [
        f"{name}={value}" if given_as == "typed" else (name, value) for name, value in zip(names, values, strict=True)
    ]
    good = [(name, value + "x") for name, value in zip(names, values, strict=True)]
    escaped = text.replace("{", "{{")
    words = ["-c", 'printf "%s\\0" "$@" > "$0"', "{folder}/argv", *(f"a{{{name}}}z" for name in names), escaped]
    found = target(*words, good=good, bad=bad)
    subprocess.run(found.words(found.factors.bad, "", str(folder)), check=True)
    got = (folder / "argv").read_bytes().split(b"\0")[:-1]
    assert [one.decode() for one in got] == [*(f"a{value}z" for value in values), text]


def test_what_is_no_argument_of_a_shell_stays_one_argument(tmp_path):
    found = target("-c", "exit 0", "{a} and {a}", good=["a=1"], bad=["a=2 ; false"])
    assert command(found, "bad") == ["-c", "exit 0", "2 ; false and 2 ; false"]


def test_other_braces_are_text():
    found = target("{a}", "{}", '{"b": 1}', "{1,2}", "{{a}", "{ a }", "${x y}", good=["a=1"], bad=["a=2"])
    assert command(found, "good") == ["1", "{}", '{"b": 1}', "{1,2}", "{a}", "{ a }", "${x y}"]


def test_flags_as_argparse_reads_them():
    bad = ["lr=1e-3", "bf16=true", "fp16=false", "out_dir=a b", "betas=[0.9, 0.95]", "top=none"]
    found = target("{flags}", good=["lr=1"], bad=bad)
    assert command(found, "bad") == ["--lr", "1e-3", "--bf16", "--out_dir", "a b", "--betas", "0.9", "0.95"]
    assert not any("bf16" in word for word in command(found, "good")), "the good side does not give it"


def test_a_bad_value_may_be_said_besides_and_only_once_differently():
    words, good = ["prog", "--wd", "0.1", "--batch", "16"], ["wd=0"]
    found = target(*words, good=good, bad=["wd=0.1"])
    assert command(found, "bad") == words and command(found, "good") == ["prog", "--wd", "0", "--batch", "16"]
    with pytest.raises(InputError, match="gives wd as 0.1, and --bad as 0.2"):
        target(*words, good=good, bad=["wd=0.2"])
    found = target("--wd", "0.1", "{flags}", good=good, bad=["wd=0.2"])  # another program's, for all that is known
    assert command(found, "bad") == ["--wd", "0.1", "--wd", "0.2"]


@pytest.mark.parametrize(("suffix", "read"), [("yaml", yaml.safe_load), ("json", json.loads), ("toml", tomllib.loads)])
def test_a_configuration_file_is_nested_as_the_users_own(tmp_path, suffix, read):
    bad = {"model": {"path": "a: b", "dtype": "bf16"}, "optim": {"lr": 1e-3, "betas": [0.9, 0.95]}, "é": "ü"}
    path = tmp_path / f"bad.{suffix}"
    text = {"yaml": yaml.safe_dump, "json": json.dumps}
    path.write_text('"é" = "ü"\n[model]\npath = "a: b"\ndtype = "bf16"\n[optim]\nlr = 1e-3\nbetas = [0.9, 0.95]\n')
    if suffix in text:
        path.write_text(text[suffix](bad))
    found = target("{config}", good=["optim.lr=1e-6"], bad=[str(path)])
    assert [factor.name for factor in found.factors.varied] == ["optim.lr"]
    assert read(found.config(found.factors.bad)) == bad
    assert read(found.config(found.factors.good)) == {**bad, "optim": {**bad["optim"], "lr": 1e-6}}
    assert command(found, "bad") == ["CONFIG"]


def test_two_files_are_compared_leaf_by_leaf(tmp_path):
    (tmp_path / "good.yaml").write_text("a: {b: 1, c: 2}\nd: 1e-6\nonly_good: 1\ne: null\n")
    (tmp_path / "bad.yaml").write_text("a: {b: 1, c: 3}\nd: 1e-3\nonly_bad: {x: 1}\ne: {y: 2}\n")
    found = target("{config}", good=[str(tmp_path / "good.yaml")], bad=[str(tmp_path / "bad.yaml")])
    assert {factor.name for factor in found.factors.varied} == {"a.c", "d", "only_good", "only_bad.x", "e"}
    assert found.factors.bad["d"] == 1e-3, "a number, though YAML 1.1 takes it for a text"
    assert yaml.safe_load(found.config(found.factors.good)) == {
        "a": {"b": 1, "c": 2},
        "d": 1e-6,
        "only_good": 1,
        "e": None,
    }


# ------------------------------------------------------------------------------- the bad side in the command itself


def test_the_bad_side_is_read_from_the_command():
    words = ["--lr", "1e-3", "--bf16", "--max-len=512", "optim=adam", "data.json", "--seed", "-1", "--log", "x"]
    good = ["lr=1e-6", "bf16=false", "max_len=128", "optim=sgd", "seed=0"]
    found = target(*words, good=good)
    assert command(found, "bad") == words, "word for word"
    assert command(found, "good") == [
        "--lr",
        "1e-6",
        "--max-len=128",
        "optim=sgd",
        "data.json",
        "--seed",
        "0",
        "--log",
        "x",
    ]
    assert {factor.name: factor.bad for factor in found.factors.varied} == {
        "lr": 1e-3, "bf16": True, "max_len": 512, "optim": "adam", "seed": -1,
    }  # fmt: skip
    assert [factor.name for factor in target(*words, good=["lr=0.001", "bf16=false"]).factors.varied] == ["bf16"]


def test_a_boolean_that_is_written_out_is_a_value():
    found = target("--bf16", "True", "--fp16", "x.json", good=["bf16=False", "fp16=false"])
    assert command(found, "good") == ["--bf16", "False", "x.json"]


def test_none_takes_a_flag_away_with_its_value():
    found = target("--top_k", "50", "y", good=["top_k=none"])
    assert command(found, "good") == ["y"]


def test_a_pinned_setting_has_its_value_in_every_trial():
    found = target("--lr", "1", "--steps", "9", good=["lr=2"], pins=["steps=3"])
    assert command(found, "bad") == ["--lr", "1", "--steps", "3"]


def test_what_is_left_out_keeps_its_bad_value():
    found = target("--lr", "1", "--steps", "9", good=["lr=2", "steps=3"], only=["lr"])
    assert command(found, "good") == ["--lr", "2", "--steps", "9"]
    assert list(found.factors.not_varied) == ["steps"]


@pytest.mark.parametrize("options", [{"only": ["a.b"]}, {"excluded": ["a.d"]}])
def test_a_name_stands_for_all_that_is_within_it(options):
    words = [f"{name}=1" for name in ("a.b.c", "a.b.e", "a.d")]
    found = target(*words, good=[f"{word}0" for word in words], **options)
    assert {factor.name for factor in found.factors.varied} == {"a.b.c", "a.b.e"}
    assert list(found.factors.not_varied) == ["a.d"]


def test_a_variable_that_env_sets_in_the_command_varies():
    found = find_target(["env", "A=1", "B=2", "echo", "x"], Given(good=["env.A=none"], pins=["env.B=3"]))
    assert found.words(found.factors.bad, "c", "f") == ["env", "echo", "x"]
    assert found.environment(found.factors.bad) == {"A": "1", "B": "3"}
    assert found.environment(found.factors.good) == {"A": None, "B": "3"}


def test_environment_variables_need_no_place(monkeypatch):
    monkeypatch.setenv("SHARD", "2")
    found = target("x", good=["env.SHARD="])
    assert found.environment(found.factors.bad) == {"SHARD": "2"}
    assert found.environment(found.factors.good) == {"SHARD": None}


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (["{a}", "{b}"], {"good": ["a=1"], "bad": ["a=2"]}, "neither side gives a value for b"),
        (["{a}"], {"good": ["a=1", "b=1"], "bad": ["a=2", "b=2"]}, "Nothing in the command takes b"),
        (["x"], {"good": ["a=1"], "bad": ["a=2"]}, "Nothing in the command takes a: no placeholder"),
        (["{a}"], {"good": ["a=1"], "bad": ["a=1"]}, "do not differ"),
        (["{a}"], {"bad": ["a=1"]}, "Nothing says with which values the command works"),
        (["{a}", "{flags}"], {"good": ["a=1"], "bad": ["b=1"]}, "the bad side gives no value for a"),
        (["{config}", "{flags}"], {"good": ["a=1"], "bad": ["a=2"]}, "would be given twice"),
        (["--x={flags}"], {"good": ["a=1"], "bad": ["a=2"]}, "cannot be part of one"),
        (["--a", "1", "--a", "2"], {"good": ["a=3"]}, "gives a twice"),
        (["--a", "--b"], {"good": ["a=3"]}, "--a has no value in the command"),
        (["--a", "1", "2"], {"good": ["a=[3, 4]"]}, "Cannot tell how many"),
        (["{a}"], {"good": ["a=1"], "bad": ["a=2"], "only": ["c"]}, "c does not differ"),
        (["{a}"], {"good": ["a=1"], "bad": ["a=2"], "excluded": ["a"]}, "leave nothing to vary"),
        (["{n m}"], {"good": ["n m=1"], "bad": ["n m=2"]}, "Nothing in the command takes n m: no placeholder"),
        (["{flags}"], {"good": ["packages.x=1"], "bad": ["a=1"]}, "Which Python `sh` runs is not known"),
        (["{flags}"], {"good": ["a=1"], "bad": ["nowhere.yaml"]}, "There is no file nowhere.yaml"),
        (["{flags}"], {"good": ["a=1"], "bad": [("hub_token", "hf_" + "a" * 34)]}, "secret"),
        (["{a}"], {"good": ["a=1"], "bad": [("a", "x\0y")]}, "NUL"),
    ],
)
def test_what_cannot_be_is_said(words, options, said):
    with pytest.raises(InputError) as error:
        target(*words, **{"good": (), **options})
    assert said in str(error.value) and error.value.advice


def test_no_such_program():
    with pytest.raises(InputError, match="no program no-such-program"):
        find_target(["no-such-program"], Given(good=["a=1"]))
    with pytest.raises(InputError, match="-- python train.py {flags}"):
        find_target(["train.py", "{a}"], Given(good=["a=1"], bad=["a=2"]))


def test_which_commands_are_run_as_they_stand():
    script = ["python", "train.py", "--template", "{question}"]
    assert not is_any_command(script, ["bf16=false"], told=False, found=True), "a text that no setting is called after"
    assert is_any_command([*script, "{flags}"], [], told=False, found=True)
    assert is_any_command([*script, "{bf16}"], ["bf16=false"], told=False, found=True)
    assert is_any_command(["sort"], ["a=1"], told=False, found=False) and is_any_command(script, [], True, True)


def test_values_as_typed():
    typed = ["1e-3", "true", "None", "[1, 2]", "a: b", "# c", "1_000", " 1", "{x", ""]
    assert [read_value(text) for text in typed] == [1e-3, True, None, [1, 2], "a: b", "# c", 1000, " 1", "{x", ""]


def test_files_of_the_command_are_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("x")
    found = target("{a}", "--in=data.txt", good=["a=1"], bad=["a=2"])
    assert list(found.identity()["files"]) == ["data.txt"]


# ----------------------------------------------------------------- what a program was seen to make of its flags


def seen(kind="script", flags=None, **settings):
    """That a parser gave a program these settings: name -> (value, default)."""
    raw, defaults = ({name: pair[at] for name, pair in settings.items() if at < len(pair)} for at in (0, 1))
    return ConfigBuilt(kind, 0, "", "", raw, defaults, {name: "" for name in settings}, flags=flags or {})


def test_the_good_side_of_a_program_is_its_parsers_defaults():
    words = "-w 8 --fast --no-cache --betas 0.5 0.9 --name x --seed 3 --once 1 --once 2 in.txt".split()
    events = [
        seen(
            workers=(8, 1),
            fast=(True, False),
            cache=(False, True),
            betas=([0.5, 0.9], [0.9, 0.99]),
            flags={"workers": ["-w", "--workers"], "cache": ["--no-cache"]},
        ),
        seen(name=("x", "y"), seed=(3, 0), needed=("in.txt",), once=(2, 0), short=(1, 0), as_it_is=(4, 4)),
        seen("env", TURBO=("1", None)),
    ]
    found = find_target(["sh", *words], Given(), events)
    assert command(found, "bad") == words
    assert command(found, "good") == "-w 1 --betas 0.9 0.99 --name x --seed 3 --once 1 --once 2 in.txt".split()
    assert found.environment(found.factors.good) == {"TURBO": None} and found.factors.bad["env.TURBO"] == "1"
    reasons = found.factors.not_varied
    assert sorted(reasons) == ["name", "needed", "once", "seed", "short"]
    assert "no default" in reasons["needed"] and "more than once" in reasons["once"]
    assert "does not stand in the command" in reasons["short"]


def test_what_the_good_side_says_of_a_program_counts_before_its_defaults():
    events = [seen(workers=(8, 1), quality=("low", "low"), name=("x", "y"), flags={"quality": ["-q", "--the-quality"]})]
    given = Given(good=["script.workers=2", "quality=high", "name=z"])
    found = find_target(["sh", "--workers", "8", "--name", "x"], given, events)
    assert command(found, "good") == ["--workers", "2", "--name", "z", "--the-quality", "high"]
    assert command(found, "bad") == ["--workers", "8", "--name", "x", "--the-quality", "low"]


def test_what_stands_in_a_command_and_no_side_names_is_not_varied():
    words = (
        "train.sh",
        "--lr",
        "3",
        "--mix",
        "0.5",
        "--fast",
        "--out_dir=x",
        "optim.rate=2",
        "--seed",
        "3",
        "-v",
        "{heat}",
    )
    pinned = target(*words, good=("lr=1", "heat=1"), bad=("heat=2",)).factors.not_varied
    assert {name for name, why in pinned.items() if why.startswith(NO_DEFAULT)} == {"mix", "fast", "optim.rate"}
    assert {name for name, why in pinned.items() if why == NAMES_A_PLACE} == {"out_dir", "seed"}
