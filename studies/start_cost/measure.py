"""What a trial costs from each start, where its time until the first step goes, and what a whole bisection costs.

Run it on an otherwise idle machine: ``python studies/start_cost/measure.py``. Everything is measured in one run, one
process after the other; the ratios are what to look at. It uses the study ``trl_2906``, whose fault is simulated. The
tables are printed as Markdown; ``--readme`` also puts them into the README beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from bisect_cfg.common.configuration import Purpose
from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.options import Options
from bisect_cfg.report.events import Listener, TrialFinished
from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.starts import STARTS
from bisect_cfg.runner.trials import Trials
from bisect_cfg.study.story import bisect
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.script import Script, find_script

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "search_cost"))

from textbook import one_at_a_time  # noqa: E402

STUDY = HERE.parent / "trl_2906"
MARKS = ("<!-- measured -->\n", "<!-- end of what was measured -->\n")

START_SECONDS = 60.0
"""How long a cold start may take, in round numbers; a server gets three times as long."""

STEPS = 5
PASSES = {"bf16": False}
"""What is changed in the study's configuration so that it trains."""

NAMES = {"cold": "cold launch", "imports": "fork after the imports", "config": "fork at the configuration"}

PHASES = {
    "reproduce": "reproduce the failure (your command, cold)",
    "factors": "find the settings that differ",
    "warm start": "find a warm start that fails the same way",
    "good baseline": "the good configuration",
    "isolate": "isolate the cause",
    "where": "where it fails",
    "safe values": "safe values",
}


class Clock(Listener):
    """Takes the times between the phases, and between the trials, of a bisection."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._phase, self._since = "", time.perf_counter()
        self.inside = self.begun = self.ended = self.processor = 0.0
        self.trials = 0

    def phase(self, name: str, detail: str = "") -> None:
        now = time.perf_counter()
        if self._phase:
            self.phases[self._phase] = self.phases.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = name, now

    def isolating(self, settings, progress) -> None:
        self.begun, self.processor = time.perf_counter(), time.process_time()

    def event(self, event) -> None:
        if isinstance(event, TrialFinished):
            self.inside += event.result.seconds
            self.trials += 1
            self.ended, self.processor_ended = time.perf_counter(), time.process_time()

    @property
    def own_wall(self) -> float:
        """Seconds per trial of the isolation in which no trial's process was alive."""
        return (self.ended - self.begun - self.inside) / self.trials

    @property
    def own_processor(self) -> float:
        """Processor seconds per trial in the tool's own process."""
        return (self.processor_ended - self.processor) / self.trials


@dataclass(frozen=True)
class Whole:
    """One whole bisection."""

    answer: Findings
    clock: Clock

    @property
    def cause(self) -> str:
        return " and ".join(" with ".join(cause.parameters) for cause in self.answer.report.causes)

    @property
    def isolation(self) -> float:
        """Wall seconds of the isolation alone."""
        return self.clock.phases["isolate"]

    @property
    def until_the_cause(self) -> float:
        """Wall seconds from the start to the cause."""
        return sum(seconds for name, seconds in self.clock.phases.items() if name not in ("where", "safe values"))

    @property
    def trials(self) -> int:
        """Trials of the isolation."""
        return self.clock.trials

    def trial_seconds(self, safe: bool) -> float:
        """Seconds of trials as the study recorded them: for the safe values, or for the isolation, baselines but the
        cold reproduction included."""
        rows = self.answer.report.rows
        return sum(
            row.seconds for row in rows
            if (row.kind is Purpose.RECOMMEND) is safe and row.kind is not Purpose.BAD_BASELINE
        )  # fmt: skip


def whole(script: Script, folder: Path, **options) -> Whole:
    """Run one whole bisection."""
    clock = Clock()
    answer = bisect(script, Options(study=folder, **options), clock)
    clock.phase("end")
    if answer.report is None or not answer.report.causes:
        raise SystemExit(f"{folder.name}: the study was not isolated ({answer.status})")
    return Whole(answer, clock)


@contextlib.contextmanager
def runner_for(script: Script, folder: Path, settings: Factors) -> Iterator[Trials]:
    """A runner that knows a script's settings from a bisection of it."""
    (folder / "trials").mkdir(parents=True)
    runner = Trials(LocalEngine(Site(script, folder), 1))
    runner.site.starts.learn(settings.capture, START_SECONDS)
    runner.settings = settings
    runner.horizon = STEPS
    try:
        yield runner
    finally:
        runner.site.close()


def trials_at(runner: Trials, start: str, repeats: int) -> Iterator[tuple[float, Run]]:
    """Take a start and train what passes: wall seconds and the run, for each repeat after the first."""
    reason = runner.site.starts.start_at(start)
    if reason is not None:
        raise SystemExit(f"start {start}: {reason}")
    for number in range(repeats + 1):
        begun = time.perf_counter()
        run = runner.train(Plan(f"{start}-{number}", {**runner.settings.bad, **PASSES}, STEPS))
        seconds = time.perf_counter() - begun
        if run.shown.signature is not None or run.seen.steps != STEPS:
            raise SystemExit(f"start {start}: the trial failed: {run.shown.signature}")
        if number:  # the first touches pages for all
            yield seconds, run


def per_trial(script: Script, folder: Path, settings: Factors, repeats: int) -> dict[str, list[float]]:
    """Wall seconds of one and the same passing trial from each start."""
    with runner_for(script, folder, settings) as runner:
        return {start: [seconds for seconds, _ in trials_at(runner, start, repeats)] for start in STARTS}


