"""What goes into a trial and what comes out of it.

A `Runner` turns one `TrialRequest` into one `TrialResult`. It is the only seam between the search, which
never touches a process, and whatever runs trainings: a training script, a command line, a Python function or,
in tests, a table of answers. Nothing here imports torch, Optuna or pandas.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from bisect_cfg.common.configuration import Configuration, Outcome, Purpose, Value
from bisect_cfg.common.json_files import JsonObject


@dataclass(frozen=True)
class TrialRequest:
    """One question put to a runner."""

    number: int  # the number of the trial in its study; trials of one study never share one
    configuration: dict[str, Value]  # dotted name -> value, complete (good values included)
    subset: frozenset[str]  # the factors that are bad in it, companions included
    purpose: Purpose  # which part of the bisection asks
    reason: str  # one sentence for people: what this trial asks


@dataclass(frozen=True)
class TrialResult:
    """What one run said.

    Attributes:
        outcome: PASS or FAIL as the runner sees it. Whether a FAIL is *the failure under study* is decided by
            the bisection, which compares signatures; the runner need not know.
        signature: one normalised line, equal for two failures that are the same one; None for a pass.
        message: one line for people.
        seconds: wall-clock time the trial took.
        step: optimizer step at which it failed, or the number of steps trained; None if it makes no sense.
        attributes: anything worth keeping that JSON can hold (folder, start, warnings, ...). "trace" is a digest of
            what its metrics were up to the failing step, which the search compares: see `Record`.
        intermediate: step -> value of the one metric that shows best how the run went, for Optuna's plots, which get
            an even share of it.
    """

    outcome: Outcome
    signature: str | None = None
    message: str = ""
    seconds: float = 0.0
    step: int | None = None
    attributes: JsonObject = field(default_factory=dict)
    intermediate: Mapping[int, float] = field(default_factory=dict)

    @property
    def step_of_training(self) -> int | None:
        """The step of the training at which it failed, as this trial counts them: one whose steps take other amounts
        of data than the user's has other numbers. Of a pass, how many it made."""
        if self.signature is None or not self.step:
            return self.step
        before: int = self.attributes.get("observation", {}).get("before", 0)
        return self.step + before


class Runner(Protocol):
    """Runs trials. May be called from several threads at once when the bisection has `jobs` > 1.

    A runner that knows what makes two failures the same has ``classify(result, subset, reference)``: the outcome of a
    recorded result, asked whenever it is read. One that can end its trials has `Engine.interrupt` and `Engine.go_on`.
    One whose trials an `Engine` runs has that as ``engine``, says what it is asked for a trial (``asked(request)``),
    and what its result means (``told(result)``).
    """

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial to its end. An exception raised here ends the bisection (the study stays consistent)."""

    def is_valid(self, configuration: Configuration) -> str | None:
        """None if the configuration can be built, otherwise why not. Called often: must launch nothing costly."""


Asked = TypeVar("Asked")
Asked_contra = TypeVar("Asked_contra", contravariant=True)
Came = TypeVar("Came")


class Engine(Protocol[Asked_contra, Came]):
    """Where trials run. What it is asked and what comes back is plain data, which may leave this process. Called from
    one thread."""

    @property
    def slots(self) -> int:
        """Trials that may run at once."""

    @property
    def nodes(self) -> Collection[str]:
        """The machines that trials can be given to now; empty where it is this one alone."""

    def leave_out(self, nodes: Collection[str]) -> None:
        """Give no trial to these nodes any more."""

    def submit(self, asked: Asked_contra) -> Future[Came]:
        """Begin a trial. It may be over when this returns."""

    def end(self, name: int | str) -> None:
        """End a trial whose result can change nothing any more."""

    def interrupt(self) -> None:
        """End all that are running; none starts before `go_on`."""

    def go_on(self) -> None:
        """Trials may start again: everything that was interrupted has ended."""

    def close(self) -> None:
        """End everything that was started; nothing runs afterwards."""


def run_alone(engine: Engine[Asked, Came], asked: Asked) -> Came:
    """Run one trial where no other runs, and wait for it. Whatever is raised meanwhile, Ctrl-C above all, comes up when
    the trial has ended."""
    future = engine.submit(asked)
    try:
        return future.result()
    except BaseException:
        engine.interrupt()
        wait([future])
        engine.go_on()
        raise
