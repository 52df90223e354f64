"""Where trials begin: at the beginning of the training, or shortly before the failure.

The cheapest origin is taken at which the bad configuration fails as it did and the good one trains. First the weights
of step 0 with the data of the failing step: what fails there as well is caused by that data. Then a checkpoint; where
the good configuration fails from it, too, the damage was done before, and an earlier one is tried; the last is the
beginning.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.common.configuration import Outcome, Status, present
from bisect_cfg.common.failures.health import step_of
from bisect_cfg.common.words import count
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import (
    CHECKPOINTS_FOLDER,
    CheckpointOrders,
    CheckpointSaved,
    NoCheckpoints,
    Origin,
    OriginRefused,
    PlannedSteps,
    Resumed,
)
from bisect_cfg.runner.checkpoints import has_adapter_alone, in_words, read_checkpoint, saved_in_parts
from bisect_cfg.runner.environments import size_of
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import horizon_for
from bisect_cfg.search.search import trials_left
from bisect_cfg.store.state import Rejected
from bisect_cfg.study.data_rows import LEAD, find_rows
from bisect_cfg.study.environments import not_rebuilt
from bisect_cfg.study.factors import find_factors
from bisect_cfg.study.study import Phase, Study

CLAIMS = 3
"""Runs from step 0 that prove a cause of two settings afterwards: it fails, and passes without either. They are as long
wherever trials begin."""

NEAR = 16
"""Steps from the nearest checkpoint that trials begin at, and that is saved for that, to the failure: in one of 4 steps
before, late_overflow's weights were beyond help (no rate was a cure). Trials from any checkpoint go on for as many
after the failing step, at least: a failure that comes a little later with other settings is still one."""

FAR = 2 * NEAR
"""From a checkpoint that lies farther before the failure, a nearer one is saved first."""

TRIES = 4
"""So many checkpoints are tried at most, each about twice as far back as the one before."""

DRAWS = 2
"""So often the data alone is tried, each time with other random numbers: the completions are others than in the user's
run, so that it may pass by chance."""

SHARE_OF_DISK = 0.1
"""What the first run's own checkpoints may take of what is free, unless --max-disk says otherwise."""

GB = 1e9

COMPARED = ("loss", "grad_norm", "reward")
"""Metrics by which a run that goes on is compared with the one that it goes on from."""

AS_FAR = 0.01
"""They are the same up to this share: a forked process may sum with another number of threads."""


def find_baselines(study: Study) -> Status | Phase | None:
    """Find the cheapest origin and start at which the bad configuration fails as it did and the good one passes. Where
    the good one fails as well, another good side is tried."""
    trials, bad_run = study.trials, study.answer.bad_run
    again, good_run = find_origin(study, present(bad_run))
    study.find(settings=trials.known_settings, good_run=good_run)
    if good_run is None:
        study.find(again=tuple(again))
        study.note(_why_never_again(study, again))
        return Status.INCONCLUSIVE
    if study.outcome_of_good(good_run) is not Outcome.PASS:
        by_data = trials.origin is not None and trials.origin.checkpoint is None  # then it is no setting
        if not by_data and study.sides.go_on(study, good_run):
            return find_factors
        study.sides.end(study)
        find_rows(study)
        return Status.BASELINE_FAILS
    for symptom in good_run.shown.symptoms:
        study.note(f"About the good configuration: {symptom.text}.")
    trials.standard = trials.standard.with_usual(good_run.shown)
    study.again = tuple(again)
    return None


def _why_never_again(study: Study, again: list[Run]) -> str:
    packages = study.trials.packages
    last = study.baselines.last
    if packages is not None and packages.varied and last:
        return not_rebuilt(last[-1], len(last), study.settings)
    return (
        f"Your configuration failed in 1 of {1 + len(again)} runs, and never again: too rarely to tell which setting "
        "makes it fail, if a setting does. If it fails more often elsewhere, run bisect-cfg there; if later, give "
        "--steps N."
    )


