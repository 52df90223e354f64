"""The lines to change: found where they are, changed so that the file means what was recommended."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from bisect_cfg.common.configuration import UNSET
from bisect_cfg.recommend.edits import Change, Edits, configures, find_edits


def edited(folder: Path, text: str, *changes: Change) -> tuple[str, list[str]]:
    """A script after the edits, applied as a patch by the usual tool, and what was not found."""
    path = folder / "train.py"
    path.write_text(text)
    found = find_edits(changes, (), [path])
    if found.diff:
        subprocess.run(["patch", "-s", str(path)], input=found.diff, text=True, check=True)
    return path.read_text(), names(found)


def names(found: Edits) -> list[str]:
    return [missing.name for missing in found.unplaced]


LR = Change("learning_rate", 2e-2, 1.7e-5)


@pytest.mark.parametrize(
    "before, after",
    [
        ("GRPOConfig(learning_rate=2e-2, beta=0.0)\n", "GRPOConfig(learning_rate=1.7e-05, beta=0.0)\n"),
        ("LR = 0.02\nGRPOConfig(learning_rate=LR)\n", "LR = 1.7e-05\nGRPOConfig(learning_rate=LR)\n"),
        (
            'o = {"learning_rate": 0.02}\nGRPOConfig(**o)\n',
            'o = {"learning_rate": 1.7e-05}\nGRPOConfig(**o)\n',
        ),
        ("args.learning_rate = 0.02  # é\n", "args.learning_rate = 1.7e-05  # é\n"),
        ("é = f('é', learning_rate=0.02)\n", "é = f('é', learning_rate=1.7e-05)\n"),
        ("class C:\n    learning_rate: float = 0.02\n", "class C:\n    learning_rate: float = 1.7e-05\n"),
        (
            "class C:\n    learning_rate: float = field(default=0.02)\n",
            "class C:\n    learning_rate: float = field(default=1.7e-05)\n",
        ),
        (
            "p.add_argument('--learning-rate', default=0.02)\n",
            "p.add_argument('--learning-rate', default=1.7e-05)\n",
        ),
    ],
)
def test_python(tmp_path, before, after):
    assert edited(tmp_path, before, LR) == (after, [])


@pytest.mark.parametrize(
    "text",
    [
        "GRPOConfig(learning_rate=0.01)\n",
        "GRPOConfig(learning_rate=2 * rate)\n",
        "LR = 0.02\nLR = LR * 2\nGRPOConfig(learning_rate=LR)\n",
        "# learning_rate=0.02\n",
        "this is no Python learning_rate=0.02\n",
    ],
)
def test_what_is_not_the_value_is_left_alone(tmp_path, text):
    assert edited(tmp_path, text, LR) == (text, ["learning_rate"])


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (
            Change("launch.num_processes", 2, 1),
            "start one process: python, --num_processes 1, or torchrun's --nproc_per_node 1",
        ),
        (Change("launch.mixed_precision", "bf16", "no"), "launch it with --mixed_precision no"),
        (Change("env.MODE", "fast", None), "unset MODE"),
        (Change("env.SAFE", None, "01"), "put SAFE=01 in front of the command"),
        (Change("env.SAFE", "01", UNSET), "unset SAFE"),
        (Change("launch.distributed_type", "FSDP", "NO"), "launch it without --use_fsdp and --use_deepspeed"),
    ],
)
def test_what_the_launcher_was_told_is_in_no_file(tmp_path, change, advice):
    path = tmp_path / "train.py"
    path.write_text("num_processes = 2\nGRPOConfig(learning_rate=0.02)\n")
    found = find_edits([change], (), [path], [], config="GRPOConfig")
    assert found.edits == () and [missing.add for missing in found.unplaced] == [advice]


def test_dtypes_and_removal(tmp_path):
    text = "m = M.from_pretrained(folder, dtype=torch.float16)\n"
    assert edited(tmp_path, text, Change("model.dtype", "float16", "float32"))[0].endswith("dtype=torch.float32)\n")
    gone, left = edited(tmp_path, text, Change("model.dtype", "float16", None))
    assert (gone, left) == ("m = M.from_pretrained(folder)\n", [])
    lines = "GRPOConfig(\n    optim='adamw_torch',\n    beta=0.1,\n)\n"
    gone, _ = edited(tmp_path, lines, Change("optim", "adamw_torch", None))
    assert gone == "GRPOConfig(\n    beta=0.1,\n)\n"


def test_two_changes_in_one_line(tmp_path):
    text = "GRPOConfig(learning_rate=0.02, beta=0.5)\n"
    assert edited(tmp_path, text, LR, Change("beta", 0.5, 0.04))[0] == "GRPOConfig(learning_rate=1.7e-05, beta=0.04)\n"


@pytest.mark.parametrize(
    "text",
    [
        "a = GRPOConfig(beta=0.5)\n",
        "a = GRPOConfig(\n    beta=0.5,\n)\n",
        "a = GRPOConfig(\n    optim='sgd', beta=0.5)\n",
        "a = GRPOConfig(\n    beta=0.5)\n",
        "a = GRPOConfig(\n    beta=0.5,  # why\n)\n",
    ],
)
def test_a_setting_that_the_script_does_not_mention_is_added(tmp_path, text):
    after, left = edited(tmp_path, text, Change("adam_epsilon", 1e-8, 1e-6, added=True), Change("beta", 0.5, 0.04))
    seen = {}
    exec(after, {"GRPOConfig": lambda **settings: seen.update(settings)})
    assert left == [] and seen["adam_epsilon"] == 1e-6 and seen["beta"] == 0.04


def test_yaml_keeps_its_comments(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("# mine\nlearning_rate: 0.02   # hot\nbf16: true\noptim: sgd\n")
    changes = [LR, Change("bf16", True, False), Change("optim", "sgd", None)]
    found = find_edits(changes, (), [], [path])
    assert names(found) == [] and [str(edit) for edit in found.edits][0] == (
        f"{path}:2: learning_rate: 0.02   # hot -> learning_rate: 1.7e-05   # hot"
    )
    subprocess.run(["patch", "-s", str(path)], input=found.diff, text=True, check=True)
    assert path.read_text() == "# mine\nlearning_rate: 1.7e-05   # hot\nbf16: false\n"
    path.write_text("learning_rate: 0.02\n")
    (edit,) = find_edits([Change("learning_rate", 0.02, 1e-6)], (), [], [path]).edits
    assert yaml.safe_load(edit.new) == {"learning_rate": 1e-6}


@pytest.mark.parametrize("arguments", [["--learning_rate", "2e-2"], ["--learning-rate=0.02"]])
def test_flags_win(tmp_path, arguments):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 0.02\n")
    found = find_edits([LR], arguments, [], [path])
    (edit,) = found.edits
    assert names(found) == [] and edit.path is None and found.diff == ""
    assert "1.7e-05" in str(edit) and "command line" in str(edit)


# -------------------------------------------------------------------------------------------------- where it stands


def test_the_line_that_is_shown(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("a = 1\n\nargs = GRPOConfig(\n    learning_rate=0.03,  # as in the paper\n)\n")
    (edit,) = find_edits([Change("learning_rate", 0.03, 0.00061)], (), [path]).edits
    assert (edit.line, edit.old.strip(), edit.new.strip(), edit.names) == (
        4, "learning_rate=0.03,  # as in the paper", "learning_rate=0.00061,  # as in the paper", ("learning_rate",)
    )  # fmt: skip


@pytest.mark.parametrize(
    "before, after",
    [
        # the call that builds the training config decides, whoever else gives a value of that name
        (
            "s = SFTConfig(learning_rate=0.02)\ng = GRPOConfig(learning_rate=0.02)\n",
            "s = SFTConfig(learning_rate=0.02)\ng = GRPOConfig(learning_rate=1.7e-05)\n",
        ),
        # a class of the user's own is one too
        (
            "class Mine(GRPOConfig):\n    pass\nMine(learning_rate=0.02)\nf(learning_rate=0.02)\n",
            "class Mine(GRPOConfig):\n    pass\nMine(learning_rate=1.7e-05)\nf(learning_rate=0.02)\n",
        ),
        # what is unpacked there, as a dictionary or a call of dict
        (
            "o = dict(learning_rate=0.02)\nGRPOConfig(**o)\n",
            "o = dict(learning_rate=1.7e-05)\nGRPOConfig(**o)\n",
        ),
        ("GRPOConfig(**{'learning_rate': 0.02})\n", "GRPOConfig(**{'learning_rate': 1.7e-05})\n"),
        (
            "o = {}\no['learning_rate'] = 0.02\nGRPOConfig(**o)\n",
            "o = {}\no['learning_rate'] = 1.7e-05\nGRPOConfig(**o)\n",
        ),
        # through a name, from one function to another
        (
            "def main(rate=0.02):\n    GRPOConfig(learning_rate=rate)\nmain()\n",
            "def main(rate=1.7e-05):\n    GRPOConfig(learning_rate=rate)\nmain()\n",
        ),
        (
            "def main(rate):\n    GRPOConfig(learning_rate=rate)\nmain(rate=0.02)\n",
            "def main(rate):\n    GRPOConfig(learning_rate=rate)\nmain(rate=1.7e-05)\n",
        ),
        # an option of another name
        (
            "p.add_argument('--lr', default=0.02)\na = p.parse_args()\nGRPOConfig(learning_rate=float(a.lr))\n",
            "p.add_argument('--lr', default=1.7e-05)\na = p.parse_args()\nGRPOConfig(learning_rate=float(a.lr))\n",
        ),
        (
            "class Mine:\n    lr: float = 0.02\nGRPOConfig(learning_rate=m.lr)\n",
            "class Mine:\n    lr: float = 1.7e-05\nGRPOConfig(learning_rate=m.lr)\n",
        ),
        # numbers that are written as arithmetic
        ("GRPOConfig(learning_rate=2 * 10**-2)\n", "GRPOConfig(learning_rate=1.7e-05)\n"),
        (
            "def f(a):\n    setattr(a, 'learning_rate', 0.02)\n",
            "def f(a):\n    setattr(a, 'learning_rate', 1.7e-05)\n",
        ),
    ],
)
def test_the_value_is_found_where_it_is_written(tmp_path, before, after):
    assert edited(tmp_path, before, LR) == (after, [])


def test_a_constant_of_another_module(tmp_path):
    (tmp_path / "rates.py").write_text("RATE = 0.02\n")
    (tmp_path / "train.py").write_text("from rates import RATE\nGRPOConfig(learning_rate=RATE)\n")
    (edit,) = find_edits([LR], (), [tmp_path / "train.py", tmp_path / "rates.py"]).edits
    assert (edit.path, edit.new) == (tmp_path / "rates.py", "RATE = 1.7e-05")


def test_what_is_set_afterwards_is_the_place(tmp_path):
    text = "a = GRPOConfig(learning_rate=0.02)\na.learning_rate = 0.02\n"
    path = tmp_path / "train.py"
    path.write_text(text)
    (edit,) = find_edits([LR], ["--learning_rate", "0.02"], [path], assigned=["learning_rate"]).edits
    assert (edit.line, edit.new) == (2, "a.learning_rate = 1.7e-05")


def test_of_several_trainings_the_call_that_built_the_one_that_failed(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("a = GRPOConfig(\n    learning_rate=0.02,\n)\nb = GRPOConfig(\n    learning_rate=0.02,\n)\n")
    assert find_edits([LR], (), [path]).unplaced[0].why.startswith("it is given at")
    for built, line in ((1, 2), (4, 5)):
        (edit,) = find_edits([LR], (), [path], built={"args": (str(path), built)}).edits
        assert edit.line == line
    new = find_edits([Change("beta", 0.0, 0.1, added=True)], (), [path], built={"args": (str(path), 4)}).edits
    assert [edit.line for edit in new] == [6]


def test_dictionaries_in_the_config(tmp_path):
    change = Change("model_init_kwargs.torch_dtype", "float16", "float32")
    text = "GRPOConfig(model_init_kwargs={'torch_dtype': 'float16'})\nload(torch_dtype='float16')\n"
    assert edited(tmp_path, text, change) == (text.replace("float16", "float32", 1), [])
    lists = "c = LoraConfig(target_modules=['a', 'b'], r=8)\n"
    assert edited(tmp_path, lists, Change("peft.target_modules", ["a", "b"], ["a"])) == (
        lists.replace(", 'b'", ""),
        [],
    )


@pytest.mark.parametrize(
    "text, why, add",
    [
        (
            "GRPOConfig(learning_rate=2 * rate)\nf(learning_rate=0.02)\n",
            "train.py:1 computes it",
            "learning_rate=1.7e-05 there",
        ),
        (
            "GRPOConfig(learning_rate=0.02)\nGRPOConfig(learning_rate=0.02)\n",
            "train.py:1 and ",
            "where it is meant",
        ),
        ("for r in (0.02, 0.03):\n    GRPOConfig(learning_rate=r)\n", "train.py:2 computes it", "there"),
        ("LR = 0.02\nLR *= 2\nGRPOConfig(learning_rate=LR)\n", "train.py:3 computes it", "there"),
        ("GRPOConfig(beta=0.1)\n", "not a plain value", "to GRPOConfig(...) at "),
    ],
)
def test_what_cannot_be_placed_is_said_with_what_to_write_instead(tmp_path, text, why, add):
    path = tmp_path / "train.py"
    path.write_text(text)
    found = find_edits([LR], (), [path])
    (missing,) = found.unplaced
    assert not found.edits and not found.diff and missing.name == "learning_rate"
    assert why in missing.why and add in missing.add and "1.7e-05" in missing.add


# ------------------------------------------------------------------------------------------------------------- YAML


@pytest.mark.parametrize(
    "before, after",
    [
        ("train:\n    learning_rate:   2e-2   # hot\n", "train:\n    learning_rate:   1.7e-05   # hot\n"),
        ("train: {learning_rate: 0.02, beta: 0}\n", "train: {learning_rate: 1.7e-05, beta: 0}\n"),
        ("a: &rate 0.02\nlearning_rate: *rate\n", "a: &rate 0.02\nlearning_rate: 1.7e-05\n"),
        ("a: &a\n  learning_rate: 0.02\nb:\n  <<: *a\n", "a: &a\n  learning_rate: 1.7e-05\nb:\n  <<: *a\n"),
        ("learning_rate: 0.01\nlearning_rate: 0.02\n", "learning_rate: 0.01\nlearning_rate: 1.7e-05\n"),
        ("rate: 0.02\ntrain:\n  learning_rate: ${rate}\n", "rate: 1.7e-05\ntrain:\n  learning_rate: ${rate}\n"),
        ("- learning_rate: 0.02\n  beta: 1\n", "- learning_rate: 1.7e-05\n  beta: 1\n"),
        ("learning_rate: '2e-2'\r\nbeta: 1\r\n", "learning_rate: 1.7e-05\r\nbeta: 1\r\n"),
    ],
)  # fmt: skip
def test_yaml(tmp_path, before, after):
    assert edited_yaml(tmp_path, before, LR) == (after, [])


@pytest.mark.parametrize(("name", "before", "after"), [
    ("script.unit", "lr: 1\nunit: 0\n", "lr: 1\nunit: 6\n"),
    ("script.reward.unit", "loss: {unit: 0}\nreward: {unit: 0}\n", "loss: {unit: 0}\nreward: {unit: 6}\n"),
])  # fmt: skip
def test_settings_of_the_scripts_own_in_yaml(tmp_path, name, before, after):
    assert edited_yaml(tmp_path, before, Change(name, 0, 6)) == (after, [])


def edited_yaml(
    folder: Path, text: str, *changes: Change, name: str = "config.yaml", **options
) -> tuple[str, list[str]]:
    path = folder / name
    path.write_bytes(text.encode())
    found = find_edits(changes, (), [], [path], **options)
    return found.after.get(path, text), names(found)


@pytest.mark.parametrize(
    "before, new, after",
    [
        ("m:\n- a\n- b  # second\nx: 1\n", ["c"], "m:\n- c  # second\nx: 1\n"),
        (
            "m:  # which\n    - a\n    - b\n\n# more\nx: 1\n",
            ["a", "c"],
            "m:  # which\n    - a\n    - c\n\n# more\nx: 1\n",
        ),
        ("m: &m\n  - a\n  - b\nn: *m\n", None, None),
        ("m: [a,  'b']  # flow\n", ["c"], "m: [c]  # flow\n"),
        ("o:\n  m: [a, b]\nx: 1\n", None, "x: 1\n"),
        ("o: {m: [a, b], x: 1}\n", None, "o: {x: 1}\n"),
        ("o: {x: 1, m: [a, b]}\n", None, "o: {x: 1}\n"),
        ("x: 1\nm:\n  - a\n  - b\ny: 2\n", None, "x: 1\ny: 2\n"),
    ],
)
def test_lists_in_yaml(tmp_path, before, new, after):
    wanted = (before, ["m"]) if after is None else (after, [])
    assert edited_yaml(tmp_path, before, Change("m", ["a", "b"], new)) == wanted


def test_only_the_key_of_its_own_dictionary_is_meant(tmp_path):
    text = "dtype: float16\nmodel_init_kwargs:\n  dtype: float16\n"
    after, left = edited_yaml(tmp_path, text, Change("model_init_kwargs.dtype", "float16", "float32"))
    assert left == [] and yaml.safe_load(after) == {
        "dtype": "float16",
        "model_init_kwargs": {"dtype": "float32"},
    }


def test_an_anchor_that_serves_something_else_is_left_alone(tmp_path):
    text = "learning_rate: &rate 0.02\nweight_decay: *rate\n"
    assert edited_yaml(tmp_path, text, LR) == (text, ["learning_rate"])


def test_json(tmp_path):
    text = '{\n  "learning_rate": 2e-2,\n  "bf16": true\n}\n'
    changes = Change("learning_rate", 0.02, 1e-6), Change("bf16", True, False)
    after, left = edited_yaml(tmp_path, text, *changes, name="config.json")
    assert left == [] and after == '{\n  "learning_rate": 1e-06,\n  "bf16": false\n}\n'


TOML = """# how we train
[data]
learning_rate = 7   # of something else
[grpo]
learning_rate = 2e-2  # bold
bf16 = true
[grpo.model_init_kwargs]
dtype = "float16"
"""


def test_toml(tmp_path):
    (tmp_path / "train.py").write_text("GRPOConfig(**tomllib.load(open('c.toml', 'rb'))['grpo'])\n")
    (tmp_path / "c.toml").write_text(TOML)
    bf16, dtype = Change("bf16", True, None), Change("model_init_kwargs.dtype", "float16", "float32")
    beta = Change("beta", None, 0.5, added=True)
    fields = ("learning_rate", "bf16", "beta")
    files = ([tmp_path / "train.py"], [tmp_path / "c.toml"])
    found = find_edits([LR, bf16, dtype, beta], (), *files, fields=fields)
    assert names(found) == []
    assert found.after[tmp_path / "c.toml"] == (
        TOML.replace("2e-2", "1.7e-05").replace("bf16 = true\n", "beta = 0.5\n\n").replace("float16", "float32")
    )
    assert [(edit.line, edit.old) for edit in found.edits][0] == (5, "learning_rate = 2e-2  # bold")
    assert names(find_edits([Change("learning_rate", 0.3, 0.1)], (), *files)) == ["learning_rate"]


@pytest.mark.parametrize(
    ("name", "text", "does"),
    [
        ("c.json", '{"learning_rate": 1e-5}', True),
        ("c.json", '{"model": "m", "data": {"x": 1}, "train": {"bf16": false, "beta": 0.1, "mine": 3}}', True),
        ("c.toml", "[grpo]\nbeta = 0.1\n", True),
        ("generation_config.json", '{"temperature": 0.6, "top_p": 0.9, "transformers_version": "5.0"}', False),
        ("rows.json", '[{"prompt": "a", "answer": "b", "beta": 1}]', False),
        ("broken.json", '{"beta": ', False),
        ("empty.json", "{}", False),
        ("pyproject.toml", "[project]\nname = 'a'\n", False),
    ],
)
def test_which_files_configure_a_run(tmp_path, name, text, does):
    (tmp_path / name).write_text(text)
    assert configures(tmp_path / name, ("learning_rate", "bf16", "beta", "temperature", "top_p")) is does


def test_a_keyword_that_a_dictionary_may_hold_is_not_advised_beside_it(tmp_path):
    (tmp_path / "train.py").write_text("GRPOConfig(output_dir='o', **settings())\n")
    (missing,) = find_edits([LR], (), [tmp_path / "train.py"]).unplaced
    assert missing.add == (
        f'write **{{**settings(), "learning_rate": 1.7e-05}} in place of **settings() in GRPOConfig(...) '
        f"at {tmp_path / 'train.py'}:1"
    )


def test_a_group_of_hydra_holds_the_value(tmp_path):
    for name, text in {
        "config.yaml": "defaults:\n  - training: fast\n  - _self_\nseed: 1\n",
        "training/fast.yaml": "# @package training\nlearning_rate: 2e-2  # bold\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text("GRPOConfig(learning_rate=cfg.training.learning_rate)\n")
    paths = [tmp_path / "config.yaml", tmp_path / "training/fast.yaml"]
    (edit,) = find_edits([LR], (), [tmp_path / "train.py"], paths).edits
    assert (edit.path, edit.line, edit.new) == (paths[1], 2, "learning_rate: 1.7e-05  # bold")
    (edit,) = find_edits([LR], ["training.learning_rate=2e-2"], [tmp_path / "train.py"], paths).edits
    assert (edit.path, edit.new) == (None, "training.learning_rate=1.7e-05")


def test_two_files_that_give_the_value_are_both_named(tmp_path):
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in paths:
        path.write_text("learning_rate: 0.02\n")
    (missing,) = find_edits([LR], (), [], paths).unplaced
    assert f"{paths[0]}:1 and {paths[1]}:1" in missing.why


def test_an_added_setting_joins_the_training_config_of_a_yaml_file(tmp_path):
    text = "data:\n  name: x\ntrain:\n  learning_rate: 0.02  # hot\n  beta: 0.1\nother: 1\n"
    change = Change("adam_epsilon", 1e-8, 1e-6, added=True)
    after, left = edited_yaml(tmp_path, text, LR, change, fields={"learning_rate", "beta", "adam_epsilon"})
    assert left == [] and after == (
        "data:\n  name: x\ntrain:\n  learning_rate: 1.7e-05  # hot\n  beta: 0.1\n  adam_epsilon: 1.0e-06\nother: 1\n"
    )


# -------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "arguments, change, old, new",
    [
        (["--learning_rate=0.02"], LR, "--learning_rate=0.02", "--learning_rate=1.7e-05"),
        (["--learning_rate", "1", "--learning_rate", "2e-2"], LR, "--learning_rate 2e-2", "--learning_rate 1.7e-05"),
        (["--bf16"], Change("bf16", True, False), "--bf16", "--bf16 False"),
        (["--bf16", "true", "x"], Change("bf16", True, False), "--bf16 true", "--bf16 False"),
        (["--optim", "sgd"], Change("optim", "sgd", None), "--optim sgd", ""),
        (["--target_modules", "a", "b", "--x"], Change("peft.target_modules", ["a", "b"], ["c"]),
            "--target_modules a b", "--target_modules c"),
        (["--beta", "-0.5"], Change("beta", -0.5, 0.0), "--beta -0.5", "--beta 0.0"),
        (
            ["--model_init_kwargs", '{"dtype": "float16", "x": 1}'],
            Change("model_init_kwargs.dtype", "float16", "float32"),
            """--model_init_kwargs '{"dtype": "float16", "x": 1}'""",
            """--model_init_kwargs '{"dtype": "float32", "x": 1}'""",
        ),
    ],
)  # fmt: skip
def test_flags(arguments, change, old, new):
    (edit,) = find_edits([change], arguments).edits
    assert (edit.path, edit.old, edit.new) == (None, old, new)


def test_a_flag_of_another_name_and_one_without_a_value(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "p.add_argument('--lr', '-l', type=float)\np.add_argument('--half', action='store_true')\n"
        "a = p.parse_args()\nGRPOConfig(learning_rate=a.lr, bf16=a.half)\n"
    )
    edits = find_edits([LR, Change("bf16", True, False)], ["--half", "--lr", "2e-2"], [path]).edits
    assert [(edit.old, edit.new) for edit in edits] == [("--lr 2e-2", "--lr 1.7e-05"), ("--half", "")]
