"""Checkpoints that the user names: what one is, what it lacks, and why it cannot be gone on from."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from pathlib import Path

import pytest

from bisect_cfg.errors import InputError
from bisect_cfg.runner.checkpoints import read_checkpoint, saved_in_parts

FILES = {
    "FSDP": (
        "pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/.metadata",
        "optimizer_0/__0_0.distcp",
    ),
    "DeepSpeed": (
        "global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step20/mp_rank_00_model_states.pt",
    ),
}  # fmt: skip
"""What FSDP with its default `SHARDED_STATE_DICT` (accelerate 1.15, `save_fsdp_model`) or DeepSpeed's `save_checkpoint`
leaves."""


def checkpoint(folder: Path, form: str = "") -> Path:
    """One of step 20, saved whole or in parts."""
    path = folder / "out" / "checkpoint-20"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 20, "log_history": []}))
    if not form:
        header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0000")
        return path
    for name in (*FILES[form], "scheduler.pt", "rng_state_0.pth"):
        (path / name).parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("data", "0")
    if form == "DeepSpeed":
        (path / "latest").write_text("global_step20")
    return path


def test_what_it_lacks_is_known(tmp_path):
    found = read_checkpoint(checkpoint(tmp_path))
    assert found.step == 20 and found.lacks == ("the optimizer's state", "the random numbers' state")
    for form in FILES:
        found = read_checkpoint(checkpoint(tmp_path / form, form))
        assert found.lacks == () and saved_in_parts(found.path) == form


def cut(name: str, bytes_left: int):
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:bytes_left])


def lose(name: str):
    return lambda path: (path / name).rename(path / "lost")


def write(name: str, content: bytes):
    return lambda path: (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("form", "change", "said"),
    [
        ("", shutil.rmtree, "does not exist"),
        ("", lambda path: (shutil.rmtree(path), path.touch()), "is not a folder"),
        ("", lose("trainer_state.json"), "is not a checkpoint"),
        ("", write("trainer_state.json", b'{"global'), "damaged"),
        ("", write("trainer_state.json", b"{}"), "damaged"),
        ("", write("trainer_state.json", b"[" * 100_000), "damaged"),
        ("", lose("model.safetensors"), "holds no weights"),
        ("", write("model.safetensors", b"12"), "cut short"),
        ("", write("model.safetensors", b"\xff" * 9), "cut short"),
        ("", cut("model.safetensors", -1), "cut short"),
        ("", write("optimizer.pt", b"PK\3\4 and so on"), "cut short"),
        ("", lambda path: shutil.copytree(path, path.with_name("checkpoint-100")), "checkpoint-20, checkpoint-100"),
        ("FSDP", lose("pytorch_model_fsdp_0/.metadata"), "pytorch_model_fsdp_0/.metadata"),
        ("DeepSpeed", lose("latest"), "latest"),
        ("DeepSpeed", lose("global_step20"), "holds no weights|global_step20"),
        ("DeepSpeed", cut(FILES["DeepSpeed"][1], -9), "mp_rank_00_model_states.pt"),
    ],
)
def test_what_is_none_is_refused(tmp_path, form, change, said):
    path = checkpoint(tmp_path, form)
    change(path)
    several = "checkpoint-100" in said
    with pytest.raises(InputError, match=said) as error:
        read_checkpoint(path.parent if several else path)
    assert error.value.advice and (not several or error.value.advice.endswith("checkpoint-100"))
