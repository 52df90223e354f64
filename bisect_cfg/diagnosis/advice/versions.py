"""One package calls another in a way that the other does not know."""

from __future__ import annotations

import re

from bisect_cfg.diagnosis.advice.reading import (
    PACKAGES,
    TOOLS,
    Advice,
    Frame,
    RaisedError,
    belongs_to,
    called,
    how_to_install,
    owner_of,
    package_of,
    pair_steps,
    pip_name,
    place_of,
    settings_of,
)

_CALLS_A_REWARD = re.compile(r"\breward_(?:func|fn|function)\w*(?:\[\w+\])?\(|\bcompute_score\(")
"""A trainer's line that calls a function of the user's."""


def misfit(read: RaisedError) -> Advice | None:
    """One package calls another in a way that the other does not know."""
    frame = read.caller
    caller = frame.package if frame else ""
    message = read.message
    imported = re.search(
        r"cannot import name '(?P<name>\w+)' from (?P<partly>partially initialized module "
        r")?'(?P<module>[\w.]+)'(?: \((?P<path>[^)]*)\))?",
        message,
    )
    if imported:
        return _import_name(imported, frame)
    submodule = re.search(r"No module named '(?P<module>(\w+)(?:\.\w+)+)'", message)
    if submodule:
        package = submodule[2]
        says = (
            f"{belongs_to(frame)} imports {submodule['module']}, which the {called(package)} "
            f"that Python found does not have: most often they are of versions that do not fit."
        )
        if package not in PACKAGES and not caller:
            says = (
                f"{belongs_to(frame)} imports {submodule['module']}, and the {package} that Python found has no such "
                f"part: another folder or file called {package} stands in its way, or it is of another version."
            )
            steps = (
                f'python -c "import {package}; print({package}.__path__)" in the folder where the run starts shows '
                f"which {package} it takes: is it the one that is meant?",
                f"a folder {package}/ of the project: start from the project's own folder, or PYTHONPATH=that folder",
                f"a package: the version of it that the script was written for (pip show {pip_name(package)})",
            )
            return Advice("versions", says, steps, place_of(frame))
        return Advice("versions", says, pair_steps(caller if caller != package else "", package), place_of(frame))
    module = re.search(r"module '(?P<module>(\w+)[\w.]*)' has no attribute '(?P<name>\w+)'", message)
    if module:
        package = module[2]
        if frame and frame.function in _LOOKS_UP:  # for somebody else, who gave it the name
            above = [one for one in read.frames if one.package not in ("", "python", *TOOLS, caller, package)]
            frame, caller = (above[-1], above[-1].package) if above else (frame, caller)
        steps = pair_steps(caller if caller != package else "", package)
        if not caller:
            steps = (
                *steps,
                f"no file or folder called {package} may lie next to the script: it would be imported in its place",
            )
        says = (
            f"{belongs_to(frame)} uses {module['module']}.{module['name']}, which the "
            f"{called(package)} that was imported does not have."
        )
        return Advice("versions", says, steps, place_of(frame))
    if read.type == "TypeError":
        return _argument(read)
    lacking = re.search(
        r"'(?P<owner>\w+)' object has no attribute '(?P<name>\w+)'|type object '(?P<type>\w+)' "
        r"has no attribute '(?P<member>\w+)'",
        message,
    )
    if (
        lacking
        and read.type == "AttributeError"
        and (lacking["owner"] or "") not in _PLAIN_TYPES | {"NoneType", "Namespace", "DictConfig"}
    ):
        return _attribute(lacking, read)
    return None


_LOOKS_UP = {"resolve_obj_by_qualname", "resolve_obj_by_name", "import_string", "locate", "get_class"}
"""Functions that look for a name which they were given."""

_PLAIN_TYPES = {
    "list",
    "dict",
    "str",
    "int",
    "float",
    "tuple",
    "bool",
    "set",
    "function",
    "method",
    "bytes",
    "generator",
    "builtin_function_or_method",
}


