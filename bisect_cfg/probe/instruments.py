"""One more run of a failure that has been isolated, with every instrument on: where exactly does it happen?

Each instrument belongs to the library that has it:

- torch's dispatch mode sees every operation: the first one that makes NaN or infinity out of finite numbers;
- `torch.autograd.detect_anomaly` stops at the first NaN of the backward pass and knows the forward line it belongs to;
- transformers' `DebugUnderflowOverflow` (``debug="underflow_overflow"``) stops at the first module with a non-finite
  output or weight;
- forward hooks know which module is being computed, gradient hooks which weight's gradient breaks first, hooks of the
  optimizer what a step does to the weights;
- faulthandler writes the Python stack of a fatal signal, and gdb, if it is there, the native one (`native`).

They slow a step down and change the order of nothing. They come on shortly before the step at which the run is known
to fail. What they see is written as events; `bisect_cfg.runner.where` makes sense of it.
"""

import ctypes
import subprocess
import sys

from . import protocol, record
from .held import _getframe, faulthandler, json, os, signal

FATAL = (signal.SIGFPE, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)

MOST_OPERATIONS = 20
"""Different operations recorded: the first one counts, and a few more show what it led to."""

MOST_FRAMES = 12

SAMPLE = 4096
"""Elements of each weight that are held against their value before a step: enough to see how far it moved."""

_PR_SET_PTRACER = 0x59616D61

# Operations whose infinities are meant (masks), and those that hand out memory as it was.
_MEANT = (
    "masked_fill",
    "full",
    "fill_",
    "where",
    "scalar_tensor",
    "empty",
    "set_",
    "resize",
    "new_",
    "detach",
    "alias",
)

# Frames between the line that matters and us.
_BETWEEN = (
    "/torch/utils/", "/torch/_ops.py", "/torch/nn/modules/module.py", "/torch/_tensor.py", "/torch/_compile.py",
    "/torch/_dynamo/", "/torch/autograd/", "/contextlib.py", "<string>",
)  # fmt: skip


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class _State:
    spec = None  # `protocol.InstrumentOrders`; None for an ordinary trial
    modules = []  # names of the modules that are being computed, outermost first
    names = {}
    operations = set()  # (operation, module) of those recorded
    place = None  # descriptor of place.json: what is being computed, for a process that dies in the middle of it
    busy = False  # one of our own computations
    step = 0


state = _State()


def begin(spec, folder):
    """Before anything else of the trial. `spec` is a `protocol.InstrumentOrders`, None for an ordinary trial."""
    state.spec = spec
    if spec is not None and spec.kind == "signal":
        state.place = os.open(os.path.join(folder, protocol.PLACE_FILE), os.O_RDWR | os.O_CREAT, 0o600)
        if spec.gdb:
            try:
                _stop_at_faults(folder, spec.gdb)
            except (OSError, AttributeError) as error:
                record.event(protocol.NoInstrument("gdb", str(error)))


