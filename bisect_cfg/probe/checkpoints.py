"""Checkpoints of our own, while the first run waits for a failure: so that trials need not begin at step 0.

`Trainer`'s own function saves them, into the trial's folder. Nothing of the training is drawn on for that, no random
number and no callback, so the rows of the run are the same with and without them (tests/probe/test_origin.py). They
cost at most a share of the run's time, and no more than a share of the disk: the last ones are kept, and of those
before some that lie twice as far back each, since the damage may be older than the last.

Of several processes the first decides, and writes down at which step all of them save: one that is still to come. They
have all read it by then, since none comes to the end of a step in which the first one has no part. How FSDP and
DeepSpeed save is not known to work so: there are none then.
"""

import shutil

from . import children, library_objects, origin, protocol, ranks, record
from .standard_library import math, open, os, time

_ARGUMENTS_FILE = "training_args.bin"  # has the tokens of the user, and nobody needs it to go on

_SHARE = 0.03  # of the run's time, for saving

# What is written in a second, before the first one has told: a slow disk, so that the first one comes rather late.
_BYTES_PER_SECOND = 200e6

_LEAST_SECONDS = 1.0  # of training before the first one: what fails sooner is as quickly begun anew

# Where the step is known at which it fails: so many steps before it one is saved each, or at the first boundary after
# that, if it is no later than the last number: the nearest is the cheapest to begin at, unless it is ruined already.
_SHORTLY, _LATEST = (64, 32, 16), 4

_LAST = 3  # so many of the last ones are kept

_PLAN_FILE = "next"  # at which step all processes save
_NEVER = -1


class Saver:
    """Decides after each step whether to save.

    Args:
        trainer: that trains.
        orders: `protocol.CheckpointOrders`.
    """

    def __init__(self, trainer, orders):
        self.trainer, self.orders = trainer, orders
        self.folder = os.path.join(children.state.folder, protocol.CHECKPOINTS_FOLDER)
        self.several = (getattr(trainer.args, "world_size", 1) or 1) > 1
        self.decides = not self.several or ranks.rank() == 0
        self.planned = 0  # of several processes: the step at which all save
        self.given_up = False
        self.last = time.monotonic()
        self.seconds = None  # that the last one took
        self.most = 0  # how many may be kept
        self.kept = []
        self.shortly = []  # those shortly before the failure, which are kept
        self.due = list(_SHORTLY)  # and those that are still to come

    def after_step(self, module):
        """Save if it is time for it. `module` is `transformers.trainer`."""
        step = self.trainer.state.global_step
        try:
            if not self.given_up and (self._is_planned(step) if self.several else self._is_time(step)):
                self._save(step, module)
        except Exception as error:  # the run is about something else
            self._give_up(f"{type(error).__name__}: {str(error)[:300]}", step)

    def _is_planned(self, step):
        if not self.decides:
            self.planned = _read_plan(self.folder)
            self.given_up = self.planned == _NEVER
        elif self.planned < step:
            coming = step + 1
            while not self._at_boundary(coming):
                coming += 1
            if self._is_time(coming):
                self.planned = coming
                _write_plan(self.folder, coming)
        return self.planned == step

    def _is_time(self, step):
        """Whether to save after `step`."""
        waited = time.monotonic() - self.last
        if self.orders.before is None and waited < _LEAST_SECONDS or not self._at_boundary(step):
            return False
        if self.seconds is None and not self._begin():
            return False
        left = math.inf if self.orders.before is None else self.orders.before - step
        if _LATEST <= left <= (self.due or [0])[0]:
            self.due = [steps for steps in self.due if steps < left]
            self.shortly.append(step)
            return True
        return waited >= (self.seconds or 0.0) / _SHARE

    def _at_boundary(self, step):
        """Whether what comes after a step begins with new completions: those that are used again are not saved."""
        intake = origin.intake_of(self.trainer)
        return step * intake.accumulated % intake.batches == 0

    def _begin(self):
        """How large one will be, and how many there is room for; whether any."""
        size = 0
        for parameter in self.trainer.model.parameters():
            size += parameter.numel() * parameter.element_size()
            if parameter.requires_grad:
                size += 2 * parameter.numel() * max(parameter.element_size(), 4)  # two moments, as Adam's
        self.most = int(self.orders.most_bytes // max(size, 1))
        if self.most < 1:
            self._give_up(f"there is no room for one of about {size / 1e9:.1f} GB")
        self.seconds = size / _BYTES_PER_SECOND
        return self.most >= 1

    def _save(self, step, module):
        begun = time.monotonic()
        _save(self.trainer, module, self.folder)
        if not self.decides:
            return
        self.last = time.monotonic()
        self.seconds = self.last - begun
        self.kept = to_keep([*self.kept, step], self.most, self.shortly)
        for name in os.listdir(self.folder):
            if name not in (_PLAN_FILE, *(f"checkpoint-{kept}" for kept in self.kept)):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        path, taken = os.path.join(self.folder, f"checkpoint-{step}"), origin.intake_of(self.trainer)
        record.event(protocol.CheckpointSaved(step, path, round(self.seconds, 3), self.kept, taken))

    def _give_up(self, why, step=None):
        self.given_up = True
        record.event(protocol.NoCheckpoints(why))
        if self.decides and self.several:
            _write_plan(self.folder, _NEVER)
        if self.decides:
            shutil.rmtree(os.path.join(self.folder, f"checkpoint-{step}"), ignore_errors=True)


def can_save(trainer):
    """Whether checkpoints of this training can be saved so."""
    return not any(getattr(trainer, name, False) for name in ("is_fsdp_enabled", "is_deepspeed_enabled"))


def _write_plan(folder, step):
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, _PLAN_FILE)
    with open(path + ".new", "w", encoding="utf-8", opener=record.private) as stream:
        stream.write(str(step))
    os.replace(path + ".new", path)


