"""What a trial of two processes costs: started by `accelerate launch`, and forked from a process that waits.

Run it on an otherwise idle machine: ``python studies/two_ranks/measure.py``. One passing trial of 12 steps is run in
turn from a cold start and forked after the imports, end to end: from the order to the end of all its processes. What
each process then computed must be the same. Prints Markdown; ``--readme`` also puts it into the README beside this.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.probe.protocol import TrainBegin
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.ranks import launched_in, ranks_of
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.trials import Trials
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.script import find_script

HERE = Path(__file__).parent
COMMAND = ("accelerate", ["launch", "--multi_gpu", "--num_processes", "2", str(HERE / "train.py")])
MARKS = ("<!-- measured -->\n", "<!-- end of what was measured -->\n")

STEPS = 12
PASSES = {"ddp_find_unused_parameters": False}
"""What is changed in the study's configuration so that it trains."""

OWN = ("time", "step_time")
"""Of a row of metrics, what is each run's own."""


def rows(run: Run) -> list[list[dict[str, object]]]:
    """The metrics of each process of a run, without times."""
    found = [rank.traces.metrics.rows for rank in ranks_of(run.traces)]
    return [[{name: value for name, value in row.items() if name not in OWN} for row in one] for one in found]


def measured(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Wall seconds of the trial from each start."""
    script = find_script(COMMAND[0], COMMAND[1])
    (folder / "trials").mkdir(parents=True)
    runner = Trials(LocalEngine(Site(script, folder), 1))
    try:
        first = runner.train(Plan(0, {}, STEPS, overrides={}))
        capture = read_capture(first.traces.events.rows)
        begun = first.traces.event(TrainBegin).time
        runner.site.starts.learn(capture, begun, launched_in(first.traces, script.arguments))
        runner.settings, runner.horizon = Comparison(capture, runner.site.starts.resolve).factors(), STEPS
        configuration = {**runner.settings.bad, **PASSES}
        seconds: dict[str, list[float]] = {"cold": [], "imports": []}
        expected = None
        for number in range(repeats + 1):
            for start in seconds:
                reason = runner.site.starts.start_at("imports")
                if reason is not None:
                    raise SystemExit(reason)
                since = time.perf_counter()
                run = runner.train(Plan(f"{start}-{number}", configuration, STEPS, start=start))
                took = time.perf_counter() - since
                if run.shown.signature is not None or run.seen.steps != STEPS or len(rows(run)) != 2:
                    raise SystemExit(f"start {start}: the trial failed: {run.shown.signature}")
                expected = expected or rows(run)
                if rows(run) != expected:
                    raise SystemExit(f"start {start}: other metrics: {json.dumps(rows(run)[0][:2])}")
                if number:  # the first touches pages for all
                    seconds[start].append(took)
        return seconds
    finally:
        runner.site.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--readme", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        seconds = measured(Path(temporary) / "study", arguments.repeats)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "accelerate", "trl"))
    cold, warm = (statistics.median(seconds[start]) for start in ("cold", "imports"))
    lines = [
        f"Measured on {date.today()} ({platform.machine()}, {os.cpu_count()} processors, Python "
        f"{platform.python_version()}, {libraries}; load {os.getloadavg()[1]:.1f} over the last five minutes, this "
        f"included).",
        "",
        f"| one trial of {STEPS} steps in two processes, median of {arguments.repeats} | seconds | |",
        "|---|---|---|",
        f"| `accelerate launch --multi_gpu --num_processes 2` | {cold:.2f} | 1.0x |",
        f"| both forked after the imports | {warm:.2f} | {cold / warm:.1f}x |",
        "",
        "All runs had the same metrics in every row of each process.",
    ]
    print("\n".join(lines))
    if arguments.readme:
        readme = HERE / "README.md"
        before, _, rest = readme.read_text().partition(MARKS[0])
        readme.write_text(before + MARKS[0] + "\n".join(lines) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])


if __name__ == "__main__":
    main()
