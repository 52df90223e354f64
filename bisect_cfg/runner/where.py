"""Where a failure happens: from what the instruments of one run saw to a step, a module, an operation and a line.

Pure: the run itself is `bisect_cfg.study.locate`, the instruments are `bisect_cfg.probe.instruments`. Which place it is
depends on the failure:

- weights that are not finite: the first operation that made NaN out of finite numbers. An infinity alone is often
  meant, or harmless, so it counts only where no NaN follows;
- an exception: where it was raised, and the module that was being computed;
- a fatal signal: what was being computed, the Python stack by faulthandler, the native one by gdb;
- a run that quietly stops learning: the step that moved the weights furthest.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from bisect_cfg.common.cells import named
from bisect_cfg.probe.protocol import Event, Frame, InstrumentsOn, LastOperation, Operation, Overflow, Raised, Update
from bisect_cfg.runner.traces import stack_frames
from bisect_cfg.store.causes import Part

BY_UPDATES = ("collapse", "diverged")
"""Silent kinds that an update of the weights brings about; the others have no place in the computation."""

RERUN = ("signal", "non-finite", "exception", "cuda-assert", "cuda-error", *BY_UPDATES)
"""Kinds of failure about which another run tells more. A hang and a lack of memory would only happen again."""

SENT_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")
"""Signals that say nothing of where the process was."""

_NATIVE = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(?P<name>.+?)(?: (?:from|at) (?P<place>\S+))?$")
_HANDLER = "<signal handler called>"

# How a signal was raised, not what was being done.
_RAISING = re.compile(r"^(?:__)?(?:GI_)?(?:pthread_kill|raise|abort|kill|libc_message|libc_fatal|assert_fail)\w*")
# The machinery around every operation of torch.
_MACHINERY = re.compile(
    r"^(?:c10::function_ref|c10::impl|c10::Dispatcher|at::TensorIteratorBase|at::_ops|std::|__gnu|_Py|Py[A-Z]|\?\?)"
)

# Frames between the line that matters and the instruments.
_BETWEEN = re.compile(
    r"/bisect_cfg/probe/|/torch/(?:_ops|_compile|_tensor)\.py|/torch/(?:_dynamo|utils|autograd)/|/nn/modules/module\.py"
    r"|/contextlib\.py|<string>"
)
_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages/|lib(?:64)?/(?=python3\.\d+/))")
# Of autograd's own record of the forward pass.
_FORWARD = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


class Where(Part, frozen=True):
    """A place, and the run that showed it. Texts are "" where they are not known."""

    same_failure: bool = True  # whether that run failed in the same way
    folder: str = ""  # of that run
    seconds: float = 0.0
    note: str = ""
    step: int | None = None  # optimizer step, counted from 1
    module: str = ""  # of the model, "model.layers.0.mlp.down_proj"; "" outside of it
    operation: str = ""  # what was computed: "AdamW.step: addcdiv_", "MulBackward0"
    line: str = ""  # the innermost Python line that means something, "torch/optim/adam.py:547 in adam"
    native: str = ""  # the innermost native function that means something, with its library
    text: str = ""  # one sentence on what happened there
    frames: tuple[str, ...] = ()  # of Python, outermost first
    native_frames: tuple[str, ...] = ()  # innermost first

    def __bool__(self) -> bool:
        return bool(self.module or self.operation or self.line or self.native)


def locate(
    kind: str,
    events: Sequence[Event],
    stacks: str = "",
    native: str = "",
    place: LastOperation | None = None,
    done: int = 0,
) -> Where:
    """The place of a failure.

    Args:
        kind: of the failure (see `signature.Signature`).
        events, stacks, native: of the instrumented run, of faulthandler, of gdb.
        place: what was being computed when the process died.
        done: the last step of which it told metrics.
    """
    if kind == "signal":
        return _signal(stacks, native, place or LastOperation(), done)
    if kind == "non-finite":
        return _non_finite(events, done)
    if kind in BY_UPDATES:
        return _silent(events)
    if kind == "hang":
        return _at(_stack(stacks), text="it waits here")
    return _exception(events, done)


# ------------------------------------------------------------------------------------------------------- by failure


def _at(frames: tuple[str, ...], *, module: str = "", operation: str = "", **known: Any) -> Where:
    """A place with these Python frames; a step of the optimizer is an operation, and in no module."""
    if module.endswith(".step"):
        operation, module = f"{module}: {operation}", ""
    return Where(module=module, operation=operation, line=frames[-1] if frames else "", frames=frames, **known)


def _non_finite(events: Sequence[Event], done: int) -> Where:
    broken = next((row for row in events if isinstance(row, Update) and row.broken), None)
    operations = [row for row in events if isinstance(row, Operation) and (broken is None or row.step <= broken.step)]
    if not operations:
        return _overflow(events, done) if broken is None else _update(broken, broken.broken, _breaks(broken))
    first = next((row for row in operations if row.what == "nan"), operations[0])
    frames, operation = _frames(first.frames), _plain(first.operation)
    text = f"the first {'NaN' if first.what == 'nan' else 'infinity'} out of finite numbers"
    if first.backward:
        operation = f"{first.backward}: {operation}"
        frames = (*frames, *_frames(_forward(first.forward)))
        text += ", in the backward pass"
    where = _at(frames, step=first.step, module=first.module, operation=operation, text=text)
    if where.module or broken is None:
        return where
    return replace(where, module=_module_of(broken.broken), text=f"{text}; {_breaks(broken)}")


def _breaks(row: Update) -> str:
    others = row.broken_count - 1
    return f"it breaks {row.broken}" + (f" and {others} other weights" if others > 0 else "")


def _overflow(events: Sequence[Event], done: int) -> Where:
    inner = _exception(events, done)
    row = next((row for row in events if isinstance(row, Overflow)), None)
    if row is None:
        return inner
    return replace(inner, step=row.step, module=row.module, operation="forward", text="its output is not finite")


def _exception(events: Sequence[Event], done: int) -> Where:
    row = next((row for row in reversed(events) if isinstance(row, Raised)), None)
    if row is None:
        return Where()
    started = [one for one in events if isinstance(one, (InstrumentsOn, Update))]
    step = max(started[-1].step, done + 1) if started else None  # an update may be that of the step before
    operation = next((function for path, _, function in reversed(row.frames) if not _BETWEEN.search(path)), "")
    return _at(_frames(row.frames), step=step, module=row.computing, operation=operation, text=row.beyond)


def _signal(stacks: str, native: str, place: LastOperation, done: int) -> Where:
    functions, step = native_frames(native), place.step
    if step is not None and step <= done:  # it died before the instruments had seen the next one begin
        step = done + 1
    return _at(
        _stack(stacks),
        step=step,
        module=str(place.module),
        operation=_plain(str(place.operation)),
        native=innermost(functions),
        native_frames=functions,
    )


def _silent(events: Sequence[Event]) -> Where:
    updates = [row for row in events if isinstance(row, Update) and row.parameter]
    if not updates:
        return Where()
    largest = max(updates, key=lambda row: row.relative)
    text = f"this update moves {largest.parameter} by {largest.relative:.0%} of its size, the most of all"
    return _update(largest, str(largest.parameter), text)


def _update(row: Update, parameter: str, text: str) -> Where:
    return Where(step=row.step, module=_module_of(parameter), operation=f"{row.optimizer}.step", text=text)


# ----------------------------------------------------------------------------------------------------- native frames


def native_frames(text: str) -> tuple[str, ...]:
    """The functions under the fault, innermost first, as ``name (library)``, from gdb's backtrace.

    Frames above the last signal handler show how the signal was handled, and the next ones how it was raised; neither
    is what was being computed.
    """
    found: list[str] = []
    for line in text.rpartition(_HANDLER)[2].splitlines():
        if match := _NATIVE.match(line.strip()):
            name = without_templates(match["name"])
            if name == "??" and not match["place"]:  # gdb has lost the stack
                break
            library = (match["place"] or "").rpartition("/")[2]
            found.append(f"{name} ({library})" if library else name)
    return tuple(itertools.dropwhile(_RAISING.match, found))


def innermost(functions: Sequence[str]) -> str:
    """The innermost function that is no machinery of torch's, "" if there is none."""
    return next((name for name in functions if not _MACHINERY.match(name)), functions[0] if functions else "")


