"""Which known failures a log shows, and which of them explains its cause.

Every clue of every entry is looked for once, in the lines that were kept. An entry whose clues are there is worth more
the more it asks for, the more of its conditions hold, and the nearer its lines stand to the cause
(`events.cause_of`). It may lead unless its lines tell of something else: of what was survived, of a warning elsewhere,
of a mere consequence, or of metrics where an error that has nothing to do with numbers ended the run. An entry that may
not lead is mentioned.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bisect_cfg.common.conditions import Checked, evaluate, facts_of, with_bare_names
from bisect_cfg.common.configuration import Configuration
from bisect_cfg.common.failures.signals import SENT_BY_OTHERS, reported_signal
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.common.words import show
from bisect_cfg.explain import hang, metric_facts
from bisect_cfg.explain.events import NATIVE, Event, cause_of
from bisect_cfg.explain.knowledge import Case, Clue, Entry
from bisect_cfg.explain.reader import Reading
from bisect_cfg.probe.redact import scrub

GENERAL, SPECIFIC, PER_GROUP, PER_CONDITION, PER_CASE = 4, 10, 3, 2, 2
"""What an entry is worth: a specific one beats a general one, one that asks for more beats one that asks for less."""

IN_CAUSE, IN_ERROR = 5, 2
"""What it is worth beside that, that its lines belong to the cause, or to another error that was not survived."""

HITS = 12
"""Lines kept of each clue. A device-side assertion prints thousands of the same."""

EVENTS = 60
"""Events whose whole message is read as one text, for patterns that a terminal has wrapped over lines."""

FACT_OF_KIND = {
    "non-finite": "non-finite-gradient",
    "diverged": "loss-diverged",
    **{kind: kind for kind in ("collapse", "no-gradient", "dead-reward", "engine-drifts", "no-steps")},
}
"""Kinds of a failure seen by somebody else (a trial) that are a fact of the metrics."""

_OF_NUMBERS = re.compile(
    r"\bnans?\b|\binf\b|non-?finite|not finite|overflow|loss scale|scaler|multinomial|probability tensor", re.IGNORECASE
)
"""An error that numbers bring about."""

_GLOO = re.compile(r"gloo/transport|ProcessGroupGloo|backend\W{1,4}gloo\b")
"""A log of processes that talk over gloo."""

_HEALTHY_ROW = re.compile(r"\s*\{'(?:loss|eval_loss|train_loss)'(?!.*\b(?:nan|inf|NaN|Infinity)\b)")
"""A row of the Trainer's metrics, of which a long log is full."""

_ONLY_WARNS = re.compile(
    r"\b(?:WARN(?:ING)?|INFO|DEBUG|NOTICE)\b|(?:^|[\s:.])\w*Warning: |^[WI]\d{4} \d\d:|\[W\d{3,4} "
)
_QUOTED = re.compile(r'(?:^|[\s(])["“][^"”]{8,}["”]|^\s*#+ .*|`[^`]*\s[^`]*`')
_FIELD = re.compile(r"\{(?P<name>[a-z]\w*)\|(?P<default>[^{}|]*)\}")


@dataclass(frozen=True)
class Line:
    """A line of a log, counted from 1, and the file it stands in where there are several."""

    number: int
    text: str
    file: str = ""


@dataclass(frozen=True)
class Match:
    """A known failure that a log shows.

    Attributes:
        entry: what is known of it.
        score: how much speaks for it.
        lines: that show it, the most telling first.
        case: the one of its causes that the log speaks for, if any.
        named: what the clues' named groups caught.
        unchecked: conditions that nothing decides.
        leads: whether it may explain the cause; otherwise it is mentioned.
        words: length of the longest plain words that it was found by: of two entries that are worth the same, the one
            that asks for more of the line is the more special one.
    """

    entry: Entry
    score: int
    lines: tuple[Line, ...]
    case: Case | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    leads: bool = True
    words: int = 0

    @property
    def title(self) -> str:
        """What happened, in one line: as special as the log allows."""
        return self.filled(self.case.title if self.case else self.entry.title)

    @property
    def why(self) -> str:
        """The mechanism."""
        return self.filled(self.case.why if self.case and self.case.why else self.entry.why)

    @property
    def cures(self) -> tuple[str, ...]:
        """What to do, first thing first; the cures of the case before those of the whole entry."""
        own = self.case.cures if self.case else ()
        rest = () if self.case and self.case.why else self.entry.cures
        return tuple(dict.fromkeys(map(self.filled, (*own, *rest))))

    def filled(self, text: str) -> str:
        """The text with the log's own words: `{port|29500}` is the group `port` of a clue, or 29500."""
        return _FIELD.sub(lambda found: self.named.get(found["name"]) or found["default"], text)


