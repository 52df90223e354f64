"""What a trial costs at each start level, what the tool adds to it, and what a whole bisection costs by hand.

Run it on an otherwise idle machine: ``python studies/start_cost/measure.py``. Everything is measured in one run, in
one process after the other; the ratios are what to look at. It uses the study ``trl_2906``, whose fault is simulated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bisect_cfg.script_bisection import bisect_script
from bisect_cfg.script_study import Listener, Options
from bisect_cfg.targets.script import Script, find_script

STUDY = Path(__file__).parent.parent / "trl_2906"


class Clock(Listener):
    """Takes the times between the events of a bisection."""

    def __init__(self) -> None:
        self.begun = self.processor = 0.0
        self.inside = 0.0
        self.trials = 0

    def isolating(self, bisection) -> None:
        self.begun, self.processor = time.perf_counter(), time.process_time()

    def event(self, event) -> None:
        if type(event).__name__ == "TrialFinished":
            self.inside += event.result.seconds
            self.trials += 1
            self.ended, self.processor_ended = time.perf_counter(), time.process_time()

    @property
    def own_wall(self) -> float:
        """Seconds per trial that no trial's process was alive."""
        return (self.ended - self.begun - self.inside) / self.trials

    @property
    def own_processor(self) -> float:
        """Processor seconds per trial in the tool's own process."""
        return (self.processor_ended - self.processor) / self.trials


def whole(script: Script, folder: Path, **options) -> tuple[float, int, str, Clock]:
    """One whole bisection: seconds, trials, answer."""
    clock = Clock()
    answer = bisect_script(script, Options(study=folder, **options), clock)
    causes = " and ".join(" with ".join(cause.parameters) for cause in answer.report.causes)
    return answer.seconds, len(answer.report.rows), causes, clock


def per_trial(
    script: Script, folder: Path, repeats: int, steps: int, change: dict[str, object]
) -> dict[str, list[float]]:
    """Wall seconds of one and the same passing trial at each level.

    Args:
        script: whose configuration is run.
        folder: for the study.
        repeats: runs at each level.
        steps: optimizer steps of a run.
        change: what to change in the script's configuration so that it passes.
    """
    from bisect_cfg.script_bisection import _Phases
    from bisect_cfg.study_folder import open_study
    from bisect_cfg.trials.script import LEVELS, ScriptRunner

    seconds: dict[str, list[float]] = {}
    options = Options(study=folder)
    with open_study(script, folder, options.identity()) as (path, state):
        runner = ScriptRunner(script, path)
        try:
            phases = _Phases(script, options, Listener(), path, state, runner)
            bad = phases._reproduce({})
            runner.horizon = steps
            settings = phases._find_factors(bad, phases._read_good(), {})
            configuration = {**settings.bad, **change}
            for level in LEVELS:
                reason = runner.start_server(level)
                if reason is not None:
                    raise SystemExit(f"level {level}: {reason}")
                runner.train(f"{level}-first", configuration, steps)  # the first touches pages for all
                for number in range(repeats):
                    begun = time.perf_counter()
                    run = runner.train(f"{level}-{number}", configuration, steps)
                    if run.seen.failure is not None or run.seen.steps != steps:
                        raise SystemExit(f"level {level}: the trial failed: {run.seen.failure}")
                    seconds.setdefault(level, []).append(time.perf_counter() - begun)
        finally:
            runner.close()
    return seconds


def main() -> None:
    """Measure and print; ``--json FILE`` keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    script = find_script(str(STUDY))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}")
        seconds = per_trial(script, root / "levels", arguments.repeats, 5, {"bf16": False})
        medians = {level: statistics.median(values) for level, values in seconds.items()}
        print(f"\none trial of 5 steps, median of {arguments.repeats}")
        names = {"cold": "cold launch", "imports": "import-level fork", "config": "config-level fork"}
        for level in ("cold", "imports", "config"):
            print(f"  {names[level]:<18} {medians[level]:7.3f} s   {medians['cold'] / medians[level]:5.1f}x")
        ours, trials, causes, clock = whole(script, root / "ours")
        print(f"\nthe tool's own time per trial ({clock.trials} trials)")
        print(f"  wall, no trial alive   {1000 * clock.own_wall:6.0f} ms")
        print(f"  processor              {1000 * clock.own_processor:6.0f} ms")
        theirs, their_trials, their_causes, _ = whole(
            script, root / "by-hand", strategy="one-at-a-time", level="cold"
        )
        print("\nthe whole bisection")
        print(f"  one at a time, cold    {theirs:6.1f} s  {their_trials:3} trials  -> {their_causes}")
        print(f"  bisect-cfg             {ours:6.1f} s  {trials:3} trials  -> {causes}   {theirs / ours:.1f}x")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {
                    "trial_seconds": seconds,
                    "own_wall_seconds": clock.own_wall,
                    "own_processor_seconds": clock.own_processor,
                    "whole_seconds": {"one-at-a-time, cold": theirs, "bisect-cfg": ours},
                    "whole_trials": {"one-at-a-time, cold": their_trials, "bisect-cfg": trials},
                },
                indent=1,
            )
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
