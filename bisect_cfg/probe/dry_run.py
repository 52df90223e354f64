"""Look at what a script sets and where it runs, and end it before it trains: the probe behind `bisect-cfg doctor`.

Every Python process under the user's command comes through here: the launcher itself, which builds no training
config and so goes on undisturbed, and each of the processes it starts. One of those writes into a folder of its own,
named by its rank: where it runs, then what it sets.

A process on its own runs up to the trainer's constructor: by then the configuration has all its values, and the
user's model is there. One of several stops as soon as its configuration is resolved, which is where the processes
first meet: no data and no model has been loaded eight times over.
"""

import socket
import sys

from . import children, library_objects, protocol, record, side_effects, sources, training, world
from .held import functools, os
from .imports import when_imported

_state = {"orders": None, "world": 1}


def start(orders):
    """Set the hooks, by a `protocol.Inspect`."""
    _state["orders"] = orders
    library_objects.install()
    side_effects.install()
    sources.state.before = _before
    sources.state.after = _after
    when_imported("transformers.trainer", lambda module: _end_at(module.Trainer))
    when_imported("transformers.trainer", lambda module: _end_instead_of_training(module.Trainer))
    when_imported("trl.trainer.grpo_trainer", lambda module: _end_at(module.GRPOTrainer))
    previous = sys.excepthook

    def excepthook(kind, error, trace):
        # A script may die before it has built anything. A launcher dies as well then, and says nothing new.
        if record.folder() is not None or not orders.launched or world.number(world.RANK, None) is not None:
            _arrive()
            training.record_exception(error, trace, phase="before training", final=training.nothing_left())
        previous(kind, error, trace)

    sys.excepthook = excepthook


def _arrive():
    """The first time: open this rank's folder, say where it runs, leave no trace in the environment."""
    orders = _state["orders"]
    if record.folder() is not None:
        return
    rank = world.number(world.RANK, 0)
    _state["world"] = world.number(world.WORLD, 1)
    folder = os.path.join(orders.folder, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    record.open_folder(folder)
    children.set_variables(orders.restore)
    from . import machine  # and what it imports, in this process alone

    found = {**machine.installed(), **machine.machine()}
    found["loaded_cublas"] = machine.loaded_cublas() if "torch" in sys.modules else None
    local_rank = world.number(("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), 0)
    record.event(protocol.Arrived(found, _state["world"], rank, local_rank, socket.gethostname()))


def _before(kind, index):
    _arrive()


def _after(kind, thing):
    if kind == "args" and _state["world"] > 1 and _is_the_trainers(thing):
        _end(None)


def _is_the_trainers(arguments):
    """Whether this will be the training under study: a script may configure something else first."""
    if "trl.trainer.grpo_config" in sys.modules:
        return library_objects.is_grpo(type(arguments))
    return True


def _end_at(cls):
    """Building a trainer of this class for the training under study is the end."""
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        given = [*args, *kwargs.values()]
        arguments = next((one for one in given if sources.object_index("args", one) is not None), None)
        if arguments is not None and not _is_the_trainers(arguments):
            return original(self, *args, **kwargs)
        _end(arguments, kwargs.get("model", args[0] if args else None))

    cls.__init__ = __init__


def _end_instead_of_training(cls):
    """Whatever a script trains before the training under study, it is not trained."""

    def train(self, *args, **kwargs):
        _end(self.args)

    cls.train = train


def _end(arguments, model=None):
    _arrive()
    index = None if arguments is None else sources.object_index("args", arguments)
    record.event(protocol.Stopped(index, str(getattr(model, "dtype", "")).replace("torch.", "") or None))
    training.finish(0)
