"""What to use instead of a setting that is no number, other remedies of a known cause, and what recipes use.

A number can move from bad toward good, and trials find how far. A name cannot: what there is instead of
`optim="adamw_torch"` is knowledge. It lies in `data/alternatives.yaml`, one `Situation` an entry, and is only ever a
proposal: each is tried for real. What published recipes use, in `data/published.yaml`, is context beside what was
measured. A setting has one name in both files, the dotted one (`args.optim`, `model.dtype`; in recipes those of the
training config are bare). Adding an entry needs no code; the tests hold every name against the installed GRPOConfig.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.parameters import address, canonical, spelled
from bisect_cfg.common.parameters.comparing import agrees, plain

FOLDER = Path(__file__).parent / "data"

Name = Annotated[str, msgspec.Meta(pattern=r"^(args|model|peft)\.[\w.]+$")]
Text = Annotated[str, msgspec.Meta(min_length=1)]

_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([bBmM])(?![a-zA-Z])")
_MODEL_NAMES = ("model.model_name_or_path", "model.name", "model")


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way out of a situation, as the data file has it."""

    set: dict[Name, Value]  # may name settings outside of the cause
    why: Text  # one sentence for people: what it gives and what it costs
    sources: Annotated[list[str], msgspec.Meta(min_length=1)]  # as `parameters.address` reads them


class Situation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"offers": "try"}):
    """Where some alternatives are known. Values are as `parameters.comparing` reads them: one, a list of which one is
    enough, a comparison (">1"), or "*"."""

    id: Text
    cause: Annotated[dict[Name, Value], msgspec.Meta(min_length=1)]  # these are in the cause, at these bad values
    offers: Annotated[list[Offer], msgspec.Meta(min_length=1)]  # best first; `try` in the file
    where: dict[Name, Value] = {}  # elsewhere in the configuration; what that does not mention rules nothing out


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published recipe."""

    recipe: Text  # whose it is
    source: Annotated[str, msgspec.Meta(pattern="^https://")]
    settings: dict[str, Value]
    model: str = ""  # which it was for
    size: float | None = None  # billions of its parameters
    tuning: Literal["", "full", "lora"] = ""
    notes: dict[str, str] = {}  # setting -> what to know about that value
    defaults: bool = False  # of a library; they come first


@dataclass(frozen=True)
class Alternative:
    """One proposal, not yet tried."""

    settings: Configuration  # all of them to be set in the bad configuration
    why: str
    source: str  # addresses, or "measured", separated by ", "
    cures: bool = False  # whether it takes away what is at fault, so that the configuration stays as the user wants it


@dataclass(frozen=True)
class Published:
    """One published value."""

    value: Value
    recipe: str  # whose it is, with the model where that is known
    source: str
    note: str = ""


@functools.cache
def situations() -> list[Situation]:
    """All entries of `data/alternatives.yaml`."""
    return msgspec.yaml.decode((FOLDER / "alternatives.yaml").read_bytes(), type=list[Situation])


@functools.cache
def recipes() -> list[Recipe]:
    """All entries of `data/published.yaml`."""
    return msgspec.yaml.decode((FOLDER / "published.yaml").read_bytes(), type=list[Recipe])


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


def published_for(name: str, configuration: Configuration) -> list[Published]:
    """What published recipes use for a setting, nearest to the user's case first.

    TRL's defaults lead, then recipes of the same tuning (LoRA or full) and, where the configuration names a model
    whose name tells its size, of similar size.

    Args:
        name: the setting, with or without the namespace of the training config.
        configuration: the user's configuration, as much of it as is known.
    """
    tuning = "lora" if any(other.startswith("peft.") for other in configuration) else "full"
    size = _size_of(configuration)
    using = [(one, setting) for one in recipes() for setting in one.settings if canonical(setting) == canonical(name)]

    def distance(pair: tuple[Recipe, str]) -> tuple[bool, bool, float]:
        recipe = pair[0]
        far = abs(math.log(recipe.size / size)) if recipe.size and size else 0.0 if recipe.size else math.inf
        return not recipe.defaults, recipe.tuning not in ("", tuning), far

    return [
        Published(
            recipe.settings[setting],
            recipe.recipe + (f", {recipe.model}" if recipe.model else ""),
            recipe.source,
            recipe.notes.get(setting, ""),
        )
        for recipe, setting in sorted(using, key=distance)
    ]


def _size_of(configuration: Configuration) -> float | None:
    """Billions of parameters, if the configuration names a model like `Qwen2.5-0.5B-Instruct`."""
    for name in _MODEL_NAMES:
        if found := _SIZE.search(str(configuration.get(name, ""))):
            return float(found[1]) / (1000 if found[2] in "mM" else 1)
    return None
