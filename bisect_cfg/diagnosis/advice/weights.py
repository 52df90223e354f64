"""A weight whose name or shape the other side does not have."""

from __future__ import annotations

import re

from bisect_cfg.diagnosis.advice.reading import (
    IN_SYNC,
    TOOLS,
    WEIGHT,
    Advice,
    RaisedError,
    belongs_to,
    called,
    declared_range,
    place_of,
)

_HANDED = re.compile(
    r"update_weight|update_params|sync_weight|_sync_(?:fsdp|peft|param|weight)|resync|sharding_manager|broadcast_to_"
    r"|_move_model_to_vllm|collective_rpc|move_model_to|weight_sync|update_named_param|load_dtensor"
)
"""Frames of a trainer that hands its weights over; an engine that reads a checkpoint has none of them."""


def unfit_weights(read: RaisedError) -> Advice | None:
    """A weight's name or shape that the other side does not have."""
    message = read.message
    key = re.search(r"KeyError: '([^']+)'|^'([\w.]+)'$|method failed: '([\w.]+)'|^([\w.]+)$", message.strip())
    name = next((one for one in key.groups() if one), "") if key else ""
    weight = name if name and WEIGHT.search(name) and "." in name else ""
    loading = re.search(r"size mismatch for ([\w.]+)", message) or re.search(
        r"()(?:Missing|Unexpected) key\(s\)|Error\(s\) in loading state_dict|not found in (?:the "
        r")?(?:state_?dict|checkpoint)|no module or parameter named",
        message,
    )
    if not weight and not loading:
        return None
    place, frame = place_of(read.last), read.caller
    sync = read.within(IN_SYNC, 12) or "collective_rpc" in message
    named = weight or (loading[1] if loading else "")
    handed = read.within(_HANDED, 12) or "collective_rpc" in message
    if sync and (weight or "no module" in message):
        engine = next((one for one in ("sglang", "vllm") if any(item.package == one for item in read.frames)), "vllm")
        trainer = next(
            (
                item.package
                for item in reversed(read.frames)
                if item.package not in ("", "python", "vllm", "sglang", *TOOLS)
            ),
            "",
        )
        who = called(trainer)
        says = (
            f"{who} hands {called(engine)} a weight called {named or 'otherwise'}, which the "
            f"model inside {called(engine)} does not have: the two sides name the weights "
            f"differently."
            if handed and trainer
            else f"{called(engine)} is given a weight called {named or 'otherwise'}, for which its model has no place: "
            f"the checkpoint (or trainer) and {called(engine)} name the weights differently."
        )
        steps: tuple[str, ...] = ()
        if re.search(r"base_layer|lora_|base_model", named + message):
            steps = (
                "that name is LoRA's (PEFT wraps the layers): merge the adapter before weights "
                "are sent, or switch LoRA off as a check; a newer trainer renames or merges by "
                "itself",
            )
        elif re.search(r"visual|language_model|vision", named):
            steps = (
                "transformers from 4.52 on names the parts of vision models differently: take the "
                "transformers that this " + called(engine) + " was made for, or update both",
            )
        elif re.search(r"experts|gate|router", named):
            steps = (
                "experts (MoE) are fused on one side and single on the other: a newer trainer "
                "that knows this model, or the versions it names for it",
            )
        declared = declared_range(trainer, engine) if trainer else ""
        steps += (
            f"the versions of {who}, {called(engine)} and transformers that the project pins for this model{declared}",
            "the engine must have been started with the very model that is trained (same folder, "
            "no quantization, no added tokens)",
        )
        return Advice("weights", says, steps, place)
    if weight or loading:
        says = (
            f"Weights and the model that takes them do not fit: "
            f"{'the weight ' + named + ' is' if named else 'names or shapes of weights are'} not the same "
            f"on both sides."
        )
        steps = (
            "a checkpoint must come from this very model class and size; an adapter's folder "
            "needs its base model, a sharded checkpoint its merge first",
            "a resized vocabulary, a value head or a prefix (module., _orig_mod., "
            "base_model.model.) makes such a difference",
            f"{belongs_to(frame)} of the version that wrote it; otherwise update {called('transformers')} with it",
        )
        return Advice("weights", says, steps, place)
    return None
