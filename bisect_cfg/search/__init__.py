"""Which subset next: pure functions of recorded outcomes. No I/O, no clock, no torch, no Optuna."""

from bisect_cfg.search.problem import Ask, Conclusion, Done, FoundCause, Problem, Record, State, SubsetClaim, Wait
from bisect_cfg.search.search import look, next_question, not_needed

__all__ = [
    "Ask", "Conclusion", "Done", "FoundCause", "Problem", "Record", "State", "SubsetClaim", "Wait", "look",
    "next_question", "not_needed",
]  # fmt: skip
