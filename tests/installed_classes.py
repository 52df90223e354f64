"""The config classes of the libraries that are installed, asked in a process of its own and kept by their versions.

Importing them takes ten seconds of a processor and 900 MB, in each worker, and every command that is forked from a test
would carry them along.
"""

from __future__ import annotations

import fcntl
import functools
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIBRARIES = ("trl", "transformers", "peft")

ASKS = """
import dataclasses, enum, importlib, json, sys, warnings
warnings.simplefilter("ignore")

def plain(value):
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)

def default_of(field):
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return None if field.default is dataclasses.MISSING else plain(field.default)

classes = {}
for module in map(importlib.import_module, sys.argv[1:]):
    for name in dir(module):
        if name.endswith(("Config", "Arguments")):
            try:
                cls = getattr(module, name)
            except Exception:  # it needs a package that is not installed
                continue
            if isinstance(cls, type) and dataclasses.is_dataclass(cls):
                classes[name] = {field.name: default_of(field) for field in dataclasses.fields(cls) if field.init}
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames
choices = {"optim": OptimizerNames, "lr_scheduler_type": SchedulerType}
print(json.dumps({
    "classes": classes,
    "choices": {name: [one.value for one in values] for name, values in choices.items()},
}))
"""


@functools.cache
def _told() -> dict[str, Any]:
    versions = "-".join(version(name) for name in LIBRARIES)
    path = Path(tempfile.gettempdir()) / f"bisect-cfg-classes-{versions}.json"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers one asks
        if not path.exists():
            done = subprocess.run([sys.executable, "-c", ASKS, *LIBRARIES], capture_output=True, text=True, check=True)
            path.with_suffix(".new").write_text(done.stdout.splitlines()[-1])
            path.with_suffix(".new").replace(path)
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def config_classes() -> dict[str, dict[str, object]]:
    """Class -> field that can be passed -> default, of all that are called a config or arguments."""
    return _told()["classes"]


def choices(name: str) -> set[str]:
    """The values that transformers knows of `optim` or `lr_scheduler_type`."""
    return set(_told()["choices"][name])
