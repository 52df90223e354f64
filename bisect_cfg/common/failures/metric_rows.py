"""Metric rows in a log.

`Rows` collects the rows that go by: the Trainer's printed dictionaries, verl's `step:12 - actor/pg_loss:0.1`, the pairs
of other loggers, Megatron's bars, tables of notebooks and pandas. It keeps at most `MOST_ROWS`, evenly spread, and
thins before it parses, so that 31 MB take about a second. `metric_facts` says what rows show.
"""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

KNOWN = frozenset(
    ("loss", "grad_norm", "reward", "reward_std", "entropy", "kl", "frac_reward_zero_std", "clipped_ratio")
    + ("learning_rate",)
)
"""Names by which a metric row is told from other numbers."""

MOST_ROWS, THINNED, LAST_ROWS, BROKEN_ROWS = 3600, 3, 256, 4
"""Rows kept of a log; where there are more, every third stays (an odd number: a step may print two lines). The last are
all kept, and so many of the first with a NaN or infinity: fewer than `health.NON_FINITE_STREAK`, so that those kept out
of turn make no streak."""

ROW_BYTES, TEXT, TABLE_MISSES = 4000, 240, 3
"""A line is read, and its text kept, up to so many characters; so many lines in a row that are no rows end a table."""

LARGEST = 3.5e38  # what a float32 can hold


@dataclass(frozen=True)
class MetricRow:
    """Metrics that were logged together: line number (from 1), the line's beginning, and value by our names."""

    number: int
    text: str
    values: dict[str, float]


# ---- names

_ALIASES = {
    "entropy": "entropy_loss actor/entropy_loss",
    "kl": "actor/kl_loss",
    "reward": "rewards rewards/mean reward_mean ep_rew ep_rew_mean rollout/ep_rew_mean critic/score/mean return",
    "reward_std": "rewards/std group_reward_std critic/score/std",
    "normalized_reward": "rollout/rewards",  # slime: its mean is 0
    "penalized_reward": "objective/rlhf_reward",
    "kl_penalty": "objective/non_score_reward",
    "clipped_ratio": "completions/clipped_ratio completions/clip_ratio response_length/clip_ratio truncated_rate",
    "length": "response_length seq_length completions/mean_length completion_length",
    "ratio": "sampling/importance_sampling_ratio/mean",  # TRL
    "engine_difference": "rollout_logprob_abs_diff sampling/sampling_logp_difference/mean",  # slime, TRL
    "step": "iteration iter global_step current_steps _step trainer/global_step global_step/max_steps",
    "loss": "train_loss training_loss",
}
_NAME_OF = {name: metric for metric, names in _ALIASES.items() for name in names.split()}
_SUFFIXES = tuple(
    (metric, re.compile(rf"(?:^|[/._])(?:{pattern})$"))
    for metric, pattern in (
        ("grad_norm", "grad_?norm(?:[/_]mean)?|gnorm|gradient_norm|grad\\._norm"),
        ("entropy", "entropy(?:[/_](?:mean|avg))?"),
        ("kl", "kl(?:_div(?:ergence)?)?(?:[/_](?:mean|avg))?"),
        ("reward_std", "(?:reward|score|return)s?[/_]std(?:dev)?"),
        ("reward", "(?:mean_|avg_)?(?:reward|score|return)s?(?:[/_](?:mean|avg|total))?"),
        ("clipped_ratio", "truncat(?:ed|ion)(?:[/_](?:rate|ratio|frac(?:tion)?))?"),
        ("length", "(?:response|completion|answer|output)s?[/_]?len(?:gth)?s?(?:[/_](?:mean|avg))?|len|mean_len"),
        ("loss", "(?:total|lm|policy|pg|actor|policy_gradient|train)_loss|loss(?:[/_]mean)?"),
    )
)
"""How trainers end the names of what is judged; what stands before (`actor/`) is theirs."""
_THEIR_OWN = re.compile(r"eval|val|test|rewards/|timing|perf/|(?:.*[/.])?(?:min|max|std)_")


@functools.lru_cache(maxsize=1024)
def canonical(name: str) -> str:
    """The name that a metric goes by here, whatever the trainer calls it."""
    name = name.strip().replace(" / ", "/").lower().replace(" ", "_")
    if name.startswith(("train/", "train_")) and name not in ("train_runtime", "train_loss"):
        name = name[len("train/") :]
    if name in _NAME_OF or name in KNOWN or _THEIR_OWN.match(name):
        return _NAME_OF.get(name, name)
    return next((metric for metric, pattern in _SUFFIXES if pattern.search(name)), name)


