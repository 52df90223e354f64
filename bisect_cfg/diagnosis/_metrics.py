"""Finds the rows of metrics in a log.

The Trainer prints one dictionary every `logging_steps`: numbers with transformers 4, strings with 5; verl prints
`actor/grad_norm:0.3 - ...`, Megatron a line between bars, a notebook a table, and files of metrics come as JSON lines
or columns. A run that goes wrong without an exception shows it only there; `_row_facts` says what.

`Rows` collects the rows of a log of any size: all of them where they are not very many, otherwise evenly spread ones,
all of the last ones, and the first rows with a non-finite gradient wherever they are.
"""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bisect_cfg.diagnosis import _console
from bisect_cfg.diagnosis._frames import frames
from bisect_cfg.diagnosis._row_facts import facts_of
from bisect_cfg.diagnosis._rows import ENOUGH, FIRST, KNOWN, LAST_ROWS, OF_RL, Row
from bisect_cfg.diagnosis._rows_of_loss import of_held_out

MOST_ROWS = 2048
"""Rows that are kept of a log, besides the last ones. Where there are more, every second one is left out, and from then
on only as many are read: still two for each point of a series (`POINTS`), and as many as a short run has."""

LAST_BYTES = (1 << 14, 1 << 16)
"""So much of a block's end is looked through for the last rows; all of it where that has too few."""

SPELLED_FROM = 1 << 20
"""Characters in which rows that are printed for people begin: ten thousand lines before the first step are no log of a
run."""

TABLE_MISSES = 3
"""More lines in a row than this that are no rows of a table end it."""

ROW_BYTES = 4000
"""No row of metrics is longer: a hundred of them, with names and fifteen digits."""

OF_SUMMARY = 400
"""Characters before and after the run time in which the Trainer's summary, in one line or in several, stands."""