def find_origin(study: Study, bad_run: Run) -> tuple[list[Run], Run | None]:
    """Find where trials begin, and how they start there; see `Baselines.find` for what it returns."""
    origins, baselines, trials = Origins(study, bad_run), study.baselines, study.trials
    base, step = origins.base, bad_run.shown.step_of_training
    if base is not None and base.checkpoint is None:  # the reproduction began there
        bad_runs, good_run = baselines.find(bad_run)
        _say_what_does_it(study, base, bad_run, good_run)
        return bad_runs, good_run
    for one in study.state.rejected:
        what = "the data" if one.by_data else "the checkpoint"
        study.note(f"What was shown from {what} of step {one.step} is not so from step 0: searched for from earlier.")
    tried, alone = 0, False
    for data in filter(lambda one: not is_given_up(study, one), origins.by_data()):
        again = ", with other random numbers" if data.draw else ""
        origins.begin_at(data, f"seeing whether the data of step {step} does it{again}")
        tried += 1
        alone = baselines.fails_once() is not None
        if alone:
            bad_runs, good_run = baselines.find(bad_run)
            # What the good configuration shows there as well is caused by no setting.
            if good_run is not None and study.outcome_of_good(good_run) in (Outcome.PASS, Outcome.FAIL):
                _say_what_does_it(study, data, bad_run, good_run)
                return bad_runs, good_run
            break
    trials.needs_training = bool(study.state.rejected or (tried and not alone))
    began, reached = 0, ""
    for origin in origins.nearest_first():
        if origin is not None and origin is not base and is_given_up(study, origin):
            continue
        if reached:
            further = "an earlier one" if origin is not base else origins.base_in_words
            study.note(f"From the checkpoint of step {began} it {reached}; trying {further}.")
        began = 0 if origin is None else origin.step
        origins.begin_at(origin)
        bad_runs, good_run = baselines.find(bad_run)
        if good_run is not None and study.outcome_of_good(good_run) is Outcome.PASS:
            break
        reached = "does not fail again" if good_run is None else "fails with the good configuration, too"
    if origin is not None and origin is not base:
        _say_from_where(study, origin, base, bad_run, bad_runs)
        if tried == DRAWS:
            study.note(
                f"With the weights of step 0 and the data of step {step} it does not fail ({count(tried, 'run')}): the "
                "training before contributes to it."
            )
    return bad_runs, good_run


# ------------------------------------------------------------------------------------------ where trials could begin


@dataclass(frozen=True)
class Costs:
    """What trials take, as the first run shows it.

    Attributes:
        trials: how many are to be expected.
        pace: seconds of a step.
        start: seconds until a run trains.
    """

    trials: float
    pace: float
    start: float

    def of(self, steps: int, loading: float = 0.0) -> float:
        """Seconds of a run of so many steps, which may load a checkpoint first."""
        return self.start + loading + steps * self.pace

    def spared(self, earlier: int, later: int, loading: float = 0.0) -> float:
        """Seconds that a bisection's trials spare if they make the steps `later` instead of `earlier`."""
        return max(self.trials - CLAIMS, 0.0) * (self.of(earlier) - self.of(later, loading))


def costs_of(study: Study, bad_run: Run) -> Costs | None:
    """What trials take; None if the first run has made no step."""
    seen = bad_run.seen
    if seen.pace is None or not seen.trained:
        return None
    few, many = trials_left(len(study.settings.varied), some_known=False)
    return Costs((few + many) / 2, seen.pace, study.site.starts.seconds)


