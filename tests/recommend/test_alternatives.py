"""Known alternatives and published values: the data files keep to their schema and say the right thing when asked."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames
from trl import GRPOConfig, ModelConfig

from bisect_cfg.common.parameters import dotted
from bisect_cfg.recommend import alternatives, data_files, published
from bisect_cfg.recommend.alternatives import alternatives_for
from bisect_cfg.recommend.data_files import DataError
from bisect_cfg.recommend.published import published_for

TRAINING = {field.name for field in dataclasses.fields(GRPOConfig)}
MODEL = {field.name for field in dataclasses.fields(ModelConfig)}
ENTRIES = alternatives.load()
FP16 = {"model.dtype": ("float32", "float16"), "optim": ("adamw_torch_fused", "adamw_torch")}
CHOICES = {
    "args.optim": {item.value for item in OptimizerNames},
    "args.lr_scheduler_type": {item.value for item in SchedulerType},
    "args.loss_type": {"grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"},
    "args.scale_rewards": {"group", "batch", "none", True, False},
    "model.dtype": {"float32", "float16", "bfloat16"},
    "model.attn_implementation": {"sdpa", "eager", "flash_attention_2", "flash_attention_3"},
}


def settings_of(found: list[alternatives.Alternative]) -> list[dict]:
    return [dict(one.settings) for one in found]


# ---------------------------------------------------------------------------------------------------- data files


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_speaks_of_settings_and_values_that_exist(entry: alternatives.Situation) -> None:
    for settings in (entry.cause, entry.where, *(one.settings for one in entry.alternatives)):
        for name, value in settings.items():
            namespace, _, rest = name.partition(".")
            assert rest.split(".")[0] in (TRAINING if namespace == "args" else MODEL), name
            values = value if isinstance(value, list) else [value]
            assert name not in CHOICES or set(values) <= CHOICES[name], (name, value)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_changes_what_it_is_about_and_says_why(entry: alternatives.Situation) -> None:
    for one in entry.alternatives:
        assert not all(name in entry.cause and entry.cause[name] == value for name, value in one.settings.items()), (
            "proposes what failed"
        )
        assert 20 < len(one.why) < 250 or one.why.startswith("TRL's default"), one.why
        assert one.why.endswith(".") and one.source


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_every_entry_can_be_reached(entry: alternatives.Situation) -> None:
    cause = {name: (None, example(value)) for name, value in entry.cause.items()}
    found = alternatives_for(cause, {name: example(value) for name, value in entry.where.items()})
    for one in entry.alternatives:
        assert one.settings in settings_of(found)


def example(wanted: object) -> object:
    """A value that agrees with what an entry asks for."""
    if isinstance(wanted, list):
        return wanted[0]
    compared = (
        re.fullmatch(r"(?P<sign>[<>])(?P<equal>=?)(?P<limit>[\d.e-]+)", wanted) if isinstance(wanted, str) else None
    )
    if compared is None:
        return 0.1 if wanted == "*" else wanted
    limit = float(compared["limit"])
    return limit if compared["equal"] else limit / 2 if compared["sign"] == "<" else 2 * limit or 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ""}, "'id' is missing"),
        ({"try": []}, "'try' is missing"),
        ({"tri": []}, "unknown field 'tri'"),
        ({"cause": {"optim": "sgd"}}, "no namespace"),
        ({"cause": {"model.torch_dtype": "float16"}}, "write model.dtype instead"),
        (
            {"try": [{"set": {"args.optim": "sgd"}, "why": "w", "sources": ["somewhere"]}]},
            "owner/repository#number",
        ),
        ({"try": [{"set": {"args.optim": "sgd"}, "why": "w"}]}, "'sources' is missing"),
        ({"try": ["sgd"]}, "a mapping is expected"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(change: dict, said: str) -> None:
    right = {
        "id": "one",
        "cause": {"args.optim": "adamw_torch"},
        "try": [{"set": {"args.optim": "sgd"}, "why": "w", "sources": ["measured"]}],
    }
    assert alternatives.check(right, "here").id == "one"
    with pytest.raises(DataError, match="here") as error:
        alternatives.check(right | change, "here")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [("- {x: 1e-6}", "write it with a dot"), ("x: 1", "a list of mappings"), ("- [", "not YAML")],
)
def test_a_file_that_yaml_reads_otherwise_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        data_files.read(path)


# -------------------------------------------------------------------------------------------------- alternatives


def test_fp16_weights_with_plain_adam_has_four_ways_out_and_the_cheapest_comes_first() -> None:
    found = settings_of(alternatives_for(FP16, {"learning_rate": 2e-6}))
    assert found[:4] == [
        {"args.optim": "adamw_torch_fused"},
        {"args.adam_epsilon": 1e-6},
        {"args.adam_epsilon": 1e-4},
        {"model.dtype": "float32"},
    ]


def test_what_the_configuration_says_otherwise_rules_an_entry_out() -> None:
    found = settings_of(alternatives_for(FP16, {"adam_epsilon": 1e-4}))
    assert {"args.adam_epsilon": 1e-6} not in found
    assert {"model.dtype": "float32"} in found  # what speaks of fp16 weights alone still holds


def test_names_and_values_are_written_as_in_the_cause() -> None:
    tagged = {"model_init_kwargs.torch_dtype": ("auto", {"$dtype": "float16"})}
    found = settings_of(alternatives_for(tagged, {}))
    assert {"args.model_init_kwargs.torch_dtype": {"$dtype": "float32"}} in found
    found = settings_of(alternatives_for({"activation_checkpointing": (False, True)}, {}))
    assert {"args.activation_checkpointing": False} in found


def test_settings_that_this_trl_does_not_know_are_not_offered() -> None:
    cause = {"use_vllm": (False, True)}
    everything = settings_of(alternatives_for(cause, {}))
    assert {"args.cast_lm_head_to_fp32": True} in everything
    older = settings_of(alternatives_for(cause, {}, known={"use_vllm", "vllm_enable_sleep_mode"}))
    assert older and {name for settings in older for name in settings} <= {
        "args.use_vllm",
        "args.vllm_enable_sleep_mode",
    }
    assert settings_of(alternatives_for(cause, {}, known=TRAINING)) == everything


def test_nothing_is_known_of_an_unheard_name() -> None:
    assert alternatives_for({"lr": (1e-6, 1e-3)}, {"lr": 1e-3}) == []


@given(
    st.dictionaries(
        st.sampled_from(sorted({name for entry in ENTRIES for name in entry.cause})),
        st.sampled_from([True, False, "float16", "bfloat16", "adamw_torch", "sdpa", "dapo", "group", 0.0, 2, -1, None]),
        min_size=1,
        max_size=4,
    )
)
def test_a_proposal_always_changes_the_configuration_and_never_comes_twice(bad: dict) -> None:
    found = settings_of(alternatives_for({name: (None, value) for name, value in bad.items()}, bad))
    for settings in found:
        assert settings and all(bad.get(name, "absent") != value for name, value in settings.items())
        assert found.count(settings) == 1


# ----------------------------------------------------------------------------------------------------- published


def test_recipes_speak_of_settings_that_exist() -> None:
    for recipe in published.load():
        for name in recipe.settings:
            namespace, _, rest = dotted(name).partition(".")
            assert rest.split(".")[0] in (TRAINING if namespace == "args" else MODEL), (recipe.recipe, name)


def test_the_defaults_are_those_of_the_installed_trl(tmp_path: Path) -> None:
    installed = GRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    (defaults,) = [recipe for recipe in published.load() if recipe.defaults]
    for name, value in defaults.settings.items():
        actual = getattr(installed, name)
        assert getattr(actual, "value", actual) == value, name


def test_defaults_come_first_then_what_is_most_like_the_users_case() -> None:
    configuration = {"model.model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct"}
    rates = published_for("learning_rate", configuration)
    assert rates[0].recipe == "TRL defaults" and rates[0].value == 1e-6
    assert "0.5B" in rates[1].recipe and "0.6B" in rates[2].recipe
    assert "57.0 %" in rates[2].note
    assert [one.source for one in published_for("args.learning_rate", {"peft.r": 16})][1].endswith("regret")
    assert all(one.source.startswith("https://") for one in rates)


def test_aliases_and_unknown_names() -> None:
    assert published_for("model_init_kwargs.dtype", {})[0].value == "bfloat16"
    assert published_for("lr", {}) == []
