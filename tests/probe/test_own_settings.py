"""Settings of the script's own: a flag, a variable or a field of a dataclass that the script reads itself is found as a
cause, alone and together with a training option, without `--good`."""

from __future__ import annotations

import json

import pytest
import toys
from tools import QUICK, slow
from toys import script

from bisect_cfg.probe.protocol import ConfigBuilt
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.pinned import HANDED_ON, why_pinned

ARGPARSE = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--mix", type=float, default=0.1)
    parser.add_argument("--tricky", action="store_true")
    parser.add_argument("--lr", type=float, default="1e-6")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--dataset", required=True)
    given = parser.parse_args()
"""

SUBCOMMAND = """
    import argparse
    parser = argparse.ArgumentParser()
    train = parser.add_subparsers(dest="command").add_parser("train")
    train.add_argument("--mix", type=float, default=0.1)
    train.add_argument("--tricky", action="store_true")
    train.add_argument("--lr", type=float, default=1e-6)
    given = parser.parse_args(["train", *sys.argv[1:]])
"""

CLICK = """
    import click, types
    @click.command()
    @click.option("--mix", default=0.1)
    @click.option("--tricky/--plain", default=False)
    @click.option("--lr", default=1e-6)
    @click.argument("dataset", required=True)
    def read(**found):
        globals()["given"] = types.SimpleNamespace(**found)
    read(standalone_mode=False)
"""

TYPER = """
    import typer, types
    def read(mix: float = 0.1, tricky: bool = False, lr: float = 1e-6):
        globals()["given"] = types.SimpleNamespace(mix=mix, tricky=tricky, lr=lr)
    app = typer.Typer(add_completion=False)
    app.command()(read)
    app(standalone_mode=False)
"""

TYRO = """
    import dataclasses, tyro
    @dataclasses.dataclass(frozen=True)
    class Given:
        dataset: str
        mix: float = 0.1
        tricky: bool = False
        lr: float = 1e-6
    given = tyro.cli(Given)
"""

TYRO_CALL = """
    import tyro, types
    def read(dataset: str, mix: float = 0.1, tricky: bool = False, lr: float = 1e-6):
        return types.SimpleNamespace(mix=mix, tricky=tricky, lr=lr)
    given = tyro.cli(read)
"""

FIRE = """
    import fire, types
    def read(dataset, mix=0.1, tricky=False, lr=1e-6):
        globals()["given"] = types.SimpleNamespace(mix=mix, tricky=tricky, lr=lr)
    fire.Fire()
"""

ABSL = """
    from absl import flags
    flags.DEFINE_string("dataset", None, "")
    flags.DEFINE_float("mix", 0.1, "")
    flags.DEFINE_boolean("tricky", False, "")
    flags.DEFINE_float("lr", 1e-6, "")
    given = flags.FLAGS
    given(sys.argv)
"""

FILE_AS_DEFAULTS = """
    import argparse, json
    parser = argparse.ArgumentParser()
    for name, kind, value in (("--mix", float, 0.1), ("--tricky", bool, False), ("--lr", float, 1e-6)):
        parser.add_argument(name, type=kind, default=value)
    parser.set_defaults(**json.loads('{"mix": 0.9, "tricky": true, "lr": 3e-4}'))
    given = parser.parse_args([])
"""

MERGED = """
    from omegaconf import OmegaConf
    written = OmegaConf.create({"mix": 0.1, "tricky": False, "lr": 1e-6, "dataset": "x"})
    given = OmegaConf.merge(written, OmegaConf.from_cli([word for word in sys.argv[1:] if "=" in word]))
"""

COMPOSED = """
    from hydra import compose, initialize
    with initialize(version_base=None, config_path="."):
        given = compose("written", overrides=[word for word in sys.argv[1:] if "=" in word])
"""

VARIABLES = """
    import types
    copied = {**os.environ}, dict(os.environ), [value for _, value in os.environ.items()]
    os.environ["OF_THE_SCRIPT"] = "1"
    if os.environ["OF_THE_SCRIPT"]:
        given = types.SimpleNamespace(mix=float(os.environ.get("MIX", "0.1")), tricky=os.getenv("TRICKY") == "1")
        given.lr = float(os.environ.get("LR", 1e-6))
"""

TRAINS = """
    args = GRPOConfig(
        output_dir="out", learning_rate=given.lr, weight_decay=0.1, temperature=0.9,
        per_device_train_batch_size=getattr(given, "batch", 8),
    )
    def step(number):
        if number == 3 and ({}):
            raise RuntimeError("planted")
    GRPOTrainer(args, step).train()