class Origins:
    """Where the trials of a study could begin.

    Args:
        study: its trials begin where the first run began.
        bad_run: the first run.
        costs: what trials take; None: as the first run shows it.

    Attributes:
        base: where the first run began; None: at step 0.
    """

    def __init__(self, study: Study, bad_run: Run, costs: Costs | None = None) -> None:
        self._study, self._bad_run = study, bad_run
        self.base = study.trials.origin
        self._costs = costs or costs_of(study, bad_run)

    @property
    def _failing(self) -> int:
        return present(self._bad_run.shown.step_of_training)

    @property
    def base_in_words(self) -> str:
        """Where trials begin if nothing better is found."""
        return "from the beginning" if self.base is None else f"from that of step {self.base.step}"

    def begin_at(self, origin: Origin | None, doing: str = "") -> None:
        """Have the runs begin there, and say what for where it is not where the first run began."""
        study = self._study
        study.trials.begin_at(origin, study.options.steps or self._steps_from(origin))
        study.baselines.begin_at(None if origin is self.base else origin)
        if origin is not None and origin is not self.base:
            study.listener.phase("origin", doing or f"seeing whether it fails from step {origin.step} on")

    def by_data(self) -> Iterator[Origin]:
        """The data shortly before the failing step, without the training that came before.

        A failure that ends no run (a collapse) is one of the training, and is not looked for there. A script that goes
        on from a checkpoint by itself has other first weights.
        """
        seen, planned, costs = self._bad_run.seen, self._bad_run.traces.event(PlannedSteps), self._costs
        intake = None if planned is None else planned.intake
        if costs is None or seen.died is None or intake is None or (self.base is None and seen.before):
            return
        between = intake.batches // math.gcd(intake.batches, intake.accumulated)  # steps that share completions
        step = (self._failing - LEAD) // between * between
        steps = self._steps_from(Origin(None, step))
        worth_it = costs.spared(self._steps_from(self.base), steps) > DRAWS * costs.of(steps)
        if worth_it and step > (0 if self.base is None else self.base.step):
            for draw in range(DRAWS):
                yield Origin(None, step, intake, draw)

    def nearest_first(self) -> Iterator[Origin | None]:
        """The checkpoints, latest first, and `base` at the end. Where one lies far before the failure, the failing run
        is made once from there, and saves checkpoints nearer to it."""
        for origin in self.saved():
            far = origin is not None and self._failing - origin.step > FAR
            orders = own_checkpoints(self._study, self._failing) if far else None
            if origin is not None and orders is not None:
                self.begin_at(origin)
                again = self._study.baselines.fails_once(orders)
                for one in [] if again is None else sorted(_saved_by(again), key=lambda one: -one.step):
                    if origin.step < one.step <= self._failing - NEAR // 2:
                        yield Origin(one.path, one.step, one.intake)
            yield origin

    def saved(self) -> Iterator[Origin | None]:
        """Those of the first run's checkpoints at which trials could begin, latest first, and `base` at the end."""
        if self._costs is not None and self._is_worth_it(self._failing - NEAR):
            self._say_what_was_not_saved()
            usable = [
                one
                for one in _saved_by(self._bad_run)
                if one.step + NEAR <= self._failing and self._is_worth_it(one.step, one.seconds)
            ]
            wanted = 0  # steps before the failure
            for one in sorted(usable, key=lambda one: -one.step)[: 4 * TRIES]:
                if self._failing - one.step >= wanted:
                    yield Origin(one.path, one.step, one.intake)
                    wanted = 2 * (self._failing - one.step)
        yield self.base

    def _say_what_was_not_saved(self) -> None:
        none = self._bad_run.traces.event(NoCheckpoints)
        if none is not None:
            begin = "at step 0" if self.base is None else self.base_in_words
            last = max((one.step for one in self._bad_run.traces.all(CheckpointSaved)), default=None)
            what = f"no checkpoints, so that trials begin {begin}" if last is None else f"none after step {last}"
            self._study.note(f"The first run saved {what}: {none.why}.")

    def _is_worth_it(self, step: int, saving: float = 0.0) -> bool:
        """Whether a bisection from the checkpoint of a step takes less time, also if it fails there once for nothing.

        To load one is taken to last as long as to save it. One that lies far before the failure is where a nearer one
        is made, and trials then begin there.
        """
        costs, failing = present(self._costs), self._failing
        far = failing - step > FAR
        steps = self._steps_from(Origin("", failing - NEAR if far else step))
        looking = costs.of(steps, saving) + (costs.of(failing - step, saving) if far else 0.0)
        spared = costs.spared(self._steps_from(self.base), steps, saving)
        return step > self._bad_run.seen.before and spared > looking

    def _steps_from(self, origin: Origin | None) -> int:
        """The steps of a trial that begins there; None: where the first run began."""
        steps = self._bad_run.steps_shown if origin is None else max(self._failing - origin.step, 1)
        further = NEAR if origin is not None and origin.checkpoint is not None else 0
        return max(horizon_for(steps), steps + further)


