"""Shared by all tests: running the command line in a process of its own, and seeing that nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import toys
from hypothesis import HealthCheck, settings
from tools import ForkedTool, Tool

from bisect_cfg.probe.protocol import TrialOrders
from bisect_cfg.runner.fork_server import ForkServer
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.supervisor import Supervisor
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.training import Training
from bisect_cfg.runner.watch import watch
from bisect_cfg.targets.captured import Capture, read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.factors import Factors

# A shell without job control starts background commands with SIGINT ignored, and so would be all that we start:
# the tests of Ctrl-C would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What lands is decided by the code, not by the day's dice: `.ci/run` draws the same examples each time. Everybody else
# draws new ones, and `--hypothesis-profile=hunt` many. None has a time limit: the machine may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("landing", settings.get_profile("patient"), derandomize=True)
settings.register_profile("hunt", settings.get_profile("patient"), max_examples=2_000)
settings.load_profile("patient")


TRAINING_FIXTURES = frozenset({"library", "warm", "real_tool", "bisected", "bench"})
"""Whatever starts a training needs one of these, or says so itself (`pytest.mark.training`)."""


LONGEST = (
    "cmd", "origin", "explore", "studies", "inputs", "launches", "resume", "hostile", "cli", "every_setting", "search",
    "random_failures", "watch",
)  # fmt: skip
"""Files that are begun first (`test_*.py`, half a minute of work and more, or of waiting): a worker takes a file at a
time, and a long one that is begun last would decide the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also the tests that are marked slow")


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))
        if TRAINING_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("training")
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem.removeprefix("test_"), len(order)))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for torch, transformers and trl."""
    return toys.write_library(tmp_path_factory.mktemp("library"))


LAUNCHER = """
import json, os, runpy, sys
told = json.loads(os.environ.pop("TOLD"))
sys.argv = told["argv"]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
os.chdir(sys.path[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class WarmTRL:
    """One process that has imported torch, transformers, trl and peft, and forks a child per script: real TRL, without
    the ten seconds of imports for every test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        launcher = folder / "launcher.py"
        launcher.write_text(LAUNCHER)
        self.supervisor = Supervisor()
        modules = ["torch", "transformers", "peft", "datasets", "trl", "trl.trainer.grpo_trainer"]
        self.server = ForkServer([sys.executable, str(launcher)], os.environ, modules, folder, self.supervisor)
        assert self.server.wait_until_ready(300, threading.Event()) is None
        self.count = 0

    def run(self, script: Path, *argv: str, steps: int | None = 1, settings: Factors | None = None,
            configuration: dict | None = None, patience: float = 60.0, **request_besides: object) -> Run:  # fmt: skip
        """Run a script to `steps` optimizer steps, or to wherever it comes; with `settings` under a configuration."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        overrides = request_besides.pop("overrides", {})
        request = TrialOrders(
            str(folder), settings.overrides(configuration) if settings is not None else overrides,
            targets=settings.targets if settings is not None else None, steps=steps,
            env={"TOLD": json.dumps({"argv": [str(script), *argv]})}, **request_besides,
        )  # fmt: skip
        traces, forked = Traces(folder), self.supervisor.open(folder)
        self.server.fork(forked, request)
        ending = watch(Training(forked, traces), traces, Patience(patience, patience, patience))
        traces.read()
        return Run(observe(traces, ending), traces, folder)

    def capture(self, script: Path, *argv: str, **options: object) -> Capture:
        run = self.run(script, *argv, **options)
        assert run.seen.died is None, (run.folder / "log.txt").read_text()[-3000:]
        return read_capture(run.traces.events.rows)

    def settings(self, script: Path, *argv: str, **options: object) -> Factors:
        """The factors of a script."""
        return Comparison(self.capture(script, *argv), self.server.resolve, **options).factors()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmTRL]:
    made = WarmTRL(tmp_path_factory.mktemp("warm"))
    yield made
    made.server.close()
    made.supervisor.close()


@pytest.fixture
def tool(tmp_path: Path, library: Path) -> Iterator[ForkedTool]:
    """The command line in `tmp_path`, for scripts that use the stand-in library, without the seconds of its imports."""
    made = ForkedTool(tmp_path, library)
    yield made
    for process in made.left():
        process.kill()


@pytest.fixture
def fresh_tool(tmp_path: Path, library: Path) -> Iterator[Tool]:
    """As `tool`, each command in an interpreter of its own: where that is what is tested."""
    made = Tool(tmp_path, library)
    yield made
    for process in made.left():
        process.kill()


@pytest.fixture
def real_tool(tmp_path: Path) -> Iterator[Tool]:
    """As `fresh_tool`, for scripts that use real TRL."""
    made = Tool(tmp_path, None)
    yield made
    for process in made.left():
        process.kill()
