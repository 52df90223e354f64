"""Where training runs: one row of metrics per optimizer step, the weights looked at, an early stop.

``Trainer.train`` is wrapped. The schedule, the data order and the random numbers are the user's own: the run is
a prefix of the real one and is cut off from a callback. What the script would do after the training under
study never happens: the process ends where that ends.

A script may train several times. The first run is about the training that it is told, or about the first one that
fails: after one that came to its own end and was well the script goes on. What prepares a training that samples is not
cut off. In a trial only the training that it is about is watched, and those before it run as they are.
"""

import contextlib
import sys
from collections.abc import Callable

from . import (
    checkpoints,
    children,
    dataset_rows,
    heartbeat,
    input_files,
    instruments,
    library_objects,
    model_placement,
    origin,
    protocol,
    ranks,
    record,
    redact,
    resuming,
    sources,
    values,
    wrap,
)
from .standard_library import _getframe, os, threading, time, traceback

# How many steps a reproduction may go on after its weights became non-finite. The user's run would die of the
# sampling error in the next step; some engines sample on, and then there is nothing more to wait for.
_STEPS_AFTER_NON_FINITE = 3

# How often a script that has trained looks whether it may go on.
_LOOK_SECONDS = 0.02

# Packages that take seconds to import; a server of the start `imports` imports what the first run had of them.
HEAVY = ("torch", "transformers", "trl", "datasets", "peft", "accelerate", "vllm", "deepspeed", "bitsandbytes")

_VERSIONS = (*HEAVY, "liger_kernel", "flash_attn", "numpy")


orders = protocol.TrialOrders("")  # of this trial
engage: "Callable | None" = None  # called before training in a process that the first one has started: `boot.join`


class _State:
    active: "int | None" = None  # process id while a training is watched
    number = 0  # of trainings that have begun
    within = False  # whether one runs that is not watched
    told = None  # the exception that our hook was called with


_state = _State()


def set_orders(request):
    """What `protocol.TrialOrders` says of when this trial ends, and of what it writes down."""
    global orders
    orders = request


def install():
    """Wrap the trainer when it is imported, and note an exception that ends the script before it trains."""
    wrap.in_module("transformers.trainer", "Trainer.train", _train)

    def may_tell(error):
        _state.told = error
        # Any other process is a launcher that tells of what it started.
        return not record.first() or children.trainer() in (None, os.getpid())

    note_exceptions(may_tell)


def note_exceptions(may_tell):
    """Note the exceptions that nothing catches, of which ``may_tell(error)`` is true."""
    previous = sys.excepthook

    def excepthook(kind, error, trace):
        if may_tell(error):
            record_exception(error, trace, final=_nothing_left())
        previous(kind, error, trace)

    sys.excepthook = excepthook


def script_end():
    """At the end of the interpreter: note the exception that ended the script, if a hook of its own has taken it."""
    error = getattr(sys, "last_value", None)
    taken = isinstance(error, BaseException) and error is not _state.told
    if error is not None and taken and _state.active != os.getpid() and children.trainer() in (None, os.getpid()):
        record_exception(error, error.__traceback__, final=True)


def _nothing_left():
    """Whether, in an exception's hook, nothing of the script is left to run in the main thread.

    Then the interpreter has called the hook, and only hooks are on the stack; scripts also call it themselves to print
    an exception, and go on.
    """
    if threading.current_thread() is not threading.main_thread() or _state.active == os.getpid():
        return False  # a training in a thread goes on without the main one
    frame = _getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name != "<module>" and frame.f_globals.get("__name__") != "runpy"


