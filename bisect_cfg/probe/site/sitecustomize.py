"""Loaded by the interpreter at start-up because the tool put this folder on ``PYTHONPATH``. See the package above.

In the first process of a run the whole probe is loaded at once. A process that the run has started (``children``) loads
it when one of the libraries or of the parsers is looked for (a script may parse its flags before it imports what takes
long): most have nothing to do with them, and are as they would be without us.
"""

import os
import sys

_LIBRARIES = (
    "torch", "transformers", "trl", "peft", "accelerate", "huggingface_hub", "vllm", "datasets", "safetensors",
    "argparse", "click", "typer", "tyro", "fire", "absl", "hydra", "omegaconf", "yaml", "tomllib", "pydantic", "dotenv",
)  # fmt: skip


def _load_children(folder):
    """The one module of the probe that every process needs."""
    from _frozen_importlib_external import SourceFileLoader

    children = type(sys)("_bisect_cfg_probe.children")
    children.__file__ = os.path.join(folder, "children.py")
    exec(SourceFileLoader(children.__name__, children.__file__).get_code(children.__name__) or "", children.__dict__)
    return children


def _load(folder, children):
    """The whole probe."""
    from _frozen_importlib_external import spec_from_file_location

    spec = spec_from_file_location(
        "_bisect_cfg_probe", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = type(sys)(spec.name)
    package.__spec__, package.__file__, package.__path__ = spec, spec.origin, [folder]
    package.__loader__, package.__package__ = spec.loader, spec.name
    sys.modules[spec.name] = package
    sys.modules[children.__name__] = package.__dict__["children"] = children
    spec.loader.exec_module(package)
    from _bisect_cfg_probe import boot

    return boot


def _wait_for_library(folder, children):
    """Load the probe when one of the libraries is looked for, by a finder that finds nothing itself."""

    class Waiting:
        armed = True

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if cls.armed and name in _LIBRARIES:
                cls.armed = False
                _load(folder, children).join()
                first = sys.meta_path[0]
                if first is not cls:  # put there just now, and passed over by the search that is going on
                    return first.find_spec(name, path, target)
            return None

    sys.meta_path.insert(0, Waiting)


def _run_shadowed(started):
    """The environment may have a sitecustomize of its own, which ours has shadowed: give it its turn."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    own = PathFinder.find_spec("sitecustomize", sys.path)
    if own is not None and own.loader is not None:
        module = module_from_spec(own)
        sys.modules["sitecustomize"] = module
        try:
            own.loader.exec_module(module)
        except Exception:  # the interpreter, too, only reports it and goes on
            sys.excepthook(*sys.exc_info())
    elif started:
        # What the interpreter expects where there is no such module: it goes on, and none is listed.
        raise ImportError("there is none", name="sitecustomize")


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.dirname(here)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    value = os.environ.get("BISECT_CFG_PROBE")
    started = value is not None and value.startswith(("child:", "alone:"))
    children = _load_children(folder) if value else None
    if started and children:
        children.join(value)
        children.restore_path()
        _wait_for_library(folder, children)
    elif value and children:
        children.begin(os.path.dirname(value))
    _run_shadowed(started)
    if value and not started:
        _load(folder, children).start(value)


_start()