@dataclass
class Run:
    """What the files of one run say together.

    Attributes:
        readings: the files.
        environment: what is known of where it ran, from the log or from elsewhere.
        configuration: the settings it ran with, as far as known.
        found: the lines of each clue.
        cause: the event that says most about why it died.
        events: all of them.
    """

    readings: Sequence[Reading]
    environment: Fingerprint
    configuration: Configuration
    found: dict[Clue, list[Line]]
    cause: Event | None
    events: list[Event]

    def is_settled_by_an_error(self) -> bool:
        """Whether an exception or a crash of native code says what the run died of."""
        cause = self.cause
        return cause is not None and cause.weight <= NATIVE and not hang.only_ended(cause.text)


def examine(
    readings: Sequence[Reading],
    entries: Sequence[Entry],
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
    failure: Signature | None = None,
) -> Run:
    """Looks for everything in the files of one run that `matches` asks of it.

    Args:
        readings: those files.
        entries: the known failures.
        environment: a fingerprint of where it ran, if known.
        configuration: the settings it ran with, if known.
        failure: the failure, where somebody saw more than the log has.
    """
    events = [event for reading in readings for event in reading.events]
    cause = cause_of(events)
    logs = [reading for reading in readings if not reading.not_a_log]
    ends = "\n".join(reading.ends for reading in logs)
    told = facts_of(ends)
    if _GLOO.search(ends) and "NCCL INFO" not in ends:
        told["backend"] = "gloo"
    if any(reading.rows.count for reading in readings):
        rewarded = any("reward" in row.values for one in readings for row in one.rows.rows)
        told["task"] = "rl" if rewarded else "supervised"
    rates = [row.values["learning_rate"] for one in readings for row in one.rows.rows if "learning_rate" in row.values]
    traced = {"learning_rate": max(rates)} if rates else {}  # a warmup begins at 0, a schedule ends there
    found = _lines_of_clues(logs, entries)
    for reading in readings:
        for name, rows in metric_facts.facts(reading.rows.rows).items():
            found.setdefault(Clue("metric", name), []).extend(Line(row.number, row.text, reading.name) for row in rows)
    if any(not event.survived for event in events):
        found.pop(Clue("metric", "no-steps"), None)  # it did not end well
    # An exception that ended the run says more than that nothing moved before it, unless somebody sent it.
    if cause is None or hang.only_ended(cause.text) or (cause.follows and not cause.frames):
        found |= _standstill(logs)
    if failure is not None:
        seen = Clue("signal", failure.name) if failure.kind == "signal" else None
        if failure.kind in FACT_OF_KIND:
            seen = Clue("metric", FACT_OF_KIND[failure.kind])
        if seen:
            found.setdefault(seen, [])
    known = {**traced, **(configuration or {})}
    return Run(readings, {**told, **(environment or {})}, known, found, cause, events)


def matches(run: Run, entries: Iterable[Entry]) -> list[Match]:
    """The known failures that a run shows: those that may lead first, each group by what speaks for it."""
    judged = (_match(entry, run) for entry in entries)
    found = [match for match in judged if match is not None]
    order = lambda one: (not one.leads, -one.score, -one.words, one.lines[0].number if one.lines else 0)  # noqa: E731
    return sorted(found, key=order)


def _lines_of_clues(readings: Sequence[Reading], entries: Iterable[Entry]) -> dict[Clue, list[Line]]:
    """Where the lines of the patterns stand, and which signals were reported."""
    clues = {clue for entry in entries for clue in entry.clues if clue.kind == "line"}
    found: dict[Clue, list[Line]] = {}
    for reading in readings:
        texts, numbers = _texts(reading)
        whole = "\n".join(texts)
        starts = _starts(texts)
        for clue in clues:
            hits = _hits(clue, whole, texts, starts)
            if hits:
                lines = (Line(numbers[at], texts[at].strip(), reading.name) for at in hits)
                found.setdefault(clue, []).extend(dict.fromkeys(lines))
        for event in reading.events:
            if event.kind in ("signal", "native") and not event.survived and (name := reported_signal(event.text)):
                found.setdefault(Clue("signal", name), []).append(Line(event.line, event.text, reading.name))
    return found


