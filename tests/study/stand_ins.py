"""A study whose runs are made up: what each question shows is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import optuna

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.options import Options
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.report.events import Listener
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import Failure, Standard
from bisect_cfg.store.encoding import QUESTION
from bisect_cfg.store.state import State
from bisect_cfg.store.store import Store
from bisect_cfg.study.study import Study
from tests.report import made

IDENTITY: JsonObject = {
    "script": "train.py", "arguments": [], "python": "", "folder": "/", "script_hash": "", "good_file_hash": None,
    "files": {},
}  # fmt: skip


class Runner(Trials):
    """Runs nothing; notes what it is asked for, and from where.

    Args:
        folder: of the study.
        settings: what varies.
        shows: question -> the run that answers it.
        origin: where trials begin.
    """

    def __init__(
        self, folder: Path, settings: object, shows: Callable[[str], Run], origin: Origin | None = None
    ) -> None:
        self._runs: dict[int, Run] = {}
        super().__init__(SimpleNamespace(site=SimpleNamespace(folder=folder, load=self._runs.get)), settings)
        self.standard, self.horizon, self.origin = Standard(Failure(Signature("signal", "SIGFPE"))), 10, origin
        self.ran: list[tuple[str, Plan, Origin | None]] = []
        self._shows, self.store = shows, Store((), optuna.storages.InMemoryStorage(), None)

    def train(self, plan: Plan) -> Run:
        question = self.store.study.trials[plan.name].user_attrs[QUESTION]
        self.ran.append((question, plan, self.origin))
        return self._runs.setdefault(plan.name, self._shows(question))


def study_of(folder: Path, runner: Runner, **options: object) -> Study:
    """A study in a folder, whose answer is that of `tests.report.made`."""
    study = Study(None, Options(**options), Listener(), folder, State(IDENTITY, {}), runner.store, runner)
    study.answer = made.findings(folder)
    study.baselines = SimpleNamespace(moved={})
    return study
