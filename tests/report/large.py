"""A study of any size with all that a report shows, made without a training."""

from __future__ import annotations

import json
import random
from pathlib import Path

from msgspec.structs import replace

from bisect_cfg.remedy.remedy import Range
from bisect_cfg.report.answer import write_answer
from bisect_cfg.rewrite.recommended import Change
from bisect_cfg.store.causes import Cause, Claim, Evidence, Levels, Trial
from tests.report.cases import ONE

METRICS = (
    "loss", "grad_norm", "entropy", "reward", "reward_std", "kl", "learning_rate", "gpu_peak_bytes", "step_time",
    "completions/mean_length", "completions/clipped_ratio", "clip_ratio/region_mean", "frac_reward_zero_std", "epoch",
)  # fmt: skip
"""What a run of TRL writes a step, or the half of it that is drawn first."""


def study(folder: Path, trials: int, steps: int, factors: int = 40) -> Path:
    """A study folder with an answer: two guilty settings, all else suspected less and less, a safe range.

    Args:
        folder: an empty one.
        trials: ten at least.
        steps: of a passing trial; a failing one has half as many.
        factors: that differ.
    """
    numbers = random.Random(0)
    names = [f"setting_{number}" for number in range(factors)]
    made = []
    for number in range(trials):
        bad = [numbers.random() < 0.5 for _ in names] if number > 1 else [number == 0] * factors
        failed = number == 3 if number in (2, 3) else bad[0] and bad[1]  # those tell the range
        values = {name: 0.1 if on else 0.2 for name, on in zip(names, bad, strict=True)}
        values |= {2: {names[0]: 0.17}, 3: {names[0]: 0.15}}.get(number, {})
        suspicion = {name: round(1 / (1 + number * (i > 1)), 4) for i, name in enumerate(names)}
        purpose = ("bad baseline", "good baseline")[number] if number < 2 else "search"
        outcome, step = ("fail", steps // 2) if failed else ("pass", steps)
        made.append(
            Trial(number, outcome, purpose, "SIGFPE" if failed else None, 1.0, step, "Is it here?", values=values,
                  folder=f"trials/{number}", suspicion=suspicion)
        )  # fmt: skip
        (folder / f"trials/{number}").mkdir(parents=True)
        lines = ({"step": at, **{name: numbers.random() for name in METRICS}} for at in range(1, step + 1))
        (folder / f"trials/{number}/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    claim = Claim(tuple(names[:2]), 4, 4, (3, 4, 5, 6))
    cause = Cause({name: Levels(0.2, 0.1) for name in names[:2]}, Evidence(claim, {names[0]: claim}))
    recommendation = replace(
        ONE.recommendation,
        changes={names[0]: Change(0.1, 0.18)},
        ranges={names[0]: Range(0.2, 0.1, 0.17, 0.15, True, (2, 3), "SIGFPE")},
        alternatives=(),
    )
    answer = replace(ONE, causes=(cause,), trials=tuple(made), horizon=steps, recommendation=recommendation)
    write_answer(answer, folder)
    return folder
