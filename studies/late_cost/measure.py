"""What it costs to isolate a failure that comes at step 50, 200 or 800: seconds, and steps trained.

    python studies/late_cost/measure.py --readme

runs the study `late_collapse` once for each, by its command, and puts the table into the README beside this file. Steps
are counted in the files of the trials. What trials from step 0 would have trained is reckoned from the same questions:
as many horizons each, twice the failing step long, and the failing ones up to their step. ``--beside 200`` makes them
as well, with checkpoints switched off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from bisect_cfg.runner.trials import horizon_for

HERE = Path(__file__).parent
STUDY = HERE.parent / "late_collapse"
MARKS = ("<!-- measured -->\n", "<!-- end of what was measured -->\n")
STEPS = (50, 200, 800)

PARTS = {
    "reproduction": "the first run, until it is certain",
    "origin": "where trials begin, and both baselines there",
    "isolation": "the isolation",
}


@dataclass(frozen=True)
class Trial:
    """One run: the part of the bisection that it belongs to, the steps and seconds it took, and those it would have
    made from step 0."""

    part: str
    steps: int
    seconds: float
    prefix: int


@dataclass(frozen=True)
class Bisected:
    """One bisection."""

    trials: tuple[Trial, ...]
    seconds: float
    failing: int
    begun: int
    answer: str

    def steps(self, part: str) -> int:
        return sum(trial.steps for trial in self.trials if trial.part == part)

    def seconds_of(self, part: str) -> float:
        return sum(trial.seconds for trial in self.trials if trial.part == part)

    @property
    def prefix(self) -> int:
        """Steps of the isolation, had its trials begun at step 0."""
        return sum(trial.prefix for trial in self.trials if trial.part == "isolation")


def bisected(steps: int, folder: Path, *options: str) -> Bisected:
    """Bisect the study whose weights are let loose at a step."""
    command = [sys.executable, "-m", "bisect_cfg", "bisect", "--plain", "--study", str(folder), "--until-failure"]
    command += ["--no-recommend", "--no-where", "--prove", "from-checkpoint", *options]
    command += ["--exclude", "script.all_from"]  # it says when the failure comes, and without it there is none
    command += [str(STUDY), "--", "--all_from", str(steps)]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        raise SystemExit(f"step {steps}: not isolated (status {done.returncode})\n{done.stdout}{done.stderr}")
    result = json.loads((folder / "result.json").read_text())
    failing, origin = result["failure"]["step"], result.get("origin", {}).get("step", 0)
    folders = sorted(path for path in (folder / "trials").iterdir() if path.is_dir())
    trials = tuple(_trial(path, failing, result["horizon"]) for path in folders)
    causes = " and ".join(" with ".join(sorted(cause["parameters"])) for cause in result["causes"])
    return Bisected(trials, seconds, failing, origin, causes + ("" if result["complete"] else " (not complete)"))


def _trial(folder: Path, failing: int, horizon: int) -> Trial:
    name = folder.name
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = json.loads((folder / "ending.json").read_text())["seconds"]
    part = "isolation" if name.isdecimal() else "origin"
    passed = part == "isolation" and json.loads((folder / "result.json").read_text())["outcome"] == "pass"
    prefix = round(len(rows) / horizon * horizon_for(failing)) if passed else rows[-1]["step"]
    return Trial("reproduction" if name == "0" else part, len(rows), seconds, prefix)


def measured_with() -> str:
    """When and on what."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))
    return (
        f"Measured on {date.today()} ({platform.machine()}, {os.cpu_count()} processors, Python "
        f"{platform.python_version()}, {libraries}; load {os.getloadavg()[2]:.1f} over the last fifteen minutes, this "
        "included)."
    )


def between_marks(readme: Path, lines: list[str]) -> None:
    """Put what was measured into a README."""
    before, _, rest = readme.read_text().partition(MARKS[0])
    readme.write_text(before + MARKS[0] + "\n".join(lines) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])


def table(found: dict[int, Bisected], beside: dict[int, Bisected]) -> list[str]:
    """What was measured, as lines of Markdown."""
    lines = [
        measured_with(),
        "",
        "| seconds (steps trained) | " + " | ".join(f"step {steps}" for steps in found) + " |",
        "|---|" + "---|" * len(found),
    ]
    for part, words in PARTS.items():
        cells = (f"{one.seconds_of(part):.1f} ({one.steps(part)})" for one in found.values())
        lines.append(f"| {words} | {' | '.join(cells)} |")
    first = next(iter(found.values()))
    rows = {
        "the whole command, seconds": lambda one: f"{one.seconds:.1f}",
        "fails at, trials begin at": lambda one: f"{one.failing}, {one.begun}",
        "trials of the isolation": lambda one: f"{sum(trial.part == 'isolation' for trial in one.trials)}",
        "isolation, seconds beside the first": lambda one: (
            f"{one.seconds_of('isolation') / first.seconds_of('isolation'):.2f}x"
        ),
        "isolation from step 0, steps (reckoned)": lambda one: (
            f"{one.prefix}, {one.prefix / one.steps('isolation'):.1f} times as many"
        ),
        "answer": lambda one: one.answer,
    }
    lines += [f"| {words} | " + " | ".join(map(told, found.values())) + " |" for words, told in rows.items()]
    for steps, one in beside.items():
        lines += [
            "",
            f"With checkpoints switched off (`--max-disk 0`), step {steps}: the isolation took "
            f"{one.seconds_of('isolation'):.1f} seconds and {one.steps('isolation')} steps; answer: {one.answer}.",
        ]
    return lines


def main() -> None:
    """Measure and print; ``--readme`` updates the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--beside", type=int, nargs="*", default=[])
    parser.add_argument("--readme", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        found = {steps: bisected(steps, root / str(steps)) for steps in arguments.steps}
        beside = {steps: bisected(steps, root / f"{steps}-0", "--max-disk", "0") for steps in arguments.beside}
    lines = table(found, beside)
    print("\n".join(lines))
    if arguments.readme:
        between_marks(HERE / "README.md", lines)


if __name__ == "__main__":
    main()
