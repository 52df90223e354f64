"""Where a known failure applies: whether its conditions hold for an environment and a configuration.

Each condition holds, does not hold, or cannot be decided because nobody knows. One that does not hold rules an entry
out. A log tells a part of the environment itself (`facts_of`): people paste `pip list` and `nvidia-smi`. A package that
it names with two versions is left out: one of them is what somebody asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.common.parameters.comparing import agrees, is_comparison


class Conditions(TypedDict, total=False):
    """Where a known failure applies; the fields are those of a knowledge entry."""

    packages: dict[str, str]
    gpu: str
    cuda: str
    cublas: str
    parameters: dict[str, Value]
    launcher: str
    task: str


@dataclass(frozen=True)
class Checked:
    """One condition: what it asks, what is the case, and whether it holds (None: not known)."""

    asks: str
    found: str
    holds: bool | None


def evaluate(conditions: Conditions, environment: Fingerprint, configuration: Configuration | None) -> list[Checked]:
    """Judges an entry's conditions one by one; names of settings may have a namespace (`args.bf16`) or none."""
    settings = with_bare_names(configuration)
    return [*_environment(conditions, environment), *_parameters(conditions.get("parameters", {}), settings)]


def with_bare_names(configuration: Configuration | None) -> Configuration:
    """A configuration in which `args.bf16` is found as `bf16`, too."""
    known = configuration or {}
    return {**{name.rpartition(".")[2]: value for name, value in reversed([*known.items()])}, **known}


def _environment(conditions: Conditions, environment: Fingerprint) -> Iterator[Checked]:
    packages = environment.get("packages") or {}
    for name, specifier in conditions.get("packages", {}).items():
        yield _version(name, specifier, environment.get("python") if name == "python" else packages.get(name))
    if "cuda" in conditions:
        yield _version("CUDA", conditions["cuda"], environment.get("cuda"))
    if "cublas" in conditions:
        cublas = environment.get("cublas") or {}  # what is loaded counts, where somebody has looked
        yield _version("cuBLAS", conditions["cublas"], cublas.get("loaded_version") or cublas.get("version"))
    if "gpu" in conditions:
        names = [gpu["name"] for gpu in environment.get("gpus") or []]
        holds = any(re.search(conditions["gpu"], name) for name in names) if names else None
        yield Checked(f"GPU {conditions['gpu']}", ", ".join(dict.fromkeys(names)) or "unknown", holds)
    for pattern, word, asks in (
        (conditions.get("task"), environment.get("task"), "is a training of kind"),
        (conditions.get("launcher"), environment.get("launcher"), "launched by"),
    ):
        if pattern is not None:
            holds = bool(re.fullmatch(pattern, word)) if word else None
            yield Checked(f"{asks} {pattern.replace('|', ' or ')}", word or "unknown", holds)


def _version(name: str, specifier: str, version: str | None) -> Checked:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    asks = f"{name} {specifier}"
    if version is None:
        return Checked(asks, "unknown", None)
    try:
        # 0.16.0.dev0 has what 0.16.0 has, and 2.5.1+cu121 is 2.5.1; but 0.6.0.post2 is more than 0.6.0.
        parsed = Version(version)
        release = parsed.base_version if parsed.is_prerelease else parsed.public
        holds = SpecifierSet(specifier).contains(release)
    except InvalidVersion:
        return Checked(asks, version, None)
    return Checked(asks, f"{name} {version}", holds)


def _parameters(wanted: Mapping[str, Value], settings: Configuration) -> Iterator[Checked]:
    for name, value in wanted.items():
        asks = f"{name} {value}" if is_comparison(value) else f"{name}={value}"
        if name not in settings:
            yield Checked(asks, "unknown", None)
            continue
        yield Checked(asks, f"{name}={settings[name]}", agrees(value, settings[name]))


LOOKED_AT = 1 << 16
"""Characters at each end of a log in which facts are looked for: an environment is printed first, or pasted last."""

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
_ASKED = re.compile(r"(?:>=|<=|<|>|~=|!=|require|need|support|at least|or newer|or later|compatible)", re.IGNORECASE)
_GPU = re.compile(
    r"\b(?P<name>NVIDIA (?:GeForce )?(?:[A-Z]{1,3} ?)?[A-Z]?\d{2,4}[\w -]{0,24}?(?=[\s,;|)\]]|$)|Tesla [A-Z]\d+\w*"
    r"|(?:GeForce )?(?:RTX|GTX) ?(?:PRO )?\d{4}(?: Ti)?|GH200|H20(?!\d)[\w-]*|H[18]00|A100|A800|V100"
    r"|L40S?|GB200|B200)\b"
)


def facts_of(text: str) -> Fingerprint:
    """What a log, its beginning and its end, tells of its environment: `packages`, `gpus` and `cuda`."""
    facts: Fingerprint = {}
    packages = _packages_in(text)
    if packages:
        facts["packages"] = packages
    gpus = dict.fromkeys(" ".join(found["name"].split()) for found in _GPU.finditer(text))
    if gpus:
        facts["gpus"] = [{"name": name} for name in gpus]
    if tag := re.search(r"\+cu(\d+)(\d)\b", packages.get("torch", "")):
        facts["cuda"] = f"{tag[1]}.{tag[2]}"
    return facts


def _packages_in(text: str) -> dict[str, str]:
    """Packages with the only version they are named with; 2.5.1 and 2.5.1+cu121 are one."""
    versions: dict[str, set[str]] = {}
    for found in _PACKAGE.finditer(text):
        line = text[text.rfind("\n", 0, found.start() + 1) + 1 : found.end()]
        if not _ASKED.search(line[-160:]):
            name = found["name"].lower().replace("_", "-")
            versions.setdefault("torch" if name == "pytorch" else name, set()).add(found["version"].rstrip("."))
    single = {name: seen for name, seen in versions.items() if len({one.partition("+")[0] for one in seen}) == 1}
    return {name: max(seen, key=len) for name, seen in single.items()}
