"""Every log of tests/corpus: the exit status of `explain` and the entry that leads; and, apart, the first step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bisect_cfg.explain import explain_text

CORPUS = Path(__file__).parents[2] / "tests" / "corpus"


def answers() -> Iterator[tuple[str, object]]:
    """Id (the log's path in the corpus) and answer."""
    for path in sorted(CORPUS.glob("*/*.log")):
        found = explain_text(path.read_text(encoding="utf-8"))
        name = str(path.relative_to(CORPUS))
        yield name, {"status": found.status, "lead": found.lead.entry.id if found.lead else None}
        yield f"{name}: first step", next(iter(found.steps), None)
