"""A training that begins at a checkpoint, with the settings of this trial in force as if they always had been.

`Trainer.train(resume_from_checkpoint=)` brings back weights, optimizer, schedule, random numbers and the place in the
data. Half of that is wrong for a trial with other settings, and some for one with the same. As read in transformers
5.23 and TRL 1.16, and measured (tests/probe/test_origin.py):

- The optimizer's saved state holds the settings of its groups (rate, decay, betas, eps), and they win over the new
  ones. Here the moments come back, and the settings are those that this trial's optimizer was built with.
- The schedule's saved state holds the old base rate. Here a new schedule is stepped as often as the saved one was: the
  rate is what this trial's schedule says of that step.
- The place in the data is counted in optimizer steps, which other batch sizes make another place. Here it is counted in
  prompts, and a step is what this trial makes of them.
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
import warnings

from . import model_placement, protocol, record, values
from .held import json, math, os, sys

REFERENCE_FILE = "reference.pt"
"""Of a checkpoint of ours: the reference model, where that follows the policy. `Trainer` does not save it."""


# What an optimizer keeps for each weight, of that weight's shape. (8-bit optimizers keep bytes under the first two.)
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


class _State:
    """Of one trial."""

    orders = None  # protocol.Origin; None: the beginning
    reseed = None  # a seed of this trial's own
    loading = ""  # what is being loaded
    shown = None  # the settings of the optimizer's groups that were noted last
    wanted = None  # the step to be reached


state = _State()


def set_orders(request):
    """What `protocol.TrialOrders` says of where this trial begins."""
    state.orders, state.reseed = request.origin, request.overrides.get("args.seed")
    state.loading, state.shown, state.wanted = "", None, None


def begin(trainer, args, kwargs):
    """Have a training begin where this trial is to begin.

    Args:
        trainer: that is about to train.
        args: of its `train`.
        kwargs: the same.

    Returns:
        What to call `train` with, and how many of its optimizer steps (at least 1) are as much data as one of the
        user's.
    """
    origin = state.orders
    if origin is None:
        return args, kwargs, 1.0
    intake, total = intake_of(trainer), _prompts(trainer)
    step = origin.step if origin.intake in (None, intake) else _step_at(origin, intake, total)
    if origin.checkpoint is None:  # where new completions begin, if nobody knew where that is
        while step * intake.accumulated % intake.batches:
            step -= 1
    _watch_loading(trainer)
    if origin.checkpoint is None:
        trainer._load_from_checkpoint = lambda *args, **kwargs: None
    _keep_settings(trainer, step, step if origin.checkpoint is None else step - origin.step)
    _restore_order(trainer, step)
    trainer.args.ignore_data_skip = False  # whatever it says, the user's run came to this data
    if hasattr(trainer, "_buffered_inputs"):
        trainer._step = step * intake.accumulated
    record.event(protocol.Resumed(step, origin.checkpoint, intake))
    kwargs = {name: value for name, value in kwargs.items() if name != "resume_from_checkpoint"}
    same = origin.checkpoint is not None and step == origin.step and not _unknown(_saved_state(origin))
    kwargs["resume_from_checkpoint"] = origin.checkpoint if same else _at_step(trainer, origin, step)
    ratio = 1.0 if origin.intake is None else _per_step(origin.intake) / _per_step(intake)
    if origin.until is not None:
        state.wanted = step + math.ceil((origin.until - origin.step) * ratio)
    return args[1:], kwargs, max(1.0, ratio)


def refused(error):
    """Note that the checkpoint could not be loaded, if that is what an exception is about."""
    if state.orders is not None and state.loading:
        record.event(protocol.OriginRefused(state.loading, type(error).__name__, str(error)[:2000]))


def ended(trainer):
    """At a training's own end: note it if that came too soon to say anything about a later failure."""
    step = trainer.state.global_step
    if state.wanted is not None and step < state.wanted:
        names = ("max_steps", "num_train_epochs")
        record.event(protocol.TooShort(step, state.wanted, {name: getattr(trainer.args, name) for name in names}))


