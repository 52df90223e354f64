"""What published recipes use for a setting: context beside what was measured, never a substitute for a trial.

The facts lie in `data/published.yaml`, one entry for each recipe:

    recipe     whose recipe it is
    source     where it can be read (an https address)
    settings   name -> value, in TRL's names (bare for the training config, `model.dtype`)
    model      which model it was for;   size: billions of parameters;   tuning: full or lora
    notes      setting -> what to know about that value
    defaults   true for a library's defaults, which come first
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.common.parameters import canonical
from bisect_cfg.recommend import data_files
from bisect_cfg.recommend.data_files import DataError, check_fields

FILE = data_files.FOLDER / "published.yaml"

_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([bBmM])(?![a-zA-Z])")
_MODEL_NAMES = ("model.model_name_or_path", "model.name", "model")


@dataclass(frozen=True)
class Published:
    """One published value.

    Attributes:
        value: what the recipe sets.
        recipe: whose it is, with the model where that is known.
        source: an address.
        note: what to know about it, "" if nothing.
    """

    value: Value
    recipe: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Recipe:
    """One recipe as the data file has it."""

    recipe: str
    source: str
    settings: Configuration
    model: str = ""
    size: float | None = None
    tuning: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    defaults: bool = False


def published_for(name: str, configuration: Configuration) -> list[Published]:
    """What published recipes use for a setting, nearest to the user's case first.

    TRL's defaults lead, then recipes of the same tuning (LoRA or full) and, where the configuration names a model
    whose name tells its size, of similar size.

    Args:
        name: the setting, with or without the namespace of the training config.
        configuration: the user's configuration, as much of it as is known.
    """
    wanted = canonical(name)
    tuning = "lora" if any(other.startswith("peft.") for other in configuration) else "full"
    size = _size_of(configuration)
    using = [(recipe, setting) for recipe in load() for setting in recipe.settings if canonical(setting) == wanted]

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
        found = _SIZE.search(str(configuration.get(name, "")))
        if found:
            return float(found[1]) / (1000 if found[2] in "mM" else 1)
    return None


@functools.cache
def load(path: Path = FILE) -> tuple[Recipe, ...]:
    """All recipes of the data file, checked.

    Raises:
        DataError: an entry is not as described above.
    """
    recipes = []
    for number, data in enumerate(data_files.read(path), 1):
        place = f"{path.name}, entry {number} ({data.get('recipe', 'without recipe')})"
        check_fields(data, ("recipe", "source", "settings"), ("model", "size", "tuning", "notes", "defaults"), place)
        if not str(data["source"]).startswith("https://"):
            raise DataError(f"{place}: the source must be an https address")
        if data.get("tuning", "full") not in ("full", "lora"):
            raise DataError(f"{place}: tuning is full or lora")
        for name, note in data.get("notes", {}).items():
            if name not in data["settings"] or not isinstance(note, str):
                raise DataError(f"{place}: the note on {name!r} must be text, on one of the settings")
        recipes.append(Recipe(**data))
    return tuple(recipes)
