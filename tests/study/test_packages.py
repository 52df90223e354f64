"""Versions of packages as factors. The packages are small wheels, the environments are built by uv, the training
library is the stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools import QUICK, Studied, assert_clear, wheel
from toys import script

from bisect_cfg.options import Options
from bisect_cfg.runner.environments import Environments
from bisect_cfg.study import study as module
from bisect_cfg.study.environments import odd_ones
from bisect_cfg.study.study import Study
from bisect_cfg.targets.packages import Distribution, Installed

NAMES = [f"p{number}" for number in range(8)]

SCRIPT = """
    import p0, p1, p2, p3, p4, p5, p6, p7
    assert p3.version == p4.version, "these two need each other"
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True, temperature=0.9)
    def step(number):
        if p5.version == "2.0" and args.bf16 and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
        return {"loss": 0.5, "reward": 0.1, "reward_std": 0.3, "entropy": 2.0, "grad_norm": 1.0}
    GRPOTrainer(args, step).train()
"""

NEED = {"1.0": ("p4<2",), "2.0": ("p4>=2",)}
"""What p3 asks for."""


@pytest.fixture
def made(tool):
    """The tool with a script, an environment of eight packages in their second version, and a file with the first."""
    wheels, lines = tool.folder / "wheels", {}
    wheels.mkdir()
    for version in NEED:
        needs = {"p3": NEED[version]}
        lines[version] = [wheel(wheels, name, version, requires=needs.get(name, ())) for name in NAMES]
    tool.python = Environments(tool.folder / "own", sys.executable).of(lines["2.0"]).python
    tool.older = "@ " + (wheels / "p5-1.0-py3-none-any.whl").as_uri()
    (tool.folder / "good.txt").write_text("\n".join(lines["1.0"]))
    script(tool.folder, SCRIPT)
    return tool


def bisected(tool, *options: object) -> Studied:
    return tool.bisect("train.py", "--python", tool.python, *QUICK, *options, study="studies/s")


def test_a_single_one(made):
    study = bisected(made, "--good", f"packages.p5={made.older}")
    assert study.causes == [["bf16", "packages.p5"]]
    failing = study.result["causes"][0]["evidence"]["fails"]["trials"][-1]
    command = ["sh", study.folder / "trials" / str(failing) / "command.sh"]
    done = subprocess.run(command, cwd=made.folder, env=made.environment, capture_output=True, text=True)
    assert done.returncode in (-8, 136), done.stderr
    said = made("recommend", "studies/s", "--python", made.python, "--verify-seeds", 1)
    assert said.status == 0 and study.result["recommendation"]["verified"], said.all
    for options, told in (
        (("--good", "packages.p5=@ file:///nowhere/p5-1.0-py3-none-any.whl"),
         ("The good environment cannot be built", "uv says", "p5")),
        (("--good", "packages.p5=newest"), ("newest is not a version",)),
        (("--good-packages", "missing.txt"), ("missing.txt cannot be read",)),
    ):  # fmt: skip
        said = made("bisect", "train.py", "--python", made.python, "--study", "studies/other", *options)
        assert_clear(said, *told)


def test_what_is_installed_is_asked_once_in_a_pass(monkeypatch, tmp_path) -> None:
    asked = []
    monkeypatch.setattr(module, "installed_by", lambda python: asked.append(python) or {"p0": "1.0"})
    study = Study(SimpleNamespace(python="python3"), Options(), None, tmp_path, None, None, None)
    assert asked == []
    assert study.installed == study.installed == {"p0": "1.0"} and asked == ["python3"]


def test_what_cannot_be_had_again_as_it_is_is_named_before_anything_is_built():
    found = [("a", "1", "uv"), ("b", "2", "Poetry 1.8"), ("c", "3", "conda"), ("d", "4", ""), ("e", "-e /src/e", "pip")]
    installed = Installed({name: Distribution(name, level, level, (), by) for name, level, by in found}, {}, "python")
    foreign, editable = odd_ones(installed)
    assert foreign.endswith(": c 3 (conda), d 4.") and editable.endswith(": e (/src/e).")
    many = {f"p{number}": Distribution(f"p{number}", "1", "1", (), "conda") for number in range(40)}
    (foreign,) = odd_ones(Installed(many, {}, "python"))
    assert foreign.endswith(" and 28 more.")


PROGRAM = """
import sys
import p3, p4, p5
assert p3.version == p4.version, "these two need each other"
print("ran with", sys.argv[1:])
if p5.version == "2.0" and "--fast" in sys.argv: sys.exit("error: fast is broken")
"""


@pytest.mark.slow
def test_packages_of_any_command(made):
    """A program that trains nothing; named with its interpreter, and through a shell."""
    (made.folder / "prog.py").write_text(PROGRAM)
    (made.folder / "run.sh").write_text('exec python prog.py "$@"\n')
    sides = ("--good-packages", "good.txt", "--good", "fast=false", "--no-recommend")
    value = "two words; $HOME 'é'"
    for number, words in enumerate((("--python", made.python, "--", "sh", "run.sh"), ("--", made.python, "prog.py"))):
        words = (*sides, *words, "--fast", "--text", value)
        study = made.bisect(*words, study=f"studies/{number}")
        assert study.causes == [["fast", "packages.p5"]] and study.result["complete"]
        assert study.result["environments"]["used"] > 2
        assert value in (study.folder / "trials/0/log.txt").read_text()
        advice = "# Besides, where you train: pip install"
        assert advice in (study.folder / "safe_config.yaml").read_text()
    assert study.result["environments"]["built"] < study.result["environments"]["used"], "the studies share them"
    count = len(study.result["trials"])
    assert len(made.bisect(*words, study="studies/1").result["trials"]) == count
    assert_clear(made("bisect", *sides, "--", "sh", "run.sh", "--fast"), "Which Python `sh` runs", "--python")
    for options, causes, status in (
        (("--good-packages", "good.txt", "--only", "packages.p5", "--jobs", 2), [["packages.p5"]], 0),
        (("--good", "fast=false", "--pin", f"packages.p5={made.older}"), [], 3),  # cured by the pin
    ):
        command = ("--no-recommend", "--restart", *options, "--", made.python, "prog.py", "--fast")
        assert made.bisect(*command, study="studies/3", status=status).causes == causes


def test_a_script_that_dies_of_its_imports(made):
    """The commonest failure after an update comes before anything is configured."""
    script(made.folder, "import p5\nif p5.version == '2.0': raise ImportError('no such name')\n" + "print('ok')\n")
    study = bisected(made, "--good-packages", "good.txt", "--good", "learning_rate=1e-6")
    assert study.causes == [["packages.p5"]]
    assert any("ends before it builds a training config" in note for note in study.result["notes"])
    count = len(study.result["trials"])
    again = bisected(made, "--good-packages", "good.txt", "--good", "learning_rate=1e-6")
    assert len(again.result["trials"]) == count


def test_an_environment_that_cannot_be_built_anew_the_same(made):
    """What was changed by hand is in no wheel."""
    (found,) = Path(made.python).parents[1].glob("lib/*/site-packages/p5.py")
    found.unlink()  # a hard link into uv's cache
    found.write_text("version = '2.0'\nbroken = True\n")
    (made.folder / "prog.py").write_text("import p5\nif hasattr(p5, 'broken'): raise SystemExit('error: broken')\n")
    words = ("--good-packages", "good.txt", "--", made.python, "prog.py")
    said = made.bisect(*words, study="studies/s", status=3).said
    assert "built anew with the same versions your configuration passes in 3 of 3 runs" in said.all