def _read_plan(folder):
    try:
        with open(os.path.join(folder, _PLAN_FILE), encoding="utf-8") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0


def to_keep(steps, most, shortly=()):
    """Which checkpoints are kept, the latest first: those shortly before the failure, the last ones, and of the others
    so many that each is at most twice as many steps back as the one after it.

    Args:
        steps: of the checkpoints, ascending.
        most: how many there is room for, at least 1.
        shortly: those of them that lie shortly before the step at which it fails, ascending.

    Returns:
        Steps, ascending.
    """
    last = list(steps[-_LAST:][::-1])
    rest = list(steps[:-_LAST][::-1])
    for step, before in zip(rest, [*rest[1:], -math.inf]):  # noqa: B905
        if steps[-1] - before > 2 * (steps[-1] - last[-1]):
            last.append(step)
    return sorted(list(dict.fromkeys([*shortly[::-1], *last]))[:most])


def _save(trainer, module, folder):
    args = trainer.args
    changes = {
        "output_dir": folder, "save_only_model": False, "save_total_limit": None, "push_to_hub": False,
        "save_strategy": module.SaveStrategy.NO if hasattr(module, "SaveStrategy") else "no",
    }  # fmt: skip
    before = {name: getattr(args, name) for name in changes if hasattr(args, name)}
    with library_objects.unwatched(args):
        try:
            for name in before:
                object.__setattr__(args, name, changes[name])
            module.Trainer._save_checkpoint(trainer, trainer.model, None)
        finally:
            for name, value in before.items():
                object.__setattr__(args, name, value)
    if ranks.rank():
        return
    path = os.path.join(folder, f"checkpoint-{trainer.state.global_step}")
    if os.path.exists(os.path.join(path, _ARGUMENTS_FILE)):
        os.remove(os.path.join(path, _ARGUMENTS_FILE))
    reference = getattr(trainer, "ref_model", None)
    if reference is not None and getattr(args, "sync_ref_model", False):
        import torch

        torch.save(trainer.accelerator.unwrap_model(reference).state_dict(), os.path.join(path, origin.REFERENCE_FILE))
