"""What tables of metrics show: symptoms with their steps, healthy or not, and what a run that shows them counts as.

The tables are those of real trials and of tests (`data/metrics/`), and 200 that `golden.tables` draws from seeds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bisect_cfg.common.failures import health
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.runner.verdict import Failure, Metrics, Observation, Standard, judge
from golden.tables import drawn

TABLES = Path(__file__).parent.parent / "data" / "metrics"

STUDIED = {"a signal": Signature("signal", "SIGFPE"), "collapse": Signature("collapse"), "NaN": Signature("non-finite")}
"""Failures under study, under which each run is judged."""


def answers() -> Iterator[tuple[str, object]]:
    """What each table shows."""
    for path in sorted(TABLES.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            table = json.loads(line)
            shown = answer(table["rows"], table.get("earlier", ()))
            yield f"{path.name.removesuffix('.jsonl.gz')}/{table['id']}", shown
    for seed in range(200):
        name, rows = drawn(seed)
        yield f"drawn/{seed} {name}", answer(rows, ())


def answer(rows: Sequence[health.Row], earlier: Sequence[health.Row]) -> dict[str, object]:
    """All that is frozen of one table."""
    at_end, on_the_way = (health.symptoms(rows, ended, earlier) for ended in (True, False))
    run = Observation(None, len(rows), 1.0)
    standards = {name: Standard(Failure(signature)) for name, signature in STUDIED.items()}
    shown = judge(run, Metrics(rows, earlier))
    verdicts = {name: judge(run, Metrics(rows, earlier), standard) for name, standard in standards.items()}
    usual = judge(run, Metrics(rows, earlier), standards["a signal"].with_usual(shown))
    return {
        "symptoms": list(map(_told, at_end)),
        "before it ended": list(map(_told, on_the_way)),
        "remarks": list(map(_told, shown.remarks)),
        "healthy": not at_end,
        "first bad step": min((symptom.step for symptom in at_end), default=None),
        "seen at row": _seen_at(rows, earlier),
        "failure": str(shown.signature) if shown.signature else None,
        "outcomes": {name: verdict.outcome.value for name, verdict in verdicts.items()},
        "outcome where the good run shows the same": usual.outcome.value,
    }


def _seen_at(rows: Sequence[health.Row], earlier: Sequence[health.Row]) -> int | None:
    """The number of rows after which a watch of the running trial first says something."""
    watch = health.Watch()
    return next((end for end in range(1, len(rows) + 1) if watch.symptoms(rows[:end], False, earlier)), None)


def _told(symptom: health.Symptom) -> list[object]:
    return [symptom.kind, symptom.name, symptom.step]
