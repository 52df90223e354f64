"""Play searches against simulated trials and keep them for `parts/search.py`: `python golden/make_plays.py`.

It was run once; to run it again is to freeze other states. A play is made of its seed and of what the search asked.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from golden.parts.search import PLAYS, Ask, keeps, next_question, problem_of, state_of  # noqa: E402

STATES, STATES_OF_A_PLAY, MOST_TRIALS = 10_000, 14, 32


def main() -> None:
    """Make plays until there are enough states."""
    lines, states, seed = [], 0, 0
    while states < STATES:
        made = play(seed)
        made["points"] = made["points"][: STATES - states]
        states, seed = states + len(made["points"]), seed + 1
        lines.append(json.dumps(made, sort_keys=True) + "\n")
    PLAYS.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    print(f"{states} states of {seed} plays")


def play(seed: int) -> dict:
    """One play: its problem, its trials, and the points at which the next question is frozen."""
    rng = random.Random(seed)
    world = World(rng)
    problem, trials, points = problem_of(world.problem), [], ["0+"]
    running: list[int] = []
    for _ in range(4 * MOST_TRIALS):
        point = f"{len(trials)}+"
        question = next_question(problem, state_of(trials, point)) if len(running) < problem.jobs else None
        if isinstance(question, Ask) and len(trials) < MOST_TRIALS:
            running.append(len(trials))
            trials.append(world.trial(question.subset, question.companions, question.purpose.value))
            points += [f"{len(trials)}+"] + [f"{len(trials)}"] * (problem.jobs > 1)
            if len(running) < problem.jobs:
                continue
        if not running:
            break
        trials[running.pop(rng.randrange(len(running)))]["ended"] = len(trials)
    chosen = sorted(rng.sample(points, min(STATES_OF_A_PLAY, len(points))), key=lambda one: (int(one.rstrip("+")), one))
    return {"seed": seed, "problem": world.problem, "trials": trials, "points": chosen}


class World:
    """What simulated trials say."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        size = rng.randint(1, 20)
        full = (1 << size) - 1
        self.causes = [self._some(size, (1, 1, 2, 2, 2, 3, 4)) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4)))]
        kinds = rng.choice((0, 0, 1, 2))  # 1: rules that are known; 2: and rules that only a run shows
        rules, self.hidden = [], []
        for kept in (rules, self.hidden)[:kinds] if size > 2 else ():
            for _ in range(rng.randint(1, 3)):
                x, y = rng.sample(range(size), 2)
                kept.append((x, y, rng.random() < 0.8))
                if not keeps(kept, full):
                    kept.pop()
        self.rate = rng.choice((1.0, 1.0, 1.0, 0.9, 0.7, 0.4))
        self.masked = (self._some(size, (1,)), self.causes[0]) if rng.random() < 0.1 else (0, 0)
        self.others = rng.choice((0.0, 0.0, 0.0, 0.05, 0.3, 0.95))  # how often a run ends in another failure
        self.times = [rng.choice((1.0, 1.0, 0.5, 3.0, 10.0)) if rng.random() < 0.5 else 1.0 for _ in range(size)]
        self.seconds = rng.choice((0.0, 0.0, 1.0))
        self.begins_well = rng.random() < 0.95
        some = rng.random()
        self.problem = {
            "size": size,
            "rules": rules,
            "odds": [rng.choice((0.2, 1.0, 1.0, 3.0, 9.0)) for _ in range(size)] if some < 0.5 else [],
            "loss": [round(rng.random(), 3) for _ in range(size)] if rng.random() < 0.5 else [],
            "work": [rng.choice((0.0, 0.0, 0.7, -0.7)) for _ in range(size)] if rng.random() < 0.3 else [],
            "first": rng.random() < 0.1,
            "confidence": rng.choice((0.8, 0.95, 0.95, 0.99)),
            "confirm": rng.choice((1, 1, 1, 2, 3)),
            "jobs": rng.choice((1, 1, 1, 1, 2, 4)),
        }

    def _some(self, size: int, counts: tuple[int, ...]) -> int:
        return sum(1 << index for index in self.rng.sample(range(size), min(size, self.rng.choice(counts))))

    def trial(self, subset: int, companions: int, purpose: str) -> dict:
        """One run."""
        rng, full = self.rng, (1 << self.problem["size"]) - 1
        live = [cause for cause in self.causes if cause & subset == cause]
        setting, hides = self.masked
        failed = any(not (setting and setting & subset == setting and hides == cause) for cause in live)
        outcome = "fail" if failed and rng.random() < self.rate else "pass"
        other = ""
        if not keeps(self.hidden, subset) or (subset not in (0, full) and rng.random() < self.others):
            outcome, other = "unresolved", rng.choice(("OSError", "KeyError", "KeyError", ""))
        if self.begins_well and subset in (0, full) and rng.random() < 0.97:
            outcome, other = "fail" if subset else "pass", ""
        seconds = self.seconds * rng.uniform(0.9, 1.1) * (0.4 if outcome == "fail" else 1.0)
        for index, factor in enumerate(self.times):
            seconds *= factor if subset >> index & 1 else 1.0
        return {
            "subset": subset, "companions": companions, "purpose": purpose, "outcome": outcome, "other": other,
            "seconds": round(seconds, 3), "ended": MOST_TRIALS + 1,
        }  # fmt: skip


if __name__ == "__main__":
    main()
