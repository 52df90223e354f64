"""The lines to change: found where they are, changed so that the file means what was recommended."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from bisect_cfg.common.configuration import UNSET
from bisect_cfg.rewrite.edits import edits_of, hash_of
from bisect_cfg.rewrite.places import configures
from bisect_cfg.rewrite.spans import Change, Span, splice
from bisect_cfg.targets.notebook import as_script
from tests.rewrite.cases import LR, edited, flags, missing, places

BETA = Change("adam_epsilon", 1e-8, 1e-6, added=True)
NEW = "1.7e-05"

PYTHON = {
    "a keyword": "GRPOConfig(learning_rate=@2e-2@, beta=0.0)\n",
    "a constant": "LR = @0.02@\nGRPOConfig(learning_rate=LR)\n",
    "a dictionary": 'o = {"learning_rate": @0.02@}\nGRPOConfig(**o)\n',
    "a call of dict": "o = dict(learning_rate=@0.02@)\nGRPOConfig(**o)\n",
    "a dictionary in place": "GRPOConfig(**{'learning_rate': @0.02@})\n",
    "a key that is assigned": "o = {}\no['learning_rate'] = @0.02@\nGRPOConfig(**o)\n",
    "an attribute": "args.learning_rate = @0.02@  # é\n",
    "beside what is no ASCII": "é = f('é', learning_rate=@0.02@)\n",
    "setattr": "def f(a):\n    setattr(a, 'learning_rate', @0.02@)\n",
    "a field": "class C:\n    learning_rate: float = @0.02@\n",
    "a field's default": "class C:\n    learning_rate: float = field(default=@0.02@)\n",
    "a field's factory": "class C:\n    learning_rate: float = field(default_factory=lambda: @0.02@)\n",
    "an option": "p.add_argument('--learning-rate', default=@0.02@)\n",
    "an option of another name": "p.add_argument('--lr', default=@0.02@)\nGRPOConfig(learning_rate=float(a.lr))\n",
    "a field of another name": "class Mine:\n    lr: float = @0.02@\nGRPOConfig(learning_rate=m.lr)\n",
    "a key of a dictionary": "c = {'lr': @0.02@}\nGRPOConfig(learning_rate=c['lr'])\n",
    "a parameter's default": "def main(rate=@0.02@):\n    GRPOConfig(learning_rate=rate)\nmain()\n",
    "a parameter": "def main(rate):\n    GRPOConfig(learning_rate=rate)\nmain(rate=@0.02@)\n",
    "the training config, not another": "SFTConfig(learning_rate=0.02)\nGRPOConfig(learning_rate=@0.02@)\n",
    "a class of the user's own": "class M(GRPOConfig):\n    pass\nM(learning_rate=@0.02@)\nf(learning_rate=0.02)\n",
    "lines that end as on Windows": "a = 1\r\nGRPOConfig(\r\n    learning_rate=@0.02@,  # é\r\n)\r\n",
}


@pytest.mark.parametrize("text", PYTHON.values(), ids=PYTHON)
def test_python(text):
    before, old, after = text.split("@")
    assert edited("train.py", before + old + after, LR) == (before + NEW + after, [])


@pytest.mark.parametrize(
    ("text", "why", "add"),
    [
        ("GRPOConfig(learning_rate=0.01)\n", "it is computed there", "learning_rate=1.7e-05 at train.py:1"),
        ("GRPOConfig(learning_rate=2 * rate)\nf(learning_rate=0.02)\n", "it is computed there", "at train.py:1"),
        ("LR = 0.02\nLR *= 2\nGRPOConfig(learning_rate=LR)\n", "it is computed there", "at train.py:3"),
        ("for r in (0.02, 0.03):\n    GRPOConfig(learning_rate=r)\n", "it is computed there", "at train.py:2"),
        ("GRPOConfig(learning_rate=0.02)\n" * 2, "train.py:1 and train.py:2", "where it is meant"),
        ("GRPOConfig(beta=0.1)\n", "not a plain value", "give GRPOConfig(...) at train.py:1 learning_rate=1.7e-05"),
        ("# learning_rate=0.02\n", "not a plain value", "set learning_rate to 1.7e-05"),
        ("this is no Python learning_rate=0.02\n", "not a plain value", "set learning_rate"),
    ],
)
def test_what_cannot_be_placed_is_said_with_what_to_write_instead(text, why, add):
    found = edits_of(places({Path("train.py"): text}), [LR])
    (one,) = found.unplaced
    assert not found.spans and not found.diff and one.setting == "learning_rate" and why in one.why and add in one.add


def test_a_dtype_and_none():
    text, dtype = "m = M.from_pretrained(folder, dtype=torch.float16)\n", Change("model.dtype", "float16", "float32")
    assert edited("train.py", text, dtype) == (text.replace("float16", "float32"), [])
    unset = text.replace("torch.float16", "None")
    assert edited("train.py", text, Change("model.dtype", "float16", None)) == (unset, [])


def test_two_changes_in_one_line_are_one_edit():
    found = edits_of(
        places({Path("t.py"): "GRPOConfig(learning_rate=2e-2, beta=0.5)\n"}), [Change("beta", 0.5, 0.04), LR]
    )
    (one,) = found.shown()
    assert (one.new, one.settings) == ("GRPOConfig(learning_rate=1.7e-05, beta=0.04)", ("learning_rate", "beta"))


@pytest.mark.parametrize("text", [
    "GRPOConfig(beta=0.5)\n", "GRPOConfig(\n    beta=0.5,\n)\n", "GRPOConfig(\n    optim='sgd', beta=0.5)\n",
    "GRPOConfig(\n    beta=0.5)\n", "GRPOConfig(\n    beta=0.5,  # why\n)\n", "GRPOConfig(\n    beta=0.5  # why\n)\n",
])  # fmt: skip
def test_a_setting_that_the_script_does_not_mention_is_added(text):
    more = Change("lr", 1, 3, added=True)
    after, left = edited("train.py", text, BETA, more, Change("beta", 0.5, 0.04))
    seen = {}
    exec(after, {"GRPOConfig": lambda **settings: seen.update(settings)})
    assert left == [] and {"adam_epsilon": 1e-6, "lr": 3, "beta": 0.04}.items() <= seen.items()
    assert after.count("why") == text.count("why")


def test_where_it_is():
    text = "a = 1\n\nargs = GRPOConfig(\n    learning_rate=0.02,  # as in the paper\n)\n"
    found = edits_of(places({Path("train.py"): text}), [LR, BETA])
    (one,) = found.shown()
    assert (one.line, one.old) == (4, "    learning_rate=0.02,  # as in the paper")
    assert one.new == "    learning_rate=1.7e-05, adam_epsilon=1e-06,  # as in the paper"
    assert one.settings == ("learning_rate", "adam_epsilon")


def test_the_diff_is_a_patch(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("a = GRPOConfig(\n    beta=0.5,\n    learning_rate=0.02)")
    found = edits_of(places({path: path.read_text()}), [LR, BETA])
    subprocess.run(["patch", "-s", str(path)], input=found.diff, text=True, check=True)
    assert path.read_text() == found.after(path)


def test_a_constant_of_another_module():
    files = {
        Path("train.py"): "from rates import RATE\nGRPOConfig(learning_rate=RATE)\n",
        Path("rates.py"): "RATE = 0.02\n",
    }
    found = edits_of(places(files), [LR])
    assert found.paths == [Path("rates.py")] and found.after(Path("rates.py")) == "RATE = 1.7e-05\n"


def test_what_is_set_afterwards_is_the_place():
    text = "a = GRPOConfig(learning_rate=0.02)\na.learning_rate = 0.02\n"
    found = edits_of(places({Path("t.py"): text}, ("--learning_rate", "0.02"), assigned=["learning_rate"]), [LR])
    assert found.after(Path("t.py")) == text.replace("a.learning_rate = 0.02", "a.learning_rate = 1.7e-05")


def test_of_several_trainings_the_call_that_built_the_one_that_failed(tmp_path):
    path = tmp_path / "train.py"
    text = "a = GRPOConfig(\n    learning_rate=0.02,\n)\nb = GRPOConfig(\n    learning_rate=0.02,\n)\n"
    for built, line in ((1, 2), (4, 5)):
        found = edits_of(places({path: text}, built={"args": (str(path), built)}), [LR, BETA])
        assert [(one.line, one.settings) for one in found.shown()] == [(line, ("learning_rate", "adam_epsilon"))]


def test_dictionaries_in_the_config():
    change = Change("model_init_kwargs.torch_dtype", "float16", "float32")
    text = "GRPOConfig(model_init_kwargs={'torch_dtype': 'float16'})\nload(torch_dtype='float16')\n"
    assert edited("train.py", text, change) == (text.replace("float16", "float32", 1), [])
    lists = "c = LoraConfig(target_modules=['a', 'b'], r=8)\n"
    assert edited("t.py", lists, Change("peft.target_modules", ["a", "b"], ["a"]))[0] == lists.replace(", 'b'", "")


# -------------------------------------------------------------------------------------------------- YAML, JSON, TOML

DATA = {
    "train:\n    learning_rate:   2e-2   # hot\n": "train:\n    learning_rate:   1.7e-05   # hot\n",
    "train: {learning_rate: 0.02, beta: 0}\n": "train: {learning_rate: 1.7e-05, beta: 0}\n",
    "a: &rate 0.02\nlearning_rate: *rate\n": "a: &rate 0.02\nlearning_rate: 1.7e-05\n",
    "a: &a\n  learning_rate: 0.02\nb:\n  <<: *a\n": "a: &a\n  learning_rate: 1.7e-05\nb:\n  <<: *a\n",
    "learning_rate: 0.01\nlearning_rate: 0.02\n": "learning_rate: 0.01\nlearning_rate: 1.7e-05\n",
    "rate: 0.02\ntrain:\n  learning_rate: ${rate}\n": "rate: 1.7e-05\ntrain:\n  learning_rate: ${rate}\n",
    "- learning_rate: 0.02\n  beta: 1\n": "- learning_rate: 1.7e-05\n  beta: 1\n",
    "learning_rate: '2e-2'\r\nbeta: 1\r\n": "learning_rate: 1.7e-05\r\nbeta: 1\r\n",
    "learning_rate: &rate 0.02\nweight_decay: *rate\n": None,
}


@pytest.mark.parametrize(("before", "after"), DATA.items())
def test_yaml(before, after):
    assert edited("config.yaml", before, LR) == ((before, ["learning_rate"]) if after is None else (after, []))


@pytest.mark.parametrize(("change", "before", "after"), [
    (Change("script.unit", 0, 6), "lr: 1\nunit: 0\n", "lr: 1\nunit: 6\n"),
    (Change("script.r.unit", 0, 6), "loss: {unit: 0}\nr: {unit: 0}\n", "loss: {unit: 0}\nr: {unit: 6}\n"),
    (Change("k.dtype", "a", "b"), "dtype: a\nk:\n  dtype: a\n", "dtype: a\nk:\n  dtype: b\n"),
    (Change("m", ["a", "b"], ["c"]), "m:\n- a\n- b  # second\nx: 1\n", None),
    (Change("m", ["a", "b"], ["c"]), "m: [a,  'b']  # flow\n", "m: [c]  # flow\n"),
    (Change("m", ["a", "b"], None), "o: {m: [a, b], x: 1}\n", "o: {m: null, x: 1}\n"),
])  # fmt: skip
def test_lists_and_dictionaries_in_yaml(change, before, after):
    assert edited("c.yaml", before, change) == ((before, [change.name]) if after is None else (after, []))


def test_json():
    text = '{\n  "learning_rate": 2e-2,\n  "bf16": true,\n  "optim": "sgd"\n}\n'
    changes = LR, Change("bf16", True, None), Change("optim", "sgd", None)
    after, left = edited("config.json", text, *changes)
    assert left == [] and json.loads(after) == {"learning_rate": 1.7e-5, "bf16": None, "optim": None}
    assert after.count("\n") == text.count("\n")


TOML = """# how we train
[data]
learning_rate = 7   # of something else
[grpo]
learning_rate = 2e-2  # bold
bf16 = true
[grpo.model_init_kwargs]
dtype = "float16"
"""


def test_toml():
    script = "GRPOConfig(**tomllib.load(open('c.toml', 'rb'))['grpo'])\n"
    files = {Path("train.py"): script, Path("c.toml"): TOML}
    dtype, beta = Change("model_init_kwargs.dtype", "float16", "float32"), Change("beta", None, 0.5, added=True)
    changes, fields = [LR, Change("bf16", True, False), dtype, beta], ("learning_rate", "bf16", "beta")
    found = edits_of(places(files, fields=fields), changes)
    assert missing(found) == [] and found.after(Path("c.toml")) == (
        TOML.replace("2e-2", "1.7e-05").replace("true\n", "false\nbeta = 0.5\n").replace("float16", "float32")
    )
    first = found.shown()[0]
    assert (first.line, first.old) == (5, "learning_rate = 2e-2  # bold")
    assert edited("c.toml", TOML, Change("learning_rate", 0.3, 0.1)) == (TOML, ["learning_rate"])
    assert edited("c.toml", TOML, Change("bf16", True, None)) == (TOML, ["bf16"]), "TOML has no null"


def test_an_added_setting_joins_the_training_config_of_a_yaml_file():
    text = "data:\n  name: x\ntrain:\n  learning_rate: 0.02  # hot\n  beta: 0.1\nother: 1\n"
    after, left = edited("c.yaml", text, LR, BETA, fields={"learning_rate", "beta", "adam_epsilon"})
    wanted = text.replace("0.02", "1.7e-05").replace("beta: 0.1\n", "beta: 0.1\n  adam_epsilon: 1.0e-06\n")
    assert (after, left) == (wanted, [])


def test_a_group_of_hydra_holds_the_value():
    main, group = Path("config.yaml"), Path("training/fast.yaml")
    files = {
        Path("train.py"): "GRPOConfig(learning_rate=cfg.training.learning_rate)\n",
        main: "defaults:\n  - training: fast\n  - _self_\nseed: 1\n",
        group: "# @package training\nlearning_rate: 2e-2  # bold\n",
    }
    found = edits_of(places(files), [LR])
    assert found.paths == [group] and found.after(group) == files[group].replace("2e-2", "1.7e-05")
    found = edits_of(places(files, ("training.learning_rate=2e-2",)), [LR])
    assert flags(found) == [("training.learning_rate=2e-2", "training.learning_rate=1.7e-05")]
    (one,) = edits_of(places({**files, main: files[group]}), [LR]).unplaced
    assert f"{main}:1 and {group}:2" in one.why or f"{main}:2 and {group}:2" in one.why


@pytest.mark.parametrize(("name", "text", "does"), [
    ("c.json", '{"learning_rate": 1e-5}', True),
    ("c.json", '{"model": "m", "data": {"x": 1}, "train": {"bf16": false, "beta": 0.1, "mine": 3}}', True),
    ("c.toml", "[grpo]\nbeta = 0.1\n", True),
    ("generation_config.json", '{"temperature": 0.6, "top_p": 0.9, "transformers_version": "5.0"}', False),
    ("rows.json", '[{"prompt": "a", "answer": "b", "beta": 1}]', False),
    ("broken.json", '{"beta": ', False), ("empty.json", "{}", False), ("project.toml", "[a]\nname = 'a'\n", False),
])  # fmt: skip
def test_which_files_configure_a_run(tmp_path, name, text, does):
    (tmp_path / name).write_text(text)
    assert configures(tmp_path / name, ("learning_rate", "bf16", "beta", "temperature", "top_p")) is does


# -------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(("arguments", "change", "old", "new"), [
    ("--learning_rate=0.02 x", LR, "--learning_rate=0.02", "--learning_rate=1.7e-05"),
    ("--learning_rate 1 --learning-rate 2e-2", LR, "--learning-rate 2e-2", "--learning-rate 1.7e-05"),
    ("--bf16", Change("bf16", True, False), "--bf16", "--bf16 False"),
    ("--bf16 true x", Change("bf16", True, False), "--bf16 true", "--bf16 False"),
    ("--bf16 True", Change("bf16", True, None), "--bf16 True", ""),
    ("a --optim sgd --x", Change("optim", "sgd", None), "--optim sgd", ""),
    ("--betas 0.9 0.95", Change("betas", [0.9, 0.95], [0.9, 0.999]), "--betas 0.9 0.95", "--betas 0.9 0.999"),
    ("--dtype float16", Change("model.dtype", {"$dtype": "float16"}, {"$dtype": "float32"}), "--dtype float16",
     "--dtype float32"),
    ("--beta -0.5", Change("beta", -0.5, 0.0), "--beta -0.5", "--beta 0.0"),
    ("""--kwargs '{"a": 1, "b": 2}'""", Change("kwargs.a", 1, 3), """--kwargs '{"a": 1, "b": 2}'""",
     """--kwargs '{"a": 3, "b": 2}'"""),
    ("""--kwargs '{"a": 1, "b": 2}'""", Change("kwargs.a", 1, None), """--kwargs '{"a": 1, "b": 2}'""",
     """--kwargs '{"b": 2}'"""),
])  # fmt: skip
def test_flags_win_over_files(arguments, change, old, new):
    words = shlex.split(arguments)
    found = edits_of(places({Path("c.yaml"): "learning_rate: 0.02\n"}, tuple(words), fields=("bf16",)), [change])
    assert flags(found) == [(old, new)] and not found.paths and not found.diff
    wanted = shlex.split(f"launch train.py {arguments}".replace(old, new))
    assert shlex.split(found.command) == wanted


@pytest.mark.parametrize(
    ("typed", "old", "new"),
    [("--use-danish", True, "--no-use-danish"), ("--no-use-danish", False, "--use-danish"),
     ("--no_use_danish", False, "--use_danish")],
)  # fmt: skip
def test_a_switch_is_spelled_as_its_parser_has_it(typed, old, new):
    known = {"use_danish": ["--use-danish", "--no-use-danish", "--use_danish", "--no_use_danish"]}
    found = edits_of(places({Path("train.py"): ""}, (typed,), flags=known), [Change("script.use_danish", old, not old)])
    assert flags(found) == [(typed, new)]


def test_a_switch_of_click_is_left_out():
    text = '@click.option("--danish", is_flag=True)\ndef main(danish): ...\n'
    found = edits_of(places({Path("train.py"): text}, ("--danish",)), [Change("script.danish", True, False)])
    assert flags(found) == [("--danish", "")]


def test_a_value_that_the_command_gives_is_not_said_to_be_computed():
    text = "parser.add_argument('--lr', default=1e-6)\nGRPOConfig(learning_rate=parser.parse_args().lr * 2)\n"
    found = edits_of(places({Path("train.py"): text}, ("--learning_rate", "3")), [LR])
    assert [(one.why, one.add) for one in found.unplaced] == [
        ("it is given there", "set learning_rate to 1.7e-05 on the command line")
    ]


def test_several_flags_and_new_ones():
    text = "p.add_argument('--lr', '-l', type=float)\np.add_argument('--half', action='store_true')\n"
    text += "a = p.parse_args()\nGRPOConfig(learning_rate=a.lr, bf16=a.half)\n"
    words = ("--half", "--lr", "2e-2")
    found = edits_of(places({Path("t.py"): text}, words), [LR, Change("bf16", True, False)])
    assert found.command == "launch train.py --lr 1.7e-05"
    changes = [Change("kwargs.a", 1, 3), Change("kwargs.b", 2, 4), Change("beta", 0.0, 0.1, added=True)]
    found = edits_of(places({}, ("--kwargs", '{"a": 1, "b": 2}'), fields=("kwargs", "beta")), changes)
    assert shlex.split(found.command) == ["launch", "train.py", "--kwargs", '{"a": 3, "b": 4}', "--beta", "0.1"]
    assert missing(edits_of(places({}, ("--lr", "5")), [Change("lr", 2, 3)])) == ["lr"]


# -------------------------------------------------------------------------------------------------------- the launch

ACCELERATE = """\
distributed_type: FSDP   # as in the recipe
fsdp_config:
  fsdp_offload_params: true
  version: 2
