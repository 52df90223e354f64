"""Signs of life: a counter that the tool reads from outside, and the name of the slow thing that is going on.

A step may take a second or ten minutes; what tells a slow run from one that hangs is whether anything happens in it.
So everything that happens often is counted: forward passes of modules, tokens generated, optimizer steps, requests to
vLLM, reward calls. A beat is one addition in a small file that is mapped into memory: no system call, no lock.

Some things take long without a beat, once, and are no hang: an import, a model being loaded, a compiler, an engine
that starts, the next token, a reward function that asks another service, a checkpoint, a report of metrics, the first
meeting of several processes. While one of them goes on its name stands in the file, and the tool gives it a limit of
its own.

The file ``heartbeat`` of a trial's folder, 64 bytes: the count (8 bytes, the machine's order), 8 bytes unused, then
the name in ASCII, padded with zeros to 32 bytes.

None of this touches what is computed: the hook looks at nothing and returns nothing. torch's compiler would trace it,
so it is taken away before the first compilation, and forward passes are no longer counted from there on.
"""

import sys
import types

from . import protocol
from .held import functools, mmap, os, threading
from .imports import around_import, when_imported

_NAME = protocol.HEARTBEAT_NAME


class _State:
    installed = stopped = False
    opened = False  # whether the count is that of a trial's file
    bytes = memoryview(bytearray(protocol.HEARTBEAT_SIZE))  # ours alone until a trial begins
    count = bytes.cast("Q")
    phases = []  # of the main thread, innermost last
    expected = ""  # what is going on while no phase is
    hook = None  # counts forward passes


_state = _State()


def install(slow_imports):
    """Count what the libraries do, as they are imported.

    Args:
        slow_imports: packages that can take a minute to import from a cold disk.
    """
    if _state.installed:
        return
    _state.installed = True
    os.register_at_fork(after_in_child=_forget)
    around_import(slow_imports, lambda name: _enter("import"), lambda name: _leave("import"))
    for name, watch in (
        ("torch.nn.modules.module", _count_forward_passes),
        ("torch._dynamo.callback", _watch_compiler),
        ("torch._dynamo.eval_frame", _watch_compiled_modules),
        ("torch.utils.cpp_extension", lambda module: _announce(module, "_jit_compile", "compile")),
        ("transformers.modeling_utils", _watch_models),
        ("transformers.generation.stopping_criteria", _count_tokens),
        ("transformers.generation.utils", lambda module: _announce(module.GenerationMixin, "generate", "generation")),
        ("transformers.trainer", _watch_trainer_class),
        ("vllm.entrypoints.llm", lambda module: _watch_vllm(module.LLM)),
        ("trl.extras.vllm_client", lambda module: _watch_vllm(module.VLLMClient)),
        ("trl.generation.vllm_client", lambda module: _watch_vllm(module.VLLMClient)),
        ("trl.generation.vllm_generation", _watch_weight_sync),
    ):
        when_imported(name, functools.partial(_if_it_can, watch))


def _if_it_can(watch, module):
    try:
        watch(module)
    except (AttributeError, KeyError, TypeError):  # another version of the library: do without
        pass


def stop():
    """Count nothing."""
    _state.stopped = True
    _stop_counting_forward_passes()


def open_file(folder):
    """Beat into the file of this folder from now on. A file that cannot be mapped is done without.

    That is for the first process of a run, and for the one that trains.
    """
    if _state.opened or _state.stopped:
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        handle = os.open(os.path.join(folder, protocol.HEARTBEAT_FILE), flags, 0o600)
    except OSError:
        return
    try:
        if os.fstat(handle).st_size < protocol.HEARTBEAT_SIZE:
            # Written, not stretched: on a full disk the first beat into a hole would be a SIGBUS. And a script that
            # writes to every descriptor it finds then writes behind what counts.
            os.write(handle, bytes(protocol.HEARTBEAT_SIZE))
        else:
            os.lseek(handle, protocol.HEARTBEAT_SIZE, os.SEEK_SET)
        untracked = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        mapped = mmap.mmap(
            handle, protocol.HEARTBEAT_SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, **untracked
        )
    except (OSError, ValueError):
        return
    finally:
        os.close(handle)
    _state.bytes = memoryview(mapped)
    _state.count = _state.bytes.cast("Q")
    _state.opened = True
    _show()


def beat(*_, **__):
    """Something has happened."""
    _state.count[0] += 1


