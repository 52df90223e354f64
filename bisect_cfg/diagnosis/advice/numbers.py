"""Shapes, types of numbers and devices that do not match; an operation that the GPU refused."""

from __future__ import annotations

import re

from bisect_cfg.diagnosis.advice.reading import (
    TOOLS,
    Advice,
    RaisedError,
    belongs_to,
    called,
    declared_range,
    how_to_install,
    place_of,
)

_SHAPES = re.compile(
    r"size of tensor|[Ss]izes? of tensors|[Ss]izes? must match|mat1 and mat2|expanded size|broadcast"
    r"|shape '\[.*\]' is invalid|cannot reshape|split_with_sizes|index_\w+\(\)|same reduction dim|stack expects"
    r"|[Dd]imension out of range|[Nn]umber of dimensions|size mismatch|shape mismatch"
    r"|shape of the (?:mask|\w+ tensor)|inconsistent tensor|batch_size \(|[Ee]xpected size for|[Tt]ensors must have"
    r"|shapes? .{0,80}(?:mismatch|do(?:es)?(?: not|n't) match|not aligned: |incompatible)|same (?:shape|size|length)"
    r"|(?:expected|got) .{0,40}\bshapes?\b|\bshapes? .{0,60}\b(?:expected|got)\b|\bd?imensions? .{0,60}\bgot\b"
)
"""Messages about tensors that do not fit each other; a word of shapes alone may be about anything."""


_DTYPES = re.compile(
    r"(?<!numpy\.)dtype|same type|scalar type|expected \w+ (?:type )?but (?:got|found) \w+|Half|BFloat16"
    r"|bfloat16 != |Float and|FloatTensor"
)


_DEVICES = re.compile(
    r"same device|two devices|device meta|on cpu|device type|cuda:\d|Torch not compiled with CUDA"
    r"|is on device"
)


_SHARDED = re.compile(r"\bDTensors?\b")


def mismatch(read: RaisedError) -> Advice | None:
    """Shapes, types of numbers or devices that do not match, by where in a run they met."""
    if (
        read.type
        not in (
            "RuntimeError",
            "ValueError",
            "AssertionError",
            "IndexError",
            "TorchRuntimeError",
            "TypeError",
            "InternalTorchDynamoError",
        )
        or not read.message
    ):
        return None
    message = read.message
    if _SHARDED.search(message):
        return _sharded(read)
    kind = next(
        (
            name
            for name, pattern in (("devices", _DEVICES), ("dtypes", _DTYPES), ("shapes", _SHAPES))
            if pattern.search(message)
        ),
        "",
    )
    if not kind or not (read.frames or kind != "shapes"):
        return None
    frame, where = read.caller if read.cut else read.raiser, read.place()
    whose, place = belongs_to(frame), place_of(frame)
    noun = {
        "devices": "Devices of tensors did not fit",
        "dtypes": "Number types of tensors did not fit",
        "shapes": "Shapes of tensors did not fit",
    }[kind]
    says = f"{noun}{' ' + where if where else ''}" + (
        f", below {place}." if read.cut else f", in {whose} ({place})." if frame else "."
    )
    sync = where.startswith("while weights")
    if kind == "dtypes":
        first = (
            "load the trained model in the type the engine has (torch_dtype=bfloat16, or the "
            "engine's dtype), or cast before weights are sent"
            if sync
            else "one type throughout: bf16=True with torch_dtype=bfloat16 (or float32 "
            "everywhere); a layer that was left in another type (lm_head, adapter, value "
            "head) is cast to the model's"
        )
    elif kind == "devices":
        first = (
            "move what the line reads to the other tensor's device (.to(x.device)); no device_map "
            "in training; everything that goes into the model through accelerator.prepare or "
            ".to(device)"
        )
    elif sync:
        first = (
            "both sides must hold the same model: same folder, no added tokens on one side, no "
            "quantization; and the parallel sizes that the weights were cut for"
        )
    elif "vision" in where:
        first = (
            "the number of image tokens in the prompt and what the images give must agree: no "
            "cutting of prompts with images (max_prompt_length), the processor of the same "
            "version as the model"
        )
    elif "attention" in where or "rotary" in where:
        first = (
            "another attn_implementation (sdpa, eager) as a check; use_cache off with gradient "
            "checkpointing; position ids and mask of the same length as the tokens"
        )
    else:
        first = (
            "print the shapes on that line with a batch of one: it shows which side was cut or "
            "padded (truncation, an answer too few, a mask made elsewhere)"
        )
    steps = [first]
    if frame and frame.package:
        steps.append(
            f"the line is {called(frame.package)}'s: a newer {called(frame.package)} "
            f"({how_to_install(frame.package)}) with the versions it asks for, if the settings do not "
            f"explain it"
        )
    return Advice(kind, says, tuple(steps), place)


def _sharded(read: RaisedError) -> Advice:
    """A tensor of FSDP2 or of tensor parallelism met a plain one."""
    frame, where = read.caller, read.place()
    met = "met a plain one" if "mixed" in read.message else "was used in a way that fails"
    says = (f"A sharded tensor (DTensor, of FSDP2 or tensor parallelism) {met}{' ' + where if where else ''}") + (
        f", in {belongs_to(frame)} ({place_of(frame)})." if frame else "."
    )
    trainer = next(
        (one.package for one in reversed(read.frames) if one.package not in ("", "python", "vllm", "sglang", *TOOLS)),
        "",
    )
    engine = next((one.package for one in reversed(read.frames) if one.package in ("vllm", "sglang")), "torch")
    steps = (
        "where weights are handed over, they have to be gathered first (param.full_tensor()): "
        + (
            f"a newer {called(trainer)} may do so for its version of torch and {called(engine)}"
            if trainer
            else "update the trainer"
        ),
        f"the versions of torch{' and ' + called(engine) if engine != 'torch' else ''} that "
        f"{called(trainer) if trainer else 'it'} "
        f"names{declared_range(trainer, 'torch') if trainer else ''}",
        "FSDP1 in place of FSDP2 (fsdp_version), or without tensor parallelism, as a check",
    )
    return Advice("weights", says, steps, place_of(frame))


def refused_by_gpu(read: RaisedError) -> Advice | None:
    """The GPU refused an operation."""
    found = re.search(
        r"(?:(?:CUDA|HIP|NPU|XPU|MUSA)(?: runtime)? error: )?(?P<what>CUBLAS_STATUS_\w+"
        r"|CUDNN_STATUS_\w+)",
        read.message,
    )
    found = found or re.search(r"(?:CUDA|HIP|NPU|XPU|MUSA)(?: runtime)? error: (?P<what>[^.\n]{3,80})", read.message)
    if not found:
        return None
    frame = read.caller
    where = read.place() if read.frames and read.frames[-1].package == "torch" else ""
    says = (
        (f"The GPU refused an operation ({found['what'].split(' CUDA kernel')[0].split(' HIP kernel')[0].strip()})")
        + (f" {where}" if where else "")
        + (f", or one before {place_of(frame)}: kernels run later than they are called." if frame else ".")
    )
    steps = (
        "CUDA_LAUNCH_BLOCKING=1 (HIP: AMD_SERIALIZE_KERNEL=3) for one short run: the traceback "
        "then ends at the operation itself",
        "the same step on the CPU, or with a smaller batch: an index out of range and a full GPU both end like this",
        "python -m torch.utils.collect_env: the torch build, the driver and the GPU must fit each other",
    )
    return Advice("gpu", says, steps, place_of(frame))
