"""What to use instead of a categorical or boolean setting, and other remedies of a known cause.

A number can move from bad toward good, and the search for a threshold finds how far. A name cannot: what there
is instead of `optim="adamw_torch"` is knowledge. It lies in `data/alternatives.yaml`, one entry for each
situation, and is only ever a proposal: the phase tries each one for real. The fields of an entry:

    id       a short name
    cause    name -> bad value: these settings are in the cause, at these values
    where    name -> value, elsewhere in the configuration; what the configuration does not mention rules nothing
             out (it is at a default that nobody looked up), what it says otherwise does
    try      the alternatives, best first: `set` (name -> value, may name settings outside of the cause), `why`
             (one sentence for people: what it gives and what it costs) and `sources`

A value under `cause` and `where` is the value itself, a list of which one is enough, a comparison (">1"), or "*".
Names are dotted (`args.optim`, `model.dtype`). Adding an entry needs no code; the tests hold every name against the
installed GRPOConfig.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.parameters import NAMESPACES, address, canonical, spelled
from bisect_cfg.common.parameters.comparing import agrees, plain
from bisect_cfg.recommend import data_files
from bisect_cfg.recommend.data_files import DataError, check_fields

FILE = data_files.FOLDER / "alternatives.yaml"


@dataclass(frozen=True)
class Alternative:
    """One proposal, not yet tried.

    Attributes:
        settings: dotted name -> value, all of them to be set in the bad configuration.
        why: one sentence: what speaks for it, and what it costs.
        source: addresses, or "measured", separated by ", ".
        cures: whether it takes away what is at fault, so that the configuration stays as the user wants it.
    """

    settings: Configuration
    why: str
    source: str
    cures: bool = False


@dataclass(frozen=True)
class Situation:
    """One situation and its alternatives, as the data file has them."""

    id: str
    cause: Configuration
    where: Configuration
    alternatives: tuple[Alternative, ...]


def alternatives_for(
    cause: Mapping[str, tuple[Value, Value]],
    configuration: Configuration,
    known: Collection[str] | None = None,
) -> list[Alternative]:
    """Known alternatives for a cause, in order of merit.

    Entries that explain more of the cause come first, then the order of the data file. A proposal may be the same
    as resetting one setting of the cause to its good level; its `why` then explains that correction.

    Args:
        cause: setting -> (good, bad), with or without the namespace of the training config.
        configuration: the bad configuration, as much of it as is known.
        known: fields of the installed training config (bare names); proposals that set others are left out.

    Returns:
        Proposals that change something. A setting is named and its value written as in the cause or the
        configuration where it occurs there (`args.gradient_checkpointing` for an older TRL, a tagged dtype).
    """
    bad = {canonical(name): value for name, value in configuration.items()}
    bad |= {canonical(name): values[1] for name, values in cause.items()}
    present = [*cause, *configuration]
    inside = {canonical(name) for name in cause}
    fitting = [entry for entry in load() if _fits(entry, inside, bad)]
    found: list[Alternative] = []
    for entry in sorted(fitting, key=lambda entry: -len(entry.cause)):
        for alternative in entry.alternatives:
            changes = {name: value for name, value in alternative.settings.items() if not _same(name, value, bad)}
            if not changes:
                continue
            settings = {spelled(name, present): _written(value, bad.get(name)) for name, value in changes.items()}
            offered = known is None or all(_is_known(name, known) for name in settings)
            if offered and all(settings != dict(other.settings) for other in found):
                found.append(Alternative(settings, alternative.why, alternative.source))
    return found


def _fits(entry: Situation, inside: set[str], bad: Configuration) -> bool:
    return all(name in inside and agrees(value, bad[name]) for name, value in entry.cause.items()) and all(
        name not in bad or agrees(value, bad[name]) for name, value in entry.where.items()
    )


def _same(name: str, value: Value, bad: Configuration) -> bool:
    return name in bad and equal(plain(bad[name]), value)


def _written(value: Value, like: Value) -> Value:
    return {"$dtype": value} if isinstance(like, Mapping) and "$dtype" in like else value


def _is_known(name: str, known: Collection[str]) -> bool:
    namespace, _, rest = name.partition(".")
    return namespace != "args" or rest in known or rest.split(".")[0] in known


@functools.cache
def load(path: Path = FILE) -> tuple[Situation, ...]:
    """All entries of the data file, checked.

    Raises:
        DataError: the file or an entry is not as described above.
    """
    entries = [check(data, f"{path.name}, entry {number}") for number, data in enumerate(data_files.read(path), 1)]
    for entry in entries:
        if sum(other.id == entry.id for other in entries) > 1:
            raise DataError(f"{path.name}: the id {entry.id!r} is used twice; choose another")
    return tuple(entries)


def check(data: Mapping[str, Value], place: str) -> Situation:
    """An entry from what the YAML file says.

    Raises:
        DataError: names the place and what is wrong there.
    """
    place = f"{place} ({data.get('id', 'without id')})"
    check_fields(data, ("id", "cause", "try"), ("where",), place)
    cause = _settings(data["cause"], f"{place}, cause")
    where = _settings(data.get("where") or {}, f"{place}, where")
    if not isinstance(data["try"], list):
        raise DataError(f"{place}: 'try' must be a list")
    proposals = []
    for number, one in enumerate(data["try"], 1):
        here = f"{place}, try {number}"
        if not isinstance(one, dict):
            raise DataError(f"{here}: a mapping is expected")
        check_fields(one, ("set", "why", "sources"), (), here)
        settings = _settings(one["set"], here)
        if not isinstance(one["why"], str) or not isinstance(one["sources"], list):
            raise DataError(f"{here}: 'why' must be text and 'sources' a list")
        try:
            addresses = ", ".join(map(address, one["sources"]))
        except ValueError as error:
            raise DataError(f"{here}: {error}") from error
        proposals.append(Alternative(settings, one["why"].strip(), addresses))
    return Situation(data["id"], cause, where, tuple(proposals))


def _settings(data: Value, place: str) -> dict[str, Value]:
    if not isinstance(data, dict):
        raise DataError(f"{place}: a mapping of settings to values is expected")
    for name in data:
        if not isinstance(name, str) or name.split(".")[0] not in NAMESPACES or "." not in name:
            raise DataError(f"{place}: {name!r} has no namespace; write for example args.{name}")
        if canonical(name) != name:
            raise DataError(f"{place}: write {canonical(name)} instead of {name}")
    return dict(data)