def expect(name):
    """Until told otherwise this is what goes on, outside of any phase; "" for nothing in particular."""
    _state.expected = name
    _state.phases.clear()  # whatever did not end properly is over by now
    _show()


def watch_trainer(trainer):
    """Watch what this trainer does beside forward passes: its rewards, and weights that it sends to vLLM."""
    if hasattr(trainer, "_calculate_rewards"):
        _announce(trainer, "_calculate_rewards", protocol.REWARD_CALL)
    else:  # TRL before 0.18 calls them in the middle of a long method
        functions = getattr(trainer, "reward_funcs", None)
        if isinstance(functions, list):
            for index, function in enumerate(functions):
                if isinstance(function, (types.FunctionType, types.MethodType)):
                    functions[index] = _within(protocol.REWARD_CALL, function)
    if hasattr(trainer, "_move_model_to_vllm"):
        _announce(trainer, "_move_model_to_vllm", "weight sync")


# ------------------------------------------------------------------------------------------------------ phases


def _enter(name):
    beat()
    if threading.current_thread() is threading.main_thread():
        _state.phases.append(name)
        _show()


def _leave(name):
    beat()
    if threading.current_thread() is threading.main_thread() and name in _state.phases:
        while _state.phases.pop() != name:
            pass
        _show()


def _show():
    name = _state.phases[-1] if _state.phases else _state.expected
    _state.bytes[_NAME] = name.encode("ascii").ljust(_NAME.stop - _NAME.start, b"\0")
    beat()


def _forget():
    """A process that the trial's forks is a helper of its own; what happens in it is not the training's doing."""
    _state.bytes = memoryview(bytearray(protocol.HEARTBEAT_SIZE))
    _state.count = _state.bytes.cast("Q")
    _state.opened = False


def _within(name, function):
    @functools.wraps(function)
    def announced(*args, **kwargs):
        _enter(name)
        try:
            return function(*args, **kwargs)
        finally:
            _leave(name)

    return announced


def _announce(owner, attribute, name):
    """Announce every call of a function, or of a method of a class or of one object, where there is such a thing."""
    found = owner.__dict__.get(attribute) if isinstance(owner, type) else getattr(owner, attribute, None)
    if isinstance(found, classmethod):
        setattr(owner, attribute, classmethod(_within(name, found.__func__)))
    elif found is not None:
        setattr(owner, attribute, _within(name, found))


# --------------------------------------------------------------------------------------------------- libraries


def _count_forward_passes(module):
    def count(module, inputs):
        _state.count[0] += 1

    _state.hook = module.register_module_forward_pre_hook(count)


def _stop_counting_forward_passes():
    if _state.hook is not None:
        _state.hook.remove()
        _state.hook = None


def _watch_compiler(module):
    def started(*_):
        _stop_counting_forward_passes()
        _enter("compile")

    def ended(*_):
        _leave("compile")

    module.callback_handler.register_start_callback(started)
    module.callback_handler.register_end_callback(ended)


def _watch_compiled_modules(module):
    # Before torch had callbacks for it (2.4), and before it warns of hooks on a compiled module.
    original = module.OptimizedModule.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        _stop_counting_forward_passes()
        original(self, *args, **kwargs)

    module.OptimizedModule.__init__ = __init__


def _watch_models(module):
    _announce(module.PreTrainedModel, "from_pretrained", "load")
    _announce(module.PreTrainedModel, "save_pretrained", "saving")


def _count_tokens(module):
    original = module.StoppingCriteriaList.__call__

    @functools.wraps(original)
    def __call__(self, *args, **kwargs):
        _state.count[0] += 1
        return original(self, *args, **kwargs)

    module.StoppingCriteriaList.__call__ = __call__


def _watch_trainer_class(module):
    for name in ("_save_checkpoint", "save_model"):
        _announce(module.Trainer, name, "saving")
    _announce(module.Trainer, "log", protocol.LOGGING)


def _watch_vllm(cls):
    _announce(cls, "__init__", "engine start")
    _announce(cls, "init_communicator", "engine start")
    for name in ("generate", "chat", "get_sequence_logprobs"):
        _announce(cls, name, "vLLM request")
    for name in ("update_named_param", "update_model_params"):
        _announce(cls, name, "weight sync")


def _watch_weight_sync(module):
    _announce(module.VLLMGeneration, "__init__", "engine start")
    _announce(module.VLLMGeneration, "sync_weights", "weight sync")
