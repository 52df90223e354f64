"""A SIMULATION of a GPU's memory: there is none here. Not part of TRL or torch.

What a training step keeps for its backward pass grows with the tokens of its batch, padded to the longest row: so much
for each token and layer, or a quarter of it where gradient checkpointing computes it anew. Where that is more than the
memory has, what torch raises on a GPU is raised.
"""

import torch
from trl import GRPOTrainer

SIMULATED_FAULT = "a GPU whose memory does not hold the activations of the longest rows (as in huggingface/trl#4585)"
"""bisect-cfg looks for this name and says so in its result."""

CAPACITY = 80.0
"""GiB."""

PER_TOKEN, RECOMPUTED = 0.1, 0.25
"""GiB that a token of the batch takes, and the share of it that is kept with gradient checkpointing."""


class MemoryTrainer(GRPOTrainer):
    """GRPOTrainer whose training steps take memory."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, *arguments, **keywords):
        if torch.is_grad_enabled():
            _allocate(input_ids.numel() * PER_TOKEN * (RECOMPUTED if self.args.gradient_checkpointing else 1.0))
        return super()._get_per_token_logps_and_entropies(model, input_ids, *arguments, **keywords)


def _allocate(wanted):
    if wanted > CAPACITY:
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {wanted:.2f} GiB. GPU 0 has a total capacity of {CAPACITY:.2f} GiB "
            "(simulated)"
        )
