"""Where a failure happens: from what the instruments of one run saw to a step, a module, an operation and a line.

Pure: the run itself is `bisect_cfg.study.locate`, the instruments are `bisect_cfg.probe.instruments`. What is taken
for the place depends on the failure:

- weights that are not finite: the first operation that made NaN out of finite numbers. An infinity alone is often
  meant, or harmless, so it counts only where no NaN follows;
- an exception: where it was raised, and the module that was being computed;
- a fatal signal: what was being computed, the Python stack by faulthandler, the native one by gdb;
- a run that quietly stops learning: the step that moved the weights furthest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from bisect_cfg.cells import named
from bisect_cfg.common.failures.health import SILENT_KINDS
from bisect_cfg.common.types import Json
from bisect_cfg.probe.protocol import Event, Frame, InstrumentsOn, LastOperation, Operation, Overflow, Raised, Update
from bisect_cfg.runner.traces import stack_frames

RERUN = (
    "signal",
    "non-finite",
    "exception",
    "cuda-assert",
    "cuda-error",
    *SILENT_KINDS,
)
"""Kinds of failure that another run can tell more about. A hang and a lack of memory would only happen again."""

SENT_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")
"""Signals that say nothing of where the process was."""

_NATIVE = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(?P<name>.+?)(?: (?:from|at) (?P<place>\S+))?$")
_HANDLER = "<signal handler called>"

# How a signal was raised, not what was being done.
_RAISING = re.compile(r"^(?:__)?(?:GI_)?(?:pthread_kill|raise|abort|kill|libc_message|libc_fatal|assert_fail)\w*")
# The machinery around every operation of torch.
_MACHINERY = re.compile(
    r"^(?:c10::function_ref|c10::impl|c10::Dispatcher|at::TensorIteratorBase|at::_ops|std::|__gnu|void std"
    r"|_Py|Py[A-Z]|\?\?|.*::callback_fn|.*::operator\(\))"
)

# Frames between the line that matters and the instruments.
_BETWEEN = re.compile(
    r"/bisect_cfg/probe/|/torch/(?:_ops|_compile|_tensor)\.py|/torch/(?:_dynamo|utils|autograd)/|/nn/modules/module\.py"
)


@dataclass(frozen=True)
class Where:
    """A place.

    Attributes:
        step: optimizer step, counted from 1; None if it is not known.
        module: of the model, "model.layers.0.mlp.down_proj"; "" outside of it.
        operation: what was computed: "AdamW.step: addcdiv_", "MulBackward0".
        line: the innermost Python line that means something, "torch/optim/adam.py:547 in _single_tensor_adam".
        native: the innermost native function that means something, with its library; "" if unknown.
        text: one sentence on what happened there.
        frames: Python frames, outermost first.
        native_frames: native frames, innermost first.
    """

    step: int | None = None
    module: str = ""
    operation: str = ""
    line: str = ""
    native: str = ""
    text: str = ""
    frames: tuple[str, ...] = ()
    native_frames: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.module or self.operation or self.line or self.native)

    def to_json(self) -> dict[str, Json]:
        """For result.json."""
        return asdict(self)


@dataclass(frozen=True)
class Place:
    """What the instrumented run told: the place, whether it failed in the same way, and which run it was."""

    where: Where
    same_failure: bool
    folder: str
    seconds: float
    note: str = ""

    def to_json(self) -> dict[str, Json]:
        """The `where` block of result.json."""
        return {
            **self.where.to_json(),
            "same_failure": self.same_failure,
            "folder": self.folder,
            "seconds": round(self.seconds, 2),
            "note": self.note,
        }


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
        events: of the instrumented run.
        stacks: what faulthandler wrote.
        native: what gdb said.
        place: what was being computed when the process died.
        done: the last step of which it told metrics.
    """
    if kind == "signal":
        return _signal(stacks, native, place or LastOperation(), done)
    if kind == "non-finite":
        return _non_finite(events, done)
    if kind in SILENT_KINDS:
        return _silent(events)
    if kind == "hang":
        return _hang(stacks)
    return _exception(events, done)


# ------------------------------------------------------------------------------------------------------- by failure


def _non_finite(events: Sequence[Event], done: int) -> Where:
    broken = next((row for row in events if isinstance(row, Update) and row.broken), None)
    operations = [row for row in events if isinstance(row, Operation)]
    if broken is not None:
        operations = [row for row in operations if row.step <= broken.step]
    first = next((row for row in operations if row.what == "nan"), operations[0] if operations else None)
    if first is None:
        return _broken_weights(broken) if broken is not None else _overflow(events, done)
    infinite = next((row for row in operations if row.what == "inf" and row is not first), None)
    frames = _frames(first.frames)
    name = _plain(first.operation)
    what = "NaN" if first.what == "nan" else "infinity"
    text = f"the first {what} out of finite numbers"
    if infinite is not None and operations.index(infinite) < operations.index(first):
        line = _frames(infinite.frames)[-1:]
        text += f"; an infinity before it, {_plain(infinite.operation)}" + (f" ({line[0]})" if line else "")
    module = first.module
    if first.backward:
        name = f"{first.backward}: {name}"
        forward = list(_forward(first.forward))
        frames = (*frames, *forward) if forward else frames
        text += ", in the backward pass"
    if module.endswith(".step"):
        name, module = f"{module}: {name}", ""
    if not module and broken is not None:
        module, text = _module_of(broken.broken[0]), f"{text}; {_breaks(broken)}"
    return Where(first.step, module, name, frames[-1] if frames else "", "", text, frames)


def _broken_weights(row: Update) -> Where:
    return _update(row, row.broken[0], _breaks(row))


