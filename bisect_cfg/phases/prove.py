"""Prove: what was shown from a checkpoint, run from step 0 as well, where that is affordable or asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bisect_cfg.configuration import Configuration, Outcome, configuration_of
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.start import Baselines
from bisect_cfg.reports.text import count, duration, since
from bisect_cfg.study.causes import Cause, Report
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.runner import horizon_for
from bisect_cfg.trials.runs import Run, load_run

ASKED, LEFT_OUT = "from-start", "from-checkpoint"
"""What `--prove` says."""


@dataclass(frozen=True)
class _Proof:
    """One run from step 0: its folder, its configuration, what it is to show, and in words."""

    name: str
    configuration: Configuration
    expected: Outcome
    what: str


def prove(context: Context, baselines: Baselines, bad_run: Run, report: Report) -> bool:
    """Run the claims of the answer from step 0, if they were shown from a checkpoint.

    By default they are run where that takes no longer than the search did.

    Args:
        context: of this pass; its runner begins trials at the checkpoint, and does so afterwards.
        baselines: judge runs.
        bad_run: the reproduction.
        report: of the isolation.

    Returns:
        Whether every claim that was run showed the same.
    """
    runner, options = context.runner, context.options
    origin, horizon = runner.known.origin, runner.horizon
    if origin is None or not report.causes or options.prove == LEFT_OUT or options.from_checkpoint is not None:
        return True
    proofs = [proof for number, cause in enumerate(report.causes, 1) for proof in _proofs(context, number, cause)]
    steps, pace = horizon_for(bad_run.seen.step), bad_run.seen.pace or 0.0
    seconds = sum(pace * (steps if proof.expected is Outcome.PASS else bad_run.seen.step) for proof in proofs)
    if options.prove != ASKED and seconds > report.seconds:
        context.note(
            f"Everything was shown {since(origin)}. To prove it from step 0 takes "
            f"{count(len(proofs), 'run')}, about {duration(seconds)}: --prove {ASKED}."
        )
        return True
    context.listener.phase("prove", "running the claims of the answer from step 0")
    runner.begin_at(None, steps)
    try:
        others = list(filter(None, (_other(context, baselines, proof) for proof in proofs)))
    finally:
        runner.begin_at(origin, horizon)
    for text in others:
        context.note(text)
    if not others:
        context.note(f"From step 0 it is the same: {'; '.join(proof.what for proof in proofs)}.")
    return not others


def _proofs(context: Context, number: int, cause: Cause) -> Iterator[_Proof]:
    settings = context.runner.settings
    claims = [("", cause.evidence.fails, Outcome.FAIL, f"fails with only {', '.join(cause.parameters)} changed")]
    claims += [
        (f"-without-{name}", claim, Outcome.PASS, f"passes without {name}")
        for name, claim in cause.evidence.without.items()
    ]
    for suffix, claim, expected, what in claims:
        if claim.subset is not None:
            configuration = configuration_of(claim.subset, settings.good, settings.bad)
            yield _Proof(f"proof-{number}{suffix}", configuration, expected, what)


def _other(context: Context, baselines: Baselines, proof: _Proof) -> str:
    """What a run from step 0 shows that the checkpoint did not; "" if it is the same."""
    run = load_run(context.folder, proof.name)
    if run is None:
        run = context.train(Plan(proof.name, proof.configuration, context.runner.horizon))
    outcome = baselines.outcome_of(run)
    if outcome is proof.expected:
        return ""
    if proof.expected is Outcome.FAIL:
        return (
            f"From step 0 the run that {proof.what} from the checkpoint on does not fail in "
            f"{count(run.seen.steps, 'step')}: the training before, with your other settings, has a part in it."
        )
    return f"From step 0 the run that {proof.what} from the checkpoint on shows {run.seen.failure}."
