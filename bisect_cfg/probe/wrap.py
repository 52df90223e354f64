"""Functions of others with ours around them, and whose code a line of a stack is."""

from .imports import when_imported
from .standard_library import functools, os

# Packages whose settings are under study: an object that they build themselves is theirs, not the user's ...
LIBRARIES = ("trl", "transformers", "peft", "accelerate")
# ... except where a parser of theirs builds it on the user's behalf.
PARSERS = ("transformers.hf_argparser", "trl.scripts.utils", "trl.scripts._utils", "trl.scripts._hf_argparser")

PROBE, GENERATED, PARSER, LIBRARY, INSTALLED, USER = "probe", "generated", "parser", "library", "installed", "user"
"""Owners of code: this probe, nobody (the ``__init__`` that `dataclasses` writes), a parser of a library, a library,
another package or the standard library, the user."""

_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")


def around(owner, name, call):
    """Replace ``owner.name`` by a function that answers with ``call(original, *arguments, **keywords)``.

    For a method of a class, `self` or `cls` is the first of the arguments. Nothing happens where `owner` has no such
    attribute.

    Args:
        owner: a module, a class or another object, whose methods are bound.
        name: of a function, a method, a class method or a static method in it, inherited ones included.
        call: what answers.
    """
    scopes = getattr(owner, "__mro__", (owner,))
    found = next((vars(scope)[name] for scope in scopes if name in vars(scope)), getattr(owner, name, None))
    if found is None:
        return
    kind = type(found) if isinstance(found, (classmethod, staticmethod)) else None
    original = found.__func__ if kind else found

    @functools.wraps(original)
    def wrapped(*arguments, **keywords):
        return call(original, *arguments, **keywords)

    setattr(owner, name, kind(wrapped) if kind else wrapped)


def in_module(module, paths, call):
    """Have ``call`` around functions of a module once it is imported; see `around`.

    Args:
        module: its name.
        paths: of the functions in it, with blanks between: ``load safe_load``, ``Trainer.train``. No version has all.
        call: what answers.
    """

    def wrap_all(found):
        for path in paths.split():
            *owners, name = path.split(".")
            owner = functools.reduce(lambda one, part: getattr(one, part, None), owners, found)
            if owner is not None:
                around(owner, name, call)

    when_imported(module, wrap_all)


def is_library(module):
    """Whether a module, by its name, is of one of `LIBRARIES`."""
    return module.split(".")[0] in LIBRARIES


def owner_of(frame):
    """Whose code a frame runs: one of the owners above."""
    module, path = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
    if module.startswith("_bisect_cfg_probe"):
        return PROBE
    if path.startswith("<"):
        return GENERATED
    if is_library(module):
        return PARSER if module in PARSERS else LIBRARY
    return INSTALLED if path.startswith(_STANDARD) or any(part in path for part in _INSTALLED) else USER


def outward(frame, *passed_over):
    """The innermost frame, from this one outward, whose owner is none of these; None if there is none."""
    while frame is not None and owner_of(frame) in passed_over:
        frame = frame.f_back
    return frame