def _breaks(row: Update) -> str:
    others = row.broken_count - 1
    return f"it breaks {row.broken[0]}" + (f" and {others} other weights" if others > 0 else "")


def _overflow(events: Sequence[Event], done: int) -> Where:
    row = next((row for row in events if isinstance(row, Overflow)), None)
    if row is None:
        return _exception(events, done)
    bad = [line.split()[-1] for line in row.variables if re.match(r"\s*\S*\s+(?:nan|inf) ", line)]
    text = f"{' and '.join(dict.fromkeys(bad)) or 'its output'} is not finite"
    inner = _exception(events, done)
    return Where(row.step, row.module, "forward", inner.line, "", text, inner.frames)


def _exception(events: Sequence[Event], done: int) -> Where:
    row = next((row for row in reversed(events) if isinstance(row, Raised)), None)
    if row is None:
        return Where()
    frames = _frames(row.frames)
    started = [one for one in events if isinstance(one, (InstrumentsOn, Update))]
    step = max(started[-1].step, done + 1) if started else None  # an update may be that of the step before
    operation = next((function for path, _, function in reversed(row.frames) if not _BETWEEN.search(path)), "")
    return Where(step, row.computing, operation, frames[-1] if frames else "", "", row.type, frames)


def _signal(stacks: str, native: str, place: LastOperation, done: int) -> Where:
    frames, functions = _stack(stacks), native_frames(native)
    module, operation = str(place.module), _plain(str(place.operation))
    if module.endswith(".step"):
        operation, module = f"{module}: {operation}", ""
    step = place.step
    if step is not None and step <= done:  # it died before the instruments had seen the next one begin
        step = done + 1
    return Where(
        step,
        module,
        operation,
        frames[-1] if frames else "",
        innermost(functions),
        "",
        frames,
        functions,
    )


def _hang(stacks: str) -> Where:
    frames = _stack(stacks)
    return Where(None, "", "", frames[-1] if frames else "", "", "it waits here", frames)


def _silent(events: Sequence[Event]) -> Where:
    updates = [row for row in events if isinstance(row, Update) and row.parameter]
    if not updates:
        return Where()
    largest = max(updates, key=lambda row: row.relative)
    text = f"this update moves {largest.parameter} by {largest.relative:.0%} of its size, the most of all"
    return _update(largest, largest.parameter, text)


def _update(row: Update, parameter: str, text: str) -> Where:
    """A step of the optimizer, and the operation in it that moved a weight furthest."""
    frames, operation = _frames(row.frames), f"{row.optimizer}.step"
    if row.operation:
        operation += f": {_plain(row.operation)}"
    return Where(row.step, _module_of(parameter), operation, frames[-1] if frames else "", "", text, frames)


# ----------------------------------------------------------------------------------------------------- native frames


def native_frames(text: str) -> tuple[str, ...]:
    """The functions under the fault, innermost first, as ``name (library)``, from gdb's backtrace.

    What lies above the last signal handler is how the signal was handled, and what raised it comes next; neither is
    what was being done.
    """
    lines = [line for line in text.splitlines() if line.startswith("#")]
    handlers = [number for number, line in enumerate(lines) if _HANDLER in line]
    found = []
    for line in lines[handlers[-1] + 1 if handlers else 0 :]:
        match = _NATIVE.match(line.strip())
        if match:
            name = without_templates(match["name"])
            if name == "??" and not match["place"]:  # gdb has lost the stack
                break
            place = (match["place"] or "").rpartition("/")[2]
            found.append(f"{name} ({place})" if place else name)
    while found and _RAISING.match(found[0]):
        found.pop(0)
    return tuple(found)


def innermost(functions: Sequence[str]) -> str:
    """The innermost function that says what was done, "" if there is none."""
    return next((name for name in functions if not _MACHINERY.match(name)), functions[0] if functions else "")


def without_templates(name: str) -> str:
    """A C++ function's name without its arguments and template arguments.

    >>> without_templates("void at::native::run<float, std::pair<int, int> >(at::Tensor const&)")
    'at::native::run'
    """
    name = name.replace("(anonymous namespace)", "{anonymous}").replace("operator()", "{call}")
    name = re.sub(r"operator(<<|>>|<=|>=|<|>|->)", "operator", name)
    kept, depth = [], 0
    for letter in name:
        if letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif depth <= 0:
            kept.append(letter)
    plain = re.sub(r"( const)?\s*$", "", "".join(kept)).replace("{anonymous}", "(anonymous namespace)")
    plain = plain.replace("{call}", "operator()")
    plain = re.sub(r"^[\w:]+ (?=\S)", "", plain.strip())  # the type it returns
    return " ".join(plain.split())


# ----------------------------------------------------------------------------------------------------- Python frames


def _stack(stacks: str) -> tuple[str, ...]:
    """The frames of the thread that died (of the main thread in a hang), outermost first."""
    return _frames(stack_frames(stacks)[::-1])


def _frames(rows: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(named(path, line, function, short) for path, line, function in rows if not _BETWEEN.search(str(path)))


def _forward(lines: Sequence[str]) -> Iterator[str]:
    """Frames of the forward pass that an operation of the backward pass belongs to, from autograd's own record."""
    for line in lines:
        match = re.search(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', line)
        if match and not _BETWEEN.search(match["path"]):
            yield named(match["path"], int(match["line"]), match["function"], short)


def short(path: str) -> str:
    """A path as people name it: from the package down, or the script's own name."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    return path.replace("\\", "/").rpartition("/")[2]


def _plain(operation: str) -> str:
    """``addcdiv_`` of ``aten.addcdiv_.default``."""
    parts = operation.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else operation


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter
