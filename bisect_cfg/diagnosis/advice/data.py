"""A column, a file, or a function of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bisect_cfg.diagnosis.advice.reading import (
    IN_DATA,
    IN_REWARD,
    LONGEST_QUOTE,
    PACKAGES,
    TOOLS,
    Advice,
    Frame,
    RaisedError,
    belongs_to,
    called,
    how_to_install,
    pair_steps,
    place_of,
    without_access,
)
from bisect_cfg.diagnosis.advice.signatures import RENAMED

_WITHOUT_DATA = {"peft", "vllm", "sglang", "torch", "deepspeed", "accelerate", "megatron", "ray"}
"""Packages that see no row of the data."""


def missing_column(read: RaisedError) -> Advice | None:
    """A column or key that the data lacks."""
    message = read.message.strip()
    key = re.fullmatch(r"['\"]?([\w /-]{1,60})['\"]?", message) if read.type == "KeyError" else None
    found = re.search(
        r"[Cc]olumn(?:s)? (?:name )?\[?['\"`]?([\w-]+)['\"`]?\]? (?:is |are )?(?:not in|doesn't "
        r"exist|does not exist|not found|missing)|Column to (?:remove|rename|select) \['?(\w+)'?"
        r"|['\"`](\w+)['\"`] (?:column )?(?:is )?not (?:found )?in (?:the )?(?:dataset|columns"
        r"|data)"
        r"|[Tt]he following columns? .*?(?:don't|do not|doesn't) .*?",
        message,
    )
    name = key[1] if key else next((one for one in found.groups() if one), "") if found else ""
    frame, place = read.last, place_of(read.last)
    held = re.search(r'key "(\w+)" not found in (?:TensorDict|DataProto)', message)
    if held:
        says = f"The batch has no tensor {held[1]!r}, which {belongs_to(read.caller)} reads ({place_of(read.caller)})."
        steps = (
            f"the step that makes {held[1]} did not run, or is of another version: a rollout, a "
            f"tool or a reward that adds it, switched off or taken from another commit",
            f"print the keys of the batch before that line; then the versions of "
            f"{belongs_to(read.caller)} and of the engine that it names",
        )
        return Advice("column", says, steps, place_of(read.caller))
    inside = frame is not None and frame.package in _WITHOUT_DATA
    in_reward = read.own is not None and read.within(IN_REWARD, 3)
    asked = _asked(frame.source, name) if frame and not found else ""
    handed = asked.endswith("kwargs") and bool(frame and frame.package)
    if not name or not (found or handed or read.asked_a_row or (not inside and (read.within(IN_DATA, 3) or in_reward))):
        return None
    # A reward's own arguments are the columns; any other table that it asks is its own.
    computed = bool(frame and _computed(frame.source)) and not asked.endswith("kwargs")
    of_a_row = found or read.asked_a_row or _OF_A_ROW.match(asked)
    if frame and not of_a_row and (not in_reward or computed):
        return _missing_key(name, asked, read)
    whose = belongs_to(read.caller)
    if name in _SPLITS:
        says = f"{name!r} is the name of a split, and no column; {whose} asks for it at {place}."
        steps = (
            "print(dataset): a DatasetDict (what load_dataset gives without split=) was handed over where one split is "
            f'wanted, most often: dataset["{name}"], or load_dataset(..., split="{name}")',
            "a split that is not there: print(dataset) shows their names; train_test_split makes them",
        )
        return Advice("column", says, steps, place)
    if "Column to remove" in message or "remove column" in message:
        says = f"The data set has no column {name!r}, which was to be removed ({place or 'see the traceback'})."
        steps = (
            "remove_columns=dataset.column_names of this very split (each may have others), in place of a fixed list",
            f"print(dataset.column_names) before that line: another name, or {name!r} was removed before",
        )
        return Advice("column", says, steps, place)
    says = (
        f"{'A row of the data' if read.asked_a_row else _whole(asked)} has no {name!r}; {whose} asks for it at {place}."
        if frame
        else (f"A row of the data has no {name!r}.")
    )
    steps = [
        f"print(dataset.column_names) and one row: is {name} there, spelt like that, in the "
        f"training and the validation file?"
        if not _OF_A_MESSAGE.search(asked)
        else f"print the messages of one row: each needs {name!r} (role and content; from and value are converted)"
    ]
    if frame and frame.package and frame.package not in TOOLS:
        steps.append(
            f"write the data as {called(frame.package)} wants it (its own data preparation script "
            f"or documented format), or give it the name your column has"
        )
        if frame.package in ("trl", "transformers", "unsloth"):
            steps.append("remove_unused_columns=False, if the column is there and was dropped")
    else:
        steps.append(f"dataset.rename_column(YOUR_COLUMN, {name!r}), or change the line at {place}")
    return Advice("column", says, tuple(steps), place)


_SPLITS = ("train", "test", "validation", "valid", "eval", "dev")
"""Names of the parts of a data set, which no column has."""

_OF_A_ROW = re.compile(
    r"(?:.*\.)?(?:rows?|examples?|samples?|items?|elem\w*|instances?|records?|entry|ex|x|d|doc|df|ds|dataset|data"
    r"|data_(?:item|point|dict|row)|(?:\w+_)?batch|features?|inputs?|msg|messages?|m|turn|conversations?|data_sources?)"
    r"(?:\[[^\]]*\])*$"
)
"""Names that code gives to a row of the data, or to what a batch of them became."""


_OF_A_MESSAGE = re.compile(r"(?:^|\.)(?:msg|messages?|m|turn|conversations?)(?:\[[^\]]*\])*$")


def _whole(asked: str) -> str:
    if _OF_A_MESSAGE.search(asked):
        sure = re.search(r"(?:msg|messages?|conversations?)(?:\[[^\]]*\])*$", asked)
        return "A message of a row" if sure else f"{asked} (a message of a row, by its name)"
    return (
        "A row of the data" if not asked or _SURELY_A_ROW.search(asked) else f"{asked} (a row of the data, by its name)"
    )


_SURELY_A_ROW = re.compile(r"(?:rows?|examples?|samples?|dataset|data_(?:item|point|dict|row)|kwargs)(?:\[[^\]]*\])*$")


def _asked(source: str, name: str) -> str:
    """What a line of source asks for a key, "" if it does not show it."""
    found = re.search(rf"(\w[\w.]*(?:\[[^\]]*\][\w.]*)*?)(?:\.pop\(|\[)['\"]{re.escape(name)}['\"]", source)
    if found:
        return found[1]
    computed = _computed(source)
    return computed[0] if len(computed) == 1 else ""


def _computed(source: str) -> list[str]:
    """What a line of source asks for a key that it works out: `PENALTY[letter.upper()]`."""
    names = re.findall(r"(?<![\w.])([A-Za-z_][\w.]*)\[(?!['\"\d:\]-])[^\]:]*", source)
    return list(dict.fromkeys(name for name in names if name.rpartition(".")[2] not in _TYPES))


_TYPES = {"list", "dict", "tuple", "set", "List", "Dict", "Tuple", "Optional", "Union", "Literal"}
"""Names before brackets in a type, which ask nothing for a key."""


def of_a_row(key: str, frames: Sequence[Frame]) -> bool | None:
    """Whether the line that did not find a key asks a row of the data for it; None if that cannot be told."""
    last = next((frame for frame in reversed(without_access(tuple(frames))) if frame.package != "python"), None)
    asked = _asked(last.source, key) if last else ""
    if not asked or (asked.endswith("kwargs") and not last.package):
        return None  # a reward's own arguments are the columns
    return bool(_OF_A_ROW.match(asked))


def _missing_key(name: str, asked: str, read: RaisedError) -> Advice:
    """A key that something lacks of which the line does not say that it is a row."""
    frame, place = read.last, place_of(read.last)
    whose = belongs_to(frame)
    before = read.frames[: read.frames.index(frame)]
    by = next((one.package for one in reversed(before) if one.package not in ("", "python", *TOOLS, frame.package)), "")
    if asked.endswith("kwargs") and frame.package and by:
        says = (
            f"{whose} takes {name!r} from the arguments it is called with ({place}), and {called(by)}, which calls it, "
            f"hands over none of that name."
        )
        renamed = (f"newer ones of {called(by)} call it {RENAMED[name]}",) if name in RENAMED else ()
        return Advice("versions", says, (*pair_steps(frame.package, by), *renamed), place)
    what = f"{asked} has no {name!r}" if asked else f"The key {name!r} is not there"
    says = f"{what}; {whose} asks for it at {place}."
    if not frame.package and _computed(frame.source) and f"{name!r}" not in frame.source:
        steps = (
            f"the key is worked out at that line, and this value of it has no entry: add {name!r} to "
            f"{asked or 'the table'}, or ask with .get(KEY, a default)",
            "where does the value come from? A completion or a row of the data may hold anything: check it before that "
            "line, and give such an answer a reward of its own",
        )
        return Advice("own-code", says, steps, place)
    steps = (
        f"print {f'{asked}.keys()' if asked else 'the keys'} at that line: do they look like the columns of the data, "
        f"the fields of a configuration, or something that {whose} has made?",
        "columns: the data lacks that one, or has it under another name (training and validation file); fields: a "
        "configuration without it, or of another version",
    )
    if frame.package and frame.package not in TOOLS:
        steps += (f"made by {whose} itself: a newer {called(frame.package)} ({how_to_install(frame.package)})",)
    return Advice("key", says, steps, place)


def interrupted(read: RaisedError) -> Advice | None:
    """Where a run was when somebody ended it."""
    frame = read.own or read.last
    if frame is None:
        return None
    whose = belongs_to(frame)
    shown = f": “{frame.source[:LONGEST_QUOTE]}”" if frame.source else ""
    says = (
        f"The run was interrupted (Ctrl-C, or a SIGINT from what started it) while it was at {place_of(frame)}, in "
        f"{whose}{shown}."
    )
    steps = (
        "if it had stood still there: that call does not come back. A time limit around it, and the values that it was "
        "given, one after the other by hand",
        "if it was ended on purpose: nothing has failed; resume_from_checkpoint goes on",
    )
    return Advice("interrupted", says, steps, place_of(frame))


def own_code(read: RaisedError) -> Advice | None:
    """A file of no package raised it."""
    frame = read.own
    if frame is None or read.type in ("ModuleNotFoundError", "ImportError") or read.cut:
        return None
    earlier = [
        one for one in read.frames[: read.frames.index(frame)] if one.package in PACKAGES and one.package not in TOOLS
    ]
    around = [one for one in read.frames if one.file == frame.file]  # a comprehension has a frame of its own
    at = read.frames.index(around[0])
    above = read.frames[at - 1] if at else None
    reward = any(_OF_A_REWARD.search(one.function) for one in around) or bool(
        _OF_A_REWARD.search(frame.file.rpartition("/")[2])
        or (above is not None and above.package and re.search(r"reward_f\w+\(|compute_score\(", above.source))
    )
    script = frame.function in ("<module>", "main", "<cell>")
    what = "reward function" if reward else "script" if script else "function"
    if what == "script" and frame is not read.last:
        return None  # it only calls the package that raised it
    direct = bool(earlier) and above is not None and above.package == earlier[-1].package
    caller = called(earlier[-1].package) if earlier else ""
    by = (f", which {caller} calls," if direct else f", to which a call of {caller} leads,") if earlier else ""
    below = read.last if read.last is not None and read.last.package and read.last is not frame else None
    did = f"made a call that failed in {called(below.package)}" if below else "raised it"
    says = (
        f"The {what} {frame.function if what != 'script' else ''}".strip()
        + (f"{by} {did}, at {frame.file}{':' + str(frame.line) if frame.line else ''}")
        + (f": “{frame.source[:LONGEST_QUOTE]}”." if frame.source else ".")
    )
    if reward and re.search(r"Timeout|Connect|HTTP|Disconnected", read.type):
        steps = (
            "the service that it asks did not answer, or not in time: call it by hand from this machine (curl), and "
            "read its own log: is it up, at that address, and not overloaded?",
            f"a time limit and a few tries in {frame.function}, a reward of 0.0 (or None) where that is in vain, and "
            "fewer requests at once",
        )
    elif reward and read.type not in ("NameError", "UnboundLocalError"):
        steps = (
            f"if a completion that it cannot score raised it: make {frame.function} survive that (try, and a reward "
            f"of 0.0)",
            f"call {frame.function} by hand on a few real completions and rows; print what it gets at that line",
        )
    elif read.within(IN_DATA):
        steps = (f"print what {frame.function} gets at that line: a row of another shape than it expects",)
    else:
        steps = (f"look at that line: {_hint(read)}",)
    trainer = next((one.package for one in reversed(earlier) if one.package in _OF_TRAINERS), "")
    overrides = above is not None and above.package == trainer and "self." in above.source
    if trainer and overrides and not reward and frame is read.last and read.type in _OF_ANOTHER_VERSION:
        steps = (
            f"a method that overrides one of {called(trainer)} is made for one version of it: install the "
            f"{called(trainer)} that the project was written for (its requirements, or the date of its last commit), "
            f"or write that line for what the one installed hands over",
            *steps,
        )
    return Advice("own-code", says, steps, place_of(frame))


_OF_A_REWARD = re.compile(r"reward|compute_score|grader|rubric", re.IGNORECASE)
"""Names that only what scores answers has; `accuracy` and `judge` stand in an evaluation as well."""
_OF_TRAINERS = ("trl", "transformers", "verl", "openrlhf", "swift", "llamafactory", "unsloth")
_OF_ANOTHER_VERSION = ("KeyError", "AttributeError", "TypeError")
"""Exceptions by which a method that a trainer calls shows that it was written for another trainer's version."""


