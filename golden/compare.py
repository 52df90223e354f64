"""Compare what the code answers now with what was recorded: `python golden/compare.py [PART ...]`.

Each difference is printed. It ends with status 1 if one of them is not listed in `known_differences.yaml`.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from golden.frame import HERE, chosen, computed, recorded  # noqa: E402

AROUND, SHOWN = 30, 160  # characters before the first one that differs, and in all


def main(names: list[str]) -> int:
    """Compare the named parts; the exit status."""
    listed = yaml.safe_load((HERE / "known_differences.yaml").read_text(encoding="utf-8")) or []
    unlisted = 0
    for part in chosen(names):
        before, now = recorded(part), computed(part)
        differing = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        known = [one for one in listed if one["part"] == part]
        for name in differing:
            why = [one["reason"] for one in known if fnmatchcase(name, str(one["id"]))]
            unlisted += not why
            print(f"{part} {name}{f' (known: {why[0]})' if why else ''}\n{_shown(before.get(name), now.get(name))}")
        for one in (one for one in known if not any(fnmatchcase(name, str(one["id"])) for name in differing)):
            print(f"{part} {one['id']}: listed as a known difference, but does not differ any more")
        print(f"{part}: {len(differing)} of {len(now)} answers differ", flush=True)
    return 1 if unlisted else 0


def _shown(before: str | None, now: str | None) -> str:
    """Both answers from shortly before the first place where they differ."""
    if before is None or now is None:
        return f"  new: {now[:SHOWN]}" if before is None else f"  gone: {before[:SHOWN]}"
    at = max(len(os.path.commonprefix([before, now])) - AROUND, 0)
    return "\n".join(f"  {when}{text[at : at + SHOWN]}" for when, text in (("before: ", before), ("now:    ", now)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
