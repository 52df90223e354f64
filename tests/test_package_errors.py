"""The exceptions that are meant for the user."""

from __future__ import annotations

import pytest

from bisect_cfg.errors import InputError


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("train.py cannot be read: No such file..", "train.py cannot be read: No such file."),
        ("It is refused: no.. See its log.", "It is refused: no. See its log."),
        ("It goes on ... and on...", "It goes on ... and on..."),
        ("../train.py and a..b are fine.", "../train.py and a..b are fine."),
    ],
)
def test_a_sentence_that_quotes_another_ends_once(message, said):
    error = InputError(message, "Do this.")
    assert error.message == said and str(error) == f"{said}\nDo this."
