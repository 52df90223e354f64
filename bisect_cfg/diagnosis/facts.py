"""What a log says beside its error, as facts: versions, GPUs, driver, settings that were echoed, the kind of training.

People paste `pip list`, `trl env` and `nvidia-smi`, frameworks print their configuration, and the frames of a traceback
tell in which part of a run it failed. All of it is read once here, and the conditions of known failures refer to it
(`conditions`), so that a cure for one version, one GPU or one setting is only given where that is in sight.

What the log names with two values is left out: one of them is what somebody asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from bisect_cfg.diagnosis._types import Fingerprint

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
_INSTALLED = re.compile(
    rf"Requirement already satisfied: (?P<name>{_NAMES})\b[^\n]* \((?P<version>\d[\w.+]*)\)", re.IGNORECASE
)
_DRIVER = re.compile(
    r"Driver Version: *(?P<driver>\d{3}\.\d+[\d.]*)|[Dd]river(?: version)?[: ]+(?P<other>\d{3}\.\d+[\d.]*)"
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
    r"(?:GRPO|PPO|RLOO|Online\w*)(?:Trainer|Config)|grpo_trainer|ppo_trainer|actor/pg_loss|actor_rollout|num_generations"
    r"|completions/|'reward(?:_std)?': |reward_func|OpenRLHF|openrlhf|\bverl\b|[Gg][Rr][Pp][Oo]"
)
_ENVIRONMENT = re.compile(r"/(?:envs|venvs?|virtualenvs|miniconda3|home)/[\w.-]+")
"""Folders whose names are somebody's choice."""
_SUPERVISED = re.compile(
    r"SFTTrainer|SFTConfig|sft_trainer|run_sft|\bsft\b|train_sft|lm loss"
    r"|(?:DPO|KTO|ORPO|CPO|SimPO|Reward)(?:Trainer|Config)|dpo_trainer|kto_trainer|\bdpo\b|TrainingArguments|pretrain|finetune|fine-tun|easydel"
)
_CUDA_AVAILABLE = re.compile(
    r"is_available\(\)[^\n]*\n(?:[^\n]{0,60}\n)??\s*(?:\S+ )?(?P<answer>True|False)\b"
    r"|\+cu\d{3} +(?P<beside>True|False)\b"
    r"|[Cc][Uu][Dd][Aa](?: is)?[ _]available\??[ :=]+(?P<said>True|False|Yes|No)\b"
)
_VARIABLE = re.compile(
    r"\b(?P<name>(?:NCCL|CUDA|HF|VLLM|TORCH|PYTORCH|RAY|SLURM|GLOO|BNB|HSA|HIP|XLA|LD|OMP|TOKENIZERS|WANDB|MASTER|WORLD)"
    r"_[A-Z0-9_]+|RANK|LOCAL_RANK)\s*(?:=|set by environment to)\s*[\"']?(?P<value>[\w.:,/%+-]+)"
)
_STAGES = {
    "data": re.compile(
        r"(?:Map|Filter|[Tt]okeniz\w+|Running tokenizer|Generating \w+ split|Packing|Converting|Applying|Adding EOS)"
        r"[^|\n]{0,80}?(?<!\d)[1-9]?\d%\|"
    ),
    "loading": re.compile(
        r"(?:Loading (?:checkpoint|safetensors|pt)[^|\n]{0,60}|Fetching \d+ files): +[1-9]?\d%(?:\||\s)"
    ),
    "evaluation": re.compile(
        r"\*+ Running [Ee]valuation|Running Prediction|Evaluating:|[Vv]alidation DataLoader|[Vv]alidating"
    ),
    "saving": re.compile(r"[Ss]aving (?:the )?(?:model|checkpoint|state)"),
    "training": re.compile(
        r"['\"](?:loss|grad_norm)['\"]: |\bstep:\d+ - |lm loss: |\*+ Running training"
        r"|\d+%\|[^|\n]*\| *\d+/\d+ \[.{0,40}s/it"
    ),
    "": re.compile(r"(?<!\d)100%(?:\||\s)"),
}
"""Lines that tell which part of a run it was in: a bar of data preparation that is not full, a model being saved. A
full bar ends a part."""
_COLLECTIVE = re.compile(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)"
)
_ADDRESS = r"(?:https?://)?(localhost|\d+\.\d+\.\d+\.\d+|[a-z][\w.-]*):(\d{2,5})\b"
_ASKED_SERVER = re.compile(
    rf"can't be reached at {_ADDRESS}|host='([\w.-]+)', port=(\d+)\): Max retries"
    rf"|[Cc]annot connect to (?:host )?{_ADDRESS}"
)
_ANSWERING = re.compile(
    rf"(?:Uvicorn running|Starting (?:\w+ )?(?:API )?server(?: \d+)?|[Ll]istening) (?:on|at) {_ADDRESS}"
    rf"|\bcurl [^\n]*?{_ADDRESS}[^\n]*\n(?:< )?(?:[{{[]|ok\b|OK\b|HTTP/[\d.]+ 200|200\b)"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS")


def facts_of(text: str, settings: Iterable[str] = ()) -> Fingerprint:
    """The facts that a log tells, in the form of a `fingerprint`, as far as they are known.

    Args:
        text: The log, or its beginning and its end.
        settings: Names of the settings to look for.
    """
    facts: Fingerprint = {}
    packages = _packages_in(text)
    if packages:
        facts["packages"] = packages
    gpus = dict.fromkeys(" ".join(found["name"].split()) for found in _GPU.finditer(text))
    if gpus:
        facts["gpus"] = [{"name": name} for name in gpus]
    tag = re.search(r"\+cu(\d+)(\d)\b", packages.get("torch", "")) or re.search(r"\btorch\S*\+cu(\d\d)(\d)\b", text)
    if tag:
        facts["cuda"] = f"{tag[1]}.{tag[2]}"
    driver = _DRIVER.search(text)
    if driver:
        facts["driver"] = driver["driver"] or driver["other"]
    available = {
        (found["answer"] or found["said"] or found["beside"]) in ("True", "Yes")
        for found in _CUDA_AVAILABLE.finditer(text)
    }
    if len(available) == 1:
        facts["cuda_available"] = available.pop()
    device = next((name for name, pattern in _DEVICES if pattern.search(text)), "")
    device = device or ("cuda" if gpus or "CUDA" in text or "cuda:" in text else "")
    if device:
        facts["device"] = device
    if _RL.search(_ENVIRONMENT.sub("", text)):
        facts["task"] = "rl"
    elif _SUPERVISED.search(text):
        facts["task"] = "supervised"
    variables = _single((found["name"], found["value"]) for found in _VARIABLE.finditer(text))
    variables = {name: value for name, value in variables.items() if not _SECRET.search(name)}
    if variables:
        facts["variables"] = variables
    stage = _stage(text)
    if stage:
        facts["progress"] = stage
    apart = _apart(text)
    if apart:
        facts["collectives"] = apart
    answers = _elsewhere(text)
    if answers:
        facts["answers"] = answers
    names = frozenset(settings)
    echoed = _single(_settings_in(text, names)) if names else {}
    if echoed:
        facts["settings"] = echoed
    return facts


_ASKED_MEMORY = re.compile(r"Tried to allocate (?P<size>\d+(?:\.\d+)?) (?P<unit>[KMGT]iB)")
_FREE_MEMORY = re.compile(
    r"(?:of which (?P<new>\d+(?:\.\d+)?) (?P<unit>[KMGT]iB|bytes) is"
    r"|(?P<old>\d+(?:\.\d+)?) (?P<old_unit>[KMGT]iB|bytes)) free"
)
_UNUSED_MEMORY = re.compile(r"(?P<size>\d+(?:\.\d+)?) (?P<unit>[KMGT]iB|bytes) is reserved by PyTorch but unallocated")
_RESERVED = re.compile(
    r"(?P<allocated>\d+(?:\.\d+)?) (?P<unit>[KMGT]iB) already allocated"
    r".*?(?P<reserved>\d+(?:\.\d+)?) (?P<reserved_unit>[KMGT]iB) reserved in total"
)
_UNITS = {"bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}


LEAST_IN_PIECES = 2.0**30
"""Bytes that torch holds without using them, below which that is what any run has."""


def memory_of(message: str) -> str:
    """How torch's message of a GPU's full memory has it.

    "in pieces" where torch holds, without using it, more than twice what was asked for, which would have been enough
    with what is free, or else "full"; "" for another message.
    """
    asked = _ASKED_MEMORY.search(message)
    if asked is None:
        return ""
    free, unused, old = (pattern.search(message) for pattern in (_FREE_MEMORY, _UNUSED_MEMORY, _RESERVED))
    left = 0.0
    if unused:
        left = float(unused["size"]) * _UNITS[unused["unit"]]
    elif old:
        left = float(old["reserved"]) * _UNITS[old["reserved_unit"]] - float(old["allocated"]) * _UNITS[old["unit"]]
    there = float(free["new"] or free["old"]) * _UNITS[free["unit"] or free["old_unit"]] if free else 0.0
    size = float(asked["size"]) * _UNITS[asked["unit"]]
    return "in pieces" if there < size <= there + left and left > max(2 * size, LEAST_IN_PIECES) else "full"


def _stage(text: str) -> str:
    """The part of a run that the last progress in the text belongs to; "" if there is none."""
    last = {
        name: max((found.start() for found in pattern.finditer(text)), default=-1) for name, pattern in _STAGES.items()
    }
    name = max(last, key=last.__getitem__)
    return name if last[name] >= 0 else ""


def _apart(text: str) -> str:
    """Where the ranks were, if they waited in different collectives; "" if they did not."""
    places: dict[tuple[int, str], set[int]] = {}
    for found in _COLLECTIVE.finditer(text):
        places.setdefault((int(found["seq"]), found["op"]), set()).add(int(found["rank"]))
    if len(places) < 2 or len({seq for seq, _ in places}) < 2:
        return ""
    return "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))} at {op} number {seq}"
        for (seq, op), ranks in sorted(places.items())
    )


def _elsewhere(text: str) -> str:
    """The address at which a server answers, where another one was asked in vain; "" if there is none."""
    asked = {_address(found) for found in _ASKED_SERVER.finditer(text)}
    answering = [_address(found) for found in _ANSWERING.finditer(text)]
    if not asked or not answering:
        return ""
    reached = any(
        port == other and "0.0.0.0" in (host, at) or (host, port) == (at, other)
        for host, port in asked
        for at, other in answering
    )
    return "" if reached else ":".join(answering[-1])


def _address(found: re.Match[str]) -> tuple[str, str]:
    host, port = (one for one in found.groups() if one)
    return "127.0.0.1" if host == "localhost" else host, port


def _packages_in(text: str) -> dict[str, str]:
    versions: dict[str, set[str]] = {}
    for found in _PACKAGE.finditer(text):
        line = text[text.rfind("\n", 0, found.start() + 1) + 1 : found.end()]
        if _ASKED.search(line):
            continue
        name = found["name"].lower().replace("_", "-")
        versions.setdefault("torch" if name == "pytorch" else name, set()).add(found["version"].rstrip("."))
    for found in _INSTALLED.finditer(text):
        versions.setdefault(found["name"].lower().replace("_", "-"), set()).add(found["version"].rstrip("."))
    for found in _HAVE.finditer(text):
        versions["vllm"] = {found["version"].rstrip(".")}
    # 2.5.1 and 2.5.1+cu121 are one
    return {
        name: max(seen, key=len) for name, seen in versions.items() if len({one.split("+")[0] for one in seen}) == 1
    }


@functools.cache
def _settings_pattern(names: frozenset[str]) -> re.Pattern[str]:
    choice = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.compile(
        rf"(?<![\w-])(?P<flag>--)?[\"']?(?P<name>{choice})[\"']?(?:\s*[:=]\s*|(?(flag)\s+|(?!)))[\"']?(?P<value>[\w.+-]+)"
    )


def _settings_in(text: str, names: frozenset[str]) -> Iterable[tuple[str, bool | int | float | str]]:
    """The values of settings that are echoed: `bf16=True`, `--bf16 true`, `"bf16": true`, `bf16: true`."""
    for found in _settings_pattern(names).finditer(text):
        yield found["name"], _value(found["value"].rstrip("."))


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _single(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Names with the only value they were seen with."""
    seen: dict[str, set[object]] = {}
    for name, value in pairs:
        seen.setdefault(name, set()).add(value)
    return {name: next(iter(values)) for name, values in seen.items() if len(values) == 1}
