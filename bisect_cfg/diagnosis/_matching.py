"""Whether a known failure's clues are all there, why, and how much that says.

One that needs more clues, and has more of its hints, says more; a general one gives way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from bisect_cfg.configuration import Configuration
from bisect_cfg.diagnosis._reading import EVIDENCE
from bisect_cfg.diagnosis._render import Line, Match
from bisect_cfg.diagnosis._row_facts import FACTS
from bisect_cfg.diagnosis._types import Fingerprint
from bisect_cfg.diagnosis.advice.signatures import taken_here
from bisect_cfg.diagnosis.conditions import evaluate
from bisect_cfg.diagnosis.knowledge import Clue, Entry, EntryCase
from bisect_cfg.probe.secrets import scrub

AFTERMATH, GENERAL, SPECIFIC, FOR_ALL, FOR_HINT, FOR_CONDITION = -20, 4, 10, 3, 2, 2
"""What a match is worth. A specific entry beats a general one unless four hints speak for the general one,
and an entry that needs a second clue beats one that does not. One that says that the cause is elsewhere beats
nothing."""

LONGEST_REASON = 100
"""Characters of a clue's words that are repeated as the reason for an answer."""


def match(
    entry: Entry,
    found: Mapping[Clue, list[Line]],
    survived: set[Clue],
    environment: Fingerprint | None,
    configuration: Configuration | None,
    near: Callable[[Line], bool],
) -> tuple[Match, list[Line], bool] | None:
    """The match, the lines of the clues it rests on, and whether it rests on lines alone.

    `near` says of a line whether it is no further before the error than what belongs to it.
    """
    present = [clue for clue in entry.any if clue in found and clue not in survived]
    needed = [[clue for clue in group if clue in found] for group in entry.all]
    if not present or not all(needed):
        return None
    if any(clue in found for clue in entry.unless):
        return None
    # What a general entry needs before it may lead is no hint that it says more than a specific one.
    hints = [clue for clue in (*entry.hints, *(() if entry.general else entry.only_if)) if clue in found]
    conditions = evaluate(entry.conditions, environment, configuration)
    if any(condition.holds is False for condition in conditions):
        return None
    holding = [condition for condition in conditions if condition.holds]
    score = AFTERMATH if entry.aftermath else GENERAL if entry.general else SPECIFIC
    score += FOR_ALL * len(entry.all) + FOR_HINT * len(hints) + FOR_CONDITION * len(holding)
    seen = [*present, *(group[0] for group in needed), *hints]
    why = [_reason(clue, found[clue]) for clue in seen]
    why += [f"{condition.found} ({condition.asks})" for condition in holding]
    shown = [line for clue in seen for line in found[clue][:EVIDENCE]]
    lines = {replace(line, text=scrub(line.text)) for line in shown}
    decided, still_open = [], []
    # A word that stood somewhere in the hours before decides nothing; a fact without a line is one of the whole run.
    beside = {
        clue: close
        for case in entry.cases
        for clue in (*case.any, *case.unless)
        if (close := [line for line in found.get(clue, ()) if near(line)]) or found.get(clue) == []
    }
    for case in entry.cases:
        holds, reasons, lines_of_case = _decides(case, beside, environment, configuration)
        if holds:
            decided.append(case)
            why += reasons
            lines |= {replace(line, text=scrub(line.text)) for line in lines_of_case}
        elif holds is None:
            still_open.append(case)
    score += FOR_CONDITION * bool(decided)
    unchecked = tuple(condition.asks for condition in conditions if condition.holds is None)
    evidence = tuple(sorted(lines, key=lambda line: (line.file, line.number, line.text)))
    # A clue that is needed besides counts as well: of two exceptions the entry may have the other one in mind.
    resting = [line for clue in (*present, *(group[0] for group in needed)) for line in found[clue]]
    named = {name: (environment or {}).get(name, "") for name in ("collectives", "answers")}
    if "{here|" in "".join(entry.cures):
        named["here"] = next(filter(None, (taken_here(line.text) for line in resting)), "")
    for clue in (*seen, *(clue for case in decided for clue in case.any if clue in beside)):
        for line in found[clue] if clue.kind == "line" and "(?P<" in clue.value else ():
            caught = re.search(clue.value, line.text)
            for name, value in (caught.groupdict() if caught else {}).items():
                if value:
                    named.setdefault(name, scrub(value))
    return (
        Match(entry, score, tuple(dict.fromkeys(why)), evidence, unchecked, named, tuple(decided), tuple(still_open)),
        resting,
        all(clue.kind == "line" for clue in present),
    )


def _decides(
    case: EntryCase,
    found: Mapping[Clue, list[Line]],
    environment: Fingerprint | None,
    configuration: Configuration | None,
) -> tuple[bool | None, list[str], list[Line]]:
    """Whether the log speaks for one cause of several (None: it says nothing of it), why, and the lines that do."""
    conditions = evaluate(case.conditions, environment, configuration)
    if any(clue in found for clue in case.unless) or any(condition.holds is False for condition in conditions):
        return False, [], []
    seen = [clue for clue in case.any if clue in found]
    if (case.any and not seen) or not all(condition.holds for condition in conditions):
        return None, [], []
    reasons = [_reason(clue, found[clue]) for clue in seen]
    reasons += [f"{condition.found} ({condition.asks})" for condition in conditions]
    return True, reasons, [line for clue in seen for line in found[clue][:1]]


def applies(
    entry: Entry,
    found: Mapping[Clue, list[Line]],
    environment: Fingerprint | None,
    configuration: Configuration | None,
) -> bool:
    """Whether something in sight says that this specific entry is meant: one of its `only_if`, or all its
    conditions."""
    if not entry.only_if or any(clue in found for clue in entry.only_if):
        return True
    conditions = evaluate(entry.conditions, environment, configuration)
    return bool(conditions) and any(condition.holds for condition in conditions)


def _reason(clue: Clue, lines: list[Line]) -> str:
    place = f"line {lines[0].number}: " if lines else ""
    if clue.kind == "metric":
        return place + FACTS[clue.value]
    if clue.kind == "signal":
        return f"{place}the process was ended by {clue.value}"
    # The words that matched tell which of the lines below is meant; a clue across lines has only its first one here.
    found = re.search(clue.value, lines[0].text) if lines else None
    words = " ".join((found.group() if found else lines[0].text if lines else clue.value).split())
    words = words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON].rpartition(' ')[0] or words[:60]} ..."
    return f"{place}“{scrub(words)}”"
