"""What stands in accelerate's file and in DeepSpeed's: captured, varied key by key, and given back with the lines that
have to change. The launcher is a stand-in that hands its file on as accelerate does, and says so when it is asked."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from tools import QUICK, Studied, assert_clear, slow
from toys import script

ACCELERATE = """\
#!{python}
import os, subprocess, sys, yaml
words, flags = sys.argv[2:], {{}}
while words[0].startswith("-"):
    flag, value, *words = words
    flags[flag] = value
with open(flags["--config_file"]) as stream:
    told = yaml.safe_load(stream)
given = {{"ACCELERATE_MIXED_PRECISION": told["mixed_precision"], "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}}
if told["distributed_type"] != "NO":
    given["ACCELERATE_USE_" + told["distributed_type"]] = "true"
for key, value in told.get("fsdp_config", {{}}).items():
    given[key.upper()] = str(value).lower() if isinstance(value, bool) else str(value)
for key, value in told.get("deepspeed_config", {{}}).items():
    given["ACCELERATE_DEEPSPEED_" + key.removeprefix("deepspeed_").upper()] = str(value).lower()
raise SystemExit(subprocess.run([sys.executable, *words], env={{**os.environ, **given}}).returncode)
"""

ASKED = """\
import argparse
def launch_command_parser():
    parser = argparse.ArgumentParser()
    for flag in "num_processes num_machines mixed_precision dynamo_backend main_process_port config_file".split():
        parser.add_argument("--" + flag)
    fsdp = parser.add_argument_group("FSDP Arguments")
    for flag, default in (("version", "1"), ("offload_params", "false"), ("reshard_after_forward", "true")):
        fsdp.add_argument("--fsdp_" + flag, default=default)
    parser.add_argument("training_script")
    return parser
def load_config_from_file(path):
    return argparse.Namespace(num_processes=None)
def prepare_multi_gpu_env(args):
    return {flag.upper(): str(value) for flag, value in vars(args).items() if flag.startswith("fsdp_")}
"""
"""What `ask_accelerate` asks, in both of accelerate's modules of this name."""

ZERO = {
    "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "gradient_clipping": 0.5,
    "bf16": {"enabled": "auto"},
}


def write_module(path: Path, text: str) -> None:
    """A module in a package in a package."""
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for folder in path.parents[:2]:
        (folder / "__init__.py").touch()


@pytest.fixture
def tool(tool):
    """The command line, and a launcher on its PATH."""
    launcher = tool.folder / "bin" / "accelerate"
    launcher.parent.mkdir()
    launcher.write_text(ACCELERATE.format(python=sys.executable))
    launcher.chmod(0o755)
    for module in ("commands/launch.py", "utils/launch.py"):
        write_module(launcher.parent / "lib" / "accelerate" / module, ASKED)
    tool.environment["PATH"] = f"{launcher.parent}:/usr/bin:/bin"
    tool.environment["PYTHONPATH"] = f"{tool.environment['PYTHONPATH']}:{launcher.parent / 'lib'}"
    return tool


LAUNCHES = ("accelerate", "launch", "--config_file", "accelerate.yaml", "train.py")
ARGS = 'args = GRPOConfig(output_dir="out", learning_rate=3e-4, beta=0.04, num_generations=4)\n'
STEP = """
def step(number):
    if {}: raise ValueError("planted")
GRPOTrainer(args, step).train()
"""


def bisected(
    tool, told: dict, text: str, *options: object, command: tuple[str, ...] = LAUNCHES
) -> tuple[Studied, list[str]]:
    """The study, and its notes; no file of the user's is touched."""
    (tool.folder / "accelerate.yaml").write_text("# mine\n" + yaml.safe_dump({"mixed_precision": "no", **told}))
    script(tool.folder, textwrap.dedent(text))
    before = {path: path.read_bytes() for path in tool.folder.iterdir() if path.is_file()}
    study = tool.bisect("--no-where", *options, "--", *command)
    assert before == {path: path.read_bytes() for path in before}
    return study, study.result["notes"]


READS_ZERO = """
import json
zero = {}
if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
    with open(os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"]) as stream:
        zero = json.load(stream)["zero_optimization"]
offload = zero.get("offload_optimizer", {}).get("device")
"""


@pytest.mark.parametrize("start", ["imports", slow("cold")])
def test_a_deepspeed_file_that_accelerates_file_names(tool, start):
    zero = tool.folder / "zero.json"
    zero.write_text(json.dumps(ZERO, indent=2) + "\n")
    told = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": str(zero)},
    }
    kept = ("beta", "launch.distributed_type", "launch.deepspeed.zero_optimization.offload_optimizer.device")
    options = ["--start", start, *(("--no-recommend",) if start == "cold" else ())]
    options += [word for name in kept for word in ("--keep", name, "--only", name)]
    options += ["--only", "launch.deepspeed.zero_optimization.stage"]
    fails = STEP.format("zero.get('stage') == 3 and offload == 'cpu' and args.beta")
    study, _ = bisected(tool, told, ARGS + READS_ZERO + fails, *options)
    (cause,) = study.result["causes"]
    assert {name: (level["good"], level["bad"]) for name, level in cause["parameters"].items()} == {
        "beta": (0.0, 0.04),
        "launch.deepspeed.zero_optimization.offload_optimizer.device": (None, "cpu"),
        "launch.deepspeed.zero_optimization.stage": (0, 3),
        "launch.distributed_type": ("NO", "DEEPSPEED"),
    }
    files = [json.loads(path.read_text()) for path in study.folder.glob("trials/*/deepspeed.json")]
    assert all(one["bf16"] == {"enabled": "auto"} for one in files) and files
    if start == "imports":
        (edit,) = study.result["recommendation"]["edits"]
        assert (edit["file"], edit["old"].strip(), edit["new"].strip()) == (str(zero), '"stage": 3,', '"stage": 0,')


def test_a_key_of_fsdps_section(tool):
    text = """
sharded, offload = os.environ.get("ACCELERATE_USE_FSDP") == "true", os.environ.get("FSDP_OFFLOAD_PARAMS")
assert offload in ("true", "false", None), offload
"""
    section = {"fsdp_offload_params": True, "fsdp_version": 2, "fsdp_reshard_after_forward": True}
    told = {"distributed_type": "FSDP", "mixed_precision": "no", "fsdp_config": section}
    study, _ = bisected(tool, told, ARGS + text + STEP.format('sharded and offload == "true"'))
    assert study.causes == [["launch.distributed_type", "launch.fsdp_config.fsdp_offload_params"]]
    diff = (study.folder / "safe_config.diff").read_text().splitlines()
    assert [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")] in (
        ["-  fsdp_offload_params: true", "+  fsdp_offload_params: false"],
        ["-distributed_type: FSDP", "+distributed_type: MULTI_GPU"],
    )
    safe = yaml.safe_load((study.folder / "safe_config.yaml").read_text())
    assert {**safe, "distributed_type": "", "fsdp_config": ""} == {**told, "distributed_type": "", "fsdp_config": ""}


FSDP = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}


