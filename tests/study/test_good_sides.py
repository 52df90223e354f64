"""Where the good configuration fails as well: which others are tried, in which order, and what is said at the end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tools import QUICK, asked
from toys import script

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.parameters import every
from bisect_cfg.runner.verdict import Observation
from bisect_cfg.study.good_sides import advised, examples, without_risky_defaults
from bisect_cfg.targets.captured import NOTHING_SEEN, Source
from tests.report.made import DIED, run

CAPTURE = replace(
    NOTHING_SEEN, args=Source("args", 0, "GRPOConfig", "trl", {"beta": 0.1, "use_vllm": True}, {}, {}, {})
)

EXAMPLE = """
    args = GRPOConfig(output_dir="out", temperature=0.9, weight_decay=0.1)
    def step(number):
        if args.num_generations > 4 and number == 3:
            raise RuntimeError("boom")
    GRPOTrainer(args, step).train()
"""
NOTHING_SET = EXAMPLE.replace(", temperature=0.9, weight_decay=0.1", "")
OWN = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--reward_name", default="plain")
    parser.add_argument("--mix", type=float, default=0.0)
    own = parser.parse_args(["--reward_name", "odd", "--mix", "0.5"])
    args = GRPOConfig(output_dir="out", temperature=0.9)
    def step(number):
        if own.reward_name == "odd" and number == 3:
            raise RuntimeError("boom")
    GRPOTrainer(args, step).train()
"""
WORKERS = OWN.replace('"--reward_name", default="plain"', '"--num_workers", type=int, default=4').replace(
    '"--reward_name", "odd", ', "").replace('own.reward_name == "odd"', "own.num_workers > 1")  # fmt: skip
FLAG = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--heat", type=float, default=0.0)
    own = parser.parse_args(["--heat", "0.1"])
    args = GRPOConfig(output_dir="out", temperature=own.heat, weight_decay=0.1)
    def step(number):
        if args.temperature < 0.5 and number == 3:
            raise RuntimeError("boom")
    GRPOTrainer(args, step).train()
"""
HINT = """
    args = GRPOConfig(output_dir="out", temperature=0.9, num_generations=4)
    def step(number):
        if args.loss_type == "dapo" and number == 3:
            raise RuntimeError("no loss for tokens; set `loss_type` to 'grpo'")
    GRPOTrainer(args, step).train()
"""
MASKED = """
    args = GRPOConfig(output_dir="out", temperature=0.0, weight_decay=0.1)
    def step(number):
        if number == 3 and not args.temperature:
            raise ZeroDivisionError("no heat")
        if number == 3 and not args.beta:
            raise OSError("no room; set `beta` to 0.04")
    GRPOTrainer(args, step).train()