_ROW = re.compile(
    rb"['\"](?:(?!eval|val|test)\w{1,40}/){0,3}(?:(?:avg_|mean_|raw_){1,2}reward|(?:policy_|pg_|actor_)?loss"
    rb"|(?:raw_)?grad_norm|reward|entropy|truncated_ratio)['\"]: |actor/(?:grad_norm|pg_loss)['\"]?: ?"
    rb"|\| lm loss: | grad norm: |^ *iteration +\d+/",
    re.MULTILINE,
)
_PAIRS_ROW = re.compile(
    rb"(?:^|[\s|,;:({\[/'\"])(?:loss|reward|entropy|grad_norm|gnorm|pg_loss)(?:[/_]mean)?(?:['\"]: ?['\"]?|=|: *| +)"
    rb"[-+]?(?:\d|nan|NaN|inf)"
)
"""A row of a trainer of one's own: names and numbers with = or a blank between them."""
_PAIR = re.compile(
    r"(?<![\w/.-])(?P<name>[A-Za-z][\w/.@-]*)(?:=|: *| +)"
    r"(?P<value>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?[Nn]a[Nn]|-?[Ii]nf)"
    r"(?![\w./-]|\.\d)"
)
# What every such row contains, as plain words, which are found at memory speed.
_PAIR_WORDS = (b"reward=", b"reward ", b"reward:", b"loss=", b"loss ", b"loss:")
_STEP_OF_ALL = re.compile(r"\b[Ss]tep[ :=]*(\d+)/\d+\b")
_NUMBER = re.compile(rb" *[-+]?(?:\d|nan|NaN|inf)")
_ROW_WORDS = (
    *_PAIR_WORDS,
    b"grad_norm",
    b"loss'",
    b'loss"',
    b"grad norm",
    b"lm loss",
    b"pg_loss",
    b"reward'",
    b'reward"',
    b"entropy",
    b"truncated_ratio",
)
_RUN_SUMMARY = b"wandb: Run summary:"
_SUMMED_UP = re.compile(r"^wandb: +(\S+) +([-+.\de]+|nan|inf)$", re.MULTILINE)
_NON_FINITE = re.compile(rb"grad[_ ]norm['\"]?: ?['\"]?(?:np\.float\d+\()?(?:[Nn]a[Nn]|-?[Ii]nf)")
_VALUE = re.compile(
    r"['\"]?(?P<name>[A-Za-z_][\w/.@-]*(?: (?:loss|norm|rate|samples))?)['\"]?: ?['\"]?(?:np\.float\d+\(|tensor\()?"
    r"(?P<value>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?[Nn]a[Nn]|-?[Ii]nf(?:inity)?|None|null)\b"
)
_TABLE = re.compile(rb"^[| \t]*Step[ \t|]+.*(?:Loss|loss|reward|Reward|entropy)", re.MULTILINE)
_SMALL_TABLE = re.compile(
    rb"^[| \t]*(?:step|iter|iteration|epoch)(?:[ \t]{2,}|[ \t]*[|\t][ \t]*)"
    rb"(?=[A-Za-z])[\w/ |\t]*(?:loss|reward|entropy)",
    re.MULTILINE,
)
"""A table whose first column is in small letters; such a name stands in any log, so only its beginning is searched."""
_BAR, _HEAD_BAR = "│".encode(), "┃".encode()
_BOXED = re.compile(rb"^[ \t]*(?:%s|%s) +Step\b" % (_BAR, _HEAD_BAR), re.MULTILINE)
"""The head of a table that rich has drawn."""
_FRAME = re.compile(
    rb"^ +(?:[A-Za-z_][\w./]* +)+[A-Za-z_][\w./]* *\\?\r?\n(?:0 +\S| +\d+(?: +(?:[-+]?\d[\d.e+-]*|NaN|nan))+ *\r?\n)",
    re.MULTILINE,
)
"""The head of a table that pandas printed, and its first line; looked for in the first block of a text alone."""
_EVALUATED = b"'eval_loss'"
_OF_EVALUATION = re.compile(rb"\{'eval_loss': [^\n]{0,2000}")
MOST_EVALUATIONS = 256
"""Lines of evaluations that are kept; where there are more, every second one is left out."""
_STEP_COLUMN = b"Step"
_FINISHED = b"train_runtime"
WORDS = (*_ROW_WORDS, _RUN_SUMMARY, _STEP_COLUMN, _FINISHED)
"""Of these every block has one that `Rows` has anything to do with, unless a table goes on in it."""
_DONE = re.compile(r"\b(?:train_loss|epoch|global_step)['\"]?\s*[:= ]\s*['\"]?(?:np\.float\d+\()?(\d+(?:\.\d+)?)")
"""What the Trainer's summary says of the training that it sums up; all are 0 where there was none."""
_ALIASES = {
    "actor/grad_norm": "grad_norm",
    "grad norm": "grad_norm",
    "actor/pg_loss": "loss",
    "lm loss": "loss",
    "policy_loss": "loss",
    "pg_loss": "loss",
    "actor_loss": "loss",
    "actor_grad_norm": "grad_norm",
    "training_loss": "loss",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "policy/entropy": "entropy",
    "entropy_loss": "entropy",
    "actor/kl_loss": "kl",
    "actor/ppo_kl": "kl",
    "objective/kl": "kl",
    "critic/score/mean": "reward",
    "critic/rewards/mean": "reward",
    "objective/scores": "reward",
    "objective/non_score_reward": "kl_penalty",
    "objective/rlhf_reward": "penalized_reward",
    "rollout/rewards": "normalized_reward",
    "rewards/mean": "reward",
    "reward/mean": "reward",
    "reward_mean": "reward",
    "mean_reward": "reward",
    "ep_rew_mean": "reward",
    "ep_rew": "reward",
    "rollout/ep_rew_mean": "reward",
    "return": "reward",
    "rewards/std": "reward_std",
    "critic/score/std": "reward_std",
    "group_reward_std": "reward_std",
    "truncated_rate": "clipped_ratio",
    "response_length": "length",
    "seq_length": "length",
    "response_length/mean": "length",
    "completions/mean_length": "length",
    "completion_length": "length",
    "completions/clipped_ratio": "clipped_ratio",
    "completions/clip_ratio": "clipped_ratio",
    "response_length/clip_ratio": "clipped_ratio",
    "sampling/importance_sampling_ratio/mean": "ratio",
    "rollout_logprob_abs_diff": "engine_difference",  # slime, whose train_ is taken off
    "sampling/sampling_logp_difference/mean": "engine_difference",  # TRL
    "iteration": "step",
    "global_step": "step",
    "current_steps": "step",
    "_step": "step",
    "trainer/global_step": "step",
    "global_step/max_steps": "step",
    "rewards": "reward",
    "training loss": "loss",
    "train_loss": "loss",
}


