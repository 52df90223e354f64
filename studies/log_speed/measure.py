"""How fast `explain` reads a large log: ``python studies/log_speed/measure.py [--mb 200] [--only NAME ...] [--start]``.

Makes logs of several kinds, explains each in a process of its own, and prints processor time, memory, and the time as
a multiple of what the same machine needs to look at every byte once with a regular expression that finds nothing (a
single character class): the ratio says the same on a busy machine and on a quiet one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pydoc_data.topics
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

END = b"\nRuntimeError: 'weight' must be 2-D\n"
"""The last line of every log: what has to be found."""

BLOCK = 1 << 20

EMPTY = [sys.executable, "-c", ""]
STARTS = 5
"""The median of so many starts is told."""

METRICS = (
    "learning_rate", "num_tokens", "completions/mean_length", "completions/min_length", "completions/max_length",
    "completions/clipped_ratio", "completions/mean_terminated_length", "rewards/accuracy_reward/mean",
    "rewards/accuracy_reward/std", "reward", "reward_std", "frac_reward_zero_std", "kl", "entropy",
    "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "step_time",
)  # fmt: skip
"""What TRL prints in each row of a GRPO run."""

PACKED = {"short rows, UTF-16": "short rows", "short rows, gzip": "short rows"}
"""Kinds that are another one, written otherwise."""


def chunks() -> dict[str, bytes]:
    """A few megabytes of each kind of log."""
    dice = random.Random(0)
    row = (
        "{'loss': 0.0, 'grad_norm': 0.%d, 'learning_rate': 1e-06, 'reward': 0.4, 'reward_std': 0.2, 'entropy': 1.%d}\n"
    )
    bar = "\r %d%%|####      | %d/999 [00:01<00:09, 9.55s/it]"
    flood = (
        "../Indexing.cu:1289: indexSelectLargeIndex: block: [%d,0,0], thread: [%d,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.\n"
    )
    prose = "\n".join(pydoc_data.topics.topics.values())
    rows = "".join(row % (i, i) for i in range(30000))
    short = "".join(
        f"{{'loss': {dice.random():.4f}, 'grad_norm': {dice.random():.3f}, 'epoch': {i / 1e4}}}\n" for i in range(30000)
    )
    long = json.dumps({"prompt": prose[: 1 << 16], "completion": prose[1 << 16 : 1 << 18], "reward": 0.5}) + "\n"
    return {
        "rows of many metrics": "".join(
            "{"
            + ", ".join(f"'{name}': {dice.random():.6g}" for name in ("loss", "grad_norm", *METRICS))
            + f", 'epoch': {i / 1e4}}}\n"
            for i in range(5000)
        ).encode(),
        "short rows": short.encode(),
        "rows as JSON lines": short.replace("'", '"').encode(),
        "a table": ("Step | Training Loss\n" + "".join(f"{i} | {i % 7}\n" for i in range(30000))).encode(),
        "errors that training survives": "".join(
            f"ERROR: reward {i}: ValueError: invalid literal for int() with base 10: '{i}'\n{line}"
            for i, line in enumerate(rows.splitlines(keepends=True))
        ).encode(),
        "a progress bar": "".join(bar % (j % 100, j) for j in range(50000)).encode(),
        "lines of a megabyte": long.encode() * 4,
        "eight ranks": "".join(
            f"[rank{i % 8}]: {line}" for i, line in enumerate((rows + prose).splitlines(keepends=True))
        ).encode(),
        "metric rows and progress bars": "".join(
            row % (i, i) + "".join(bar % (j, j) for j in range(20)) + "\n" for i in range(3000)
        ).encode(),
        "prose": prose.replace("Traceback", "Trace").encode() * 4,
        "prose, a fifth of it tracebacks": prose.encode() * 4,
        "coloured log lines": "".join(
            f"\x1b[32mINFO\x1b[0m 03-02 10:11:12 engine.py:{i}] \x1b[1mrequest {i}\x1b[0m took 0.3 s\r\n"
            for i in range(30000)
        ).encode(),
        "prompts in another script": "".join(
            f"│ 问题：{i} + {i} 等于多少？ <think>我们来计算</think> 答案是 {2 * i} │\n" for i in range(30000)
        ).encode(),
        "a flood of assertions": "".join(flood % (i, i % 128) for i in range(20000)).encode(),
    }  # fmt: skip


def child(path: str) -> None:
    """Explain one log; prints seconds, seconds of the yardstick, memory in MB."""
    from bisect_cfg.explain import explain_readings
    from bisect_cfg.explain.reader import read

    started = time.process_time()
    found = explain_readings(read([path])[0])
    seconds = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert "zero3-empty-weight" in [match.entry.id for match in found.matches], found.matches
    started, look = time.process_time(), re.compile(rb"[\x01\xff]\x02\x03\x04~!")
    with open(path, "rb") as stream:
        while block := stream.read(BLOCK):
            look.search(block)
    print(seconds, time.process_time() - started, memory)


def start() -> None:
    """Print what `bisect-cfg explain` of a log of one line takes, and how many times as long as Python's own start."""
    explaining = [sys.executable, "-m", "bisect_cfg", "explain", "-"]
    seconds = [statistics.median(processor(command) for _ in range(STARTS)) for command in (explaining, EMPTY)]
    print(f"start: {seconds[0]:.2f} s, {seconds[0] / seconds[1]:.0f} times an empty Python")


def processor(command: list[str]) -> float:
    """Seconds of the processor, user and system, that a command takes for a log of one line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, input=END, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="the kinds to measure; all if not given")
    parser.add_argument("--start", action="store_true", help="measure only how long a start takes")
    options = parser.parse_args()
    start()
    if options.start:
        return
    size = options.mb * 1_000_000
    kinds = chunks()
    print(f"{'log of ' + str(size // 1_000_000) + ' MB':<32} {'seconds':>8} {'ratio':>6} {'MB of memory':>13}")
    for name in options.only or (*kinds, *PACKED):
        chunk = kinds[PACKED.get(name, name)]
        with tempfile.NamedTemporaryFile() as file:
            opened = gzip.open if name.endswith("gzip") else open
            with opened(file.name, "wb") as written:
                for part in (*[chunk] * (size // len(chunk) + 1), END):
                    written.write(part.decode().encode("utf-16-le") if name.endswith("UTF-16") else part)
            command = [sys.executable, __file__, "--child", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, yardstick, memory = map(float, done.stdout.split())
            print(f"{name:<32} {seconds:>8.2f} {seconds / yardstick:>6.1f} {memory:>13.0f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        main()
