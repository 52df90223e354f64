"""What to use instead of a setting that is no number, and other remedies of a known cause.

A number can move from bad toward good, and trials find how far. A name cannot: what there is instead of
`optim="adamw_torch"` is knowledge. It lies in `alternatives.yaml`, one `Situation` an entry, and is only ever a
proposal: each is tried for real. A setting has one name there, the dotted one (`args.optim`, `model.dtype`). Adding an
entry needs no code; the tests hold every name against the installed GRPOConfig.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.parameters import address, canonical, spelled
from bisect_cfg.common.parameters.comparing import agrees, plain

FILE = Path(__file__).parent / "alternatives.yaml"


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way out of a situation, as the data file has it."""

    set: dict[str, Value]  # may name settings outside of the cause
    why: str  # one sentence for people: what it gives and what it costs
    sources: list[str]  # as `parameters.address` reads them


class Situation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"offers": "try"}):
    """Where some alternatives are known. Values are as `parameters.comparing` reads them: one, a list of which one is
    enough, a comparison (">1"), or "*"."""

    id: str
    cause: dict[str, Value]  # these are in the cause, at these bad values
    offers: list[Offer]  # best first; `try` in the file
    where: dict[str, Value] = {}  # elsewhere in the configuration; what that does not mention rules nothing out


@dataclass(frozen=True)
class Alternative:
    """One proposal, not yet tried."""

    settings: Configuration  # all of them to be set in the bad configuration
    why: str
    source: str  # addresses, or "measured", separated by ", "
    cures: bool = False  # whether it takes away what is at fault, so that the configuration stays as the user wants it


@functools.cache
def situations() -> list[Situation]:
    """All entries of `alternatives.yaml`."""
    return msgspec.yaml.decode(FILE.read_bytes(), type=list[Situation])


def alternatives_for(
    cause: Mapping[str, tuple[Value, Value]], configuration: Configuration, known: Collection[str] | None = None
) -> list[Alternative]:
    """Known alternatives for a cause (setting -> good and bad value) that change something, in order of merit.

    Entries that explain more of the cause come first, then the order of the data file. A proposal may be the same
    as resetting one setting of the cause to its good level; its `why` then explains that correction. A setting is named
    and its value written as in the cause or the bad configuration where it occurs there (`args.gradient_checkpointing`
    for an older TRL, a tagged dtype). Of a training config only fields that are `known` are set.
    """
    bad = {canonical(name): value for name, value in configuration.items()}
    bad |= {canonical(name): values[1] for name, values in cause.items()}
    present, inside = [*cause, *configuration], {canonical(name) for name in cause}
    fitting = [
        one
        for one in situations()
        if all(name in inside and agrees(value, bad[name]) for name, value in one.cause.items())
        and all(name not in bad or agrees(value, bad[name]) for name, value in one.where.items())
    ]
    found: list[Alternative] = []
    for situation in sorted(fitting, key=lambda one: -len(one.cause)):
        for offer in situation.offers:
            settings = {
                spelled(name, present): _written(value, bad.get(name))
                for name, value in offer.set.items()
                if not (name in bad and equal(plain(bad[name]), value))
            }
            offered = settings and all(_is_known(name, known) for name in settings)
            if offered and all(settings != other.settings for other in found):
                found.append(Alternative(settings, offer.why.strip(), ", ".join(map(address, offer.sources))))
    return found


def _written(value: Value, like: Value) -> Value:
    return {"$dtype": value} if isinstance(like, Mapping) and "$dtype" in like else value


def _is_known(name: str, fields: Collection[str] | None) -> bool:
    namespace, _, rest = name.partition(".")
    return fields is None or namespace != "args" or rest in fields or rest.split(".")[0] in fields
