"""What a process finds around it: Python, packages, CUDA, cuBLAS, driver, GPUs, variables, memory.

The standard library only, on every Python since 3.9. The tool calls these functions for its own interpreter and runs
this file's source in any other; the probe calls them in each rank of a launched command.

    python machine.py            prints `installed()` as JSON
    python machine.py cublas     imports torch, then prints `loaded_cublas()` as JSON
"""

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata

NAMES = (
    "torch", "trl", "transformers", "accelerate", "peft", "datasets", "vllm", "deepspeed", "openrlhf", "verl",
    "ms-swift", "ray", "tokenizers", "huggingface-hub",
    "unsloth", "liger-kernel", "flash-attn", "bitsandbytes", "xformers", "triton", "numpy", "optuna",
)  # fmt: skip
"""Packages that matter to a training."""

CUBLAS = ("nvidia-cublas-cu12", "nvidia-cublas-cu11", "nvidia-cublas")
"""The wheels that carry cuBLAS, for CUDA 12, 11, and from 13 on without a suffix."""

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V1",
    "WORLD_SIZE", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION",
)  # fmt: skip
"""Variables that change how training runs. Named one by one, because an environment holds secrets."""

PATIENCE = 20.0
"""Seconds for `nvidia-smi` to answer; a cold driver takes several."""


# ------------------------------------------------------------------------------------------------ what is installed


def installed():
    """`python`, `executable`, `packages` (name -> version), `cuda` (torch's tag), `cublas` (of the metadata)."""
    versions = ((name, _version(name)) for name in NAMES)
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: found for name, found in versions if found},
        "cuda": cuda_tag(),
        "cublas": _cublas(),
    }


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cuda_tag():
    """The CUDA version torch was built for. A wheel from PyPI does not say it in its version."""
    tag = re.search(r"\+cu(\d+)(\d)$", _version("torch") or "")
    if tag:
        return tag.group(1) + "." + tag.group(2)
    try:
        with open(str(metadata.distribution("torch").locate_file("torch/version.py"))) as file:
            found = re.search(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", file.read(), re.M)
    except (OSError, metadata.PackageNotFoundError):
        return None
    return found.group(1) if found else None


def _cublas():
    """The cuBLAS package, and a library that would be loaded in its place."""
    package = next((name for name in CUBLAS if _version(name)), None)
    shadow = None
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if not shadow and os.path.isdir(folder) and "site-packages" not in folder:
            names = sorted(name for name in os.listdir(folder) if name.startswith("libcublasLt.so"))
            # The longest name has the full version: libcublasLt.so.12.1.3.1
            shadow = os.path.join(folder, max(names, key=len)) if names else None
    return {"package": package, "version": _version(package) if package else None, "shadowed_by": shadow}


# ------------------------------------------------------------------------------------------------ the machine


def machine():
    """`driver`, `gpus` (each `name`, `memory_mb`, `compute_capability`), `variables`, `platform`, `cpus`,
    `memory_mb`."""
    driver, found = gpus()
    return {
        "driver": driver,
        "gpus": found,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
    }


def gpus():
    """Driver version and GPUs; (None, []) without a GPU, without a driver, or with one that hangs."""
    query = "--query-gpu=name,memory.total,driver_version,compute_cap"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None, []
    return parse_gpus(answer.stdout)


def parse_gpus(table):
    """Driver version and GPUs from `nvidia-smi`'s comma separated answer."""
    driver, found = None, []
    for cells in (re.split(r"\s*,\s*", line.strip()) for line in table.splitlines()):
        if len(cells) == 4:
            name, memory, driver, capability = cells
            memory_mb = int(memory) if memory.isdigit() else None  # "[N/A]" where memory is shared with the host
            found.append({"name": name, "memory_mb": memory_mb, "compute_capability": capability})
    return driver, found


def loaded_cublas():
    """The cuBLAS that this process has loaded: `loaded_from`, `loaded_version`; None if it has none.

    The wheel's version says what was installed. `LD_LIBRARY_PATH` or another wheel can put a different library in
    its place, and only the process itself knows.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = sorted({line.split(None, 5)[5].strip() for line in maps if "libcublasLt.so" in line})
    if not paths:
        return None
    # A system's file carries its full version in its name; the wheels' files do not, but the library can be asked.
    version = re.search(r"\.so\.(\d+(?:\.\d+){2,})$", os.path.realpath(paths[0]))
    if version:
        return {"loaded_from": paths[0], "loaded_version": version.group(1)}
    try:
        ask = ctypes.CDLL(paths[0]).cublasLtGetVersion
    except (OSError, AttributeError):
        return {"loaded_from": paths[0], "loaded_version": None}
    ask.restype = ctypes.c_size_t
    number = ask()
    return {"loaded_from": paths[0], "loaded_version": f"{number // 10000}.{number // 100 % 100}.{number % 100}"}


if __name__ == "__main__":
    if sys.argv[1:] == ["cublas"]:
        import torch  # noqa: F401  loads the libraries that training would use

        print(json.dumps(loaded_cublas()))
    else:
        print(json.dumps(installed()))