def _values(pairs: Mapping[str, Any]) -> dict[str, float]:
    """Our names and float32 numbers. A None is a reward that was not there; of another metric it says nothing."""
    values: dict[str, float] = {}
    for name, value in pairs.items():
        name = canonical(name)
        if value is None and name in ("reward", "reward_std"):
            value = math.nan
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            beyond = abs(value) > LARGEST  # JSON's integers have any number of digits
            values.setdefault(name, (math.inf if value > 0 else -math.inf) if beyond else float(value))
    return values


# ---- lines

_MARKS = (b"loss", b"reward", b"grad_norm", b"entropy", b"Loss", b"Reward", b"score", b"train_runtime", b"ep_rew")
_NAN_MARKS = (b"nan", b"NaN", b"Infinity", b" inf", b":inf", b"-inf", b"'inf", b"=inf")
_NUMBER = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?[Nn]a[Nn]|[-+]?[Ii]nf(?:inity)?|None|null"
_PAIR = re.compile(
    r"(?<![\w/.-])['\"]?([A-Za-z_][\w/.@-]*(?: (?:loss|norm|rate|samples)|\. Norm)?)(?:['\"]: ?|: *|=| +)"
    rf"['\"]?(?:np\.float\d+\(|tensor\()?({_NUMBER})(?![\w-]|\.\d)"
)
_STRONG = re.compile(
    r"['\"](?!eval|val|test)[\w/]*(?:loss|grad_norm|reward|entropy)(?:[/_](?:mean|avg))?['\"]: |actor/\w+['\"]?: ?"
    r"|\| lm loss: |^ *iteration +\d+/|train_runtime['\"]?: |['\"]eval_loss['\"]: "
)
"""What only metric rows have; a row without it needs two known names, or one and its step."""
_STEP = re.compile(r"(?i)(?:\b(?:step|iteration|rollout|episode)[ :=]*|^\d+\|)(\d+)\b")  # torchtune: 1|12|Loss: 0.3
_SAMPLE = re.compile(r"['\"](?:prompt|completion|response|answer|question|content|text|messages)['\"]: ?['\"\[]")
_TABLE = re.compile(
    r"^[|\s]*(?:step|iter\w*|epoch)(?:\s*[|\t,]\s*|\s{2,})[A-Za-z][^:='\"{]*(?:loss|reward|entropy)", re.IGNORECASE
)


def parse(line: bytes, number: int) -> MetricRow | None:
    """The metric row that a line prints, None if it prints none."""
    text = line[:ROW_BYTES].decode("utf-8", "replace").strip()
    pairs: dict[str, float | None] = {}
    for name, value in _PAIR.findall(text):
        pairs.setdefault(name, None if value in ("None", "null") else float(value))
    values = _values(pairs)
    known = KNOWN & values.keys()
    if not known and not values.keys() & {"train_runtime", "eval_loss"}:
        return None
    if "step" not in values and (said := _STEP.search(text)):
        values["step"] = float(said[1])
    if not _STRONG.search(text) and (not known or len(known) + bool(values.keys() & {"step", "epoch"}) < 2):
        return None
    if len(known) < 2 and _SAMPLE.search(text):  # a completion with its reward
        return None
    return MetricRow(number, text[:TEXT], values)


def rows_in(block: bytes) -> Iterator[MetricRow]:
    """All rows of training that some whole lines hold."""
    for number, line in enumerate(re.split(rb"[\n\r]", block), 1):
        if any(mark in line for mark in _MARKS) and (row := parse(line, number)) and is_of_training(row):
            yield row


def is_of_training(row: MetricRow) -> bool:
    """Whether it is a step's, neither an evaluation's nor the Trainer's summary."""
    evaluated = any(name.startswith("eval_") for name in row.values) and not row.values.keys() & {"loss", "reward"}
    return "train_runtime" not in row.values and not evaluated


