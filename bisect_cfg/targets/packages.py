"""What an interpreter has installed, and what it had where the training worked: ``packages.NAME`` as settings.

A level of such a setting is what a requirements file has behind the name: a version (``4.57.1``), a direct reference
(``@ file:///wheels/x.whl``), or None where the package is not installed. A package that differs is a factor; mixtures
of the two environments are valid unless a package then misses what it asks for and had in both of them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.files import load_toml, read_text
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError

PACKAGE = "packages."
"""What a setting's name begins with that is an installed package: ``packages.transformers``."""

PATIENCE = 60.0
"""Seconds for an interpreter to say what it has installed; from a cold network disk it takes several."""

NOT_INSTALLED = "not installed"
"""How the level of a package that is not there is shown."""

EDITABLE = "-e "
"""What a level begins with that is a folder of sources, used where it lies."""

_BESIDES = re.compile(r"(?:^|\s)#.*|\s--(?:hash|config-settings|global-option)[=\s]\S+")
"""Comments, and what a line says besides package and version."""

# Run by the interpreter that is asked, from Python 3.9 on.
_ASK = r"""
import json, os, platform, sys
from importlib import metadata
found = {}
for one in metadata.distributions():
    name = one.metadata["Name"]
    if name and name not in found:  # the first on the path counts, as in an import
        found[name] = {"version": one.version, "requires": one.requires or [],
                       "url": json.loads(one.read_text("direct_url.json") or "{}"),
                       "installer": (one.read_text("INSTALLER") or "").strip()}
markers = {"implementation_name": sys.implementation.name, "os_name": os.name, "platform_machine": platform.machine(),
           "platform_python_implementation": platform.python_implementation(), "platform_release": platform.release(),
           "platform_system": platform.system(), "platform_version": platform.version(),
           "implementation_version": platform.python_version(), "python_full_version": platform.python_version(),
           "python_version": ".".join(platform.python_version_tuple()[:2]), "sys_platform": sys.platform}
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({"distributions": found, "markers": markers, "base": base}))
"""


@dataclass(frozen=True)
class Distribution:
    """One installed package.

    Attributes:
        name: canonical.
        level: its version, direct reference, or ``-e FOLDER``.
        version: its version.
        requires: what it asks for, as its metadata have it.
        installer: who has put it there: "pip", "uv", "conda"; "" if that is not known.
    """

    name: str
    level: str
    version: str
    requires: tuple[str, ...] = ()
    installer: str = ""


@dataclass(frozen=True)
class Installed:
    """All that an interpreter has installed.

    Attributes:
        distributions: canonical name -> package.
        markers: the environment that markers of requirements are about (PEP 508).
        base: the interpreter that its environment was made with.
    """

    distributions: Mapping[str, Distribution]
    markers: Mapping[str, str]
    base: str

    @property
    def levels(self) -> dict[str, str]:
        """Canonical name -> level."""
        return {name: one.level for name, one in self.distributions.items()}


def installed_by(python: str) -> Installed:
    """What an interpreter has installed.

    Raises:
        InputError: it does not say.
    """
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=PATIENCE, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise InputError(
            f"{python} does not say what it has installed: {error}", f"Check that `{python}` starts."
        ) from None
    found = {}
    for name, one in said["distributions"].items():
        name, level = str(canonicalize_name(name)), _level_of(one["version"], one["url"])
        found[name] = Distribution(name, level, one["version"], tuple(one["requires"]), one["installer"])
    return Installed(found, said["markers"], said["base"])


def _level_of(version: str, origin: JsonObject) -> str:
    """A version, or where a package came from that no index has: its ``direct_url.json`` (PEP 610)."""
    url = str(origin.get("url", ""))
    if not url:
        return version
    if (origin.get("dir_info") or {}).get("editable"):
        return EDITABLE + url.removeprefix("file://")
    control = origin.get("vcs_info") or {}
    if control:
        url = f"{control['vcs']}+{url}@{control['commit_id']}"
    return f"@ {url}" + (f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else "")


def named(name: str) -> str:
    """``packages.NAME`` with the canonical name."""
    return PACKAGE + canonicalize_name(name.removeprefix(PACKAGE))


def line_of(name: str, level: str) -> str:
    """The line of a requirements file that installs a package so."""
    if level.startswith(EDITABLE):
        return level
    return f"{name} {level}" if level.startswith("@") else f"{name}=={level}"


