"""Do something when a module is imported, without importing it ourselves.

A finder at the head of ``sys.meta_path`` lets the ordinary machinery find the module and only wraps the loader's
``exec_module``. Libraries that import lazily (transformers, trl) go through it like any other.
"""

import contextlib
import importlib.abc
import sys

# Module -> what is called before any of several is looked for; what is entered while it is executed; what gets it then.
_first: dict = {}
_during: dict = {}
_waiting: dict = {}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in _first:
            function = _first[name]
            for other in [other for other, known in _first.items() if known is function]:
                del _first[other]
            function()
        if name not in _waiting and name not in _during:
            return None
        # Ask the finders behind us. A plain find_spec(name) would come back here.
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader = spec and spec.loader
        execute = getattr(loader, "exec_module", None)
        if loader is None or execute is None:
            return spec

        def exec_module(module):
            with _during.pop(name, contextlib.nullcontext)():
                execute(module)
            for function in _waiting.pop(name, ()):
                function(module)

        with contextlib.suppress(AttributeError):  # a loader with slots: leave that module alone
            setattr(loader, "exec_module", exec_module)  # noqa: B010 - a method cannot be assigned, says mypy
        return spec


def when_imported(name, function):
    """Call ``function(module)`` right after module `name` is executed, or now if it already is."""
    if sys.modules.get(name) is not None:
        function(sys.modules[name])
    else:
        _install()
        _waiting.setdefault(name, []).append(function)


def during_import(names, context):
    """Execute each of these modules within ``context()``, a context manager."""
    _install()
    _during.update({name: context for name in names if name not in sys.modules})


def before_first_import(names, function):
    """Call ``function()`` once, right before the first of these modules is looked for."""
    _install()
    _first.update(dict.fromkeys(names, function))


def _install():
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
