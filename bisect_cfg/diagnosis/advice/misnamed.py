"""A setting or a name that the script, its configuration or a table does not have."""

from __future__ import annotations

import re

from bisect_cfg.diagnosis.advice.reading import (
    LONGEST_QUOTE,
    TOOLS,
    Advice,
    RaisedError,
    belongs_to,
    called,
    how_to_install,
    or_update,
    place_of,
    settings_of,
)

LONGEST_NAME = 60
"""A key that is longer is not the name of a model, a template or a method."""


def unknown_setting(read: RaisedError) -> Advice | None:
    """A setting that the script or its configuration does not know, or that is unset."""
    frame, place = read.caller, place_of(read.last)
    message = read.message
    found = re.search(
        r"'(?P<kind>Namespace|\w*Arguments|SimpleNamespace|Args|DictConfig|\w*Config)' object has "
        r"no attribute '(?P<name>\w+)'",
        message,
    )
    if found and found["kind"] in ("Namespace", "SimpleNamespace", "Args", "DictConfig"):
        name, who = found["name"], belongs_to(frame)
        says = (
            f"{who} reads the option {name}, and the {found['kind']} that it is handed has none of that name "
            f"(mostly: the parser of the script that was started, or its configuration, does not define it)."
        )
        steps = (
            f"another entry script of the same project may define --{name} (--help lists the "
            f"options); this one does not know it",
            "update the project (script and package must be of one version: pip install -e . again after git pull)"
            if frame and frame.package
            else "add the option to your parser, or read it with getattr(args, ..., default)",
        )
        return Advice("setting", says, steps, place)
    found = re.search(
        r"Key '(?P<name>[\w.]+)' is not in struct|Could not override '(?P<over>[\w.@/+]+)'|Key "
        r"'(?P<key>[\w.]+)' not in '(?P<cls>\w+)'|Could not find '(?P<group>[\w./]+)'",
        message,
    )
    if found:
        name = next(one for one in (found["name"], found["over"], found["key"], found["group"]) if one)
        full = re.search(r"full_key: (?P<full>[\w.]+)", message)
        key = full["full"] if full else name
        says = (
            f"The configuration has no key {key}: most often it is misspelt, has moved, or belongs to "
            f"another version of the project than the configuration."
        )
        steps = (
            f"look {name} up in the project's own YAML files of the version installed: names move between releases",
            f"+{key}=VALUE on the command line adds a key that the configuration lacks (Hydra), "
            f"where the code reads it",
            "configuration, script and package of one version (a recipe from the main branch with "
            "an older package does this)",
        )
        return Advice("setting", says, steps, place)
    found = re.search(
        r"Interpolation key '(?P<name>[^']+)' not found|Cannot find primary config "
        r"'(?P<config>[^']+)'",
        message,
    )
    if found:
        what = (
            f"The configuration refers to {found['name']}, which is not in it"
            if found["name"]
            else (f"Hydra does not find the configuration {found['config']}")
        )
        steps = (
            "configuration and package of one version; --config-path (an absolute one) and "
            "--config-name as the files are",
            "the message and hydra.searchpath say where it looked",
        )
        return Advice("setting", what + ".", steps, place)
    found = re.search(
        r"Value '(?P<value>[^']*)'.{0,40} (?:could not be converted to|is not a valid|is "
        r"incompatible with type hint) '?(?P<type>\w+)",
        message,
    )
    if found:
        full = re.search(r"full_key: (?P<full>[\w.]+)", message)
        key = full["full"] if full else "the setting"
        return Advice(
            "setting",
            f"{key} is {found['value']!r}, and {found['type']} is expected.",
            (f"give {key} a value of that type (quotes, brackets and null are read by Hydra)",),
            place,
        )
    missing = re.search(
        r"Missing mandatory value: (?P<name>[\w.]+)|the following arguments are required: "
        r"(?P<names>.+)",
        message,
    )
    if missing:
        name = missing["name"] or missing["names"]
        return Advice(
            "setting",
            f"The setting {name} has no value and needs one.",
            (f"give {name} on the command line or in the configuration",),
            place,
        )
    source = read.last.source if read.last else ""
    if "NoneType" in message and source:
        names = settings_of(source)
        whose = belongs_to(read.last)
        if names:
            says = (
                f"{whose} meets None at “{source[:LONGEST_QUOTE]}”: mostly a setting that is read there has no value."
            )
            steps = (
                f"set {', '.join(names)}, or leave out what makes the code read it",
                *(or_update(read.last.package) if read.last and read.last.package else ()),
            )
            return Advice("setting", says, steps, place)
    return None


