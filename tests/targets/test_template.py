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
from bisect_cfg.targets.target import find_target, is_any_command
from bisect_cfg.targets.template import own_flags, presets, read_value, styles

ARGUMENTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).filter(
    lambda text: text.strip().lower() not in ("nan", "+nan", "-nan")  # a value that no run could have
)


def target(*words, good=(), bad=(), **more):
    return find_target(["sh", *words], good=good, bad=bad, **more)


def command(found, side, config="CONFIG", folder="FOLDER"):
    """The arguments of a trial with one whole side."""
    return found.words(getattr(found.sides, side), config, folder)[1:]


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
    subprocess.run(found.words(found.sides.bad, "", str(folder)), check=True)
    got = (folder / "argv").read_bytes().split(b"\0")[:-1]
    assert [one.decode() for one in got] == [*(f"a{value}z" for value in values), text]


def test_what_is_no_argument_of_a_shell_stays_one_argument(tmp_path):
    found = target("-c", "exit 0", "{a} and {a}", good=["a=1"], bad=["a=2 ; false"])
    assert command(found, "bad") == ["-c", "exit 0", "2 ; false and 2 ; false"]


def test_other_braces_are_text():
    found = target("{a}", "{}", '{"b": 1}', "{1,2}", "{{a}", "{ a }", "${x y}", good=["a=1"], bad=["a=2"])
    assert command(found, "good") == ["1", "{}", '{"b": 1}', "{1,2}", "{a}", "{ a }", "${x y}"]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("argparse", ["--lr", "1e-3", "--bf16", "--out_dir", "a b", "--betas", "0.9", "0.95"]),
        ("hf", ["--lr", "1e-3", "--bf16", "true", "--fp16", "false", "--out_dir", "a b", "--betas", "0.9", "0.95"]),
        ("gnu", ["--lr=1e-3", "--bf16", "--out-dir=a b", "--betas=[0.9, 0.95]"]),
        ("click", ["--lr=1e-3", "--bf16", "--no-fp16", "--out-dir=a b", "--betas=[0.9, 0.95]"]),
        ("hydra", ["lr=1e-3", "bf16=true", "fp16=false", "out_dir='a b'", "betas=[0.9, 0.95]", "top=null"]),
    ],
)
def test_flags_as_the_program_takes_them(style, expected):
    bad = ["lr=1e-3", "bf16=true", "fp16=false", "out_dir=a b", "betas=[0.9, 0.95]", "top=none"]
    found = target("{flags}", good=["lr=1"], bad=bad, flag_style=style)
    assert command(found, "bad") == expected
    assert not any("bf16" in word for word in command(found, "good")), "the good side does not give it"


def test_switches_that_can_be_put_off_as_axolotl_has_them():
    """Left out, its YAML file would decide."""
    words = ["train", "c.yaml", "--bf16", "--no-sample-packing", "--lr=1e-3"]
    good = ["bf16=false", "sample_packing=true", "lr=1e-4"]
    found = target(*words, good=good, preset="axolotl")
    assert command(found, "bad") == words
    assert command(found, "good") == ["train", "c.yaml", "--no-bf16", "--sample-packing", "--lr=1e-4"]


