"""One isolated target as safe values need it: where its remedies begin, what a run of it is and what it says.

What `order` and `remedy` decide from is put together here: from the study, the captured settings and the installed
library, the alternatives that this target can be given, and what the search has shown already.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bisect_cfg.common.configuration import Configuration, Purpose, Value, equal
from bisect_cfg.common.parameters import canonical, parameter
from bisect_cfg.common.parameters.comparing import plain
from bisect_cfg.remedy.alternatives import Alternative, alternatives_for
from bisect_cfg.remedy.proposals import Proven, proposals_for
from bisect_cfg.remedy.ranges import SearchRange, search_range_of
from bisect_cfg.remedy.remedy import Aim, Attempt, Proposal, Ran, Terms, Wishes, key_of
from bisect_cfg.remedy.schedule import Prefix, left_out, prefix_for, reached_full_rate, total_steps, warmup_of
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import INVALID, Verdict
from bisect_cfg.store.causes import Cause, Report
from bisect_cfg.targets.captured import entries
from bisect_cfg.targets.factors import DEFAULT

VERIFY_FACTOR = 4
VERIFY_LEAST = 30
"""A verification runs for four horizons, 30 steps at least: long enough that what only begins in a trial shows, short
enough to be paid for three times. `--verify-steps` asks for more."""

UNCOUNTED = 1
"""The length of a run that prints no metrics: it is one thing, done or not."""

DEFAULT_SEED = 42
"""transformers' default, for a training config that does not say."""


@dataclass(frozen=True)
class Health:
    """Whether a run was healthy, and if not, since when and why."""

    healthy: bool
    died: Verdict | None = None  # what it did, if it did not come to its end
    why: str = ""  # else what its metrics show; of a configuration that cannot be built, the library's own words
    failed_at: int | None = None  # the optimizer step at which it went wrong
    signature: str | None = None  # what makes two of them the same, for the study
    too_short: bool = False  # nothing is wrong with it but that it ended before it met the full learning rate