def test_a_launcher_in_a_shell_script(tool):
    (tool.folder / "run.sh").write_text(" ".join(LAUNCHES))
    fails = STEP.format('args.beta and os.environ.get("FSDP_OFFLOAD_PARAMS") == "true"')
    study, _ = bisected(tool, FSDP, ARGS + fails, "--no-recommend", command=("bash", "run.sh"))
    assert study.causes == [["beta", "launch.fsdp_config.fsdp_offload_params"]]


def test_a_model_that_does_not_fit_one_device_keeps_its_launch(tool):
    memory = """
def step(number):
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    if args.beta:
        raise ValueError("planted")
GRPOTrainer(args, step).train()
"""
    study, notes = bisected(tool, {"distributed_type": "FSDP"}, ARGS + memory, "--no-recommend")
    assert study.causes == [["beta"]]
    (said,) = [note for note in notes if "out of memory" in note]
    assert "launch.distributed_type" in said and "not varied" in said and "num_generations" not in said


def test_what_is_not_in_force_is_a_finding_and_no_factor(tool):
    forced = "trainer.accelerator = types.SimpleNamespace(distributed_type='NO', mixed_precision='no')\ntrainer.train()"
    text = STEP.format("args.beta").replace("GRPOTrainer(args, step).train()", "trainer = GRPOTrainer(args, step)")
    study, notes = bisected(tool, FSDP, f"import types\n{ARGS}{text}{forced}", "--no-recommend")
    assert study.causes == [["beta"]]
    assert any("launch.distributed_type=FSDP" in note and "not in force" in note for note in notes)
    varied = {name for trial in study.result["trials"] for name in trial["values"]}
    assert varied == {"learning_rate", "beta", "num_generations", "launch.launcher"}


