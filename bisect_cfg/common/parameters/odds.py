"""How likely each setting is to take part in the cause before any trial: the odds that a search begins with.

They steer which question comes first and so how many trials an answer takes. They never decide an answer: a
cause is claimed on runs alone. Once it is known how the run fails they are sharper: memory runs out over
batch and length, whatever the learning rate, and a policy that collapses does not mind the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bisect_cfg.common.parameters import parameter, table

NAMED = 30.0
"""What it does to the odds of a setting that the failure's message or the line of code names ("Number of
reward weights" and `reward_weights`): such messages are mostly right about where, if not about why."""


def names_it(text: str, name: str) -> bool:
    """Whether a text names a setting, as an identifier or in plain words."""
    words = name.split(".")[-1].split("_")
    pattern = r"(?<![A-Za-z0-9])" + "[_ -]".join(map(re.escape, words)) + r"(?![A-Za-z0-9])"
    return re.search(pattern, text, re.IGNORECASE) is not None


def odds_of(
    names: Sequence[str], prior: str | Mapping[str, float], failure: str = "", said: str = ""
) -> tuple[float, ...]:
    """The odds of each name: none for "flat" (all are equal), of the table for "risk", else of the mapping (1 for names
    that it leaves out). "risk" is sharpened by the kind of the failure under study, and by what it has said: settings
    that it names are likelier."""
    if prior == "flat":
        return ()
    if isinstance(prior, str):
        named = {name for name in names if said and names_it(said, name)}
        return tuple(risk_of(name, failure) * (NAMED if name in named else 1.0) for name in names)
    return tuple(float(prior.get(name, 1.0)) for name in names)


def risk_of(name: str, failure: str = "") -> float:
    """The table's odds of one dotted name, given how the run fails."""
    known = parameter(name)
    return known.risk * table().failures.get(failure, {}).get(known.group, 1.0)
