"""Which settings the installed library knows, read from its source: a typing mistake is said before anything runs.

Importing the library takes seconds and may need the very environment that is broken; its source is parsed in
milliseconds. That is good enough to refuse a name that nobody knows. What the run then shows is what counts.
"""

from __future__ import annotations

from pathlib import Path

from bisect_cfg.targets.interpreters import said_by
from bisect_cfg.targets.script import Script

SECONDS = 20.0
"""To start an interpreter and parse some fifty small files; half a second as a rule. Then it is simply not known."""

_READER = r"""
import ast, glob, importlib.util, json, os, sys
sys.path[0] = sys.argv[1]
wanted = {
    "trl": ["trainer/grpo_config.py", "trainer/base_config.py", "trainer/model_config.py", "trainer/*config*.py",
            "experimental/*/*config*.py"],
    "transformers": ["training_args.py", "training_args_*.py"],
    "peft": ["config.py", "tuners/*/config.py"],
}
names = {}
for package, patterns in wanted.items():
    try:
        spec = importlib.util.find_spec(package)
    except Exception:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for pattern in patterns:
            for path in sorted(glob.glob(os.path.join(folder, pattern))):
                try:
                    tree = ast.parse(open(path, encoding="utf-8").read())
                except Exception:
                    continue
                for node in ast.walk(tree):
                    if isinstance(node, ast.ClassDef):
                        for item in node.body:
                            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                                names.setdefault(item.target.id, package)
print(json.dumps(names))
"""


def known_names(script: Script) -> tuple[str, ...]:
    """Names of settings that the libraries in the script's environment know, those of GRPOConfig first.

    Args:
        script: whose interpreter is asked.

    Returns:
        Empty where that cannot be told: no such library, or none whose source can be read.
    """
    names = said_by([script.python, "-c", _READER, str(script.path.resolve().parent)], SECONDS) or {}
    return tuple(names) if {"learning_rate", "output_dir"} <= names.keys() else ()


def mentioned(name: str, script: Script) -> bool:
    """Whether a script, or a Python or YAML file beside it, mentions a name: a configuration class of the user's own
    may have fields that no library knows."""
    try:
        files = [script.path, *script.path.resolve().parent.glob("*.py"), *script.path.resolve().parent.glob("*.y*ml")]
        return any(name in path.read_text(encoding="utf-8", errors="replace") for path in map(Path, files))
    except OSError:
        return True