# ----------------------------------------------------------------------------------------------- the good environment


def read_packages(path: Path, installed: Installed) -> dict[str, str]:
    """The levels that a file gives to packages: requirements, ``pip freeze``, pylock.toml or uv.lock.

    Args:
        path: of the file.
        installed: what the user has now: a range that this is within asks for no other version.

    Raises:
        InputError: there is no such file, it is none of these, or it does not say which version.
    """
    try:
        text = read_text(path, "utf-8-sig")
        locked = load_toml(text) if path.suffix in (".lock", ".toml") else None
    except (OSError, ValueError) as error:
        why = "it is not a text file" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        raise InputError(
            f"{path} cannot be read: {why}.",
            "--good-packages takes what `pip freeze` or `uv pip freeze` prints where it worked, or a lock.",
        ) from None
    found: dict[str, str] = {} if locked is None else _of_lock(locked)
    for line in () if locked is not None else text.replace("\\\n", " ").splitlines():
        level = _of_line(_BESIDES.sub("", line).strip(), path, installed)
        if level is not None and found.setdefault(*level) != level[1]:
            name, value = level
            raise InputError(f"{path}: {name} is listed twice, as {found[name]} and as {value}.")
    if not found:
        raise InputError(f"{path} names no package.", "A line for each: transformers==4.57.1")
    return found


def _of_lock(lock: JsonObject) -> dict[str, str]:
    """Name -> version of what a lock has from an index or a wheel; the project itself is in it, too."""
    packages = lock.get("packages") or lock.get("package") or ()
    own = {"editable", "virtual", "directory"}
    return {
        canonicalize_name(one["name"]): one["version"]
        for one in packages
        if "version" in one and not own & set(one.get("source") or ())
    }


def _of_line(line: str, path: Path, installed: Installed) -> tuple[str, str] | None:
    """Name and level of a line; None if it changes nothing, or says where packages are looked for."""
    editable = re.match(r"(?:-e|--editable)[=\s]\s*([^#]+)(?:#egg=([\w.-]+))?", line)
    if editable:
        if editable[2] is None:
            raise InputError(f"{path}: which package is `{line}`?", f"Say it: {line}#egg=NAME, or leave it out.")
        return canonicalize_name(editable[2]), EDITABLE + editable[1]
    if not line or line.startswith("-"):
        if re.match(r"-(?:r|c)\b|--(?:requirement|constraint)\b", line):
            raise InputError(f"{path}: other files are not read from here: {line}", "Give what `pip freeze` prints.")
        return None
    wheel = None if " @ " in line else _wheel(line)
    if wheel is not None:
        return wheel[0], "@ " + (line if "://" in line else (path.parent / line).resolve().as_uri())
    try:
        asked = Requirement(line)
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path}: {line} is not a requirement ({why}).", "As in: transformers==4.57.1") from None
    if asked.marker is not None and not asked.marker.evaluate({**installed.markers, "extra": ""}):
        return None
    name = canonicalize_name(asked.name)
    if asked.url:
        return name, f"@ {asked.url}"
    exact = [one.version for one in asked.specifier if one.operator in ("==", "===") and not one.version.endswith("*")]
    if exact:
        return name, exact[0]
    here = installed.distributions.get(name)
    if here is not None and asked.specifier.contains(here.version, prereleases=True):
        return None
    raise InputError(f"{path}: {line} does not say which version it was.", f"Name the good one: {name}==VERSION")


def _wheel(place: str) -> tuple[str, str] | None:
    """Name and version of a wheel, by its path or address; None if it is none."""
    try:
        name, version, *_ = parse_wheel_filename(re.sub(r"[#?].*", "", place).rpartition("/")[2])
    except (InvalidWheelFilename, InvalidVersion):
        return None
    return name, str(version)


# ----------------------------------------------------------------------------------------------- levels and validity


