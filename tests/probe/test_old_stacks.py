"""The probe in environments far older than ours: TRL 0.14 under Python 3.9, and what changed from there to here."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bisect_cfg
from bisect_cfg.probe import heartbeat, library_objects, validity

PACKAGE = Path(bisect_cfg.__file__).parent

ELSEWHERE = [*(PACKAGE / "probe").rglob("*.py")]
"""What runs in other people's interpreters."""


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path.name)
def test_what_runs_elsewhere_is_python_3_9(path):
    ast.parse(path.read_text("utf-8"), feature_version=(3, 9))


COUNTED = {
    "0.14": "",
    "0.15": "global_batch_size = args.per_device_train_batch_size * num_processes\n",
    "0.17": (
        "effective_batch_size = args.per_device_train_batch_size * num_processes * args.gradient_accumulation_steps\n"
    ),
    "0.18": "",
}
"""How the trainer of a version counts the completions of a batch, in its own words."""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A module like TRL's of a version, with a trainer that checks so much and no more."""

    def made(version):
        path = tmp_path / f"trainer_of_{version.replace('.', '_')}.py"
        body = "".join(f"        {line}\n" for line in COUNTED[version].splitlines())
        path.write_text(
            f"class GRPOTrainer:\n    def __init__(self, args, num_processes):\n{body}        self.args = args\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        return __import__(path.stem)

    return made


class GRPOConfig(SimpleNamespace):
    pass


def refused(module, batch, accumulation, generations, processes=1):
    config = GRPOConfig(
        per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, num_generations=generations
    )
    try:
        validity._check_groups(config, processes, module)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        # batch, accumulation, generations, processes
        ("0.14", {(1, 4, 16, 1): True, (4, 1, 3, 1): True, (4, 1, 1, 1): True}),
        ("0.15", {(4, 1, 4, 1): True, (1, 4, 4, 1): False, (1, 4, 4, 4): True, (4, 1, 1, 1): False}),
        ("0.17", {(4, 1, 4, 1): True, (1, 4, 4, 1): True, (1, 4, 16, 1): False, (1, 4, 8, 2): True}),
        ("0.18", {(1, 4, 16, 1): True}),  # its config says so itself
    ],
)
def test_what_a_trainer_checks_with_the_models_loaded_costs_no_trial(trainer, version, fits):
    module = trainer(version)
    found = {case: not refused(module, *case) for case in fits}
    assert found == fits
    for case in (case for case, good in fits.items() if not good):
        assert f"generations per prompt ({case[2]})" in refused(module, *case)


def test_a_trainer_without_source_is_not_judged():
    module = SimpleNamespace(GRPOTrainer=type("GRPOTrainer", (), {}))
    exec("def __init__(self, args):\n    batch_size = args.per_device_train_batch_size * num_processes\n", vars(module))
    module.GRPOTrainer.__init__ = vars(module)["__init__"]
    assert refused(module, 1, 1, 8) == "" and refused(None, 1, 1, 8) == ""


@pytest.mark.parametrize(
    ("version", "spelled"),
    [("4.48.3", "torch_dtype"), ("4.55.4", "torch_dtype"), ("4.56.0", "dtype"), ("5.23.0", "dtype"), ("", "dtype")],
)
def test_the_dtype_of_a_model_goes_by_its_name_of_the_time(monkeypatch, version, spelled):
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__=version))
    assert library_objects._spelled("dtype") == spelled
    assert library_objects._spelled("attn_implementation") == "attn_implementation"


class Scorer:
    def score(self, completions):
        return [heartbeat._state.phases[-1], *completions]


def test_reward_functions_are_announced_one_by_one_where_no_method_calls_them():
    """TRL before 0.18 calls them in the middle of a long method. A model is left alone: it is no function."""
    model = SimpleNamespace()
    trainer = SimpleNamespace(reward_funcs=[lambda completions: Scorer().score(completions), Scorer().score, model])
    heartbeat.watch_trainer(trainer)
    function, method, third = trainer.reward_funcs
    assert function(["a"]) == method(["a"]) == ["reward call", "a"] and third is model
    assert method.__name__ == "score" and heartbeat._state.phases == [""]


@pytest.mark.parametrize(("variant", "prepares"), [("GRPOConfig", False), ("SFTConfig", True)])
def test_which_training_config_prepares_another(monkeypatch, tmp_path, variant, prepares):
    """A config of GRPO, or one that inherits from it (TRL's GMPOConfig), is of the training under study."""
    monkeypatch.setitem(sys.modules, "trl.trainer.grpo_config", SimpleNamespace())
    monkeypatch.setattr(library_objects.record, "folder", lambda: tmp_path)
    base = type(variant, (), {})
    for cls in (base, type("GMPOConfig", (base,), {})):
        assert library_objects._prepares(cls, 0) is prepares
