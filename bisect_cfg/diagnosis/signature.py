"""What makes two failures the same one.

A bisection asks of every failing trial: is this the failure under study, or another one that the subset
happened to hit? The answer is a *signature*: the kind of failure, its name (which signal, which exception,
which quantity went non-finite), its message without all that changes from run to run, and the innermost frame
that means something. Two failures are the same one if kind, name and message agree, and the place too where
both know it.

The place does not count where it is an accident. A CUDA error surfaces at whatever call happens to
synchronise next; memory runs out at whichever allocation comes one too late; NaN is noticed by whoever looks
first. For a device-side assertion the asserted condition counts instead.

    from_exception   an exception caught inside the process
    from_exit        an exit status, and what the process printed
    from_log         a log alone, of any size
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import BinaryIO

from bisect_cfg.diagnosis import _logs
from bisect_cfg.diagnosis._plain_text import normalise
from bisect_cfg.diagnosis._types import Json

__all__ = ["Signature", "from_exception", "from_exit", "from_log", "is_sampling_error", "normalise"]

SILENT_KINDS = ("collapse", "diverged", "no-gradient", "dead-reward")
"""Kinds of a run that neither dies nor computes anything non-finite, and learns nothing."""

PLACELESS = {
    "cuda-assert",
    "cuda-error",
    "out-of-memory",
    "non-finite",
    "hang",
    "signal",
    *SILENT_KINDS,
}
"""Kinds whose place is an accident of timing, so `Signature.same` leaves it out."""

SENT_BY_OTHERS = ("SIGABRT", "SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")
"""Signals that often follow a failure instead of being it: a launcher ends the other ranks, the NCCL watchdog
aborts a process whose peer died. An explanation in the log goes before these."""

_PROBABLE_HOST_MEMORY = "killed from outside, probably by the kernel because the host ran out of memory"

_CUDA_OOM = re.compile(r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator: .*(?:can't|not enough) |Cannot allocate memory|Unable to allocate .* for an array"
)
_CUDA_ERROR = re.compile(
    r"an? (?P<what>illegal memory access|illegal instruction|misaligned address)(?: was)? encountered"
    r"|CUDA error: (?P<error>unspecified launch failure|misaligned address"
    r"|CUBLAS_STATUS_(?:EXECUTION|INTERNAL)\w*)"
)

# Frames that say how a call was made, not what was being done.
_MACHINERY = (
    "contextlib",
    "functools",
    "threading",
    "runpy",
    "importlib",
    "concurrent.",
    "multiprocessing.",
    "asyncio.",
    "torch.nn.modules.module",
    "torch.utils._contextlib",
    "torch.utils._device",
    "torch.utils.checkpoint",
    "torch._tensor",
    "torch.autograd",
    "torch._ops",
    "torch._dynamo",
    "torch._compile",
    "bisect_cfg.",
)
# A checkout of one of these may lie in any folder; its modules are still named from the package down.
_PACKAGES = {
    "accelerate", "deepspeed", "openrlhf", "peft", "torch", "transformers", "trl", "unsloth", "verl", "vllm",
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """What makes two failures the same one.

    Args:
        kind: `signal`, `exception`, `cuda-assert`, `cuda-error`, `out-of-memory`, `non-finite`, `hang`,
            `collapse`, `diverged`, `no-gradient`, `dead-reward`, `no-steps`, `no-training`, `unwatched`, `invalid` or
            `exit`.
        name: Which one of its kind: the signal, the exception's type, the quantity (`parameters`).
        message: The normalised message, one line.
        where: The innermost meaningful frame as `module:function`; "" if unknown.
    """

    kind: str
    name: str = ""
    message: str = ""
    where: str = ""

    def __str__(self) -> str:
        text = self.name or self.kind
        if self.kind not in ("signal", "exception") and self.name:
            text = f"{self.kind} ({self.name})"
        if self.message:
            text += f": {self.message}"
        return f"{text} [{self.where}]" if self.where else text

    def same(self, other: Signature) -> bool:
        """Whether two failures are the same one."""
        if (self.kind, self.name, self.message) != (other.kind, other.name, other.message):
            return False
        if self.kind in PLACELESS or not self.where or not other.where:
            return True
        return self.where == other.where

    def to_json(self) -> dict[str, str]:
        """A dictionary of strings, for a study's attributes and `result.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> Signature:
        """The inverse of `to_json`; unknown keys of later versions are left out."""
        return cls(**{name: str(data.get(name, "")) for name in ("kind", "name", "message", "where")})


def is_sampling_error(signature: Signature) -> bool:
    """Whether generation met probabilities that are NaN, infinite or all zero.

    Normally the consequence of weights that went non-finite in the optimizer step before: look there first.
    """
    return "probability tensor contains either" in signature.message or (
        "invalid multinomial distribution" in signature.message
    )


