"""Can this configuration be built? Asked hundreds of times, answered by the installed library a few dozen times.

The library looks at few of its fields while it checks them, and the probe reports which (see its `build`). An answer
therefore holds for every configuration that agrees in those fields. Answers are kept in the study folder: a study
that is resumed, or only looked at again, asks nobody.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from bisect_cfg.common.json_files import write_json
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, from_json, to_json
from bisect_cfg.targets.factors import Build

MOST_UNANSWERED = 3
"""After so many configurations that end or hang the process that builds them, the library is asked no more: each such
question takes minutes, and the trials will tell."""


class ConfigChecks:
    """The answers so far, kept in the file `path`; `build` asks the library."""

    def __init__(self, path: Path, build: Build) -> None:
        self._path, self.build = path, build
        self._answers: dict[str, tuple[BuildRequest, BuildAnswer]] = {}
        self._errors: dict[frozenset[str], dict[str, str | None]] = {}  # fields looked at -> their values -> error
        self._saved = self._unanswered = 0
        try:
            for item, answer in json.loads(path.read_text(encoding="utf-8")):
                self._keep(from_json(BuildRequest, item), from_json(BuildAnswer, answer))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # a cache: whatever is wrong with it, the library can be asked again
        self._saved = len(self._answers)

    def resolve(self, item: BuildRequest, build: Build | None = None) -> BuildAnswer:
        """What a configuration resolves to, or why it cannot be built; `build` asks in place of the usual way."""
        key = _key(item, item.overrides)
        if key in self._answers:
            return self._answers[key][1]
        answer = (build or self.build)(item)
        if not answer.unanswered:  # else it is none of the library's; another time there may be one
            self._keep(item, answer)
            self.save()
        return answer

    def error(self, item: BuildRequest) -> str | None:
        """None if the configuration can be built, otherwise the library's own words.

        A configuration that ends or hangs the process counts as one that can be built: this may be the failure under
        study, and a trial will show it.
        """
        if not item.cls:  # of a script whose training config nobody has seen
            return None
        for reads, errors in self._errors.items():
            if (key := _key(item, reads)) in errors:
                return errors[key]
        if self._unanswered >= MOST_UNANSWERED:
            return None
        answer = self.build(item)
        if answer.unanswered:
            self._unanswered += 1
            return None
        self._keep(item, answer)
        return answer.error

    def _keep(self, item: BuildRequest, answer: BuildAnswer) -> None:
        self._answers[_key(item, item.overrides)] = item, answer
        if answer.reads:
            reads = frozenset(answer.reads)
            self._errors.setdefault(reads, {})[_key(item, reads)] = answer.error

    def save(self) -> None:
        """Write the answers down, if there are new ones."""
        if len(self._answers) > self._saved:
            write_json(self._path, [[to_json(item), to_json(answer)] for item, answer in self._answers.values()])
            self._saved = len(self._answers)


def _key(item: BuildRequest, fields: Collection[str]) -> str:
    """A configuration with the overrides of certain fields alone."""
    kept = {name: value for name, value in item.overrides.items() if name in fields or name.split(".")[0] in fields}
    return json.dumps([item.cls, item.raw, kept, item.world_size], sort_keys=True, default=repr)
