"""A study of any size with all that a report shows, made without a training."""

from __future__ import annotations

import json
import random
from pathlib import Path

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
    rows = []
    for number in range(trials):
        bad = [numbers.random() < 0.5 for _ in names] if number > 1 else [number == 0] * factors
        failed = number == 3 if number in (2, 3) else bad[0] and bad[1]  # those tell the range
        purpose = ("bad baseline", "good baseline")[number] if number < 2 else "search"
        rows.append(
            {
                "number": number, "outcome": "fail" if failed else "pass", "signature": "SIGFPE" if failed else None,
                "seconds": 1.0, "step": steps // 2 if failed else steps, "purpose": purpose, "reason": "Is it here?",
                "companions": "", "values": {name: 0.1 if on else 0.2 for name, on in zip(names, bad, strict=True)},
                "folder": f"trials/{number}", "remarks": [],
                "suspicion": {name: round(1 / (1 + number * (i > 1)), 4) for i, name in enumerate(names)},
            }
        )  # fmt: skip
        trial = folder / "trials" / str(number)
        trial.mkdir(parents=True)
        lines = (
            json.dumps({"time": 0.1, "step": step, **{name: numbers.random() for name in METRICS}})
            for step in range(1, (steps // 2 if failed else steps) + 1)
        )
        (trial / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    claim = {"subset": names[:2], "seen": 4, "runs": 4, "trials": [3, 4, 5, 6], "note": ""}
    cause = {
        "parameters": {name: {"good": 0.2, "bad": 0.1} for name in names[:2]}, "companions": [], "inseparable": [],
        "signature": "SIGFPE", "step": 3, "evidence": {"fails": claim, "passes_without": {names[0]: claim}},
    }  # fmt: skip
    known = {"good": 0.2, "bad": 0.1, "healthy_up_to": 0.17, "not_from": 0.15, "settled": True,
             "trials": [2, 3], "shown": "SIGFPE"}  # fmt: skip
    rows[2]["values"][names[0]], rows[3]["values"][names[0]] = 0.17, 0.15
    published = [{"value": 0.18, "recipe": "a recipe", "source": "https://example.org", "note": ""}]
    recommendation = {
        "configuration": {names[0]: 0.18}, "changes": {names[0]: {"from": 0.1, "to": 0.18}}, "verified": True,
        "evidence": {"seen": 3, "runs": 3, "trials": [7, 8, 9]}, "steps": 4 * steps, "diff": "-0.1\n+0.18\n",
        "ranges": {names[0]: known}, "published": {names[0]: published}, "alternatives": [],
    }  # fmt: skip
    result = {
        "schema": 1, "recommendation": recommendation,
        "status": "isolated", "complete": True, "causes": [cause], "trials": rows, "horizon": steps,
        "seconds": 60.0, "target": {"script": "train.py", "arguments": []},
        "failure": {"kind": "signal", "message": "SIGFPE", "signature": "SIGFPE", "step": 3, "where": ""},
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return folder