_CALL = re.compile(r"^(?:[\w., ]+ = )?(?:return |await |yield )?(?P<callee>[A-Za-z_][\w.]*)\(")
_OF_PYTHON = re.compile(
    r"^(?:torch|F|np|numpy|math|re|json|os|random|pd)\.|(?:^|\.)(?:int|float|open|len|next|eval|exec|loads?|dumps?|sum|max|min|sorted|list|dict|tuple|set|str|read\w*|join"
    r"|index|remove|pop|format|encode|decode|match|search|findall|import_module|mkdir|makedirs|remove|listdir)$"
)
"""Functions that raise without a frame of their own."""


def raised_below(read: RaisedError) -> bool:
    """Whether the frames below a line are missing: it only calls something, which must have raised the exception."""
    frame = read.own
    if frame is None or frame is not read.last:
        return False
    if read.library:
        return True
    if frame.source.startswith("raise"):
        return False
    call = _CALL.match(frame.source)
    if call is None or _OF_PYTHON.search(call["callee"]):
        return False
    if read.type in ("TypeError", "AttributeError", "NameError", "KeyError", "IndexError", "UnboundLocalError"):
        return bool(_RUNS.search(call["callee"]))  # of the line itself, mostly
    return read.type.endswith(("Error", "Exception"))


