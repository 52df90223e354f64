"""A runner on a script that was run cold once."""

from __future__ import annotations

import textwrap
from pathlib import Path

from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.trials import Trials
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.script import Script


class Started:
    """Trials of five steps of the script ``train.py`` in a folder, which is made here; close `site` when done."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(textwrap.dedent(text))
        (folder / "study/trials").mkdir(parents=True)
        self.runner = Trials(LocalEngine(Site(Script(folder / "train.py"), folder / "study"), 1))
        self.site, self.starts = self.runner.site, self.runner.site.starts
        self.first = self.runner.train(Plan(0, {}, 5, start="cold", patience=Patience(120, 60, 60), overrides={}))
        assert self.first.shown.signature is None
        self.capture = read_capture(self.first.traces.events.rows)
        self.starts.learn(self.capture)

    def start_at(self, start: str) -> None:
        """Let trials start there."""
        assert self.starts.start_at(start) is None
        self.runner.known_settings = Comparison(self.capture, self.starts.resolve).factors()

    def train(self, name: int, start: str | None = None, patience: Patience | None = None, **values: object) -> Run:
        """The bad configuration but for these values of the training config."""
        settings = self.runner.settings
        overrides = {**settings.overrides(settings.bad), **{f"args.{key}": value for key, value in values.items()}}
        return self.runner.train(Plan(name, settings.bad, 5, start=start, patience=patience, overrides=overrides))