def from_exception(type_name: str, message: str, frames: Sequence[tuple[str, str]], log_text: str = "") -> Signature:
    """The signature of an exception.

    Args:
        type_name: The exception's type, with or without its module.
        message: `str(exception)`.
        frames: File name and function of its traceback, outermost first.
        log_text: What the process printed. A device-side assertion is named only there.
    """
    name = type_name.rpartition(".")[2]
    where = _where(frames)
    if "device-side assert triggered" in message:
        evidence = _logs.read(io.BytesIO(log_text.encode("utf-8", "replace")))
        return _assertion(evidence) or Signature("cuda-assert", "", "device-side assert triggered", where)
    if type_name.startswith("ray.") and "OutOfMemoryError" in name:  # Ray watches the machine's memory, not the GPU's
        return Signature("out-of-memory", "host", "", where)
    if "OutOfMemoryError" in name or _CUDA_OOM.search(message):
        return Signature("out-of-memory", "host" if _HOST_OOM.search(message) else "GPU", "", where)
    if name == "MemoryError" or _HOST_OOM.search(message):
        return Signature("out-of-memory", "host", "", where)
    found = _CUDA_ERROR.search(message)
    if found:
        return Signature("cuda-error", found["what"] or found["error"], "", where)
    return Signature("exception", name, normalise(message), where)


def from_exit(returncode: int, log: str | bytes | os.PathLike[str] = "") -> Signature | None:
    """The signature of a process that ended, None if it ended well.

    Args:
        returncode: As `subprocess` gives it (negative for a signal) or as a shell does (128 + signal).
        log: What it printed, or the path of a file that has it.
    """
    if returncode == 0:
        return None
    evidence = _read(log)
    own = _signal_of(returncode)
    if own and own not in SENT_BY_OTHERS:
        return _assertion(evidence) or Signature("signal", own)
    printed = from_evidence(evidence)
    if own and (printed is None or printed.kind == "signal"):
        printed = printed if printed and printed.name not in SENT_BY_OTHERS else _signal(own, evidence)
    return printed or Signature("exit", str(returncode))


def from_log(stream: BinaryIO) -> Signature | None:
    """The signature of the failure that a log shows, None if it shows none. Reads the stream in blocks."""
    return from_evidence(_logs.read(stream))


def _read(log: str | bytes | os.PathLike[str]) -> _logs.LogEvidence:
    if isinstance(log, os.PathLike):
        try:
            with open(log, "rb") as stream:
                return _logs.read(stream)
        except OSError:  # a process that dies early may not have opened its log
            return _logs.LogEvidence()
    return _logs.read(io.BytesIO(log.encode("utf-8", "replace") if isinstance(log, str) else log))


def from_evidence(evidence: _logs.LogEvidence) -> Signature | None:
    """The signature of the failure that a log's evidence shows."""
    asserted = _assertion(evidence)
    if asserted:
        return asserted
    direct = [name for name in evidence.signals if name not in SENT_BY_OTHERS]
    if direct:
        return Signature("signal", min(direct, key=evidence.signals.__getitem__))
    tracebacks = [] if evidence.progress and evidence.signals else evidence.tracebacks
    tracebacks = [*tracebacks, *([evidence.bare] if evidence.bare else [])]
    tracebacks = [one for one in tracebacks if one.type_name.rpartition(".")[2] not in _logs.WRAPPERS]
    if tracebacks:
        first = tracebacks[0]
        return from_exception(first.type_name, first.message, first.frames)
    if evidence.signals:
        return _signal(min(evidence.signals, key=evidence.signals.__getitem__), evidence)
    if evidence.host_memory is not None:
        return Signature("out-of-memory", "host")
    if evidence.tracebacks:
        first = evidence.tracebacks[0]
        return from_exception(first.type_name, first.message, first.frames)
    return None


def _assertion(evidence: _logs.LogEvidence) -> Signature | None:
    if evidence.assertion is None:
        return None
    kernel, condition, _ = evidence.assertion
    return Signature("cuda-assert", kernel, normalise(condition))


def _signal(name: str, evidence: _logs.LogEvidence) -> Signature:
    if name == "SIGKILL":
        if evidence.host_memory is not None:
            return Signature("out-of-memory", "host")
        return Signature("signal", name, _PROBABLE_HOST_MEMORY)
    return Signature("signal", name)


def _signal_of(returncode: int) -> str | None:
    return _logs.signal_name(-returncode if returncode < 0 else returncode - 128)


def _where(frames: Sequence[tuple[str, str]]) -> str:
    named = [(_module(file), function) for file, function in frames]
    for module, function in reversed(named):
        if module and not module.startswith(_MACHINERY):
            return f"{module}:{function}"
    return ""


def _module(file: str) -> str:
    """The dotted module of a source file, the same on every machine; "" where there is no file."""
    if "ipykernel" in file or file.startswith(("<ipython-input", "<stdin>")):
        return "__main__"
    if file.startswith("<"):
        return ""
    parts = re.split(r"[/\\]", file)
    parts[-1] = parts[-1].removesuffix(".py")
    start = len(parts) - 1  # a user's script: its place on disk says nothing
    for index, part in enumerate(parts[:-1]):
        if part in ("site-packages", "dist-packages") or re.fullmatch(r"python3\.\d+", part):
            start = index + 1
    if start == len(parts) - 1:
        start = next((index for index in reversed(range(start)) if parts[index] in _PACKAGES), start)
    return ".".join(parts[start:]).removesuffix(".__init__")