def _saved_by(run: Run) -> list[CheckpointSaved]:
    """The checkpoints that a run has left."""
    saved = run.traces.all(CheckpointSaved)
    return [one for one in saved if one.step in saved[-1].kept]


def is_given_up(study: Study, origin: Origin) -> bool:
    """Whether trials begin no more at an origin: it lies no earlier than one that step 0 has contradicted."""
    rejected = study.state.rejected
    return any(origin.checkpoint is None or (not one.by_data and origin.step >= one.step) for one in rejected)


def give_up_origin(study: Study, bad_run: Run) -> bool:
    """After claims that were shown from where trials begin were contradicted from step 0: begin where the first run
    began, and never again there.

    Returns:
        Whether there is an earlier place, for which no trial so far counts; otherwise nothing has changed.
    """
    trials, origin = study.trials, present(study.trials.origin)
    trials.begin_at(None)
    begin_as_it_did(study, bad_run)
    base = trials.origin
    if base is not None and (base.checkpoint, base.step) == (origin.checkpoint, origin.step):
        trials.begin_at(origin)
        return False
    numbers = 1 + max(trial.number for trial in study.store.trials())
    study.store.forget_factors()
    study.state.rejected.append(Rejected(origin.step, origin.checkpoint is None, numbers))
    study.state.save(study.folder)
    return True


# ------------------------------------------------------------------------------------------------ what is said of it


def _say_what_does_it(study: Study, origin: Origin, bad_run: Run, good_run: Run | None) -> None:
    """Without the training before, it is the data of the failing step, or something else that comes with that step (the
    schedule, a callback): `find_rows` tells."""
    who, so = "It fails", f" Trials begin at the data of step {origin.step}."
    if good_run is not None and study.outcome_of_good(good_run) is Outcome.FAIL:
        who, so = "Your configuration and the good one both fail", " No setting that differs between them does it."
    study.note(
        f"{who} with the weights of step 0 and the data of step {bad_run.shown.step_of_training}: it is that data, or "
        f"what else comes with that step, not the training before.{so}"
    )


def _say_from_where(study: Study, origin: Origin, base: Origin | None, bad_run: Run, bad_runs: list[Run]) -> None:
    failing = present(bad_run.shown.step_of_training)
    theirs = {step_of(row) + bad_run.seen.before: row for row in bad_run.traces.metrics.rows}
    pairs = [
        (row.get(name), theirs.get(step_of(row) + again.seen.before, {}).get(name))
        for again in bad_runs[-1:]
        for row in again.traces.metrics.rows[:LEAD]
        for name in COMPARED
    ]
    compared = [(a, b) for a, b in pairs if isinstance(a, (int, float)) and isinstance(b, (int, float))]
    same = compared and all(abs(a - b) <= AS_FAR * max(abs(a), abs(b)) for a, b in compared)
    repeats = "and show the same metrics there" if same else "and fail as it did, though with other metrics"
    study.note(
        f"It fails at step {failing}: trials begin at a checkpoint of step {origin.step} instead of step "
        f"{0 if base is None else base.step}, make the {count(failing - origin.step, 'step')} from there {repeats}."
    )


# --------------------------------------------------------------------------------------------- the user's checkpoint


