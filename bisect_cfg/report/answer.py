"""The answer of a study: the content of result.json, of finished, running and interrupted studies alike.

`answer_of` makes one of what the phases found, `read_answer` reads one back; what people are shown is made of it by
`lines.lines_of` and the encoders beside it. docs/result.md says what each key means.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from bisect_cfg.common.configuration import Purpose, Status, equal
from bisect_cfg.common.files import load_json, read_text
from bisect_cfg.common.json_files import JsonObject, strict, write_json
from bisect_cfg.doctor.placement import PlacementFinding
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask
from bisect_cfg.remedy.remedy import Range
from bisect_cfg.report.contrast import Contrast
from bisect_cfg.rewrite.recommended import Change, ShownEdit, Unplaced
from bisect_cfg.runner.where import Where
from bisect_cfg.store.causes import Cause, Claim, Correction, Levels, Masking, Part, Reproduction, Trial

SCHEMA = 1
"""Version of result.json; raised when a key changes its meaning or goes away."""

FILE = "result.json"

EXIT_STATUS = {Status.ISOLATED: 0, Status.NO_FAILURE: 1, Status.BASELINE_FAILS: 1, Status.INCONCLUSIVE: 3}

UNTRIED = "untried"
"""The status of an alternative that no run says anything about."""

RUNNING, UNFINISHED, EMPTY = "running", "unfinished", "empty"
"""What a study without an answer has as its status."""


class Failure(Part, frozen=True):
    """A failure; `text` is what the run does, as `Cause.text`."""

    kind: str = ""
    message: str = ""
    signature: str = ""
    text: str = ""
    signal: str | None = None
    exception: str | None = None
    quantity: str | None = None
    where: str = ""
    step: int | None = None
    log: str | None = None


class Placement(Part, frozen=True):
    """Where the models of the user's own run were when it began to train, by rank."""

    ranks: dict[str, Any]
    findings: tuple[PlacementFinding, ...] = ()


class KnownIssue(Part, frozen=True):
    """What is known about the failure; `environment`: whether that is at fault, whatever setting triggers it."""

    id: str
    title: str
    why: str = ""
    cures: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    environment: bool = False


class Target(Part, frozen=True):
    """What was run; `goes_on`: the script may train again, after the training that was watched."""

    script: str = ""
    arguments: tuple[str, ...] = ()
    command: str = ""
    training: int | None = None
    trainer: str | None = None
    config: str | None = None
    resumes_from: str | None = None
    goes_on: bool = False


class Origin(Part, frozen=True):
    """Where trials began, if not at step 0, and whether the claims were proven from there (None: not run)."""

    kind: str
    step: int
    checkpoint: str | None = None
    proven_from_start: bool | None = None


class Warnings(Part, frozen=True):
    """An oddity of trials that passed."""

    text: str
    trials: tuple[int, ...]


class Remedy(Part, frozen=True):
    """A configuration next to the user's own, and what is known of it; `died`: the signature of the run for which it
    was rejected, if that died."""

    changes: dict[str, Change]
    verified: bool = False
    status: str | None = None
    evidence: Claim | None = None
    steps: int | None = None
    failure_rate_at_most: float | None = None
    ranges: dict[str, Range] = {}
    why: str = ""
    source: str = ""
    rejected: str = ""
    died: str | None = None
    stepped_back: int = 0
    gives_up: float = 0.0


