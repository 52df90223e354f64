"""What a log says about where it ran: versions, GPUs, driver. People paste `pip list`, `trl env` and `nvidia-smi`.

A package that the log names with two versions is left out: one of them is what somebody asked for.
"""

from __future__ import annotations

import re

from bisect_cfg.diagnosis._types import Environment

LOOKED_AT = 1 << 16
"""Bytes at each end of a log that are looked at; an environment is printed at the start, or pasted at the end."""

PACKAGES = (
    "torch", "transformers", "trl", "accelerate", "vllm", "peft", "deepspeed", "flash-attn", "bitsandbytes", "datasets",
    "openrlhf", "verl", "numpy", "triton", "ray", "unsloth", "liger-kernel", "tokenizers", "huggingface-hub", "pyarrow",
    "xformers", "ms-swift", "sglang", "unsloth-zoo", "torchvision", "pydantic", "torchao", "pandas", "tensordict",
)  # fmt: skip
_NAMES = "|".join(sorted((name.replace("-", "[-_]") for name in PACKAGES), key=len, reverse=True))
_PACKAGE = re.compile(
    rf"(?:^|[\s`'\"\[(*|,-])(?P<name>pytorch|{_NAMES})[`'\"*]*(?:\s*\(?version\)?)?[`'\"*]*"
    r"(?:\s*(?:==|:|=|@)\s*|-|\s+v?|\s*\|\s*)[`'\"]?v?(?P<version>\d+\.\d+[\w.+]*)",
    re.IGNORECASE | re.MULTILINE,
)
_HAVE = re.compile(r"supports? (?P<name>vLLM)[^\n]{0,120}? You have version (?P<version>\d[\w.+]*) installed")
_ASKED = re.compile(r"(?:>=|<=|<|>|~=|!=|require|need|support|at least|or newer|or later|compatible)", re.IGNORECASE)
_GPU = re.compile(
    r"\b(?P<name>NVIDIA (?:GeForce )?(?:[A-Z]{1,3} ?)?[A-Z]?\d{2,4}[\w -]{0,24}?(?=[\s,;|)\]]|$)|Tesla [A-Z]\d+\w*"
    r"|(?:GeForce )?(?:RTX|GTX) ?(?:PRO )?\d{4}(?: Ti)?|GH200|H20(?!\d)[\w-]*|H[18]00|A100|A800|V100"
    r"|L40S?|GB200|B200)\b"
)
_DRIVER = re.compile(
    r"Driver Version: *(?P<driver>\d{3}\.\d+[\d.]*)|[Dd]river(?: version)?[: ]+(?P<other>\d{3}\.\d+[\d.]*)"
)


def environment_of(text: str) -> Environment:
    """The part of a `fingerprint` that a log tells: `packages`, `gpus`, `cuda`, `driver`, as far as known."""
    versions: dict[str, set[str]] = {}
    for found in _PACKAGE.finditer(text):
        line = text[text.rfind("\n", 0, found.start() + 1) + 1 : found.end()]
        if _ASKED.search(line):
            continue
        name = found["name"].lower().replace("_", "-")
        versions.setdefault("torch" if name == "pytorch" else name, set()).add(found["version"].rstrip("."))
    for found in _HAVE.finditer(text):
        versions["vllm"] = {found["version"].rstrip(".")}
    packages = {
        name: next(iter(seen)) for name, seen in versions.items() if len({one.split("+")[0] for one in seen}) == 1
    }
    for name, seen in versions.items():  # 2.5.1 and 2.5.1+cu121 are one
        if name in packages:
            packages[name] = max(seen, key=len)
    environment: Environment = {"packages": packages} if packages else {}
    gpus = dict.fromkeys(" ".join(found["name"].split()) for found in _GPU.finditer(text))
    if gpus:
        environment["gpus"] = [{"name": name} for name in gpus]
    tag = re.search(r"\+cu(\d+)(\d)\b", packages.get("torch", "")) or re.search(r"\btorch\S*\+cu(\d\d)(\d)\b", text)
    if tag:
        environment["cuda"] = f"{tag[1]}.{tag[2]}"
    driver = _DRIVER.search(text)
    if driver:
        environment["driver"] = driver["driver"] or driver["other"]
    return environment
