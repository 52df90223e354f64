"""What a run says for safe values: of a script, and of a command whose settings nobody knows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.recommend.attempts import Aim, Attempt
from bisect_cfg.recommend.isolated import Health, IsolatedScript, Wishes
from bisect_cfg.recommend.isolated_command import IsolatedCommand
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.verdict import Ended, Failure, Metrics, Observation, Standard
from bisect_cfg.store.causes import Report

WISHES = Wishes(0.5, 1.5, None, 3, None, (), 1, ())
BAD = {"learning_rate": 1e-3, "warmup_steps": 80}


def run(
    steps: int = 12, died: Signature | None = None, counted: bool = True, stopped: str | None = "horizon", rate=1e-6,
    loss: float = 1.0,
) -> Run:  # fmt: skip
    rows = [{"step": step + 1, "loss": loss**step, "learning_rate": rate} for step in range(steps)]
    ended = Ended.STOPPED if stopped is None else Ended(stopped)
    seen = Observation(died, ended, steps, 1.0, counted=counted)
    end = None if stopped is None else SimpleNamespace(stopped=stopped, max_steps=1000)
    metrics = SimpleNamespace(rows=rows)
    traces = SimpleNamespace(metrics=metrics, event=lambda kind: end, as_metrics=Metrics(rows))
    return Run(seen, traces, Path("0"))


def health(kind: type[IsolatedScript], ran: Run, configuration: dict, counted: bool = True) -> Health:
    standard = Standard(Failure(Signature("signal", "SIGFPE")))
    runner = SimpleNamespace(settings=SimpleNamespace(resolved={}, bad=BAD), horizon=12, standard=standard)
    isolated = kind(runner, Report("isolated"), run(), run(counted=counted), WISHES, str)
    return isolated.health_of(ran, Attempt(configuration, 0, 12, Aim.RESET, ""))


def test_a_script_that_has_not_met_its_rate_is_too_short_unless_it_came_to_its_end():
    assert health(IsolatedScript, run(), BAD).too_short
    assert health(IsolatedScript, run(stopped="end"), BAD) == Health(True)
    assert health(IsolatedScript, run(rate=1e-3), BAD) == Health(True)


@pytest.mark.parametrize("named", [BAD, {"warmup_steps": "10 %", "fp16": "no", "learning_rate": "3e-5"}])
def test_what_a_commands_settings_mean_is_not_known_whatever_they_are_called(named):
    assert health(IsolatedCommand, run(stopped=None), named) == Health(True)


@pytest.mark.parametrize("kind", [IsolatedScript, IsolatedCommand])
def test_a_death_and_a_drift_are_told_of_either(kind):
    died = health(kind, run(steps=4, died=Signature("signal", "SIGFPE")), {})
    assert (died.healthy, died.failed_at, died.signature) == (False, 5, str(Signature("signal", "SIGFPE")))
    diverged = health(kind, run(loss=1e3), {})
    assert not diverged.healthy and diverged.died is None and diverged.signature.startswith("not healthy: ")


def test_of_a_command_without_metrics_only_the_death_tells():
    assert health(IsolatedCommand, run(loss=1e3, counted=False), {}, counted=False) == Health(True)
    died = health(IsolatedCommand, run(0, Signature("exit", "1"), counted=False), {}, counted=False)
    assert died.failed_at == 0
