"""TRL 0.14, transformers 4.48, accelerate 1.3 and torch 2.5.1 under the oldest Python there is, with nothing of ours
installed: whole bisections there. The environment is built by uv once, and kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import toys
from tools import Tool
from uv import find_uv_bin

from bisect_cfg.runner.environments import Environments

STUDY = Path(__file__).parent.parent / "studies" / "trl_2906_original"

pytestmark = [pytest.mark.slow, pytest.mark.training]

PATIENCE = 1800
"""Seconds, on a machine that is busy; on an idle one each takes one or two minutes."""


KEPT = Path(os.environ.get("BISECT_CFG_ENVIRONMENTS", "~/.cache/bisect-cfg-environments")).expanduser()
"""Where the environment is from one run to the next; it may be deleted."""

PYTHONS = ("3.9", "3.10", "3.11", "3.12")
"""The oldest first: one that is installed is taken, else the first that uv can install."""


def oldest_python() -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()  # its shims show one version alone
    places = [str(path) for path in pyenv.glob("versions/*/bin")]
    environment = {**os.environ, "PATH": os.pathsep.join([*places, os.environ["PATH"]])}

    def said(*words: str) -> str:
        done = subprocess.run([find_uv_bin(), "python", *words], env=environment, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    installed = (said("find", "--no-python-downloads", version) for version in PYTHONS)
    fetched = (said("install", version) and said("find", version) for version in PYTHONS)
    return next(filter(None, (found for several in (installed, fetched) for found in several)))


@pytest.fixture(scope="module")
def python() -> str:
    lines = (STUDY / "requirements.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    return Environments(KEPT, oldest_python()).of(packages).python


@pytest.fixture
def old(real_tool: Tool, python: str):
    """`bisect-cfg bisect` of a script on the old stack; gives the result."""

    def bisect(target: object, *options: object) -> dict:
        said = real_tool("bisect", target, "--python", python, "--study", "s", *options, seconds=PATIENCE)
        assert said.status == 0, said.all
        real_tool.assert_nothing_left()
        result = json.loads((real_tool.folder / "s/result.json").read_text())
        assert result["status"] == "isolated" and result["complete"], said.all
        return result

    return bisect


def causes(result: dict) -> list[list[str]]:
    return [sorted(cause["parameters"]) for cause in result["causes"]]


CHEAP = {"gradient_accumulation_steps": 1, "num_generations": 4, "max_completion_length": 8}
"""Of a script and of its good configuration: this TRL's defaults are eight times as much work, each of them."""

GOOD = [word for name, value in CHEAP.items() for word in ("--good", f"{name}={value}")]


def toy(folder: Path, failure: str, model: str = "toy.model()", **settings: object) -> Path:
    """A script whose reward function does something at each call."""
    given = {**CHEAP, "logging_steps": 1, "use_cpu": True, "report_to": "none", **settings}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return toys.write(
        folder,
        f"""
        import os, time
        import toy, torch
        from transformers import AutoModelForCausalLM
        from trl import GRPOConfig

        args = GRPOConfig(output_dir="out", {arguments})
        calls = []

        def reward(completions, **kwargs):
            calls.append(1)
            {failure}
            return [len(set(text.split())) / 8 for text in completions]

        toy.trainer(args, model={model}, reward_funcs=[reward]).train()
        """,
    )


def test_the_recipe_of_trl_2906_as_it_was_reported(old):
    expected = json.loads((STUDY / "expected.json").read_text())
    result = old(STUDY)
    assert causes(result) == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    assert "SIGFPE" in result["simulated"] and result["known_issue"] is None
    if shutil.which("gdb") is None:
        expected["where"].pop("native")
    for key, value in expected["where"].items():
        assert value in result["where"][key], key
    versions = result["environment"]["packages"]
    assert {name: versions[name] for name in ("trl", "torch", "transformers", "accelerate")} == {
        "trl": "0.14.0", "torch": "2.5.1", "transformers": "4.48.3", "accelerate": "1.3.0",
    }  # fmt: skip
    assert "optuna" not in versions

    (cause,) = result["causes"]
    assert cause["parameters"]["bf16"] == {"good": False, "bad": True}
    varied = set(result["trials"][-1]["values"])
    assert {"learning_rate", "warmup_ratio", "max_grad_norm"} <= varied
    assert {row["start"] for row in result["trials"][1:]} == {"config"}, "forked several times at the configuration"

    recommended = result["recommendation"]
    assert recommended["verified"] and recommended["changes"] == {"bf16": {"from": True, "to": False}}
    (edit,) = recommended["edits"]
    assert edit["old"].strip(" ,") == "bf16=True" and edit["new"].strip(" ,") == "bf16=False"


def test_options_that_are_gone_today_are_found(old, tmp_path):
    """A cause of two options that newer versions do not have; forked after the imports."""
    failure = "if args.warmup_ratio > 0 and args.max_prompt_length < 512: os.kill(os.getpid(), 11)"
    script = toy(tmp_path, failure, warmup_ratio=0.1, max_prompt_length=200, weight_decay=0.1)
    result = old(script, "--start", "imports", "--no-recommend", *GOOD)
    assert causes(result) == [["max_prompt_length", "warmup_ratio"]]
    assert result["failure"]["signal"] == "SIGSEGV" and "reward" in result["where"]["line"]
    assert {row["start"] for row in result["trials"][1:]} == {"imports"}


def test_a_reward_that_never_comes_back_is_a_hang(old, tmp_path):
    script = toy(tmp_path, "while args.weight_decay > 0 and len(calls) > 3: time.sleep(1)", weight_decay=0.1)
    result = old(script, "--trial-timeout", 30, "--no-recommend", "--no-where", *GOOD)
    assert causes(result) == [["weight_decay"]]
    assert result["failure"]["kind"] == "hang" and "reward" in result["failure"]["message"]


def test_weights_that_become_nan_and_what_to_use_instead(old, tmp_path):
    """Half-precision weights under a plain AdamW; what they are loaded with is called `torch_dtype` there."""
    loaded = "AutoModelForCausalLM.from_pretrained(toy.saved_model('saved'), torch_dtype=torch.float16)"
    script = toy(tmp_path, "pass", loaded, weight_decay=0.1, max_grad_norm=0.5, optim="adamw_torch")
    result = old(script, "--remedies", 3, *GOOD)
    assert causes(result) == [["model.dtype"]]
    assert result["failure"]["kind"] == "non-finite"
    assert result["where"]["same_failure"] and result["where"]["module"]
    recommended = result["recommendation"]
    ways = [way for way in (recommended, *recommended["alternatives"]) if way["verified"]]
    assert {"model.dtype", "optim"} <= {name for way in ways for name in way["changes"]}


def test_a_collapse_shows_without_entropy(old, tmp_path):
    """This TRL logs neither entropy nor the share of groups without a signal."""
    script = toy(tmp_path, "pass", learning_rate=0.5, weight_decay=0.1)
    result = old(script, "--no-recommend", "--no-where", "--steps", 40, *GOOD)
    assert causes(result) == [["learning_rate"]]
    assert result["failure"]["kind"] == "collapse"
    rows = [json.loads(line) for line in (tmp_path / "s/trials/0/metrics.jsonl").read_text().splitlines()]
    assert rows and all("reward_std" in row and "entropy" not in row for row in rows)