_RUNS = re.compile(r"(?:^|\.)(?:train|fit|main|run\w*|evaluate|generate|predict|launch|learn|from_pretrained|map)$")
"""Functions that do so much that an exception seldom is of the call itself."""


def _hint(read: RaisedError) -> str:
    return {
        "KeyError": f"the key {read.message.strip()[:80]} is not there; print the keys",
        "IndexError": "print the shapes of both"
        if "shape" in read.message
        else "the tensor has fewer entries in that dimension; print its shape, and the index"
        if "dimension" in read.message
        else "the list is shorter than the index; print its length",
        "NameError": "the name is not defined in that place (an import, or a notebook cell that was not run)",
        "UnboundLocalError": "the variable is set only in a branch that was not taken",
        "FileNotFoundError": "the path is relative to the directory the run was started in",
        "ZeroDivisionError": "the divisor is 0, often the length of an empty list",
        "ModuleNotFoundError": "the package is not in this environment",
    }.get(read.type, "print the values it uses")


_WRITES = re.compile(
    r"""open\(.*,\s*(?:mode=)?['"][wax]|\.(?:to_(?:csv|json|parquet|pickle)|write_text|write_bytes|savefig)\("""
    r"|\b(?:torch|np|numpy)\.save\w*\("
)
"""Lines that write a file."""
_STARTS_A_PROGRAM = re.compile(r"_execute_child|create_subprocess|\bPopen\b|_posixsubprocess|subprocess\.")


