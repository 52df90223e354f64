"""Where the models of a training live, on which device and in which dtype; whether its weights are finite."""

from . import protocol

# What trainers of TRL call the models that they have beside the policy.
_BESIDE = {
    "ref_model": "reference",
    "reward_funcs": "reward",
    "reward_model": "reward",
    "value_model": "value",
    "teacher_model": "teacher",
}


def models(trainer):
    """The `protocol.PlacedModel`s of a trainer whose training begins: by now they are where they stay."""
    wrapped = getattr(trainer, "model_wrapped", None)
    wrapper = type(wrapped).__name__ if wrapped is not None and wrapped is not trainer.model else ""
    placed = [_placed("policy", trainer.model, wrapper)]
    for name, role in _BESIDE.items():
        found = getattr(trainer, name, None)
        for model in found if isinstance(found, (list, tuple)) else [found]:
            if hasattr(model, "named_parameters"):  # no plain reward function
                placed.append(_placed(role, model, ""))
    return placed


def _placed(role, model, wrapper):
    counts: dict = {}
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

    weights, totals = {}, []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_floating_point() and parameter.numel():
            tensor = parameter.detach()
            weights[name] = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            totals.append(weights[name].sum(dtype=torch.float32))
    if not totals:
        return None
    finite = torch.isfinite(torch.stack([total.to(totals[0].device) for total in totals]))
    if bool(finite.all()):
        return None
    suspects = (name for name, good in zip(weights, finite.tolist()) if not good)  # noqa: B905
    return next((name for name in suspects if not bool(torch.isfinite(weights[name]).all())), None)
