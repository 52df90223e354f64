"""safe_config.yaml: of a run that a YAML file configured it is that file, with the changed lines and nothing added."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from bisect_cfg.probe.protocol import Opened
from bisect_cfg.rewrite.edits import edits_for
from bisect_cfg.rewrite.places import places_of
from bisect_cfg.rewrite.recommended import Change
from bisect_cfg.rewrite.safe_config import safe_config
from bisect_cfg.runner.traces import Traces
from bisect_cfg.targets.captured import Source
from bisect_cfg.targets.script import Script

RECIPE = """\
# Model
model_name_or_path: some/model   # small
dataset_name: data
reward_funcs:
  - accuracy
  - format

# GRPO
learning_rate: 2.0e-02   # bold
beta: 0.1
"""
TOKEN = "hf_" + "a1B2" * 8
DEFAULTS = {"learning_rate": 5e-5, "beta": 0.0, "adam_epsilon": 1e-8, "hub_token": None}


def answer(
    folder: Path, *arguments: str, opened: tuple[Path, ...] = (), script: str = "", **own: object
) -> SimpleNamespace:
    """As much of an answer as is asked of it here: a run that was configured in `folder`."""
    (folder / "train.py").write_text(script or "TrlParser((GRPOConfig,)).parse_args_and_config()\n")
    raw = {**DEFAULTS, "learning_rate": 0.02, "beta": 0.1, **own}
    args = Source("args", 0, "GRPOConfig", "trl", raw, DEFAULTS, dict.fromkeys(DEFAULTS, "float"), raw)
    factors = [
        SimpleNamespace(name=name, kind="args", good=DEFAULTS[name], bad=raw[name])
        for name in ("learning_rate", "beta")
    ]
    traces = Traces(folder)
    traces.events.rows += [Opened(str(path), "r") for path in opened]
    capture, bad = SimpleNamespace(args=args, deepspeed=None, others={}), {one.name: one.bad for one in factors}
    settings = SimpleNamespace(seen=True, capture=capture, varied=factors, pins={}, bad=bad)
    target = Script(folder / "train.py", arguments)
    return SimpleNamespace(script=target, settings=settings, bad_run=SimpleNamespace(traces=traces))


def safe(made: SimpleNamespace, **changes: tuple[object, object]) -> str:
    told = {name: Change(old, new) for name, (old, new) in changes.items()}
    return safe_config(places := places_of(made.script, made.settings, made.bad_run), told, edits_for(places, told))


@pytest.mark.parametrize("how", ["named", "opened"])
def test_the_users_own_file_with_the_changed_line(tmp_path: Path, how: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    made = answer(
        tmp_path,
        *(["--config", str(path)] if how == "named" else []),
        opened=(path,) if how == "opened" else (),
    )
    text = safe(made, learning_rate=(0.02, 1e-6))
    assert text.partition("\n")[2] == RECIPE.replace("2.0e-02", "1.0e-06") and text.startswith("# ")
    assert yaml.safe_load(text) == {**yaml.safe_load(RECIPE), "learning_rate": 1e-6}


@pytest.mark.parametrize(("file", "arguments"), [
    (RECIPE.replace("learning_rate: 2.0e-02   # bold\n", ""), ("--learning_rate", "2e-2")),
    (f"{RECIPE}hub_token: {TOKEN}\n# my token: {TOKEN}\n", ()),
])  # fmt: skip
def test_where_not_all_is_in_that_file_or_a_secret_is_it_is_the_training_config(tmp_path, file, arguments) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(file)
    text = safe(answer(tmp_path, "--config", str(path), *arguments), learning_rate=(0.02, 1e-6))
    assert yaml.safe_load(text) == {"learning_rate": 1e-6, "beta": 0.1} and TOKEN not in text


def test_of_a_folder_of_files_the_one_that_changes(tmp_path: Path) -> None:
    main, group, data = (tmp_path / name for name in ("config.yaml", "fast.yaml", "data.yaml"))
    main.write_text("defaults:\n  - fast\nbeta: 0.1\n")
    group.write_text("learning_rate: 2e-2\n")
    data.write_text("rows: 3\n")
    made = answer(tmp_path, opened=(main, group, data))
    assert safe(made, learning_rate=(0.02, 1e-6)).endswith("\nlearning_rate: 1.0e-06\n")


def test_without_such_a_file_it_is_the_training_config(tmp_path: Path) -> None:
    made = answer(tmp_path, script="GRPOConfig(learning_rate=0.02, beta=0.1)\n")
    assert yaml.safe_load(safe(made, learning_rate=(0.02, 1e-6))) == {"learning_rate": 1e-6, "beta": 0.1}
