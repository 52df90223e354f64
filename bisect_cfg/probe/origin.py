"""A training that begins at a checkpoint, with the settings of this trial in force as if they always had been.

`Trainer.train(resume_from_checkpoint=)` brings back weights, optimizer, schedule, random numbers and the place in the
data. Half of that is wrong for a trial with other settings, and some for one with the same. As read in transformers
5.23 and TRL 1.16, and measured (tests/probe/test_origin.py):

- The optimizer's saved state holds the settings of its groups (rate, decay, betas, eps), and they win over the new
  ones. Here the moments come back, and the settings are those that this trial's optimizer was built with.
- The schedule's saved state holds the old base rate. Here a new schedule is stepped as often as the saved one was: the
  rate is what this trial's schedule says of that step.
- The place in the data is counted in optimizer steps, which other batch sizes make another place. Here the rows that
  the failing run took from there on come first (`dataset_rows`), so that both the step and the data are the user's.
- TRL's sampler draws its order from a generator of its own, which begins anew: a later epoch would get the order of the
  first. Here the orders of the epochs that are over are drawn first.
- TRL generates every so many batches, counted from where the process began. Here from the beginning of the training.
- How often it logs, evaluates and saves is part of the saved state. Here it is as this trial says.
- Another seed would change nothing: the saved random numbers come back. Here they begin at that seed.

Without a checkpoint a trial begins with the weights that it is built with, at the data and the rate of a later step:
what fails there, too, is owed to the batch and not to the training before. Its completions are not those of the user's
run.

What cannot be brought back: completions that were generated before the checkpoint and are used again after it
(`num_iterations` > 1, unless it lies where a generation begins), and, from a checkpoint that is not ours, a reference
model that follows the policy.
"""

import copy
import sys
import warnings

from . import model_placement, protocol, record
from .standard_library import json, math, os
from .wrap import around

REFERENCE_FILE = "reference.pt"
"""Of a checkpoint of ours: the reference model, where that follows the policy. `Trainer` does not save it."""


class _State:  # of one trial
    orders = None  # protocol.Origin; None: the beginning
    failing = None  # protocol.FailingData; None: there is none yet
    reseed = None  # a seed of this trial's own
    loading = ""  # what is being loaded
    wanted = None  # the step to be reached


state = _State()


def set_orders(request):
    """What `protocol.TrialOrders` says of where this trial begins."""
    state.orders, state.failing, state.reseed = request.origin, request.failing, request.overrides.get("args.seed")
    state.loading, state.wanted = "", None


def begin(trainer, steps, args, kwargs):
    """Have a training begin where this trial is to begin.

    Args:
        trainer: that is about to train.
        steps: that this trial is to make; None: to its end.
        args: of its `train`.
        kwargs: the same.

    Returns:
        What to call `train` with, and how many steps more than the failing run it needs for the failing data.
    """
    origin, (needed, more) = state.orders, _steps_of_failing(trainer)
    if origin is None:
        return args, kwargs, more
    intake = intake_of(trainer)
    step = _first_step(trainer, origin, intake, needed or 1 if steps is None else steps + more)
    _keep_settings(trainer, origin, step)
    _watch_loading(trainer)
    if origin.checkpoint is None:
        trainer._load_from_checkpoint = lambda *args, **kwargs: None
    _restore_order(trainer, step)
    trainer.args.ignore_data_skip = False  # whatever it says, the user's run came to this data
    if hasattr(trainer, "_buffered_inputs"):
        trainer._step = step * intake.accumulated
    record.event(protocol.Resumed(step, origin.checkpoint, intake))
    state.wanted = None if needed is None else step + needed
    return args[1:], {**kwargs, "resume_from_checkpoint": _folder(trainer, origin, step)}, more


def refused(error):
    """Note that the checkpoint could not be loaded, if that is what an exception is about."""
    if state.orders is not None and state.loading:
        record.event(protocol.OriginRefused(state.loading, type(error).__name__, str(error)[:2000]))


def ended(trainer):
    """At a training's own end: note it if that came too soon to say anything about a later failure."""
    step = trainer.state.global_step
    if state.wanted is not None and step < state.wanted:
        lengths = {name: getattr(trainer.args, name) for name in ("max_steps", "num_train_epochs")}
        record.event(protocol.TooShort(step, state.wanted, lengths))


def keep_intervals(args, trainer_state):
    """How often it logs, evaluates and saves stands in the saved state, too: that would win over this trial's own."""
    if state.orders is not None and hasattr(trainer_state, "compute_steps"):
        trainer_state.compute_steps(args, trainer_state.max_steps)


# ------------------------------------------------------------------------------------------------ place in the data


