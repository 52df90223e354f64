"""The answers of the studies that build environments of other packages, and of the longer ones.

They are run with GOLDEN_SLOW=1; otherwise the answers are those that were recorded, so that nothing differs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from golden.parts.studies import SLOW, answer  # noqa: E402

RECORDED = Path(__file__).parents[1] / "answers" / "studies_slow.jsonl"


def answers() -> Iterator[tuple[str, object]]:
    if os.environ.get("GOLDEN_SLOW") == "1":
        for name in SLOW:
            yield name, answer(name)
        return
    print("studies_slow: as recorded, not run; GOLDEN_SLOW=1 runs it", file=sys.stderr)
    for line in RECORDED.read_text().splitlines():
        row = json.loads(line)
        yield row["id"], row["answer"]
