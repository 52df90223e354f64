"""Names and values that a person typed, held against those the library knows."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from bisect_cfg.configuration import Value
from bisect_cfg.errors import InputError
from bisect_cfg.parameters import parameter, successors
from bisect_cfg.probe.redact import hides, mask
from bisect_cfg.targets.launch_settings import MARKS, VARIABLE, launch_settings
from bisect_cfg.targets.packages import PACKAGE, checked_level, named

_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.?(inf|infinity|nan)", re.IGNORECASE)

_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$")

SIMILAR = 0.6
"""From so much likeness on (`difflib`) a setting may be the one that was meant: beta for betta. Names of settings are
long, so that less is enough for them than for options."""

FILES = (".yaml", ".yml", ".json", ".toml", ".txt")
"""What a file of settings ends with."""

Assignment = str | tuple[str, Value]
"""A setting as given: ``"name=value"`` from the command line, (name, value) from Python."""


def as_given(one: Assignment) -> str:
    """A setting as one text, for comparing what was asked for; a value from Python is not mistaken for its text."""
    return one if isinstance(one, str) else f"{one[0]}={json.dumps(one[1], sort_keys=True, default=repr)} (a value)"


def number_of(text: str) -> int | float | None:
    """The number that a text is, None if it is none. The one place where texts become numbers.

    Raises:
        InputError: it is NaN, or larger than a number can be. Infinity is taken where it is written out.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text.lstrip(".") if text[:1] == "." and not text[1:2].isdigit() else text.replace("-.", "-0."))
    except ValueError:  # 1__0
        return None
    if math.isnan(number):
        raise InputError("NaN is not a value that a run could have.", "Give a number.")
    if math.isinf(number) and "inf" not in text.lower():
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise InputError(f"{shown} is larger than a number can be.", "Give a number that can be computed with.")
    return number


def finite_number(text: object, lowest: float = -math.inf, highest: float = math.inf, above: bool = False) -> float:
    """A finite number within bounds, for the options of both doors.

    Args:
        text: as typed, or a number.
        lowest: smallest that is taken.
        highest: largest that is taken.
        above: whether `lowest` itself is not taken.

    Raises:
        InputError: it is none; says what is taken.
    """
    number = number_of(text) if isinstance(text, str) else text
    real = isinstance(number, (int, float)) and not isinstance(number, bool)
    if real and -math.inf < number < math.inf and lowest <= number <= highest and not (above and number == lowest):
        return number
    bounds = [f"{'above' if above else 'from'} {lowest:g}"] if lowest > -math.inf else []
    bounds += [f"{'up ' if above or not bounds else ''}to {highest:g}"] if highest < math.inf else []
    raise InputError(f"{text!r} is not a finite number{' ' if bounds else ''}{' '.join(bounds)}.")


_COMPLAINTS = re.compile(
    r"unexpected keyword|unrecognized argument|not used by|no attribute|no such option"
    r"|unknown (?:field|key|argument|option)|not a valid|is not (?:supported|recognized|accepted)"
    r"|deprecated|was removed|invalid (?:key|argument|field)",
    re.IGNORECASE,
)
"""How libraries and parsers say that they do not know a name. Elsewhere in a log it says nothing (`dtype`)."""


def outdated_in(text: str) -> str:
    """The name of `successors` that a log or message complains of and what became of it, "" if there is none
    (``lr: It is called learning_rate.``). It is a word of its own there: `lr` is none in ``async_lru``."""
    for line in text.splitlines():
        if _COMPLAINTS.search(line):
            for name, successor in successors().items():
                if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", line):
                    return f"{name}: {successor}"
    return ""


def check_name(name: str, known: Mapping[str, object], source: str, preferred: Sequence[str] = ()) -> None:
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
    advice = successors().get(name) or nearest(name, known)
    raise InputError(f"{source} names {name}, which this version does not know.", advice)


def left_out(known: Sequence[str], only: Sequence[str], excluded: Sequence[str]) -> dict[str, str]:
    """What --only and --except leave out of the names that differ: name -> why it is not varied. Whoever names a group
    (`model_init_kwargs`) names all that is in it."""
    left = {name: "--except names it" for name in known if _within(name, excluded)}
    return left | {
        name: "it is not among those that --only names" for name in known if only and not _within(name, only)
    }