def missing_optional(read: RaisedError) -> Advice | None:
    """A module that a package imports only where it is installed, and uses all the same."""
    found = re.search(r"name '(?P<name>\w+)' is not defined", read.message)
    frame = read.last
    if read.type != "NameError" or found is None or frame is None or not frame.package:
        return None
    name, who = found["name"], called(frame.package)
    if not re.search(rf"(?<![\w.]){name}\.\w", frame.source):
        return None
    says = (
        f"{who} uses {name}, which is not defined there: most often a package that {who} imports only where it is "
        f"installed."
    )
    steps = (
        f'python -c "import {name}" in the same environment says why: mostly it is not installed (pip install {name}), '
        f"or has no build for this GPU, system or Python",
        f"or turn off the option of {who} that needs it; or an image in which both come together",
    )
    return Advice("versions", says, steps, place_of(frame))


def unset_variable(read: RaisedError) -> Advice | None:
    """A variable that a package's own code reads on a way on which nothing sets it."""
    found = re.search(r"local variable '(?P<name>\w+)'", read.message)
    frame = read.last
    if read.type != "UnboundLocalError" or found is None or frame is None or not frame.package:
        return None
    name, who = found["name"], called(frame.package)
    says = (
        f"{who} reads its variable {name} before anything has set it ({place_of(frame)}): the branch that sets it was "
        f"not taken, mostly a fault of this version of {who} with these settings."
    )
    steps = (
        f"a newer {who} ({how_to_install(frame.package)})",
        f"in {frame.file}, above line {frame.line}: under which condition is {name} set? The option that it asks for, "
        f"given, takes the branch that works",
    )
    return Advice("versions", says, steps, place_of(frame))


_OF_A_FILE = re.compile(r"^_?(?:model_|hf_|train_)?(?:config|cfg|params)$")
"""Names of what is read from a file, against tables that the package has."""


def unknown_name(read: RaisedError) -> Advice | None:
    """A name that a table of the package does not have."""
    source, frame = (read.last.source, read.last) if read.last else ("", None)
    found = re.search(
        r"(\w*(?:mapping|map|config|adapters|registry|table|dict|classes|functions|fns|types"
        r"|templates|factory|models)\w*)\[",
        source,
        re.IGNORECASE,
    )
    name = read.message.strip().strip("'\"")
    if (
        read.type != "KeyError"
        or not found
        or frame is None
        or not frame.package
        or frame.package in TOOLS
        or len(name) > LONGEST_NAME
    ):
        return None
    who = called(frame.package)
    if _OF_A_FILE.search(found[1]):
        says = (
            f"{who} reads {name!r} of {found[1]}, which has no such key: most often what it was made from "
            "(config.json, params.json, a YAML) is of another format or version than this part expects."
        )
        steps = (
            f"print {found[1]} before {place_of(frame)}: which file is it of, and in which format (Hugging Face's, "
            "Meta's own, a trainer's)? Then the part that reads this format, or the files in the other one",
            f"a newer {who} ({how_to_install(frame.package)}), if the file is newer than it",
        )
        return Advice("setting", says, steps, place_of(frame))
    says = (
        f"{who} looks {name!r} up in its {found[1]} and does not find it: most often this {who} does not know that "
        f"name, or does not take it for this setting."
    )
    steps = (
        f"is {name!r} spelt as the documentation of {who} has it, and was it made or registered "
        f"before? Names of commands move (help of the version installed)",
        f"a newer {who} ({how_to_install(frame.package)}), if its documentation has the name",
    )
    return Advice("setting", says, steps, place_of(frame))
