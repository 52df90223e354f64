"""When a known failure may lead an answer, and when it is only named beside the error.

An entry matches on words. Words are shared: an attribute that is missing, weights that do not load and a process that
crashed have many causes, and an entry knows one of them. It leads only if what it knows is what the log is about, and
nothing in the log speaks against it. Otherwise the error comes first, plainly, and the entry after it as something
that it may have to do with. Each rule names what it looks at:

    family      an entry that knows only the family of a failure (`wide`) leads where the log decides for one of its
                cases, or where the traceback names the part that is meant (`advice.DEFINITE`)
    name        Python's own messages are about one name: the attribute, argument, key or name that is missing. An
                entry whose clues leave that name out knows who complains, and not about what
    kind        an entry whose clues cover nothing of the message but the exception's type knows its kind only
    row         an entry about the data's columns does not hold where the line that fails asks something else
    inner       a message that quotes another error is about that one
    trainer     an entry about one way of training does not hold where the log shows another
    component   an entry about an engine, a trainer or a library needs it in sight of the log (`_components`)

What another kind of evidence shows (a signal, rows of metrics, silence, a warning that comes before its error) is not
in the message, so the rules about its words do not apply there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bisect_cfg.diagnosis._components import Absent
from bisect_cfg.diagnosis._components import named as named_in
from bisect_cfg.diagnosis.advice.reading import INNER
from bisect_cfg.diagnosis.knowledge import Clue, Entry, EntryCase

_NOTHING = Absent()

MESSAGE_WORDS = 4
"""Words from which on a message says more than the type of its exception."""

_NAMES = re.compile(
    r"has no attribute '(?P<attribute>\w+)'|name '(?P<name>\w+)' is not defined|cannot import name '(?P<import>\w+)'"
    r"|unexpected keyword argument '(?P<argument>\w+)'|KeyError: ['\"](?P<key>[\w./-]+)['\"]$"
    r"|No module named '(?P<module>[\w.]+)'"
)
"""Python's messages about one name."""

_TYPE = re.compile(r"^(?:[\w.]+(?:Error|Exception|Exit|Failure))(?:: ?|$)")
_WORD = re.compile(r"[A-Za-z_]{3,}")

_TRAINERS = re.compile(r"\b(GRPO|PPO|DPO|SFT|KTO|ORPO|CPO|RLOO|Reward|OnlineDPO)(?:v2)?(?:Trainer|Config)\b")


def doubt(
    entry: Entry,
    decided: Sequence[EntryCase],
    message: str,
    definite: bool,
    shown: str,
    elsewhere: bool,
    absent: Absent = _NOTHING,
    of_a_row: bool | None = None,
) -> str:
    """Why an entry should not lead; "" if it may.

    Args:
        entry: the known failure.
        decided: its cases for which the log speaks.
        message: the error that says most about the cause, on one line; "" if there is none.
        definite: whether the traceback says which part is meant.
        shown: the log around the error.
        elsewhere: whether a clue stands in other lines than the message's.
        absent: components that have no part in the failure (`_components`).
        of_a_row: whether the line that fails asks a row of the data for a key; None if it does not tell.
    """
    if entry.wide and not decided and not definite:
        return "only the family of the failure is known"
    trainers = set(_TRAINERS.findall(shown))
    named = {name for name in ("GRPO", "PPO", "DPO", "SFT") if re.search(rf"\b{name}\b", entry.title)}
    if named and trainers and not named & trainers and not re.search("|".join(named), shown, re.IGNORECASE):
        return f"the log is of {', '.join(sorted(trainers))}"
    of_component = named_in(entry.title)
    if of_component and of_component <= absent.unseen:
        return f"nothing in the log is of {' or '.join(sorted(of_component))}"
    if not message or any(clue.kind != "line" for clue in entry.any):
        return ""
    covered = _covered(entry, decided, message)
    if not covered:
        return ""  # it rests on the lines of the traceback, or on what is known to come before such an error
    inner = INNER.search(message)
    if inner and not covered & set(range(*inner.span(inner.lastgroup))):
        return "the message hands on another error"
    name = _NAMES.search(message)
    if of_a_row is False and name and name.lastgroup == "key" and "column" in entry.title:
        return "the line that fails does not ask a row of the data"
    if name and not elsewhere and not covered & set(range(*name.span(name.lastgroup))):
        return "" if definite else f"nothing is known of the name {name[name.lastgroup]}"
    said = _TYPE.match(message)
    words = [word.start() for word in _WORD.finditer(message, said.end() if said else 0)]
    if len(words) >= MESSAGE_WORDS and not elsewhere and not covered & set(words) and not (definite or decided):
        return "only the kind of the exception is known"
    return ""


def _covered(entry: Entry, decided: Sequence[EntryCase], message: str) -> set[int]:
    """The places of the message that the entry's clues match."""
    clues: list[Clue] = [*entry.any, *entry.hints, *entry.only_if]
    clues += [clue for group in entry.all for clue in group] + [clue for case in decided for clue in case.any]
    found = (match for clue in clues if clue.kind == "line" for match in re.finditer(clue.value, message))
    return {place for match in found for place in range(*match.span())}
