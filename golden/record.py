"""Record the answers that the code gives today: `python golden/record.py [PART ...]`, all parts where none is named."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from golden.frame import chosen, computed, record  # noqa: E402

if __name__ == "__main__":
    for part in chosen(sys.argv[1:]):
        begun = time.monotonic()
        found = computed(part)
        path = record(part, found)
        print(f"{part}: {len(found)} answers in {path.name}, {time.monotonic() - begun:.0f} s", flush=True)
