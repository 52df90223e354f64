"""One isolated script as safe values need it: where its remedies begin, what a run of it says.

What `recommend.remedy` decides from is put together here, from the study, the captured settings and the installed
library: the search ranges with their valid values, the alternatives that this script can be given, what the search has
shown already; and here a run is judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bisect_cfg.common.configuration import Configuration, Outcome, Purpose, Value, equal
from bisect_cfg.common.failures import drift
from bisect_cfg.common.parameters import canonical, parameter
from bisect_cfg.common.parameters.comparing import plain
from bisect_cfg.recommend.alternatives import Alternative, alternatives_for
from bisect_cfg.recommend.attempts import Aim, Attempt, Ran, key_of
from bisect_cfg.recommend.order import Budget
from bisect_cfg.recommend.proposals import proposals_for
from bisect_cfg.recommend.remedy import Proposal, Terms
from bisect_cfg.recommend.schedule import Prefix, left_out, prefix_for, total_steps, warmup_of
from bisect_cfg.recommend.search_range import SearchRange, search_range_of
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import INVALID, Ended, Verdict
from bisect_cfg.store.causes import Cause, Report
from bisect_cfg.targets.captured import entries
from bisect_cfg.targets.factors import DEFAULT, build_request

VERIFY_FACTOR = 4
VERIFY_LEAST = 30
"""A verification runs for four horizons, 30 steps at least: long enough that what only begins in a trial shows, short
enough to be paid for three times. `--verify-steps` asks for more."""

UNCOUNTED = 1
"""The length of a run that prints no metrics: it is one thing, done or not."""

DEFAULT_SEED = 42
"""transformers' default, for a training config that does not say."""


@dataclass(frozen=True)
class Wishes:
    """What the user may say about this phase; see `bisect-cfg recommend --help`."""

    margin: float
    ratio: float
    verify_steps: int | None
    verify_seeds: int
    remedies: int | None  # verify so many remedies; None: one, and others for as long as the isolation took
    keep: tuple[str, ...]
    jobs: int
    cures: tuple[Alternative, ...]  # of the known failure that this is


@dataclass(frozen=True)
class Health:
    """Whether a run was healthy, and if not, since when and why.

    Attributes:
        healthy: whether it was.
        died: what it did, if it did not come to its end.
        why: of one that came to its end, what its metrics show; of a configuration that cannot be built, the library's
            own words.
        failed_at: the optimizer step at which it went wrong.
        signature: what makes two of them the same, for the study.
        too_short: nothing is wrong with it but that it ended before it met the full learning rate.
    """

    healthy: bool
    died: Verdict | None = None
    why: str = ""
    failed_at: int | None = None
    signature: str | None = None
    too_short: bool = False


@dataclass(frozen=True)
class Given:
    """What safe values are looked for with, known before their first run.

    Attributes:
        terms: what does not change while the remedies are followed.
        proposals: where they begin.
        budget: what looking for them may cost.
        known: what runs of the search say of them.
    """

    terms: Terms
    proposals: Sequence[Proposal]
    budget: Budget
    known: Sequence[Ran]


