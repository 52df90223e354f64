"""The script's own folders for output are replaced, and what was saved in their place is found. No process runs."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from bisect_cfg.probe import saves, side_effects, training, wrap


@pytest.fixture
def redirected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's folder and the one in its place."""
    monkeypatch.setattr(saves.state, "outputs", {})
    monkeypatch.setattr(side_effects.state, "folder", str(tmp_path / "trial"))
    monkeypatch.chdir(tmp_path)
    arguments = types.SimpleNamespace(output_dir="sft", save_strategy="steps", report_to="wandb")
    side_effects.silence(arguments, 0, prepares=True)
    assert (arguments.save_strategy, arguments.report_to) == ("steps", "none")  # a later stage may load what it saves
    second = types.SimpleNamespace(output_dir="grpo", save_strategy="steps")
    side_effects.silence(second, 1)
    assert second.save_strategy == "no" and second.output_dir != arguments.output_dir
    return tmp_path / "sft", Path(arguments.output_dir)


def test_what_a_stage_saves_is_found_where_the_script_looks_for_it(redirected):
    own, place = redirected
    own.mkdir()
    (own / "config.json").write_text("of an earlier run of the user's")
    assert saves.found("sft") == "sft"  # nothing was saved yet
    (place / "checkpoint-3").mkdir(parents=True)
    (place / "checkpoint-3/config.json").touch()
    assert saves.found("sft") == "sft" and saves.found("sft/checkpoint-3") == str(place / "checkpoint-3")
    (place / "config.json").touch()
    assert saves.found(own) == str(place)
    assert saves.found("Qwen/Qwen3") == "Qwen/Qwen3" and saves.found("sft-2") == "sft-2"


def test_the_last_checkpoint_is_looked_for_in_the_users_own_folder(redirected):
    own, place = redirected
    module = types.SimpleNamespace(
        get_last_checkpoint=lambda folder: max(map(str, Path(folder).glob("checkpoint-*")), default=None)
    )
    wrap.around(module, "get_last_checkpoint", training._get_last_checkpoint)
    place.mkdir(parents=True)
    assert module.get_last_checkpoint(str(place)) is None
    (own / "checkpoint-7").mkdir(parents=True)
    assert module.get_last_checkpoint(str(place)) == str(own / "checkpoint-7")
    (place / "checkpoint-2").mkdir()  # its own comes first
    assert module.get_last_checkpoint(str(place)) == str(place / "checkpoint-2")


def test_processes_that_a_notebook_starts_meet_at_a_port_of_their_own():
    def notebook_launcher(function, args=(), num_processes=None, use_port="29500", *, node_rank=0):
        return use_port

    side_effects._use_free_port(types.SimpleNamespace(notebook_launcher=notebook_launcher))
    first = notebook_launcher(print)
    assert first != "29500" and 1024 < int(first) < 65536 and notebook_launcher(print, use_port="29501") == "29501"
    assert notebook_launcher.__defaults__[:2] == ((), None)
    plain = types.SimpleNamespace(notebook_launcher=lambda function: function)
    side_effects._use_free_port(plain)
    assert plain.notebook_launcher(3) == 3
