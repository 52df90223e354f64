"""bisect-cfg: which of my settings break this GRPO run, and what may I use instead?"""

TYPE_CHECKING = False  # as `typing` has it, whose import would take longer than anything else here
if TYPE_CHECKING:
    from bisect_cfg.api import bisect, load
    from bisect_cfg.common.configuration import Outcome
    from bisect_cfg.store.interface import TrialResult
    from bisect_cfg.study.bisection import Bisection

__all__ = ["Bisection", "Outcome", "TrialResult", "bisect", "load"]

_PLACES = {
    "Bisection": "bisect_cfg.study.bisection",
    "Outcome": "bisect_cfg.common.configuration",
    "TrialResult": "bisect_cfg.store.interface",
    "bisect": "bisect_cfg.api",
    "load": "bisect_cfg.api",
}


def __getattr__(name: str) -> object:
    """Import the public names when first used: Optuna takes a second that ``bisect-cfg --help`` must not."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What a TAB offers."""
    return sorted(__all__)