def _texts(reading: Reading) -> tuple[list[str], list[int]]:
    """The lines to look at, without metric rows; and whole messages, for what a terminal has wrapped."""
    lines = [line for line in reading.lines if not _HEALTHY_ROW.match(line.text)]
    texts, numbers = [line.text for line in lines], [line.number for line in lines]
    for event in reading.events[:EVENTS]:
        parts = scrub(event.message).split("\n")  # a secret is told by what stands before it, which joining changes
        if len(parts) > 1:
            for joined in (" ".join(part.strip() for part in parts), "".join(part.strip() for part in parts)):
                texts.append(joined)
                numbers.append(event.line)
    return texts, numbers


def _starts(texts: Sequence[str]) -> list[int]:
    starts, at = [], 0
    for text in texts:
        starts.append(at)
        at += len(text) + 1
    return starts


def _hits(clue: Clue, whole: str, texts: Sequence[str], starts: Sequence[int]) -> list[int]:
    """Indices of the texts that a pattern matches: it is run where its longest plain word stands."""
    word, others = clue.words[0], clue.words[1:]
    hits: list[int] = []
    tried = 0
    place = whole.find(word)
    while place >= 0 and len(hits) < HITS and tried < 50 * HITS:
        at = bisect_right(starts, place) - 1
        text = texts[at]
        tried += 1
        if all(other in text for other in others) and re.search(clue.value, text):
            hits.append(at)
        place = whole.find(word, starts[at] + len(text))
    return hits


def _standstill(readings: Sequence[Reading]) -> dict[Clue, list[Line]]:
    """The facts of a log that ends in a silence or before its first step."""
    found: dict[Clue, list[Line]] = {}
    for reading in readings:
        silent = hang.silence(reading.lines, reading.rows.count)
        if silent is not None:
            told = [Line(silent.told_line, silent.told, reading.name)]
            told += [Line(silent.line, str(silent), reading.name)] if silent.line else []
            found.setdefault(Clue("metric", "stalled"), []).extend(told)
        elif not reading.rows.count and not any(not event.survived for event in reading.events):
            stands = hang.standing(reading.lines)
            if stands is not None:
                line = Line(stands.number, stands.text.strip(), reading.name)
                found.setdefault(Clue("metric", "standing"), []).append(line)
    return found


def _match(entry: Entry, run: Run) -> Match | None:
    found = run.found
    present = [clue for clue in entry.any if clue in found]
    groups = [[clue for clue in group if clue in found] for group in entry.all]
    if not present or not all(groups) or any(clue in found for clue in entry.unless):
        return None
    checked = evaluate(entry.conditions, run.environment, run.configuration)
    if any(one.holds is False for one in checked):
        return None
    lines = [line for clue in (*present, *(group[0] for group in groups)) for line in found[clue]]
    of_metrics = any(clue.kind == "metric" for clue in present)
    by_line = all(clue.kind == "line" for clue in present)
    if by_line and not lines:
        return None
    worth = _worth(lines, run, entry.lasting)
    if by_line and not worth and _harmless(lines, run, entry.lasting):
        return None
    holding = sum(one.holds is True for one in checked)
    case = _case(entry, run)
    score = (GENERAL if entry.general else SPECIFIC) + PER_GROUP * len(groups) + PER_CONDITION * holding
    score += worth + (PER_CASE if case else 0)
    return Match(
        entry,
        score,
        tuple(_most_telling(lines, run)),
        case,
        _named(entry, case, run),
        tuple(one.asks for one in checked if one.holds is None),
        _may_lead(entry, run, present, lines, worth, of_metrics) and _applies(entry, run, checked),
        max((len(clue.words[0]) for clue in present if clue.words), default=0),
    )