mixed_precision: bf16
num_processes: 4
deepspeed_config:
  zero_stage: 3
"""
ZERO = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "stage": 3, "optimizer": {"a": 1}}


@pytest.mark.parametrize(("change", "line"), [
    (Change("launch.mixed_precision", "bf16", "no"), "mixed_precision: no"),
    (Change("launch.num_processes", 4, 2), "num_processes: 2"),
    (Change("launch.distributed_type", "FSDP", "NO"), "distributed_type: MULTI_GPU   # as in the recipe"),
    (Change("launch.fsdp_config.fsdp_offload_params", True, False), "  fsdp_offload_params: false"),
    (Change("launch.fsdp_config.fsdp_version", 2, 1), "  version: 1"),
    (Change("launch.deepspeed_config.zero_stage", 3, 2), "  zero_stage: 2"),
])  # fmt: skip
def test_one_line_of_accelerates_file_changes(change, line):
    found = edits_of(places({Path("acc.yaml"): ACCELERATE}), [change])
    (one,) = found.shown()
    assert (one.new.replace("'", ""), one.settings) == (line, (change.name,))


def test_one_process_is_no_longer_distributed():
    changes = Change("launch.distributed_type", "FSDP", "NO"), Change("launch.num_processes", 4, 1)
    after = yaml.safe_load(edited("acc.yaml", ACCELERATE, *changes)[0])
    assert (after["distributed_type"], after["num_processes"]) == ("NO", 1)


def test_deepspeeds_own_file():
    text = json.dumps(ZERO, indent=4)
    after, left = edited("zero.json", text, Change("launch.deepspeed.zero_optimization.stage", 3, 0))
    assert left == [] and json.loads(after) == {**ZERO, "zero_optimization": {**ZERO["zero_optimization"], "stage": 0}}
    found = edits_of(places({Path("zero.json"): text}), [Change("launch.deepspeed.optimizer", {"a": 1}, None)])
    assert not found.spans and found.unplaced[0].add == "leave optimizer out of DeepSpeed's file"


@pytest.mark.parametrize(("words", "change", "new"), [
    ("--mixed_precision=bf16", Change("launch.mixed_precision", "bf16", "no"), "--mixed_precision=no"),
    ("--use_fsdp", Change("launch.distributed_type", "FSDP", "NO"), ""),
    ("--zero_stage 3", Change("launch.deepspeed_config.zero_stage", 3, 2), "--zero_stage 2"),
    ("--nproc-per-node 2", Change("launch.num_processes", 2, 1), "--nproc-per-node 1"),
    ("--fsdp_offload_params true", Change("launch.fsdp_config.fsdp_offload_params", True, False),
     "--fsdp_offload_params False"),
])  # fmt: skip
def test_a_flag_of_the_launcher_wins_over_its_file(words, change, new):
    launcher = tuple(shlex.split(words))
    found = edits_of(places({Path("acc.yaml"): ACCELERATE}, ("--bf16",), launcher), [change])
    assert flags(found) == [(words, new)] and not found.paths
    assert shlex.split(found.command) == ["launch", *shlex.split(new), "train.py", "--bf16"]


@pytest.mark.parametrize(("change", "advice"), [
    (Change("launch.num_processes", 2, 3), "--num_processes 3"),
    (Change("launch.mixed_precision", "bf16", "no"), "launch it with --mixed_precision no"),
    (Change("env.MODE", "fast", None), "unset MODE"), (Change("env.SAFE", "01", UNSET), "unset SAFE"),
    (Change("env.SAFE", None, "01"), "put SAFE=01 in front of the command"),
    (Change("packages.vllm", "0.8", "0.9"), "pip install vllm==0.9"),
    (Change("launch.distributed_type", "FSDP", "NO"), "launch it without --use_fsdp and --use_deepspeed"),
])  # fmt: skip
def test_what_the_launch_has_is_in_no_file(change, advice):
    found = edits_of(places({Path("train.py"): "num_processes = 2\nGRPOConfig(learning_rate=0.02)\n"}), [change])
    assert not found.spans and [one.add for one in found.unplaced] == [advice]


# ---------------------------------------------------------------------------------------------------------- notebooks


def test_a_cell_of_a_notebook(tmp_path):
    path = tmp_path / "train.ipynb"
    sources = [
        "",
        ["%pip install trl\n", "x = 'é'"],
        'GRPOConfig(\n\tlearning_rate=0.02, name="é",\n    beta=0.1,\n)\n',
    ]
    cells = [{"cell_type": "code", "source": one, "outputs": [{"text": "é"}], "metadata": {}} for one in sources]
    cells.insert(1, {"cell_type": "markdown", "source": "learning_rate=0.02"})
    for indent, ascii_only in ((1, False), (None, True)):
        text = json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}, indent=indent, ensure_ascii=ascii_only)
        path.write_text(text)
        made = as_script(path, [one for one in map("".join, sources) if one], "python", lambda names: ())
        found = edits_of(places({path: made.text}), [LR, Change("beta", 0.1, 0.3)])
        first, second = found.shown()
        assert (first.cell, first.line, first.new) == (2, 2, '\tlearning_rate=1.7e-05, name="é",')
        assert (second.cell, second.line, second.old) == (2, 3, "    beta=0.1,")
        assert "train.ipynb, cell 2" in found.diff and missing(found) == []
        text = splice(text, [Span(one.start, one.end, one.text) for one in (first, second)])
        wanted = json.loads(path.read_text())
        source = wanted["cells"][-1]["source"].replace("0.02", "1.7e-05").replace("0.1", "0.3")
        wanted["cells"][-1]["source"] = source
        assert json.loads(text) == wanted and hash_of(text) == first.after