class IsolatedScript:
    """A script whose failure is isolated.

    What it has as methods differs for a command of any kind (`bisect_cfg.recommend.isolated_command`).

    Args:
        trials: of the study, with their settings and horizon known.
        report: of the bisection; its status is "isolated".
        bad_run: the reproduction.
        good_run: the good baseline, which healthy is measured against.
        wishes: of the user.
        folder_of: trial number of the search -> name of its folder.
    """

    def __init__(
        self,
        trials: Trials,
        report: Report,
        bad_run: Run,
        good_run: Run,
        wishes: Wishes,
        folder_of: Callable[[int], str],
    ) -> None:
        self._trials, self._wishes = trials, wishes
        # What somebody asked besides is no part of it, and may have had values that no factor tells.
        self._report = replace(report, rows=tuple(row for row in report.rows if row.purpose is not Purpose.ASKED))
        self._settings = trials.settings
        self._good_run = good_run
        standard = trials.standard.with_usual(good_run.shown)
        self._standard = replace(standard, good=good_run.traces.metrics.rows)
        self._total = total_steps(bad_run.traces)
        self._resolved = dict(self._settings.resolved)
        self._folder_of = folder_of
        self._horizon = trials.horizon or 1
        self._verify_steps = wishes.verify_steps or max(VERIFY_FACTOR * self._horizon, VERIFY_LEAST)
        self._counted = good_run.seen.counted
        if not self._counted:
            self._horizon = self._verify_steps = UNCOUNTED

    # ---------------------------------------------------------------------------------------- where to begin

    def given(self) -> Given:
        """All that is known before the first run."""
        proposals = self.proposals()
        return Given(self.terms(), proposals, self.budget(), self.known(proposals))

    def terms(self) -> Terms:
        """What the plan needs to know."""
        bad = self._settings.bad
        whole = [row for row in self._report.rows if all(equal(row.values[name], bad[name]) for name in bad)]
        fails = {row.number for row in whole if row.outcome is Outcome.FAIL}
        for cause in self._report.causes:
            fails |= set(cause.evidence.fails.trials)
        passes = sum(row.outcome is Outcome.PASS for row in whole)
        return Terms(
            bad,
            lambda configuration, steps: self.prefix(configuration, steps).steps,
            self._horizon,
            self._verify_steps,
            self._wishes.verify_seeds,
            lambda configuration: self._trials.is_valid(configuration) is None,
            self._wishes.margin,
            (passes, max(1, len(fails))),
        )

    def proposals(self) -> list[Proposal]:
        """Where the remedies begin. A search that stopped at the first cause has tested no correction; what it knows to
        pass takes its place."""
        report, settings = self._report, self._settings
        causes = [cause.parameters for cause in report.causes]
        tested = [c for c in report.corrections if c.passes.subset is not None and c.passes.seen == c.passes.runs > 0]
        corrections = [correction.parameters for correction in tested]
        if not corrections and report.safe_configuration is not None:
            safe = report.safe_configuration
            corrections = [tuple(name for name in safe if not equal(safe[name], settings.bad[name]))]
        return proposals_for(
            settings.good,
            settings.bad,
            causes,
            corrections,
            self.search_range,
            [self.alternatives(cause) for cause in report.causes],
            self._wishes.keep,
            self.identity,
        )

    def identity(self, changes: Configuration) -> str | None:
        """What the user's configuration with these changes comes to, as the library resolves it; None if it cannot be
        built. Equal for ``model.dtype`` at its default and at float32, where the model is loaded so by default."""
        settings = self._settings
        overrides = settings.overrides({**settings.bad, **changes})
        answer = self._trials.site.checks.resolve(build_request(settings.capture.args, overrides))
        if answer.error is not None:
            return None
        values = {name: value for name, value in answer.values.items() if not parameter(name).pinned}
        rest = {name: value for name, value in overrides.items() if not name.startswith("args.")}
        if rest.get("model.dtype", "") in (None, DEFAULT):
            rest["model.dtype"] = self._dtype_by_default()
        loaded = dict(entries(values.get("model_init_kwargs")) or {})
        given = loaded.pop("torch_dtype", None) or loaded.pop("dtype", None)
        # What a training config's own dtype is by default is known only once a model is loaded: its file may say.
        own = (name for name in settings.bad if name.startswith("model_init_kwargs."))
        if given or any(canonical(name) == "model.dtype" for name in own):
            values["model_init_kwargs"] = {**loaded, "dtype": plain(given or self._dtype_by_default())}
        return json.dumps([values, rest], sort_keys=True, default=repr)

    def _dtype_by_default(self) -> str | None:
        """The dtype of the weights when nobody sets it, as the good run showed it; None if it does not tell."""
        begun = self._good_run.traces.begun
        return (begun.dtype or None) if begun is not None else None

    def budget(self) -> Budget:
        """What the remedies after the first may cost: as long again as isolating the cause took. The first run of all
        is left out, which is cold and waits for imports."""
        rows = [row for row in self._report.rows if row.purpose is not Purpose.BAD_BASELINE]
        seen = self._good_run.seen
        return Budget(
            sum(row.seconds for row in rows),
            seen.seconds / max(1, self.length(self._good_run)),
            self._wishes.remedies,
            self._wishes.jobs,
        )

    def search_range(self, name: str, changes: Configuration) -> SearchRange | None:
        """The values of a setting worth trying, with these changes to the user's configuration; see `Mover`."""
        factor = next(factor for factor in self._settings.varied if factor.name == name)
        if factor.kind in ("launch", "env", "packages"):
            return None  # as the user launches it, or as in the good configuration
        kind = self._settings.capture.args.types.get(name, "") if factor.kind == "args" else ""
        rest = {**self._settings.bad, **changes}
        return search_range_of(
            name,
            factor.good,
            factor.bad,
            ratio=self._wishes.ratio,
            whole=False if "float" in kind and "int" not in kind and "steps" not in name else None,
            is_valid=lambda value: self._trials.is_valid({**rest, name: value}) is None,
        )

    def alternatives(self, cause: Cause) -> list[Alternative]:
        """Known alternatives that this script can be given and this library accepts."""
        settings = self._settings
        values = {name: (levels["good"], levels["bad"]) for name, levels in cause.values.items()}
        fields = settings.capture.args.types
        offers = alternatives_for(values, {**self._resolved, **settings.bad}, fields)
        loads = any(kind in settings.capture.others for kind in ("load", "modelcfg"))
        names = {factor.name for factor in settings.varied}
        kept = list(self._wishes.cures)
        for offer in offers:
            changes = {name.removeprefix("args."): value for name, value in offer.settings.items()}
            settable = all(
                name in names or name.split(".")[0] in fields or (loads and name.startswith("model."))
                for name in changes
            )
            if settable and self._trials.is_valid({**settings.bad, **changes}) is None:
                kept.append(Alternative(changes, offer.why, offer.source))
        return kept

    def known(self, proposals: Sequence[Proposal]) -> list[Ran]:
        """Runs of the search that say something about the beginning of a remedy."""
        wanted = {key_of({**self._settings.bad, **proposal.changes}, 0) for proposal in proposals}
        found = []
        for row in self._report.rows:
            configuration = {name: row.values[name] for name in self._settings.bad}
            if key_of(configuration, 0) not in wanted or row.outcome is not Outcome.PASS:
                continue
            run = self._trials.site.load(self._folder_of(row.number))
            if run is None:
                continue
            steps = self.length(run)
            shown = self.health_of(run, Attempt(configuration, 0, steps, Aim.RESET, ""))
            if not shown.too_short:
                found.append(Ran(configuration, 0, steps, shown.healthy, row.number, shown.failed_at, shown.why))
        return found

    def length(self, run: Run) -> int:
        """Steps of a run."""
        return run.seen.steps if self._counted else UNCOUNTED

    def ordered(self, question: Attempt) -> tuple[Configuration, int | None]:
        """What is to be run, with its seed and the schedule that it needs, and for how many steps."""
        configuration = dict(question.configuration)
        if self.prefix(question.configuration, question.steps).skipped:
            configuration |= left_out(self.values(question.configuration))
        if question.seed:
            configuration["seed"] = self.seed(question.seed)
        return configuration, question.steps

    def values(self, configuration: Configuration) -> dict[str, Value]:
        """The training config's settings under a configuration, by bare name."""
        return {**self._resolved, **configuration}

    def prefix(self, configuration: Configuration, steps: int) -> Prefix:
        """How a run of a configuration that wants so many steps meets the full learning rate."""
        return prefix_for(self.values(configuration), self._total, steps, self._horizon, self._good_run.seen.before)

    def seed(self, number: int) -> int:
        """The seed itself: 0 is the user's own."""
        base = self._resolved.get("seed")
        return (base if isinstance(base, int) else DEFAULT_SEED) + number

    # ---------------------------------------------------------------------------------------- what a run says

    def health_of(self, run: Run, attempt: Attempt) -> Health:
        """Whether a run was healthy."""
        seen, values = run.seen, self.values(attempt.configuration)
        verdict = run.judged(replace(self._standard, scaler=values.get("fp16") is True))
        if seen.invalid:
            return Health(False, None, f"cannot be built: {seen.died.message.rstrip('.')}", 0, INVALID)
        if seen.died is not None:
            return Health(False, verdict, "", verdict.step or 0, str(seen.died))
        if verdict.wrong is not None:
            return Health(False, None, verdict.wrong.text, verdict.wrong.step, f"not healthy: {verdict.wrong.metric}")
        cut_off = seen.ended is Ended.HORIZON
        warmup = warmup_of(values, self._total)  # over before the run began, if it went on from a checkpoint
        began = seen.before > 0 and warmup is not None and warmup <= seen.before
        rate = values.get("learning_rate")
        if cut_off and not began and drift.reached_full_rate(run.traces.metrics.rows, rate) is False:
            why = "its warmup was not over when it ended"
            return Health(False, None, why, None, "not healthy: warmup", too_short=True)
        return Health(True)