class Isolated:
    """A target whose failure is isolated. Healthy is measured against its good run; the `cures` are those of the known
    failure that it is."""

    def __init__(
        self,
        trials: Trials,
        report: Report,
        bad_run: Run,
        good_run: Run,
        wishes: Wishes,
        cures: Sequence[Alternative] = (),
    ) -> None:
        self._trials, self._wishes, self._good_run, self._cures = trials, wishes, good_run, cures
        # What somebody asked besides is no part of it, and may have had values that no factor tells.
        self._report = replace(report, rows=tuple(row for row in report.rows if row.kind is not Purpose.ASKED))
        settings = self._settings = trials.settings
        # Of a command nobody knows what its settings mean, whatever they are called.
        self._types = settings.capture.args.types if settings.seen else {}  # field of the training config -> annotation
        told = settings.resolved.get("seed")
        self._seed = (told if isinstance(told, int) else DEFAULT_SEED) if settings.seen else None
        standard = trials.standard.with_usual(good_run.shown)
        self._standard = replace(standard, good=good_run.traces.metrics.rows)
        self._total = total_steps(bad_run.traces)
        self._counted = good_run.seen.counted
        self._horizon = (trials.horizon or 1) if self._counted else UNCOUNTED
        least = max(VERIFY_FACTOR * self._horizon, VERIFY_LEAST)
        self._verify_steps = (wishes.verify_steps or least) if self._counted else UNCOUNTED

    # ---------------------------------------------------------------------------------------- where to begin

    def terms(self) -> Terms:
        """All that is known before the first run."""
        report, wishes = self._report, self._wishes
        offers = [self._alternatives(cause) for cause in report.causes]
        proposals = proposals_for(self._proven(), self._range, offers, wishes.keep, self._identity)
        return Terms(
            self._settings.bad,
            lambda configuration, steps: self.prefix(configuration, steps).steps,
            self._horizon,
            self._verify_steps,
            wishes,
            lambda configuration: self._trials.is_valid(configuration) is None,
            1.0 if report.reproduction.rate is None else report.reproduction.rate,
            proposals,
            self._known(proposals),
            self._good_run.seen.seconds / max(1, self._length(self._good_run)),
        )

    def _proven(self) -> Proven:
        """What the search has shown. One that stopped at the first cause has tested no correction; what it knows to
        pass takes its place."""
        report, settings = self._report, self._settings
        tested = [c for c in report.corrections if c.passes.subset is not None and c.passes.seen == c.passes.runs > 0]
        corrections = [correction.parameters for correction in tested]
        if not corrections and report.safe_configuration is not None:
            safe = report.safe_configuration
            corrections = [tuple(name for name in safe if not equal(safe[name], settings.bad[name]))]
        failed = [row.values for row in report.rows if row.failed]
        return Proven(settings.good, settings.bad, [cause.parameters for cause in report.causes], corrections, failed)

    def _identity(self, changes: Configuration) -> str | None:
        """What the user's configuration with these changes comes to, as the library resolves it; None if it cannot be
        built, or nobody knows. Equal for ``model.dtype`` at its default and at float32, where the model is loaded so by
        default."""
        settings = self._settings
        if not self._types:
            return None
        overrides = settings.overrides({**settings.bad, **changes})
        answer = self._trials.site.checks.resolve(settings.build_request({**settings.bad, **changes}))
        if answer.values is None:
            return None
        values = {name: value for name, value in answer.values.items() if not parameter(name).pinned}
        rest = {name: value for name, value in overrides.items() if not name.startswith("args.")}
        begun = self._good_run.traces.begun
        by_default = (begun.dtype or None) if begun is not None else None
        if rest.get("model.dtype", "") in (None, DEFAULT):
            rest["model.dtype"] = by_default
        loaded = dict(entries(values.get("model_init_kwargs")) or {})
        given = loaded.pop("torch_dtype", None) or loaded.pop("dtype", None)
        # What a training config's own dtype is by default is known only once a model is loaded: its file may say.
        own = (name for name in settings.bad if name.startswith("model_init_kwargs."))
        if given or any(canonical(name) == "model.dtype" for name in own):
            values["model_init_kwargs"] = {**loaded, "dtype": plain(given or by_default)}
        return json.dumps([values, rest], sort_keys=True, default=repr)

    def _range(self, name: str, changes: Configuration) -> SearchRange | None:
        """The values of a setting worth trying, with these changes to the user's configuration."""
        good, bad, kind = self._settings.good, self._settings.bad, self._types.get(name, "")
        factor = next((one for one in self._settings.varied if one.name == name), None)
        if self._settings.seen and factor is not None and factor.kind in ("launch", "env", "packages"):
            return None  # it has no third value, a number or not
        real = "float" in kind and "int" not in kind and "steps" not in name

        def is_valid(value: float) -> bool:
            return not self._types or self._trials.is_valid({**bad, **changes, name: value}) is None

        return search_range_of(name, good[name], bad[name], False if real else None, is_valid)

    def _alternatives(self, cause: Cause) -> list[Alternative]:
        """Known alternatives that this target can be given and its library accepts; of a command only versions are
        known, all others are of training configs."""
        kept, fields, bad = list(self._cures), self._types, self._settings.bad
        if not fields:
            return kept
        loads = not {"load", "modelcfg"}.isdisjoint(self._settings.capture.others)
        values = {name: (levels["good"], levels["bad"]) for name, levels in cause.values.items()}
        for offer in alternatives_for(values, self.values(bad), fields):
            changes = {name.removeprefix("args."): value for name, value in offer.settings.items()}
            settable = all(
                name in bad or name.split(".")[0] in fields or (loads and name.startswith("model.")) for name in changes
            )
            if settable and self._trials.is_valid({**bad, **changes}) is None:
                kept.append(replace(offer, settings=changes))
        return kept

    def _known(self, proposals: Sequence[Proposal]) -> list[Ran]:
        """Runs of the search that say something about the beginning of a remedy."""
        wanted = {key_of({**self._settings.bad, **proposal.changes}, 0) for proposal in proposals}
        found = []
        for row in self._report.rows:
            configuration = {name: row.values[name] for name in self._settings.bad}
            if key_of(configuration, 0) not in wanted or not row.passed:
                continue
            run = self._trials.site.load(row.number)
            if run is None:
                continue
            steps = self._length(run)
            shown = self.health_of(run, Attempt(configuration, 0, steps, Aim.RESET, ""))
            if not shown.too_short:
                found.append(Ran(configuration, 0, steps, shown.healthy, row.number, shown.failed_at, shown.why))
        return found

    def _length(self, run: Run) -> int:
        return run.seen.steps if self._counted else UNCOUNTED

    # -------------------------------------------------------------------------------------------------- a run

    def ordered(self, attempt: Attempt) -> tuple[Configuration, int | None]:
        """What is to be run, with its seed and the schedule that it needs, and for how many steps; None: to its end."""
        configuration = dict(attempt.configuration)
        if self.prefix(configuration, attempt.steps).skipped:
            configuration |= left_out(self.values(configuration))
        if attempt.seed and self._seed is not None:
            configuration["seed"] = self.seed(attempt.seed)
        return configuration, attempt.steps if self._counted else None

    def values(self, configuration: Configuration) -> dict[str, Value]:
        """The training config's settings under a configuration, by bare name; none of a command."""
        return {**self._settings.resolved, **configuration} if self._types else {}

    def prefix(self, configuration: Configuration, steps: int) -> Prefix:
        """How a run of a configuration that wants so many steps meets the full learning rate."""
        return prefix_for(self.values(configuration), self._total, steps, self._horizon, self._good_run.seen.before)

    def seed(self, number: int) -> int:
        """The seed itself: 0 is the user's own. Where none can be set, the number of the run."""
        return (self._seed or 0) + number

    def health_of(self, run: Run, attempt: Attempt) -> Health:
        """Whether a run was healthy."""
        seen, values = run.seen, self.values(attempt.configuration)
        verdict = run.judged(replace(self._standard, scaler=values.get("fp16") is True))
        if seen.died is not None and seen.invalid:
            return Health(False, None, f"cannot be built: {seen.died.message.rstrip('.')}", 0, INVALID)
        if seen.died is not None:
            return Health(False, verdict, "", verdict.step or 0, str(seen.died))
        if verdict.wrong is not None:
            return Health(False, None, verdict.wrong.text, verdict.wrong.step, f"not healthy: {verdict.wrong.metric}")
        warmup = warmup_of(values, self._total)  # over before the run began, if it went on from a checkpoint
        began = seen.before > 0 and warmup is not None and warmup <= seen.before
        rate = values.get("learning_rate")
        if seen.at_horizon and not began:
            if reached_full_rate(run.traces.metrics.rows, rate) is False:
                why = "its warmup was not over when it ended"
                return Health(False, None, why, None, "not healthy: warmup", too_short=True)
        return Health(True)
