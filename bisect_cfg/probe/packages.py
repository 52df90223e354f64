"""Prints, as JSON, what the Python that runs this file has installed. Standard library only.

`fingerprint.fingerprint` calls `installed` for its own interpreter and runs this file's source in any other,
so it must work on every Python that TRL ever supported (3.9) and import nothing that is looked for.
"""

import json
import os
import platform
import re
import sys
from importlib import metadata

NAMES = (
    "torch", "trl", "transformers", "accelerate", "peft", "datasets", "vllm", "deepspeed", "openrlhf", "verl",
    "ms-swift", "ray", "tokenizers", "huggingface-hub",
    "unsloth", "liger-kernel", "flash-attn", "bitsandbytes", "xformers", "triton", "numpy", "optuna",
)  # fmt: skip

CUBLAS = ("nvidia-cublas-cu12", "nvidia-cublas-cu11", "nvidia-cublas")
"""The wheels that carry cuBLAS, for CUDA 12, 11, and from 13 on without a suffix."""


def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cuda_tag():
    """The CUDA version torch was built for. A wheel from PyPI does not say it in its version."""
    tag = re.search(r"\+cu(\d+)(\d)$", version("torch") or "")
    if tag:
        return tag.group(1) + "." + tag.group(2)
    try:
        with open(str(metadata.distribution("torch").locate_file("torch/version.py"))) as file:
            found = re.search(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", file.read(), re.M)
    except (OSError, metadata.PackageNotFoundError):
        return None
    return found.group(1) if found else None


def cublas():
    """The cuBLAS package, and a library that would be loaded in its place."""
    package = next((name for name in CUBLAS if version(name)), None)
    shadow = None
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if not folder or not os.path.isdir(folder) or "site-packages" in folder:
            continue
        names = sorted(name for name in os.listdir(folder) if name.startswith("libcublasLt.so"))
        if names:  # the longest name has the full version: libcublasLt.so.12.1.3.1
            shadow = os.path.join(folder, max(names, key=len))
            break
    return {"package": package, "version": version(package) if package else None, "shadowed_by": shadow}


def installed():
    versions = ((name, version(name)) for name in NAMES)
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: found for name, found in versions if found},
        "cuda": cuda_tag(),
        "cublas": cublas(),
    }


if __name__ == "__main__":
    print(json.dumps(installed()))
