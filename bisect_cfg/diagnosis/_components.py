"""Which components a log shows at work, and what of an answer fits them.

What is known of a failure names engines, trainers and settings that had a part in the reports it is known from. The
same message comes from other hands too: an engine's memory is not the training's, and a supervised run has no
completions. So a sentence of an answer that names a component needs that component in sight. Two things tell that it
has no part:

    a rival     the log shows another one in its place (SGLang and not vLLM, Axolotl and not TRL, supervised training
                and no rewards): what is said of it is left out
    a traceback that shows whose libraries are at work, while nothing in the whole log names it: what is said of it
                comes last

A short excerpt without frames rules nothing out: it shows too little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisect_cfg.diagnosis.advice.reading import Frame

RL = "reinforcement learning"
TRAINING = "training"

_NAMES = {
    "vLLM": ("vllm", r"\bLLM\("),
    "SGLang": ("sglang|/sgl[/-]", ""),
    "TRL": (r"\btrl\b|(?:grpo|dpo|ppo|sft|kto|rloo|orpo|reward)(?:trainer|config)\b", ""),
    "verl": (r"\bverl\b|actor_rollout", ""),
    "OpenRLHF": ("openrlhf", ""),
    "ms-swift": (r"\bswift\b", ""),
    "LLaMA-Factory": ("llama-?_?factory", ""),
    "Axolotl": ("axolotl", ""),
    "Unsloth": ("unsloth", ""),
    "slime": (r"\bslime\b", ""),
    "DeepSpeed": (r"deepspeed|zero-?[123]\b|zero_stage|zero_config|sigkill_handler|dummy(?:optim|scheduler)", ""),
    "FSDP": ("fsdp|fully_?shard|flat_param", ""),
    "Megatron": ("megatron|mcore", ""),
    "LoRA": (r"lora\b|lora_|peft|adapter|trainable params: [\d,]+ (?:\|\||\(0?\.)", ""),
    "Ray": (r"\bray\b|raylet", r"\(\w+ pid=\d+"),
    "images": (r"image|pixel|video|vision|[-_]vl\b|\bvlm\b|vl\w{0,12}config|llava|internvl", ""),
    "Weights & Biases": ("wandb|weights & biases", ""),
    "Kubernetes": (r"kubectl|kubernetes|\bpods?\b", ""),
    RL: (r"num_generations|completion(?!_only)|rollout|grpo|\bppo|rloo|\bpolicy\b|reward|\bgenerations\b", ""),
    TRAINING: (
        "per_device_(?:train|eval)|gradient_(?:accumulation|checkpointing)|"
        r"\btrain|backward|optimi[sz]er|\bloss\b|grad_norm|checkpoint-\d",
        "",
    ),
}
"""How a log names them, in small letters, and in letters as they stand."""
_FOLDED = {name: re.compile(folded) for name, (folded, _) in _NAMES.items()}
_EXACT = {name: re.compile(exact) for name, (_, exact) in _NAMES.items() if exact}

_IN_ANSWERS = {
    TRAINING: re.compile("per_device_(?:train|eval)|gradient_(?:accumulation|checkpointing)"),
    "LoRA": re.compile(r"lora\b|lora_|\bpeft"),
    "images": re.compile(r"pixels?\b|vision model|<\|?image|\bvideos?\b"),
}
"""... where an answer names them in other words than a log."""

_PLACES = (("vLLM", "SGLang"), ("TRL", "verl", "OpenRLHF", "ms-swift", "LLaMA-Factory", "Axolotl", "slime", "Megatron"))
"""Components of which one is usually in a run's place. Unsloth stands on TRL."""

_ON_TRL = {"ms-swift", "LLaMA-Factory", "Axolotl"}
"""Projects that call TRL where they train with rewards."""

FRAMES = 2
"""Frames from which on a traceback shows whose libraries are at work."""

KEPT = 2
"""Steps that have to be left before what is labelled with an unseen component is left out."""

_VARIABLE = re.compile(r"\b[A-Z0-9]+_[A-Z0-9_]+\b")
"""An environment variable that is named beside others; it is not what a sentence is about."""