def finish(code):
    """End the process here and now: nothing of the script's own after-work runs."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    helper = _state.active != os.getpid()  # forked in the middle of training
    if not helper and record.folder() is not None and children.trainer() is not None:
        if children.trainer() != os.getpid():
            children.hold(code)  # a second training: the run goes on until that under study is over
        if ranks.several():
            ranks.over(code)
        if children.state.root != os.getpid():
            children.over(code)  # else whoever started us would go on with what comes after training
    os._exit(code)


def record_exception(error, trace, final):
    """Write an exception with its frames, outermost first, as an event; `final` says whether it ends the run."""
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(trace)]
    message = redact.scrub(str(error)[:20000])
    computing, beyond = instruments.computing(), instruments.state.beyond
    record.event(protocol.Raised(type(error).__name__, message, frames, final, computing, beyond))


def _is_target(trainer):
    """Whether this training is watched."""
    wanted = sources.state.targets
    if record.folder() is None:  # in a server, which no trial has been forked from yet
        return False
    if wanted.training is None:
        return True
    return wanted.training == _state.number and wanted.trainer in (None, type(trainer).__name__)


def _go_on(trainer):
    """A watched training has come to its own end, and the script goes on: wait until the tool has looked at it."""
    _state.active = None
    _note_completion(trainer)
    heartbeat.expect("")
    if not ranks.several():  # another process of the run may be the one that trains next
        children.release()
    path = os.path.join(children.state.folder, protocol.GO_ON_FILE.format(_state.number))
    while children.state.followed and not os.path.exists(path):
        time.sleep(_LOOK_SECONDS)


def _note_completion(trainer):
    index = sources.object_index("args", trainer.args)
    record.event(protocol.Completed(_state.number, type(trainer).__name__, index))


def _train(original, self, *args, **kwargs):
    """Answer ``Trainer.train``."""
    if _state.active or _state.within:
        return original(self, *args, **kwargs)
    _state.number += 1
    args, kwargs = resuming.begin_fresh(self, args, kwargs)
    if not _is_target(self):
        _state.within = True  # a training of its own may start others
        try:
            result = original(self, *args, **kwargs)
        finally:
            _state.within = False
        if record.folder() is not None:
            _note_completion(self)
        return result
    _state.active = os.getpid()
    first_run = sources.state.targets.training is None
    stage = first_run and library_objects.only_prepares(type(self.args))
    watcher, args, kwargs = _watch(self, stage, args, kwargs)
    try:
        result = original(self, *args, **kwargs)
    except SystemExit as error:
        finish(error.code if isinstance(error.code, int) else 1)
    except BaseException as error:
        try:
            origin.refused(error)
            record_exception(error, error.__traceback__, final=True)
            traceback.print_exc()
        except Exception:  # the script has closed its output, or the disk is full: the run is over all the same
            pass
        finish(1)
    if stage or (first_run and origin.state.orders is None):
        self.remove_callback(watcher)
        _go_on(self)
        return result
    origin.ended(self)
    record.event(protocol.TrainEnd(self.state.global_step))
    finish(0)


def _watch(trainer, stage, args, kwargs):
    """Prepare this process and a trainer for the training under study.

    Returns:
        The callback that watches it, and the arguments of its ``train``.
    """
    if engage is not None:
        engage()
    record.claim()
    input_files.train()
    if record.ours():
        heartbeat.open_file(record.folder())
    trainer.args.logging_nan_inf_filter = False  # it hides what we look for; it only concerns logging
    steps = None if stage else orders.steps
    if not stage:
        args, kwargs, more = origin.begin(trainer, steps, args, kwargs)
        dataset_rows.watch(trainer)
        steps = None if steps is None else steps + more
    module = sys.modules["transformers.trainer"]
    watcher = type("StepWatcher", (_StepWatcher, module.TrainerCallback), {})(trainer, steps)
    trainer.add_callback(watcher)
    instrument = instruments.attach(trainer, module)
    if instrument is not None:
        trainer.add_callback(instrument)
    _record_begin(trainer)
    heartbeat.watch_trainer(trainer)
    # Processes that meet for the first time wait for the slowest of them, and set up their connections.
    heartbeat.expect("first collective" if (getattr(trainer.args, "world_size", 1) or 1) > 1 else "")
    return watcher, args, kwargs


def _model_index(model):
    """Which `from_pretrained` call of the user made this model, looking through PEFT's wrappers."""
    seen = 0
    while model is not None and seen < 4:
        index = sources.object_index("load", model)
        if index is not None:
            return index
        inner = getattr(model, "base_model", None)  # never its truth: a compiled module has none
        model = inner if inner is not None else getattr(model, "model", None)
        seen += 1
    return None


def _adapted(model):
    """Whether a model has got the user's last LoraConfig, be it one whose adapter is merged by now.

    PEFT's `get_peft_model` and transformers' `add_adapter` both write the model's name into the configuration.
    """
    configs = [config for kind, _, config in sources.state.objects if kind == "peft"]
    named = configs and getattr(configs[-1], "base_model_name_or_path", None) is not None
    return bool(named) or getattr(model, "peft_config", None) is not None


