"""Where the models of a training live, on which device and in which dtype; whether its weights are finite."""

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


def first_non_finite(model):
    """Name of the first trainable parameter that holds a NaN or an infinity, or None.

    A sum in float32 answers for a whole tensor in one pass without a temporary; only when it is not finite
    (a NaN, an infinity, or an overflow of the sum itself) the elements are looked at.
    """
    import torch

    totals, names, tensors = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or not parameter.is_floating_point() or parameter.numel() == 0:
            continue
        tensor = parameter.detach()
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        totals.append(tensor.sum(dtype=torch.float32))
        names.append(name)
        tensors.append(tensor)
    if not totals:
        return None
    device = totals[0].device
    finite = torch.isfinite(torch.stack([total.to(device) for total in totals]))
    if bool(finite.all()):
        return None
    suspects = [place for place, good in enumerate(finite.tolist()) if not good]
    return next((names[place] for place in suspects if not bool(torch.isfinite(tensors[place]).all())), None)
