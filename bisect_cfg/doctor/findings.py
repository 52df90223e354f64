"""What is worth saying before a trial is spent.

Two sources. The known failures whose conditions all hold for this environment and this configuration: an
H20 with an old cuBLAS is affected, whatever the run will do. And a few rules, for what the libraries accept
in silence: clipping that is switched off, a learning rate nobody has published, a batch of no whole groups.

A configuration here is complete: defaults resolved, since they differ from version to version. What it does
not name is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from bisect_cfg.common.conditions import evaluate, with_bare_names
from bisect_cfg.common.types import Fingerprint
from bisect_cfg.configuration import Configuration
from bisect_cfg.explain.knowledge import load
from bisect_cfg.parameters import every

FULL_WARN, FULL_REFUSE = 1e-5, 5e-5
"""Learning rates of full training. Published recipes use 3e-7 to 5e-6, one 2e-5 for 1.5B; 5e-5 is documented
to collapse a 0.6B model (datawhalechina/hello-agents#770)."""

ADAPTER_WARN = 5e-5
"""Of LoRA: TRL's own reproduction uses 1e-5, its Python example 5e-5."""

LEVELS = ("problem", "warning", "note")
"""The worst first. A note is worth a line and no more: a run with nothing else against it is clean."""

SWALLOWED = 1e-6
"""Learning rate up to which it was measured that AdamW hardly changes bfloat16 weights; at 1e-4 most of them change."""

BLACKWELL = re.compile(r"RTX (?:PRO )?50\d0|RTX PRO 6000 Blackwell|\bG?B[23]00\b")
"""GPUs whose code came with CUDA 12.8 (compute capability 10.0 and 12.0)."""

BLACKWELL_CUDA = (12, 8)
VOLTA_END = (13, 0)
"""CUDA 13 has no code for GPUs below compute capability 7.5 any more (V100, P100, GTX 10)."""

DRIVERS = {13: 580, 12: 525, 11: 450}
"""The oldest driver for a major version of CUDA (NVIDIA's table of minor version compatibility)."""

LAST_PYTHON = (3, 9), "TRL 0.24, transformers 4.57, accelerate 1.10 and torch 2.8"
"""The oldest Python that can train with GRPO in TRL, and the last versions for it (as uv resolves them, 2026-11-22)."""

TRAINERS = ("trl", "verl", "openrlhf", "ms-swift", "unsloth")
"""Packages of which one trains with GRPO."""


@dataclass(frozen=True)
class Finding:
    """Something to know before a run.

    Args:
        level: `problem` (it will fail or learn nothing), `warning` (it may) or `note`.
        title: One line.
        why: The facts of this environment and configuration that make it so.
        cure: What to do.
        source: Where it is known from.
        id: A short name that stays: of the knowledge entry, or of the rule.
        meaning: What stands behind it, where the title does not say enough.
    """

    level: str
    title: str
    why: str
    cure: str
    source: str
    id: str = ""
    meaning: str = ""


def check(environment: Fingerprint, configuration: Configuration | None = None) -> list[Finding]:
    """All findings, the worst first.

    Args:
        environment: A `fingerprint`; `launcher` may be added ("python", "accelerate", "torchrun").
        configuration: Dotted name -> resolved value; None checks the environment alone.
    """
    settings = with_bare_names(configuration)
    found = [*_known(environment, settings)]
    for name, rule in RULES.items():
        found += [replace(finding, id=finding.id or name) for finding in rule(environment, settings)]
    return worst_first(found)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Problems, then warnings, then notes; otherwise in the order they came."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _known(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    for entry in load():
        conditions = evaluate(entry.conditions, environment, settings) if entry.doctor else []
        if conditions and all(condition.holds for condition in conditions):
            why = ", ".join(condition.found for condition in conditions)
            cure, source = entry.cures[0], entry.sources[0]
            yield Finding("problem", entry.title, why, cure, source, entry.id, entry.why)


def _missing(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """An environment that cannot train is not one that nothing is known against."""
    if not environment.get("python") or "error" in environment:
        return  # no whole fingerprint, so that what is absent may only not have been recorded
    packages = environment.get("packages") or {}
    if "torch" not in packages:
        yield Finding(
            "problem", "torch is not installed in this environment",
            f"{environment.get('executable') or 'this interpreter'} has no torch",
            "name the interpreter that trains: --python /path/to/python; or pip install torch there",
            "https://docs.pytorch.org/get-started/locally/",
        )  # fmt: skip
    if not any(name in packages for name in TRAINERS):
        yield Finding(
            "problem", "No trainer is installed in this environment", f"none of {', '.join(TRAINERS)}",
            "name the interpreter that trains: --python /path/to/python; or pip install trl there",
            "https://huggingface.co/docs/trl/installation",
        )  # fmt: skip


def _gpu_and_cuda(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """A wheel of torch holds code for some generations of GPUs."""
    cuda = _pair(environment.get("cuda"))
    for gpu in environment.get("gpus") or []:
        capability = _pair(gpu.get("compute_capability"))
        new = bool(BLACKWELL.search(gpu["name"])) or (capability is not None and capability >= (10, 0))
        if cuda is None:
            return
        if new and cuda < BLACKWELL_CUDA:
            yield Finding(
                "problem", "This torch has no code for this GPU",
                f"{gpu['name']}, torch built for CUDA {environment['cuda']}",
                "torch 2.7 or newer built for CUDA 12.8: pip install -U torch --index-url https://download.pytorch.org/whl/cu128",
                "https://github.com/pytorch/pytorch/issues/167244",
            )  # fmt: skip
            return
        if capability is not None and capability < (7, 5) and cuda >= VOLTA_END:
            yield Finding(
                "problem", "This torch has no code for this GPU any more",
                f"{gpu['name']}, torch built for CUDA {environment['cuda']}",
                "a torch built for CUDA 12: pip install torch --index-url https://download.pytorch.org/whl/cu126",
                "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html",
            )  # fmt: skip
            return


def _driver(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """The driver must know the CUDA that torch brings."""
    cuda, driver = _pair(environment.get("cuda")), _pair(environment.get("driver"))
    needed = DRIVERS.get(cuda[0]) if cuda else None
    if cuda and driver and needed and driver[0] < needed:
        yield Finding(
            "problem", "The NVIDIA driver is too old for this torch",
            f"driver {environment['driver']}, torch built for CUDA {environment['cuda']}, "
            f"which needs {needed} or newer",
            f"update the driver to {needed} or newer, or install a torch built for an older CUDA",
            "https://docs.nvidia.com/deploy/cuda-compatibility/",
        )  # fmt: skip


def _pair(version: object) -> tuple[int, int] | None:
    found = re.match(r"(\d+)(?:\.(\d+))?", str(version or ""))
    return (int(found[1]), int(found[2] or 0)) if found else None


def _groups(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """A generation batch must hold whole groups of completions."""
    generations, batch = settings.get("num_generations"), settings.get("per_device_train_batch_size")
    if not isinstance(generations, int) or not isinstance(batch, int):
        return
    if generations < 2:
        yield Finding(
            "problem", "GRPO needs at least two generations for a prompt", f"num_generations={generations}",
            "num_generations=8", "https://github.com/huggingface/trl/issues/3199",
        )  # fmt: skip
        return
    processes = settings.get("launch.num_processes") or settings.get("num_processes") or 1
    # What counts differs: prompts before TRL 0.15 (any batch is whole), completions since; none of the accumulation
    # steps in 0.15 and 0.16, all of them from 0.17 on.
    steps = settings.get("steps_per_generation") or settings.get("gradient_accumulation_steps") or 1
    version = re.match(r"0\.(\d+)", (environment.get("packages") or {}).get("trl", ""))
    if version and int(version[1]) < 15:
        return
    if version and int(version[1]) < 17:
        steps = 1
    size = settings.get("generation_batch_size") or batch * processes * steps
    if size % generations:
        yield Finding(
            "problem", "The generation batch holds no whole number of groups",
            f"{size} completions a batch, num_generations={generations}",
            "make processes * per_device_train_batch_size * gradient_accumulation_steps a multiple of it",
            "https://github.com/huggingface/trl/issues/2858",
        )  # fmt: skip


def _launch(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """Plain python with several visible GPUs ends in nn.DataParallel."""
    visible = (environment.get("variables") or {}).get("CUDA_VISIBLE_DEVICES")
    gpus = len(environment.get("gpus") or [])
    gpus = min(gpus, len([one for one in visible.split(",") if one])) if visible is not None else gpus
    if environment.get("launcher") == "python" and gpus > 1:
        yield Finding(
            "warning", "One plain python process will drive several GPUs (nn.DataParallel)",
            f"{gpus} visible GPUs, no launcher", "accelerate launch, or CUDA_VISIBLE_DEVICES=0",
            "https://github.com/huggingface/transformers/issues/33985",
        )  # fmt: skip


def _fsdp(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """TRL before 0.18.0 leaves the reference model on the CPU; FSDP may be accelerate's or the Trainer's."""
    variables = environment.get("variables") or {}
    accelerate = str(variables.get("ACCELERATE_USE_FSDP")).lower() in ("1", "true")
    sharded = bool(settings.get("fsdp")) or accelerate
    if sharded and _older("0.18.0", environment) and _number(settings.get("beta")):
        yield Finding(
            "problem", "FSDP leaves the reference model on the CPU", f"beta={settings['beta']}, FSDP",
            "TRL 0.18.0 or newer, or beta=0", "https://github.com/huggingface/trl/issues/3348",
        )  # fmt: skip


def _temperature(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """TRL before 0.16.0 samples at a temperature, and computes probabilities as if there were none."""
    temperature = _number(settings.get("temperature"))
    if temperature not in (None, 1.0) and _older("0.16.0", environment):
        yield Finding(
            "warning", "This TRL leaves the temperature out of the loss",
            f"temperature={temperature:g}, trl {environment['packages']['trl']}; the gradient is another policy's than "
            "the one that was sampled from",
            "temperature=1.0, or TRL 0.16.0 or newer", "https://github.com/huggingface/trl/pull/3029",
        )  # fmt: skip


def _old_python(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """Installers pass over versions that the interpreter is too old for, without a word."""
    if _pair(environment.get("python")) == LAST_PYTHON[0]:
        yield Finding(
            "note", "This Python is too old for the current libraries",
            f"Python {environment['python']}: pip finds nothing newer than {LAST_PYTHON[1]}",
            "to update any of them: a new environment with Python 3.10 or newer", "measured",
        )  # fmt: skip


def _older(version: str, environment: Fingerprint) -> bool:
    """Whether TRL is known to be older than this version."""
    return all(condition.holds for condition in evaluate({"packages": {"trl": f"<{version}"}}, environment))


def _ranks(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """NCCL refuses two ranks on one GPU; a configuration for eight GPUs is often started on two."""
    ranks, gpus = environment.get("local_ranks"), len(environment.get("gpus") or [])
    if ranks and gpus and ranks > gpus:
        yield Finding(
            "problem", "More processes than GPUs on this machine", f"{ranks} ranks, {gpus} GPUs",
            f"num_processes={gpus} in the accelerate config, or --nproc_per_node {gpus}",
            "https://github.com/huggingface/trl/issues/2851",
        )  # fmt: skip


def _other_cublas(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """LD_LIBRARY_PATH goes before the wheel's own folder, and the two versions do not mix."""
    cublas = environment.get("cublas") or {}
    shadow, loaded = cublas.get("shadowed_by"), cublas.get("loaded_from")
    if shadow and cublas.get("version") and (loaded is None or loaded == shadow):
        verb = "is" if loaded else "would be"
        yield Finding(
            "warning", f"Another cuBLAS {verb} loaded than the one torch was installed with",
            f"{shadow} by LD_LIBRARY_PATH, in place of {cublas['package']} {cublas['version']}",
            "unset LD_LIBRARY_PATH before the run",
            "https://github.com/vllm-project/vllm/issues/35608",
        )  # fmt: skip


def _old_gpu(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """bfloat16 needs compute capability 8.0."""
    for gpu in environment.get("gpus") or []:
        capability = re.match(r"\d+", str(gpu.get("compute_capability")))
        if settings.get("bf16") is True and capability and int(capability.group()) < 8:
            yield Finding(
                "problem", "This GPU has no bfloat16", f"{gpu['name']}, bf16=True",
                "bf16=False, fp16=True with the weights in float32",
                "https://github.com/vllm-project/vllm/issues/1157",
            )  # fmt: skip
            return


def _clipping(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """0 and below switch clipping off without a word."""
    norm = _number(settings.get("max_grad_norm"))
    if norm is not None and norm <= 0:
        yield Finding(
            "warning", "Gradient clipping is off", f"max_grad_norm={norm:g} switches it off silently",
            "max_grad_norm=1.0, 0.2 or 0.1", "measured",
        )  # fmt: skip


def _learning_rate(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """Above what anybody has published."""
    rate = _number(settings.get("learning_rate"))
    adapter = _has_adapter(settings)
    limit = ADAPTER_WARN if adapter else FULL_WARN
    if rate is None or rate < limit or (adapter and rate == limit):
        return
    yield Finding(
        "problem" if not adapter and rate >= FULL_REFUSE else "warning",
        "The learning rate is above what is published for GRPO",
        f"learning_rate={rate:g}, {'LoRA' if adapter else 'full training'}; it may collapse without NaN",
        "learning_rate=1e-5" if adapter else "learning_rate=1e-6",
        "https://github.com/datawhalechina/hello-agents/issues/770",
    )


def _swallowed(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """An update smaller than half of bfloat16's last place leaves the weight as it was, and no log shows it."""
    rate, optimizer = _number(settings.get("learning_rate")), str(settings.get("optim", ""))
    adapter = _has_adapter(settings)
    in_bf16 = settings.get("model.dtype") == "bfloat16" and not adapter
    if in_bf16 and optimizer.startswith("adamw_torch") and rate is not None and 0 < rate <= SWALLOWED:
        yield Finding(
            "note", "Most updates are lost in bfloat16 weights",
            f"learning_rate={rate:g}: 2% of the weights of a tiny model changed in 4 steps, 92% in float32",
            "load the weights in float32, with bf16=True for autocast",
            "https://github.com/NVIDIA-NeMo/Automodel/pull/3444",
        )  # fmt: skip


def _precision(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """fp16 and bf16 exclude each other."""
    if settings.get("fp16") is True and settings.get("bf16") is True:
        yield Finding(
            "problem", "fp16 and bf16 are both on", "fp16=True, bf16=True (the default since TRL 0.19)",
            "bf16=False next to fp16=True", "https://github.com/huggingface/trl/issues/3515",
        )  # fmt: skip


def _hidden_nan(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """The Trainer prints an average in place of a NaN loss."""
    if settings.get("logging_nan_inf_filter") is True:
        yield Finding(
            "note", "A NaN loss will not be printed", "logging_nan_inf_filter=True (the default)",
            "logging_nan_inf_filter=False", "https://huggingface.co/docs/transformers/main_classes/trainer",
        )  # fmt: skip


def _removed(environment: Fingerprint, settings: Configuration) -> Iterator[Finding]:
    """Settings that the installed version no longer has."""
    for name, known in every().items():
        if settings.get(name) is None or not known.instead:
            continue
        if all(condition.holds for condition in evaluate({"packages": known.removed}, environment)):
            ((package, version),) = known.removed.items()
            yield Finding("problem", f"{name} is gone", f"{package} {version}", known.instead, "measured")


RULES: dict[str, Callable[[Fingerprint, Configuration], Iterator[Finding]]] = {
    "missing": _missing,
    "gpu-and-cuda": _gpu_and_cuda,
    "driver": _driver,
    "groups": _groups,
    "launch": _launch,
    "ranks": _ranks,
    "fsdp": _fsdp,
    "temperature": _temperature,
    "old-python": _old_python,
    "other-cublas": _other_cublas,
    "old-gpu": _old_gpu,
    "clipping": _clipping,
    "learning-rate": _learning_rate,
    "swallowed": _swallowed,
    "precision": _precision,
    "hidden-nan": _hidden_nan,
    "removed": _removed,
}
"""The id of what a rule finds, and the rule: it takes the environment and the settings, and yields findings."""


def _has_adapter(settings: Configuration) -> bool:
    return bool(settings.get("use_peft")) or any(name.startswith("peft.") for name in settings)


def _number(value: object) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
