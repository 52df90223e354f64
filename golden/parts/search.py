"""What the search asks next: 8,417 states of recorded plays, each with the question, or the conclusion, that follows.

There were 10,000. The plays at `confirm` = 0, which let the pass of a larger subset speak for a smaller one, are gone
with it, and from the recorded text of the others `"implied": false`, which stood in every claim of a conclusion.
156 conclusions were recorded anew: 155 that are complete have one more note, on what a given `confirm` assumes; one
that no valid configuration tells from others with the confidence asked for is not complete.

530 questions were recorded anew when the values that decide were rounded (`bisect_cfg.search.problem.DIGITS`): before,
equally good ones were told apart by the last bits of a sum, and 241 answers were other ones on another processor. Now
all 8,417 are the same with AVX2 and without.

The plays lie in `data/plays.jsonl.gz` (`make_plays.py` made them), so that another question does not change the states
that come after it. An id is the seed of its play and how many trials of it had begun, with "+" where those that ended
just then have ended.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from bisect_cfg import Outcome
from bisect_cfg.search import Ask, Done, Problem, Record, Wait, next_question

PLAYS = Path(__file__).parent.parent / "data" / "plays.jsonl.gz"
AT_ONCE = 2

Rules = list[tuple[int, int, bool]]
"""(x, y, True): bad x needs bad y; (x, y, False): they exclude each other."""


def answers() -> Iterator[tuple[str, object]]:
    """The question of each state."""
    plays = gzip.decompress(PLAYS.read_bytes()).decode().splitlines()
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        for found in pool.map(_of_play, plays, chunksize=8):
            yield from found


def _of_play(line: str) -> list[tuple[str, str]]:
    """Of each point of a play: its id, and the question there."""
    play = json.loads(line)
    problem, trials = problem_of(play["problem"]), play["trials"]
    return [
        (f"{play['seed']}:{point}", text_of(next_question(problem, state_of(trials, point))))
        for point in play["points"]
    ]


def problem_of(made: dict) -> Problem:
    """A problem, from what is kept of it."""
    size, rules = made["size"], made["rules"]
    options = {name: tuple(made[name]) for name in ("odds", "loss", "work")}
    options |= {name: made[name] for name in ("first", "confidence", "confirm", "jobs")}
    return Problem(tuple(f"f{number}" for number in range(size)), lambda mask: keeps(rules, mask), **options)


def keeps(rules: Rules, mask: int) -> bool:
    """Whether a subset keeps all the rules."""
    return all(not mask >> x & 1 or (mask >> y & 1) == needs for x, y, needs in rules)


def state_of(trials: list[dict], point: str) -> list[Record]:
    """The records at a point of a play."""
    begun = int(point.rstrip("+"))
    return [
        Record(
            trial["subset"],
            Outcome(trial["outcome"]) if ended else None,
            purpose_of(trial["purpose"]),
            number,
            trial["seconds"] if ended else 0.0,
            trial["companions"],
            trial["other"] if ended else "",
        )
        for number, trial in enumerate(trials[:begun])
        for ended in [trial["ended"] < begun + point.endswith("+")]
    ]


def purpose_of(text: str) -> object:
    """What a trial was for; the type is that of a record's own."""
    return type(Record(0, None).purpose)(text)


def text_of(question: Ask | Wait | Done) -> str:
    """A question in canonical words."""
    if isinstance(question, Ask):
        return f"ask {question.subset:b} with {question.companions:b} for {question.purpose.value}: {question.reason}"
    if isinstance(question, Wait):
        return f"wait: {question.reason}"
    return f"done: {json.dumps(asdict(question.conclusion), sort_keys=True, default=lambda said: said.value)}"
