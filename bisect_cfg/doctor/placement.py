"""Where the models of a run are, and what is odd about it. Pure: what the probe saw in, sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from bisect_cfg.common.json_files import Json
from bisect_cfg.explain import knowledge
from bisect_cfg.probe.protocol import PlacedModel

Placements = Mapping[int, list[PlacedModel]]
"""By rank (0 where there is one process), what `protocol.Placed` tells."""

SHARDED = ("FSDP", "MULTI_FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Kinds of distribution, as accelerate calls them, under which processes hold different numbers of a model."""

_IN_PERCENT = 100


@dataclass(frozen=True)
class PlacementFinding:
    """Something odd."""

    kind: str  # "meta", "split", "elsewhere", "data-parallel" or "differs"
    text: str  # a sentence without its dot
    issue: str = ""  # id of the known issue that fits, "" if none does
    source: str = ""  # of that

    def to_json(self) -> dict[str, Json]:
        """For result.json."""
        return asdict(self)


def findings(placements: Placements, distributed_type: str = "") -> list[PlacementFinding]:
    """What is odd about where the models are; what holds on several ranks is said once, of the first.

    Args:
        placements: what each process told.
        distributed_type: of the run, as accelerate has it ("MULTI_GPU", "FSDP"); "" if unknown.
    """
    found: dict[tuple[str, str], PlacementFinding] = {}
    for rank, models in sorted(placements.items()):
        on = f" on rank {rank}" if len(placements) > 1 else ""
        for subject, finding in _of_one(models, on, distributed_type):
            found.setdefault((finding.kind, subject), finding)
    return [*found.values(), *_differences(placements, distributed_type)]


def _of_one(models: list[PlacedModel], on: str, distributed_type: str) -> Iterator[tuple[str, PlacementFinding]]:
    """(what it is about, the finding) of one process."""
    policy = next((model for model in models if model.role == "policy"), None)
    for model in models:
        subject, devices = _named(model), _devices(model)
        if "meta" in devices:
            share = _shares(Counter({"meta": devices["meta"], "": devices.total() - devices["meta"]}), "meta")
            text = f"{subject} is {share} on the device meta{on}, where weights have no values: it was never loaded, or"
            yield subject, PlacementFinding("meta", f"{text} it is offloaded")
        real = [device for device in devices if device != "meta"]
        if len(real) > 1:
            parts = " and ".join(f"{_shares(devices, device)} on {device}" for device in real)
            yield subject, PlacementFinding("split", f"{subject} is {parts}{on}")
        theirs = {device for device in _devices(policy) if device != "meta"} if policy is not None else set()
        if model is not policy and real and theirs and theirs.isdisjoint(real):
            sharded = model.role == "reference" and "FSDP" in distributed_type
            text = f"{subject} is on {' and '.join(real)}{on}, and the policy on {' and '.join(sorted(theirs))}"
            yield subject, _finding("elsewhere", text, "fsdp-reference-model" if sharded else "")
        if model.wrapper == "DataParallel":
            text = "One process drives several GPUs (nn.DataParallel), which TRL does not support: start it with"
            text += " accelerate launch, or show it one GPU (CUDA_VISIBLE_DEVICES=0)"
            yield subject, _finding("data-parallel", text, "several-gpus-one-process")


def _differences(placements: Placements, distributed_type: str) -> Iterator[PlacementFinding]:
    """What differs between processes that should hold the same: one finding for each kind of model."""
    (first, ours), *others = sorted(placements.items()) or [(0, [])]
    seen = set()
    for rank, theirs in others:
        for role in dict.fromkeys(model.role for model in (*ours, *theirs)):
            here, there = (_signature(models, role, distributed_type) for models in (ours, theirs))
            if here != there and role not in seen:
                seen.add(role)
                name = next(_named(model) for model in (*ours, *theirs) if model.role == role)
                text = f"{name} differs between the processes: {_words(here)} on rank {first}, {_words(there)} on rank"
                yield PlacementFinding("differs", f"{text} {rank}")


def _signature(models: list[PlacedModel], role: str, distributed_type: str) -> list[tuple[str, str, int | None]]:
    """What of a model should be the same in all processes: kinds of devices, dtypes and, if none is sharded, sizes."""
    counted: Counter[tuple[str, str]] = Counter()
    for model in models:
        if model.role == role:
            for part in model.weights:
                counted[part.device.partition(":")[0], part.dtype] += part.count
    sharded = distributed_type in SHARDED
    return sorted((*key, None if sharded else count) for key, count in counted.items())


def _words(parts: list[tuple[str, str, int | None]]) -> str:
    said = (
        f"{dtype} on {device}" if count is None else f"{count:,} numbers in {dtype} on {device}"
        for device, dtype, count in parts
    )
    return " and ".join(said) or "there is none"


def _finding(kind: str, text: str, issue: str) -> PlacementFinding:
    entry = next((entry for entry in knowledge.load() if entry.id == issue), None)
    return PlacementFinding(kind, text, issue, entry.sources[0] if entry is not None else "")


def _named(model: PlacedModel) -> str:
    return "The policy" if model.role == "policy" else f"The {model.role} model"


def _devices(model: PlacedModel) -> Counter[str]:
    counted: Counter[str] = Counter()
    for part in model.weights:
        counted[part.device] += part.count
    return counted


def _shares(devices: Counter[str], device: str) -> str:
    """``80 %``, ``less than 1 %``, ``100 %`` only for all of it."""
    share = devices[device] / max(1, devices.total())
    if share == 1:
        return f"{_IN_PERCENT} %"
    if share < 1 / _IN_PERCENT:
        return "less than 1 %"
    return f"{min(round(share * _IN_PERCENT), _IN_PERCENT - 1)} %"