def _worth(lines: Iterable[Line], run: Run, lasting: bool) -> int:
    """What it is worth where the lines stand."""
    if run.cause is not None and any(_inside(line, run.cause) for line in lines):
        return IN_CAUSE
    left = [event for event in run.events if not event.survived]
    if any(_inside(line, event) for line in lines for event in left):
        return IN_ERROR
    cause = run.cause
    if cause is None:
        return 0
    trained = max(
        (one.rows.rows[-1].number for one in run.readings if one.name == cause.file and one.rows.rows), default=0
    )
    # What the training went on after is no lead to what it died of.
    first = 0 if lasting else trained
    leads = (line for line in lines if line.file == cause.file and first <= line.number < cause.first)
    return IN_ERROR if any(lasting or not _ONLY_WARNS.search(line.text[:200]) for line in leads) else 0


def _inside(line: Line, event: Event) -> bool:
    return line.file == event.file and event.first <= line.number <= max(event.last, event.line)


def _harmless(lines: Sequence[Line], run: Run, lasting: bool) -> bool:
    """Whether lines only tell of what was survived, warn while the work went on, or quote an error in prose."""
    if not lasting and all(any(_inside(line, event) and event.survived for event in run.events) for line in lines):
        return True
    if run.cause is not None:
        return False
    if all(_QUOTED.sub(" ", line.text) != line.text for line in lines):
        return True
    rows = {reading.name: reading.rows.rows for reading in run.readings}

    def got_over(line: Line) -> bool:
        trained = rows[line.file]
        if not trained or line.number >= trained[-1].number:
            return False
        # What lasts is got over only if it was said before the training began.
        return not lasting or (_ONLY_WARNS.search(line.text[:200]) is not None and line.number < trained[0].number)

    return all(map(got_over, lines))


def _may_lead(
    entry: Entry, run: Run, present: Sequence[Clue], lines: Sequence[Line], worth: int, of_metrics: bool
) -> bool:
    cause = run.cause
    if cause is None or not run.is_settled_by_an_error():
        return True
    sent = {f"signal {name}" for name in SENT_BY_OTHERS}
    if all(f"{clue.kind} {clue.value}" in sent for clue in present):
        return worth == IN_CAUSE  # what is left of a run that has failed is ended by whoever started it
    if of_metrics and all(clue.kind == "metric" for clue in present):
        return bool(_OF_NUMBERS.search(cause.message or cause.text))
    if worth == IN_CAUSE:
        return True
    if entry.general and not entry.lasting:
        return False
    followers = [event for event in run.events if event.follows and event.line > cause.last]
    if not cause.follows and lines and all(any(_inside(line, one) for one in followers) for line in lines):
        return False
    return worth > 0


def _applies(entry: Entry, run: Run, checked: Sequence[Checked]) -> bool:
    """Whether something in sight says that this entry is meant: one of its `only_if`, or a condition that holds."""
    if not entry.only_if or any(clue in run.found for clue in entry.only_if):
        return True
    return any(one.holds for one in checked)


def _case(entry: Entry, run: Run) -> Case | None:
    """The first cause of several for which the log speaks."""
    for case in entry.cases:
        checked = evaluate(case.conditions, run.environment, run.configuration)
        if not all(one.holds for one in checked) or any(clue in run.found for clue in case.unless):
            continue
        if not case.any or any(clue in run.found for clue in case.any):
            return case
    return None


def _named(entry: Entry, case: Case | None, run: Run) -> dict[str, str]:
    """What the named groups of the patterns caught, and the settings that decided for the case."""
    found, settings = run.found, with_bare_names(run.configuration)
    asked = case.conditions.get("parameters", {}) if case else {}
    named = {name: show(settings[name]) for name in asked if name in settings}
    clues = (*entry.any, *(clue for group in entry.all for clue in group), *(case.any if case else ()))
    for clue in clues:
        for line in found.get(clue, ()) if clue.kind == "line" and "(?P<" in clue.value else ():
            caught = re.search(clue.value, scrub(line.text))
            for name, value in (caught.groupdict() if caught else {}).items():
                if value:
                    named.setdefault(name, value)
    return named


def _most_telling(lines: Iterable[Line], run: Run) -> list[Line]:
    """The lines, each once, those of the cause first."""

    def order(line: Line) -> tuple[bool, str, int]:
        return (run.cause is None or not _inside(line, run.cause), line.file, line.number)

    each: dict[tuple[str, int], Line] = {}
    for line in sorted(lines, key=order):
        each.setdefault((line.file, line.number), line)  # a message is also read as one text; its line is shown once
    return [Line(line.number, scrub(line.text), line.file) for line in each.values()][:HITS]
