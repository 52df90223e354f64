"""What the data files of this package share: how they are read.

A setting has one name there, the dotted one (`args.learning_rate`, `model.dtype`). Users and reports call a
setting of the training config by its bare name, and older versions called some settings otherwise; `spelled` and
`canonical` of `bisect_cfg.common.parameters` translate.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.json_files import JsonObject

FOLDER = Path(__file__).parent / "data"

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class DataError(ValueError):
    """A data file that does not follow its schema; says which, where and what to write instead."""


def read(path: Path) -> list[JsonObject]:
    """The entries of a data file, each checked to be a mapping without numbers that YAML takes for text.

    Raises:
        DataError: it is not so.
    """
    try:
        table = msgspec.yaml.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise DataError(f"{path.name}: not YAML: {error}") from error
    if not isinstance(table, list) or not all(isinstance(entry, dict) for entry in table):
        raise DataError(f"{path.name}: a list of mappings is expected, each begins with '- '")
    for number, entry in enumerate(table, 1):
        for text in _texts(entry):
            if _NUMBER.fullmatch(text):
                raise DataError(f"{path.name}, entry {number}: {text} is text to YAML 1.1; write it with a dot, 1.0e-6")
    return table


def check_fields(data: JsonObject, needed: Collection[str], possible: Collection[str], place: str) -> None:
    """See that an entry has the fields that are needed, and none that there are not.

    Raises:
        DataError: names the place and the field.
    """
    for name in needed:
        if not data.get(name):
            raise DataError(f"{place}: {name!r} is missing or empty")
    for name in data:
        if name not in needed and name not in possible:
            raise DataError(f"{place}: unknown field {name!r}; known: {', '.join(sorted([*needed, *possible]))}")


def _texts(value: Value) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