_EXTREME = re.compile(r"(?:^|[/.])(?:min|max|std)_")


@functools.lru_cache(maxsize=1024)
def canonical(name: str) -> str:
    """The name that a metric goes by here, whatever the trainer or its logger calls it."""
    name = name.strip().replace(" / ", "/")  # as a notebook's table is headed
    for prefix in ("train/", "train_"):
        if name.startswith(prefix) and name not in ("train_runtime", "train_loss"):
            name = name.removeprefix(prefix)
    known = _ALIASES.get(name) or _ALIASES.get(name.lower())
    if known is not None:
        return known
    plain_name = name.lower().replace(" ", "_")
    if _EXTREME.search(plain_name):
        return plain_name
    if plain_name in KNOWN or plain_name.startswith(("eval", "val", "test", "rewards/", "timing", "perf/")):
        return plain_name
    return next((metric for metric, pattern in _SUFFIXES if pattern.search(plain_name)), plain_name)


_SUFFIXES = tuple(
    (metric, re.compile(rf"(?:^|[/._])(?:{pattern})$"))
    for metric, pattern in (
        ("grad_norm", "grad_?norm(?:/mean|_mean)?|gnorm|gradient_norm"),
        ("entropy", "entropy(?:[/_]mean|[/_]avg)?"),
        ("kl", "kl(?:_div(?:ergence)?)?(?:[/_]mean|[/_]avg)?"),
        ("reward_std", "(?:reward|score|return)s?[/_]std(?:dev)?"),
        ("reward", "(?:mean_|avg_)?(?:reward|score|return)s?(?:[/_](?:mean|avg|total))?"),
        ("clipped_ratio", "truncat(?:ed|ion)(?:[/_](?:rate|ratio|frac(?:tion)?))?"),
        (
            "length",
            "(?:response|completion|answer|output)s?[/_]?len(?:gth)?s?(?:[/_](?:mean|avg))?|len|mean_len(?:gth)?",
        ),
        ("loss", "(?:total|lm|policy|pg|actor|policy_gradient|train)_loss|loss(?:/mean|_mean)?"),
    )
)
"""How trainers and loggers of one's own end the names of what is judged; what stands before (``actor/``) is theirs."""


def parse(line: int, text: str) -> Row:
    """One printed row; None and null count as NaN, because TRL prints them where nothing valid remained."""
    values: dict[str, float] = {}
    for found in _VALUE.finditer(text):
        value = found["value"]
        values.setdefault(canonical(found["name"]), math.nan if value in ("None", "null") else float(value))
    return Row(line, text, values)


def _parse_pairs(line: int, text: str) -> Row | None:
    """A row of pairs without quotation marks; one name alone may be a sentence's."""
    values: dict[str, float] = {}
    for found in _PAIR.finditer(text):
        values.setdefault(canonical(found["name"]), float(found["value"]))
    if of_all := _STEP_OF_ALL.search(text):
        values.setdefault("step", float(of_all[1]))
    known = KNOWN & set(values)
    return Row(line, text, values) if len(known) > 1 or (known and values.keys() & {"step", "epoch", "iter"}) else None


