"""Known alternatives: the data says only what exists, and the right thing when asked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installed_classes import choices, config_classes

from bisect_cfg.common.configuration import Name, equal
from bisect_cfg.common.parameters import address, canonical
from bisect_cfg.remedy.alternatives import (
    FILE,
    Alternative,
    Situation,
    alternatives_for,
    situations,
)

FP16 = {"model.dtype": ("float32", "float16"), "optim": ("adamw_torch_fused", "adamw_torch")}
CHOICES = {
    "args.optim": choices("optim"),
    "args.lr_scheduler_type": choices("lr_scheduler_type"),
    "args.loss_type": {"grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"},
    "args.scale_rewards": {"group", "batch", "none", True, False},
    "model.dtype": {"float32", "float16", "bfloat16"},
    "model.attn_implementation": {"sdpa", "eager", "flash_attention_2", "flash_attention_3"},
}


def settings_of(found: list[Alternative]) -> list[dict]:
    return [dict(one.settings) for one in found]


def exists(name: str) -> bool:
    namespace, rest = Name.of(name)
    return rest.split(".")[0] in config_classes()["GRPOConfig" if namespace == "args" else "ModelConfig"]


def example(wanted: object) -> object:
    """A value that agrees with what an entry asks for."""
    if isinstance(wanted, list):
        return wanted[0]
    compared = re.fullmatch(r"([<>])(=?)([\d.e-]+)", wanted) if isinstance(wanted, str) else None
    if compared is None:
        return 0.1 if wanted == "*" else wanted
    sign, equal, limit = compared[1], compared[2], float(compared[3])
    return limit if equal else limit / 2 if sign == "<" else 2 * limit or 0.5


# ------------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("entry", situations(), ids=lambda entry: entry.id)
def test_an_entry_says_what_exists_and_can_be_reached(entry: Situation) -> None:
    assert entry.id and entry.cause and entry.offers
    for settings in (entry.cause, entry.where, *(offer.set for offer in entry.offers)):
        for name, value in settings.items():
            assert exists(name) and canonical(name) == name, name
            assert name not in CHOICES or set(value if isinstance(value, list) else [value]) <= CHOICES[name], name
    cause = {name: (None, example(value)) for name, value in entry.cause.items()}
    found = settings_of(alternatives_for(cause, {name: example(value) for name, value in entry.where.items()}))
    for offer in entry.offers:
        assert offer.set in found
        assert any(entry.cause.get(name, "absent") != value for name, value in offer.set.items()), "what failed"
        assert offer.sources and all(map(address, offer.sources))
        assert offer.why.strip().endswith(".") and (20 < len(offer.why) < 250 or offer.why.startswith("TRL's default"))


def test_the_data_has_no_id_twice_and_no_number_that_yaml_takes_for_text() -> None:
    names = [entry.id for entry in situations()]
    assert len(names) == len(set(names))
    # 1e-6 without a dot is text to YAML 1.1
    assert not re.findall(r"[:\[,] *[-+]?\d+[eE][-+]?\d+(?=\s*[,}\]\n])", FILE.read_text())


# ------------------------------------------------------------------------------------------------------------ asked


@pytest.mark.parametrize(
    ("cause", "configuration", "there", "absent"),
    [
        (FP16, {"learning_rate": 2e-6}, [{"args.optim": "adamw_torch_fused"}, {"args.adam_epsilon": 1e-6}], []),
        # What the configuration says otherwise rules an entry out; what speaks of fp16 weights alone still holds.
        (FP16, {"adam_epsilon": 1e-4}, [{"model.dtype": "float32"}], [{"args.adam_epsilon": 1e-6}]),
        # Names and values are written as in the cause.
        ({"model_init_kwargs.torch_dtype": ("auto", {"$dtype": "float16"})}, {},
         [{"args.model_init_kwargs.torch_dtype": {"$dtype": "float32"}}], []),
        ({"activation_checkpointing": (False, True)}, {}, [{"args.activation_checkpointing": False}], []),
        # The guilty value is none to propose, under whatever name.
        ({"bf16": (False, True)}, {"fp16": True}, [{"args.bf16": False}], [{"args.bf16": True}]),
    ],
)  # fmt: skip
def test_what_is_offered(cause, configuration, there, absent) -> None:
    found = settings_of(alternatives_for(cause, configuration))
    assert [one for one in found if one in there] == there and not any(one in found for one in absent)


def test_settings_that_this_trl_does_not_know_are_not_offered() -> None:
    cause = {"use_vllm": (False, True)}
    everything = settings_of(alternatives_for(cause, {}))
    assert {"args.cast_lm_head_to_fp32": True} in everything
    older = settings_of(alternatives_for(cause, {}, known={"use_vllm", "vllm_enable_sleep_mode"}))
    assert older and {name for one in older for name in one} <= {"args.use_vllm", "args.vllm_enable_sleep_mode"}
    assert settings_of(alternatives_for(cause, {}, known=set(config_classes()["GRPOConfig"]))) == everything
    assert alternatives_for({"lr": (1e-6, 1e-3)}, {"lr": 1e-3}) == []


@given(
    st.dictionaries(
        st.sampled_from(sorted({name for entry in situations() for name in entry.cause})),
        st.sampled_from([True, False, "float16", "bfloat16", "adamw_torch", "sdpa", "dapo", "group", 0.0, 2, -1, None]),
        min_size=1,
        max_size=4,
    )
)
def test_a_proposal_always_changes_the_configuration_and_never_comes_twice(bad: dict) -> None:
    found = settings_of(alternatives_for({name: (None, value) for name, value in bad.items()}, bad))
    for settings in found:
        assert settings and not any(equal(bad.get(name, "absent"), value) for name, value in settings.items())
        assert found.count(settings) == 1
