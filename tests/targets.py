"""A target without a run: what a study needs to know of one."""

from __future__ import annotations

from pathlib import Path

from bisect_cfg.store.inputs import hash_of


class Target:
    """A script with a good file."""

    def __init__(self, folder: Path, *arguments: str, good: str | None = "beta: 0\n") -> None:
        self.path, self.name, self.arguments = folder / "train.py", "train", list(arguments)
        self.good_file = None if good is None else folder / "good.yaml"
        self.path.write_text("print()")
        if good is not None:
            self.good_file.write_text(good)

    def identity(self) -> dict:
        good = None if self.good_file is None else hash_of(self.good_file)
        return {
            "script": str(self.path), "arguments": self.arguments, "script_hash": hash_of(self.path),
            "good_file_hash": good, "python": "/usr/bin/python3", "folder": str(self.path.parent), "files": {},
        }  # fmt: skip
