"""What is known of each setting: one table, `table.yaml`, that the other rooms read.

A new setting of TRL or transformers is a new row there, and nothing else. What no row mentions is ordinary:
odds and weight 1, free to vary, no resource. The fields of a row, all but `name` and `source` optional:

    name             one name, or several of which the same is known. A setting of the training config goes by
                     its bare name, others by `model.*`, `peft.*`; `save_*` is every name that begins so,
                     `packages.*` a whole namespace
    also             other names of the same setting, of other versions or places
    source           owner/repository#number, an https address, "measured", or several of these

    risk, why        prior odds of taking part in a cause, before any run, and the reason for them
    group            one of `groups`; `failures` says what a kind of failure does to the odds of each group
    risky_default    [the library's default that is itself the fault on some machines, the default before it]

    scale            "complement": its distance to 1 is what matters
    share_below_one  true if it is a share below 1 and a number from 1 on: nothing lies between the two
    switched_off     numbers that mean "off": what lies between them and another value says nothing about them
    idle_under       other setting -> its values under which this one has no effect
    weight           how much it shapes the result of a training, by its whole way from bad to good. What the
                     model learns from (rates, rewards, samples, their number and length) weighs more than how
                     the optimizer gets there

    resource         what a step costs more of: memory, time. Such settings move into a good configuration
                     that cannot be afforded
    work             true if a step's duration is proportional to it, at worst
    pinned           why it is never a factor
    placebo          true if it is a switch that can change no outcome: it is toggled to see whether anything does
    redirected       true if every trial sets it itself (`bisect_cfg.probe.side_effects`, `watch`)

    gone             what became of a name (of those under `also`, where there are any) that people carry over
                     from older versions or other tools; `instead`: what serves in its place
    removed          package -> versions that do not know it any more

What several rows say of a setting adds up, the closer name wins: `logging_steps` over `logging_*`,
`peft.revision` over `peft.*`. A name that no row has is looked for by its last part
(`generation_kwargs.top_p`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bisect_cfg.common.configuration import Configuration, Name, Value

FILE = Path(__file__).parent / "table.yaml"

_REFERENCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)#(?P<number>\d+)$")

LISTS = ("name", "also", "source", "switched_off", "resource", "risky_default")
"""Fields of a row that hold several things; one alone needs no brackets."""


Row = dict[str, Any]
"""Of the table: field -> what it says."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What is known of one setting; see the fields above."""

    name: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    risk: float = 1.0
    why: str = ""
    group: str = ""
    risky_default: tuple[Value, ...] = ()
    scale: str = ""
    share_below_one: bool = False
    switched_off: tuple[float, ...] = ()
    idle_under: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    weight: float = 1.0
    resource: tuple[str, ...] = ()
    work: bool = False
    pinned: str = ""
    placebo: bool = False
    redirected: bool = False
    gone: str = ""
    instead: str = ""
    removed: Mapping[str, str] = field(default_factory=dict)

    def idle(self, values: Configuration) -> bool:
        """Whether another setting of a configuration leaves this one without effect."""
        return any(values.get(name) in there for name, there in self.idle_under.items())


@dataclass(frozen=True)
class Table:
    """The table as it was read."""

    rows: tuple[Row, ...]  # as they stand
    failures: Mapping[str, Mapping[str, float]]  # kind of failure -> group -> what it does to the odds
    exact: Mapping[str, Row]  # name -> its row
    patterns: tuple[tuple[str, Row], ...]  # (beginning of a name, row), namespaces first


@functools.cache
def table() -> Table:
    """The table, read once."""
    data = msgspec.yaml.decode(FILE.read_bytes())
    rows = tuple({key: _several(one) if key in LISTS else one for key, one in row.items()} for row in data["settings"])
    named = {name: row for row in rows for name in (*row["name"], *row.get("also", ()))}
    patterns = [(name.removesuffix("*"), row) for name, row in named.items() if name.endswith("*")]
    patterns.sort(key=lambda pattern: "." not in pattern[0])
    failures = {kind: {group: odds for group, odds in row.items() if group != "why"}
                for kind, row in data["failures"].items()}  # fmt: skip
    exact = {name: row for name, row in named.items() if not name.endswith("*")}
    return Table(rows, failures, exact, tuple(patterns))


def _several(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


@functools.cache
def parameter(name: str) -> Parameter:
    """What is known of a setting, by any of its names; ``args.`` may be left out."""
    name = name.removeprefix("args.")
    last = name.rpartition(".")[2]
    found: Row = {}
    for beginning, row in table().patterns:
        if (name if "." in beginning else last).startswith(beginning):
            found |= row
    return Parameter(**(found | table().exact.get(name, table().exact.get(last, {}))))


@functools.cache
def every() -> Mapping[str, Parameter]:
    """All names that have a row of their own, with what is known of them, in the order of the table."""
    return {name: parameter(name) for name in table().exact}


@functools.cache
def successors() -> dict[str, str]:
    """Names that people carry over from older versions or other tools -> what became of them, a sentence."""
    return {
        name: f"{row['gone']}: {row['instead']}." if "instead" in row else f"{row['gone']}."
        for row in table().rows
        if "gone" in row
        for name in row["also" if "also" in row else "name"]
    }


def address(source: object) -> str:
    """The address of a source of the data files: `owner/repository#number` on GitHub, an https address, or "measured".

    Raises:
        ValueError: it is none of these.
    """
    text = str(source)
    found = _REFERENCE.match(text)
    if found:  # GitHub sends /issues/ on to /pull/ where the number is a pull request
        return f"https://github.com/{found['repository']}/issues/{found['number']}"
    if text == "measured" or text.startswith("https://"):
        return text
    raise ValueError(f"source {source!r} is not owner/repository#number, not an https address and not 'measured'")


def canonical(name: str) -> str:
    """The one name of a setting, dotted: the first of its row. A key of a dictionary follows its setting."""
    bare = name.removeprefix("args.")
    setting, dot, key = bare.partition(".")
    if bare in table().exact:
        row = table().exact[bare]
        return Name.of(row["name"][0] if bare in row.get("also", ()) else bare).full
    return Name.of(canonical(setting) + dot + key if dot and setting in table().exact else bare).full


def spelled(name: str, present: Iterable[str]) -> str:
    """The dotted name under which a setting is present, or the canonical one if it is not."""
    return next((Name.of(other).full for other in present if canonical(other) == name), name)


# The odds that a search begins with. They steer which question comes first and so how many trials an answer takes; they
# never decide an answer. Once it is known how the run fails they are sharper: memory runs out over batch and length,
# whatever the learning rate, and a policy that collapses does not mind the batch.

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
