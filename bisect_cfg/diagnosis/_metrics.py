"""What the printed metrics of a run say.

The Trainer prints one dictionary every `logging_steps`: numbers with transformers 4, strings with 5, and verl
prints `actor/grad_norm:0.3 - ...`. A run that goes wrong without an exception shows it only there. Loss
says little: in GRPO it is zero on healthy runs. Gradient norm, entropy and the spread of rewards say much.

`Rows` collects the first rows and the last ones of a log of any size, and the first row with a non-finite
gradient wherever it is. `facts` names what they show, in the words the knowledge files match on.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

FACTS = {
    "non-finite-gradient": "grad_norm is NaN, or infinite more than once",
    "infinite-gradient": "grad_norm is infinite more than once, never NaN",
    "non-finite-loss": "loss is NaN or infinite more than once",
    "kl-overflow": "kl is infinite, or NaN after having been finite",
    "missing-reward": "reward is None or NaN",
    "undefined-spread": "reward_std is NaN",
    "dead-reward": "all rewards of a group are equal, for all of the last rows",
    "no-gradient": "grad_norm is exactly 0 for all of the last rows",
    "all-clipped": "every completion was cut off at max_completion_length",
    "collapse": "entropy fell to almost nothing and rewards stopped differing",
    "growing-gradient": "grad_norm grew a hundredfold",
    "large-gradient": "grad_norm is above 10 in most rows",
    "biased-ratio": "the importance sampling ratio is far from 1",
    "no-steps": "the run ended without one training step",
}
"""The facts and what they mean; a knowledge entry may match on any of them."""

FIRST_ROWS = 64
LAST_ROWS = 256
ENOUGH = 4
"""Rows before "all of the last rows" means anything: two or three equal groups happen on healthy runs."""

GROWTH = 100.0
"""Growth of the median grad_norm, first to last quarter, that no healthy run shows."""

LARGE = 10.0
"""grad_norm of healthy GRPO runs lies between 0.05 and about 2 before clipping; only beside other clues does a larger
one mean something."""

COLLAPSED = 0.05
"""Entropy below this fraction of the first. Collapsed runs end below 0.01 of it, healthy ones above 0.1."""

RATIO_FLOOR = 0.8
"""A mean sampling ratio below this throws a fifth of the gradient away; top_k=50 gives 0.17."""

_ROW = re.compile(rb"['\"]loss['\"]: |actor/grad_norm: ?|['\"]grad_norm['\"]: ")
# What every such row contains, as plain words, which are found at memory speed.
_ROW_WORDS = (b"grad_norm", b"'loss'", b'"loss"')
_NON_FINITE = re.compile(rb"grad_norm['\"]?: ?['\"]?(?:np\.float\d+\()?(?:[Nn]a[Nn]|-?[Ii]nf)")
_VALUE = re.compile(
    r"['\"]?(?P<name>[A-Za-z_][\w/.-]*)['\"]?: ?['\"]?(?:np\.float\d+\()?"
    r"(?P<value>-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[Nn]a[Nn]|-?[Ii]nf(?:inity)?|None|null)\b"
)
_FINISHED = b"'train_runtime': "
_ALIASES = {
    "actor/grad_norm": "grad_norm",
    "actor/pg_loss": "loss",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/kl_loss": "kl",
    "critic/score/mean": "reward",
    "critic/rewards/mean": "reward",
    "completions/clipped_ratio": "clipped_ratio",
    "response_length/clip_ratio": "clipped_ratio",
    "sampling/importance_sampling_ratio/mean": "ratio",
}


@dataclass(frozen=True)
class Row:
    line: int
    text: str
    values: dict[str, float]


def parse(line: int, text: str) -> Row:
    """One printed row; None and null count as NaN, because TRL prints them where nothing valid remained."""
    values = {}
    for found in _VALUE.finditer(text):
        value = found["value"]
        name = _ALIASES.get(found["name"], found["name"])
        values[name] = math.nan if value in ("None", "null") else float(value)
    return Row(line, text, values)


class Rows:
    """Collects the rows that matter while a log goes by in blocks."""

    def __init__(self) -> None:
        self._first: list[Row] = []
        self._broken: list[Row] = []
        self._tail: deque[tuple[bytes, int]] = deque(maxlen=2)
        self._finished: Row | None = None

    def feed(self, block: bytes, number: int) -> None:
        """Looks at one block, whose first line has this number."""
        if not any(word in block for word in _ROW_WORDS):
            if self._finished is None and _FINISHED in block:
                self._finish(block, number)
            return
        if len(self._first) < FIRST_ROWS:
            for row in self._rows(block, number):
                self._first.append(row)
                if len(self._first) >= FIRST_ROWS:
                    break
        # NaN stays: the block that has the first one ends with one too. Only the first blocks, which may be
        # the whole log, are searched for passing ones.
        last = max(block.rfind(b"grad_norm"), 0)
        suspect = len(self._tail) < 2 or _NON_FINITE.match(block, last)
        broken = _NON_FINITE.search(block) if suspect and len(self._broken) < ENOUGH else None
        if broken:
            start = max(broken.start() - 2000, 0)
            for row in self._rows(block[start:], number + block.count(b"\n", 0, start)):
                if not math.isfinite(row.values.get("grad_norm", 0.0)) and len(self._broken) < ENOUGH:
                    self._broken.append(row)
        self._tail.append((block, number))
        if self._finished is None and _FINISHED in block:
            self._finish(block, number)

    def facts(self) -> dict[str, list[Row]]:
        """What the rows show: fact -> the rows that show it."""
        last = [row for block, number in self._tail for row in self._rows(block, number)][-LAST_ROWS:]
        return _facts(self._first, self._broken, last, self._finished)

    def _finish(self, block: bytes, number: int) -> None:
        place = block.index(_FINISHED)
        text = block[max(block.rfind(b"\n", 0, place), 0) : place + 200].decode("utf-8", "replace")
        self._finished = Row(number + block.count(b"\n", 0, place), text.strip().split("\n")[0], {})

    @staticmethod
    def _rows(block: bytes, number: int) -> Iterator[Row]:
        position = 0
        while found := _ROW.search(block, position):
            breaks = [block.rfind(mark, position, found.start()) for mark in (b"\n", b"\r")]
            start = max(*breaks, position - 1) + 1
            end = block.find(b"\n", found.end())
            end = len(block) if end < 0 else end
            number += block.count(b"\n", position, found.start())
            yield parse(number, block[start : min(end, start + 4000)].decode("utf-8", "replace").strip())
            position = end


def _facts(
    first: list[Row], broken: list[Row], last: list[Row], finished: Row | None
) -> dict[str, list[Row]]:
    facts: dict[str, list[Row]] = {}
    if not last:
        return {"no-steps": [finished]} if finished else {}

    def column(name: str, rows: list[Row]) -> list[float]:
        return [row.values[name] for row in rows if name in row.values]

    def rows_with(name: str, rows: list[Row]) -> list[Row]:
        return [row for row in rows if name in row.values]

    # One broken step that training recovered from is how a gradient scaler finds its scale.
    ends_broken = rows_with("grad_norm", last)[-1:]
    ends_broken = [row for row in ends_broken if not math.isfinite(row.values["grad_norm"])]
    if len(broken) > 2 or ends_broken:
        shown = broken or ends_broken
        if any(math.isnan(row.values["grad_norm"]) for row in shown):
            facts["non-finite-gradient"] = shown
        elif len(broken) > 1:
            facts["infinite-gradient"] = shown
    bad_loss = [row for row in rows_with("loss", last) if not math.isfinite(row.values["loss"])]
    if len(bad_loss) > 1:
        facts["non-finite-loss"] = bad_loss
    if first is not last:
        was_finite = broken_before = False
        for row in rows_with("kl", first + last):
            value = row.values["kl"]
            if math.isinf(value) or (math.isnan(value) and was_finite and not broken_before):
                facts["kl-overflow"] = [row]
                break
            was_finite |= math.isfinite(value)
            broken_before |= not math.isfinite(row.values.get("grad_norm", 0.0))
    for name, fact in (("reward", "missing-reward"), ("reward_std", "undefined-spread")):
        missing = [row for row in rows_with(name, last) if math.isnan(row.values[name])]
        if missing:
            facts[fact] = missing
    norms = column("grad_norm", last)
    if len(norms) >= ENOUGH and not any(norms):
        facts["no-gradient"] = last
    spread = column("reward_std", last)
    dead_groups = column("frac_reward_zero_std", last)
    dead = (len(spread) >= ENOUGH and not any(spread)) or (
        len(dead_groups) >= ENOUGH and min(dead_groups) >= 1.0
    )
    if dead:
        facts["dead-reward"] = rows_with("reward_std", last) or last
    clipped = column("clipped_ratio", last)
    if len(clipped) >= ENOUGH and min(clipped) >= 1.0:
        facts["all-clipped"] = rows_with("clipped_ratio", last)
    _collapse(facts, first, last, column)
    early, late = column("grad_norm", first), norms[-max(len(norms) // 4, 1) :]
    if len(norms) + len(early) >= 40 and all(map(math.isfinite, late)):
        before = median(early[: max(len(early) // 4, 1)])
        if 0 < before < math.inf and median(late) > GROWTH * before:
            facts["growing-gradient"] = [first[0], last[-1]]
    if len(norms) >= ENOUGH and median(norms) > LARGE and all(map(math.isfinite, norms)):
        facts["large-gradient"] = [last[-1]]
    ratios = column("ratio", last)
    if len(ratios) >= ENOUGH and median(ratios) < RATIO_FLOOR:
        facts["biased-ratio"] = rows_with("ratio", last)
    return facts


def _collapse(facts: dict[str, list[Row]], first: list[Row], last: list[Row], column) -> None:
    """Entropy gone and rewards alike, unless the reward rose: then the policy has simply learnt the task."""
    entropy = column("entropy", first), column("entropy", last)
    if not entropy[0] or len(entropy[1]) < ENOUGH:
        return
    tail = entropy[1][-ENOUGH:]
    started = max(entropy[0][:ENOUGH])
    rewards = column("reward", first)[:ENOUGH], column("reward", last)[-ENOUGH:]
    rose = bool(rewards[0] and rewards[1]) and median(rewards[1]) > median(rewards[0]) + 1e-6
    dead = [value for value in column("frac_reward_zero_std", last)[-ENOUGH:]]
    spread = [value for value in column("reward_std", last)[-ENOUGH:]]
    alike = (bool(dead) and median(dead) >= 0.9) or (bool(spread) and max(spread) == 0.0)
    if started > 0 and max(tail) < COLLAPSED * started and alike and not rose:
        facts["collapse"] = [first[0], last[-1]]
