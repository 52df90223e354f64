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

import types

from . import imports, protocol, wrap
from .standard_library import functools, mmap, os, threading

_SIZE, _NAME = protocol.HEARTBEAT_SIZE, protocol.HEARTBEAT_NAME

# Of TRL's client of a vLLM server, which has moved between modules: functions, and what goes on while one of them runs.
_CLIENT = (
    ("VLLMClient.__init__ VLLMClient.init_communicator", "engine start"),
    ("VLLMClient.generate VLLMClient.chat VLLMClient.get_sequence_logprobs", "vLLM request"),
    ("VLLMClient.update_named_param VLLMClient.update_model_params", "weight sync"),
)

# The same of all, with their modules.
_SLOW = (
    ("torch.utils.cpp_extension", "_jit_compile", "compile"),
    ("transformers.modeling_utils", "PreTrainedModel.from_pretrained", "load"),
    ("transformers.modeling_utils", "PreTrainedModel.save_pretrained", "saving"),
    ("transformers.generation.utils", "GenerationMixin.generate", "generation"),
    ("transformers.generation.stopping_criteria", "StoppingCriteriaList.__call__", "generation"),  # each token
    ("transformers.trainer", "Trainer._save_checkpoint Trainer.save_model", "saving"),
    ("transformers.trainer", "Trainer.log", protocol.LOGGING),
    ("vllm.entrypoints.llm", "LLM.__init__", "engine start"),
    ("vllm.entrypoints.llm", "LLM.generate LLM.chat", "vLLM request"),
    ("trl.generation.vllm_generation", "VLLMGeneration.__init__", "engine start"),
    ("trl.generation.vllm_generation", "VLLMGeneration.sync_weights", "weight sync"),
    *((module, *row) for module in ("trl.extras.vllm_client", "trl.generation.vllm_client") for row in _CLIENT),
)


class _State:
    stopped = False
    opened = False  # whether the count is that of a trial's file
    bytes = memoryview(bytearray(_SIZE))  # the file's, or memory of our own until a trial begins
    count = bytes.cast("Q")
    phases = [""]  # of the main thread, innermost last; before them what is expected to go on outside of any
    hook = None  # counts forward passes
    installed = False


_state = _State()


def _count_in(memory):
    _state.bytes = memoryview(memory)
    _state.count = _state.bytes.cast("Q")


def install(slow_imports):
    """Count what the libraries do, as they are imported.

    Args:
        slow_imports: packages that can take a minute to import from a cold disk.
    """
    if _state.installed:
        return
    _state.installed = True
    os.register_at_fork(after_in_child=_forget)
    imports.during_import(slow_imports, functools.partial(_Phase, "import"))
    imports.when_imported("torch.nn.modules.module", _count_forward_passes)
    imports.when_imported("torch._dynamo.callback", _watch_compiler)
    # Before torch had callbacks for it (2.4), and before it warns of hooks on a compiled module.
    wrap.in_module("torch._dynamo.eval_frame", "OptimizedModule.__init__", _uncounted)
    for module, paths, phase in _SLOW:
        wrap.in_module(module, paths, functools.partial(_within, phase))


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
    path = os.path.join(folder, protocol.HEARTBEAT_FILE)
    try:
        # A script that writes to every descriptor it finds writes behind what counts.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return
    try:
        if os.fstat(handle).st_size < _SIZE:
            os.write(handle, bytes(_SIZE))  # not stretched: on a full disk the first beat into a hole is a SIGBUS
        _count_in(mmap.mmap(handle, _SIZE))
    except (OSError, ValueError):
        return
    finally:
        os.close(handle)
    _state.opened = True
    _show()


def beat(*_, **__):
    """Something has happened."""
    _state.count[0] += 1


def expect(name):
    """Until told otherwise this is what goes on, outside of any phase; "" for nothing in particular."""
    _state.phases[:] = [name]  # whatever did not end properly is over by now
    _show()


def watch_trainer(trainer):
    """Watch what this trainer does beside forward passes: its rewards, and weights that it sends to vLLM."""
    functions = getattr(trainer, "reward_funcs", None)
    if hasattr(trainer, "_calculate_rewards"):
        _announce(trainer, "_calculate_rewards", protocol.REWARD_CALL)
    elif isinstance(functions, list):  # TRL before 0.18 calls them in the middle of a long method
        for place, function in enumerate(functions):
            if isinstance(function, (types.FunctionType, types.MethodType)):  # and no model
                owner = types.SimpleNamespace(function=function)
                _announce(owner, "function", protocol.REWARD_CALL)
                functions[place] = owner.function
    _announce(trainer, "_move_model_to_vllm", "weight sync")


# ------------------------------------------------------------------------------------------------------ phases


class _Phase:
    """This goes on in the main thread; what other threads do is no reason to wait longer for it."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        beat()
        if threading.current_thread() is threading.main_thread():
            _state.phases.append(self.name)
            _show()

    def __exit__(self, *error):
        beat()
        if threading.current_thread() is threading.main_thread() and self.name in _state.phases[1:]:
            while _state.phases.pop() != self.name:
                pass
            _show()


def _show():
    _state.bytes[_NAME] = _state.phases[-1].encode("ascii").ljust(_NAME.stop - _NAME.start, b"\0")
    beat()


def _forget():
    """A process that the trial's forks is a helper of its own; what happens in it is not the training's doing."""
    _count_in(bytearray(_SIZE))
    _state.opened = False


def _within(phase, function, /, *args, **kwargs):
    with _Phase(phase):
        return function(*args, **kwargs)


def _announce(owner, attribute, phase):
    wrap.around(owner, attribute, functools.partial(_within, phase))


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
    compiling = _Phase("compile")

    def started(*_):
        _stop_counting_forward_passes()
        compiling.__enter__()

    module.callback_handler.register_start_callback(started)
    module.callback_handler.register_end_callback(compiling.__exit__)


def _uncounted(original, /, *args, **kwargs):
    _stop_counting_forward_passes()
    return original(*args, **kwargs)