LABEL = 24
"""Characters in which a step names what it is about."""

_SENTENCES = re.compile(r"(?<=[.;]) (?=\S)")
_PARTS = re.compile(r"(?:; |, or )(?![^()]*\))")


@dataclass(frozen=True)
class Absent:
    """The components that have no part in a failure.

    Attributes:
        replaced: those in whose place the log shows another one.
        unseen: those of which a log with a traceback shows nothing, the former included.
    """

    replaced: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()


def named(text: str) -> set[str]:
    """The components that a sentence of an answer names."""
    bare = _VARIABLE.sub("", text)
    return _names(bare, {**_FOLDED, **_IN_ANSWERS})


def _names(text: str, patterns: Mapping[str, re.Pattern[str]]) -> set[str]:
    low = text.lower()  # a pattern that ignores the case is several times slower
    found = {name for name, pattern in patterns.items() if pattern.search(low)}
    return found | {name for name, pattern in _EXACT.items() if pattern.search(text)}


def absent_in(log: str, frames: Sequence[Frame], task: str) -> Absent:
    """The components that have no part in a failure.

    Args:
        log: what is in sight of the log: its ends, the error and the text before it.
        frames: those of the traceback that ends in the error.
        task: "rl" or "supervised", "" if the log does not say.
    """
    present = _names(log, _FOLDED)
    if task == "rl":
        present |= {RL, TRAINING}
    replaced: set[str] = set()
    for place in _PLACES:
        if present & set(place):
            replaced |= set(place) - present
    if present & _ON_TRL and RL in present:
        replaced.discard("TRL")
    if task == "supervised" and not re.search(r"GRPO|PPO|RLOO|num_generations|rollout", log):
        replaced.add(RL)
    if len(frames) < FRAMES:
        return Absent(frozenset(replaced), frozenset(replaced))
    return Absent(frozenset(replaced | ({RL, TRAINING} - present)), frozenset(replaced | (_NAMES.keys() - present)))


def fits(text: str, absent: frozenset[str]) -> bool:
    """Whether a sentence names no component, or one that may have a part; what it begins with ("vLLM: ...") counts
    most."""
    label, colon, _ = text[:LABEL].partition(": ")
    names = (named(label) if colon else set()) or named(text)
    return not names or not names <= absent


def fitting_steps(steps: Sequence[str], absent: Absent) -> tuple[str, ...]:
    """The steps that fit: those of what was not seen last, or left out if it is their label ("vLLM: ..."); those of
    what is replaced left out, if others are there."""
    parts = {step: _fitting_parts(step, absent.replaced) for step in steps}
    good = [part for part in parts.values() if part] or list(steps)
    seen = [step for step in good if not _labelled(step) or fits(step, absent.unseen)]
    return tuple(sorted(seen if len(seen) >= KEPT else good, key=lambda step: not fits(_begin(step), absent.unseen)))


def _begin(step: str) -> str:
    return step[:LABEL].partition("(")[0]


def _labelled(step: str) -> bool:
    return bool(named(step[:LABEL].partition(": ")[0])) and ": " in step[:LABEL]


def fitting_text(text: str, absent: Absent) -> str:
    """The sentences of a text that fit; all of them, if none does."""
    sentences = _SENTENCES.split(text)
    good = [sentence for sentence in sentences if fits(sentence, absent.replaced)]
    return " ".join(good).rstrip(";") if good else text


def fitting_settings(names: Sequence[str], absent: Absent) -> tuple[str, ...]:
    """The settings that are not of a component without a part."""
    return tuple(name for name in names if fits(name, absent.unseen))


def _fitting_parts(step: str, absent: frozenset[str]) -> str:
    """The step without the alternatives in it that do not fit; "" if it does not fit itself."""
    if not fits(step, absent) and not fits(_PARTS.split(step)[0], absent):
        return ""
    kept, *others = _PARTS.split(step)
    for mark, part in zip(_PARTS.findall(step), others, strict=True):
        if fits(part, absent):
            kept += mark + part
    return kept
