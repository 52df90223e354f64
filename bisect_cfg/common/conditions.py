"""Where a known failure applies: whether its conditions hold for an environment and a configuration.

Each condition holds, does not hold, or cannot be decided because nobody knows. One that does not hold rules an entry
out. A log tells a part of the environment itself (`facts_of`): people paste `pip list` and `nvidia-smi`, frameworks
print their settings. What it names with two values is left out: one of them is what somebody asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.common.parameters.comparing import agrees, is_comparison
from bisect_cfg.common.types import Fingerprint


class Conditions(TypedDict, total=False):
    """Where a known failure applies; the fields are those of a knowledge entry."""

    packages: dict[str, str]
    gpu: str
    cuda: str
    cublas: str
    parameters: dict[str, Value]
    launcher: str
    device: str
    task: str


@dataclass(frozen=True)
class Checked:
    """One condition: what it asks, what is the case, and whether it holds (None: not known)."""

    asks: str
    found: str
    holds: bool | None


def evaluate(
    conditions: Conditions,
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
) -> list[Checked]:
    """Judges an entry's conditions one by one.

    Args:
        conditions: As in a knowledge entry.
        environment: A `fingerprint`.
        configuration: Parameter -> value, with or without a namespace (`args.bf16` or `bf16`).
    """
    environment = environment or {}
    settings = with_bare_names(configuration)
    return [*_environment(conditions, environment), *_parameters(conditions.get("parameters", {}), settings)]


def with_bare_names(configuration: Configuration | None) -> Configuration:
    """A configuration in which `args.bf16` is found as `bf16`, too."""
    known = configuration or {}
    return {**{name.rpartition(".")[2]: value for name, value in reversed(known.items())}, **known}


def _environment(conditions: Conditions, environment: Fingerprint) -> Iterator[Checked]:
    packages = environment.get("packages") or {}
    for name, specifier in conditions.get("packages", {}).items():
        yield _version(name, specifier, packages.get(name))
    if "cuda" in conditions:
        yield _version("CUDA", conditions["cuda"], environment.get("cuda"))
    if "cublas" in conditions:
        cublas = environment.get("cublas") or {}  # what is loaded counts, where somebody has looked
        yield _version("cuBLAS", conditions["cublas"], cublas.get("loaded_version") or cublas.get("version"))
    if "gpu" in conditions:
        names = [gpu["name"] for gpu in environment.get("gpus") or []]
        holds = any(re.search(conditions["gpu"], name) for name in names) if names else None
        yield Checked(f"GPU {conditions['gpu']}", ", ".join(dict.fromkeys(names)) or "unknown", holds)
    for name, asks in (("device", "runs on"), ("task", "is a training of kind"), ("launcher", "launched by")):
        if name in conditions:
            word = environment.get(name)
            holds = bool(re.fullmatch(conditions[name], word)) if word else None
            yield Checked(f"{asks} {conditions[name].replace('|', ' or ')}", word or "unknown", holds)


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
_DEVICES = (
    ("tpu", re.compile(r"XLA:TPU|libtpu|\bTPU v\d|torch_xla|/dev/accel\d|backend 'tpu'")),
    ("npu", re.compile(r"torch_npu|\bHCCL|\bAscend|\bNPU\b|npu:\d")),
    (
        "rocm",
        re.compile(
            r"\bHIP (?:error|out of memory)|\bgfx\d{3,4}|AMD (?:Radeon|Instinct)|\+rocm\d|\brocBLAS|/opt/rocm"
            r"|\bamdgpu\b|HW Exception by GPU|\bMI[123]\d{2}X?\b"
        ),
    ),
    ("mps", re.compile(r"\bMPS (?:backend|framework|Tensor|device)|mps:0|\bApple M\d")),
)
"""What a log shows that did not run on NVIDIA's GPUs."""

