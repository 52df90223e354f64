"""The good side and the pins: names and values as a person typed them, or wrote them into a file.

A value is YAML (number, true, null, list, mapping), except that ``1e-6`` is a number, as in YAML 1.2, and a date is its
text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from bisect_cfg.common.configuration import SPACES, Configuration, Name, Value
from bisect_cfg.common.files import Trap, load_toml, load_yaml, read_text
from bisect_cfg.common.parameters import parameter
from bisect_cfg.common.words import number_of
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import hides, mask
from bisect_cfg.targets.captured import Capture, Row
from bisect_cfg.targets.launch_settings import DEEPSPEED_FILE, MARKS, launch_settings
from bisect_cfg.targets.packages import checked_level, named
from bisect_cfg.targets.suggestions import check_name, nearest

FILES = (".yaml", ".yml", ".json", ".toml", ".txt")
"""What a file of settings ends with."""

Assignment = str | tuple[str, Value]
"""A setting as given: ``"name=value"`` from the command line, (name, value) from Python."""

NEVER_BUILT = "your run ends before it builds its training config"
"""Why an option of that is not varied."""

_NOTHING = ("none", "null", "~")


def as_given(one: Assignment) -> str:
    """A setting as one text, for comparing what was asked for; a value from Python is not mistaken for its text."""
    return one if isinstance(one, str) else f"{one[0]}={json.dumps(one[1], sort_keys=True, default=repr)} (a value)"


def read_good(given: Iterable[Assignment], beside: Path | None = None) -> dict[str, Value]:
    """The good configuration as given: the file beside the script, then files and values in the order of --good.

    Raises:
        InputError: a file cannot be read, a value is none, or a name is given twice.
    """
    good = read_good_file(beside) if beside is not None else {}
    single: list[Assignment] = []
    for one in given:
        if isinstance(one, str) and "=" not in one and Path(one).is_file():
            good |= read_good_file(Path(one))
        else:
            single.append(one)
    return good | parse_assignments(single, "--good")


def parse_pins(given: Iterable[Assignment]) -> dict[str, Value]:
    """The settings of --pin.

    Raises:
        InputError: a name is given twice, or is one that the tool itself sets in every trial.
    """
    pins = parse_assignments(given, "--pin")
    if redirected := next((name for name in pins if parameter(name).redirected), None):
        raise InputError(
            f"--pin {redirected} would have no effect: every trial writes into its own folder of the study, saves no "
            "checkpoint and reports nowhere.",
            "Leave it out.",
        )
    return pins


def parse_assignments(given: Iterable[Assignment], option: str) -> dict[str, Value]:
    """All settings of one option.

    Raises:
        InputError: a name is given twice, with different values.
    """
    result: dict[str, Value] = {}
    for one in given:
        name, value = parse_assignment(one, option)
        if name in result and not (type(result[name]) is type(value) and result[name] == value):
            raise InputError(
                f"{option} gives {name} twice: {result[name]!r} and {value!r}.", "Give one value for each setting."
            )
        result[name] = value
    return result


def parse_value(text: str) -> Value:
    """A value as typed on the command line: number, true/false, none, JSON or YAML list/dict, otherwise text.

    Raises:
        InputError: NaN, or something that YAML knows and no setting can be (bytes, a set).
    """
    stripped = text.strip()
    number = number_of(stripped)
    if number is not None or stripped.lower() in _NOTHING:
        return number
    try:
        return load_yaml(stripped, settings=True) if stripped else ""
    except Trap as error:
        raise InputError(f"{error}.", "Write a number, a string, true, false or null.") from None
    except ValueError:
        return text


def value_in(text: Value) -> Value:
    """What the text of a variable of the environment comes to, where code makes a number or a bool of it."""
    try:
        return parse_value(text) if isinstance(text, str) else text
    except InputError:  # text all the same
        return text


def parse_assignment(given: Assignment, option: str, read: Callable[[str], Value] = parse_value) -> tuple[str, Value]:
    """One setting as it was given, its name as users see it (without ``args.``).

    Args:
        given: the setting.
        option: after which it was given.
        read: what a text means as a value.

    Raises:
        InputError: there is no ``=``; it holds a secret, which would be written down.
    """
    name, separator, value = given.partition("=") if isinstance(given, str) else (given[0], "=", given[1])
    if isinstance(given, str) and not separator and Path(given).suffix.lower() in FILES:
        raise InputError(
            f"{option} {given}: there is no such file.", "Check the path; it is relative to where you are."
        )
    if not isinstance(name, str) or not separator or not name.strip():
        raise InputError(
            f"{option} {str(given)[:80]} is not of the form name=value.", f"For example {option} bf16=false."
        )
    name = str(Name.of(name.strip()))
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{option} {name}: NaN is not a value that a run could have.", "Give a number.")
    if mask(value, name) != value:
        raise InputError(
            f"{option} {name} holds a secret, which the study would have to write down.",
            "Set it in the script or in the environment (HF_TOKEN): every trial has it from there.",
        )
    if isinstance(given, str):
        try:
            value = _of_text(name, given.partition("=")[2], read)
        except InputError as error:
            raise InputError(f"{option} {given[:80]}: {error.message}", error.advice) from None
    return (named(name) if Name.of(name).space == "packages" else name), value


def _of_text(name: str, text: str, read: Callable[[str], Value]) -> Value:
    """What a text means: the value of a variable is text, whatever it looks like, and a version too (2.10, 2.1)."""
    match Name.of(name).space:
        case "env":
            return None if text.strip().lower() == "none" else text
        case "packages":
            return checked_level(name, text)
    return read(text)


# -------------------------------------------------------------------------------------------------------------- files


def read_good_file(path: Path) -> dict[str, Value]:
    """Read a good side: names and values in YAML, JSON or TOML; or a file of accelerate's, for settings of the launch.

    Raises:
        InputError: it cannot be read, is no YAML, or no mapping.
    """
    content = read_config_file(path)
    if any(mark in content for mark in MARKS):
        return launch_settings(content, Path())
    result: dict[str, Value] = {}
    for name, value in content.items():
        nested = value.items() if name in SPACES and isinstance(value, dict) else None
        result |= {str(Name.of(name)): value} if nested is None else {str(Name(name, key)): it for key, it in nested}
    # A recipe may hold a token; each trial has the script's own.
    return {name: value for name, value in result.items() if not hides(name, value)}


def read_config_file(path: Path) -> dict[str, Value]:
    """The content of a configuration file of any program: YAML, JSON or TOML, nested as it is; ``1e-6`` is a number.

    Raises:
        InputError: it cannot be read, or holds no names and values.
    """
    kind, load = ("TOML", load_toml) if path.suffix == ".toml" else ("YAML", partial(load_yaml, settings=True))
    try:
        content = load(read_text(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid {kind}: {error}.", "It should hold one `name: value` a line.") from None
    if not isinstance(content, dict | None):
        raise InputError(f"{path} does not hold names and values.", "It should hold one `name: value` a line.")
    return content or {}


# ---------------------------------------------------------------------------------------- against what the run showed


def typed_values(values: Configuration, capture: Capture, where: str) -> tuple[Row, dict[str, str]]:
    """Values as typed, by the names that the first run showed: name -> value; and why others are none.

    Args:
        values: name -> value as typed.
        capture: of the first run.
        where: they were typed, for messages.

    Raises:
        InputError: an unknown name or a value of the wrong type.
    """
    known: dict[str, str] = {"model.dtype": "", "model.attn_implementation": "", **capture.accelerate.types}
    for source in (capture.args, *capture.others.values()):
        known |= {str(source.name(key)): kind for key, kind in source.types.items()}
    keys = [_last(name) for name in known if name.startswith("launch.")]
    result, unheard = {}, {}
    for typed, value in _by_own_names(values, known).items():
        space, key = Name.of(typed)
        name = str(Name(space, key))
        if name not in known:  # `model` may also be a key of the script's own file
            name = next((own for own in (f"script.{key}", f"script.{typed}") if own in known), name)
        if space == "packages":
            name, value = named(name), checked_level(name, value)
        elif name.startswith(DEEPSPEED_FILE) and capture.deepspeed is None:
            raise InputError(f"{name}: no DeepSpeed file is in force in your run.", "Leave it out of the good side.")
        elif space == "launch" and key.count(".") == 1 and name not in known and not nearest(_last(key), keys, 0.9):
            unheard[name] = "it is nothing that accelerate hands to its processes"  # though a key of its file
            continue
        elif space == "args" and name not in known and not capture.args.built:
            unheard[name] = NEVER_BUILT
            continue
        elif space != "env" and not name.startswith(DEEPSPEED_FILE):
            check_name(name if name in known or space != "args" else Name.of(name).field, known, where)
            check_type(name, value, known.get(name, ""))
        result[name] = value
    return result, unheard


def _by_own_names(values: Configuration, known: Collection[str]) -> Row:
    """Values with what is nested as in a file of the script's own by its full names (``{"reward": {"unit": 1}}``), and
    a list of sections where it is as long as the script's."""
    result: Row = {}
    for name, value in values.items():
        own = Name("script", Name.of(name).key).full
        elements = {one[len(own) + 1 :].partition(".")[0] for one in known if one.startswith(f"{own}.")}
        numbered = {str(number): one for number, one in enumerate(value)} if isinstance(value, list) else {}
        if elements and numbered.keys() == elements and all(isinstance(one, dict) for one in numbered.values()):
            result |= _by_own_names({f"{own}.{number}": one for number, one in numbered.items()}, known)
        elif isinstance(value, dict) and name not in known and elements:
            inner = {f"{own}.{key}": item for key, item in value.items()}
            result |= _by_own_names(inner, known)
        else:
            result[name] = value
    return result


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def check_type(name: str, value: Value, kind: str) -> None:
    """See that a number is one where its field, by its annotation as text, takes nothing else; and a bool likewise.

    Raises:
        InputError: it is none, or NaN.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{name} cannot be NaN: no run could train with that.", "Give a number.")
    words = set(re.findall(r"\w+", kind.lower())).difference("optional union typing class nonetype none".split())
    if value is None or not words:
        return
    if words == {"bool"} and not (isinstance(value, bool) or number):
        raise InputError(f"{name} must be true or false, not {value!r}.", f"Write {name}: true or {name}: false.")
    if words <= {"int", "float"} and not number:
        raise InputError(f"{name} must be a number, not {str(value)[:80]!r}.", f"Write for example {name}: 1.0e-6.")