def checked_level(name: str, level: Value) -> str | None:
    """A level of ``packages.NAME`` as somebody gave it; None, or an empty text, for a package that is not installed.

    Raises:
        InputError: it is no version.
    """
    if level is not None and not isinstance(level, str):
        raise InputError(f"{name}: {level!r} is a number, and a version is a string.", f'Write {name}: "{level}"')
    level = (level or "").strip()
    if level.lower() in ("", "none", NOT_INSTALLED):
        return None
    if not level.startswith(("@", EDITABLE)):
        try:
            Version(level)
        except InvalidVersion:
            raise InputError(
                f"{name}: {level} is not a version.", f"As in {name}=4.57.1, or {name}=@ file:///wheels/NAME.whl"
            ) from None
    return level


def shown_levels(good: Value, bad: str | None) -> tuple[str, str]:
    """The levels as people read them: of a wheel its version alone, where that tells the two apart."""
    given = str(good or NOT_INSTALLED), bad or NOT_INSTALLED
    wheels = [_wheel(level) if level.startswith("@") else None for level in given]
    ours, theirs = (level if wheel is None else wheel[1] for level, wheel in zip(given, wheels, strict=True))
    return given if ours == theirs else (ours, theirs)


class Missing(NamedTuple):
    """Something that a package asks for and does not find.

    Attributes:
        package: that asks.
        asks: the requirement, as its metadata have it.
        found: the version that is there, None if there is none.
    """

    package: str
    asks: str
    found: str | None

    def __str__(self) -> str:
        has = "it is not there" if self.found is None else f"there is {self.found}"
        return f"{self.package} asks for {self.asks.partition(';')[0].strip()}, and {has}"


def _asked_by(one: Distribution, markers: Mapping[str, str]) -> list[tuple[str, Requirement]]:
    """The requirements of a package that count here, as text and read."""
    found = []
    for text in one.requires:
        try:
            asked = Requirement(text)
            if asked.marker is None or asked.marker.evaluate({**markers, "extra": ""}):
                found.append((text, asked))
        except (InvalidRequirement, InvalidVersion):
            continue  # metadata of old packages: nobody's conflict
    return found


def _missing(name: str, text: str, asked: Requirement, side: Mapping[str, Distribution]) -> Missing | None:
    """What a package misses in an environment; None if it is there."""
    here = side.get(canonicalize_name(asked.name))
    try:
        found = here is not None and asked.specifier.contains(here.version, prereleases=True)
    except InvalidVersion:
        found = True
    return None if found else Missing(name, text, None if here is None else here.version)


def missing_in(distributions: Mapping[str, Distribution], markers: Mapping[str, str]) -> frozenset[Missing]:
    """What packages ask for and do not find.

    Args:
        distributions: canonical name -> package, all that are installed together.
        markers: see `Installed`.
    """
    every = ((name, *asked) for name, one in distributions.items() for asked in _asked_by(one, markers))
    return frozenset(missing for asked in every if (missing := _missing(*asked, distributions)) is not None)


class Mixtures:
    """Which mixtures of two environments are valid: those in which nothing is missing that neither misses.

    People's environments are often inconsistent, and train. So the two that were given are valid as they are.

    Args:
        good: canonical name -> package, where it worked.
        bad: the same where it fails.
        markers: see `Installed`.
    """

    def __init__(
        self, good: Mapping[str, Distribution], bad: Mapping[str, Distribution], markers: Mapping[str, str]
    ) -> None:
        sides = {False: good, True: bad}
        usual = {(one.package, one.asks) for side in sides.values() for one in missing_in(side, markers)}
        # A search asks about thousands of mixtures. What can be missing is a matter of two packages: who asks, and what
        # is there. Those pairs of sides are found once; for what both sides have alike any side will do.
        self._clashes: list[tuple[str, bool, str, bool, Missing]] = [
            (name, is_bad, canonicalize_name(asked.name), other_is_bad, missing)
            for is_bad, side in sides.items()
            for name, one in side.items()
            for text, asked in _asked_by(one, markers)
            for other_is_bad, other in sides.items()
            if (name, text) not in usual and (missing := _missing(name, text, asked, other)) is not None
        ]

    def error(self, is_bad: Callable[[str], bool]) -> str | None:
        """Why a mixture cannot be; None if it can.

        Args:
            is_bad: tells for a canonical name whether the mixture has the bad level of the package.
        """
        new = sorted({
            missing for name, side, other, there, missing in self._clashes
            if is_bad(name) is side and is_bad(other) is there
        })  # fmt: skip
        return None if not new else str(new[0]) + (f" (and {len(new) - 1} more)" if len(new) > 1 else "")