class Recommendation(Remedy, frozen=True):
    """What to use instead."""

    configuration: dict[str, Any] = {}
    alternatives: tuple[Remedy, ...] = ()
    seeds: tuple[int, ...] = ()
    full_rate: str = ""
    unsettled: tuple[str, ...] = ()
    not_kept: tuple[str, ...] = ()
    first: str = ""
    edits: tuple[ShownEdit, ...] = ()
    diff: str = ""
    not_located: tuple[str, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    command: str | None = None

    @property
    def can_be_applied(self) -> bool:
        """Whether `bisect-cfg apply` can write it into files; it writes all of its edits or none."""
        files = [edit for edit in self.edits if edit.file is not None]
        return bool(files) and all(edit.text is not None for edit in files)


class Answer(Part, frozen=True):
    """The whole answer; see docs/result.md. Of the settings that no trial varied, `not_varied` says why; `unvaried`
    are those that go by their name (data, places, seeds) and differ from a known default, which is their good value.
    `stopped` says which limit has ended the search before its time."""

    status: str
    trials: tuple[Trial, ...] = ()
    complete: bool = False
    schema: int = SCHEMA
    failure: Failure | None = None
    good_failure: Failure | None = None
    good_tried: tuple[str, ...] = ()
    good_reasons: tuple[str, ...] = ()
    where: Where | None = None
    only_failing: Contrast | None = None
    placement: Placement | None = None
    causes: tuple[Cause, ...] = ()
    corrections: tuple[Correction, ...] = ()
    masking: tuple[Masking, ...] = ()
    reproduction: Reproduction = Reproduction()
    safe_configuration: dict[str, Any] | None = None
    not_varied: dict[str, str] = {}
    unvaried: dict[str, Levels] = {}
    recommendation: Recommendation | None = None
    rejected: tuple[Remedy, ...] = ()
    known_issue: KnownIssue | None = None
    environment: JsonObject = {}
    environments: JsonObject | None = None
    cluster: JsonObject | None = None
    target: Target = Target()
    start: str | None = None
    horizon: int | None = None
    origin: Origin | None = None
    rows: JsonObject | None = None
    placebo: str = ""
    stopped: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[Warnings, ...] = ()
    simulated: str = ""
    seconds: float | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the study has no answer yet; the first of the notes then says why."""
        return self.status in (RUNNING, UNFINISHED, EMPTY)

    @cached_property
    def levels(self) -> dict[str, Levels]:
        """The two values of every factor, as the runs of the two ends had them; those of the causes first."""
        known = {name: levels for cause in self.causes for name, levels in cause.levels.items()}
        good, bad = (
            next((trial.values for trial in self.trials if trial.kind is end and trial.values), {})
            for end in (Purpose.GOOD_BASELINE, Purpose.BAD_BASELINE)
        )
        both = {name: Levels(good=good[name], bad=bad[name]) for name in bad if name in good}
        return {**known, **{name: levels for name, levels in both.items() if name not in known}}

    @cached_property
    def guilty(self) -> frozenset[str]:
        """The factors of all causes."""
        return frozenset(name for cause in self.causes for name in cause.levels)

    @cached_property
    def evidence(self) -> tuple[int, ...]:
        """The numbers of the trials that the answer rests on: of the causes, the corrections and what is recommended,
        and the first run of either end."""
        ends = (Purpose.BAD_BASELINE, Purpose.GOOD_BASELINE)
        numbers = {number for claim in self._claims() for number in claim.trials}
        numbers |= {trial.number for trial in self.trials if trial.kind in ends}
        return tuple(trial.number for trial in self.trials if trial.number in numbers)

    def _claims(self) -> Iterator[Claim]:
        for cause in self.causes:
            yield from (cause.evidence.fails, *cause.evidence.without.values())
        yield from (correction.passes for correction in self.corrections)
        if self.recommendation is not None and self.recommendation.evidence is not None:
            yield self.recommendation.evidence

    def level(self, trial: Trial, name: str) -> str:
        """Which of its levels a factor has in a trial: "good", "bad", or "other" for what lies elsewhere."""
        value, levels = trial.values.get(name), self.levels[name]
        return "bad" if equal(value, levels.bad) else "good" if equal(value, levels.good) else "other"

    def repeated_by(self, folder: Path) -> dict[str, Path]:
        """The files that repeat the last passing and the last failing run of the first cause's evidence that have one.

        Where trials began at a checkpoint that is gone, as one of the tool's own is at the end, nothing can be
        repeated.
        """
        checkpoint = self.origin.checkpoint if self.origin is not None else None
        if not self.causes or (checkpoint is not None and not Path(checkpoint).is_dir()):
            return {}
        evidence = self.causes[0].evidence
        passing = [number for claim in evidence.without.values() for number in claim.trials]
        trials = {trial.number: trial for trial in self.trials}
        found = {}
        for label, numbers, outcome in (
            ("nearest passing", passing, "pass"),
            ("minimal failing", evidence.fails.trials, "fail"),
        ):
            known = (trials[number] for number in numbers if number in trials)
            files = [folder / trial.folder / "command.sh" for trial in known if trial.outcome == outcome]
            if there := [path for path in files if path.exists()]:
                found[label] = there[-1]
        return found


def plain(answer: Answer) -> JsonObject:
    """The answer as JSON holds it, without secrets; numbers that JSON has not are text."""
    made: JsonObject = mask(strict(msgspec.to_builtins(answer, enc_hook=repr)))
    return made


def of_plain(content: JsonObject) -> Answer:
    """The answer that `plain` has made data of.

    Raises:
        ValueError: it has another form; says which key.
    """
    try:
        return msgspec.convert(content, Answer)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def write_answer(answer: Answer, folder: Path) -> None:
    """Write result.json into the folder of a study."""
    write_json(folder / FILE, plain(answer))


def read_answer(folder: Path) -> Answer | None:
    """The answer that result.json holds; None if there is no such file.

    Raises:
        InputError: it cannot be read, or is no answer.
    """
    try:
        return of_plain(load_json(read_text(folder / FILE), ours=True))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / FILE} cannot be read: {error}.",
            "Run the same `bisect-cfg bisect` command again: no trial is repeated, and the file is rewritten.",
        ) from None
