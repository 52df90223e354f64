"""Settings as JSON and back.

A configuration crosses the process border as JSON. Most settings are plain values; a few kinds need a tag
(``{"$dtype": "float16"}``), and what has no faithful form (a function, a model) is described but cannot be set
from outside (``{"$opaque": "..."}``): such a setting can be left as the script has it or reset to its default.
A secret (see `redact`) leaves the process as ``{"$secret": "***"}``; where such a value is to be set, the one that the
script itself passed is taken.
"""

import enum

from . import redact
from .standard_library import hashlib, json, re

# Longer descriptions of opaque objects help nobody and fill the study.
_OPAQUE_LENGTH = 200


def encode(value, name=""):
    """Return the JSON form of `value`; `name` is that of the setting, which may be a secret."""
    if redact.hides(name, value):
        redact.know(value)
        return {"$secret": redact.HIDDEN}
    if isinstance(value, str):
        shown = redact.scrub(value)
        return value if shown == value else {"$secret": shown}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return encode(value.value, name)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [encode(item, name) for item in value]
    if isinstance(value, (set, frozenset)):
        # A set has no order of its own; sorted, the same set always looks the same.
        return {"$set": sorted((encode(item, name) for item in value), key=repr)}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: encode(item, key) for key, item in value.items()}
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return {"$dtype": str(value).replace("torch.", "")}
    if hasattr(value, "to_dict"):  # transformers' AcceleratorConfig, BitsAndBytesConfig and the like
        try:
            return {"$object": kind.__name__, "fields": encode(value.to_dict())}
        except Exception:
            pass
    return {"$opaque": _described(f"{kind.__module__}.{kind.__qualname__}: {redact.scrub(repr(value))}")}


def _described(text):
    """A description that is the same in every process, and differs where the whole of it does."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    if len(text) <= _OPAQUE_LENGTH:
        return text
    return f"{text[:_OPAQUE_LENGTH]}... ({hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]})"


def decode(value, own=None):
    """Return the value that `encode` wrote.

    Args:
        value: in its JSON form.
        own: what the script itself has there; secrets are taken from it, their mask stands in where it has none.

    Raises:
        ValueError: for an opaque value, which cannot be made again.
    """
    if isinstance(value, list):
        theirs = own if isinstance(own, (list, tuple)) and len(own) == len(value) else [None] * len(value)
        return list(map(decode, value, theirs))
    if isinstance(value, dict):
        if "$secret" in value:
            return value["$secret"] if own is None else own
        if "$dtype" in value:
            import torch

            return getattr(torch, value["$dtype"])
        if "$set" in value:
            return set(decode(item) for item in value["$set"])
        if "$opaque" in value or "$object" in value:
            raise ValueError(f"cannot be set from outside: {value}")
        theirs = parsed_dict(own)
        return {key: decode(item, theirs.get(key)) for key, item in value.items()}
    return value


def decode_part(value, takes_dict=False):
    """Like `decode`, but of a dictionary what can be made again.

    Args:
        value: as `encode` wrote it.
        takes_dict: whether an object may be given as the dictionary of its fields.

    Raises:
        ValueError: nothing of it can be made again.
    """
    if isinstance(value, dict) and "$object" in value and takes_dict:
        value = value["fields"]
    if not isinstance(value, dict) or any(key.startswith("$") for key in value):
        return decode(value)
    made = {}
    for key, item in value.items():
        try:
            made[key] = decode(item)
        except ValueError:
            continue
    return made


def parsed_dict(value):
    """A setting that holds a dictionary as a new dict; parsers pass such settings as JSON text, scripts also as an
    object that has a dictionary's form (accelerate's `AcceleratorConfig`)."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict) and hasattr(value, "to_dict"):
        value = value.to_dict()
    return dict(value) if isinstance(value, dict) else {}


def as_passed(items, before):
    """A dictionary in the form that the setting had before: as JSON text, whose values the library converts, or as it
    is."""
    if not isinstance(before, str):
        return items
    try:
        return json.dumps(items)
    except (TypeError, ValueError):
        return items


def number(value):
    """A metric as a float: numbers, 0-d tensors, and the strings transformers 5 prints; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