_NO_SUCH_FILE = re.compile(r"No file with name:? ['\"]?(?P<file>[\w.-]+)['\"]? found in ['\"]?(?P<folder>[\w./~-]*\w)")


def missing_file(read: RaisedError) -> Advice | None:
    """A file that is not there, or is no JSON."""
    place = place_of(read.caller)
    if read.type in ("FileNotFoundError", "NotADirectoryError"):
        path = re.search(r"'([^']+)'|\"([^\"]+)\"", read.message)
        name = (path[1] or path[2]) if path else "the file"
        if path and "/" not in name and read.within(_STARTS_A_PROGRAM):
            says = (
                f"The program {name} is not installed on this machine, or not on the PATH of the process that starts it"
                + (f"; {belongs_to(read.caller)} does at {place}." if place else ".")
            )
            steps = (
                f"which {name}, on the machine and in the container (for Ray, of the worker) where that process runs; "
                "install it there",
                "it is installed? Then its folder is missing in the PATH that this process was started with",
            )
            return Advice("program", says, steps, place)
        if read.caller and _WRITES.search(read.caller.source):
            says = (
                f"{name} cannot be written, since its folder does not exist; {belongs_to(read.caller)} does at {place}."
            )
            steps = (
                "os.makedirs(os.path.dirname(PATH), exist_ok=True) before that line (on the process that writes)",
                "is it relative? Then it is looked for in the directory the run was started in",
            )
            return Advice("file", says, steps, place)
        absent = "does not exist where the process runs"
        if read.type == "NotADirectoryError":
            absent = "cannot be reached as a path: a part of it is a file and no folder"
        says = f"{name} {absent}" + (f"; {belongs_to(read.caller)} wants to read it ({place})." if place else ".")
        relative = (
            ""
            if name.startswith(("/", "~")) or not path
            else (
                "it is relative to the directory the run was started in (for Ray, to that of the "
                "worker): give the whole path"
            )
        )
        steps = (
            relative
            or "every machine and container of the run must see that path (mounts, a download or "
            "preparation step that was left out)",
            "ls it on the machine, under the user, where the process runs",
        )
        return Advice("file", says, steps, place)
    named = _NO_SUCH_FILE.search(read.message)
    if named:
        whose = belongs_to(read.caller)
        says = f"The folder {named['folder']} has no file {named['file']}; {whose} looks for it ({place})."
        steps = (
            f"ls {named['folder']}, on the machine and in the container where it runs: is the download whole, and what "
            "are the files called?",
            f"a setting that names the file ({named['file']}), or a kind of checkpoint with other names (Meta's own, "
            "Hugging Face's, one in parts): choose what is there",
        )
        return Advice("file", says, steps, place)
    if read.type == "JSONDecodeError":
        says = (
            f"What is read as JSON is none{', at ' + place if place else ''}: most often an empty "
            f"answer or a page of HTML from a server, a broken line of a file, or text that a model wrote."
        )
        return Advice(
            "file",
            says,
            (
                "print the first hundred characters of it; a server: its status and log; a file: the "
                "line that the message names",
            ),
            place,
        )
    return None