def keep_intervals(args, trainer_state):
    """How often it logs, evaluates and saves stands in the saved state, too: that would win over this trial's own."""
    compute = getattr(trainer_state, "compute_steps", None)
    if state.orders is not None and compute is not None:
        compute(args, trainer_state.max_steps)


def in_force(trainer):
    """Note the settings of the optimizer's groups as they are in this step, when they are not what they were but for
    the rate (each row has that)."""
    if state.orders is None or trainer.optimizer is None:
        return
    groups = [
        {name: values.encode(value) for name, value in group.items() if name not in ("params", "param_names")}
        for group in trainer.optimizer.param_groups
    ]
    shown = [{name: value for name, value in group.items() if name != "lr"} for group in groups]
    if shown != state.shown:
        state.shown = shown
        record.event(protocol.OptimizerSettings(trainer.state.global_step + 1, groups))


# ------------------------------------------------------------------------------------------------ place in the data


def intake_of(trainer):
    """How a training takes its data."""
    args = trainer.args
    each = args.per_device_train_batch_size * (getattr(args, "world_size", 1) or 1)
    if not hasattr(trainer, "_buffered_inputs"):
        return protocol.Intake(each, 1, args.gradient_accumulation_steps)
    generations, rows = _count(args, "num_generations"), each * _count(args, "steps_per_generation")
    batches = _count(args, "steps_per_generation") * _count(args, "num_iterations")
    return protocol.Intake(max(rows // generations, 1), batches, args.gradient_accumulation_steps)


def _count(args, name):
    value = getattr(args, name, None)
    return value if isinstance(value, int) and value > 0 else 1


def _prompts(trainer):
    """Of an epoch; None if that is not known."""
    data = getattr(trainer, "train_dataset", None)
    return len(data) if hasattr(data, "__len__") else None


def _per_step(intake):
    return intake.prompts * intake.accumulated / intake.batches


def _steps_of_an_epoch(intake, total):
    """As `Trainer` counts them. What does not fill a generation TRL's sampler leaves out; elsewhere it is a batch."""
    units = total // intake.prompts if intake.batches > 1 else math.ceil(total / intake.prompts)
    return max(math.ceil(units * intake.batches / intake.accumulated), 1)


def _step_at(origin, intake, total):
    """The step before which this trial has taken as many prompts as the user's run at the checkpoint; where it takes
    them otherwise, the last one at which it takes new ones, so that none of what comes later is left out."""
    epochs, left = 0, origin.step
    if total is not None:
        epochs, left = divmod(origin.step, _steps_of_an_epoch(origin.intake, total))
    units = int(left * _per_step(origin.intake) // intake.prompts)
    while units * intake.batches % intake.accumulated:
        units -= 1
    step = units * intake.batches // intake.accumulated
    return step + (epochs * _steps_of_an_epoch(intake, total) if epochs else 0)


def _saved_state(origin):
    with open(os.path.join(origin.checkpoint, protocol.STATE_FILE), encoding="utf-8") as stream:
        return json.load(stream)


def _unknown(saved):
    """What another version of transformers has saved of its state, and this one refuses."""
    from transformers import TrainerState

    return set(saved) - set(TrainerState.__dataclass_fields__)


def _at_step(trainer, origin, step):
    """A folder with what the checkpoint holds, if there is one, in whose state another step stands."""
    folder = os.path.join(record.folder(), "origin")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    told = {"train_batch_size": trainer.args.train_batch_size}
    if origin.checkpoint is not None:
        for name in os.listdir(origin.checkpoint):
            target = os.path.join(folder, name)
            if name != protocol.STATE_FILE and not os.path.lexists(target):
                os.symlink(os.path.join(os.path.abspath(origin.checkpoint), name), target)
        saved = _saved_state(origin)
        told = {name: value for name, value in saved.items() if name not in _unknown(saved)}
    told["global_step"] = step
    path = os.path.join(folder, protocol.STATE_FILE)
    own = f"{path}.{os.getpid()}"  # each process of several writes the same
    with open(own, "w", encoding="utf-8", opener=record.private) as stream:
        json.dump(told, stream)
    os.replace(own, path)
    return folder


def _restore_order(trainer, step):
    """Draw the orders of the epochs that are over from a sampler that keeps its generator from epoch to epoch."""
    original = getattr(trainer, "_get_train_sampler", None)
    loader_of = trainer.get_train_dataloader
    made = []
    if original is None:
        return

    def _get_train_sampler(*args, **kwargs):
        made.append(original(*args, **kwargs))
        return made[-1]

    def get_train_dataloader(*args, **kwargs):
        loader = loader_of(*args, **kwargs)
        try:
            steps = max(math.ceil(len(loader) / trainer.args.gradient_accumulation_steps), 1)
        except TypeError:  # of unknown length
            return loader
        generator = getattr(made[-1], "generator", None) if made else None
        if type(made[-1] if made else None).__name__ == "RepeatSampler" and generator is not None:
            for _ in range(step // steps):
                next(iter(made[-1]), None)
        return loader

    trainer._get_train_sampler = _get_train_sampler
    trainer.get_train_dataloader = get_train_dataloader


# ------------------------------------------------------------------------------------------------ settings in force


def _keep_settings(trainer, step, moved):
    """Once the states are loaded, have the settings in force that this trial was built with.

    Args:
        trainer: that loads them.
        step: its position.
        moved: how many steps further its position is than the checkpoint's.
    """
    load = trainer._load_optimizer_and_scheduler
    load_rng = trainer._load_rng_state

    def _load_optimizer_and_scheduler(checkpoint):
        groups = [dict(group) for group in trainer.optimizer.param_groups]
        schedule = _bare(trainer.lr_scheduler)
        fresh = copy.deepcopy(schedule.state_dict()) if schedule is not None else None
        load(checkpoint)
        _check_moments(trainer.optimizer)
        _load_reference(trainer, checkpoint)
        _set_groups(trainer.optimizer, groups)
        _watch_first_step(trainer.optimizer)
        if schedule is not None:
            _step_schedule(schedule, fresh, step, moved)

    def _load_rng_state(checkpoint):
        load_rng(checkpoint)
        origin, seed = state.orders, state.reseed
        if origin.checkpoint is None:  # the numbers of step 0 would draw the completions of step 0
            seed = trainer.args.seed + origin.draw
        if seed is not None:
            from transformers import set_seed

            set_seed(int(seed) + origin.step)

    trainer._load_optimizer_and_scheduler = _load_optimizer_and_scheduler
    trainer._load_rng_state = _load_rng_state


def _load_reference(trainer, checkpoint):
    path = os.path.join(checkpoint, REFERENCE_FILE)
    if os.path.exists(path) and getattr(trainer, "ref_model", None) is not None:
        import torch

        state_of = torch.load(path, map_location="cpu", weights_only=True)
        trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(state_of)


def _bare(schedule):
    """A scheduler without accelerate's wrapper; None if it is none of torch's (DeepSpeed's own keeps its state)."""
    inner = getattr(schedule, "scheduler", schedule)
    return inner if hasattr(inner, "optimizer") and hasattr(inner, "state_dict") else None


def _check_moments(optimizer):
    """torch takes moments of any shape and with any numbers, and computes with them."""
    for weight, kept in getattr(optimizer, "state", {}).items():
        for name in _MOMENTS:
            found = kept.get(name) if isinstance(kept, dict) else None
            if getattr(found, "shape", None) is None or not found.dtype.is_floating_point:
                continue
            if found.shape != weight.shape:
                state.loading = "optimizer"
                raise ValueError(
                    f"{name} of shape {list(found.shape)} is kept for a weight of shape {list(weight.shape)}"
                )
            if bool(found.isnan().any()):
                state.loading = "optimizer"
                raise ValueError(f"{name} of a weight holds NaN: the damage was done before this checkpoint")


def _set_groups(optimizer, groups):
    for now, built in zip(optimizer.param_groups, groups):  # noqa: B905
        for name in list(now):
            if name != "params" and name not in built:
                del now[name]
        now.update({name: value for name, value in built.items() if name != "params"})


def _step_schedule(schedule, fresh, step, moved):
    """Bring a schedule, as it was built, to where the loaded one was; if none was loaded
    (`save_only_model`), to `step`.

    One that follows a metric has no place in the training: it keeps its state, and the rate what it had lost by then.
    """
    if not hasattr(schedule, "last_epoch") or not hasattr(schedule, "get_lr"):
        return
    # Steps that an overflow skipped were none of the schedule's.
    loaded = schedule.last_epoch != fresh["last_epoch"]
    steps = max(schedule.last_epoch + moved, 0) if loaded else step
    schedule.load_state_dict(fresh)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before
        for _ in range(steps):
            schedule.step()


# ------------------------------------------------------------------------------------------------ what is refused


def _watch_first_step(optimizer):
    """The state of another optimizer's class is taken as it is, and is found to be of no use in the first step."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not hasattr(inner, "register_step_post_hook"):
        return

    steps = iter(("optimizer",))

    def before(*_):
        state.loading = next(steps, "")

    def after(*_):  # stays registered: torch goes through the hooks just now
        state.loading = ""

    inner.register_step_pre_hook(before)
    inner.register_step_post_hook(after)


def _check_names(trainer):
    """Of weights that the checkpoint does not have the library only warns: none of those that train may be lacking."""
    model = trainer.model
    warn, load_adapter = getattr(trainer, "_issue_warnings_after_load", None), getattr(model, "load_adapter", None)

    def check(loaded):
        named = dict(model.named_parameters(remove_duplicate=False))
        missing = set(getattr(loaded, "missing_keys", ())) - set(getattr(model, "_keys_to_ignore_on_save", None) or ())
        there = {id(weight) for name, weight in named.items() if name not in missing}  # under another name, if tied
        trained = [name for name, weight in named.items() if weight.requires_grad]
        lacking = [name for name in trained if name in missing and id(named[name]) not in there]
        if lacking:
            raise ValueError(f"{len(lacking)} of {len(trained)} weights are not in it, {lacking[0]} for one")

    def _issue_warnings_after_load(loaded, *args, **kwargs):
        check(loaded)
        return warn(loaded, *args, **kwargs)

    def load_of_peft(*args, **kwargs):
        loaded = load_adapter(*args, **kwargs)
        check(loaded)
        return loaded

    if warn is not None:
        trainer._issue_warnings_after_load = _issue_warnings_after_load
    if load_adapter is not None and hasattr(model, "peft_config"):
        model.load_adapter = load_of_peft


def _check_numbers(trainer):
    """A run goes on from weights that are NaN, and all its trials would fail."""
    broken = model_placement.first_non_finite(trainer.model)
    if broken is not None:
        raise ValueError(f"{broken} holds NaN or infinite numbers: the damage was done before this checkpoint")


def _watch_loading(trainer):
    """Know what is being loaded, so that an error of it is told from one of the training."""

    def noting(name, what, check=lambda trainer: None, owner=trainer):
        original = getattr(owner, name, None)
        if original is None:
            return

        def load(*args, **kwargs):
            state.loading = what
            result = original(*args, **kwargs)
            check(trainer)
            state.loading = ""
            return result

        setattr(owner, name, load)

    _check_names(trainer)
    noting("_load_from_checkpoint", "weights", _check_numbers)
    noting("deepspeed_load_checkpoint", "weights", owner=sys.modules.get("transformers.trainer"))  # all that it saves
    noting("_load_optimizer_and_scheduler", "optimizer")
    noting("_load_scaler", "scaler")
    noting("_load_rng_state", "random numbers")
