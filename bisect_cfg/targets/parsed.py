"""What a Python program that builds no training config was seen to make of its command, and of its environment.

Its parsers' defaults are its good side; what may not vary of it is decided as for the own settings of a training
script.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.probe.protocol import Event
from bisect_cfg.targets.captured import has_tag, own_settings
from bisect_cfg.targets.launch_settings import VARIABLE
from bisect_cfg.targets.pinned import why_own


@dataclass(frozen=True)
class Parsed:
    """A program's own settings; variables are ``env.NAME``.

    Attributes:
        bad: name -> value, of what may vary.
        good: name -> value without the user; what is missing is not set.
        pinned: name -> why it may not vary.
        flags: name -> what the command line calls it, where that is known: ``--workers``, ``-w``.
    """

    bad: Configuration
    good: Configuration
    pinned: Mapping[str, str]
    flags: Mapping[str, Sequence[str]]

    def calls(self, word: str, name: str) -> bool:
        """Whether a word of the command, without ``=VALUE``, is the flag of a setting."""
        plain = word.lstrip("-+").replace("-", "_")
        return word in self.flags.get(name, ()) or plain == name.replace("-", "_")

    def times_given(self, words: Sequence[str], name: str) -> int:
        """How often a command gives a setting."""
        given = (word for word in words[1:] if word.startswith("-") or "=" in word)
        return sum(self.calls(word.partition("=")[0], name) for word in given)


NOTHING = Parsed({}, {}, {}, {})


def parsed_in(events: Sequence[Event], named: Collection[str]) -> Parsed:
    """Read what a watched run has shown.

    Args:
        events: of the run.
        named: settings that the good side gives.
    """
    bad: dict[str, Value] = {}
    good: dict[str, Value] = {}
    pinned: dict[str, str] = {}
    flags: dict[str, list[str]] = {}
    for kind, own in own_settings(events).items():
        differ = set(own.set_by_user)
        flags |= own.flags
        for name, value in own.raw.items():
            reason, full = why_own(own, name, named), VARIABLE + name if kind == "env" else name
            if reason:
                pinned |= {full: reason} if name in differ else {}
            elif not has_tag(value):
                bad[full] = value
                good |= {full: own.defaults[name]} if name in own.defaults and kind != "env" else {}
    return Parsed(bad, good, pinned, flags)