def test_a_trainers_own_file_in_the_command_is_the_bad_side(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text("lr: 1.0e-3\nfp16: true\nstage: sft\n")
    words = ("train", "train.yaml", "lr=1e-2")
    found = target(*words, good=["fp16=false", "lr=1e-6"], preset="llamafactory")
    assert found.typed == ("sh", *words)
    assert command(found, "bad") == ["train", "CONFIG", "lr=1e-2"]
    assert command(found, "good") == ["train", "CONFIG", "lr=1e-6"]
    assert yaml.safe_load(found.config(found.sides.bad)) == {"fp16": True, "stage": "sft"}
    assert yaml.safe_load(found.config(found.sides.good)) == {"fp16": False, "stage": "sft"}
    Path("good.yaml").write_text("lr: 1.0e-6\n")
    found = target("train", "train.yaml", good=["good.yaml"], preset="axolotl")
    assert {factor.name for factor in found.sides.factors} == {"lr", "fp16", "stage"}


def test_a_bad_value_may_be_said_besides_and_only_once_differently():
    words, good = ["prog", "--wd", "0.1", "--batch", "16"], ["wd=0"]
    found = target(*words, good=good, bad=["wd=0.1"])
    assert command(found, "bad") == words and command(found, "good") == ["prog", "--wd", "0", "--batch", "16"]
    with pytest.raises(InputError, match="gives wd as 0.1, and --bad as 0.2"):
        target(*words, good=good, bad=["wd=0.2"])
    found = target("--wd", "0.1", "{flags}", good=good, bad=["wd=0.2"])  # another program's, for all that is known
    assert command(found, "bad") == ["--wd", "0.1", "--wd", "0.2"]


def test_hydra_reads_a_quoted_text_as_it_was():
    """By Hydra's rule: in quotes, a backslash counts in front of a quote and at the end."""
    texts = ["it's", "a\\'b", "end\\", "x,y", "${a}", "[1]", "null", "1e-3", "plain/path-1.0:2"]
    for text in texts:
        (word,) = command(target("{flags}", good=["t=x"], bad=[("t", text)], flag_style="hydra"), "bad")
        value = word.removeprefix("t=")
        if value[:1] == "'":
            value, at = value[1:-1], 0
            read = ""
            while at < len(value):  # as OverrideLexer.g4 and grammar_visitor have it
                slashes = len(value[at:]) - len(value[at:].lstrip("\\"))
                follows = value[at + slashes : at + slashes + 1]
                if slashes and follows in ("'", ""):
                    read, at = read + "\\" * (slashes // 2) + follows, at + slashes + 1
                    assert (slashes % 2 == 1) is (follows == "'"), word
                else:
                    read, at = read + value[at : at + max(slashes, 1)], at + max(slashes, 1)
            value = read
        assert value == text and (word != f"t={text}" or isinstance(read_value(text), str))


@pytest.mark.parametrize(("suffix", "read"), [("yaml", yaml.safe_load), ("json", json.loads), ("toml", tomllib.loads)])
def test_a_configuration_file_is_nested_as_the_users_own(tmp_path, suffix, read):
    bad = {"model": {"path": "a: b", "dtype": "bf16"}, "optim": {"lr": 1e-3, "betas": [0.9, 0.95]}, "é": "ü"}
    path = tmp_path / f"bad.{suffix}"
    text = {"yaml": yaml.safe_dump, "json": json.dumps}
    path.write_text('"é" = "ü"\n[model]\npath = "a: b"\ndtype = "bf16"\n[optim]\nlr = 1e-3\nbetas = [0.9, 0.95]\n')
    if suffix in text:
        path.write_text(text[suffix](bad))
    found = target("{config}", good=["optim.lr=1e-6"], bad=[str(path)])
    assert [factor.name for factor in found.sides.factors] == ["optim.lr"]
    assert read(found.config(found.sides.bad)) == bad
    assert read(found.config(found.sides.good)) == {**bad, "optim": {**bad["optim"], "lr": 1e-6}}
    assert command(found, "bad") == ["CONFIG"]


def test_two_files_are_compared_leaf_by_leaf(tmp_path):
    (tmp_path / "good.yaml").write_text("a: {b: 1, c: 2}\nd: 1e-6\nonly_good: 1\ne: null\n")
    (tmp_path / "bad.yaml").write_text("a: {b: 1, c: 3}\nd: 1e-3\nonly_bad: {x: 1}\ne: {y: 2}\n")
    found = target("{config}", good=[str(tmp_path / "good.yaml")], bad=[str(tmp_path / "bad.yaml")])
    assert {factor.name for factor in found.sides.factors} == {"a.c", "d", "only_good", "only_bad.x", "e"}
    assert found.sides.bad["d"] == 1e-3, "a number, though YAML 1.1 takes it for a text"
    assert yaml.safe_load(found.config(found.sides.good)) == {
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
    assert {factor.name: factor.bad for factor in found.sides.factors} == {
        "lr": 1e-3, "bf16": True, "max_len": 512, "optim": "adam", "seed": -1,
    }  # fmt: skip
    assert [factor.name for factor in target(*words, good=["lr=0.001", "bf16=false"]).sides.factors] == ["bf16"]


def test_a_boolean_that_is_written_out_is_a_value():
    found = target("--bf16", "True", "--fp16", "x.json", good=["bf16=False", "fp16=false"])
    assert command(found, "good") == ["--bf16", "False", "x.json"]


def test_none_takes_a_flag_away_with_its_value():
    found = target("--top_k", "50", "y", good=["top_k=none"])
    assert command(found, "good") == ["y"]
    found = target("a.top_k=50", "y", good=["a.top_k=none"], flag_style="hydra")
    assert command(found, "good") == ["a.top_k=null", "y"]


def test_a_pinned_setting_has_its_value_in_every_trial():
    found = target("--lr", "1", "--steps", "9", good=["lr=2"], pins=["steps=3"])
    assert command(found, "bad") == ["--lr", "1", "--steps", "3"]


def test_what_is_left_out_keeps_its_bad_value():
    found = target("--lr", "1", "--steps", "9", good=["lr=2", "steps=3"], only=["lr"])
    assert command(found, "good") == ["--lr", "2", "--steps", "9"]
    assert list(found.sides.not_varied) == ["steps"]


@pytest.mark.parametrize("options", [{"only": ["a.b"]}, {"excluded": ["a.d"]}])
def test_a_name_stands_for_all_that_is_within_it(options):
    words = [f"{name}=1" for name in ("a.b.c", "a.b.e", "a.d")]
    found = target(*words, good=[f"{word}0" for word in words], flag_style="hydra", **options)
    assert {factor.name for factor in found.sides.factors} == {"a.b.c", "a.b.e"}
    assert list(found.sides.not_varied) == ["a.d"]


def test_environment_variables_need_no_place(monkeypatch):
    monkeypatch.setenv("SHARD", "2")
    found = target("x", good=["env.SHARD="])
    assert found.variables(found.sides.bad) == {"SHARD": "2"}
    assert found.variables(found.sides.good) == {"SHARD": None}


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (["{a}", "{b}"], {"good": ["a=1"], "bad": ["a=2"]}, "neither side gives a value for b"),
        (["{a}"], {"good": ["a=1", "b=1"], "bad": ["a=2", "b=2"]}, "Nothing in the command takes b"),
        (["x"], {"good": ["a=1"], "bad": ["a=2"]}, "Nothing in the command takes a setting: no placeholder"),
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
        (["{n m}"], {"good": ["n m=1"], "bad": ["n m=2"]}, "n m cannot be the name of a place"),
        (["{n m}"], {"good": ["n=1"], "bad": ["n=2"]}, "{n m} in the command is not a placeholder"),
        (['{"n": 1}'], {"good": ["n=1"], "bad": ["n=2"]}, "Nothing in the command takes a setting: no placeholder"),
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
        find_target(["no-such-program"], good=["a=1"])
    with pytest.raises(InputError, match="-- python train.py {flags}"):
        find_target(["train.py", "{a}"], good=["a=1"], bad=["a=2"])


def test_which_commands_are_run_as_they_stand():
    script = ["python", "train.py", "--template", "{question}"]
    assert not is_any_command(script, ["bf16=false"], told=False, found=True), "a text that no setting is called after"
    assert is_any_command([*script, "{flags}"], [], told=False, found=True)
    assert is_any_command([*script, "{bf16}"], ["bf16=false"], told=False, found=True)
    assert is_any_command(["sort"], ["a=1"], told=False, found=False) and is_any_command(script, [], True, True)


def test_presets_name_a_style_and_their_source():
    for name, preset in presets().items():
        assert preset.flag_style in styles() and preset.source.startswith("https://github.com/"), name


def test_values_as_typed():
    typed = ["1e-3", "true", "None", "[1, 2]", "a: b", "# c", "1_000", " 1", "{x", ""]
    assert [read_value(text) for text in typed] == [1e-3, True, None, [1, 2], "a: b", "# c", 1000, " 1", "{x", ""]


def test_files_of_the_command_are_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("x")
    found = target("{a}", "--in=data.txt", good=["a=1"], bad=["a=2"])
    assert list(found.identity()["files"]) == ["data.txt"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--style fancy --clip-reward", {"style": "fancy", "clip-reward": True}),
        ("--rows=-3 --clip --gain -1", {"rows": "-3", "clip": True, "gain": "-1"}),
        ("--learning_rate 1e-3 --bf16 --temperature=0.9", {}),  # settings of the training config
        ("--output-dir o --dataset_name d --model x --config c.yaml --hub_token t --seed 3", {}),
        ("conf.yaml grpo.epsilon=0.4 -v --", {}),
    ],
)
def test_flags_of_a_scripts_own(words, found):
    assert own_flags(words.split(), {"learning_rate", "bf16", "temperature"}) == found
