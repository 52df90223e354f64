"""Which rows of the dataset each optimizer step takes, and each evaluation; those of the failing run first, in every
trial; and other rows in the place of some.

Told by the batch sampler: it runs in the training's own process, however many workers load the data, and skips nothing
when a training begins in the middle of an epoch. Its class is exchanged for one of its own kind, since accelerate looks
at the kinds of samplers. A dataset that is only iterated over has no rows that could be named.

A step of TRL's trainers that uses completions again takes the rows that these were made for: its sampler repeats them.
"""

from . import origin, protocol, record
from .standard_library import math
from .wrap import around

# The column that the model is given; of a dataset without it all text counts.
_PROMPT = "prompt"


class _State:  # of one trial
    first: list = []  # rows of the training set that come before all others
    longest = False  # whether these are the longest ones
    exchanged: dict = {}
    evaluated = False  # whether those are of the evaluation set
    due: "int | None" = None  # after how many steps it evaluates, whatever its settings say of when
    measured = False  # whether the text in rows is measured
    drawn: list = []  # batches of the evaluation set that are not evaluated yet
    watched: list = []  # trainers


_state = _State()


def set_orders(request):
    """What `protocol.TrialOrders` says of the rows of this trial."""
    failing, exchanged = request.failing or protocol.FailingData([]), request.exchanged
    _state.first, _state.due, _state.drawn = failing.rows, failing.evaluates, []
    _state.longest = failing.longest
    _state.evaluated = failing.evaluates is not None
    _state.exchanged = {int(row): other for row, other in (exchanged or {}).items()}
    _state.measured = exchanged is not None


def watch(trainer):
    """From now on note the rows of each step of a training and of its evaluations, put those of the failing run first,
    and exchange some."""
    if trainer in _state.watched:  # it trains once more
        return
    _state.watched.append(trainer)

    def with_rows(prepare):
        def make_loader(original, /, *args, **kwargs):
            loader = original(*args, **kwargs)
            try:
                prepare(trainer, loader)
            except Exception:  # a loader of another make: its rows have no names
                pass
            return loader

        return make_loader

    def predict(original, /, *args, **kwargs):
        _tell(trainer.eval_dataset, trainer.state.global_step, _state.drawn.pop(0) if _state.drawn else None, True)
        return original(*args, **kwargs)

    around(trainer, "get_train_dataloader", with_rows(_prepare_training))
    around(trainer, "get_eval_dataloader", with_rows(_prepare_evaluation))
    around(trainer, "prediction_step", predict)


def is_due(args, steps):
    """Whether the evaluation is due in which the failing run died, so many steps after this trial began."""
    due = _state.due is not None and steps >= _state.due and getattr(args, "eval_strategy", "no") != "no"
    if due:
        _state.due = None
    return due


def note_end(step):
    """Note that an evaluation is over."""
    record.event(protocol.StepRows(step, [], [], None, True))


def _give(sampler, batches_of):
    """Have a sampler give `batches_of` the batches that it would have given."""
    cls = type(sampler)

    def noted(self):
        return batches_of(cls.__iter__(self))

    own = {"__iter__": noted, "__qualname__": cls.__qualname__, "__module__": cls.__module__}
    sampler.__class__ = type(cls.__name__, (cls,), own)


# ------------------------------------------------------------------------------------------------------- the training


def _prepare_training(trainer, loader):
    each = loader.batch_sampler  # the batches of this process, and those of all
    every = getattr(each, "batch_sampler", each)
    together = 1 if every is each or getattr(each, "split_batches", False) else getattr(each, "num_processes", 1)
    accumulated = trainer.args.gradient_accumulation_steps
    steps = max(math.ceil(len(loader) / accumulated), 1)
    first = _longest(trainer) if _state.longest else _state.first
    if first:
        place = _first_rows(first, len(trainer.train_dataset))

        def placed(batches):
            passed_over = trainer.state.global_step % steps * accumulated * together
            for number, batch in enumerate(batches):
                yield batch if number < passed_over or not _are_rows(batch) else list(map(place, batch))

        _give(every, placed)
    _give(each, lambda batches: _noted(trainer, steps, batches))


def _longest(trainer):
    """The longest rows of the training set, as many as a step takes, or one generation of completions."""
    data, intake = _told_prompts(trainer.train_dataset), origin.intake_of(trainer)
    number = intake.prompts * max(math.ceil(intake.accumulated / intake.batches), 1)
    return sorted(range(len(data)), key=lambda row: _characters(data, row) or 0, reverse=True)[:number]


def _first_rows(wanted, total):
    """A function that is asked for each row as a sampler gives it, and says which one comes in its place: first those
    that are wanted, in their order. Each of a dataset of so many rows still comes as often as any other."""
    waiting = [row for row in wanted if row < total]
    first, others, there = {*waiting}, [], {}
    waiting.reverse()

    def place(row):
        if row not in there:
            if waiting:
                there[row] = waiting.pop()
                others.extend([row] if row not in first else [])
            else:
                there[row] = others.pop(0) if row in first else row
        return there[row]

    return place


def _noted(trainer, steps, batches):
    """The batches of an epoch of so many `steps`, as its sampler gives them: before they are used, and some before
    that."""
    begun = trainer.state.global_step  # when the epoch begins, or is gone on with
    rows: list = []
    within = 0  # of the epoch's step whose batches are being given

    def tell():
        step = begun - begun % steps + within
        if rows and step > begun:  # those before are passed over
            _tell(trainer.train_dataset, step, rows)
        rows.clear()

    for place, batch in enumerate(batches):
        within = place // trainer.args.gradient_accumulation_steps + 1
        if _are_rows(batch):
            rows += batch
            batch = batch if _state.evaluated else [_state.exchanged.get(row, row) for row in batch]
        if (place + 1) % trainer.args.gradient_accumulation_steps == 0:
            tell()
        yield batch
    tell()  # the last step of an epoch may have fewer batches


# ------------------------------------------------------------------------------------------------------ the evaluation


def _prepare_evaluation(trainer, loader):
    """Its batches are noted when they are evaluated, so that a run died of the one that was noted last."""

    def drawn(batches):
        _state.drawn.clear()
        for batch in batches:
            _state.drawn.append(list(batch))
            if _state.evaluated and _are_rows(batch):
                batch = [_state.exchanged.get(row, row) for row in batch]
            yield batch

    if not isinstance(trainer.eval_dataset, dict) and len(trainer.eval_dataset):  # others have no names yet
        _give(loader.batch_sampler, drawn)


# ---------------------------------------------------------------------------------------------------------------- both


def _are_rows(batch):
    return isinstance(batch, (list, tuple)) and all(isinstance(row, int) for row in batch)


def _tell(data, step, rows, evaluated=False):
    if rows is None:
        record.event(protocol.StepRows(step, [], [], None, evaluated, named=False))
        return
    total, taken = len(data) if hasattr(data, "__len__") else None, list(dict.fromkeys(rows))
    data = _told_prompts(data) if _state.measured else data
    measured = [_characters(data, row) for row in taken] if _state.measured else [None] * len(taken)
    record.event(protocol.StepRows(step, taken, measured, total, evaluated))


def _told_prompts(data):
    """A dataset with its prompts alone, if it has such a column: others may hold images, which are slow to decode."""
    try:
        return data.select_columns([_PROMPT])
    except Exception:
        return data


def _characters(data, row):
    """How much text there is in a row; None if it cannot be looked at."""
    try:
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
