"""Which rows of the dataset each optimizer step takes, and other rows in the place of some.

Told by the batch sampler: it runs in the training's own process, however many workers load the data, and skips nothing
when a training begins in the middle of an epoch. Its class is exchanged for one of its own kind, since accelerate looks
at the kinds of samplers. A dataset that is only iterated over has no rows that could be named.

A step of TRL's trainers that uses completions again takes the rows that these were made for: its sampler repeats them.
"""

from . import protocol, record
from .held import math

# The column that the model is given; of a dataset without it all text counts.
_PROMPT = "prompt"


class _State:
    """Of one trial."""

    exchanged = None  # protocol.TrialOrders.exchanged
    wanted = False


state = _State()


def set_orders(request):
    """What `protocol.TrialOrders` says of the rows of this trial."""
    state.exchanged = request.exchanged
    state.wanted = any(part is not None for part in (request.exchanged, request.origin, request.instruments))


def watch(trainer):
    """From now on note the rows of each step of a training, and exchange some, if that is wanted."""
    if not state.wanted:
        return
    loader_of = getattr(trainer, "get_train_dataloader", None)
    if loader_of is None:  # a trainer of another make: its rows have no names
        return
    noting = _Noting(trainer, {int(row): other for row, other in (state.exchanged or {}).items()})

    def get_train_dataloader(*args, **kwargs):
        loader = loader_of(*args, **kwargs)
        try:
            noting.attach(loader)
        except Exception:  # a loader of another make: its rows have no names
            pass
        return loader

    trainer.get_train_dataloader = get_train_dataloader


class _Noting:
    """The batches of an epoch, as its sampler gives them: before they are used, and some before that."""

    def __init__(self, trainer, exchanged):
        self.trainer, self.exchanged = trainer, exchanged
        self.steps = None  # of an epoch
        self.begun = 0  # steps of the training when the epoch begins, or is gone on with
        self.rows = []  # of the step whose batches are being given

    def attach(self, loader):
        sampler = getattr(loader, "batch_sampler", None)
        if sampler is None or not hasattr(type(sampler), "__iter__"):
            return
        noting, cls = self, type(sampler)

        class Noted(cls):
            """Gives what it always gave, and tells us."""

            def __iter__(self):
                noting.begun, place = noting.trainer.state.global_step, 0
                for place, batch in enumerate(super().__iter__(), 1):
                    yield noting.note(place, batch)
                noting.tell(place)  # the last step of an epoch may have fewer batches

        Noted.__name__, Noted.__qualname__, Noted.__module__ = cls.__name__, cls.__qualname__, cls.__module__
        sampler.__class__ = Noted
        self.steps = max(math.ceil(len(loader) / self.trainer.args.gradient_accumulation_steps), 1)

    def note(self, place, batch):
        if not isinstance(batch, (list, tuple)) or not all(isinstance(row, int) for row in batch):
            return batch
        taken = [self.exchanged.get(row, row) for row in batch]
        self.rows += taken
        if place % self.trainer.args.gradient_accumulation_steps == 0:
            self.tell(place)
        return taken

    def tell(self, place):
        """Note the rows of a step, all of whose batches have been given; `place` is that of the last, from 1."""
        rows, self.rows = list(dict.fromkeys(self.rows)), []
        within = math.ceil(place / self.trainer.args.gradient_accumulation_steps)  # a step of this epoch
        step = self.begun - self.begun % self.steps + within
        if rows and step > self.begun:  # those before are passed over
            data = self.trainer.train_dataset
            total = len(data) if hasattr(data, "__len__") else None
            record.event(protocol.StepRows(step, rows, [_characters(data, row) for row in rows], total))


def _characters(data, row):
    """How much text there is in a row; None if it cannot be looked at."""
    try:
        names = getattr(data, "column_names", None)
        if _PROMPT in (names or ()) and hasattr(data, "select_columns"):
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