class Rows:
    """Collects the metric rows of a log of any size in bounded memory."""

    def __init__(self) -> None:
        self.count = 0
        """Steps' rows; where there are many more than are kept, about so many."""
        self._kept: list[tuple[int, MetricRow]] = []  # each with its place among the candidates
        self._broken: list[tuple[int, MetricRow]] = []
        self._last: deque[tuple[int, int, bytes | MetricRow, tuple[str, ...]]] = deque(maxlen=LAST_ROWS)
        self._seen, self._stride = 0, 1  # candidates so far; each of so many is read
        self._columns: tuple[str, ...] = ()  # of a table that goes on
        self._misses = 0  # lines in it that are none of its rows

    def add(self, values: Mapping[str, Any], number: int, text: str) -> None:
        """Take a row that a file has. Leave out empty cells: a None is a value that was written as null."""
        row = MetricRow(number, text[:TEXT], _values(values))
        if row.values.keys() & (KNOWN | {"train_runtime", "eval_loss"}):
            self._candidate(number, row, not all(map(math.isfinite, row.values.values())))

    def feed(self, block: bytes, number: int) -> None:
        """Look at whole lines of a log; `number` is that of the first, counted from 1."""
        if not self._columns and not any(mark in block for mark in _MARKS):
            return
        for at, line in enumerate(block.split(b"\n"), number):
            for part in line.split(b"\r") if b"\r" in line else (line,):
                if (self._columns or any([mark in part for mark in _MARKS])) and not self._header(part):
                    self._candidate(at, part, any([mark in part for mark in _NAN_MARKS]))

    @property
    def rows(self) -> list[MetricRow]:
        """The rows in order, evenly spread where there were very many; those of one step that follow are joined."""
        parsed = ((place, self._read(line, number, columns)) for place, number, line, columns in self._last)
        last = {place: row for place, row in parsed if row is not None}
        places = {**dict(self._kept), **dict(self._broken), **last}
        rows: list[MetricRow] = []
        for _, row in sorted(places.items()):
            step = row.values.get("step")
            if rows and step is not None and rows[-1].values.get("step") == step and "eval_loss" not in row.values:
                rows[-1] = replace(rows[-1], values={**row.values, **rows[-1].values})
            else:
                rows.append(row)
        return rows

    def _candidate(self, number: int, line: bytes | MetricRow, suspect: bool) -> None:
        """One line that may be a row."""
        place, self._seen = self._seen, self._seen + 1
        self._last.append((place, number, line if isinstance(line, MetricRow) else line[:ROW_BYTES], self._columns))
        wanted, suspect = place % self._stride == 0, suspect and len(self._broken) < BROKEN_ROWS
        if not wanted and not suspect:
            return
        row = self._read(line, number, self._columns)
        if self._columns and not isinstance(line, MetricRow):
            self._misses = 0 if row is not None else self._misses + 1
            self._columns = () if self._misses > TABLE_MISSES else self._columns
        if row is None:
            return
        if wanted:
            self.count += self._stride * is_of_training(row)
            self._kept.append((place, row))
        if suspect and not all(map(math.isfinite, row.values.values())):
            self._broken.append((place, row))
        if len(self._kept) > MOST_ROWS:
            self._stride *= THINNED
            self._kept = [one for one in self._kept if one[0] % self._stride == 0 or one[0] == self._kept[0][0]]

    def _header(self, line: bytes) -> bool:
        """Whether a line heads a table, whose rows are read from then on."""
        text = line[:ROW_BYTES].replace("│".encode(), b"|").replace("┃".encode(), b"|").decode("utf-8", "replace")
        if b"tep" not in line and b"iter" not in line and b"poch" not in line or not _TABLE.match(text):
            return False
        self._columns, self._misses = tuple(_cells(text)), 0
        return True

    @staticmethod
    def _read(line: bytes | MetricRow, number: int, columns: tuple[str, ...]) -> MetricRow | None:
        if isinstance(line, MetricRow):
            return line
        text = line.decode("utf-8", "replace").replace("│", "|") if columns else ""
        cells = _cells(text, numbers=True) if columns else []
        cells = cells[len(cells) == len(columns) + 1 :]  # pandas numbers its rows
        if len(cells) == len(columns) > 0 and re.fullmatch(r"\d+(?:/\d+)?", cells[0]):
            pairs = {name: float(cell.split("/")[0]) for name, cell in zip(columns, cells, strict=True) if cell}
            row = MetricRow(number, " ".join(text.split())[:TEXT], _values(pairs))
            return row if KNOWN & row.values.keys() else None
        return parse(line, number)


def _cells(line: str, numbers: bool = False) -> list[str]:
    """The cells of a table's line; with `numbers`, [] unless all that are not empty hold one."""
    line = line.strip().strip("|")
    sign = next((sign for sign in "|\t," if sign in line), None)
    parts = [part.strip() for part in (line.split(sign) if sign else re.split(r"\s+" if numbers else r"\s{2,}", line))]
    if not numbers:
        return parts
    parts = ["" if part in ("No log", "None") else part for part in parts]
    held = all(not part or re.fullmatch(rf"{_NUMBER}|\d+/\d+", part) for part in parts)
    return parts if held else []
