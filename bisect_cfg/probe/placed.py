"""Where the models of a training live: on which device and in which dtype. Looked up, nothing is computed or moved."""

from . import protocol

# What trainers of TRL call the models that they have beside the policy.
_BESIDE = (
    ("reference", ("ref_model",)),
    ("reward", ("reward_funcs", "reward_model")),
    ("value", ("value_model",)),
    ("teacher", ("teacher_model",)),
)


def models(trainer):
    """The `protocol.PlacedModel`s of a trainer whose training begins: by now they are where they stay."""
    wrapped = getattr(trainer, "model_wrapped", None)
    wrapper = type(wrapped).__name__ if wrapped is not None and wrapped is not trainer.model else ""
    placed = [_placed("policy", trainer.model, wrapper)]
    for role, names in _BESIDE:
        for name in names:
            found = getattr(trainer, name, None)
            for model in found if isinstance(found, (list, tuple)) else [found]:
                if hasattr(model, "named_parameters"):  # no plain reward function
                    placed.append(_placed(role, model, ""))
    return placed


def _placed(role, model, wrapper):
    counts = {}
    for _, parameter in model.named_parameters():
        key = str(parameter.device), str(parameter.dtype).replace("torch.", "")
        # DeepSpeed's ZeRO-3 leaves a parameter empty that is partitioned, and keeps its size beside it.
        counts[key] = counts.get(key, 0) + getattr(parameter, "ds_numel", parameter.numel())
    weights = [protocol.Weights(device, dtype, count) for (device, dtype), count in counts.items()]
    return protocol.PlacedModel(role, type(model).__name__, wrapper, weights)
