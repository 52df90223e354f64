"""What a log says of the run that failed: its last optimizer step, and whether it shows a given failure."""

from __future__ import annotations

import math
import re
from pathlib import Path

from bisect_cfg.common.failures.excerpt import blocks
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.errors import InputError
from bisect_cfg.explain.reader import Unreadable, open_sources, rows_of
from bisect_cfg.runner.traces import SIGNALS

_BAR = re.compile(rb"(\d+)/(\d+) \[\d+:\d\d")
"""tqdm's line: steps done, of all, and the time since. `Trainer` counts optimizer steps in it."""

_OTHER_BAR = re.compile(rb"(?:Map|Generating|Loading|Fetching|Filter|Tokeniz|Saving|Download)[^\r\n]{0,80}$")
"""What stands before the numbers in a line that counts something else."""


def steps_reached(path: Path) -> int:
    """The last optimizer step in whatever `explain` reads: a log, `trainer_state.json`, JSON lines, CSV, W&B's output,
    or a folder of them.

    Raises:
        InputError: it cannot be read, or tells of none.
    """
    try:
        sources, _ = open_sources([str(path)])
    except Unreadable as error:
        raise InputError(f"--log {path}: {error}.", "Give the log of the run that failed, or its metrics.") from None
    last = 0
    for source in sources:
        rows = rows_of(source)
        furthest = (0, 0)  # of the bar that is the training's: steps of all, steps done
        for block in blocks(source.stream) if source.stream is not None else ():
            rows.feed(block, 1)
            for bar in _BAR.finditer(block):
                line = max(block.rfind(end, 0, bar.start()) for end in (b"\n", b"\r")) + 1
                if not _OTHER_BAR.search(block[line : bar.start()]):
                    furthest = max(furthest, (int(bar[2]), int(bar[1])))
        steps = (row.values.get("step", 0.0) for row in rows.rows)
        last = max([last, furthest[1], *(int(step) for step in steps if math.isfinite(step))])
    if not last:
        raise InputError(f"--log {path} tells of no training step.", "Say how many with --steps N instead.")
    return last


def told_in(path: Path, failure: Signature, message: str) -> bool:
    """Whether a log shows the failure that ended a run with this message: it contains the name of the exception, that
    of the signal or the words of shells for it, "nan" for weights that are not finite."""
    names = [failure.name, message.partition(":")[0].strip()]
    names += ["nan"] if failure.kind == "non-finite" else []
    names += [name for name, number in SIGNALS.items() if number.name == failure.name]
    wanted = [name.encode().lower() for name in names if name]
    streams = (source.stream for source in open_sources([str(path)])[0] if source.stream is not None)
    parts = (block.lower() for stream in streams for block in blocks(stream))
    return any(name in part for part in parts for name in wanted)
