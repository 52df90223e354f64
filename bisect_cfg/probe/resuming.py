"""Scripts that resume by themselves: a trial begins fresh all the same.

A script that goes on from its last checkpoint (``get_last_checkpoint(output_dir)``, or ``train`` with
`resume_from_checkpoint`) would do so in every trial, and the settings of the trials would have no effect: the saved
state of the optimizer holds its rate, decay, betas and eps, and wins over new ones, and that of the schedule holds the
old rate (see `origin`). So no trial finds a checkpoint of the user's, and none loads one. It is noted, and the tool
says from where the script would have gone on. A checkpoint that an earlier training of the same run has saved is one of
the run's own. Where trials begin at a checkpoint (`origin`), that one is loaded instead.

A script may also load such a state by itself. Then its schedule is not the one that was built for the settings of the
trial, and the trial says nothing about these.
"""

from . import origin, protocol, record, saves, wrap
from .standard_library import os


class _State:
    noted: set = set()  # paths
    built: tuple = ()  # (trainer, base rate, place) of the last schedule that was built


state = _State()


def install():
    """Look after what finds checkpoints and builds schedules."""
    wrap.in_module("transformers.trainer_utils", "get_last_checkpoint", _last)
    wrap.in_module("transformers.trainer", "Trainer.create_scheduler", _build)


def _last(original, folder):
    """The last checkpoint in a folder, of those that this run has saved."""
    own = saves.own_place(folder)
    last = original(own) if os.path.isdir(own) else original(folder)
    if last is None or saves.is_own(last):
        return last
    _note(last)
    place = saves.place_of(folder)
    return original(place) if os.path.isdir(place) else None


def _note(path):
    path = os.path.abspath(path)
    if path not in state.noted:
        state.noted.add(path)
        record.event(protocol.ResumeSkipped(path))


def begin_fresh(trainer, arguments, keywords):
    """The arguments of a trainer's `train`, without a checkpoint of the user's."""
    asked = arguments[0] if arguments else keywords.get("resume_from_checkpoint")
    if asked is None or asked is False:
        return arguments, keywords
    if asked is True:
        from transformers.trainer_utils import get_last_checkpoint

        folder = trainer.args.output_dir
        if get_last_checkpoint(folder) is None and os.path.abspath(saves.own_place(folder)) in map(
            os.path.dirname, state.noted
        ):
            asked = None  # else it is this run's own, or there is none, and the library says so
    elif saves.is_own(asked):
        asked = saves.whole(saves.own_place(asked))
    else:
        _note(saves.own_place(asked))
        asked = None
    return arguments[1:], {**keywords, "resume_from_checkpoint": asked}


def _bare(schedule):
    return getattr(schedule, "scheduler", schedule)  # accelerate's wrapper


def _build(original, trainer, *arguments, **keywords):
    built = original(trainer, *arguments, **keywords)
    schedule = _bare(built)
    if getattr(schedule, "base_lrs", None):
        state.built = trainer, float(schedule.base_lrs[0]), schedule.last_epoch
    return built


def has_other_rate(trainer):
    """Whether the schedule of a training that begins is not the one that was built for its settings; noted if so."""
    if not state.built or state.built[0] is not trainer:
        return False
    _, rate, place = state.built
    schedule, step = _bare(trainer.lr_scheduler), trainer.state.global_step
    if not getattr(schedule, "base_lrs", None) or (step and origin.state.orders is None):
        return False  # DeepSpeed's own; or it goes on from a training of this run
    now = float(schedule.base_lrs[0])
    if now == rate and (step or schedule.last_epoch == place):
        return False
    record.event(protocol.OtherSchedule(now, schedule.last_epoch, rate, place))
    return True
