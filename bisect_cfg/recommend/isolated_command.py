"""One isolated command as safe values need it: what `isolated` is for a training script.

Nobody knows what a command takes, so any number between good and bad may be tried, and no other setting is offered. Nor
does it have seeds: what is verified is run again as it is. Where it prints no metrics, a run that passes is healthy.
"""

from __future__ import annotations

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.recommend.alternatives import Alternative
from bisect_cfg.recommend.attempts import Attempt
from bisect_cfg.recommend.isolated import IsolatedScript
from bisect_cfg.recommend.schedule import Prefix
from bisect_cfg.recommend.search_range import SearchRange, search_range_of
from bisect_cfg.store.causes import Cause


class IsolatedCommand(IsolatedScript):
    """A command whose failure is isolated; arguments as of `IsolatedScript`."""

    def identity(self, changes: Configuration) -> str | None:
        """None: nobody knows whether two values come to the same."""
        return None

    def search_range(self, name: str, changes: Configuration) -> SearchRange | None:
        """The numbers between the two levels of a setting."""
        levels = self._settings
        return search_range_of(name, levels.good[name], levels.bad[name], ratio=self._wishes.ratio)

    def alternatives(self, cause: Cause) -> list[Alternative]:
        """The versions that are known to cure the failure: all others that are known are of training configs."""
        return list(self._wishes.cures)

    def values(self, configuration: Configuration) -> dict[str, Value]:
        """Nothing: what a command's settings mean is not known, whatever they are called."""
        return {}

    def prefix(self, configuration: Configuration, steps: int) -> Prefix:
        """A run of so many steps: of a warmup nothing is known."""
        return Prefix(steps, 0, False)

    def seed(self, number: int) -> int:
        """The number of a run of the same configuration, in place of a seed."""
        return number

    def ordered(self, question: Attempt) -> tuple[Configuration, int | None]:
        """What is to be run, and for how many steps; None: to its end."""
        return question.configuration, question.steps if self._counted else None