SPEAKS = "import sys; print({!r}, file=sys.stderr); sys.exit(2)"
BUILDS = "from trl import GRPOConfig; GRPOConfig(output_dir='out', beta=0.04); "
STARTS = "import os, sys; os.execv(sys.executable, [sys.executable, sys.argv[-1]])"
REFUSED = "accelerate launch: error: unrecognized arguments: --nosuch"


@pytest.mark.parametrize(
    ("launcher", "flags", "says"),
    [
        (SPEAKS.format(REFUSED), ["--nosuch"], "accelerate refuses the command, and starts nothing"),
        (BUILDS + SPEAKS.format(REFUSED), ["--nosuch"], "accelerate refuses the command, and starts nothing"),  # TRL's
        (SPEAKS.format(REFUSED.replace("accelerate launch", "train.py")), ["--nosuch"], "The script train.py"),
        (STARTS, ["--num_processes", 4], "more processes than GPUs"),
    ],
)
def test_a_launcher_that_cannot_start_the_script(tool, launcher, flags, says):
    """What is wrong with the command is told to the user, and is not the failure under study."""
    (tool.folder / "bin" / "accelerate").write_text(f"#!{sys.executable}\n{launcher}\n")
    script(tool.folder, 'GRPOConfig(output_dir="out")\nraise RuntimeError("CUDA error: invalid device ordinal")')
    said = tool("bisect", "--study", "s", "--", "accelerate", "launch", *flags, "train.py")
    assert_clear(said, says, *map(str, flags[:1] if flags == ["--nosuch"] else []))


def test_a_deepspeed_file_that_the_training_arguments_name(tool):
    zero = tool.folder / "zero.json"
    zero.write_text(json.dumps({"zero_optimization": {"stage": 3, "overlap_comm": True}}))
    script(
        tool.folder,
        """
        import json
        from dataclasses import dataclass

        @dataclass
        class Config(GRPOConfig):
            deepspeed: str | None = None

        args = Config(output_dir="out", learning_rate=3e-4, deepspeed="zero.json")
        with open(args.deepspeed or os.devnull) as stream:
            zero = json.loads(stream.read() or "{}")
        def step(number):
            if zero.get("zero_optimization", {}).get("stage") == 3:
                raise ValueError("planted")
        GRPOTrainer(args, step).train()
        """,
    )
    study = tool.bisect("train.py", *QUICK, "--keep", "deepspeed")
    assert study.causes == [["deepspeed", "launch.deepspeed.zero_optimization.stage"]]
    (edit,) = study.result["recommendation"]["edits"]
    assert Path(edit["file"]).name == "zero.json" and '"stage": 0' in edit["new"]


LAUNCH = """\
import os, subprocess, sys
words, flags = sys.argv[1:], {}
while words[0].startswith("-"):
    name = words.pop(0)
    flags[name] = "" if name == "--multi_gpu" else words.pop(0)
count = int(flags["--num_processes"])
told = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": flags["--main_process_port"]}
ranks = [
    subprocess.Popen([sys.executable, *words], env={**os.environ, **told, "RANK": str(i), "LOCAL_RANK": str(i)})
    for i in range(count)
]
raise SystemExit(max(abs(one.wait()) for one in ranks))
"""


@pytest.mark.parametrize("start", ["imports", slow("cold")])
def test_plain_python_where_several_devices_are_visible(tool, start):
    """The launcher is a module of that name beside the script, as `python -m` finds it."""
    write_module(tool.folder / "accelerate" / "commands" / "launch.py", LAUNCH)
    script(
        tool.folder,
        """
        alone = "RANK" not in os.environ
        GRPOConfig._n_gpu = 3 if alone else 1
        args = GRPOConfig(output_dir="out", learning_rate=3e-4, beta=0.04)
        def step(number):
            if alone:
                raise ValueError("GRPOTrainer does not support `nn.DataParallel`, which `Trainer` uses")
        GRPOTrainer(args, step).train()
        """,
    )
    options = ("--start", "cold") if start == "cold" else ()  # else none but the imports are sound
    study = tool.bisect("train.py", *QUICK, *options)
    (cause,) = study.result["causes"]
    assert cause["parameters"] == {"launch.launcher": {"good": "accelerate launch", "bad": "python"}}
    assert study.result["known_issue"]["id"] == "several-gpus-one-process"
    assert {trial["start"] for trial in study.result["trials"][1:]} == {start}
    for trial in study.folder.glob("trials/*/configuration.json"):
        launched = json.loads(trial.read_text()).get("launch.launcher") == "accelerate launch"
        assert len(list((trial.parent / "ranks").glob("*"))) == (2 if launched else 0)
