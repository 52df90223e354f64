"""The name of a setting: the space that it belongs to, and its key there."""

from __future__ import annotations

from typing import NamedTuple

SPACES = ("args", "model", "peft", "script", "launch", "env", "packages")
"""The training config, the model, the adapter, the script's own, the launch, the environment, what is installed."""


class Name(NamedTuple):
    """A name as users and reports write it is `str(name)`: a setting of the training config goes by its bare key."""

    space: str  # one of `SPACES`
    key: str  # within it; one of a dictionary follows its setting (``model_init_kwargs.dtype``)

    @classmethod
    def of(cls, text: str) -> Name:
        """The name that a text is; with no space in front it belongs to the training config."""
        space, dot, key = text.partition(".")
        return cls(space, key) if dot and space in SPACES else cls("args", text)

    def __str__(self) -> str:
        return self.key if self.space == "args" else self.full

    @property
    def full(self) -> str:
        """With its space, as the probe and the data files have it."""
        return f"{self.space}.{self.key}"

    @property
    def field(self) -> str:
        """The setting itself, without the key of a dictionary that it holds."""
        return self.key.partition(".")[0]
