"""The table of settings: a row is about something that exists, has a source, and is all there is to add."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from installed_classes import config_classes
from packaging.specifiers import SpecifierSet

from bisect_cfg.common import parameters
from bisect_cfg.common.parameters import (
    Parameter,
    address,
    canonical,
    every,
    parameter,
    risk_of,
    spelled,
    successors,
    table,
)
from bisect_cfg.doctor.findings import check
from bisect_cfg.errors import InputError
from bisect_cfg.probe import side_effects
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest
from bisect_cfg.remedy.proposals import weight
from bisect_cfg.remedy.ranges import search_range_of
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.good import parse_pins
from bisect_cfg.targets.suggestions import check_name

GROUPS = yaml.safe_load(parameters.FILE.read_text())["groups"]
ROWS = [pytest.param(row, id=row["name"][0]) for row in table().rows]


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Namespace -> the settings that the installed classes have in it."""
    of = {
        "": ("GRPOConfig", "SFTConfig", "DPOConfig", "ModelConfig"),
        "model": ("ModelConfig",),
        "peft": ("LoraConfig",),
    }
    return {space: {name for cls in classes for name in config_classes()[cls]} for space, classes in of.items()}


# ------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_about_settings_that_exist_or_says_what_became_of_them(known, row: dict) -> None:
    there = [SpecifierSet(versions).contains(version(package)) for package, versions in row.get("removed", {}).items()]
    for name in row["name"]:
        namespace, _, last = name.rpartition(".")
        if name.endswith("*"):
            assert any(field.startswith(last[:-1]) for field in known.get(namespace, {last[:-1]})), name
        elif namespace in known:
            settable = last in known[namespace]
            assert settable or all(there) and (there or "gone" in row), f"{name}: no class has it, and no row says why"
            assert not (settable and any(there)), f"{name} is there, and said to be removed"


def test_no_name_has_two_rows_and_no_row_a_field_that_there_is_not() -> None:
    names = [name for row in table().rows for name in (*row["name"], *row.get("also", ()))]
    assert len(names) == len(set(names))
    assert {key for row in table().rows for key in row} <= {one.name for one in fields(Parameter)}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_where_it_is_from_and_holds_together(known, row: dict) -> None:
    assert row["source"] and all(map(address, row["source"]))
    assert ("risk" in row) <= ("why" in row) and row.get("risk", 1.0) > 0 and row.get("weight", 1.0) > 0
    assert row.get("group", "kernels") in GROUPS and row.get("scale", "complement") == "complement"
    assert set(row.get("resource", ())) <= {"memory", "time"} and len(row.get("risky_default", (1, 2))) == 2
    assert ("instead" in row) <= ("gone" in row and "removed" in row)
    assert all(name in known[""] for name in row.get("idle_under", ()))


def test_failures_speak_of_the_groups() -> None:
    assert all(odds.keys() <= GROUPS.keys() and min(odds.values()) > 0 for odds in table().failures.values())


def test_what_the_probe_sets_is_redirected_and_pinned() -> None:
    for name in (*side_effects.PINNED, "output_dir", "logging_dir"):
        assert parameter(name).redirected and parameter(name).pinned, name
        with pytest.raises(InputError, match="no effect|holds a secret"):
            parse_pins([f"{name}=1"])


def test_the_closer_name_wins_and_the_rest_adds_up() -> None:
    assert (
        parameter("logging_steps").weight < 1 and parameter("logging_steps").risk == parameter("logging_dir").risk < 1
    )
    assert parameter("peft.r").risk == parameter("peft.lora_alpha").risk > 1 and parameter("peft.revision").pinned
    assert parameter("model.dtype") is not parameter("unheard_of")
    assert parameter("args.learning_rate") == parameter("learning_rate") != parameter("unheard_of")
    assert parameter("model_init_kwargs.torch_dtype") == parameter("model.dtype")