def _import_name(imported: re.Match[str], frame: Frame | None) -> Advice:
    name, module, path = imported["name"], imported["module"], imported["path"] or ""
    package = module.split(".")[0]
    caller = frame.package if frame else ""
    if imported["partly"]:
        says = (
            f"{module} was imported while it was still being imported itself: a circle of "
            f"imports, often because a file has the name of a package."
        )
        steps = (
            f"no file of yours may be called {package}.py or have the name of another package"
            + (f"; the one that was found is {path}" if path else ""),
            "otherwise a fault of the installed version: " + pair_steps(caller, package)[0],
        )
        return Advice("versions", says, steps, place_of(frame))
    if path == "unknown location":
        says = (
            f"Python found a folder called {package} without an __init__.py in place of the "
            f"package: one in the working directory, or what is left of a broken installation."
        )
        steps = (
            f"rename the folder {package}/ next to the script or in the working directory, or "
            f"start from another directory",
            f'python -c "import {package}; print({package}.__path__)" shows which one is taken',
            f"pip uninstall {pip_name(package)}, delete what is left of it in site-packages, and install it again",
        )
        return Advice("versions", says, steps, place_of(frame))
    if path and package_of(path) == "" and "packages" not in path and package in PACKAGES:
        says = (
            f"{package} was imported from {path}, which is not in site-packages: a checkout (of another version than "
            f"expected), or a file or folder of that name that stands in its way."
        )
        steps = (
            "rename it, or start from another directory; a checkout that is meant is updated "
            "(git pull, pip install -e .)",
            *pair_steps(caller, package),
        )
        return Advice("versions", says, steps, place_of(frame))
    who = belongs_to(frame)
    says = (
        f"{who} imports {name} from {module}, and the {called(package)} installed does not have "
        f"it: most often they are of versions that do not fit."
    )
    if path and package_of(path) == "" and "packages" not in path:
        says = (
            f"{who} imports {name} from {module}, and the file that Python found for it ({path}) has no such name: it "
            f"is of another version, is another file of that name, or the name is spelt otherwise."
        )
        return Advice(
            "versions",
            says,
            (
                f"look into {path}: is it the file that is meant, and is {name} in it, spelt like that?",
                "files of one project must be of one version (git status, git pull)",
            ),
            place_of(frame),
        )
    if caller == package == module == "transformers":  # its own files name the module in which they find something
        says = (
            f"{name} is asked of transformers, and the one installed does not have it. Most often another package asks "
            "that transformers imports along the way (PEFT, accelerate), and is newer or older than this transformers."
        )
        steps = (
            "the frames further up, or the first traceback, name the file that imports it: update transformers if that "
            "package is newer, or install the release of that package that came out with this transformers",
            "pip install -U transformers peft accelerate, or the versions that the project names; pip check says what "
            "does not fit",
        )
        return Advice("versions", says, steps, place_of(frame))
    if caller == package:
        says = (
            f"{called(package)} does not find {name} in its own {module}: most often files of two versions "
            f"are mixed, or its parts are not of the same version."
        )
        return Advice(
            "versions",
            says,
            (
                f"pip uninstall {pip_name(package)}, then install it again (a second copy, a checkout "
                f"on PYTHONPATH or an overwritten file mixes versions)",
                *pair_steps(caller, "")[1:],
            ),
            place_of(frame),
        )
    return Advice("versions", says, pair_steps(caller, package), place_of(frame))


def _argument(read: RaisedError) -> Advice | None:
    """A function that is called with arguments it does not take."""
    found = re.search(
        r"(?P<name>[\w.<>]+)\(\) (?P<what>got (?:an unexpected keyword argument|multiple values "
        r"for (?:keyword )?argument) '(?P<argument>\w+)'.*"
        r"|missing \d+ required (?:positional|keyword-only) arguments?: .*|takes .* positional "
        r"arguments? but .* given)",
        read.message,
    )
    if not found:
        return None
    frame = read.last
    caller = read.caller.package if read.caller else ""
    parts = found["name"].split(".")
    owner = next((one for one in map(owner_of, parts) if one), "")
    place = place_of(frame)
    function, what = found["name"], re.sub("^missing", "lacks", found["what"])
    if re.search(r"(?:Config|Arguments|Args)$", parts[0]) and found["argument"] and "unexpected" in what:
        who = f"{called(owner)}'s {parts[0]}" if owner else parts[0]
        says = (
            f"{who} does not have the setting {found['argument']}: most often {belongs_to(read.caller)} is "
            f"written for another version of it, or the name is misspelt."
        )
        steps = (
            f"drop or rename {found['argument']}" + (f" in the call at {place}" if not caller else ""),
            *pair_steps(caller, owner or ""),
        )
        return Advice("setting", says, steps, place)
    as_reward = read.caller is not None and _CALLS_A_REWARD.search(read.caller.source)
    own = as_reward or re.search(
        r"reward|score|collat|callback|format|accuracy|preprocess|<locals>|formatting", function
    )
    if own and owner == "" and caller:
        why = "it is called as a reward" if as_reward else f"by its name, it is not {called(caller)}'s own"
        says = f"{called(caller)} calls {function}, which {what.split(' {')[0]}: {why}, and has another signature."
        steps = (
            f"give {function} the arguments that {called(caller)} hands over (see the call at "
            f"{place}), and **kwargs for the rest",
        )
        return Advice("own-code", says, steps, place)
    if not caller:
        says = f"The call of {function} in {belongs_to(frame)} does not fit it: it {what}."
        return Advice(
            "own-code" if not owner else "versions",
            says,
            (f"look at the call at {place}", *(pair_steps("", owner) if owner else ())),
            place,
        )
    other = (
        owner
        if owner and owner != caller
        else next(
            (one.package for one in reversed(read.frames) if one.package not in ("", "python", caller, *TOOLS)), ""
        )
    )
    if caller.startswith("unsloth") or (owner or "").startswith("unsloth"):
        other = "unsloth_zoo" if caller == "unsloth" else "unsloth"
    if parts[0].endswith("Trainer") and len(parts) > 1 and owner == "":
        says = (
            f"{called(caller)} calls {function}, which does not take the call: it {what}. Most often {parts[0]} "
            f"overrides that method for another {called(caller)}."
        )
        declared = (
            f"install the {called(caller)} that the project of {parts[0]} names (its requirements "
            f"or README), or update the project"
        )
        return Advice(
            "versions",
            says,
            (declared, f"or let the method of {parts[0]} take what it is given: def {parts[-1]}(self, ..., **kwargs)"),
            place,
        )
    target = f"{function} of {called(owner)}" if owner and owner != caller else function
    says = (
        f"{called(caller)} calls {target} in a way it does not know: it {what}. Mostly that is a pair of "
        f"versions that do not fit."
    )
    return Advice("versions", says, pair_steps(caller, other), place)


