"""Changes of the launch: in the launcher's flags, in accelerate's file, in DeepSpeed's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bisect_cfg.recommend.edits import Change, find_edits

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP   # as in the recipe
fsdp_config:
  fsdp_offload_params: true
  version: 2
mixed_precision: bf16
num_processes: 4
deepspeed_config:
  zero_stage: 3
"""

ZERO = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "stage": 3,
    "optimizer": {"type": "Adam"},
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    accelerate, zero = tmp_path / "acc.yaml", tmp_path / "zero.json"
    accelerate.write_text(ACCELERATE)
    zero.write_text(json.dumps(ZERO, indent=4))
    return accelerate, zero


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (Change("launch.mixed_precision", "bf16", "no"), "mixed_precision: no"),
        (Change("launch.num_processes", 4, 2), "num_processes: 2"),
        (Change("launch.distributed_type", "FSDP", "NO"), "distributed_type: MULTI_GPU   # as in the recipe"),
        (Change("launch.fsdp_config.fsdp_offload_params", True, False), "  fsdp_offload_params: false"),
        (Change("launch.fsdp_config.fsdp_version", 2, 1), "  version: 1"),
        (Change("launch.deepspeed_config.zero_stage", 3, 2), "  zero_stage: 2"),
    ],
)
def test_one_line_of_accelerates_file_changes(files, change, line):
    accelerate, _ = files
    found = find_edits([change], python=[], yamls=[accelerate])
    before, after = ACCELERATE.splitlines(), found.after[accelerate].splitlines()
    (new,) = [now for old, now in zip(before, after, strict=True) if old != now]
    assert new.replace("'", "") == line and not found.unplaced
    (edit,) = found.edits
    assert edit.names == (change.name,) and edit.path == accelerate
    back = find_edits([Change(change.name, change.new, change.old)], python=[], yamls=[accelerate])
    assert not back.edits  # nothing was written


def test_one_process_is_no_longer_distributed(files):
    accelerate, _ = files
    changes = [Change("launch.distributed_type", "FSDP", "NO"), Change("launch.num_processes", 4, 1)]
    after = yaml.safe_load(find_edits(changes, python=[], yamls=[accelerate]).after[accelerate])
    assert (after["distributed_type"], after["num_processes"]) == ("NO", 1)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("zero_optimization.stage", 3, 0),
        ("zero_optimization.offload_optimizer.device", "cpu", None),
        ("optimizer", {"type": "Adam"}, None),
    ],
)
def test_deepspeeds_own_file(files, name, old, new):
    _, zero = files
    found = find_edits([Change(f"launch.deepspeed.{name}", old, new)], python=[], yamls=[zero])
    after = json.loads(found.after[zero])
    *above, key = name.split(".")
    section = after
    for one in above:
        section = section.get(one, {})
    assert section.get(key) == new and after["stage"] == 3
    assert len(found.before[zero].splitlines()) - len(found.after[zero].splitlines()) in (0, 1, 3)


@pytest.mark.parametrize(
    ("words", "change", "old", "new"),
    [
        (["--mixed_precision=bf16"], Change("launch.mixed_precision", "bf16", "no"), "--mixed_precision=bf16",
         "--mixed_precision=no"),
        (["--use_fsdp"], Change("launch.distributed_type", "FSDP", "NO"), "--use_fsdp", ""),
        (["--zero_stage", "3"], Change("launch.deepspeed_config.zero_stage", 3, 2), "--zero_stage 3", "--zero_stage 2"),
        (["--nproc-per-node", "2"], Change("launch.num_processes", 2, 1), "--nproc-per-node 2", "--nproc-per-node 1"),
        (["--fsdp_offload_params", "true"], Change("launch.fsdp_config.fsdp_offload_params", True, False),
         "--fsdp_offload_params true", "--fsdp_offload_params False"),
    ],
)  # fmt: skip
def test_a_flag_wins_over_the_file(files, words, change, old, new):
    accelerate, _ = files
    found = find_edits([change], python=[], yamls=[accelerate], launcher=["accelerate", "launch", *words])
    (edit,) = found.edits
    assert (edit.path, edit.old, edit.new) == (None, old, new) and not found.after