def row_of(line: int, values: Mapping[str, object]) -> Row | None:
    """A row of a file of metrics; None if nothing in it is a metric that we know."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, bool):
            continue
        try:
            number = math.nan if value is None else float(value)
        except (TypeError, ValueError):
            continue
        if not (value is None and name in ("kl", "loss")):
            numbers.setdefault(canonical(name), number)
    known = [numbers[name] for name in KNOWN & set(numbers)]
    if not known or (all(map(math.isnan, known)) and not any(_SAYS_NAN.match(str(one)) for one in values.values())):
        return None  # a row of something else, in which a table leaves these empty
    step = numbers.get("step")
    at = f"step {step:g}: " if step is not None and math.isfinite(step) else ""
    shown = [
        f"{name}={numbers[name]:.4g}"
        for name in ("loss", "grad_norm", "reward", "reward_std", "entropy", "kl")
        if name in numbers
    ]
    return Row(line, at + ", ".join(shown), numbers)


_SAYS_NAN = re.compile(r"\W*nan\b", re.IGNORECASE)
_STEP = re.compile(r"\W*[Ss]tep (\d+)\b|.*\b(?:Global step|rollout|step) (\d+): \{")
_OF_STEP = re.compile(r"[^{]*\b(?:rollout|step) (\d+): \{")
"""Before the rows of slime, of which a step has several."""
_TORCHTUNE = re.compile(r"Step \d+ \| \w+:")
_TORCHTUNE_BAR = re.compile(r"\d+\|(\d+)\|(Loss: \S+?):")
"""Epoch, step and loss in front of a progress bar, which is all that most recipes print."""


def rows_in(block: bytes) -> Iterator[Row]:
    """The rows of metrics that some lines of a running command's output hold.

    The console lines of TRL, OpenRLHF, verl, LLaMA-Factory, ms-swift, Megatron and torchtune
    (https://github.com/pytorch/torchtune/blob/main/torchtune/training/metric_logging.py), and JSON lines.

    Args:
        block: whole lines.
    """
    for number, line in enumerate(re.split(rb"[\n\r]", block), 1):
        text = line.decode("utf-8", "replace").strip()
        bar = _TORCHTUNE_BAR.match(text)
        if bar is not None:
            text = f"Step {bar[1]} | {bar[2].lower()}"
        if not (_ROW.search(line) or _TORCHTUNE.match(text)) or _FINISHED in line or b"'eval_" in line:
            continue
        row = parse(number, text)
        if KNOWN & set(row.values) and not _a_sample(row):
            said = None if "step" in row.values else _STEP.match(text)
            yield row if said is None else Row(number, text, {**row.values, "step": float(said[1] or said[2])})


@dataclass(frozen=True)
class _Piece:
    """Whole lines of a log that have rows.

    Attributes:
        block: the lines.
        number: the number of the first one.
        begun: where the first one begins that is looked at.
        columns: the names of the table's columns that goes on there; () for rows that name their metrics.
        words: those of `_ROW_WORDS` that it has.
    """

    block: bytes
    number: int
    begun: int = 0
    columns: tuple[str, ...] = ()
    words: tuple[bytes, ...] = _ROW_WORDS

    def _line(self, begun: int, places: dict[bytes, int]) -> tuple[int, int] | None:
        """Where the next line stands that may be a row; `places` is where each word is known to come next."""
        block = self.block
        if self.columns:
            end = block.find(b"\n", begun)
            return begun, len(block) if end < 0 else end
        while True:
            for word, place in [*places.items()]:
                if place < begun:
                    places[word] = block.find(word, begun)
                    if places[word] < 0:
                        del places[word]
            if not places:
                return None
            word = min(places, key=places.__getitem__)
            at = places[word]
            if word in _PAIR_WORDS and not _NUMBER.match(block, at + len(word)):
                begun_at = block.find(word, at + 1)
                places.pop(word) if begun_at < 0 else places.update({word: begun_at})
                continue
            start = max(block.rfind(b"\n", begun, at), block.rfind(b"\r", begun, at), begun - 1) + 1
            ends = [found for mark in (b"\n", b"\r") if (found := block.find(mark, at)) >= 0]
            end = min(ends, default=len(block))
            if at - start < ROW_BYTES:
                upto = min(end, at + ROW_BYTES)
                if _ROW.search(block, start, upto) or _PAIRS_ROW.search(block, start, upto):
                    return start, end
            begun = end + 1

    def rows(self, begun: int, stride: float = 0) -> Iterator[tuple[int, Row | None]]:
        """The rows from a place on, with the place at which the search for the next one begins.

        Args:
            begun: the place.
            stride: bytes from one row to the next one that is wanted.
        """
        number, counted = self.number, 0
        places = dict.fromkeys(self.words, -1)
        while begun < len(self.block) and (line := self._line(begun, places)) is not None:
            start, end = line
            number += self.block.count(b"\n", counted, start)
            counted = start
            text = self.block[start : min(end, start + ROW_BYTES)].decode("utf-8", "replace").strip()
            row = _of_table(number, text, self.columns) if self.columns else _printed(number, text)
            begun = end + 1
            wanted = start + int(stride)
            if row is not None and wanted > begun:
                begun = self.block.find(b"\n", wanted - 1) + 1 or max(len(self.block), wanted)
            if row is not None or (self.columns and text.strip(" |-:\t")):
                yield begun, row

    def last(self) -> list[Row]:
        """The last rows."""
        found: list[Row] = []
        for size in (*LAST_BYTES, len(self.block)):
            begun = self.block.find(b"\n", max(len(self.block) - size, 0)) + 1
            begun = self.begun if begun <= self.begun or size >= len(self.block) else begun
            found = [row for _, row in self.rows(begun) if row is not None]
            if len(found) >= LAST_ROWS or begun == self.begun:
                break
        return found[-LAST_ROWS:]


def _printed(number: int, text: str) -> Row | None:
    """A row that names its metrics."""
    row = parse(number, text)
    if not KNOWN & set(row.values):
        row = _parse_pairs(number, text) or row
    if "step" not in row.values and (told := _OF_STEP.match(text)):
        row.values["step"] = float(told[1])
    return row if KNOWN & set(row.values) and not _a_sample(row) else None


def _of_table(number: int, text: str, columns: Sequence[str]) -> Row | None:
    """A row of a table whose first column is the step, as a notebook prints it."""
    cells = _cells(text)
    if len(cells) != len(columns) or not re.fullmatch(r"\d+(?:/\d+)?", cells[0]):
        return None
    told = zip(columns, cells, strict=True)
    values = {name: None if cell in ("No log", "None") else cell for name, cell in told if cell}
    return row_of(number, {**values, "step": cells[0].split("/")[0]})


class Rows:
    """Collects the rows that matter while a log goes by in blocks."""

    def __init__(self) -> None:
        self.count = 0
        self._series: list[Row] = []
        self._evaluations: list[Row] = []
        self._stride = 0.0  # bytes from one row that is read to the next one
        self._next = 0  # where that is
        self._passed = 0  # bytes so far
        self._broken: list[Row] = []
        self._tail: deque[_Piece] = deque(maxlen=2)
        self._finished: Row | None = None
        self._trained = False  # says the summary
        self._last_values: Row | None = None  # as W&B sums them up
        self._columns: tuple[str, ...] = ()  # of a table that goes on
        self._misses = 0  # lines in it that are none of its rows
        self._last: list[Row] | None = None

    def add(self, row: Row) -> None:
        """A row of a file of metrics."""
        self._series.append(row)
        self.count += 1
        if not math.isfinite(row.values.get("grad_norm", 0.0)) and len(self._broken) < ENOUGH:
            self._broken.append(row)

    def spelled(self, text: str) -> None:
        """Looks in a text without rows for those that are printed for people; a long one has some early on."""
        if len(text) > SPELLED_FROM and not _console.rows_of(text[:SPELLED_FROM], 1, canonical, KNOWN, row_of):
            return
        for row in _console.rows_of(text, 1, canonical, KNOWN, row_of):
            self.add(row)

    def feed(self, block: bytes, number: int, words: Collection[bytes]) -> bool:
        """Looks at one block; whether it has rows that name their metrics.

        Args:
            block: Whole lines.
            number: The number of its first line.
            words: Which of the `WORDS` it has.
        """
        before, self._passed = self._passed, self._passed + len(block)
        if _EVALUATED in block:
            self._evaluate(block, number)
        if (_STEP_COLUMN in words and _BOXED.search(block)) or (self._columns and _BAR in block):
            block = block.replace(_HEAD_BAR, b"|").replace(_BAR, b"|")
        framed = not before and _FRAME.search(block) and frames(block.decode("utf-8", "replace"), number, row_of)
        for row in framed or ():
            self.add(row)
        small = None if before or framed else _SMALL_TABLE.search(block, 0, OF_SUMMARY * 10)
        if not words and not self._columns and small is None:
            return False
        if self._finished is None and _FINISHED in words:
            self._finish(block, number)
        if _RUN_SUMMARY in words:
            self._sum_up(block, number)
        begun = 0
        header = _TABLE.search(block) if not self._columns and _STEP_COLUMN in words and not framed else None
        header = header or small
        if header:
            begun = block.find(b"\n", header.end()) + 1 or len(block)
            self._columns = tuple(_cells(block[header.start() : begun].decode("utf-8", "replace")))
        if self._columns:
            self._take(_Piece(block, number, begun, self._columns), before)
        piece = _Piece(block, number, words=tuple(word for word in _ROW_WORDS if word in words))
        if next(piece.rows(0), None) is None:
            return False
        self._take(piece, before)
        # NaN stays: the block that has the first one ends with one too. Only the first blocks, which may be
        # the whole log, are searched for passing ones.
        last = max(block.rfind(b"grad_norm"), block.rfind(b"grad norm"), 0)
        suspect = len(self._tail) < 2 or _NON_FINITE.match(block, last)
        broken = _NON_FINITE.search(block) if suspect and len(self._broken) < ENOUGH else None
        if broken:
            for _, row in piece.rows(block.rfind(b"\n", 0, broken.start()) + 1):
                if row is not None and not math.isfinite(row.values.get("grad_norm", 0.0)):
                    self._broken.append(row)
                    if len(self._broken) >= ENOUGH:
                        break
        return True

    def _take(self, piece: _Piece, before: int) -> None:
        """Reads the rows of a piece, as many as are needed; `before` it were so many bytes."""
        place, full = self._next - before, True
        place = (
            piece.begun
            if place <= piece.begun
            else piece.block.find(b"\n", place - 1) + 1 or max(place, len(piece.block))
        )
        while full:
            full = False
            for following, row in piece.rows(place, self._stride):
                place = following
                self._misses = 0 if row is not None else self._misses + 1
                if piece.columns and self._misses > TABLE_MISSES:
                    self._columns = ()
                    break
                if row is None:
                    continue
                self._series.append(row)
                self.count += 1
                if piece.columns and not math.isfinite(row.values.get("grad_norm", 0.0)) and len(self._broken) < ENOUGH:
                    self._broken.append(row)
                full = len(self._series) > MOST_ROWS
                if full:  # what comes is read as thinly as what is kept
                    del self._series[1::2]
                    self._stride = (before + place) / len(self._series)
                    break
        self._next = before + place
        self._tail.append(piece)
        self._last = None

    def after(self, line: int) -> int:
        """How many rows came after a line; more than a few are not counted."""
        lines = {row.line for row in (*self._last_rows(), *self._series[-LAST_ROWS:])}
        count = sum(1 for number in lines if number > line)
        if lines and self._finished is not None and _FINISHED.decode() in self._finished.text:
            count += 2 * (max(*lines, self._finished.line) > line)
        return count

    def broken_before(self, line: int | None) -> int:
        """How many of the last rows (before a line, if one is given) have no finite gradient or loss, one and all."""
        rows = [row for row in self.series() if line is None or row.line < line]
        whole = [row for row in rows if row.values.keys() & {"grad_norm", "loss"}]
        finite = (
            all(math.isfinite(row.values.get(name, 0.0)) for name in ("grad_norm", "loss")) for row in reversed(whole)
        )
        return next((at for at, holds in enumerate(finite) if holds), len(whole))

    def series(self) -> list[Row]:
        """The rows of the whole run, evenly spread where there were very many."""
        last = self._last_rows()
        if not self._stride or not last:
            return self._series
        return [row for row in self._series if row.line < last[0].line] + last

    def _last_rows(self) -> list[Row]:
        if self._last is None:
            self._last = [row for piece in self._tail for row in piece.last()][-LAST_ROWS:]
        return self._last

    def facts(self) -> dict[str, list[Row]]:
        """What the rows show: fact -> the rows that show it."""
        # An evaluation's own; a table has the loss of the training beside it.
        held_out = [row for row in (*self.series(), *self._evaluations) if "eval_loss" in row.values]
        series = [
            row
            for row in self.series()
            if "loss" in row.values or not any(name.startswith("eval_") for name in row.values)
        ]
        series = [row for row in series if KNOWN & set(row.values) and _FINISHED.decode() not in row.text]
        facts = facts_of(_of_one_rank(series), self._broken, None if self._trained else self._finished)
        facts |= of_held_out(series, held_out) if not facts.keys() - {"growing-gradient", "large-gradient"} else {}
        last = self._last_values
        if not series and last and all(last.values.get(name) == 0 for name in ("reward", "reward_std", "grad_norm")):
            facts = {"nothing-left": [last]}
        return facts

    def task(self) -> str:
        """What sort of training has such rows (see `conditions`): "rl" or "supervised"; "" if they do not tell."""
        names = {name for row in (*self._series[:FIRST], *self._series[-FIRST:]) for name in row.values}
        if any(OF_RL.search(name) for name in names):
            return "rl"
        return "supervised" if len(self._series) >= FIRST and {"loss", "learning_rate"} <= names else ""

    def _sum_up(self, block: bytes, number: int) -> None:
        """The last values of a run, which W&B prints after it."""
        place = block.rindex(_RUN_SUMMARY)
        rest = block[place:].decode("utf-8", "replace")
        at = number + block.count(b"\n", 0, place)
        self._last_values = row_of(at, dict(_SUMMED_UP.findall(rest)))

    def _evaluate(self, block: bytes, number: int) -> None:
        """Takes the lines of evaluations, which are no rows of the training."""
        for found in _OF_EVALUATION.finditer(block):
            at = number + block.count(b"\n", 0, found.start())
            self._evaluations.append(parse(at, found.group().decode("utf-8", "replace")))
            if len(self._evaluations) > MOST_EVALUATIONS:
                del self._evaluations[1::2]

    def _finish(self, block: bytes, number: int) -> None:
        place = block.index(_FINISHED)
        summary = block[max(place - OF_SUMMARY, 0) : place + OF_SUMMARY].decode("utf-8", "replace")
        self._trained = any(float(found[1]) > 0 for found in _DONE.finditer(summary))
        text = block[max(block.rfind(b"\n", 0, place), 0) : place + 200].decode("utf-8", "replace")
        self._finished = Row(number + block.count(b"\n", 0, place), text.strip().split("\n")[0], {})


def _cells(line: str) -> list[str]:
    line = line.strip().strip("|")
    parts = line.split("|") if "|" in line else line.split("\t") if "\t" in line else re.split(r"\s{2,}", line)
    return [part.strip() for part in parts]


def _a_sample(row: Row) -> bool:
    """Whether it is a completion with its reward, and no row of metrics."""
    if len(KNOWN & set(row.values)) > 1:
        return False
    return bool(
        re.search(r"['\"](?:prompt|completion|response|answer|question|content|text|messages)['\"]: ?['\"\[]", row.text)
    )


def _of_one_rank(rows: list[Row]) -> list[Row]:
    """The rows in the order of the steps; those that several ranks printed for the same step once."""
    steps = [row.values.get("step") for row in rows]
    if any(step is None for step in steps) or len(set(steps)) in (0, len(steps)):
        return rows
    merged: dict[float, dict[str, float]] = {}
    places: dict[float, Row] = {}
    for row in rows:  # a logger's history has the metrics of one step in several rows
        merged[row.values["step"]] = {**row.values, **merged.get(row.values["step"], {})}
        places.setdefault(row.values["step"], row)
    return [Row(place.line, place.text, merged[step]) for step, place in places.items()]
