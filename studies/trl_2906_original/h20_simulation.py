"""A SIMULATION of the H20 cuBLAS fault behind huggingface/trl#2906. Not part of anybody's training code.

On NVIDIA's H20, the cuBLASLt that came with CUDA 12.1 divides by zero, on the host, while it picks a
kernel for some half-precision matrix products. The process gets SIGFPE and is gone: no Python
exception, no traceback. Importing this module brings that about on any machine: the first time an
`nn.Linear` computes in bfloat16, whether under autocast or with bfloat16 weights, an integer division
traps in the processor and the process dies of a genuine SIGFPE.

It looks at the arithmetic that is about to run and at nothing else. It knows no training arguments.
"""

import signal

import torch
from torch import nn

SIMULATED_FAULT = "bf16 matrix products raise SIGFPE, as cuBLAS 12.1 did on an H20 (huggingface/trl#2906)"
"""bisect-cfg looks for this name and says so in its result."""


def _computes_in_bfloat16(layer: nn.Linear, activations: torch.Tensor) -> bool:
    device_type = activations.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type) == torch.bfloat16
    return layer.weight.dtype == torch.bfloat16


def _divide_like_cublas_12_1() -> None:
    lowest = torch.tensor([torch.iinfo(torch.int64).min])
    torch.div(lowest, torch.tensor([-1]), rounding_mode="trunc")  # overflows: x86 raises SIGFPE here
    signal.raise_signal(signal.SIGFPE)  # ARM divides on without a trap


def _before_forward(module: nn.Module, inputs: tuple) -> None:
    if isinstance(module, nn.Linear) and inputs and _computes_in_bfloat16(module, inputs[0]):
        _divide_like_cublas_12_1()


torch.nn.modules.module.register_module_forward_pre_hook(_before_forward)
