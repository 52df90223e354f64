"""bisect-cfg: which of my settings break this GRPO run, and what may I use instead?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bisect_cfg.api import bisect, load
    from bisect_cfg.configuration import Outcome
    from bisect_cfg.phases.bisection import Bisection
    from bisect_cfg.study.interface import TrialResult

__all__ = ["Bisection", "Outcome", "TrialResult", "bisect", "load"]

_PLACES = {
    "Bisection": "bisect_cfg.phases.bisection",
    "Outcome": "bisect_cfg.configuration",
    "TrialResult": "bisect_cfg.study.interface",
    "bisect": "bisect_cfg.api",
    "load": "bisect_cfg.api",
}


def __getattr__(name: str) -> object:
    """Import the public names when first used: Optuna takes a second that ``bisect-cfg --help`` must not."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
