"""Commands that end in an error: the exit status, and which of the settings and files in question the message names.

How it is worded is no part of the answer. Scripts use the stand-in library of the tests, so that one starts at once.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
sys.path.append(str(TESTS))

import toys  # noqa: E402

FILES = {
    "recipe.yaml": "learning_rate: 1.0e-6\n",
    "list.yaml": "- learning_rate\n",
    "twice.yaml": "learning_rate: 1.0e-6\nlearning_rate: 2.0e-6\n",
    "broken.yaml": "a: [1\nb: 2\n",
    "text.yaml": "learning_rate: small\n",
    "typo.yaml": "lerning_rate: 1.0e-6\n",
    "broken.json": '{"learning_rate": 1e-6,',
    "broken.toml": "learning_rate = = 1e-6\n",
    "list.json": "[1, 2]",
    "launch.sh": "#!/bin/bash\naccelerate launch --num_processes 2 train.py --config recipe.yaml\n",
    "broken.ipynb": '{"cells": [',
    "odd.json": '{"packages": 5, "gpus": "none"}',
    "empty.py": "",
    "syntax.py": "def broken(:\n",
    "other/thesis.tex": "",
    "damaged/state.json": '{"target"',
    "empty.log": "",
    "healthy.log": "{'loss': 0.1, 'grad_norm': 0.5, 'reward': 0.5}\n" * 3,
    "status.py": "import sys\nsys.exit(int(sys.argv[1]))\n",
}
SCRIPTS = {
    "train.py": toys.FAILS,
    "always.py": toys.FAILS.replace("args.bf16 and ", ""),
    "passes.py": "GRPOTrainer(GRPOConfig(bf16=True)).train()",
    "refused.py": "GRPOTrainer(GRPOConfig(num_generations=1)).train()",
    "renamed.py": "GRPOTrainer(GRPOConfig(warmup_ratio=0.1)).train()",
    "dies.py": "raise FileNotFoundError('data.json')",
    "ends.py": "GRPOConfig(bf16=True)",
    "same.py": "GRPOTrainer(GRPOConfig(), lambda number: 1 / 0).train()",
}
"""Texts of `toys.script`."""

COMMANDS = {
    # usage
    "bisct train.py": "bisct bisect",
    "train.py": "bisect train.py",
    "bisect": "TARGET",
    "bisect train.py --lerning_rate 1": "--lerning_rate --",
    "bisect train.py --jobs 0": "--jobs",
    "bisect train.py --jobs many": "--jobs many",
    "bisect train.py --margin nan": "--margin",
    "bisect train.py --start warm": "--start warm imports config cold",
    "bisect train.py --devices a,b": "--devices a",
    "bisect train.py --failure '(['": "--failure ([",
    "bisect train.py --storage nonsense://x": "--storage nonsense://x",
    "bisect train.py --storage sqlite:////no/such/folder/x.db": "/no/such/folder",
    "bisect train.py --python /no/such/python": "/no/such/python",
    "bisect train.py --study recipe.yaml": "recipe.yaml --study",
    "bisect train.py --study other": "other thesis.tex --study",
    "bisect train.py --study damaged": "damaged state.json --study --restart",
    "bisect train.py --study /proc/bisect-cfg": "/proc/bisect-cfg --study",
    "bisect train.py --from-checkpoint other": "other --from-checkpoint",
    "bisect train.py --log nosuch.log": "nosuch.log --log",
    "completion tcsh": "tcsh bash zsh fish",
    "envs purge": "purge prune list",
    "envs prune --keep -1": "--keep",
    # the target
    "bisect trian.py": "trian.py train.py",
    "bisect empty": "empty train.py",
    "bisect recipe.yaml": "recipe.yaml trl",
    "bisect launch.sh": "launch.sh accelerate train.py recipe.yaml",
    "bisect broken.ipynb": "broken.ipynb",
    "bisect syntax.ipynb": "syntax.ipynb SyntaxError",
    "bisect julia.ipynb": "julia.ipynb julia",
    "bisect nosuchlauncher -n 2 train.py": "nosuchlauncher train.py",
    "bisect -- python -m nosuch.train": "nosuch.train",
    "bisect syntax.py": "syntax.py SyntaxError",
    "bisect empty.py": "empty.py",
    # settings
    "bisect train.py --good godo.yaml": "godo.yaml --good",
    "bisect train.py --good broken.yaml": "broken.yaml",
    "bisect train.py --good list.yaml": "list.yaml",
    "bisect train.py --good twice.yaml": "twice.yaml learning_rate",
    "bisect train.py --good text.yaml": "learning_rate small text.yaml",
    "bisect train.py --good typo.yaml": "lerning_rate learning_rate typo.yaml",
    "bisect train.py --good broken.json": "broken.json",
    "bisect train.py --good broken.toml": "broken.toml",
    "bisect train.py --good learning_rate=small": "learning_rate small",
    "bisect train.py --good learning_rate=nan": "learning_rate --good",
    "bisect train.py --good beta=1 --good beta=0.5": "beta --good",
    "bisect train.py --good num_generations=1": "num_generations",
    "bisect train.py --good packages.trl=newest": "packages.trl newest",
    "bisect train.py --good-packages missing.txt": "missing.txt --good-packages",
    "bisect train.py --only bf61": "bf61 bf16 --only",
    "bisect train.py --only beta": "beta bf16 --only",
    "bisect train.py --only bf16 --exclude args.bf16": "bf16 --only --exclude",
    "bisect train.py --exclude bf61": "bf61 bf16 --exclude",
    "bisect train.py --keep lr": "lr learning_rate --keep",
    "bisect train.py --pin output_dir=x": "output_dir --pin",
    "bisect train.py --pin bf16": "bf16 --pin",
    # what the first runs show
    "bisect refused.py": "num_generations refused.py",
    "bisect renamed.py": "warmup_ratio warmup_steps",
    "bisect dies.py": "FileNotFoundError data.json dies.py",
    "bisect ends.py": "ends.py",
    "bisect passes.py --steps 5": "--restart",
    "bisect always.py": "SIGFPE",
    "bisect same.py": "ZeroDivisionError",
    "bisect train.py --exclude bf16": "SIGFPE bf16",
    "bisect train.py --failure non-finite": "non-finite SIGFPE --failure",
    "bisect train.py --training 5": "--training",
    # any command
    "bisect --good a=1 --bad a=2 -- echo {b}": "{b}",
    "bisect --good a=1 --bad a=1 -- echo {a}": "--good --bad",
    "bisect --good a=1 --bad broken.json -- echo {a}": "broken.json",
    "bisect --good a=1 --bad broken.toml -- echo {a}": "broken.toml",
    "bisect --bad a=1 -- echo {a}": "--good",
    "bisect --good a=1 --bad a=2 -- nosuchprogram {a}": "nosuchprogram",
    "bisect --good a=0 --bad a=127 -- {python} -S status.py {a}": "127",
    "bisect --good a=0 --bad a=125 -- {python} -S status.py {a}": "125",
    "bisect --good a=3 --bad a=3 --good b=1 --bad b=2 -- {python} -S status.py {a} {b}": "--good good.yaml",
    # studies and logs
    "report nosuch": "nosuch",
    "report other": "other",
    "report other --format pdf": "pdf --format html",
    "report damaged": "damaged state.json",
    "recommend nosuch": "nosuch",
    "recommend other": "other",
    "recommend damaged": "damaged state.json",
    "explain": "FILE",
    "explain nosuch.log": "nosuch.log",
    "explain binary": "binary",
    "explain empty": "empty",
    "explain empty.log": "empty.log",
    "explain healthy.log": "healthy.log",
    "explain broken.ipynb": "broken.ipynb",
    "doctor nosuch.py": "nosuch.py",
    "doctor --fingerprint nosuch.json": "nosuch.json",
    "doctor --fingerprint broken.json": "broken.json",
    "doctor --fingerprint list.json": "list.json",
    "doctor --fingerprint odd.json": "odd.json packages",
    "doctor --fingerprint binary": "binary",
    "doctor --python /no/such/python": "/no/such/python",
}
"""Arguments -> the words to look for in what is said."""


def answers() -> Iterator[tuple[str, object]]:
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        library = toys.write_library(Path(folder, "library"))
        for number, (arguments, words) in enumerate(COMMANDS.items()):
            place = Path(folder, str(number))
            write_files(place)
            status, said = run(arguments, place, library)
            yield arguments, {"exit": status, "names": [word for word in words.split() if names(said, word)]}


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in SCRIPTS.items():
        toys.script(folder, text, name)
    toys.notebook(folder, "def broken(:", name="syntax.ipynb")
    toys.notebook(folder, "println(1)", name="julia.ipynb", language="julia")
    (folder / "binary").write_bytes(bytes(range(256)) * 8)
    (folder / "empty").mkdir()


def run(arguments: str, folder: Path, library: Path) -> tuple[int, str]:
    """The exit status of a command, and all that it said."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(library), "PATH": path, "COLUMNS": "500"}
    words = [sys.executable if word == "{python}" else word for word in shlex.split(arguments)]
    done = subprocess.run(
        [sys.executable, "-m", "bisect_cfg", *words],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def names(said: str, word: str) -> bool:
    """Whether a text has a word, and not only within another."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", said) is not None
