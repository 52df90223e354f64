"""Where the models of a run are, and what is odd about it. Pure: what the probe saw in, sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bisect_cfg.explain import knowledge
from bisect_cfg.probe.protocol import PlacedModel

Placements = Mapping[int, list[PlacedModel]]
"""By rank (0 where there is one process), what `protocol.Placed` tells."""


@dataclass(frozen=True)
class PlacementFinding:
    """Something odd."""

    kind: str  # "meta", "split", "elsewhere" or "data-parallel"
    text: str  # a sentence without its dot
    issue: str = ""  # id of the known issue that fits, "" if none does
    source: str = ""  # of that


def findings(placements: Placements, distributed_type: str = "") -> list[PlacementFinding]:
    """What is odd about where the models are; what holds on several ranks is said once, of the first. The distributed
    type is accelerate's ("MULTI_GPU", "FSDP"); "" if unknown."""
    found: dict[tuple[str, str], PlacementFinding] = {}
    for rank, models in sorted(placements.items()):
        on = f" on rank {rank}" if len(placements) > 1 else ""
        for subject, finding in _of_one(models, on, distributed_type):
            found.setdefault((finding.kind, subject), finding)
    return list(found.values())


def _of_one(models: list[PlacedModel], on: str, distributed_type: str) -> Iterator[tuple[str, PlacementFinding]]:
    """(what it is about, the finding) of one process."""
    policy = next((_devices(model) for model in models if model.role == "policy"), Counter[str]())
    for model in models:
        devices = _devices(model)
        subject = "The policy" if model.role == "policy" else f"The {model.role} model"
        if "meta" in devices:
            text = f"{subject} is {_share(devices, 'meta')} on the device meta{on}, where weights have no values: "
            yield subject, PlacementFinding("meta", f"{text}it was never loaded, or it is offloaded")
        real, theirs = devices.keys() - {"meta"}, policy.keys() - {"meta"}
        if len(real) > 1:
            parts = " and ".join(f"{_share(devices, one)} on {one}" for one in devices if one in real)
            yield subject, PlacementFinding("split", f"{subject} is {parts}{on}")
        if model.role != "policy" and real and theirs and theirs.isdisjoint(real):
            sharded = model.role == "reference" and "FSDP" in distributed_type
            text = f"{subject} is on {' and '.join(sorted(real))}{on}, and the policy on {' and '.join(sorted(theirs))}"
            yield subject, _known("elsewhere", text, "fsdp-reference-model" if sharded else "")
        if model.wrapper == "DataParallel":
            text = "One process drives several GPUs (nn.DataParallel), which TRL does not support: start it with"
            text += " accelerate launch, or show it one GPU (CUDA_VISIBLE_DEVICES=0)"
            yield subject, _known("data-parallel", text, "several-gpus-one-process")


def _known(kind: str, text: str, issue: str) -> PlacementFinding:
    entry = next((entry for entry in knowledge.load() if entry.id == issue), None)
    return PlacementFinding(kind, text, issue, entry.sources[0] if entry is not None else "")


def _devices(model: PlacedModel) -> Counter[str]:
    """Numbers of a model by device."""
    counted: Counter[str] = Counter()
    for part in model.weights:
        counted[part.device] += part.count
    return counted


def _share(devices: Counter[str], device: str) -> str:
    """``80 %``, ``less than 1 %``, ``100 %`` only for all of it."""
    percent = 100 * devices[device] / max(1, devices.total())
    return "less than 1 %" if percent < 1 else f"{round(percent) if percent == 100 else min(round(percent), 99)} %"
