"""One more run of a failure that has been isolated, with every instrument on: where exactly does it happen?

- torch's dispatch mode sees every operation: the first one that makes NaN or infinity out of finite numbers;
- `torch.autograd.detect_anomaly` stops at the first NaN of the backward pass and knows the forward line it belongs to;
- forward hooks know which module is being computed, and stop at the first one whose output is not finite; hooks of the
  optimizer know what a step does to the weights;
- faulthandler writes the Python stack of a fatal signal, and gdb, if it is there, the native one (`native`).

They slow a step down and change the order of nothing. They come on shortly before the step at which the run is known
to fail. What they see is written as events; `bisect_cfg.runner.where` makes sense of it.
"""

import contextlib
import ctypes
import itertools
import subprocess
import sys

from . import model_placement, protocol, record
from .standard_library import _getframe, faulthandler, json, os, signal, traceback

FATAL = (signal.SIGFPE, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)

MOST_OPERATIONS = 20
"""Different operations recorded: the first one counts, and a few more show what it led to."""

MOST_FRAMES = 40
"""Innermost ones of a Python stack: a line of the model is some thirty below the operation."""

SAMPLE = 4096
"""Elements of each weight that are held against their value before a step: enough to see how far it moved."""

_PR_SET_PTRACER = 0x59616D61

# Operations whose infinities are meant (masks), and those that hand out memory as it was.
_MEANT = (
    "masked_fill", "full", "fill_", "where", "scalar_tensor", "empty", "set_", "resize", "new_", "detach", "alias",
)  # fmt: skip


class _State:
    spec = None  # `protocol.InstrumentOrders`; None for an ordinary trial
    beyond = ""  # what the innermost of them cannot look up
    modules: list = []  # names of the modules that are being computed, outermost first
    place: "int | None" = (
        None  # descriptor of place.json: what is being computed, for a process that dies in the middle of it
    )
    busy = False  # one of our own computations
    step = 0


state = _State()


def begin(spec, folder):
    """Before anything else of the trial. `spec` is a `protocol.InstrumentOrders`, None for an ordinary trial."""
    state.spec = spec
    if spec is not None and spec.kind == "signal":
        state.place = os.open(os.path.join(folder, protocol.PLACE_FILE), os.O_RDWR | os.O_CREAT, 0o600)
        if spec.gdb:
            _or_without("gdb", _stop_at_faults, folder, spec.gdb)


def _or_without(name, instrument, *arguments):
    try:
        instrument(*arguments)
    except Exception as error:  # an old or unusual library lacks one of them: the others still tell something
        print(f"bisect-cfg: no instrument for {name}: {type(error).__name__}: {error}", file=sys.stderr)


def _stop_at_faults(folder, gdb):
    """A fatal signal ends in `pause`, under the frames of the fault, after faulthandler has written its stacks."""
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PTRACER, ctypes.c_ulong(ctypes.c_ulong(-1).value), 0, 0, 0)
    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    faulthandler.disable()  # it hands a signal on to whoever was there when it was enabled
    for number in FATAL:
        library.signal(number, ctypes.cast(library.pause, ctypes.c_void_p))
    helper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native.py")
    nothing: dict = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen([sys.executable, "-S", "-E", helper, str(os.getpid()), folder, gdb], **nothing)


def attach(trainer, module):
    """A callback that turns the instruments on at the right step; None for an ordinary trial."""
    spec = state.spec
    if spec is None:
        return None

    class Steps:
        """Counts steps and switches on."""

        begun = False

        def on_step_begin(self, args, global_state, control, **kwargs):
            state.step = global_state.global_step + 1
            if not self.begun and state.step >= spec.from_step:
                self.begun = True
                _switch_on(trainer, spec.kind)
            _between_modules()

        def on_substep_end(self, args, global_state, control, **kwargs):
            _between_modules()

    return type("Instruments", (Steps, module.TrainerCallback), {})()


def _switch_on(trainer, kind):
    import torch

    record.event(protocol.InstrumentsOn(state.step))
    _or_without("modules", _follow_modules, torch, trainer.model, kind == "non-finite")
    _or_without("updates", _watch_updates, torch, trainer)
    if kind in ("non-finite", "exception", "cuda-assert"):
        _or_without("anomalies", lambda: torch.autograd.set_detect_anomaly(True))
    if kind == "non-finite":
        _or_without("operations", _watch_numbers, torch)
    if kind == "signal":
        _or_without("operations", _note_operations)


@contextlib.contextmanager
def _ours():
    """Around our own computations: they are none of the run's."""
    before, state.busy = state.busy, True
    try:
        yield
    finally:
        state.busy = before


# ------------------------------------------------------------------------------------------------ modules


def computing():
    """The module that is being computed now, "" if that is not followed."""
    return state.modules[-1] if state.modules else ""


def _place(operation=""):
    """Where a process that dies now was; overwritten in place, so it costs a system call."""
    if state.place is not None:
        row = protocol.to_json(protocol.LastOperation(computing(), operation, state.step))
        os.pwrite(state.place, json.dumps(row).ljust(1024).encode()[:1024], 0)


