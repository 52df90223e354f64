"""From the probe's events to what was captured: which config is meant, and what of it is the user's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bisect_cfg.probe.protocol import (
    Assigned,
    BuildAnswer,
    BuildRequest,
    Completed,
    ConfigBuilt,
    ConfigResolved,
    Event,
    TrainBegin,
    TrainerBuilt,
)
from bisect_cfg.targets.captured import Capture, read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.factors import DEFAULT

DEFAULTS = {"learning_rate": 1e-6, "model_init_kwargs": None, "trust_remote_code": False, "debug": "", "tokens": "no"}
TYPES = {"learning_rate": "float", "model_init_kwargs": "dict | str | None", "trust_remote_code": "bool",
         "debug": "str", "tokens": "str | bool"}  # fmt: skip
MODEL = {"dtype": "float32", "model_revision": "main", "attn_implementation": None}


def config(index: int, cls: str = "GRPOConfig", **raw: object) -> list[Event]:
    values = {**DEFAULTS, **raw}
    place, grpo = ("train.py", index), cls in ("GRPOConfig", "GMPOConfig")
    return [
        ConfigBuilt("args", index, cls, f"trl.{cls}", values, DEFAULTS, TYPES, place=place, grpo=grpo),
        ConfigResolved("args", index, values),
    ]


def model_config(**raw: object) -> list[Event]:
    return [ConfigBuilt("modelcfg", 0, "ModelConfig", "trl", {**MODEL, **raw}, MODEL, dict.fromkeys(MODEL, "str"))]


def begin(number: int, args: int, trainer: str = "GRPOTrainer") -> TrainBegin:
    return TrainBegin(number, args=args, modelcfg=0, trainer=trainer)


def factors(events: list[Event]) -> set[str]:
    def resolve(request: BuildRequest) -> BuildAnswer:
        values = dict(request.raw)
        for name, value in request.overrides.items():
            if value != DEFAULT:
                values[name] = value
                continue
            field, _, key = name.partition(".")
            left = {other: value for other, value in (values[field] or {}).items() if other != key} if key else None
            values[field] = left or DEFAULTS[field]
        return BuildAnswer(values)

    capture = read_capture(events)
    assert capture is not None
    return {factor.name for factor in Comparison(capture, resolve).factors().varied}


def about(*events: Event | list[Event]) -> tuple[int, int]:
    """Number of the training and of its config."""
    flat = [one for event in events for one in (event if isinstance(event, list) else [event])]
    capture = read_capture(flat)
    assert isinstance(capture, Capture)
    return capture.training.number, capture.args.index


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([config(0), begin(1, 0)], (1, 0)),
        ([config(0), begin(1, 0), Completed(1, "T", 0), config(1), begin(2, 1)], (2, 1)),
        # It dies while the second is prepared: its config is the last, or the one that its trainer was given.
        ([config(0), begin(1, 0), Completed(1, "T", 0), config(1)], (2, 1)),
        ([config(0), config(1), config(2), begin(1, 0), Completed(1, "T", 0), TrainerBuilt(1)], (2, 1)),
        # None is ready: one of GRPO is meant, a variant of it as well.
        ([config(0), config(1, "SFTConfig")], (1, 0)),
        ([config(0, "GMPOConfig"), config(1, "SFTConfig")], (1, 0)),
        # All of them ended well.
        ([config(0), begin(1, 0), Completed(1, "T", 0), config(1), begin(2, 1), Completed(2, "T", 1)], (2, 1)),
        # One config, trained twice.
        ([config(0), begin(1, 0), Completed(1, "T", 0), begin(2, 0)], (2, 0)),
        # Of a training that was asked for, those before it are only told to be over.
        ([config(0), Completed(1, "T", 0), config(1), Completed(2, "T", 1), config(2), begin(3, 2)], (3, 2)),
        ([config(0), config(1, "SFTConfig")], (1, 0)),
    ],
)
def test_which_training_is_meant(events, expected):
    assert about(*events) == expected


def test_what_is_assigned_between_two_trainings_is_the_second_ones():
    events = [*config(0), begin(1, 0), Completed(1, "T", 0), *config(1), Assigned("args", 1, "learning_rate", 0.5)]
    capture = read_capture([*events, begin(2, 1), Assigned("args", 1, "learning_rate", 0.9)])
    assert capture is not None and capture.args.raw["learning_rate"] == 0.5
    assert capture.args.place == ("train.py", 1)


def test_what_a_parser_fills_in_is_not_the_users():
    capture = read_capture([*config(0, debug=None, tokens=False, learning_rate=1.0), begin(1, 0)])
    assert capture is not None and capture.args.set_by_user == ["learning_rate"]


HANDED_ON = {"revision": "main", "trust_remote_code": False, "attn_implementation": None, "dtype": "float32"}


@pytest.mark.parametrize(
    ("passed", "made", "expected"),
    [
        (None, HANDED_ON, set()),
        (None, {**HANDED_ON, "use_cache": False}, {"model_init_kwargs.use_cache"}),
        (None, {**HANDED_ON, "dtype": "float16"}, {"model_init_kwargs.dtype"}),
        # A script makes torch's own of the text, and gives keys that say nothing.
        (None, {**HANDED_ON, "dtype": None, "torch_dtype": {"$dtype": "float32"}, "device_map": None}, set()),
        # What the user wrote there is theirs, though ModelConfig says the same.
        ({"dtype": "float32"}, HANDED_ON, {"model_init_kwargs.dtype"}),
        ({"dtype": "float32"}, None, {"model_init_kwargs.dtype"}),
    ],
)
def test_what_the_script_hands_on_from_the_model_config_is_set_there(passed, made, expected):
    assigned = [Assigned("args", 0, "model_init_kwargs", made)] if made is not None else []
    events = [*config(0, model_init_kwargs=passed), *model_config(), *assigned, begin(1, 0)]
    assert factors(events) == expected


def test_a_dtype_of_the_model_config_goes_by_one_name():
    made = Assigned("args", 0, "model_init_kwargs", {**HANDED_ON, "dtype": "float16"})
    assert factors([*config(0), *model_config(dtype="float16"), made, begin(1, 0)]) == {"model.dtype"}


@pytest.mark.parametrize(("other", "default"), [
    ({"raw": {"mix": 0.2}, "defaults": {}}, 0.2),  # of a file that they are laid over
    ({"raw": {"mix": 0.9}, "defaults": {"mix": 0.1}}, 0.1),  # of a config into which they were merged
    ({"raw": {"mix": 0.9}, "defaults": {}}, None), ({"raw": {"window": 4}, "defaults": {}}, None),
])  # fmt: skip
@pytest.mark.parametrize("first", [False, True])
def test_without_its_word_a_setting_is_what_the_scripts_files_say(other, default, first):
    words = ConfigBuilt("script", int(first), "", "", {"mix": 0.9}, {"mix": None}, {"mix": "float"}, words=True)
    of_file = ConfigBuilt("script", int(not first), "", "", types={}, **other)
    args = ConfigBuilt("args", 0, "GRPOConfig", "trl", {}, {}, {})
    rows = [of_file, words, args] if first else [words, of_file, args]
    own = read_capture(rows).others["script"]
    assert own.raw["mix"] == 0.9 and own.defaults["mix"] == default
    assert (own.index, own.words) == (0, words.index), "trials are forked before any of them is read"
    none = ConfigBuilt("script", 2, "", "", {}, {}, {}, words=True)
    own = read_capture([*rows, none]).others["script"]
    assert own.raw == other["raw"] and own.words == -1, "a parser has taken the words after all"


OF_VARIABLES = """
import os
RATE = float(os.environ.get("RATE", "5e-3"))
MASKED = os.getenv("MASKED", "false").lower() == "true"
LIMIT = int(os.environ["LIMIT"])
GRPOConfig(learning_rate=RATE, mask_truncated_completions=MASKED, max_completion_length=LIMIT)
"""


def test_a_field_that_is_made_of_a_variable_is_one_setting_with_it(tmp_path, monkeypatch) -> None:
    """Its good value is what the code has for a variable that is not set; where it has none, the library's."""
    (tmp_path / "train.py").write_text(OF_VARIABLES)
    place, variables = (str(tmp_path / "train.py"), 7), {"RATE": "6e-3", "MASKED": "true", "LIMIT": "8"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = {"learning_rate": 6e-3, "mask_truncated_completions": True, "max_completion_length": 8}
    library = {"learning_rate": 1e-6, "mask_truncated_completions": False, "max_completion_length": 256}
    env = ConfigBuilt("env", 0, "", "", variables, dict.fromkeys(variables), {}, place=place)
    args = ConfigBuilt("args", 0, "GRPOConfig", "trl", given, library, {}, place=place)

    def resolve(request: BuildRequest) -> BuildAnswer:
        good = {name: library[name] if to == DEFAULT else to for name, to in request.overrides.items()}
        return BuildAnswer({**request.raw, **good})

    comparison = Comparison(read_capture([env, args, ConfigResolved("args", 0, given)]), resolve)
    factors = comparison.factors()
    assert factors.good == {"learning_rate": 5e-3, "mask_truncated_completions": False, "max_completion_length": 256}
    assert {factor.own for factor in factors.varied} == {("env.RATE", None), ("env.MASKED", None), ("env.LIMIT", "256")}
    named = replace(comparison, good={"env.RATE": "2e-3"}).factors()
    assert named.good["learning_rate"] == 2e-3 and named.varied[0].own == ("env.RATE", "2e-3")


@pytest.mark.parametrize(("default", "known"), [
    ([{"name": "a", "weight": 1}, {"name": "b"}], {"0.name": "a", "0.weight": 1, "1.name": "b"}),
    ([{"name": "a", "weight": 1}], {}), ([{"name": "a", "weight": 1}, {"name": "c"}], {}), ([1, 2], {}), ([], {}),
], ids=["alike", "shorter", "another_name", "no_sections", "empty"])  # fmt: skip
def test_a_list_like_the_users_has_the_defaults_of_its_elements(tmp_path, default, known):
    (tmp_path / "train.py").write_text(f"DEFAULTS = {{'rewards': {default}}}\n")
    users = [{"name": "a", "weight": 0}, {"name": "b"}]
    raw = {"rewards": users, "rewards.0.name": "a", "rewards.0.weight": 0, "rewards.1.name": "b"}
    of_file = ConfigBuilt("script", 0, "", "", raw, {}, {}, place=(str(tmp_path / "train.py"), 1))
    own = read_capture([of_file, ConfigBuilt("args", 0, "GRPOConfig", "trl", {}, {}, {})]).others["script"]
    found = {name.partition(".")[2]: value for name, value in own.defaults.items() if name != "rewards"}
    assert found == known and (own.defaults.get("rewards") is None) is bool(known)
    assert own.set_by_user == (["rewards.0.weight"] if known else ["rewards"])


def test_a_word_without_a_default_is_no_file_that_it_stands_in_for():
    words = {"training.learning_rate": 0.01}
    flags = {name: [f"--{name}"] for name in words}
    own = ConfigBuilt("script", 0, "", "", words, dict.fromkeys(words), {}, flags=flags, words=True)
    events = [own, *config(0, learning_rate=0.01)]
    assert factors(events) == {"learning_rate"}
