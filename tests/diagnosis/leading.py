"""What of an answer leads: the part that a reader acts upon."""

from __future__ import annotations

from bisect_cfg.diagnosis.explain import explain_text


def led(log: str) -> str:
    """The answer up to its reasons, on one line."""
    told = " ".join(str(explain_text(log)).split())
    return told[: told.find("Why this") if "Why this" in told else None]


def headline(log: str) -> str:
    """The answer up to what is to be done."""
    return led(log).partition("What to do, in this order")[0].partition("It may also be")[0]
