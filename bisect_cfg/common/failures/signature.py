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

from bisect_cfg.common.failures.excerpt import LogLine, read_excerpt
from bisect_cfg.common.failures.health import SILENT_KINDS
from bisect_cfg.common.failures.signals import SENT_BY_OTHERS, signal_name, signals
from bisect_cfg.common.failures.tracebacks import Traceback, source_of, tracebacks
from bisect_cfg.common.json_files import Json
from bisect_cfg.common.text import normalise

__all__ = ["Signature", "from_exception", "from_exit", "from_log", "is_sampling_error", "normalise"]

PLACELESS = {"cuda-assert", "cuda-error", "out-of-memory", "non-finite", "hang", "signal", *SILENT_KINDS}
"""Kinds whose place is an accident of timing, so `Signature.same` leaves it out."""

WRAPPERS = {
    "CalledProcessError",
    "DatasetGenerationError",
    "ChildFailedError",
    "ProcessRaisedException",
    "ProcessExitedException",
    "SignalException",
    "RayTaskError",
    "ActorDiedError",
    "RayActorError",
}
"""Exceptions of launchers and of builders, which say only that something under them failed."""

ASSERTION = re.compile(
    r"(?P<kernel>[\w:<>~]+)(?:\([^\n]*?\))?: block: \[[^\]]*\], thread: \[[^\]]*\] "
    r"Assertion `(?P<assertion>.*)` failed"
)
"""What CUDA prints for each thread of a kernel that fails an assertion."""

PROGRESS = re.compile(r"\{.{0,200}'(?:loss|grad_norm)': ")
"""A row of the Trainer's metrics: training went on after what stands before it."""

HOST_MEMORY = re.compile(
    r"[Oo]ut of memory: Killed process|oom[-_]kill|OOM Killed|ray\.exceptions\.OutOfMemoryError|OOMKilled"
    r"|(?<!_)OUT_OF_MEMORY|TERM_MEMLIMIT|Out Of Memory"
)
"""What the kernel, a container's runtime or a scheduler says where a machine's memory was full."""

_BARE = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>.+)$")
"""An exception without its traceback, as people paste it."""

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
@dataclass(frozen=True)
class Signature:
    """What makes two failures the same one.

    Its kind is `signal`, `exception`, `cuda-assert`, `cuda-error`, `out-of-memory`, `non-finite`, `hang`, `collapse`,
    `diverged`, `no-gradient`, `dead-reward`, `engine-drifts`, `no-steps`, `no-training`, `unwatched`, `refused`,
    `invalid` or `exit`.
    """

    kind: str
    name: str = ""  # which one of its kind: the signal, the exception's type, the quantity (`parameters`)
    message: str = ""  # normalised, one line
    where: str = ""  # the innermost meaningful frame as `module:function`; "" if unknown

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
    text = signature.message
    return "probability tensor contains either" in text or "invalid multinomial distribution" in text


def from_exception(
    type_name: str, message: str, frames: Sequence[tuple[str, str]], log: str | os.PathLike[str] = ""
) -> Signature:
    """The signature of an exception.

    Args:
        type_name: with or without its module.
        message: `str(exception)`.
        frames: file name and function of its traceback, outermost first.
        log: what the process printed, or the path of a file that has it. A device-side assertion is named only there.
    """
    name = type_name.rpartition(".")[2]
    where = _where(frames)
    if "device-side assert triggered" in message:
        return _assertion(_excerpt(log)) or Signature("cuda-assert", "", "device-side assert triggered", where)
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
    """The signature of a process that ended, None if it ended well, by its exit code as `subprocess` gives it (negative
    for a signal) or as a shell does (128 + signal), and what it printed, or the path of a file that has it."""
    if returncode == 0:
        return None
    lines = _excerpt(log)
    own = signal_name(-returncode if returncode < 0 else returncode - 128)
    if own and own not in SENT_BY_OTHERS:
        return _assertion(lines) or Signature("signal", own)
    printed = from_lines(lines)
    if own and (printed is None or printed.kind == "signal"):
        printed = printed if printed and printed.name not in SENT_BY_OTHERS else _signal(own, lines)
    return printed or Signature("exit", str(returncode))


def from_log(stream: BinaryIO) -> Signature | None:
    """The signature of the failure that a log of any size shows, None if it shows none."""
    return from_lines(read_excerpt(stream).lines)


def from_lines(lines: Sequence[LogLine]) -> Signature | None:
    """The signature of the failure that the lines of a log show, None if they show none.

    A dying job prints far more than its cause. A device-side assertion is printed by every GPU thread and poisons all
    later CUDA calls: the first one counts. A traceback that was followed by more training was caught: only later ones
    count, if there are any. Of chained exceptions the last was raised, and launchers wrap it once more.
    """
    if asserted := _assertion(lines):
        return asserted
    progress = max((line.number for line in lines if PROGRESS.search(line.text)), default=0)
    reported = signals(line for line in lines if line.number > progress)
    direct = [name for name in reported if name not in SENT_BY_OTHERS]
    if direct:
        return Signature("signal", min(direct, key=lambda name: reported[name].number))
    printed = [one for one in tracebacks(lines) if one.raised and not one.chained and one.type_name]
    later = [one for one in printed if one.last > progress]
    candidates = later or ([] if reported else printed)
    own = [one for one in candidates if one.type_name.rpartition(".")[2] not in WRAPPERS]
    if first := own[0] if own else _bare(lines, progress):
        return from_exception(first.type_name, first.message, first.places)
    if reported:
        return _signal(min(reported, key=lambda name: reported[name].number), lines)
    if _host_memory(lines):
        return Signature("out-of-memory", "host")
    return from_exception(printed[0].type_name, printed[0].message, printed[0].places) if printed else None


def _excerpt(log: str | bytes | os.PathLike[str]) -> Sequence[LogLine]:
    if isinstance(log, os.PathLike):
        try:
            with open(log, "rb") as stream:
                return read_excerpt(stream).lines
        except OSError:  # a process that dies early may not have opened its log
            return []
    return read_excerpt(io.BytesIO(log.encode("utf-8", "replace") if isinstance(log, str) else log)).lines


def _bare(lines: Sequence[LogLine], progress: int) -> Traceback | None:
    found = ((line, _BARE.match(line.text)) for line in lines if line.number > progress)
    return next((Traceback(type_name=one["type"], message=one["message"]) for _, one in found if one), None)


def _assertion(lines: Sequence[LogLine]) -> Signature | None:
    asserted = (ASSERTION.search(line.text) for line in lines if "Assertion `" in line.text)
    found = next(filter(None, asserted), None)
    return found and Signature("cuda-assert", found["kernel"], normalise(found["assertion"]))


def _host_memory(lines: Sequence[LogLine]) -> bool:
    return any(HOST_MEMORY.search(line.text) for line in lines)


def _signal(name: str, lines: Sequence[LogLine]) -> Signature:
    if name == "SIGKILL":
        if _host_memory(lines):
            return Signature("out-of-memory", "host")
        return Signature("signal", name, _PROBABLE_HOST_MEMORY)
    return Signature("signal", name)


def _where(frames: Sequence[tuple[str, str]]) -> str:
    named = [(source_of(file)[1], function) for file, function in frames]
    for module, function in reversed(named):
        if module and not module.startswith(_MACHINERY):
            return f"{module}:{function}"
    return ""