def without_templates(name: str) -> str:
    """A C++ function's name without its type and its arguments, up to its first template argument.

    >>> without_templates("void at::native::run<float, std::pair<int, int> >(at::Tensor const&)")
    'at::native::run'
    """
    name = re.split(r"[<(]", name.replace("(anonymous namespace)", "{anonymous}"))[0].strip()
    return name.rpartition(" ")[2].replace("{anonymous}", "(anonymous namespace)")


# ----------------------------------------------------------------------------------------------------- Python frames


def _stack(stacks: str) -> tuple[str, ...]:
    """The frames of the thread that died (of the main thread in a hang), outermost first."""
    return _frames(stack_frames(stacks)[::-1])


def _frames(rows: Iterable[Frame]) -> tuple[str, ...]:
    return tuple(named(path, line, function, short) for path, line, function in rows if not _BETWEEN.search(str(path)))


def _forward(lines: Sequence[str]) -> list[Frame]:
    """Frames of the forward pass that an operation of the backward pass belongs to."""
    found = filter(None, map(_FORWARD.search, lines))
    return [(match["path"], int(match["line"]), match["function"]) for match in found]


def short(path: str) -> str:
    """A path as people name it: from the package down, or from Python's own library; of the user's files the name."""
    return _LIBRARY.sub("", path) if _LIBRARY.match(path) else path.rpartition("/")[2]


def _plain(operation: str) -> str:
    """``addcdiv_`` of ``aten.addcdiv_.default``."""
    parts = operation.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else operation


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter
