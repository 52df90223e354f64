"""The script runs as under `python train.py`: what it sees around itself, and what of it reaches the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools import slow
from toys import script

LOOK = """
    import __main__, json, multiprocessing
    def here(queue=None):
        seen = {
            "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path, "main": getattr(__main__, "__file__", None),
            "name": __name__, "flags": str(sys.flags), "stdin": sys.stdin.read(), "executable": sys.executable,
            "PYTHONPATH": os.environ.get("PYTHONPATH"), "OWN": os.environ.get("OWN"),
            "probe": os.environ.get("BISECT_CFG_PROBE"), "site": hasattr(sys, "own_site_was_here"),
            "spec": repr(__spec__), "file": __file__, "annotations": sorted(vars(__main__))[:3],
        }
        if queue is None:
            return seen
        queue.put(seen)

    if __name__ == "__main__":
        args = GRPOConfig(output_dir="out", bf16=True)
        seen = here()
        queue = multiprocessing.get_context("spawn").Queue()
        process = multiprocessing.get_context("spawn").Process(target=here, args=(queue,))
        process.start()
        seen["spawned"] = queue.get(timeout=600)
        process.join()
        seen["subprocess"] = json.loads(os.popen(
            f"{sys.executable} -c 'import json, os, sys; print(json.dumps([sys.path, sorted(sys.modules)]))'").read())
        open(os.environ["SEEN"], "w").write(json.dumps(seen))
        GRPOTrainer(args, lambda number: 1 / 0 if args.bf16 else None).train()
"""


@pytest.mark.parametrize(
    ("start", "own_site"), [("config", True), slow("imports", True), slow("cold", True), slow("config", False)]
)
def test_same_as_plain_python(tool, library, tmp_path, start, own_site):
    home = tmp_path / "home"
    path = script(tmp_path, LOOK, "code/train.py")
    home.mkdir()
    if own_site:
        other = tmp_path / "own"
        other.mkdir()
        (other / "sitecustomize.py").write_text("import sys\nsys.own_site_was_here = True\n")
        tool.environment["PYTHONPATH"] = f"{library}:{other}"
    tool.environment |= {"OWN": "x y", "SEEN": str(tmp_path / "seen.json")}
    tool.folder = home
    command = [sys.executable, "../code/train.py", "--a", "b c"]
    subprocess.run(command, cwd=home, env=tool.environment, stdin=subprocess.DEVNULL, capture_output=True)
    plain = json.loads((tmp_path / "seen.json").read_text())
    assert plain["site"] is own_site
    (tmp_path / "seen.json").unlink()
    subprocess.run(["rm", "-rf", home / "out"])
    said = tool("bisect", "../code/train.py", "--start", start, "--confirm", "1", "--", "--a", "b c")
    assert said.status == 0, said.all
    watched = json.loads((tmp_path / "seen.json").read_text())  # of the last trial
    modules, as_plain = watched["subprocess"].pop(), plain["subprocess"].pop()
    assert set(modules) - set(as_plain) == {"_posixsubprocess"}  # with which it would start processes of its own
    assert watched == plain
    assert path.exists() and sorted(item.name for item in home.iterdir()) == ["bisect-cfg-studies"]


def test_own_sitecustomize_that_fails(tool, library, tmp_path):
    """The interpreter reports such an error and goes on, and so do we."""
    script(tmp_path, "GRPOTrainer(GRPOConfig(bf16=True), lambda number: 1 / 0).train()")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("raise RuntimeError('broken site')\n")
    tool.environment["PYTHONPATH"] = f"{library}:{tmp_path / 'own'}"
    said = tool("bisect", "train.py", "--study", "s")
    assert "dies at step 1 with ZeroDivisionError" in said.out, said.all
    assert "broken site" in (tmp_path / "s/trials/0/log.txt").read_text()


AFTERWARDS = """
    args = GRPOConfig(output_dir="out", bf16=True, save_strategy="epoch", report_to=["wandb"], push_to_hub=True)
    trainer = GRPOTrainer(args, lambda number: 1 / 0 if args.bf16 and number == 2 else None)
    seen = f"{args.report_to} {args.save_strategy} {args.push_to_hub} {args.output_dir}\\n"
    open(os.environ["SEEN"], "a").write(seen)
    try:
        trainer.train()
    finally:
        open("finally.txt", "w")
    open("done.txt", "w")
"""


def test_nothing_after_training_runs_and_nothing_is_written(tool, tmp_path):
    folder = tmp_path / "work"
    script(folder, AFTERWARDS)
    tool.folder = folder
    tool.environment["SEEN"] = str(tmp_path / "seen.txt")
    said = tool("bisect", "train.py", "--study", "s")
    assert said.status == 0, said.all
    assert sorted(path.name for path in folder.iterdir()) == ["s", "train.py"]
    for line in (tmp_path / "seen.txt").read_text().splitlines():
        reporters, saving, pushing, output = line.split(maxsplit=3)
        assert (reporters, saving, pushing) == ("none", "no", "False")
        assert Path(output).is_relative_to(folder / "s/trials") and Path(output).name == "out"


TWO_STAGES = """
    from transformers.training_args import TrainingArguments
    from transformers.trainer import Trainer
    Trainer.steps = 10
    first = TrainingArguments(output_dir="first-stage", weight_decay=0.3, learning_rate=1.0)
    Trainer(first).train()
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True)
    GRPOTrainer(args, lambda number: 1 / 0 if args.bf16 and number == 2 else None).train()
"""


@pytest.mark.parametrize("start", ["config", slow("cold")])
def test_a_stage_before_writes_nowhere_and_is_no_factor(tool, start):
    script(tool.folder, TWO_STAGES)
    said = tool("bisect", "train.py", "--study", "s", "--start", start)
    assert said.status == 0, said.all
    assert sorted(path.name for path in tool.folder.iterdir()) == ["s", "train.py"]
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert set(result["trials"][0]["values"]) == {"learning_rate", "bf16"}
    assert list(result["causes"][0]["parameters"]) == ["bf16"]
    assert result["start"] == start


PREPARES = """
import os, sys
os.environ["READ_AT_IMPORT"] = "mine"
sys.path.insert(0, "vendored")
import torch
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(bf16=True)
def step(number):
    assert torch.seen == "mine" and torch.vendored, (torch.seen, torch.__file__)
    if args.bf16:
        1 / 0
GRPOTrainer(args, step).train()
"""


@pytest.mark.parametrize("start", ["config", slow("imports"), slow("cold")])
def test_libraries_see_what_the_script_sets_before_it_imports_them(tool, library, start):
    (tool.folder / "train.py").write_text(PREPARES)
    vendored = tool.folder / "vendored/torch"
    vendored.mkdir(parents=True)
    own = (library / "torch/__init__.py").read_text()
    (vendored / "__init__.py").write_text(
        own + '\nimport os\nseen, vendored = os.environ.get("READ_AT_IMPORT"), True\n'
    )
    said = tool("bisect", "train.py", "--study", "s", "--start", start)
    assert said.status == 0 and "ZeroDivisionError" in said.out, said.all
    assert json.loads((tool.folder / "s/result.json").read_text())["start"] == start
