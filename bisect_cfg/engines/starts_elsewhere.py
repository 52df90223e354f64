"""The starts of trials that run at sites: what the tool learns of them is told to all sites, and asked there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest
from bisect_cfg.runner.fork_server import Starts
from bisect_cfg.runner.ranks import FirstLaunch
from bisect_cfg.runner.site import Site
from bisect_cfg.targets.captured import Capture


class StartsElsewhere(Starts):
    """The start that trials take, where sites bring up the servers.

    Args:
        site: of the tool, of whose starts these take the place.
        tell: all sites something.
        ask: one of them: what, about what.
    """

    def __init__(self, site: Site, tell: Callable[..., None], ask: Callable[[str, object], Any]) -> None:
        super().__init__(site.target, site.starts.folder, site.starts.supervisor, threading.Event())
        self._tell, self._ask = tell, ask
        site.checks.build = self.resolve

    def learn(self, capture: Capture | None, seconds: float = 0.0, launched: FirstLaunch | None = None) -> None:
        """Take in what the first run has shown, here and at all sites."""
        super().learn(capture, seconds, launched)
        if capture is not None:
            self._tell(op="learn", capture=capture, seconds=seconds, launched=launched)

    def start_at(self, start: str) -> str | None:
        """Have trials take a start from now on, if a site says that it is sound."""
        reason: str | None = self._ask("start_at", start)
        if reason is None:
            self.start = start
        return reason

    def resolve(self, item: BuildRequest) -> BuildAnswer:
        """Build one configuration object at a site."""
        answer: BuildAnswer = self._ask("resolve", item)
        return answer
