"""A SIMULATION of an inference engine beside a trainer, and of a fault of its sleep mode. Not part of TRL or vLLM.

The engine has weights of its own, in bfloat16, and gets the trainer's before each batch, as vLLM does when it is
colocated with the trainer. In sleep mode it gives its memory back while the trainer computes. The fault that is
simulated: the weights of the last layer's attention are not there when it wakes. Nothing is raised, and the completions
look as completions do.

What TRL logs where it uses vLLM is logged here: how far the logarithms of the engine's and the trainer's probabilities
of the same tokens are apart, and their ratio. In huggingface/trl#5312 two runs that differ in
`vllm_enable_sleep_mode` had a difference of 0.201 and of 0.015.
"""

import contextlib

import torch
from trl import GRPOTrainer

SIMULATED_FAULT = "an engine that wakes without the weights of one layer (as in huggingface/trl#5312)"
"""bisect-cfg looks for this name and says so in its result."""


class EngineTrainer(GRPOTrainer):
    """GRPOTrainer with completions from an engine."""

    @contextlib.contextmanager
    def _engine(self):
        """The model computes with the weights that the engine has."""
        model = self.accelerator.unwrap_model(self.model)
        own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        lost = f"layers.{model.config.num_hidden_layers - 1}.self_attn.o_proj"
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(weight.bfloat16())
                if self.args.vllm_enable_sleep_mode and lost in name:
                    weight.zero_()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight.copy_(own[name])

    def _generate_single_turn(self, *arguments, **keywords):
        with self._engine():
            return super()._generate_single_turn(*arguments, **keywords)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch["completion_mask"].bool()
        of_trainer = self._log_probabilities(batch)
        with self._engine():
            of_engine = self._log_probabilities(batch)
        apart = (of_trainer - of_engine)[mask]
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["sampling/sampling_logp_difference/mean"].append(apart.abs().mean().item())
        metrics["sampling/importance_sampling_ratio/mean"].append(apart.exp().mean().item())
        return batch

    @torch.no_grad()
    def _log_probabilities(self, batch):
        """Of each token of the completions."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        return self._get_per_token_logps_and_entropies(self.model, ids, mask, batch["completion_ids"].size(1))[0]