_RL = re.compile(
    r"(?:GRPO|PPO|RLOO)(?:Trainer|Config)|grpo_trainer|ppo_trainer|actor/pg_loss|actor_rollout|num_generations"
    r"|completions/|'reward(?:_std)?': |reward_func|openrlhf|\bverl\b|GRPO",
    re.IGNORECASE,
)
_SUPERVISED = re.compile(
    r"SFTTrainer|SFTConfig|sft_trainer|\bsft\b|lm loss|(?:DPO|KTO|ORPO|CPO|Reward)(?:Trainer|Config)|dpo_trainer"
    r"|TrainingArguments|pretrain|finetune"
)
_FOLDER = re.compile(r"/(?:envs|venvs?|virtualenvs|miniconda3|home)/[\w.-]+")
"""Folders whose names are somebody's choice."""


def facts_of(text: str, settings: Iterable[str] = ()) -> Fingerprint:
    """What a log tells of its environment: `packages`, `gpus`, `cuda`, `device`, `task`, `settings`, as far as known.

    Args:
        text: the beginning and the end of the log.
        settings: bare names of the settings to look for.
    """
    facts: Fingerprint = {}
    packages = _packages_in(text)
    if packages:
        facts["packages"] = packages
    gpus = dict.fromkeys(" ".join(found["name"].split()) for found in _GPU.finditer(text))
    if gpus:
        facts["gpus"] = [{"name": name} for name in gpus]
    if tag := re.search(r"\+cu(\d+)(\d)\b", packages.get("torch", "")):
        facts["cuda"] = f"{tag[1]}.{tag[2]}"
    device = next((name for name, pattern in _DEVICES if pattern.search(text)), "")
    device = device or ("cuda" if gpus or "CUDA" in text or "cuda:" in text else "")
    if device:
        facts["device"] = device
    if _RL.search(_FOLDER.sub("", text)):
        facts["task"] = "rl"
    elif _SUPERVISED.search(text):
        facts["task"] = "supervised"
    names = frozenset(settings)
    echoed = _single(_settings_in(text, names)) if names else {}
    if echoed:
        facts["settings"] = echoed
    return facts


def _packages_in(text: str) -> dict[str, str]:
    versions: list[tuple[str, str]] = []
    for found in _PACKAGE.finditer(text):
        line = text[text.rfind("\n", 0, found.start() + 1) + 1 : found.end()]
        if _ASKED.search(line[-160:]):
            continue
        name = found["name"].lower().replace("_", "-")
        # 2.5.1 and 2.5.1+cu121 are one version
        versions.append(("torch" if name == "pytorch" else name, found["version"].rstrip(".")))
    public = _single((name, version.partition("+")[0]) for name, version in versions)
    return {name: max((one for key, one in versions if key == name), key=len) for name in public}


@functools.cache
def _settings_pattern(names: frozenset[str]) -> re.Pattern[str]:
    choice = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.compile(
        rf"(?<![\w-])(?P<flag>--)?[\"']?(?P<name>{choice})[\"']?"
        r"(?:\s{0,9}[:=]\s{0,9}|(?(flag)\s{1,9}|(?!)))[\"']?(?P<value>[\w.+-]{1,60})"
    )


def _settings_in(text: str, names: frozenset[str]) -> Iterator[tuple[str, Value]]:
    """The values of settings that are printed: `bf16=True`, `--bf16 true`, `"bf16": true`, `bf16: true`."""
    for found in _settings_pattern(names).finditer(text):
        value = found["value"].rstrip(".")
        if value.lower() in ("true", "false"):
            yield found["name"], value.lower() == "true"
            continue
        try:
            yield found["name"], float(value) if re.search(r"[.en]", value) else int(value)
        except ValueError:
            yield found["name"], value


def _single(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Names with the only value they were seen with."""
    seen: dict[str, set[object]] = {}
    for name, value in pairs:
        seen.setdefault(name, set()).add(value)
    return {name: next(iter(values)) for name, values in seen.items() if len(values) == 1}
