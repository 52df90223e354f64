"""Loaded by the interpreter at start-up because the tool put this folder on ``PYTHONPATH``. See the package above."""

import importlib.machinery
import importlib.util
import os
import sys


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec_path = os.environ.get("BISECT_CFG_PROBE")

    # The environment may have a sitecustomize of its own, which ours has shadowed: give it its turn.
    own = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if own is not None and own.loader is not None:
        module = importlib.util.module_from_spec(own)
        sys.modules["sitecustomize"] = module
        try:
            own.loader.exec_module(module)
        except Exception:  # the interpreter, too, only reports it and goes on
            sys.excepthook(*sys.exc_info())
    if not spec_path:
        return

    folder = os.path.dirname(here)
    package = importlib.util.spec_from_file_location(
        "_bisect_cfg_probe", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(package)
    sys.modules["_bisect_cfg_probe"] = module
    package.loader.exec_module(module)
    from _bisect_cfg_probe import boot

    boot.start(spec_path)


_start()
