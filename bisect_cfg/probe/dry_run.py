"""Look at what a script sets and where it runs, and end it before it trains: the probe behind `bisect-cfg doctor`.

Every Python process under the user's command comes through here: the launcher itself, which builds no training
config and so goes on undisturbed, and each of the processes it starts. One of those writes into a folder of its own,
named by its rank: where it runs, then what it sets.

A process on its own runs up to the trainer's constructor: by then the configuration has all its values, and the
user's model is there. One of several stops as soon as its configuration is resolved, which is where the processes
first meet: no data and no model has been loaded eight times over.
"""

import sys

from . import (
    children,
    library_objects,
    own_settings,
    protocol,
    ranks,
    record,
    side_effects,
    sources,
    training,
    values,
    wrap,
)
from .standard_library import os, socket


class _State:
    orders: protocol.Inspect  # set by `start`
    world = 1


state = _State()


def start(orders):
    """Set the hooks, by a `protocol.Inspect`."""
    state.orders = orders
    library_objects.install()
    own_settings.install()
    side_effects.install()
    # Its own settings a script reads before it imports the libraries: `_end` tells of them.
    sources.state.before = lambda kind, index: None if kind in ("script", "env") else _arrive()
    sources.state.after = _after
    wrap.in_module("transformers.trainer", "Trainer.__init__", _build)
    wrap.in_module("transformers.trainer", "Trainer.train", _end_instead)
    wrap.in_module("trl.trainer.grpo_trainer", "GRPOTrainer.__init__", _build)

    def may_tell(error):
        # A script may die before it has built anything. A launcher dies as well then, and says nothing new.
        told = record.folder() is not None or not orders.launched or ranks.number(ranks.RANK, None) is not None
        if told:
            _arrive()
        return told

    training.note_exceptions(may_tell)


def _arrive():
    """The first time: open this rank's folder, say where it runs, leave no trace in the environment."""
    if record.folder() is not None:
        return
    rank, state.world = ranks.number(ranks.RANK, 0), ranks.number(ranks.WORLD, 1)
    folder = os.path.join(state.orders.folder, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    record.open_folder(folder)
    children.set_variables(state.orders.restore)
    from . import machine  # and what it imports, in this process alone

    found = {**machine.installed(), **machine.machine()}
    found["loaded_cublas"] = machine.loaded_cublas() if "torch" in sys.modules else None
    local_rank = ranks.number(("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), 0)
    record.event(protocol.Arrived(found, state.world, rank, local_rank, socket.gethostname()))


def _after(kind, thing):
    if kind == "args" and state.world > 1 and not library_objects.only_prepares(type(thing)):
        _end(None)


def _build(original, trainer, *arguments, **keywords):
    """Building a trainer for the training under study is the end."""
    given = (*arguments, *keywords.values())
    config = next((one for one in given if sources.object_index("args", one) is not None), None)
    if config is None or not library_objects.only_prepares(type(config)):
        _end(config, keywords.get("model", arguments[0] if arguments else None))
    return original(trainer, *arguments, **keywords)


def _end_instead(original, trainer, *_, **__):
    """Whatever a script trains before the training under study, it is not trained."""
    _end(trainer.args)


def _end(config, model=None):
    _arrive()
    index = None if config is None else sources.object_index("args", config)
    own = {name: values.encode(value, name) for name, value in sources.state.own}
    record.event(protocol.Stopped(index, str(getattr(model, "dtype", "")).replace("torch.", "") or None, own))
    training.finish(0)
