"""Prints, as JSON, what the process that runs this file finds around it: driver, GPUs, variables, memory, cuBLAS.

Standard library only, on every Python since 3.9, like `_packages`: `fingerprint.fingerprint` calls it in its own
process, the probe loads it by its path inside each rank of a launched script, and `fingerprint.loaded_cublas` runs
its source in an interpreter that has torch.
"""

import ctypes
import json
import os
import platform
import re
import subprocess

PATIENCE = 20.0
"""Seconds for `nvidia-smi` to answer; a cold driver takes several."""

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_USE_V1",
    "WORLD_SIZE",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_MIXED_PRECISION",
)
"""Variables that change how training runs. Named one by one, because an environment holds secrets."""

_QUERY = "name,memory.total,driver_version,compute_cap"


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
        "memory_mb": memory_mb(),
    }


def gpus():
    """Driver version and GPUs; (None, []) without a GPU, without a driver, or with one that hangs."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + _QUERY, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None, []
    return parse_gpus(answer.stdout)


def parse_gpus(table):
    """Driver version and GPUs from `nvidia-smi`'s comma separated answer."""
    driver, found = None, []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4:
            continue
        name, memory, driver, capability = cells
        memory_mb = int(memory) if memory.isdigit() else None  # "[N/A]" where memory is shared with the host
        found.append({"name": name, "memory_mb": memory_mb, "compute_capability": capability})
    return driver, found


def memory_mb():
    """Memory of the host, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (ValueError, OSError, AttributeError):
        return None


def loaded_cublas():
    """The cuBLAS that this process has loaded: `path` and `version`; None if it has none.

    The wheel's version says what was installed. `LD_LIBRARY_PATH` or another wheel can put a different library in
    its place, and only the process itself knows.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = sorted({line.split(None, 5)[5].strip() for line in maps if "libcublasLt.so" in line})
    except (OSError, IndexError):
        return None
    if not paths:
        return None
    path = paths[0]
    # A system's file carries its full version in its name; the wheels' files do not, but the library can be asked.
    named = re.search(r"\.so\.(\d+(?:\.\d+){2,})$", os.path.realpath(path))
    if named:
        return {"path": path, "version": named.group(1)}
    try:
        ask = ctypes.CDLL(path).cublasLtGetVersion
        ask.restype = ctypes.c_size_t
        number = ask()
    except (OSError, AttributeError):
        return {"path": path, "version": None}
    return {"path": path, "version": f"{number // 10000}.{number // 100 % 100}.{number % 100}"}


if __name__ == "__main__":
    import torch  # noqa: F401  loads the libraries that training would use

    print(json.dumps(loaded_cublas()))
