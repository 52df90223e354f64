"""Names of settings that a person typed, held against those there are: what was meant by one that there is not."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from bisect_cfg.common.parameters import successors
from bisect_cfg.errors import InputError

SIMILAR = 0.6
"""From so much likeness on (`difflib`) a setting may be the one that was meant: beta for betta. Names of settings are
long, so that less is enough for them than for options."""

_COMPLAINTS = re.compile(
    r"unexpected keyword|unrecognized argument|not used by|no attribute|no such option"
    r"|unknown (?:field|key|argument|option)|not a valid|is not (?:supported|recognized|accepted)"
    r"|deprecated|was removed|invalid (?:key|argument|field)",
    re.IGNORECASE,
)
"""How libraries and parsers say that they do not know a name. Elsewhere in a log it says nothing (`dtype`)."""


def nearest(name: str, known: Iterable[str], cutoff: float = SIMILAR) -> str:
    """The question whether the most similar of some names was meant; "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"Did you mean {near[0]}?" if near else ""


def outdated_in(text: str) -> str:
    """The name of `successors` that a log or message complains of and what became of it, "" if there is none
    (``lr: It is called learning_rate.``). It is a word of its own there: `lr` is none in ``async_lru``."""
    for line in filter(_COMPLAINTS.search, text.splitlines()):
        for name, successor in successors().items():
            if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", line):
                return f"{name}: {successor}"
    return ""


def check_name(name: str, known: Iterable[str], where: str, preferred: Sequence[str] = ()) -> None:
    """Make sure that a name exists.

    Args:
        name: what was typed.
        known: all names there are.
        where: it was typed, for the message.
        preferred: if given, only these may be used here.

    Raises:
        InputError: with the nearest real name.
    """
    if name not in known:
        advice = successors().get(name) or nearest(name, known)
        raise InputError(f"{where} names {name}, which this version does not know.", advice)
    if preferred and name not in preferred:
        raise InputError(
            f"{where}: {name} is not among the settings that differ between your script and the good configuration.",
            f"Those are: {', '.join(preferred)}.",
        )


def left_out(known: Sequence[str], only: Sequence[str], excluded: Sequence[str]) -> dict[str, str]:
    """What --only and --exclude leave out of the names that differ: name -> why it is not varied. Whoever names a group
    (`model_init_kwargs`) names all that is in it."""
    left = {name: "--exclude names it" for name in known if _within(name, excluded)}
    return left | {one: "it is not among those that --only names" for one in known if only and not _within(one, only)}


def naming_nothing(known: Sequence[str], only: Sequence[str], excluded: Sequence[str]) -> list[tuple[str, str]]:
    """What these options name and none of the known is or lies within: option and name."""
    given = [("--only", name) for name in only] + [("--exclude", name) for name in excluded]
    return [(option, name) for option, name in given if not any(_within(other, [name]) for other in known)]


def _within(name: str, groups: Sequence[str]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)
