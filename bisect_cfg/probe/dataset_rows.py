"""Which rows of the dataset each optimizer step takes, and other rows in the place of some.

Told by the batch sampler: it runs in the training's own process, however many workers load the data, and skips nothing
when a training begins in the middle of an epoch. Its class is exchanged for one of its own kind, since accelerate looks
at the kinds of samplers. A dataset that is only iterated over has no rows that could be named.

A step of TRL's trainers that uses completions again takes the rows that these were made for: its sampler repeats them.
"""

from . import protocol, record
from .standard_library import math
from .wrap import around

# The column that the model is given; of a dataset without it all text counts.
_PROMPT = "prompt"


_state = {"wanted": False, "exchanged": {}}  # of one trial


def set_orders(request):
    """What `protocol.TrialOrders` says of the rows of this trial."""
    _state["wanted"] = any(part is not None for part in (request.exchanged, request.origin, request.instruments))
    _state["exchanged"] = {int(row): other for row, other in (request.exchanged or {}).items()}


def watch(trainer):
    """From now on note the rows of each step of a training, and exchange some, if that is wanted."""

    def make_loader(original, /, *args, **kwargs):
        loader = original(*args, **kwargs)
        try:
            _note(trainer, loader)
        except Exception:  # a loader of another make: its rows have no names
            pass
        return loader

    if _state["wanted"]:
        around(trainer, "get_train_dataloader", make_loader)


def _note(trainer, loader):
    sampler = loader.batch_sampler
    cls, steps = type(sampler), max(math.ceil(len(loader) / trainer.args.gradient_accumulation_steps), 1)

    class Noted(cls):
        """Gives what it always gave, and tells us."""

        def __iter__(self):
            return _noted(trainer, steps, super().__iter__())

    Noted.__name__, Noted.__qualname__, Noted.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    sampler.__class__ = Noted


def _noted(trainer, steps, batches):
    """The batches of an epoch of so many `steps`, as its sampler gives them: before they are used, and some before
    that."""
    begun = trainer.state.global_step  # when the epoch begins, or is gone on with
    within, rows = 0, []  # of the epoch's step whose batches are being given

    def tell():
        step, data = begun - begun % steps + within, trainer.train_dataset
        if rows and step > begun:  # those before are passed over
            total, taken = len(data) if hasattr(data, "__len__") else None, list(dict.fromkeys(rows))
            record.event(protocol.StepRows(step, taken, [_characters(data, row) for row in taken], total))
        rows.clear()

    for place, batch in enumerate(batches):
        within = place // trainer.args.gradient_accumulation_steps + 1
        if isinstance(batch, (list, tuple)) and all(isinstance(row, int) for row in batch):
            batch = [_state["exchanged"].get(row, row) for row in batch]
            rows += batch
        if (place + 1) % trainer.args.gradient_accumulation_steps == 0:
            tell()
        yield batch
    tell()  # the last step of an epoch may have fewer batches


def _characters(data, row):
    """How much text there is in a row; None if it cannot be looked at."""
    try:
        if _PROMPT in (getattr(data, "column_names", None) or ()) and hasattr(data, "select_columns"):
            data = data.select_columns([_PROMPT])  # other columns may hold images, which are slow to decode
        found = data[row]
        return _length(found.get(_PROMPT, found) if isinstance(found, dict) else found)
    except Exception:
        return None


def _length(value):
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_length(part) for name, part in value.items() if name != "role")
    return sum(map(_length, value)) if isinstance(value, (list, tuple)) else 0
