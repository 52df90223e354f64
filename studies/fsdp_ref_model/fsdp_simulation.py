"""A SIMULATION of two devices under FSDP. Not part of anybody's training code.

accelerate shards nothing on a CPU, and says nothing of it. Here it is told that a process on the CPU has a device of
its own: then FSDP2 is real, and shards the policy over the processes there are, on the CPU, over gloo. And TRL is as it
was before 0.18.0, which left the reference model where it had been loaded (huggingface/trl#3348). There is one device,
so torch's ``meta`` stands for where that is.

It knows no training arguments.
"""

import os

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from trl.trainer import grpo_trainer

SIMULATED_FAULT = "FSDP shards on the CPU, and leaves the reference model elsewhere, as TRL did before 0.18.0"
"""bisect-cfg looks for this name and says so in its result."""


def install():
    """From now on FSDP is in force where it is asked for, and the reference model is left out."""
    set_device = PartialState.set_device

    def with_a_device(self):
        if self.distributed_type is not DistributedType.MULTI_CPU or os.environ.get("ACCELERATE_USE_FSDP") != "true":
            return set_device(self)
        self.device, self.distributed_type = torch.device("cpu"), DistributedType.MULTI_GPU

    PartialState.set_device = with_a_device
    grpo_trainer.prepare_fsdp = lambda model, accelerator: model.to("meta")
