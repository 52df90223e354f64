"""Whether a configuration object can be built, and what the library makes of it: the library is asked, in a child."""

import importlib
import inspect
import sys
import warnings

from . import library_objects, protocol, redact, side_effects, sources, values
from .standard_library import _getframe, functools, os, re

_reads: set = set()  # attributes of the object that is being built


def build(item):
    """Build the configuration object of a `protocol.BuildRequest`; return a `protocol.BuildAnswer`."""
    warnings.simplefilter("ignore")
    sources.state.before = None
    _reads.clear()
    try:
        cls = getattr(importlib.import_module(item.module), item.cls)
        defaults = library_objects.defaults_of(cls)
        watched = _reading(cls, item.world_size)
        thing = watched.__new__(watched)
        for name, value in defaults.items():
            setattr(thing, name, value)
        for name, value in item.raw.items():
            try:
                setattr(thing, name, values.decode_part(value, library_objects.takes_dict(cls, name)))
            except ValueError:
                pass  # an opaque object: its default stands in for it
        library_objects.apply(thing, item.overrides, defaults)
        side_effects.silence(thing)
        thing.output_dir = os.devnull  # never created: resolving only checks
        backend = getattr(thing, "ddp_backend", None)
        if backend is not None:
            thing.ddp_backend = None  # accelerate would look for the process group of one that is named
        _reads.clear()
        if hasattr(thing, "__post_init__"):
            with library_objects.unwatched(thing):  # our own hook would look at every field
                thing.__post_init__()
        if backend is not None:
            thing.ddp_backend = backend
        _check_groups(thing, item.world_size, sys.modules.get("trl.trainer.grpo_trainer"))
    except Exception as error:
        return protocol.BuildAnswer(error=redact.scrub(f"{type(error).__name__}: {error}"), reads=sorted(_reads))
    looked_at = sorted(_reads & set(defaults))  # by the library: from here on we look ourselves
    found = {name: values.encode(getattr(thing, name, None), name) for name in defaults}
    return protocol.BuildAnswer(found, reads=looked_at)


# How the trainer of TRL 0.15 to 0.17 counts a batch of completions, before it checks that it holds whole groups.
_BATCH = re.compile(r"batch_size = args\.per_device_train_batch_size \* num_processes( \* args\.gradient_\w+)?\n")


def _check_groups(thing, world_size, module):
    """What TRL 0.15 to 0.17 checks in the trainer, with the models loaded by then; later ones do in the config.

    Raises:
        ValueError: the trainer would refuse this training config.
    """
    trainer = getattr(module, "GRPOTrainer", None)
    if trainer is None or not library_objects.is_grpo(type(thing)):
        return
    found = _batch_of(trainer.__init__)
    if found is None:
        return
    size = thing.per_device_train_batch_size * world_size
    size *= thing.gradient_accumulation_steps if found[1] else 1
    if thing.num_generations < 2 or size % thing.num_generations:
        raise ValueError(
            f"The train batch size ({size} completions) must be evenly divisible by the number of generations per "
            f"prompt ({thing.num_generations})."
        )


@functools.cache
def _batch_of(constructor):
    try:
        return _BATCH.search(inspect.getsource(constructor))
    except (OSError, TypeError):  # made at run time (unsloth's), perhaps with another check
        return None


@functools.cache
def _reading(cls, processes):
    """A subclass of `cls`, as it is among so many processes, that notes in `_reads` which attributes are looked at."""

    def __getattribute__(self, name):
        _reads.add(name)
        if name == "__dict__" and _getframe(1).f_globals.get("__name__") != "functools":  # its cached_property
            _reads.update(library_objects.defaults_of(cls))  # by `vars`: every field at once
        return cls.__getattribute__(self, name)

    own = {"__getattribute__": __getattribute__, "__module__": cls.__module__}
    if processes > 1:
        own["world_size"] = processes  # in place of the property: here is one process
    return type(cls.__name__, (cls,), own)
