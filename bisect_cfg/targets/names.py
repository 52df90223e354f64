"""Names and values that a person typed, held against those the library knows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bisect_cfg.errors import InputError

SUCCESSORS = {
    "warmup_ratio": "It was removed in transformers 5: a warmup_steps below 1 is a ratio (warmup_steps: 0.1).",
    "max_prompt_length": "It was removed in TRL 0.28: truncate the prompts in the script instead.",
    "evaluation_strategy": "It is called eval_strategy now.",
    "no_cuda": "It is called use_cpu now.",
    "torch_dtype": "It is called model.dtype here.",
    "dtype": "It is called model.dtype here.",
    "attn_implementation": "It is called model.attn_implementation here.",
    "lr": "It is called learning_rate.",
    "group_by_length": "It was removed in transformers 5.",
    "overwrite_output_dir": "It was removed in transformers 5.",
}
"""Names that people carry over from older versions or other tools, and what became of them (read in the release
notes and sources of TRL and transformers)."""

_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)", re.IGNORECASE)


def check_name(name: str, known: Mapping[str, Any], source: str, preferred: Sequence[str] = ()) -> None:
    """Make sure that a name exists.

    Args:
        name: what was typed.
        known: all names there are.
        source: where it was typed, for the message.
        preferred: if given, only these may be used here.

    Raises:
        InputError: with the nearest real name.
    """
    if name in known and (not preferred or name in preferred):
        return
    if name in known:
        raise InputError(
            f"{source}: {name} is not among the settings that differ between your script and the good configuration.",
            f"Those are: {', '.join(preferred)}.",
        )
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    advice = f"Did you mean {near[0]}?" if near else ""
    if name in SUCCESSORS:
        advice = SUCCESSORS[name]
    raise InputError(f"{source} names {name}, which this version does not know.", advice)


def convert(name: str, value: Any, kind: str) -> tuple[Any, str]:
    """Bring a value to the type of its field.

    YAML 1.1 reads ``1e-6`` (no dot) as text; a number is meant, and is taken, with a remark.

    Args:
        name: of the setting.
        value: as read.
        kind: the field's annotation as text, "" if unknown.

    Returns:
        The value, and a remark ("" if there is nothing to say).

    Raises:
        InputError: a number was needed.
    """
    numeric = re.search(r"\b(float|int)\b", kind) is not None and re.search(r"\bstr\b", kind) is None
    if not isinstance(value, str) or not numeric:
        return value, ""
    text = value.strip()
    if text.lower() in ("none", "null", "~") and "None" in kind:
        return None, ""
    if not _NUMBER.fullmatch(text):
        if "bool" in kind:
            return value, ""
        raise InputError(
            f"{name} must be a number, not the text {value!r}.", f"Write for example {name}: 1.0e-6."
        )
    number = float(text)
    result = int(number) if "float" not in kind and number == int(number) else number
    return result, f"{name}: {value} is text to YAML 1.1; read as the number {result!r}."


def parse_value(text: str) -> Any:
    """A value as typed on the command line: number, true/false, none, JSON or YAML list/dict, otherwise text."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        try:
            return int(stripped)
        except ValueError:
            return float(stripped)
    try:
        return yaml.safe_load(stripped) if stripped else ""
    except yaml.YAMLError:
        return text


def parse_assignment(text: str, option: str) -> tuple[str, Any]:
    """``name=value`` from the command line.

    Raises:
        InputError: there is no ``=``.
    """
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InputError(f"{option} {text} is not of the form name=value.", f"For example {option} bf16=false.")
    return name.strip(), parse_value(value)


def read_good_file(path: Path) -> dict[str, Any]:
    """Read a good.yaml: a flat mapping of names to values.

    Raises:
        InputError: it cannot be read, is no YAML, or no mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise InputError(
            f"{path} is not valid YAML{where}: {getattr(error, 'problem', error)}.",
            "It should hold one `name: value` a line.",
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(
            f"{path} does not hold names and values.", "It should hold one `name: value` a line."
        )
    result: dict[str, Any] = {}
    for name, value in content.items():
        if name in ("args", "model", "peft") and isinstance(value, dict):  # nested spelling of the namespaces
            result.update({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            result[str(name)] = value
    return result