def _stop_at_faults(folder, gdb):
    """A fatal signal ends in `pause`, under the frames of the fault, after faulthandler has written its stacks."""
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PTRACER, ctypes.c_ulong(ctypes.c_ulong(-1).value), 0, 0, 0)
    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    faulthandler.disable()  # it hands a signal on to whoever was there when it was enabled
    for number in FATAL:
        library.signal(number, ctypes.cast(library.pause, ctypes.c_void_p))
    helper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native.py")
    subprocess.Popen(
        [sys.executable, "-S", "-E", helper, str(os.getpid()), folder, gdb],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def computing():
    """The module that is being computed now, "" if that is not followed."""
    return state.modules[-1] if state.modules else ""


def attach(trainer, module):
    """A callback that turns the instruments on at the right step; None for an ordinary trial."""
    if state.spec is None:
        return None

    class Instruments(module.TrainerCallback):
        """Counts steps and switches on."""

        def __init__(self):
            self.begun = False

        def on_step_begin(self, args, global_state, control, **kwargs):
            state.step = global_state.global_step + 1
            if not self.begun and state.step >= state.spec.from_step:
                self.begun = True
                _on(trainer)
            _between_modules()

        def on_substep_end(self, args, global_state, control, **kwargs):
            _between_modules()

    return Instruments()


def _on(trainer):
    import torch

    kind = state.spec.kind
    record.event(protocol.InstrumentsOn(state.step, kind))
    wanted = [(_follow_modules, (torch, trainer.model)), (_watch_updates, (torch, trainer))]
    if kind in ("non-finite", "exception", "cuda-assert"):
        wanted.append((_detect_anomaly, (torch,)))
    if kind == "non-finite":
        wanted += [(_watch_gradients, (torch, trainer.model)), (_stop_at_overflow, (trainer.model,))]
    if kind in ("non-finite", "signal"):
        wanted.append((_watch_operations, (torch,)))
    for instrument, arguments in wanted:
        try:
            instrument(*arguments)
        except Exception as error:  # an old or unusual library lacks one of them: the others still tell something
            record.event(protocol.NoInstrument(instrument.__name__, f"{type(error).__name__}: {error}"))


def _label(part):
    return f"{state.names.get(id(part)) or ''} ({type(part).__name__})".strip()


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


def _follow_modules(torch, model):
    hooks = torch.nn.modules.module
    state.names = {id(part): name for name, part in model.named_modules()}

    def enter(part, inputs):
        if not state.busy:
            state.modules.append(_label(part))
            _place()

    def leave(part, inputs, output):
        if not state.busy and state.modules:
            state.modules.pop()
            _place()

    handle = hooks.register_module_forward_pre_hook(enter)
    hooks.register_module_forward_hook(leave)
    first = getattr(hooks, "_global_forward_pre_hooks", None)
    if hasattr(first, "move_to_end"):  # before hooks of the script's own, which belong to the module they run for
        first.move_to_end(handle.id, last=False)


class _Ours:
    """Around our own computations: they are none of the run's."""

    def __enter__(self):
        self.before, state.busy = state.busy, True

    def __exit__(self, *error):
        state.busy = self.before


def _stop_at_overflow(model):
    from transformers.debug_utils import DebugUnderflowOverflow

    class Recording(DebugUnderflowOverflow):
        """Passes over what it cannot measure (booleans, empty tensors), and inputs: somebody else's outputs."""

        def analyse_variable(self, var, ctx):
            before = self.detected_overflow
            try:
                super().analyse_variable(var, ctx)
            except (RuntimeError, TypeError, NotImplementedError):
                return
            if ctx.startswith("input"):
                self.detected_overflow = before

        def create_frame(self, module, input, output):
            with _Ours():
                super().create_frame(module, input, output)
            if self.detected_overflow:
                record.event(protocol.Overflow(state.step, _label(module), self.frames[-1].split("\n")[-6:]))

    with _Ours():
        Recording(model)


def _detect_anomaly(torch):
    torch.autograd.set_detect_anomaly(True)


def _watch_gradients(torch, model):
    seen = []

    def hook(name):
        def look(gradient):
            if not seen and not state.busy:
                with _Ours():
                    good = bool(torch.isfinite(gradient).all())
                if not good:
                    seen.append(name)
                    record.event(protocol.Gradient(state.step, name, _what(torch, gradient)))

        return look

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(hook(name))


def _what(torch, tensor):
    with _Ours():
        return "nan" if bool(torch.isnan(tensor).any()) else "inf"


def _watch_updates(torch, trainer):
    """After every optimizer step: the weight that moved furthest for its size, and the first non-finite one."""
    optimizer = trainer.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    if not hasattr(inner, "register_step_post_hook"):
        return
    named = [(name, one) for name, one in trainer.model.named_parameters() if one.requires_grad and one.numel()]
    kept = {}
    moves = _moves(torch, {one.data_ptr(): name for name, one in named})

    def before(*args):
        with _Ours():
            kept.update((name, _part(one).clone()) for name, one in named)
        state.modules[:] = [type(inner).__name__ + ".step"]
        _place()
        moves.furthest.clear()
        moves.__enter__()

    def after(*args):
        moves.__exit__(None, None, None)
        _between_modules()
        furthest, largest, broken = None, 0.0, []
        with _Ours():
            for name, one in named:
                size, moved = float(kept[name].norm()), float((_part(one) - kept[name]).norm())
                if not moved < float("inf"):
                    broken.append(name)
                elif one.dim() > 1 and size > 0 and moved / size > largest:  # biases begin at zero
                    furthest, largest = name, moved / size
        _, operation, frames = moves.furthest.get(broken[0] if broken else furthest, (0.0, "", []))
        record.event(
            protocol.Update(
                state.step,
                type(inner).__name__,
                parameter=furthest,
                relative=largest,
                broken=broken[:1],
                broken_count=len(broken),
                operation=operation,
                frames=frames,
            )
        )

    inner.register_step_pre_hook(before)
    inner.register_step_post_hook(after)


def _part(weight):
    return weight.detach().reshape(-1)[:SAMPLE].float()


def _moves(torch, names):
    """A dispatch mode for the length of an optimizer step: the operation that moves each weight furthest, and its
    lines.

    `names` are those of the weights by the address of their data: an optimizer may hold other objects for them.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Moves(TorchDispatchMode):
        furthest = {}  # name -> (distance, operation, frames); a distance that is no number is the furthest

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if state.busy or not args or not function._schema.is_mutable:
                return function(*args, **kwargs)
            changed = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
            with _Ours():
                weights = [
                    (names[one.data_ptr()], one, _part(one).clone())
                    for one in changed
                    if isinstance(one, torch.Tensor) and one.device.type != "meta" and one.data_ptr() in names
                ]
            result = function(*args, **kwargs)
            for name, one, old in weights:
                with _Ours():
                    distance = float((_part(one) - old).norm())
                if not distance <= self.furthest.get(name, (-1.0,))[0]:
                    self.furthest[name] = (distance, str(function), _frames()[0])
            return result

    return Moves()


def _watch_operations(torch):
    from torch.utils._python_dispatch import TorchDispatchMode

    numeric = state.spec.kind == "non-finite"

    def tensors(value):
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and value.numel() and value.device.type != "meta":
                yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from tensors(item)
        elif isinstance(value, dict):
            for item in value.values():
                yield from tensors(item)

    def finite(value):
        return all(bool(torch.isfinite(one).all()) for one in tensors(value))

    class Watch(TorchDispatchMode):
        """Sees every operation of the step."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            name = str(function)
            if state.busy or len(state.operations) >= MOST_OPERATIONS or any(word in name for word in _MEANT):
                return function(*args, **kwargs)
            if not numeric:
                _place(name)
                try:
                    return function(*args, **kwargs)
                finally:
                    _place()  # what dies later, in a callback, did not die of this
            with _Ours():
                sound = finite(args) and finite(kwargs)
            result = function(*args, **kwargs)
            with _Ours():
                changed = result if result is not None else args
                broken = sound and not (finite(result) and finite(args))
            if broken:
                bad = next(one for one in (*tensors(changed), *tensors(args)) if not finite(one))
                self.note(name, _what(torch, bad))
            return result

        def note(self, name, what):
            frames, inside = _frames()
            if inside:  # watching the weights or the metrics is ours
                return
            module = computing()
            if (name, module) in state.operations:
                return
            state.operations.add((name, module))
            node = getattr(torch._C, "_current_autograd_node", lambda: None)()
            trace = node.metadata.get("traceback_") if node is not None else None
            record.event(
                protocol.Operation(
                    state.step,
                    name,
                    what,
                    module=module,
                    frames=frames,
                    backward=node.name() if node is not None else "",
                    forward=[line for one in trace or () for line in one.rstrip().split("\n")][-16:],
                )
            )

    Watch().__enter__()


def _frames():
    """The Python stack, outermost first, without what lies between; and whether a computation of ours is in it."""
    frames, frame, inside = [], _getframe(2), False
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_HERE):
            if frame.f_code.co_name == "train":  # only passes the call on
                frame = frame.f_back
                continue
            inside = inside or not frame.f_code.co_name.startswith("__torch_dispatch__")
        elif not any(word in path for word in _BETWEEN):
            frames.append([path, frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return frames[:MOST_FRAMES][::-1], inside