def until_the_first_step(folder: Path, settings: Factors, repeats: int) -> dict[str, float]:
    """Median seconds by part, from the fork at the configuration to the end of the first step."""
    script = find_script(str(HERE / "timed.py"), [str(STUDY / "train.py")])
    told = []
    with runner_for(script, folder, settings) as runner:
        for _, run in trials_at(runner, "config", repeats):
            log = (run.folder / "log.txt").read_text().splitlines()
            told.append(json.loads(next(line[6:] for line in log if line.startswith("PARTS "))))
    parts = dict.fromkeys(part for one in told for part in one)
    return {part: statistics.median(one.get(part, 0.0) for one in told) for part in parts}


@dataclass(frozen=True)
class ByHand:
    """What changing one setting at a time would take: the runs of the textbook's algorithm, all of them cold launches.

    Attributes:
        trials: runs after the two ends.
        phases: the seconds of each.
        cause: what is found.
    """

    trials: int
    phases: dict[str, float]
    cause: str

    @classmethod
    def of(cls, settings: Factors, cause: tuple[str, ...], cold: float) -> ByHand:
        """Of a study whose cause is known, where a cold launch takes so many seconds."""
        names = list(settings.bad)
        asked: dict[int, bool] = {}

        def fails(mask: int) -> bool:
            return asked.setdefault(mask, {*cause} <= {name for i, name in enumerate(names) if mask >> i & 1})

        found = one_at_a_time(len(names), fails)
        phases = {"reproduce": cold, "good baseline": cold, "isolate": cold * len(asked)}
        return cls(len(asked), phases, " with ".join(name for i, name in enumerate(names) if found >> i & 1))


def tables(seconds: dict[str, list[float]], parts: dict[str, float], ours: Whole, theirs: ByHand) -> list[str]:
    """What was measured, as lines of Markdown."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))
    medians = {start: statistics.median(values) for start, values in seconds.items()}
    lines = [
        f"Measured on {date.today()} ({platform.machine()}, {os.cpu_count()} processors, Python "
        f"{platform.python_version()}, {libraries}; load {os.getloadavg()[1]:.1f} over the last five minutes, this "
        f"included).",
        "",
        f"| one trial of {STEPS} steps, median of {len(seconds['cold'])} | seconds | |",
        "|---|---|---|",
        *(f"| {NAMES[start]} | {medians[start]:.3f} | {medians['cold'] / medians[start]:.1f}x |" for start in NAMES),
        "",
        "| where the time of a forked trial goes until its first step is over | ms |",
        "|---|---|",
        *(f"| {part} | {1000 * s:.0f} |" for part, s in sorted(parts.items(), key=lambda item: -item[1])),
        f"| together | {1000 * sum(parts.values()):.0f} |",
        "",
        f"| the tool's own time per trial, over {ours.trials} trials | ms |",
        "|---|---|",
        f"| wall, no trial alive | {1000 * ours.clock.own_wall:.0f} |",
        f"| processor | {1000 * ours.clock.own_processor:.0f} |",
        "",
        "| the whole of `trl_2906`, wall seconds | one at a time, cold (counted) | bisect-cfg | |",
        "|---|---|---|---|",
    ]
    for name, words in PHASES.items():
        by_hand, own = theirs.phases.get(name), ours.clock.phases.get(name)
        shown = [f"{value:.1f}" if value is not None else "" for value in (by_hand, own)]
        ratio = f"{by_hand / own:.1f}x" if name == "isolate" and own else ""
        lines.append(f"| {words} | {shown[0]} | {shown[1]} | {ratio} |")
    until_the_cause = sum(theirs.phases.values())
    ratio = until_the_cause / ours.until_the_cause
    isolation, safe = ours.trial_seconds(safe=False), ours.trial_seconds(safe=True)
    return [
        *lines,
        f"| until the cause is known | {until_the_cause:.1f} | {ours.until_the_cause:.1f} | {ratio:.1f}x |",
        f"| trials of the isolation | {theirs.trials} | {ours.trials} | |",
        f"| answer | `{theirs.cause}` | `{ours.cause}` | |",
        "",
        f"Seconds of trials, as the study recorded them: {isolation:.1f} for the isolation (the good configuration "
        f"and the warm start included, the cold reproduction not), {safe:.1f} for safe values: "
        f"{safe / isolation:.2f} of it.",
    ]  # fmt: skip


def main() -> None:
    """Measure and print; ``--readme`` updates the README, ``--json FILE`` keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    script = find_script(str(STUDY))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        ours = whole(script, root / "ours")
        settings = ours.answer.settings
        seconds = per_trial(script, root / "starts", settings, arguments.repeats)
        parts = until_the_first_step(root / "parts", settings, arguments.repeats)
        theirs = ByHand.of(settings, ours.answer.report.causes[0].parameters, statistics.median(seconds["cold"]))
        lines = tables(seconds, parts, ours, theirs)
        numbers = {
            "trial_seconds": seconds,
            "parts_seconds": parts,
            "own_wall_seconds": ours.clock.own_wall,
            "own_processor_seconds": ours.clock.own_processor,
            "phases": {"one-at-a-time, cold": theirs.phases, "bisect-cfg": ours.clock.phases},
            "trials": {"one-at-a-time, cold": theirs.trials, "bisect-cfg": ours.trials},
            "recorded_seconds": {
                "isolation": ours.trial_seconds(safe=False),
                "safe values": ours.trial_seconds(safe=True),
            },
        }
    print("\n".join(lines))
    if arguments.readme:
        readme = HERE / "README.md"
        before, _, rest = readme.read_text().partition(MARKS[0])
        readme.write_text(before + MARKS[0] + "\n".join(lines) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=1))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
