"""Run a function when a module has been imported, without importing it ourselves.

A finder at the head of ``sys.meta_path`` lets the ordinary machinery find the module and only wraps the
loader's ``exec_module``. Libraries that import lazily (transformers, trl) go through it like any other.
"""

import importlib.abc
import importlib.util
import sys

_waiting = {}
_first = {}
_around = {}  # name -> (before, after)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in _first:
            function = _first.pop(name)
            for other in [other for other, known in _first.items() if known is function]:
                del _first[other]
            function()
        if name not in _waiting and name not in _around:
            return None
        # Ask the finders behind us. A plain find_spec(name) would come back here.
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def exec_module(module):
                before, after = _around.pop(name, (_nothing, _nothing))
                before(name)
                try:
                    execute(module)
                finally:
                    after(name)
                for function in _waiting.pop(name, ()):
                    function(module)

            try:
                spec.loader.exec_module = exec_module
            except AttributeError:  # a loader with slots: leave that module alone
                pass
        return spec


def when_imported(name, function):
    """Call ``function(module)`` right after module `name` is executed, or now if it already is."""
    module = sys.modules.get(name)
    if module is not None:
        function(module)
        return
    _install()
    _waiting.setdefault(name, []).append(function)


def around_import(names, before, after):
    """Call ``before(name)`` and ``after(name)`` when one of these modules is executed."""
    _install()
    _around.update({name: (before, after) for name in names if name not in sys.modules})


def _nothing(name):
    pass


def before_first_import(names, function):
    """Call ``function()`` once, right before the first of these modules is looked for."""
    _install()
    _first.update({name: function for name in names})


def _install():
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