"""

FLAGS = ("--mix", "0.9", "--tricky", "--lr", "3e-4")
OVERRIDES = ("mix=0.9", "tricky=true", "lr=3e-4")
MIX, TRICKY, ALL = "given.mix > 0.5", "given.tricky", "given.tricky and given.mix > 0.5 and args.temperature < 1"


def causes(tool, *arguments: object) -> tuple[list[list[str]], dict]:
    """What was found, and the whole result."""
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where", *arguments)
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert result["status"] == "isolated" and result["complete"]
    return [list(cause["parameters"]) for cause in result["causes"]], result


@pytest.mark.parametrize(
    ("reads", "flags"),
    [(SUBCOMMAND, FLAGS), (CLICK, (*FLAGS, "x")), (TYPER, FLAGS), (TYRO, (*FLAGS, "--dataset", "x")),
     (TYRO_CALL, (*FLAGS, "--dataset", "x")), (FIRE, ("read", *FLAGS, "--dataset", "x")),
     (ABSL, (*FLAGS, "--dataset", "x")), (FILE_AS_DEFAULTS, ()), (MERGED, OVERRIDES), (COMPOSED, OVERRIDES)],
    ids=["subcommand", "click", "typer", "tyro", "tyro_call", "fire", "absl", "file_as_defaults", "merged", "composed"],
)  # fmt: skip
def test_a_flag_of_the_scripts_own_has_its_default_in_the_good_run(tool, reads, flags):
    """Whatever has read it; what is isolated by such runs is that of `argparse` below."""
    script(tool.folder, reads + TRAINS.format(ALL))
    (tool.folder / "written.yaml").write_text("{mix: 0.1, tricky: false, lr: 0.000001, dataset: x}")
    study = tool.bisect("train.py", *QUICK, "--max-trials", 3, "--", *flags, status=3)
    bad, _, good = study.result["trials"]
    assert (bad["outcome"], bad["start"], good["outcome"], good["start"]) == ("fail", "cold", "pass", "config")
    levels = {name: (good["values"][name], value) for name, value in bad["values"].items()}
    wanted = {"script.mix": (0.1, 0.9), "script.tricky": (False, True), "learning_rate": (1e-6, 3e-4)}
    assert wanted.items() <= levels.items() and "script.lr" not in levels, "it is learning_rate, and varied there"
    assert ("script.dataset" in study.result["not_varied"]) is ("x" in flags)


def test_a_flag_of_the_scripts_own_is_found(tool):
    script(tool.folder, ARGPARSE + TRAINS.format(ALL))
    found, result = causes(tool, "--", *FLAGS, "--dataset", "x")
    assert [sorted(one) for one in found] == [["script.mix", "script.tricky", "temperature"]]
    assert {row["start"] for row in result["trials"]} == {"cold", "config"}, "trials are forked where it is parsed"
    names = {name for row in result["trials"] for name in row["values"]}
    assert "script.lr" not in names, "it is the training config's learning_rate, and varied there"
    assert "script.dataset" in result["not_varied"] and "script.output_dir" not in result["not_varied"]


def test_a_variable_that_the_script_reads_is_found(tool):
    tool.environment |= {"MIX": "0.9", "TRICKY": "1", "LR": "3e-4", "NOBODY_READS": "1", "OF_THE_SCRIPT": "0"}
    script(tool.folder, VARIABLES + TRAINS.format(ALL))
    found, result = causes(tool)
    assert [sorted(one) for one in found] == [["env.MIX", "env.TRICKY", "temperature"]]
    names = {name for row in result["trials"] for name in row["values"] if name.startswith("env.")}
    assert names == {"env.MIX", "env.TRICKY"}, "LR is the training config's learning_rate, and varied there"
    assert {row["start"] for row in result["trials"]} == {"cold", "config"}


def test_a_variable_that_is_pinned_is_in_all_runs(tool):
    script(
        tool.folder,
        VARIABLES.replace('os.environ["OF_THE_SCRIPT"]:', "True:")
        + TRAINS.format("given.tricky and args.temperature < 1"),
    )
    tool.environment |= {"TRICKY": "1"}
    found, result = causes(tool, "--pin", "env.TRICKY=1", "--good", "env.TRICKY=none")
    assert found == [["temperature"]]


def test_a_trial_by_hand_has_the_values_of_the_trial(tool):
    tool.environment |= {"TRICKY": "1"}
    script(tool.folder, VARIABLES + TRAINS.format(TRICKY))
    causes(tool)
    shown = [(tool.folder / f"s/trials/{number}/command.sh").read_text() for number in (0, 1)]
    assert ["TRICKY=1" in text for text in shown] == [False, True], "the first run has the user's own environment"


def test_the_good_side_of_a_flag_is_what_good_says(tool):
    """... and not its default, under which the script does not train at all."""
    script(tool.folder, ARGPARSE + TRAINS.format(f"{MIX} or given.mix < 0.2"))
    found, result = causes(tool, "--good", "script.mix=0.3", "--", *FLAGS, "--dataset", "x")
    assert found == [["script.mix"]] and result["causes"][0]["parameters"]["script.mix"]["good"] == 0.3


@pytest.mark.parametrize(("makes", "cause"), [
    ("0.1 if given.tricky else 0.0", "script.tricky"), ("(lambda tricky: tricky / 10)(given.tricky)", "weight_decay"),
], ids=["understood", "not_understood"])  # fmt: skip
def test_a_field_follows_the_flag_of_which_the_code_is_seen_to_compute_it(tool, makes, cause):
    """Of which it is not seen to, a trial without the flag keeps the field as it is."""
    script(tool.folder, ARGPARSE + TRAINS.format("args.weight_decay > 0.05").replace(
        "weight_decay=0.1", f"weight_decay={makes}"))  # fmt: skip
    found, _ = causes(tool, "--", *FLAGS, "--dataset", "x")
    assert found == [[cause]]


DATACLASS = """
    import os
    from dataclasses import dataclass, field
    import toy
    from transformers import TrainerCallback
    from trl import GRPOConfig, TrlParser

    @dataclass
    class Own:
        mix: float = field(default=0.1)
        plan: str = "plain"
        steps: list[str] = field(default_factory=list)

    own, args = TrlParser((Own, GRPOConfig)).parse_args_and_config()

    class Plant(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if own.mix > 0.5 and args.temperature > 1.1 and state.global_step == 2:
                raise RuntimeError("planted")

    toy.trainer(args, callbacks=[Plant()]).train()
"""


@pytest.mark.parametrize("name", ["script.mix", "env.MIX"])
def test_what_a_recipe_sets_is_found(warm, tmp_path, name):
    """In the form of TRL's own examples, with a YAML file: the dataclass has the default, not the file. `env` in the
    file of a `TrlParser` is put into the environment before the script reads it."""
    reads = "own.mix" if name == "script.mix" else "float(os.environ.get('MIX', 0))"
    path = toys.write(tmp_path, DATACLASS.replace("own.mix", reads))
    settings = {**toys.SETTINGS, "temperature": 1.2, "max_steps": 20, "output_dir": "out", "plan": "fancy"}
    settings |= {"mix": 0.9} if name == "script.mix" else {"env": {"MIX": "0.9"}}
    lines = (f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
    (tmp_path / "recipe.yaml").write_text("".join(lines))
    words = (path, "--config", "recipe.yaml")
    found = warm.settings(*words)
    assert found.bad[name] in (0.9, "0.9") and found.good[name] in (0.1, None)
    for changed, dies in (({}, True), ({name: found.good[name]}, False), ({"temperature": 1.0}, False)):
        run = warm.run(*words, steps=3, settings=found, configuration={**found.bad, **changed})
        assert (run.seen.died is not None and "planted" in run.seen.message) is dies, run.seen


def test_a_default_that_json_cannot_hold_is_the_parsers_own_object(tool):
    script(tool.folder, """
    import argparse, enum
    Kind = enum.Enum("Kind", ["plain", "odd"])
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", type=Kind.__getitem__, default=Kind.plain)
    given = parser.parse_args()
    given.lr = 1e-4 if isinstance(given.kind, Kind) else None
    """ + TRAINS.format("given.kind is Kind.odd"))  # fmt: skip
    assert causes(tool, "--", "--kind", "odd")[0] == [["script.kind"]]


@pytest.mark.parametrize(("code", "reason"), [
    ("GRPOConfig(per_device_train_batch_size=given.batch, learning_rate=given.rate)", HANDED_ON),
    ("GRPOConfig(**dict(cfg,\n  per_device_train_batch_size = int(cfg['batch'])))", HANDED_ON),
    ("batch = given.batch\nGRPOConfig(per_device_train_batch_size=batch, learning_rate=given.rate)", HANDED_ON),
    ("size = int(cfg.get('batch', 4))\nmade = {'per_device_train_batch_size': size}", HANDED_ON),
    ("GRPOConfig(per_device_train_batch_size=8, learning_rate=given.rate)\nfolds(given.batch)", ""),
])  # fmt: skip
def test_a_number_is_handed_on_where_the_code_says_so(tmp_path, code, reason):
    """Two settings that are 8 need not have to do with each other."""
    (tmp_path / "train.py").write_text(code)
    own = ConfigBuilt("script", 0, "", "", {"batch": 8, "rate": 0.25}, {"batch": 4, "rate": 0.5}, {})
    fields, place = {"per_device_train_batch_size": 8, "learning_rate": 0.25}, (str(tmp_path / "train.py"), 1)
    args = ConfigBuilt("args", 0, "GRPOConfig", "trl", fields, {}, {}, place=place, handed={"learning_rate": "rate"})
    capture = read_capture([own, args])
    assert why_pinned(capture, capture.others["script"], "rate") == HANDED_ON
    assert why_pinned(capture, capture.others["script"], "batch") == reason


def test_a_field_is_made_of_the_key_of_its_name_and_of_no_other_key_of_the_same_object(tmp_path):
    (tmp_path / "train.py").write_text(
        "config = Own(blocks=model.get('blocks', 0), logging_steps=grpo.get('logging_steps', 5))\n"
        "GRPOConfig(logging_steps=config.logging_steps)\nexpand(config.blocks)"
    )
    values, place = {"model.blocks": 1, "grpo.logging_steps": 1}, (str(tmp_path / "train.py"), 2)
    own = ConfigBuilt("script", 0, "", "", values, {"model.blocks": 0, "grpo.logging_steps": 5}, {})
    capture = read_capture(
        [own, ConfigBuilt("args", 0, "GRPOConfig", "trl", {"logging_steps": 1}, {}, {}, place=place)]
    )
    reasons = {key: why_pinned(capture, capture.others["script"], key) for key in values}
    assert reasons == {"model.blocks": "", "grpo.logging_steps": HANDED_ON}


def test_a_flag_that_is_handed_on_and_read_elsewhere_too_is_one_setting(tool):
    """The script's own look at `--lr` sees what the trial has, not what the user typed."""
    script(tool.folder, ARGPARSE + TRAINS.format("given.lr > 1e-5 and given.mix > 0.5"))
    found, result = causes(tool, "--", *FLAGS, "--dataset", "x")
    assert [sorted(one) for one in found] == [["learning_rate", "script.mix"]]
    assert "script.lr" not in {name for row in result["trials"] for name in row["values"]}


@pytest.mark.parametrize("good", ["good.yaml", slow("good.toml")])
def test_a_good_file_is_nested_like_the_scripts_own(tool, good):
    """`yaml.safe_load(open("bad.yaml"))`: a key of the file has no default but what `--good` says."""
    script(tool.folder, """
    import types, yaml
    found = yaml.safe_load(open("bad.yaml"))
    given = types.SimpleNamespace(lr=found["training"]["lr"], mix=found["reward"]["mix"])
    """ + TRAINS.format("given.mix > 0.5"))  # fmt: skip
    (tool.folder / "bad.yaml").write_text("reward: {mix: 0.9, kind: a}\ntraining: {lr: 0.01}\nmodel: {kind: a}\n")
    (tool.folder / "good.yaml").write_text("reward: {mix: 0.1, kind: b}\ntraining: {lr: 0.001}\nmodel: {kind: b}\n")
    (tool.folder / "good.toml").write_text('[reward]\nmix = 0.1\nkind = "b"\n[training]\nlr = 0.001\n')
    found, _ = causes(tool, "--good", good)
    assert found == [["script.reward.mix"]]


@pytest.mark.parametrize(("name", "value", "varied"), [
    ("lora_rank", 64, True), ("local_rank", 1, False), ("model_max_length", 512, True), ("model_name", "x", False),
    ("max_new_tokens", 9, True), ("data_dir", "x", False), ("seed", 3, False), ("num_samples", 9, False),
    ("log_quality", 2, True), ("log_every", 5, False), ("eval_logs", 5, False),
    ("do_sample", True, True), ("sample_size", 9, False), ("NAME_WEIGHT", "0.5", True), ("log_floor", 0.1, True),
    ("examples_shown", 24, True), ("max_train_samples", 9, False),
])  # fmt: skip
def test_what_only_names_a_place_is_not_varied(name, value, varied):
    own = ConfigBuilt("script", 0, "", "", {name: value}, {name: None}, {})
    capture = read_capture([own, ConfigBuilt("args", 0, "GRPOConfig", "trl", {}, {}, {})])
    assert (why_pinned(capture, capture.others["script"], name) == "") is varied


@pytest.mark.parametrize("reads", [ARGPARSE, slow(TYPER)], ids=["argparse", "typer"])
def test_a_script_that_dies_before_its_training_config_is_bisected_over_its_own_settings(tool, reads):
    dies = "    if given.tricky and given.mix > 0.5:\n        raise ValueError('planted')\n"
    script(tool.folder, reads + dies + TRAINS.format("False"))
    flags = (*FLAGS, "--dataset", "x") if reads is ARGPARSE else FLAGS
    found, result = causes(tool, "--good", "learning_rate=1e-5", "--", *flags)
    assert [sorted(one) for one in found] == [["script.mix", "script.tricky"]]
    assert "before it builds" in result["not_varied"]["learning_rate"], "no run that fails has one"
    assert any("Options of the config were not varied" in note for note in result["notes"])


def test_what_dies_before_its_training_config_for_no_setting_is_said(tool):
    script(tool.folder, ARGPARSE + "    raise ValueError('planted')\n" + TRAINS.format("False"))
    said = tool("bisect", "train.py", "--", "--dataset", "x")
    assert said.status == 2 and "died before it built a training config" in said.all


OWNED = """
    import dataclasses, types, yaml
    from pydantic import BaseModel, Field
    {}
    found = yaml.safe_load(open("bad.yaml"))
    given = types.SimpleNamespace(lr=3e-4, reward={})
    given.mix, given.tricky = given.reward.mix, given.reward.tricky
    del given.reward
"""
MODEL = """
    class Reward(BaseModel):
        mix: float = Field(0.1, alias="share")
        tricky: bool = False
    class Config(BaseModel):
        reward: Reward | None = Field(default_factory=lambda: Reward(share=0.9))
        name: str
"""
DATA = """
    @dataclasses.dataclass
    class Reward:
        mix: float = 0.1
        tricky: bool = False
        reward_unit: int = 1
"""


@pytest.mark.parametrize(("defined", "built", "share"), [
    (MODEL, "Config.model_validate(found).reward", "share"), slow(MODEL, "Config(**found).reward", "share"),
    slow(MODEL, "Reward(**found['reward'])", "share"), slow(DATA, "Reward(**found['reward'])", "mix"),
    (DATA, "Reward(found['reward']['mix'], tricky=found['reward'].get('tricky', 0), "
     "reward_unit=found['reward']['unit'])", "mix"),
], ids=["validated", "filled", "within", "dataclass", "by_hand"])  # fmt: skip
def test_the_default_of_a_key_is_that_of_the_field_it_fills(tool, defined, built, share):
    """... of a class of the script's own; no other section's key of the same name and value."""
    script(tool.folder, OWNED.format(defined, built) + TRAINS.format("given.mix > 0.5 and given.tricky"))
    unit = ", unit: 4" if "unit" in built else ""
    (tool.folder / "bad.yaml").write_text(
        f"name: a\nother: {{{share}: 0.9, speed: 3}}\nreward: {{{share}: 0.9, tricky: true{unit}}}\n"
    )
    found, result = causes(tool)
    assert [sorted(one) for one in found] == [sorted([f"script.reward.{share}", "script.reward.tricky"])]
    assert result["causes"][0]["parameters"][f"script.reward.{share}"] == {"good": 0.1, "bad": 0.9}
    assert "it has no default" in result["not_varied"]["script.other.speed"]
    if unit:
        assert "script.reward.unit" not in result["not_varied"], "`reward_unit` holds it"
    tool("report", "s")
    told = (tool.folder / "s/report.html").read_text()
    assert "All runs had your" in told and "script.other.speed" in told, "nobody knows whether it has a part in it"


@pytest.mark.parametrize("load", [
    "json.loads(pathlib.Path('bad.json').read_text())", slow("json.load(open('bad.json'))"),
    "Config.model_validate_json(open('bad.json', 'rb').read()).model_dump()",
])  # fmt: skip
def test_the_keys_of_a_file_that_is_read_as_text_are_found(tool, load):
    """... but not those of the rows of a data set."""
    script(tool.folder, """
    import json, pathlib, types
    from pydantic import BaseModel
    class Config(BaseModel):
        mix: float
        tricky: bool
        lr: float
    rows = [json.loads(line) for line in open("rows.jsonl")]
    found = """ + load + """
    mix, tricky = found["mix"], found.get("tricky", False)
    given = types.SimpleNamespace(mix=mix, tricky=tricky, lr=found["lr"])
    """ + TRAINS.format("given.tricky and args.temperature < 1"))  # fmt: skip
    (tool.folder / "bad.json").write_text(json.dumps({"mix": 0.9, "tricky": True, "lr": 3e-4}))
    (tool.folder / "rows.jsonl").write_text(json.dumps({"answer": 4}) + "\n" + json.dumps({"answer": 42}) + "\n")
    found, result = causes(tool)
    assert [sorted(one) for one in found] == [["script.tricky", "temperature"]]
    assert "it has no default" in result["not_varied"]["script.mix"], "no code says one"
    assert not any("answer" in name for name in result["not_varied"])


@pytest.mark.parametrize("load", ["yaml.safe_load(open(path))", slow("omegaconf.OmegaConf.load(path)")])
def test_of_many_files_the_first_eight_are_settings(tool, load):
    """Whatever else a script loads is data."""
    lines = f"""
    import omegaconf, types, yaml
    found = [{load} for path in [f"{{number}}.yaml" for number in range(9)]]
    given = types.SimpleNamespace(lr=3e-4)
    """
    script(tool.folder, lines + TRAINS.format("args.temperature < 1"))
    for number in range(9):
        (tool.folder / f"{number}.yaml").write_text(f"key_{number}: 1.5\n")
    found, result = causes(tool)
    assert found == [["temperature"]]
    assert {name for name in result["not_varied"] if "key" in name} == {f"script.key_{number}" for number in range(8)}


def test_the_good_side_of_a_file_is_the_dictionary_of_defaults_that_it_is_merged_with(tool):
    """... also of an option of the library that the file does not say: the library's own default would fail."""
    lines = """
    import types, yaml
    DEFAULTS = {"training": {"lr": 3e-4, "decay": 0.1}, "reward": {"mix": 0.1, "chain": [{"kind": "zero"}]}}
    loaded = yaml.safe_load(open("own.yaml"))
    merged = {name: {**section, **loaded.get(name, {})} for name, section in DEFAULTS.items()}
    given = types.SimpleNamespace(lr=merged["training"]["lr"])
    reward = merged["reward"]
    """
    trains = TRAINS.replace("weight_decay=0.1", 'weight_decay=merged["training"]["decay"]')
    fails = 'args.weight_decay == 0 or args.learning_rate > 1e-3 and reward["chain"] != [{"kind": "zero"}]'
    script(tool.folder, lines + trains.format(fails))
    (tool.folder / "own.yaml").write_text("training: {lr: 0.01}\nreward: {mix: 0.9, chain: [{kind: skip}]}\n")
    found, result = causes(tool)
    assert found == [["learning_rate", "script.reward.chain"]]
    assert result["causes"][0]["parameters"]["learning_rate"]["good"] == 3e-4
    assert "weight_decay" not in result["trials"][0]["values"]


def test_the_defaults_of_the_elements_of_a_list_are_those_of_a_list_like_it(tool):
    lines = """
    import types, yaml
    DEFAULTS = {"rewards": [{"name": "len", "weight": 1.0, "unit": 4}, {"name": "fmt", "weight": 1.0}]}
    rewards = {**DEFAULTS, **yaml.safe_load(open("own.yaml"))}["rewards"]
    given = types.SimpleNamespace(lr=3e-4)
    """
    script(tool.folder, lines + TRAINS.format('rewards[1]["weight"] == 0 and args.temperature < 1'))
    (tool.folder / "own.yaml").write_text(
        "rewards: [{name: len, weight: 0, unit: 4}, {name: fmt, weight: 0, other: 2}]\n"
    )
    found, result = causes(tool)
    assert found == [["script.rewards.1.weight", "temperature"]]
    assert {name for name in result["trials"][0]["values"] if "rewards" in name} == {
        "script.rewards.0.weight", "script.rewards.1.weight"}  # fmt: skip
    assert [name for name in result["not_varied"] if "rewards" in name] == ["script.rewards.1.other"]


def test_the_good_side_of_a_file_is_the_file_that_it_is_laid_over(tool):
    lines = """
    import types, yaml
    found = yaml.safe_load(open("base.yaml"))
    own = yaml.safe_load(open("own.yaml")) | yaml.safe_load(open("own.yaml"))
    reward = found["reward"] | own["reward"]
    given = types.SimpleNamespace(lr=3e-4)
    """
    script(tool.folder, lines + TRAINS.format('reward["mix"] > 0.5 and reward["terms"] == [1, 2]'))
    (tool.folder / "base.yaml").write_text("reward: {mix: 0.1, width: 3, terms: [1]}\n")
    (tool.folder / "own.yaml").write_text("reward: {mix: 0.9, width: 3, terms: [1, 2], other: 2}\n")
    found, result = causes(tool)
    assert found == [["script.reward.mix", "script.reward.terms"]]
    assert result["causes"][0]["parameters"]["script.reward.mix"] == {"good": 0.1, "bad": 0.9}
    assert [name for name in result["not_varied"] if "reward" in name] == ["script.reward.other"]


def test_a_key_that_is_handed_on_and_read_elsewhere_too_is_one_setting(tool):
    """Its good side is the library's, in both places."""
    script(
        tool.folder,
        """
    import types, yaml
    found = yaml.safe_load(open("bad.yaml"))
    given = types.SimpleNamespace(lr=3e-4)
    weight = found["training"]["weight_decay"]
    """
        + TRAINS.replace("weight_decay=0.1", "**found['training']").format("weight > 0.05 and found['window'] > 4"),
    )
    (tool.folder / "bad.yaml").write_text("window: 9\ntraining: {weight_decay: 0.1}\n")
    assert causes(tool, "--good", "script.window=2")[0] == [["script.window", "weight_decay"]]


def test_a_good_value_for_every_setting_leaves_no_other_cause(tool):
    script(tool.folder, OWNED.format(DATA, "Reward(**found['reward'])") + TRAINS.format("given.tricky"))
    (tool.folder / "bad.yaml").write_text("reward: {mix: 0.9, tricky: true}\n")
    assert causes(tool)[0] == [["script.reward.tricky"]]
    tool("report", "s")
    told = (tool.folder / "s/report.html").read_text()
    assert "No other cause is left among the" in told


@pytest.mark.parametrize(("flags", "good", "fails", "cause", "level"), [
    ((), (), "given.lr > 1e-5", "learning_rate", 1e-6),  # under the library's 5e-5 the good side would fail as well
    slow((), ("script.lr=2e-6",), "given.lr < 2e-6 or given.lr > 1e-5", "learning_rate", 2e-6),
    ((), ("learning_rate=2e-6",), "given.lr < 2e-6 or given.lr > 1e-5", "learning_rate", 2e-6),
    (("--weight_decay", "0"), (), "args.weight_decay < 0.05", "weight_decay", 0.1),  # 0 is the library's own
])  # fmt: skip
def test_the_good_side_of_what_a_flag_is_handed_on_to_is_the_flags_default(tool, flags, good, fails, cause, level):
    own = '    parser.add_argument("--weight_decay", type=float, default=0.1)\n    given ='
    train = TRAINS.format(fails).replace("weight_decay=0.1", "weight_decay=given.weight_decay")
    script(tool.folder, ARGPARSE.replace("    given =", own) + train)
    given = [word for one in good for word in ("--good", one)]
    found, result = causes(tool, *given, "--", *FLAGS, *flags, "--dataset", "x")
    assert found == [[cause]] and result["causes"][0]["parameters"][cause]["good"] == level


def test_the_good_side_of_what_a_flag_without_a_default_is_handed_on_to_is_the_librarys(tool):
    script(tool.folder, ARGPARSE.replace('default="1e-6"', "default=None") + TRAINS.format("given.lr is not None"))
    found, result = causes(tool, "--", *FLAGS, "--dataset", "x")
    assert found == [["learning_rate"]] and result["causes"][0]["parameters"]["learning_rate"]["good"] == 5e-5


@pytest.mark.parametrize(
    "flags", [("--set", "training.learning_rate=0.01", "reward.mix=0.9"), ("--learning_rate", "0.01")]
)
def test_the_good_side_of_what_a_flag_overrides_in_a_file_is_what_the_file_says(tool, flags):
    """Neither flag has a default of its own, and under the library's 5e-5 the script fails as well."""
    script(tool.folder, """
    import argparse, types, yaml
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--learning_rate", type=float)
    given = parser.parse_args()
    found = yaml.safe_load(open("own.yaml"))
    for word in given.set:
        key, _, value = word.partition("=")
        found[key.split(".")[0]][key.split(".")[1]] = float(value)
    given.lr = found["training"]["learning_rate"] if given.learning_rate is None else given.learning_rate
    """ + TRAINS.format("given.lr > 1e-5 and args.learning_rate > 1e-5 or args.learning_rate == 5e-5"))  # fmt: skip
    (tool.folder / "own.yaml").write_text("reward: {mix: 0.1}\ntraining: {learning_rate: 0.000002}\n")
    found, result = causes(tool, "--", *flags)
    assert "learning_rate" in found[0]
    assert result["causes"][0]["parameters"]["learning_rate"] == {"good": 2e-6, "bad": 0.01}
    assert "script.training.learning_rate" not in result["not_varied"], "the flag is varied"
    own = {name for name in result["trials"][0]["values"] if name.startswith("script.")}
    assert own == ({"script.reward.mix"} if "--set" in flags else set()), "each of the settings after it by itself"


def test_a_variable_that_fills_a_model_is_found(tool):
    """... which a library reads on the script's behalf; the file's key fills a field of the same model."""
    script(tool.folder, """
    import types, yaml
    from pydantic import BaseModel, Field
    from pydantic_settings import BaseSettings
    class Reward(BaseModel):
        mix: float = 0.1
        scale: int = 1
    class Own(BaseSettings, env_prefix="OWN_", env_nested_delimiter="__"):
        reward: Reward = Reward()
        tricky: bool = False
    class Everything(BaseSettings):
        own: Own = Field(default_factory=lambda: Own(**yaml.safe_load(open("own.yaml"))))
    own = Everything().own
    given = types.SimpleNamespace(lr=3e-4, mix=own.reward.mix, tricky=own.tricky, scale=own.reward.scale)
    """ + TRAINS.format("given.tricky and given.mix > 0.5 and given.scale == 3"))  # fmt: skip
    (tool.folder / "own.yaml").write_text("reward: {mix: 0.9}\n")
    tool.environment |= {"OWN_TRICKY": "1", "OWN_REWARD__SCALE": "3", "OWNER": "x"}
    found, _ = causes(tool)
    assert [sorted(one) for one in found] == [["env.OWN_REWARD__SCALE", "env.OWN_TRICKY", "script.reward.mix"]]


WORDS_TO_DICTIONARY = """
    import types
    settings = {"mix": 0.1, "tricky": False, "lr": 1e-6}
    for word in sys.argv[1:]:
        key, value = word.lstrip("-").split("=", 1)
        settings[key] = type(settings[key])(eval(value.title()))
    given = types.SimpleNamespace(**settings)
"""
WORDS_BY_INDEX = """
    import types
    mix, tricky, lr, k = 0.1, False, 1e-6, 1
    lr = 1e-6
    while k < len(sys.argv):
        word, k = sys.argv[k], k + 1
        if word == "--tricky":
            tricky = True
        else:
            lr, mix, k = {"--lr": (float(sys.argv[k]), mix), "--mix": (lr, float(sys.argv[k]))}[word] + (k + 1,)
    given = types.SimpleNamespace(mix=mix, tricky=tricky, lr=lr)
"""
WORDS_OVER_VARIABLES = """
    import types
    mix, tricky = 0.1, False
    lr = 1e-6
    exec(open("configurator.py").read())
    given = types.SimpleNamespace(mix=mix, tricky=tricky, lr=lr)
"""
WORDS_LEFT = """
    import argparse, types
    parser = argparse.ArgumentParser()
    parser.add_argument("--mix", type=float, default=0.1)
    given, rest = parser.parse_known_args()
    more = dict(word.split("=") for word in rest)
    given.lr, given.tricky = float(more.get("lr", "1e-6")), more.get("tricky", "false") == "true"
"""
WORDS_OF_CLICK = """
    import click, types
    @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    @click.option("--mix", default=0.1)
    @click.pass_context
    def read(ctx, mix):
        more = dict(word.lstrip("-").split("=") for word in ctx.args)
        tricky = more.get("tricky", "false") == "true"
        globals()["given"] = types.SimpleNamespace(mix=mix, tricky=tricky, lr=float(more.get("lr", 1e-6)))
    read(standalone_mode=False)
"""
KEYWORDS = """
    import fire, types
    def read(mix=0.1, **more):
        globals()["given"] = types.SimpleNamespace(mix=mix, tricky=more.get("tricky"), lr=more.get("lr", 1e-6))
    fire.Fire(read)
"""
CONFIGURATOR = """
import sys
from ast import literal_eval
for word in sys.argv[1:]:
    if "=" not in word:
        exec(open(word).read())
    else:
        key, value = word[2:].split("=")
        assert type(literal_eval(value)) is type(globals()[key])
        globals()[key] = literal_eval(value)
"""


@pytest.mark.parametrize(("reads", "words"), [
    (WORDS_TO_DICTIONARY, OVERRIDES), (WORDS_BY_INDEX, FLAGS),
    (WORDS_OVER_VARIABLES, ("own.py", "--mix=0.9", "--tricky=True")), (WORDS_LEFT, ("--mix", "0.9", *OVERRIDES[1:])),
    (KEYWORDS, FLAGS), (WORDS_OF_CLICK, ("--mix", "0.9", "--tricky=true", "--lr=3e-4")),
], ids=["to_dictionary", "by_index", "over_variables", "left", "keywords", "of_click"])  # fmt: skip
def test_a_word_that_the_script_takes_apart_itself_is_found(tool, reads, words):
    script(tool.folder, reads + TRAINS.format(ALL))
    (tool.folder / "configurator.py").write_text(CONFIGURATOR)
    (tool.folder / "own.py").write_text("lr = 3e-4\n")
    found, result = causes(tool, "--", *words)
    assert [sorted(one) for one in found] == [["script.mix", "script.tricky", "temperature"]]
    assert result["causes"][0]["parameters"]["script.mix"] == {"good": 0.1, "bad": 0.9}
    levels = {row["values"].get("learning_rate") for row in result["trials"]}
    assert levels == {1e-6, 3e-4}, "its good side is what the script's own code gives"
    assert {row["start"] for row in result["trials"]} == {"cold", "config"}


def test_a_word_without_a_default_in_the_code_is_left_out(tool):
    """... unless the script does not train without it; a word without a name is not varied, and that is said."""
    reads = """
    import types
    from getopt import getopt
    found = dict(getopt(sys.argv[1:], "", ["dim=", "mix=", "cap="])[0])
    given = types.SimpleNamespace(lr=3e-4, dim=int(found["--dim"]), mix="--mix" in found and float(found["--mix"]))
    given.cap, given.last = found.get("--cap"), int(sys.argv[-1])
"""
    script(tool.folder, reads + TRAINS.format("given.dim and given.mix and given.cap and given.last == 7"))
    found, result = causes(tool, "--", "--dim=4", "--mix", "0.9", "--cap", "3", 7)
    assert found == [["script.cap", "script.mix"]]
    assert result["causes"][0]["parameters"]["script.mix"] == {"good": None, "bad": 0.9}
    assert "dim" in " ".join(result["not_varied"]) and "no default" in result["not_varied"]["script.argv.6"]


PLAIN = """
    args = GRPOConfig(output_dir="out", temperature=0.9)
    def step(number):
        if number == 3 and ({}):
            raise RuntimeError("planted")
    GRPOTrainer(args, step).train()
"""
WRITTEN = """
    from dataclasses import dataclass, field
    @dataclass
    class Inner:
        unit: int = 1
    @dataclass(frozen=True)
    class Recipe:
        bucket: int = 4
        mix: float = 0.1
        inner: Inner = field(default_factory=Inner)
    recipe = Recipe({})
"""


def test_what_the_code_writes_into_a_dataclass_is_a_setting(tool):
    script(tool.folder, WRITTEN.format("bucket=7") + PLAIN.format("recipe.bucket > 5"))
    found, result = causes(tool)
    assert found == [["script.bucket"]] and result["complete"]
    assert result["causes"][0]["parameters"]["script.bucket"] == {"good": 4, "bad": 7}


def test_what_the_code_leaves_at_its_default_is_named(tool):
    script(tool.folder, WRITTEN.format("") + PLAIN.format("recipe.bucket < 5"))
    said = tool("bisect", "train.py", "--study", "s")
    assert said.status == 1 and "script.bucket=4" in said.all
    found, _ = causes(tool, "--restart", "--good", "script.bucket=9")
    assert found == [["script.bucket"]]


LISTED = """
    import types, yaml
    found = yaml.safe_load(open("bad.yaml"))
    def one_of(name, weight=1.0, floor=None):
        return weight, floor
    parts = [one_of(**item) for item in found["rewards"]]
"""
REWARDS = "rewards: [{name: a, weight: 0}, {name: b, floor: 3}]\n"


@pytest.mark.parametrize("fails", ["parts[0][0] == 0", "parts[1][1]"], ids=["weight", "floor"])
def test_the_keys_within_a_list_are_settings(tool, fails):
    script(tool.folder, LISTED + PLAIN.format(fails))
    (tool.folder / "bad.yaml").write_text(REWARDS)
    found, result = causes(tool)
    assert found == [["script.rewards.0.weight" if "[0][0]" in fails else "script.rewards.1.floor"]]
    assert "script.rewards" not in result["not_varied"]


@pytest.mark.parametrize(("good", "cause"), [
    ("rewards: [{name: a, weight: 1}, {name: b, floor: 3}]\n", "script.rewards.0.weight"),
    ("rewards: [{name: b}]\n", "script.rewards"),
], ids=["as_long", "shorter"])  # fmt: skip
def test_a_list_of_the_good_side_is_compared_key_by_key_where_it_is_as_long(tool, good, cause):
    script(tool.folder, LISTED.replace("weight=1.0", "weight") .replace("one_of(**item)", "(item.get('weight'), 0)")
           + PLAIN.format("parts[0][0] == 0"))  # fmt: skip
    (tool.folder / "bad.yaml").write_text(REWARDS)
    (tool.folder / "good.yaml").write_text(good)
    found, _ = causes(tool, "--good", "good.yaml")
    assert found == [[cause]]
