"""What a run says for safe values: of a script, and of a command whose settings nobody knows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.remedy.remedy import Aim, Attempt, Wishes
from bisect_cfg.remedy.terms import Health, Isolated
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.verdict import Failure, Metrics, Observation, Standard
from bisect_cfg.store.causes import Report
from bisect_cfg.targets.captured import NOTHING_SEEN
from bisect_cfg.targets.factors import Factor, Factors

WISHES = Wishes()
BAD = {"learning_rate": 1e-3, "warmup_steps": 80}
SCRIPT = SimpleNamespace(
    bad=BAD,
    resolved={},
    varied=(),
    seen=True,
    capture=SimpleNamespace(args=SimpleNamespace(types={"learning_rate": "float"})),
)
COMMAND = Factors(NOTHING_SEEN, tuple(Factor(name, "script", None, value, None) for name, value in BAD.items()))
Settings = SimpleNamespace | Factors


def run(
    steps: int = 12, died: Signature | None = None, counted: bool = True, at_horizon: bool = True, rate: float = 1e-6,
    loss: float = 1.0,
) -> Run:  # fmt: skip
    rows = [{"step": step + 1, "loss": loss**step, "learning_rate": rate} for step in range(steps)]
    seen = Observation(died, steps, 1.0, at_horizon=at_horizon, counted=counted)
    traces = SimpleNamespace(
        metrics=SimpleNamespace(rows=rows), event=lambda kind: SimpleNamespace(max_steps=1000), as_metrics=Metrics(rows)
    )
    return Run(seen, traces, Path("0"))


def isolated(settings: Settings, counted: bool = True) -> Isolated:
    standard = Standard(Failure(Signature("signal", "SIGFPE")))
    trials = SimpleNamespace(settings=settings, horizon=12, standard=standard)
    return Isolated(trials, Report("isolated"), run(), run(counted=counted), WISHES)


def health(settings: Settings, ran: Run, configuration: dict = BAD, counted: bool = True) -> Health:
    return isolated(settings, counted).health_of(ran, Attempt(configuration, 0, 12, Aim.RESET, ""))


def test_a_script_that_has_not_met_its_rate_is_too_short_unless_it_came_to_its_end():
    assert health(SCRIPT, run()).too_short
    assert health(SCRIPT, run(at_horizon=False)) == health(SCRIPT, run(rate=1e-3)) == Health(True)


@pytest.mark.parametrize("named", [BAD, {"warmup_steps": "10 %", "fp16": "no", "learning_rate": "3e-5"}])
def test_what_a_commands_settings_mean_is_not_known_whatever_they_are_called(named):
    assert health(COMMAND, run(), named) == health(COMMAND, run(at_horizon=False), named) == Health(True)


@pytest.mark.parametrize("settings", [SCRIPT, COMMAND])
def test_a_death_and_a_drift_are_told_of_either(settings):
    died = health(settings, run(steps=4, died=Signature("signal", "SIGFPE")), {})
    assert (died.healthy, died.failed_at, died.signature) == (False, 5, str(Signature("signal", "SIGFPE")))
    diverged = health(settings, run(loss=1e3), {})
    assert not diverged.healthy and diverged.died is None and diverged.signature.startswith("not healthy: ")


def test_of_a_command_without_metrics_only_the_death_tells():
    assert health(COMMAND, run(loss=1e3, counted=False), {}, counted=False) == Health(True)
    assert health(COMMAND, run(0, Signature("exit", "1"), counted=False), {}, counted=False).failed_at == 0


@pytest.mark.parametrize(
    ("settings", "counted", "ordered"),
    [
        # The warmup is too long to wait for, so the trial begins at the full rate.
        (SCRIPT, True, ({"learning_rate": 1e-3, "warmup_steps": 0, "seed": 43}, 12)),
        (COMMAND, True, (BAD, 12)),
        (COMMAND, False, (BAD, None)),
    ],
)
def test_how_a_run_with_another_seed_is_ordered(settings, counted, ordered):
    assert isolated(settings, counted).ordered(Attempt(BAD, 1, 12, Aim.VERIFY, "")) == ordered