def _attribute(lacking: re.Match[str], read: RaisedError) -> Advice | None:
    owner, name = lacking["owner"] or lacking["type"], lacking["name"] or lacking["member"]
    frame = read.caller
    caller, place = (frame.package if frame else ""), place_of(read.last)
    if frame is None:
        return None
    whose = owner_of(owner)
    if whose == "trl" and caller in _WITH_TRAINERS_OF_THE_NAME:
        whose = caller
    if re.search(r"(?:Config|Arguments|Args)$", owner):
        says = (
            f"{belongs_to(frame)} reads the setting {name} of a {owner}, and the one that it was handed has no such "
            f"setting."
        )
        return Advice("setting", says, (*pair_steps(caller, whose if whose != caller else ""),), place)
    if owner.endswith("Trainer") and not whose and caller != "transformers":
        who = called(caller) if caller else "the script"
        says = (
            f"The trainer {owner} lacks {name}: most often it is derived from a trainer of TRL (or transformers) that "
            f"had it, and the one installed does not."
        )
        steps = (
            f"install the TRL and transformers that {who} names (its requirements, or the date of its last commit)",
            f"or a newer {who}, made for the TRL installed; pip show trl transformers says which one that is",
        )
        return Advice("versions", says, steps, place)
    if not caller:
        says = f"{belongs_to(frame)} asks an object of class {owner} for {name}, which it does not have."
        steps = (
            f"look at {place}: another name, or another "
            f"{called(whose) or 'version of the library'} than the script was written for",
        )
        return Advice(
            "versions" if whose else "own-code", says, (*steps, *(pair_steps("", whose) if whose else ())), place
        )
    source = read.last.source if read.last and read.last.package == caller else ""
    if {*re.findall(rf"([\w.\])]+)\.{re.escape(name)}\b", source)} == {"self"}:
        # the object is the one whose own method reads it
        says = (
            f"{called(caller)}'s own {owner} reads self.{name}, which is not set: most often a fault of this release "
            f"of {called(caller)}, or of the order in which it was set up (a mode in which that part is left out)."
        )
        steps = (
            f"another release of {called(caller)}, a newer one first ({how_to_install(caller)})",
            f"what is unusual on the way there: the mode or setting that leads to {read.last.function}; without it, a "
            f"check",
        )
        return Advice("versions", says, steps, place)
    says = f"{called(caller)} asks an object of class {owner} for {name}, which it does not have."
    if owner in _WRAPPERS:
        says += " That class is a wrapper around the model; what is asked for is the model's own."
        steps = (
            f"is the model inside of the class that {called(caller)} expects? A PEFT adapter, a head or a class of "
            f"one's own may lack {name}: merge the adapter (merge_and_unload()), or load it as that class",
            f"a line of one's own: accelerator.unwrap_model(model).{name}, or model.module.{name}",
            *pair_steps(caller, ""),
        )
        return Advice("versions", says, steps, place)
    if whose and whose != caller:
        says += (
            f" By its name that class is {called(whose)}'s: most often a pair of versions that do not fit, or a "
            f"model or engine of another kind than {called(caller)} expects there."
        )
    else:
        says += (
            " Most often it was handed an object of another kind than it expects (a model without the "
            "wrapper, an engine of another kind), or its parts are of versions that do not fit."
        )
    names = settings_of(read.last.source) if read.last else ()
    first = (f"the settings read on that line: {', '.join(names)}",) if names else ()
    return Advice("versions", says, (*pair_steps(caller, whose if whose != caller else ""), *first), place)


_WITH_TRAINERS_OF_THE_NAME = {
    "swift",
    "ms-swift",
    "ms_swift",
    "unsloth",
    "unsloth_zoo",
    "llamafactory",
    "openrlhf",
    "verl",
}
"""Packages that derive trainers from TRL's, and call them the same."""

_WRAPPERS = {
    "DeepSpeedEngine",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "DataParallel",
    "OptimizedModule",
}
"""Classes that stand around a model while it is trained; DeepSpeed's and torch.compile's hand on what they lack."""
