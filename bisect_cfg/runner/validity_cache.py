"""Can this configuration be built? Asked hundreds of times, answered by the installed library a few dozen times.

The library looks at few of its fields while it checks them, and the probe reports which (see its `build`). An answer
therefore holds for every configuration that agrees in those fields. Answers are kept in the study folder: a study
that is resumed, or only looked at again, asks nobody.
"""

from __future__ import annotations

import json
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
        self._resolved: dict[str, BuildAnswer] = {}  # request -> answer
        self._errors: dict[frozenset[str], dict[str, str | None]] = {}  # fields looked at -> their values -> error
        self._changed = False
        self._unanswered = 0
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            resolved = {str(key): from_json(BuildAnswer, answer) for key, answer in kept["resolved"].items()}
            self._errors = {frozenset(map(str, reads)): dict(answers) for reads, answers in kept["errors"]}
            self._resolved = resolved
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # a cache: whatever is wrong with it, the library can be asked again

    def resolve(self, item: BuildRequest, build: Build | None = None) -> BuildAnswer:
        """What a configuration resolves to, or why it cannot be built; `build` asks in place of the usual way."""
        key = _key(to_json(item))
        if key not in self._resolved:
            answer = (build or self.build)(item)
            if answer.unanswered:
                return answer  # no answer of the library's; another time there may be one
            self._resolved[key] = answer
            self._changed = True
            self.save()
        return self._resolved[key]

    def error(self, item: BuildRequest) -> str | None:
        """None if the configuration can be built, otherwise the library's own words.

        A configuration that ends or hangs the process counts as one that can be built: this may be the failure under
        study, and a trial will show it.
        """
        if not item.cls:  # of a script whose training config nobody has seen
            return None
        for reads, answers in self._errors.items():
            if (key := _restricted(item, reads)) in answers:
                return answers[key]
        if self._unanswered >= MOST_UNANSWERED:
            return None
        answer = self.build(item)
        if answer.unanswered:
            self._unanswered += 1
            return None
        reads = frozenset(answer.reads)
        self._errors.setdefault(reads, {})[_restricted(item, reads)] = answer.error
        self._changed = True
        return answer.error

    def save(self) -> None:
        """Write the answers down, if there are new ones."""
        if self._changed:
            resolved = {key: to_json(answer) for key, answer in self._resolved.items()}
            errors = [[sorted(reads), answers] for reads, answers in self._errors.items()]
            write_json(self._path, {"resolved": resolved, "errors": errors})
            self._changed = False


def _restricted(item: BuildRequest, fields: frozenset[str]) -> str:
    """The overrides of certain fields, and how many processes there are to be, as a key."""
    kept = {name: value for name, value in item.overrides.items() if name.split(".")[0] in fields}
    return _key(kept | ({"world_size": item.world_size} if item.world_size > 1 else {}))


def _key(data: object) -> str:
    return json.dumps(data, sort_keys=True, default=repr)