"""
"""The good configuration ends in another failure, which the one under study only comes before."""


@pytest.mark.parametrize(
    ("text", "causes", "tried"),
    [
        (EXAMPLE, [["num_generations"]], "documented example of GRPOConfig"),
        (NOTHING_SET, [["num_generations"]], "documented example of GRPOConfig"),
        (
            OWN,
            [["script.reward_name"]],
            "own settings at their defaults, whatever they name (script.reward_name=plain)",
        ),
        (WORKERS, [["script.num_workers"]], "fewer processes (script.num_workers=0)"),
        (FLAG, [["temperature"]], "the library's defaults, whatever the script's own are (temperature=1)"),
        (HINT, [["loss_type"]], "what the failure's message says (loss_type=grpo)"),
        (MASKED, [["temperature"]], "what the failure's message says (beta=0.04)"),
    ],
)
def test_another_good_side_is_tried(tool, text: str, causes: list[list[str]], tried: str) -> None:
    script(tool.folder, text)
    study = tool.bisect("train.py", *QUICK)
    assert study.causes == causes and study.result["complete"] == (text != MASKED)
    assert tried in " ".join(study.result["notes"])
    runs = len(study.result["trials"])
    again = tool.bisect("train.py", *QUICK)
    assert len(again.result["trials"]) == runs and again.causes == causes, "resumed, without a run"


def test_where_none_trains_it_is_said_what_was_tried_and_why(tool) -> None:
    script(tool.folder, OWN.replace('if own.reward_name == "odd" and', "if"))
    study = tool.bisect("train.py", *QUICK, status=1)
    result, questions = study.result, list(asked(study.folder))
    assert result["status"] == "baseline_fails" and result["good_failure"]["text"].startswith("dies at step 3")
    assert [one.split(" (")[0] for one in result["good_tried"]] == [
        "the script's own settings at their defaults, whatever they name", "the documented example of GRPOConfig",
    ]  # fmt: skip
    assert questions.index("good-config-own-defaults") < questions.index("good-config-example")
    assert "train.py:" in result["good_reasons"][0] and "own code" in result["good_reasons"][0]
    assert any("script.reward_name" in one for one in result["good_reasons"])
    said = study.said.all
    assert "Tried besides" in said and result["good_reasons"][0][:30] in said


@pytest.mark.parametrize("option", [("--good", "num_generations=6"), ("--only", "temperature")])
def test_what_the_user_says_of_the_good_side_stays(tool, option: tuple[str, str]) -> None:
    script(tool.folder, EXAMPLE)
    study = tool.bisect("train.py", *QUICK, *option, status=1)
    assert "num_generations" not in " ".join(study.result["good_tried"])


def test_what_leads_to_a_failure_of_its_own_is_taken_back(tool) -> None:
    text = OWN.replace(
        'if own.reward_name == "odd" and',
        'if own.reward_name == "plain":\n            raise OSError("no")\n        if args.num_generations > 4 and',
    )
    script(tool.folder, text)
    study = tool.bisect("train.py", *QUICK)
    assert study.causes == [["num_generations"]]


@pytest.mark.parametrize(
    ("message", "values"),
    [
        ("set `beta` to 0.0 first", {"beta": 0.0}),
        ("use_vllm=False would do", {"use_vllm": False}),
        ("try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.", {
            "env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ("for debugging consider passing CUDA_LAUNCH_BLOCKING=1", {}),
        ("x = 3 and y to 4", {}),
    ],
)  # fmt: skip
def test_the_advice_of_a_message(message: str, values: dict) -> None:
    assert advised(message, CAPTURE) == values


def test_an_example_has_two_to_five_settings_and_a_source() -> None:
    for name, one in examples().items():
        assert 2 <= len(one["settings"]) <= 5 and one["source"].startswith("https://"), name


RISKY = {name: known.risky_default for name, known in every().items() if known.risky_default}


@pytest.fixture
def with_resolved(tmp_path):
    """The defaults that are to be replaced in a run that resolved to these values."""

    def found(resolved: dict, died: Observation = DIED) -> dict:
        return without_risky_defaults(run(tmp_path, died), SimpleNamespace(args=SimpleNamespace(resolved=resolved)))

    return found


def test_a_risky_default_gives_way_to_the_one_before_it(with_resolved) -> None:
    assert "bf16" in RISKY
    defaults = {name: default for name, (default, _) in RISKY.items()}
    before = {name: old for name, (_, old) in RISKY.items()}
    assert with_resolved(defaults) == before
    assert with_resolved(before) == {}  # the run has not got it
    assert with_resolved({}) == {}


@pytest.mark.parametrize(
    ("said", "gives_way"),
    [
        ("\"addmm_impl_cpu_\" not implemented for 'BFloat16'", True),
        ("Your setup doesn't support bf16/gpu.", True),
        ("math domain error", False),
    ],
)
def test_a_default_gives_way_to_an_error_that_names_it(with_resolved, said: str, gives_way: bool) -> None:
    """An error in a reward has nothing to do with the numbers that the model computes with."""
    died = replace(DIED, died=Signature("exception", "RuntimeError", said), message=f"RuntimeError: {said}")
    assert with_resolved({"bf16": True}, died=died) == ({"bf16": False} if gives_way else {})
