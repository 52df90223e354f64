"""Settings as JSON and back.

A configuration crosses the process border as JSON. Most settings are plain values; a few kinds need a tag
(``{"$dtype": "float16"}``), and what has no faithful form (a function, a model) is described but cannot be set
from outside (``{"$opaque": "..."}``): such a setting can be left as the script has it or reset to its default.
"""

import enum
import json
import math

# Longer descriptions of opaque objects help nobody and fill the study.
_OPAQUE_LENGTH = 200


def encode(value):
    """Return the JSON form of `value`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return encode(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, (set, frozenset)):
        # A set has no order of its own; sorted, the same set always looks the same.
        return {"$set": sorted((encode(item) for item in value), key=repr)}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: encode(item) for key, item in value.items()}
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return {"$dtype": str(value).replace("torch.", "")}
    if hasattr(value, "to_dict"):  # transformers' AcceleratorConfig, BitsAndBytesConfig and the like
        try:
            return {"$object": kind.__name__, "fields": encode(value.to_dict())}
        except Exception:
            pass
    return {"$opaque": f"{kind.__module__}.{kind.__qualname__}: {value!r}"[:_OPAQUE_LENGTH]}


def decode(value):
    """Return the value that `encode` wrote.

    Raises:
        ValueError: for an opaque value, which cannot be made again.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        if "$dtype" in value:
            import torch

            return getattr(torch, value["$dtype"])
        if "$set" in value:
            return set(decode(item) for item in value["$set"])
        if "$opaque" in value or "$object" in value:
            raise ValueError(f"cannot be set from outside: {value}")
        return {key: decode(item) for key, item in value.items()}
    return value


def parsed_dict(value):
    """A dict-valued setting as a new dict; parsers pass such settings as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, dict) else {}


def number(value):
    """A metric as a float: numbers, 0-d tensors, and the strings transformers 5 prints; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def finite(value):
    """Whether a metric is present and finite."""
    result = number(value)
    return result is not None and math.isfinite(result)
