"""The exceptions that are meant for the user: what happened, what to do next; and how options are called in them."""

from __future__ import annotations

import re

_TWO_DOTS = re.compile(r"(?<!\.)\.\.(?=\s|$)")


class InputError(Exception):
    """Something about the input stands in the way.

    Args:
        message: what happened, where. What it quotes of others may end in a dot of its own.
        advice: what to do about it.
    """

    status = 2
    """The exit status that it means."""

    def __init__(self, message: str, advice: str = "") -> None:
        self.message = _TWO_DOTS.sub(".", message)
        super().__init__(self.message)
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n{self.advice}" if self.advice else self.message

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: where in our code it was raised helps nobody."""
        return [f"{type(self).__name__}: {self.message}", *filter(None, [self.advice])]


def flag_of(option: str) -> str:
    """An option of a bisection, as it is called in Python, as one types it: ``max_trials`` -> ``--max-trials``."""
    return "--" + option.replace("_", "-")


class NeverConfigured(InputError):
    """A script that ends before it builds a training config: as a training there is nothing about it to vary."""


class InputsChanged(InputError):
    """What the trials read changed while they ran. What was recorded before stands; nothing more can be added."""

    status = 3