def intake_of(trainer):
    """The `protocol.Intake` of a training."""
    args = trainer.args
    each = args.per_device_train_batch_size * (getattr(args, "world_size", 1) or 1)
    if not hasattr(trainer, "_buffered_inputs"):
        return protocol.Intake(each, 1, args.gradient_accumulation_steps)
    names = ("num_generations", "steps_per_generation", "num_iterations")
    generations, steps, iterations = (getattr(args, name, None) or 1 for name in names)
    return protocol.Intake(max(each * steps // generations, 1), steps * iterations, args.gradient_accumulation_steps)


def _steps_of_failing(trainer):
    """In how many steps this trial comes through the failing data, and how many more these are than in the failing run;
    None, and 0, where that is not asked or not known."""
    failing = state.failing
    if failing is None or failing.steps is None:
        return None, 0
    try:
        own = intake_of(trainer)
    except (AttributeError, TypeError, ZeroDivisionError):  # a trainer of another make
        own = failing.intake
    ratio = _prompts_per_step(failing.intake) / _prompts_per_step(own) if failing.intake is not None else 1.0
    needed = math.ceil(failing.steps * ratio)
    return needed, max(needed - failing.steps, 0)


def _prompts_per_step(intake):
    return intake.prompts * intake.accumulated / intake.batches


def _steps_per_epoch(intake, total):
    """As `Trainer` counts them. What does not fill a generation TRL's sampler leaves out; elsewhere it is a batch."""
    units = total // intake.prompts if intake.batches > 1 else math.ceil(total / intake.prompts)
    return max(math.ceil(units * intake.batches / intake.accumulated), 1)


def _first_step(trainer, origin, intake, wanted):
    """The step before which this trial begins: that of the user's run, which a failure may depend on as well as on the
    data. Of a training that would end within the steps that are `wanted` from there, as late as they allow. Where
    completions are made otherwise than before, the last step at which new ones are."""
    step, total = origin.step, _total_steps(trainer, intake)
    if total is not None:
        step = min(step, max(total - wanted, 0))
    if origin.checkpoint is None or origin.intake not in (None, intake):
        while step * intake.accumulated % intake.batches:
            step -= 1
    return step


def _total_steps(trainer, intake):
    """Steps of this training; None if it does not say."""
    args, data = trainer.args, getattr(trainer, "train_dataset", None)
    if getattr(args, "max_steps", -1) > 0:
        return args.max_steps
    if data is None or not hasattr(data, "__len__"):
        return None
    return math.ceil(args.num_train_epochs * _steps_per_epoch(intake, len(data)))


def _folder(trainer, origin, step):
    """A folder with what the checkpoint holds, if there is one, in whose state another step stands."""
    from transformers import TrainerState

    folder = os.path.join(record.folder(), f"origin-{os.getpid()}")
    os.makedirs(folder, mode=0o700)
    saved = {"train_batch_size": trainer.args.train_batch_size}
    if origin.checkpoint is not None:
        for name in set(os.listdir(origin.checkpoint)) - {protocol.STATE_FILE}:
            os.symlink(os.path.abspath(os.path.join(origin.checkpoint, name)), os.path.join(folder, name))
        with open(os.path.join(origin.checkpoint, protocol.STATE_FILE), encoding="utf-8") as stream:
            saved = json.load(stream)
    known = TrainerState.__dataclass_fields__  # what another version has saved besides is refused
    saved = {name: value for name, value in saved.items() if name in known}
    with open(os.path.join(folder, protocol.STATE_FILE), "w", encoding="utf-8", opener=record.private) as stream:
        json.dump({**saved, "global_step": step}, stream)
    return folder


def _restore_order(trainer, step):
    """Draw the orders of the epochs that are over from a sampler that keeps its generator from epoch to epoch."""

    def make_loader(original, /, *args, **kwargs):
        loader = original(*args, **kwargs)
        batches = getattr(loader, "batch_sampler", None)
        sampler = getattr(getattr(batches, "batch_sampler", batches), "sampler", None)  # of several processes: within
        if sampler is not None and type(sampler).__name__ == "RepeatSampler" and getattr(sampler, "generator", None):
            steps = max(math.ceil(len(loader) / trainer.args.gradient_accumulation_steps), 1)
            for _ in range(step // steps):
                next(iter(sampler), None)
        return loader

    around(trainer, "get_train_dataloader", make_loader)


# ------------------------------------------------------------------------------------------------ settings in force


def _keep_settings(trainer, origin, step):
    """Once the states are loaded, have the settings in force that this trial was built with, at its `step`."""
    import torch
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from transformers import set_seed

    def load_optimizer_and_schedule(load, checkpoint):
        groups = [dict(group) for group in trainer.optimizer.param_groups]
        schedule = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)  # without accelerate's wrapper
        # DeepSpeed's own keeps its state, and so does one that follows a metric: it has no place in the training.
        counts = hasattr(schedule, "last_epoch") and not isinstance(schedule, ReduceLROnPlateau)
        fresh = copy.deepcopy(schedule.state_dict()) if counts else None
        load(checkpoint)
        _check_moments(trainer.optimizer)
        reference = os.path.join(checkpoint, REFERENCE_FILE)
        if os.path.exists(reference) and getattr(trainer, "ref_model", None) is not None:
            weights = torch.load(reference, map_location="cpu", weights_only=True)
            trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(weights)
        for now, built in zip(trainer.optimizer.param_groups, groups):  # noqa: B905
            kept = now["params"]
            now.clear()
            now.update(built, params=kept)
        if fresh is not None:
            # Steps that an overflow skipped were none of the schedule's. None was loaded: `save_only_model`.
            loaded = schedule.last_epoch != fresh["last_epoch"]
            _step(schedule, fresh, max(schedule.last_epoch + step - origin.step, 0) if loaded else step)

    def load_random_numbers(load, checkpoint):
        load(checkpoint)
        # Without a checkpoint the numbers of step 0 would draw the completions of step 0.
        seed = state.reseed if origin.checkpoint is not None else trainer.args.seed + origin.draw
        if seed is not None:
            set_seed(int(seed) + origin.step)

    around(trainer, "_load_optimizer_and_scheduler", load_optimizer_and_schedule)
    around(trainer, "_load_rng_state", load_random_numbers)


def _step(schedule, fresh, steps):
    """Bring a schedule, as it was built, so many steps further."""
    schedule.load_state_dict(fresh)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before
        for _ in range(steps):
            schedule.step()


# ------------------------------------------------------------------------------------------------ what is refused


def _watch_loading(trainer):
    """Know what is being loaded, so that an error of it is told from one of the training."""

    def watch(owner, name, what, check=lambda: None):
        def load(original, /, *args, **kwargs):
            state.loading = what
            result = original(*args, **kwargs)
            check()
            state.loading = ""
            return result

        around(owner, name, load)

    def load_names(original, /, *args, **kwargs):  # what was loaded is the first argument, or the result
        result = original(*args, **kwargs)
        _check_names(trainer.model, result if result is not None else args[0])
        return result

    around(trainer, "_issue_warnings_after_load", load_names)
    around(trainer.model, "load_adapter", load_names)
    watch(trainer, "_load_from_checkpoint", "weights", lambda: _check_numbers(trainer.model))
    watch(sys.modules["transformers.trainer"], "deepspeed_load_checkpoint", "weights")  # and all else that it saves
    watch(trainer, "_load_optimizer_and_scheduler", "optimizer", lambda: _watch_first_step(trainer.optimizer))
    watch(trainer, "_load_scaler", "scaler")
    watch(trainer, "_load_rng_state", "random numbers")


def _check_names(model, loaded):
    """Of weights that the checkpoint does not have the library only warns: none of those that train may be lacking."""
    missing, named = getattr(loaded, "missing_keys", ()), dict(model.named_parameters(remove_duplicate=False))
    there = {id(weight) for name, weight in named.items() if name not in missing}  # under another name, if tied
    trained = [name for name, weight in named.items() if weight.requires_grad]
    lacking = [name for name in trained if name in missing and id(named[name]) not in there]
    if lacking:
        raise ValueError(f"{len(lacking)} of {len(trained)} weights are not in it, {lacking[0]} for one")


def _check_numbers(model):
    """A run goes on from weights that are NaN, and all its trials would fail."""
    broken = model_placement.first_non_finite(model)
    if broken is not None:
        raise ValueError(f"{broken} holds NaN or infinite numbers: the damage was done before this checkpoint")


def _check_moments(optimizer):
    """torch takes moments of any shape, and its fused Adam dies of them. (8-bit optimizers keep bytes.)"""
    for weight, kept in getattr(optimizer, "state", {}).items():
        for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            found = kept.get(name)
            if hasattr(found, "shape") and found.dtype.is_floating_point and found.shape != weight.shape:
                shapes = f"shape {list(found.shape)} is kept for a weight of shape {list(weight.shape)}"
                raise ValueError(f"{name} of {shapes}")


def _watch_first_step(optimizer):
    """The state of another optimizer's class is taken as it is, and is found to be of no use in the first step."""
    inner, steps = getattr(optimizer, "optimizer", optimizer), iter(("optimizer",))

    def before(*_):
        state.loading = next(steps, "")

    def after(*_):  # stays registered: torch goes through the hooks just now
        state.loading = ""

    if hasattr(inner, "register_step_post_hook"):
        inner.register_step_pre_hook(before)
        inner.register_step_post_hook(after)
