"""Whether a script may train once more: told from what is left to run of the functions that are under way.

A first run goes on after a training that ended well only if another may follow: what a script does after its last one
(evaluating, uploading, switching the machine off) is not ours to do.
"""

import ast
import linecache
import sys
import types

# Their frames and functions are not looked at: a training is started by the user's code.
_LIBRARIES = ("trl", "transformers", "peft", "accelerate", "torch", "runpy", "_bisect_cfg_probe")

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def may_train(frame):
    """Whether a loop goes round, or a call follows, that may train, in the function of a frame or those that called
    it."""
    try:
        while frame is not None:
            if not _is_library(frame.f_globals) and _has_more(frame):
                return True
            frame = frame.f_back
    except Exception:  # a source that is none: what cannot be told is not run
        pass
    return False


def _has_more(frame):
    here = frame.f_lineno
    scope = tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and frame.f_code.co_firstlineno <= node.lineno and _holds(node, here):
            scope = node  # of nested ones the innermost comes last
            break
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, _LOOPS) and _holds(node, here):
            return True
        if isinstance(node, ast.Call) and node.lineno > here and _trains(node.func, frame):
            return True
        if not isinstance(node, _SCOPES):
            todo.extend(ast.iter_child_nodes(node))
    return False


def _holds(node, line):
    return node.lineno <= line <= node.end_lineno


def _trains(called, frame):
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "train" or _code_trains(name, frame.f_globals, set())


def _code_trains(name, variables, seen):
    """Whether what has this name, in a module or a class of it, calls `train`, itself or by what it calls."""
    classes = [value for value in list(variables.values()) if isinstance(value, type)]
    for holder in (variables, *(vars(cls) for cls in classes if not _is_library({"__name__": cls.__module__}))):
        function = holder.get(name)
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType) or function in seen or _is_library(function.__globals__):
            continue
        seen.add(function)
        names = set(_names(function.__code__))
        if "train" in names or any(_code_trains(other, function.__globals__, seen) for other in names):
            return True
    return False


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_library(variables):
    name = variables.get("__name__") or ""
    path = variables.get("__file__") or getattr(sys.modules.get(name), "__file__", None) or ""
    return name.split(".")[0] in _LIBRARIES or path.startswith(sys.base_prefix) and "-packages" not in path