def _between_modules():
    """No module is being computed now. Some are never left: a checkpoint of activations breaks off their second forward
    pass where it has what it needs."""
    state.modules.clear()
    _place()


def _follow_modules(torch, model, stop_at_non_finite):
    hooks = torch.nn.modules.module
    names = {id(part): name for name, part in model.named_modules()}

    def label(part):
        return f"{names.get(id(part)) or ''} ({type(part).__name__})".strip()

    def enter(part, inputs):
        if not state.busy:
            state.modules.append(label(part))
            state.beyond = _beyond(part, inputs)
            _place()

    def leave(part, inputs, output):
        if state.busy:
            return
        if stop_at_non_finite and id(part) in names and _not_finite(torch, output):
            record.event(protocol.Overflow(state.step, label(part)))
            raise ValueError(f"the output of {label(part)} is not finite")
        if state.modules:
            state.modules.pop()
            _place()

    handle = hooks.register_module_forward_pre_hook(enter)
    hooks.register_module_forward_hook(leave)
    first = getattr(hooks, "_global_forward_pre_hooks", None)
    if first is not None and hasattr(
        first, "move_to_end"
    ):  # before hooks of the script's own, which belong to the module they run for
        first.move_to_end(handle.id, last=False)


def _beyond(part, inputs):
    """Of a table of embeddings, an index that it has no row for, which torch's error does not name: a token that is in
    no vocabulary, or a position in a text that is longer than the model knows."""
    rows, indices = getattr(part, "num_embeddings", None), inputs[0] if inputs else None
    if not isinstance(rows, int) or indices is None or not getattr(indices, "numel", int)():
        return ""
    with _ours():
        largest = int(indices.max())
    return f"index {largest}, where the last is {rows - 1}" if largest >= rows else ""


# ------------------------------------------------------------------------------------------------ numbers


def _not_finite(torch, *values):
    """What the first floating point tensor in these values holds that is not finite: "nan", "inf", or ""."""
    from torch.utils import _pytree

    with _ours():
        for one in _pytree.tree_flatten(values)[0]:
            if isinstance(one, torch.Tensor) and one.is_floating_point() and one.device.type != "meta":
                if not bool(torch.isfinite(one).all()):
                    return "nan" if bool(torch.isnan(one).any()) else "inf"
    return ""


def _watch_numbers(torch):
    """Record the operations that make a NaN or an infinity out of finite numbers."""
    recorded = set()

    def note(name, what):
        frames = _frames()
        if any(path == model_placement.__file__ for path, _, _ in frames):  # looking at the weights is ours
            return
        node = getattr(torch._C, "_current_autograd_node", lambda: None)()
        backward, trace = (node.name(), node.metadata.get("traceback_")) if node is not None else ("", None)
        forward = [line for one in trace or () for line in one.rstrip().split("\n")][-16:]
        recorded.add((name, computing()))
        record.event(protocol.Operation(state.step, name, what, computing(), frames, backward, forward))

    def compute(function, args, kwargs):
        name = str(function)
        looks = not (state.busy or len(recorded) >= MOST_OPERATIONS or any(word in name for word in _MEANT))
        looks = looks and not _not_finite(torch, args, kwargs)
        result = function(*args, **kwargs)
        what = looks and _not_finite(torch, result, args)
        if what and (name, computing()) not in recorded:
            note(name, what)
        return result

    _mode(compute).__enter__()


def _note_operations():
    """Note each operation while it is computed, for a process that dies of it."""

    def compute(function, args, kwargs):
        _place(str(function))
        try:
            return function(*args, **kwargs)
        finally:
            _place()  # what dies later, in a callback, did not die of this

    _mode(compute).__enter__()


def _mode(compute):
    """A dispatch mode of torch's that has ``compute(function, args, kwargs)`` compute each operation."""
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(self, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})

    return type("Mode", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


def _frames():
    """The Python stack, outermost first."""
    inner = itertools.islice(traceback.walk_stack(_getframe(1)), MOST_FRAMES)
    return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in inner][::-1]


# ------------------------------------------------------------------------------------------------ updates


def _watch_updates(torch, trainer):
    """After every optimizer step: the weight that moved furthest for its size, and the first non-finite one."""
    inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    named = [(name, one) for name, one in trainer.model.named_parameters() if one.requires_grad and one.numel()]
    kept: dict = {}  # name -> its numbers before the step

    def before(*args):
        with _ours():
            kept.update((name, _sample(one).clone()) for name, one in named)
        state.modules[:] = [type(inner).__name__ + ".step"]
        _place()

    def after(*args):
        _between_modules()
        furthest, largest, broken = None, 0.0, []
        with _ours():
            for name, one in named:
                size, moved = float(kept[name].norm()), float((_sample(one) - kept[name]).norm())
                if not moved < float("inf"):
                    broken.append(name)
                elif one.dim() > 1 and size > 0 and moved / size > largest:  # biases begin at zero
                    furthest, largest = name, moved / size
        first, name = broken[0] if broken else "", type(inner).__name__
        record.event(protocol.Update(state.step, name, furthest, largest, first, len(broken)))

    inner.register_step_pre_hook(before)
    inner.register_step_post_hook(after)


def _sample(weight):
    return weight.detach().reshape(-1)[:SAMPLE].float()
