"""A checkpoint of the user's from which trials can go on: what it holds, and what it lacks.

That one is cut short or of another model is not looked for: the first run loads it, and torch says so (`in_words`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import STATE_FILE, OriginRefused

WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "pytorch_model_fsdp*", "global_step*",
)  # fmt: skip
ADAPTER = ("adapter_model.safetensors", "adapter_model.bin", "*/adapter_model.safetensors")
"""What holds the weights: files of one process, patterns of FSDP's and DeepSpeed's; of one adapter, and of several."""

IN_PARTS = {"FSDP": "pytorch_model_fsdp*", "DeepSpeed": "global_step*"}
"""What only these save, and only a training under them can load (transformers 5.23, `_load_from_checkpoint` in
`trainer.py` and `deepspeed_load_checkpoint`)."""

OPTIMIZER = ("optimizer.pt", "optimizer.bin", "optimizer_*", "global_step*")
SCHEDULE = ("scheduler.pt", "global_step*")
NUMBERS = ("rng_state*.pth",)
"""What `Trainer` also saves (transformers 5.23, `trainer.py`), unless `save_only_model` is set."""


@dataclass(frozen=True)
class Checkpoint:
    """What `Trainer` has saved in the middle of a training."""

    path: Path  # its folder, absolute
    step: int  # the optimizer step after which it was saved
    lacks: tuple[str, ...] = ()  # what is not there and begins anew, in words


def read_checkpoint(path: Path) -> Checkpoint:
    """Describe a checkpoint, without loading it.

    Raises:
        InputError: it is none.
    """
    path = path.expanduser().absolute()
    if not path.is_dir():
        what = "does not exist" if not path.exists() else "is not a folder"
        raise InputError(f"--from-checkpoint {path}: it {what}.", "Give a folder that the Trainer saved: checkpoint-N.")
    step = _step_of(path)
    if not _any(path, WEIGHTS) and not _any(path, ADAPTER):
        raise InputError(f"{path} holds no weights.", "Give a checkpoint with the model in it.")
    lacks = []
    if not _any(path, OPTIMIZER) or not _any(path, SCHEDULE):
        lacks.append("the optimizer's state")
    if not _any(path, NUMBERS):
        lacks.append("the random numbers' state")
    return Checkpoint(path, step, tuple(lacks))


def _step_of(path: Path) -> int:
    state = path / STATE_FILE
    if state.is_file():
        try:
            return int(json.loads(state.read_text(encoding="utf-8"))["global_step"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            text = f"{state} cannot be read ({error}): the checkpoint is damaged."
            raise InputError(text, "Give another one.") from None
    inside = [state.parent.name for state in path.glob(f"checkpoint-*/{STATE_FILE}")]
    if inside:
        inside.sort(key=lambda name: (len(name), name))  # by their numbers
        raise InputError(
            f"--from-checkpoint {path} holds several checkpoints: {', '.join(inside)}.",
            f"Name the last one before the failure: --from-checkpoint {path / inside[-1]}",
        )
    raise InputError(
        f"--from-checkpoint {path} has no {STATE_FILE}, so it is not a checkpoint of the Trainer.",
        "A model that was saved at the end of a training cannot be gone on from; give a folder checkpoint-N.",
    )


def has_adapter_alone(path: Path) -> bool:
    """Whether a checkpoint holds an adapter, and not the model that it belongs to."""
    return _any(path, ADAPTER) and not _any(path, WEIGHTS)


def saved_in_parts(path: Path) -> str:
    """What saved a checkpoint in parts: "FSDP" or "DeepSpeed"; "" if it has none."""
    return next((name for name, pattern in IN_PARTS.items() if _any(path, (pattern,))), "")


def in_words(refused: OriginRefused) -> str:
    """Why a checkpoint could not be loaded, as torch says it."""
    return f"{refused.type}: {' '.join(refused.message.split())[:500]}"


def _any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)