def environment():
    """Versions and devices as this process has them, without initialising anything."""
    versions = {}
    for name in _VERSIONS:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__version__", None):
            versions[name] = str(module.__version__)
    details = {"python": sys.version.split()[0], "executable": sys.executable, "versions": versions}
    torch = sys.modules.get("torch")
    if torch is not None:
        details["cuda_tag"] = torch.version.cuda
        if torch.cuda.is_initialized():
            details["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return details


def _record_begin(trainer):
    def last(kind):
        indices = [index for known, index, _ in sources.state.objects if known == kind]
        return indices[-1] if indices else None

    heavy = [name for name in list(sys.modules) if name.split(".")[0] in HEAVY]
    record.event(
        protocol.TrainBegin(
            number=_state.number,
            pid=os.getpid(),
            parent=os.getppid(),
            first=record.first(),
            forked=not record.first() and not children.state.joined,
            args=sources.object_index("args", trainer.args),
            modelcfg=last("modelcfg"),
            peft=last("peft"),
            adapted=_adapted(trainer.model),
            load=_model_index(trainer.model),
            world_size=getattr(trainer.args, "world_size", 1),
            trainer=type(trainer).__name__,
            dtype=str(getattr(trainer.model, "dtype", "")).replace("torch.", ""),
            modules=heavy,
            simulated=_simulated(),
            environment=environment(),
            in_force=_in_force(getattr(trainer, "accelerator", None)),
        )
    )


def _in_force(accelerator):
    """What a launcher may have been asked for, as the training has it."""
    found = {name: getattr(accelerator, name, None) for name in ("distributed_type", "mixed_precision")}
    return {name: str(getattr(value, "value", value)) for name, value in found.items() if value is not None}


def _simulated():
    """What a module of the script says of a fault it simulates, in its `SIMULATED_FAULT`; None for honest scripts."""
    for module in list(sys.modules.values()):
        text = getattr(module, "__dict__", {}).get("SIMULATED_FAULT")
        if isinstance(text, str):
            return text
    return None


class _StepWatcher:
    """Writes a row per step and ends the run at the horizon."""

    def __init__(self, trainer, steps):
        self.trainer, self.steps = trainer, steps
        self.first_step = None
        self.pending = None  # the row of a step that has ended and is not yet logged
        self.bad_since = None  # the step at which the weights were first seen non-finite
        self.began = time.monotonic()
        self.within_epoch = False  # whether a step of this epoch has begun
        wanted = orders.checkpoints is not None and checkpoints.can_save(trainer)
        self.saver = checkpoints.Saver(trainer, orders.checkpoints) if wanted else None

    def on_train_begin(self, args, state, control, **kwargs):
        origin.keep_intervals(args, state)
        try:
            intake = origin.intake_of(self.trainer)
        except (AttributeError, TypeError, ZeroDivisionError):  # a trainer of another make
            intake = None
        record.event(protocol.PlannedSteps(getattr(state, "max_steps", None), intake))
        with contextlib.suppress(Exception):  # models of a kind that nobody has seen: the run is not about them
            record.event(protocol.Placed(model_placement.models(self.trainer)))

    def on_step_begin(self, args, state, control, **kwargs):
        if self.first_step is None:
            self.first_step = state.global_step
            if resuming.has_other_rate(self.trainer):
                finish(0)
        self._flush(state)  # a trainer that does not log every step still gets its row
        # What begins an epoch has drawn a random number already, which would be drawn again on going on.
        if self.saver is not None and self.within_epoch and self.bad_since is None:
            self.saver.after_step(sys.modules["transformers.trainer"])
        self.within_epoch = True

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.within_epoch = False

    def on_substep_end(self, args, state, control, **kwargs):
        heartbeat.beat()

    def on_prediction_step(self, args, state, control, **kwargs):
        heartbeat.beat()

    def on_step_end(self, args, state, control, model=None, **kwargs):
        heartbeat.expect("")
        self.pending = {"step": state.global_step}
        if _state.number > 1:
            self.pending["training"] = _state.number
        if self.bad_since is None:
            name = model_placement.first_non_finite(model if model is not None else self.trainer.model)
            if name is not None:
                self.bad_since = state.global_step
                record.event(protocol.NonFiniteParameters(state.global_step, name))
        self.pending["non_finite_parameters"] = self.bad_since is not None
        control.should_log = True
        if dataset_rows.is_due(args, state.global_step - self.first_step):
            control.should_evaluate = True
        return control

    def on_evaluate(self, args, state, control, **kwargs):
        dataset_rows.note_end(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.pending is None or not logs or "loss" not in logs:
            return
        for name, value in logs.items():
            # A metric that is there but None held only NaN: TRL drops NaN before it averages.
            self.pending[name] = float("nan") if value is None else values.number(value)
        self._flush(state)

    def on_train_end(self, args, state, control, **kwargs):
        self._flush(state)

    def _flush(self, state):
        if self.pending is None:
            return
        row, self.pending = self.pending, None
        torch = sys.modules["torch"]
        if torch.cuda.is_initialized():
            row["gpu_peak_bytes"] = torch.cuda.max_memory_allocated()
        record.metrics(row)
        done = state.global_step - (self.first_step or 0)
        if self.bad_since is not None:
            patience = 0 if orders.stop_when_non_finite else _STEPS_AFTER_NON_FINITE
            if state.global_step - self.bad_since >= patience:
                record.event(protocol.TrainEnd(done, protocol.NON_FINITE))
                finish(0)
        if self.steps is not None and done >= self.steps and time.monotonic() - self.began >= orders.least_seconds:
            record.event(protocol.TrainEnd(done, "horizon"))
            finish(0)
