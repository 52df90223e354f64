"""The one exception that is meant for the user: it says what happened and what to do next."""

from __future__ import annotations


class InputError(Exception):
    """Something about the input stands in the way.

    Args:
        message: what happened, where.
        advice: what to do about it.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n{self.advice}" if self.advice else self.message
