"""A SIMULATION of a machine with two devices. Not part of anybody's training code.

One process that sees two devices is what transformers wraps in `nn.DataParallel`; processes of a launcher have one
device each. Here `torch.cuda.device_count` says that there are two. What takes a number of devices for granted finds
none, so the training is told to stay on the CPU, where processes of a launcher meet over gloo.

It knows no launcher and no training arguments.
"""

import os

import torch

SIMULATED_FAULT = "two devices are visible to a process that is started by itself; there is none"
"""bisect-cfg looks for this name and says so in its result."""


def install():
    """From now on two devices are visible."""
    torch.cuda.device_count = lambda: 2
    os.environ["ACCELERATE_USE_CPU"] = "true"