def begin_at_checkpoint(study: Study) -> None:
    """Have all runs begin at the checkpoint that `--from-checkpoint` names, if it names one.

    Raises:
        InputError: it is none.
    """
    path = study.options.from_checkpoint
    if path is None:
        return
    checkpoint = read_checkpoint(path)
    name = checkpoint.path.name
    study.trials.begin_at(Origin(str(checkpoint.path), checkpoint.step))
    study.note(f"Your command goes on from step {checkpoint.step} of your run ({name}).")
    form = saved_in_parts(checkpoint.path)
    if checkpoint.lacks:
        study.note(
            f"{name} lacks {' and '.join(checkpoint.lacks)}: that begins anew in every trial, and a failure that comes "
            "of it may not show."
        )
    elif form:
        study.note(f"{name} was saved under {form}: without {form} a trial cannot load its optimizer's state.")


def begin_as_it_did(study: Study, run: Run) -> None:
    """Where the first run began at a later step, all runs do: at the same rows, also if they take them otherwise."""
    resumed = run.traces.event(Resumed)
    if resumed is not None:
        study.trials.begin_at(Origin(resumed.checkpoint, resumed.step, resumed.intake))


def check_loaded(run: Run, checkpoint: Path | None) -> None:
    """A checkpoint whose weights the user's own command cannot load is of something else, and one of its end shows
    nothing.

    Raises:
        InputError: with the library's words.
    """
    refused = run.traces.event(OriginRefused)
    if refused is not None:
        form = "" if checkpoint is None else saved_in_parts(checkpoint)
        begun = run.traces.begun
        if form and (begun is None or form.upper() not in begun.in_force.get("distributed_type", "")):
            raise InputError(
                f"{checkpoint} was saved in parts, by a training under {form}; yours runs without {form}, and cannot "
                f"load its {refused.what}.",
                "Start your command as that training was started, or give a checkpoint that was saved whole.",
            )
        if refused.what != "weights":
            return  # a failure to resume, which may be owed to a setting
        alone = checkpoint is not None and has_adapter_alone(checkpoint)
        what = "adapter (LoRA or another of PEFT's; no other weights are there)" if alone else refused.what
        raise InputError(
            f"The {what} in {checkpoint} cannot be loaded into what your command trains: {in_words(refused)}",
            "Give a checkpoint that this very command has saved, before anything went wrong.",
        )
    ended = run.shown.signature is None or run.shown.signature.kind == "no-steps"
    if checkpoint is not None and ended and run.seen.trained and not run.seen.steps:
        raise InputError(
            f"From {checkpoint} your command trains no step: its training is over by then.",
            "Give an earlier checkpoint, or the command more steps (max_steps, num_train_epochs).",
        )


# ------------------------------------------------------------------------------------------ checkpoints of our own


def own_checkpoints(study: Study, failing: int | None) -> CheckpointOrders | None:
    """How a run saves checkpoints, if it is known to fail at a step; None: it saves none."""
    options = study.options
    if options.max_disk == 0:
        return None
    taken = sum(map(size_of, study.folder.glob(f"trials/*/{CHECKPOINTS_FOLDER}")))
    share = SHARE_OF_DISK * shutil.disk_usage(study.folder).free
    total = options.max_disk * GB if options.max_disk is not None else share
    return CheckpointOrders(max(int(total) - taken, 0), failing)


def remove_checkpoints(folder: Path, origin: Origin | None) -> None:
    """At the end of a study, remove what its runs have saved, but for the checkpoint at which later runs of `recommend`
    begin."""
    needed = None if origin is None or origin.checkpoint is None else Path(origin.checkpoint)
    for path in folder.glob(f"trials/*/{CHECKPOINTS_FOLDER}/*"):
        if path != needed:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    for path in folder.glob(f"trials/*/{CHECKPOINTS_FOLDER}"):
        with contextlib.suppress(OSError):
            path.rmdir()  # not while something is in it


def say_what_stays(study: Study, origin: Origin | None) -> None:
    """Of what our runs have saved, and what it takes."""
    checkpoint = None if origin is None or origin.checkpoint is None else Path(origin.checkpoint)
    if origin is not None and checkpoint is not None and checkpoint.is_relative_to(study.folder):
        size = max(1, round(size_of(checkpoint) / 2**20))
        study.note(
            f"The checkpoint of step {origin.step} stays in the study ({size} MiB): it is needed by "
            "recommend, and to repeat a trial by hand."
        )
