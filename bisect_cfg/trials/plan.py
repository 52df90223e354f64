"""What one run is to be, as a value, and what the phases have found out that all runs go by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bisect_cfg.capture.settings import Settings
from bisect_cfg.configuration import Configuration
from bisect_cfg.probe.protocol import CheckpointOrders, Encoded, InstrumentOrders, Origin
from bisect_cfg.runner.verdict import Standard
from bisect_cfg.trials.environments import Packages
from bisect_cfg.trials.files import Traces
from bisect_cfg.trials.patience import Patience


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        name: of its folder; trials of the search are numbers.
        configuration: factor name -> value.
        steps: optimizer steps, None for all the script has.
        start: the start to take; None: that of the trials now.
        patience: when silence is a hang; None: scaled from the runs so far.
        until_it_dies: do not stop at NaN weights or at a silent failure, but let the run die by itself.
        training: the number of the training that it is about, before that is known; None: the first that fails.
        overrides: encoded overrides in place of those that `configuration` means (before it is known).
        seconds: a bound on the whole run; reaching it ends the run like a horizon.
        least_seconds: of training that the run makes at least, also after `steps`.
        checkpoints: how it saves checkpoints of ours on the way; None: it saves none.
        instruments: what to find out besides; None for an ordinary trial.
        exchanged: row of the dataset -> the row in its place; None: none, and which rows a step takes is not noted.
        environment: further environment variables.
        enough: whether what is seen so far settles it; None: a silent failure under study does.
        costly: whether it takes longer than can be afforded, asked all the time with the seconds since its start.
    """

    name: int | str
    configuration: Configuration
    steps: int | None
    start: str | None = None
    patience: Patience | None = None
    until_it_dies: bool = False
    training: int | None = None
    overrides: Mapping[str, Encoded] | None = None
    seconds: float | None = None
    least_seconds: float = 0.0
    checkpoints: CheckpointOrders | None = None
    instruments: InstrumentOrders | None = None
    exchanged: Mapping[int, int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    enough: Callable[[Traces], bool] | None = None
    costly: Callable[[Traces, float], bool] = lambda traces, seconds: False


@dataclass(frozen=True)
class Known:
    """What is known of the script and its failure; a phase that learns more replaces it.

    Attributes:
        settings: its settings and factors; None before the first run.
        standard: what runs are held against.
        packages: how trials come to other packages; None where none are varied.
        horizon: optimizer steps of a trial; None before the failure was seen. It grows when that comes later.
        origin: where trials begin; None: at the beginning of the training.
    """

    settings: Settings | None = None
    standard: Standard = Standard()
    packages: Packages | None = None
    horizon: int | None = None
    origin: Origin | None = None
