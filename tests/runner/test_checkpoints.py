"""Checkpoints that the user names: what one is, what it lacks, and why it cannot be gone on from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bisect_cfg.errors import InputError
from bisect_cfg.runner.checkpoints import read_checkpoint, saved_in_parts

FILES = {
    "FSDP": (
        "pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/.metadata",
        "optimizer_0/__0_0.distcp", "scheduler.pt", "rng_state_0.pth",
    ),
    "DeepSpeed": (
        "global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step20/mp_rank_00_model_states.pt",
        "latest", "rng_state_0.pth",
    ),
}  # fmt: skip
"""What FSDP with its default `SHARDED_STATE_DICT` (accelerate 1.15, `save_fsdp_model`) or DeepSpeed's `save_checkpoint`
leaves."""


def checkpoint(folder: Path, form: str = "") -> Path:
    """One of step 20, saved whole or in parts."""
    path = folder / "out" / "checkpoint-20"
    for name in ("trainer_state.json", *FILES.get(form, ("model.safetensors",))):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 20, "log_history": []}))
    return path


def test_what_it_lacks_is_known(tmp_path):
    found = read_checkpoint(checkpoint(tmp_path))
    assert found.step == 20 and found.lacks == ("the optimizer's state", "the random numbers' state")
    for form in FILES:
        found = read_checkpoint(checkpoint(tmp_path / form, form))
        assert found.lacks == () and saved_in_parts(found.path) == form


def lose(name: str):
    return lambda path: (path / name).rename(path / "lost")


def write(name: str, content: bytes):
    return lambda path: (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda path: (shutil.rmtree(path), path.touch()), "is not a folder"),
        (lose("trainer_state.json"), "is not a checkpoint"),
        (write("trainer_state.json", b'{"global'), "damaged"),
        (write("trainer_state.json", b"{}"), "damaged"),
        (lose("model.safetensors"), "holds no weights"),
        (lambda path: shutil.copytree(path, path.with_name("checkpoint-100")), "checkpoint-20, checkpoint-100"),
    ],
)
def test_what_is_none_is_refused(tmp_path, change, said):
    path = checkpoint(tmp_path)
    change(path)
    several = "checkpoint-100" in said
    with pytest.raises(InputError, match=said) as error:
        read_checkpoint(path.parent if several else path)
    assert error.value.advice and (not several or error.value.advice.endswith("checkpoint-100"))