def naming_nothing(known: Sequence[str], only: Sequence[str], excluded: Sequence[str]) -> list[tuple[str, str]]:
    """What these options name and none of the known is or lies within: option and name."""
    given = [("--only", name) for name in only] + [("--except", name) for name in excluded]
    return [(option, name) for option, name in given if not any(_within(other, [name]) for other in known)]


def _within(name: str, groups: Sequence[str]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


def nearest(name: str, known: Iterable[str]) -> str:
    """The question whether the most similar of some names was meant; "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=SIMILAR)
    return f"Did you mean {near[0]}?" if near else ""


def convert(name: str, value: Value, kind: str) -> tuple[Value, str]:
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
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{name} cannot be NaN: no run could train with that.", "Give a number.")
    numeric = re.search(r"\b(float|int)\b", kind) is not None and re.search(r"\bstr\b", kind) is None
    other = re.search(r"\b(bool|dict|list|tuple|set|Any)\b", kind, re.IGNORECASE)
    if numeric and not other and isinstance(value, (bool, list, dict)):
        raise InputError(f"{name} must be a number, not {value!r}.", f"Write for example {name}: 1.0e-6.")
    if re.fullmatch(r"(?:typing\.)?(?:Optional\[)?bool\]?( \| None)?", kind) and isinstance(value, (str, list, dict)):
        raise InputError(f"{name} must be true or false, not {value!r}.", f"Write {name}: true or {name}: false.")
    if not isinstance(value, str) or not numeric:
        return value, ""
    text = value.strip()
    if text.lower() in ("none", "null", "~") and "None" in kind:
        return None, ""
    number = number_of(text)
    if number is None:
        if "bool" in kind:
            return value, ""
        raise InputError(f"{name} must be a number, not the text {value[:80]!r}.", f"Write for example {name}: 1.0e-6.")
    whole = "float" not in kind and math.isfinite(number) and number == int(number)
    result = int(number) if whole else float(number)
    return result, f"{name}: {value} is text to YAML 1.1; read as the number {result!r}."


def parse_value(text: str) -> Value:
    """A value as typed on the command line: number, true/false, none, JSON or YAML list/dict, otherwise text.

    Raises:
        InputError: NaN, or something that YAML knows and no setting can be (a binary, a set).
    """
    stripped = text.strip()
    number = number_of(stripped)
    if number is not None:
        return number
    if stripped.lower() in ("none", "null", "~"):
        return None
    try:
        return _plain(_load(stripped), text) if stripped else ""
    except (yaml.YAMLError, ValueError):
        return text


def parse_assignment(given: Assignment, option: str, read: Callable[[str], Value] = parse_value) -> tuple[str, Value]:
    """One setting as it was given, its name without ``args.``.

    Args:
        given: the setting.
        option: after which it was given.
        read: what a text means as a value.

    Raises:
        InputError: there is no ``=``; it holds a secret, which would be written down.
    """
    if isinstance(given, str):
        name, separator, text = given.partition("=")
        if not separator and Path(given).suffix.lower() in FILES:
            raise InputError(
                f"{option} {given}: there is no such file.", "Check the path; it is relative to where you are."
            )
        if not separator or not name.strip():
            raise InputError(
                f"{option} {given[:80]} is not of the form name=value.", f"For example {option} bf16=false."
            )
        name = name.strip().removeprefix("args.")
        _refuse_secret(name, text, option)
        if name.startswith(VARIABLE):  # its value is text, whatever it looks like
            return name, None if text.strip().lower() == "none" else text
        if name.startswith(PACKAGE):  # a version is text: 2.10 is not 2.1
            return named(name), checked_level(name, text)
        try:
            return name, read(text)
        except InputError as error:
            raise InputError(f"{option} {given[:80]}: {error.message}", error.advice) from None
    name, value = given
    if not isinstance(name, str):
        raise InputError(f"{option}: {name!r} is not the name of a setting.", "Names must be strings.")
    name = name.strip().removeprefix("args.")
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{option} {name}: NaN is not a value that a run could have.", "Give a number.")
    _refuse_secret(name, value, option)
    return name, value


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


def parse_pins(given: Iterable[Assignment]) -> dict[str, Value]:
    """The settings of --pin.

    Raises:
        InputError: a name is given twice, or is one that the tool itself sets in every trial.
    """
    pins = parse_assignments(given, "--pin")
    for name in pins:
        if parameter(name).redirected:
            raise InputError(
                f"--pin {name} would have no effect: every trial writes into its own folder of the study, saves no "
                "checkpoint and reports nowhere.",
                "Leave it out.",
            )
    return pins


def read_good(given: Iterable[Assignment], beside: Path | None = None) -> dict[str, Value]:
    """The good configuration as given: the file beside the script, then files and values in the order of --good.

    Raises:
        InputError: a file cannot be read, a value is none, or a name is given twice.
    """
    good = read_good_file(beside) if beside is not None else {}
    single: list[Assignment] = []
    for one in given:
        if isinstance(one, str) and "=" not in one and Path(one).is_file():
            good.update(read_good_file(Path(one)))
        else:
            single.append(one)
    return good | parse_assignments(single, "--good")


def _refuse_secret(name: str, value: Value, option: str) -> None:
    if mask(value, name) != value:
        raise InputError(
            f"{option} {name} holds a secret, which the study would have to write down.",
            "Set it in the script or in the environment (HF_TOKEN): every trial has it from there.",
        )


class _Loader(yaml.SafeLoader):
    """YAML as settings need it: a date is its text, and a name that comes twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((name for name in names if names.count(name) > 1 and name != "<<"), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} comes twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _LoaderOfNumbers(_Loader):
    """... and ``1e-6`` is a number, as YAML 1.2 has it."""


_LoaderOfNumbers.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def _load(text: str, loader: type[_Loader] = _Loader) -> object:
    try:
        return yaml.load(text, loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def _plain(value: object, source: str) -> Value:
    """What YAML read, as far as a setting can be it.

    Raises:
        InputError: a binary, a set or a date that was tagged as one; or a list that contains itself.
    """
    try:
        return _as_plain(value)
    except TypeError as error:
        shown = source if len(source) <= 60 else f"{source[:60]}..."
        raise InputError(
            f"{shown} contains {error}, which no setting can be.", "Write a number, a string, true, false or null."
        ) from None
    except RecursionError:
        raise InputError(f"{source[:60]} contains itself, which no setting can.", "Write it out.") from None


def _as_plain(value: object) -> Value:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _as_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_plain(item) for item in value]
    raise TypeError(f"a {type(value).__name__}")


def read_good_file(path: Path) -> dict[str, Value]:
    """Read a good.yaml: a flat mapping of names to values; or a file of accelerate's, for the settings of the launch.

    Raises:
        InputError: it cannot be read, is no YAML, or no mapping.
    """
    content = _read_mapping(path, _Loader)
    if any(mark in content for mark in MARKS):
        return launch_settings(content, Path())
    result: dict[str, Value] = {}
    for name, value in content.items():
        if name in ("args", "model", "peft", "launch", "env") and isinstance(value, dict):  # the namespaces, nested
            result.update({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            result[name] = value
    # A recipe may hold a token; each trial has the script's own.
    return {name: value for name, value in result.items() if not hides(name, value)}


def read_config_file(path: Path) -> dict[str, Value]:
    """The content of a configuration file of any program: YAML, JSON or TOML, nested as it is; ``1e-6`` is a number.

    Raises:
        InputError: it cannot be read, or holds no names and values.
    """
    if path.suffix == ".toml":
        try:
            return _plain(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}.") from None
    return _read_mapping(path, _LoaderOfNumbers)


def _read_mapping(path: Path, loader: type[_Loader]) -> dict[str, Value]:
    try:
        content = _load(path.read_text(encoding="utf-8"), loader)
    except (OSError, UnicodeDecodeError, ValueError) as error:
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
        raise InputError(f"{path} does not hold names and values.", "It should hold one `name: value` a line.")
    return _plain(content, str(path))