def test_names_lead_to_one() -> None:
    assert canonical("model_init_kwargs.dtype") == canonical("model.torch_dtype") == "model.dtype"
    assert (
        canonical("activation_checkpointing_kwargs.use_reentrant") == "args.gradient_checkpointing_kwargs.use_reentrant"
    )
    assert canonical("lr_scheduler_kwargs.num_cycles") == "args.lr_scheduler_kwargs.num_cycles"
    assert canonical("logging_dir") == "args.logging_dir" and canonical("unheard_of") == "args.unheard_of"
    assert spelled("args.gradient_checkpointing", ["activation_checkpointing"]) == "args.activation_checkpointing"
    assert all(canonical(canonical(name)) == canonical(name) for name in every())


def test_it_is_read_when_it_is_asked_for_and_stands_alone() -> None:
    """Importing it reads nothing, and neither it nor the search needs more of others than configurations and names."""
    code = "import json, sys; old = set(sys.modules); import {}; print(json.dumps([*{{*sys.modules}} - old]))"

    def loaded(module: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", code.format(module)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    ours = [name for name in loaded("bisect_cfg.common.parameters") if name.startswith("bisect_cfg")]
    own = {"configuration", "parameters"}
    assert set(ours) == {"bisect_cfg", "bisect_cfg.common", *(f"bisect_cfg.common.{name}" for name in own)}
    assert "yaml" not in loaded("bisect_cfg.common.parameters")
    rooms = {name.split(".")[1] for name in loaded("bisect_cfg.search") if name.startswith("bisect_cfg.")}
    assert rooms <= {"search", "common"}


# -------------------------------------------------------------------------------------------------- a new row


CACHED = (table, parameter, every, successors)


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Adds rows to the table as a person would."""

    def added(text: str) -> None:
        (tmp_path / "table.yaml").write_text(parameters.FILE.read_text() + text)
        monkeypatch.setattr(parameters, "FILE", tmp_path / "table.yaml")
        for function in CACHED:
            function.cache_clear()

    yield added
    monkeypatch.undo()
    for function in CACHED:
        function.cache_clear()


def test_a_new_option_is_one_row(add: Callable[[str], None], capture_of: Callable[..., object]) -> None:
    add("""
- name: reward_horizon
  group: size
  risk: 7.0
  why: rewards far away
  weight: 2.0
  scale: complement
  switched_off: [0]
  resource: [time]
  work: true
  source: measured

- name: reward_folder
  pinned: it names a place
  source: measured

- name: old_horizon
  gone: It was removed in TRL 9
  instead: use reward_horizon
  removed: {trl: '>=0.1'}
  source: measured
""")
    assert risk_of("reward_horizon") == 7.0 and risk_of("reward_horizon", "out-of-memory") == 70.0
    assert weight("reward_horizon") == 2.0 and parameter("reward_horizon").resource == ("time",)
    assert search_range_of("reward_horizon", 0, 5) is None
    assert search_range_of("reward_horizon", 0.9, 0.999).kind == "complement"
    with pytest.raises(InputError) as error:
        check_name("old_horizon", {"reward_horizon": ""}, "--only")
    assert error.value.advice == "It was removed in TRL 9: use reward_horizon."
    gone = [one for one in check({"packages": {"trl": "1.0"}}, {"old_horizon": 3}) if "old_horizon" in one.title]
    assert [one.cure for one in gone] == ["use reward_horizon"]

    settings = capture_of(
        defaults={"reward_horizon": 1, "reward_folder": "a"}, raw={"reward_horizon": 4, "reward_folder": "b"}
    )
    assert settings.bad == {"reward_horizon": 4} and settings.pinned == {"reward_folder": "it names a place"}
    assert settings.work_of_each() == {"reward_horizon": 4.0}


@pytest.fixture
def capture_of() -> Callable[..., object]:
    """The factors of a training config that exists only here."""
    from bisect_cfg.targets.captured import Capture, Source

    def made(defaults: dict, raw: dict) -> object:
        built = Source("args", 0, "GRPOConfig", "trl", raw, defaults, dict.fromkeys(defaults, ""), {**defaults, **raw})
        capture = Capture(built, {}, (("args", 0),), (), {})

        def resolve(request: BuildRequest) -> BuildAnswer:
            changed = {k: defaults[k] if v == {"$default": True} else v for k, v in request.overrides.items()}
            return BuildAnswer({**raw, **changed})

        return Comparison(capture, resolve).factors()

    return made
