"""Files of JSON that are there whole or not at all, whoever is killed while they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Write `data`; what JSON cannot hold is written as its `repr`.

    Raises:
        OSError: the folder cannot be written.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(data, indent=1, default=repr) + "\n")
    temporary.replace(path)
