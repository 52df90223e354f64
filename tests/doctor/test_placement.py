"""What is said of where the models of a run are."""

from __future__ import annotations

import pytest

from bisect_cfg.doctor.placement import findings
from bisect_cfg.probe.protocol import PlacedModel, Weights


def model(role: str, *weights: tuple[str, str, int], wrapper: str = "") -> PlacedModel:
    return PlacedModel(role, "Qwen2ForCausalLM", wrapper, [Weights(*one) for one in weights])


POLICY = model("policy", ("cuda:0", "bfloat16", 1000))
THERE = model("reference", ("cuda:0", "bfloat16", 1000))
ON_CPU = model("reference", ("cpu", "float32", 1000))


@pytest.mark.parametrize(
    "models",
    [
        [POLICY],
        [POLICY, THERE],
        [model("policy", ("cuda:0", "bfloat16", 900), ("cuda:0", "float32", 100)), THERE],  # LoRA
        [model("policy"), model("reward")],  # of no parameters
        [model("policy", ("cuda:0", "bfloat16", 9), wrapper="DistributedDataParallel"), THERE],
        [],
    ],
)
def test_what_is_as_it_should_be(models: list[PlacedModel]) -> None:
    assert findings({0: models}) == findings({0: models, 1: models}) == []


def test_models_elsewhere_than_the_policy() -> None:
    (found,) = findings({0: [POLICY, ON_CPU]})
    assert (found.kind, found.issue) == ("elsewhere", "")
    assert found.text == "The reference model is on cpu, and the policy on cuda:0"
    (known,) = findings({0: [POLICY, ON_CPU], 1: [POLICY, ON_CPU]}, "FSDP")
    assert known.text == "The reference model is on cpu on rank 0, and the policy on cuda:0"
    assert (known.issue, known.source) == ("fsdp-reference-model", "https://github.com/huggingface/trl/issues/3348")
    (reward,) = findings({0: [POLICY, model("reward", ("cuda:1", "float32", 5))]}, "FSDP")
    assert reward.text.startswith("The reward model is on cuda:1") and reward.issue == ""


def test_a_model_on_meta_or_on_several_devices() -> None:
    (empty,) = findings({0: [POLICY, model("reference", ("meta", "float32", 10))]})
    assert empty.kind == "meta" and empty.text.startswith("The reference model is 100 % on the device meta, where")
    split, meta = sorted(
        findings({0: [model("policy", ("cuda:0", "bfloat16", 9994), ("cpu", "bfloat16", 5), ("meta", "bfloat16", 1))]}),
        key=lambda finding: finding.kind,
        reverse=True,
    )
    assert split.text == "The policy is 99 % on cuda:0 and less than 1 % on cpu"
    assert meta.kind == "meta" and "less than 1 %" in meta.text


def test_one_process_that_drives_several_gpus() -> None:
    (found,) = findings({0: [model("policy", ("cuda:0", "float32", 3), wrapper="DataParallel")]})
    assert (found.kind, found.issue) == ("data-parallel", "several-gpus-one-process")
    assert "accelerate launch" in found.text and found.source.startswith("https://github.com/")
