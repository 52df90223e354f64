"""What is worth saying of an environment and a configuration, by rules: a finding each, and its conditions.

Known failures whose conditions alone are worth a warning (`doctor: true`) are rules: an H20 with an old cuBLAS is
affected, whatever the run will do. So are the settings that the installed version no longer has. `rules.yaml` has what
no log shows, or too late: clipping that is switched off, a learning rate nobody has published, a batch of no whole
groups. Its conditions are on settings, and on `facts`: what several settings or the environment come to.

A configuration here is complete: defaults resolved, since they differ from version to version. What it does not name is
not judged.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bisect_cfg.common.conditions import Conditions, evaluate, with_bare_names
from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.common.fingerprint import Cublas, Fingerprint
from bisect_cfg.common.parameters import every
from bisect_cfg.explain.knowledge import load

LEVELS = ("problem", "warning", "note")
"""The worst first. A note is worth a line and no more: a run with nothing else against it is clean."""

BLACKWELL = re.compile(r"RTX (?:PRO )?50\d0|RTX PRO 6000 Blackwell|\bG?B[23]00\b")
"""GPUs of compute capability 10.0 and 12.0, where only their name is recorded."""

DRIVERS = {13: 580, 12: 525, 11: 450}
"""The oldest driver for a major version of CUDA (NVIDIA's table of minor version compatibility)."""

TRAINERS = ("trl", "verl", "openrlhf", "ms-swift", "unsloth")
"""Packages of which one trains with GRPO."""


@dataclass(frozen=True)
class Finding:
    """Something to know before a run."""

    level: str  # problem (it will fail or learn nothing), warning (it may) or note
    title: str
    why: str  # the facts of this environment and configuration that make it so
    cure: str
    source: str  # an address; "measured" for what was reproduced
    id: str  # a short name that stays: of the known failure, or of the rule
    meaning: str = ""  # what stands behind it, where the title does not say enough


Rule = tuple[Conditions, Finding]
"""When there is a finding, and which. Its `why` and `cure` are filled in with what is known; without a `why` it is what
the conditions found."""


def check(environment: Fingerprint, configuration: Configuration | None = None) -> list[Finding]:
    """All findings, the worst first. `launcher` and `local_ranks` may be added to an environment; without a
    configuration (dotted name -> resolved value) it is checked alone."""
    settings = with_bare_names(configuration)
    return worst_first(holding(environment, {**settings, **facts(environment, settings)}))


def holding(environment: Fingerprint, known: Configuration) -> list[Finding]:
    """The findings whose conditions hold, in the order of the rules."""
    known = {name: value for name, value in known.items() if value is not None}
    words = environment | {name: f"{it:g}" if isinstance(it, float) else it for name, it in known.items()}
    found: dict[tuple[str, str], Finding] = {}
    for conditions, finding in _rules():
        checked = evaluate(conditions, environment, known)
        if all(condition.holds for condition in checked):
            if finding.why:
                why, cure = finding.why.format_map(words), finding.cure.format_map(words)
            else:
                why, cure = ", ".join(condition.found for condition in checked), finding.cure
            found.setdefault((finding.id, finding.title), replace(finding, why=why, cure=cure))
    return list(found.values())


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Problems, then warnings, then notes; otherwise in the order they came."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _rules() -> Iterator[Rule]:
    for known in load():
        if known.doctor and (asked := known.conditions):
            yield asked, Finding("problem", known.title, "", known.cures[0], known.sources[0], known.id, known.why)
    yield from _table()
    for name, one in every().items():
        if one.instead and one.removed:
            conditions: Conditions = {"packages": dict(one.removed), "parameters": {name: "*"}}
            yield conditions, Finding("problem", f"{name} is gone", "", one.instead, "measured", "removed")


@functools.cache
def _table() -> tuple[Rule, ...]:
    rows = msgspec.yaml.decode((Path(__file__).parent / "rules.yaml").read_bytes())
    return tuple((row.pop("conditions"), Finding(**row)) for row in rows)


def facts(environment: Fingerprint, settings: Configuration) -> dict[str, Value]:
    """What rules ask for besides settings; what is not the case, or not known, is None."""
    packages, variables = environment.get("packages") or {}, environment.get("variables") or {}
    cublas, gpus = environment.get("cublas") or Cublas(), len(environment.get("gpus") or [])
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    # Where there is no whole fingerprint, what is absent may only not have been recorded.
    whole = environment.get("python") and "error" not in environment
    cuda, driver = _pair(environment.get("cuda")), _pair(environment.get("driver"))
    shadow, loaded = cublas.get("version") and cublas.get("shadowed_by"), cublas.get("loaded_from")
    known: dict[str, Value] = {
        "gpu_below_7_5": _gpu(environment, (0, 0), (7, 5)),
        "gpu_below_8_0": _gpu(environment, (0, 0), (8, 0)),
        "gpu_from_10_0": _gpu(environment, (10, 0), (99, 0)),
        "visible_gpus": gpus if visible is None else min(gpus, len([one for one in visible.split(",") if one])),
        "sharded": bool(settings.get("fsdp")) or str(variables.get("ACCELERATE_USE_FSDP")).lower() in ("1", "true"),
        "adapter": bool(settings.get("use_peft")) or any(name.startswith("peft.") for name in settings),
        "broken_batch": _broken_batch(packages, settings),
    }
    if whole and "torch" not in packages:
        known["without_torch"] = environment.get("executable") or "this interpreter"
    if whole and not set(packages) & set(TRAINERS):
        known["without_trainer"] = ", ".join(TRAINERS)
    if driver and cuda and driver[0] < (needed := DRIVERS.get(cuda[0], 0)):
        known["driver_needed"] = needed
    if 0 < gpus < (environment.get("local_ranks") or 0):
        known["too_few_gpus"] = gpus
    if shadow and loaded in (None, shadow):  # nobody has looked, or it is so
        known["shadow_loaded" if loaded else "shadow_likely"] = shadow
    return known


def _pair(version: object) -> tuple[int, int] | None:
    found = re.match(r"(\d+)(?:\.(\d+))?", str(version or ""))
    return (int(found[1]), int(found[2] or 0)) if found else None


def _gpu(environment: Fingerprint, least: tuple[int, int], below: tuple[int, int]) -> str | None:
    """The first GPU whose compute capability lies in a range."""
    for gpu in environment.get("gpus") or []:
        capability = _pair(gpu.get("compute_capability")) or ((10, 0) if BLACKWELL.search(gpu["name"]) else None)
        if capability and least <= capability < below:
            return gpu["name"]
    return None


def _broken_batch(packages: Mapping[str, str], settings: Configuration) -> int | None:
    """Completions of a generation batch that holds no whole number of groups."""

    def count(*names: str) -> int | None:
        return next((one for name in names if isinstance(one := settings.get(name), int) and one), None)

    generations, batch = count("num_generations"), count("per_device_train_batch_size")
    # What counts differs: prompts before TRL 0.15 (any batch is whole), completions since; none of the accumulation
    # steps in 0.15 and 0.16, all of them from 0.17 on.
    trl = _pair(packages.get("trl")) or (1, 0)
    if generations is None or batch is None or generations < 2 or trl < (0, 15):
        return None
    processes = count("launch.num_processes", "num_processes") or 1
    steps = count("steps_per_generation", "gradient_accumulation_steps") or 1
    size = count("generation_batch_size") or batch * processes * (steps if trl >= (0, 17) else 1)
    return size if size % generations else None
