"""What is captured of scripts: factors with their good, bad and reset values, and what is pinned for which reason.

Each command is started once, cold and as a process of its own, and ended after one optimizer step; what its probe told
is compared with the good side, as `bisect` does before any trial. The commands are the studies', and those of
`data/scripts/cases.yaml`. Two run at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import yaml

from bisect_cfg.api import found_target
from bisect_cfg.common.configuration import Name, Purpose
from bisect_cfg.common.json_files import strict
from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.errors import InputError
from bisect_cfg.options import Options
from bisect_cfg.report.events import Listener
from bisect_cfg.runner.fork_server import Starts
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.starts import COLD, IMPORTS
from bisect_cfg.runner.supervisor import Supervisor
from bisect_cfg.runner.trials import Trials
from bisect_cfg.study.factors import find_factors
from bisect_cfg.study.good_sides import GoodSides
from bisect_cfg.study.reproduce import FIRST_PATIENCE
from bisect_cfg.study.study import Study
from bisect_cfg.targets.captured import NOTHING_SEEN, read_capture
from bisect_cfg.targets.good import parse_pins, read_good
from bisect_cfg.targets.script import find_script

REPO = Path(__file__).parent.parent.parent
SCRIPTS = REPO / "golden" / "data" / "scripts"
GIVEN = ("good", "bad", "pin", "only", "exclude")
AT_ONCE = 2


def answers() -> Iterator[tuple[str, object]]:
    """What is captured of each command."""
    cases = [*_studies(), *yaml.safe_load((SCRIPTS / "cases.yaml").read_text(encoding="utf-8"))]
    with tempfile.TemporaryDirectory(prefix="golden-") as made, _pool() as pool:
        yield from zip((case["id"] for case in cases), pool.map(answer, cases, [made] * len(cases)), strict=True)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(AT_ONCE, get_context("spawn"))


def _studies() -> Iterator[dict]:
    for path in sorted((REPO / "studies").glob("*/expected.json")):
        expected, folder = json.loads(path.read_text(encoding="utf-8")), path.parent
        if (folder / "train.py").exists():
            words = [word.format(folder=folder, here=".") for word in expected.get("command", [str(folder)])]
            if "--" in words:  # before it the options of `bisect`, behind the script if there is one
                at = words.index("--")
                words = [*(word for word in words[:1] if not word.startswith("-")), *words[at + 1 :]]
            good = [expected["good"].format(folder=folder)] if "good" in expected else []
            yield {"id": f"studies/{folder.name}", "command": shlex.join(words), "good": good}


def answer(case: dict, made: str) -> object:
    """What is captured of one command, with names in place of this machine's folders; files are made in `made`."""
    with tempfile.TemporaryDirectory(dir=made) as own:
        folder = Path(own).resolve()
        scripts = folder / "scripts"
        shutil.copytree(SCRIPTS, scripts)
        places = {"scripts": scripts, "repo": REPO}
        words = [word.replace("{scripts}", str(scripts)).replace("{repo}", str(REPO)) for word in
                 shlex.split(case["command"])]  # fmt: skip
        given = {name: tuple(text.format(**places) for text in case.get(name, ())) for name in GIVEN}
        before = os.getcwd(), dict(os.environ)
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.chdir(scripts)
        try:
            shown = captured(words, Options(**given), folder / "study", made)
        except InputError as error:
            shown = {"refused": error.message, "advice": error.advice}
        finally:
            os.chdir(before[0])
            os.environ.clear()
            os.environ.update(before[1])
        text = json.dumps(strict(shown))
        for path, name in ((folder, "<folder>"), (REPO, "<repo>"), (Path(sys.prefix), "<python>")):
            text = text.replace(str(path), name)
        return json.loads(text)


def captured(words: list[str], options: Options, folder: Path, made: str) -> dict[str, object]:
    """The factors of a command, and what is pinned.

    Raises:
        InputError: as the user would be told.
    """
    target = found_target(words[0], words[1:], options)
    if not target.probed:
        sides = target.factors
        factors = [{"name": one.name, "good": one.good, "bad": one.bad} for one in sides.varied]
        return {"factors": factors, "pinned": dict(sides.not_varied), "fixed": dict(sides.pins)}
    (folder / "trials").mkdir(parents=True)
    os.environ.update(target.variables)
    target = target.written_in(folder)
    runner = Trials(LocalEngine(Site(target, folder), 1))
    try:
        pins = parse_pins(options.pin)
        overrides = {Name.of(name).full: value for name, value in pins.items()}
        once = Plan(0, {}, 1, Purpose.BAD_BASELINE, COLD, StopRule.DEATH, overrides=overrides, patience=FIRST_PATIENCE)
        run = runner.train(once)
        if read_capture(run.traces.events.rows) is None:
            return {"never configured": str(run.shown.signature)}
        if target.launch is None:  # a launcher's has its variables
            runner.site.starts.resolve = _library(made).resolve
        study = Study(target, options, Listener(), folder, None, None, runner)
        study.baselines, study.sides = SimpleNamespace(resolve=runner.site.starts.resolve), GoodSides()
        study.good, study.pins = read_good(options.good, target.good_file), pins
        study.find(bad_run=run)
        find_factors(study)
        settings = study.settings
    finally:
        runner.site.close()
    told = ("name", "kind", "good", "bad", "reset")  # which of the script's own settings it is made of came later
    factors = [
        {**{part: getattr(factor, part) for part in told}, "full": Name.of(factor.name).full}
        for factor in settings.varied
    ]
    same, pinned = sorted(settings.same), dict(settings.pinned)
    return {
        "factors": factors,
        "pinned": pinned,
        "same": same,
        "pins": {Name.of(name).full: value for name, value in settings.pins.items()},
        "notes": study.notes,
    }


@cache
def _library(made: str) -> Starts:
    """The process that says what configurations resolve to; one for all commands, as it runs none of their code."""
    folder = Path(tempfile.mkdtemp(dir=made))
    script = find_script(str(SCRIPTS / "model_config.py"))
    starts = Starts(script, folder, Supervisor(), threading.Event())
    with contextlib.chdir(made):
        starts.learn(replace(NOTHING_SEEN, modules=("torch", "transformers", "trl")))
        starts.start_at(IMPORTS)
    return starts
