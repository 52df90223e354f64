"""Which subset next: pure functions of recorded outcomes. No I/O, no clock, no torch, no Optuna."""

from bisect_cfg.search.next import look, next_question
from bisect_cfg.search.problem import (
    Ask,
    Claim,
    Conclusion,
    Done,
    FoundCause,
    Problem,
    Question,
    Record,
    State,
    Wait,
)

__all__ = [
    "Ask",
    "Claim",
    "Conclusion",
    "Done",
    "FoundCause",
    "Problem",
    "Question",
    "Record",
    "State",
    "Wait",
    "look",
    "next_question",
]
