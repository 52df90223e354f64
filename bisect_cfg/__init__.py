"""bisect-cfg: which of my settings break this GRPO run, and what may I use instead?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bisect_cfg.api import bisect, load
    from bisect_cfg.configuration import Outcome
    from bisect_cfg.phases.bisection import Bisection
    from bisect_cfg.study.interface import TrialResult

__all__ = ["Bisection", "Outcome", "TrialResult", "bisect", "load"]


def __getattr__(name: str) -> object:
    """Import the public names when first used: Optuna takes a second that ``bisect-cfg --help`` must not."""
    if name == "Bisection":
        from bisect_cfg.phases.bisection import Bisection

        return Bisection
    if name == "bisect":
        from bisect_cfg.api import bisect

        return bisect
    if name == "load":
        from bisect_cfg.api import load

        return load
    if name == "Outcome":
        from bisect_cfg.configuration import Outcome

        return Outcome
    if name == "TrialResult":
        from bisect_cfg.study.interface import TrialResult

        return TrialResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
