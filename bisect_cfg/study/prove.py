"""Prove: what was shown from a checkpoint, run from step 0 as well, where that is affordable or asked for; and a claim
about a random failure, with a placebo: a setting that can change no outcome.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bisect_cfg.common.configuration import Configuration, Outcome, Purpose, Status, configuration_of, present
from bisect_cfg.common.parameters import every, parameter
from bisect_cfg.common.words import count, duration
from bisect_cfg.report.sentences import since
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.trials import horizon_for
from bisect_cfg.runner.verdict import REFUSED
from bisect_cfg.store.causes import Cause, Report
from bisect_cfg.study.baselines import with_defaults_of_the_moved
from bisect_cfg.study.factors import find_factors
from bisect_cfg.study.loop import Spent
from bisect_cfg.study.origin import give_up_origin
from bisect_cfg.study.study import Phase, Study

ASKED, LEFT_OUT = "from-start", "from-checkpoint"
"""What `--prove` says."""

PLACEBO_RUNS = 12
"""So many runs with a placebo at most, of a configuration that fails and of one that passes: a failure that shows in
fewer than a fifth of its runs would take more to be missed."""


@dataclass(frozen=True)
class _Proof:
    """One run from step 0: its question, its configuration, what it is to show, in words, its most steps, its seconds.

    Its steps may take more or less data than the user's: it comes to the failing data where the trials did that the
    claim rests on."""

    question: str
    configuration: Configuration
    expected: Outcome
    what: str
    steps: int
    seconds: float


def prove(study: Study) -> Phase | None:
    """Run the claims of the answer from step 0, if they were shown from a checkpoint.

    By default they are run where that takes no longer than the search did. What step 0 contradicts is searched for
    again from an earlier origin, if there is one.
    """
    proven = _proven(study)
    report, bad_run = present(study.answer.report), present(study.answer.bad_run)
    study.find(proven=proven)
    if proven is False:
        if _always_showed(report) and give_up_origin(study, bad_run):
            study.bisection = None
            study.find(status=Status.INCONCLUSIVE, report=None, details={}, proven=None)
            return find_factors
        report = replace(report, complete=False)
    study.find(report=with_defaults_of_the_moved(study, report))
    _try_placebo(study)
    return None


def _proven(study: Study) -> bool | None:
    """Whether every claim showed the same from step 0; None if they were not run."""
    trials, options, report = study.trials, study.options, present(study.answer.report)
    origin, horizon = trials.origin, trials.horizon
    refused = trials.standard.failure is not None and trials.standard.failure.signature.kind == REFUSED
    if origin is None or not report.causes or options.prove == LEFT_OUT or refused:
        return None
    proofs = [proof for number, cause in enumerate(report.causes, 1) for proof in _proofs(study, number, cause)]
    seconds = sum(proof.seconds for proof in proofs)
    if options.prove != ASKED and (options.from_checkpoint is not None or seconds > report.seconds):
        study.note(
            f"Everything was shown {since(origin)}. To prove it from step 0 takes "
            f"{count(len(proofs), 'run')}, about {duration(seconds)}: --prove {ASKED}."
        )
        return None
    study.listener.phase("prove", "running the claims of the answer from step 0")
    trials.begin_at(None)
    try:
        shown = [_shown(study, proof) for proof in proofs]
    except Spent as spent:
        study.note(f"{spent} Not all claims were run from step 0; everything was shown {since(origin)}.")
        return None
    finally:
        trials.begin_at(origin, horizon)
    if all(agrees for agrees, _ in shown):
        study.note(f"From step 0 it is the same: {'; '.join(text for _, text in shown)}.")
        return True
    for agrees, text in shown:
        if not agrees:
            study.note(text)
    if any(agrees is False for agrees, _ in shown):
        return False
    study.note(f"So not all claims could be seen from step 0; everything was shown {since(origin)}.")
    return None


def _always_showed(report: Report) -> bool:
    """Whether every run of the claims came out as claimed: then one from step 0 that does not is no chance."""
    return all(
        claim.seen == claim.runs
        for cause in report.causes
        for claim in (cause.evidence.fails, *cause.evidence.without.values())
    )


def _proofs(study: Study, number: int, cause: Cause) -> Iterator[_Proof]:
    settings, details, rejected = study.settings, study.answer.details, len(study.state.rejected)
    seconds_of = {row.number: row.seconds or 0.0 for row in present(study.answer.report).rows}
    again = f"-again-{rejected}" if rejected else ""
    claims = [("", cause.evidence.fails, Outcome.FAIL, f"fails with only {', '.join(cause.parameters)} changed")]
    claims += [
        (f"-without-{name}", claim, Outcome.PASS, f"passes without {name}")
        for name, claim in cause.evidence.without.items()
    ]
    for suffix, claim, expected, what in claims:
        if claim.subset is None or not claim.trials:
            continue
        configuration = configuration_of(claim.subset, settings.good, settings.bad)
        made = [(seen["before"], seen["steps"]) for n in claim.trials if (seen := details[n]["observation"])]
        reached = max(before + steps for before, steps in made) + (expected is Outcome.FAIL)
        pace = sum(seconds_of[trial] for trial in claim.trials) / max(sum(steps for _, steps in made), 1)
        limit = horizon_for(reached) if expected is Outcome.FAIL else reached
        yield _Proof(f"proof-{number}{suffix}{again}", configuration, expected, what, limit, reached * pace)


def _shown(study: Study, proof: _Proof) -> tuple[bool | None, str]:
    """Whether a run from step 0 shows what the trials from later on did, and what it shows. None where it ends in
    another failure, which says nothing of the one under study."""
    run = study.made(Plan(proof.question, proof.configuration, proof.steps, purpose=Purpose.CHECK))
    verdict, fails = study.verdict_of(run), proof.expected is Outcome.FAIL
    if verdict.outcome is proof.expected:
        return True, proof.what + (f", at step {run.shown.step}" if fails else "")
    what = f"From step 0 the run that {proof.what} from later on"
    if verdict.outcome is Outcome.UNRESOLVED:
        return None, f"{what} shows {verdict.signature}, which tells nothing of it."
    if fails:
        steps = count(run.seen.steps, "step")
        return (
            False,
            f"{what} does not fail in {steps}: the training before, with your other settings, contributes to it.",
        )
    return False, f"{what} shows {verdict.signature}."


# --------------------------------------------------------------------------------------------------------- placebos


def _try_placebo(study: Study) -> None:
    """Where the failure showed itself random, toggle a setting that can change nothing: what fails still fails, in one
    of so many runs that all would pass by chance too rarely, and what passes still passes in as many. If not, it is
    something about the runs that decides, and the answer says so."""
    report, settings = present(study.answer.report), study.settings
    rate = report.reproduction.rate or 1.0
    if not report.causes or rate >= 1 or not settings.seen:
        return
    name = next(name for name, known in every().items() if known.placebo)
    now, runs = settings.capture.args.resolved.get(name), _runs_to_miss(rate, study.options.confidence)
    if not isinstance(now, bool) or runs > PLACEBO_RUNS:
        return
    fails, without = report.causes[0].evidence.fails, report.causes[0].evidence.without
    cause, passes = " and ".join(report.causes[0].parameters), next(iter(without.values()))
    study.listener.phase("prove", f"trying a placebo ({name}): it can change nothing")
    try:
        for claim, expected, otherwise in (
            (fails, Outcome.FAIL, f"none of {count(runs, 'run')} with {cause} failed"),
            (passes, Outcome.PASS, f"a run without {next(iter(without))} failed"),
        ):
            configuration = configuration_of(claim.subset or (), settings.good, settings.bad)
            failed = _fails_among(study, f"placebo-{expected.value}", {**configuration, name: not now}, runs)
            if claim.subset is not None and failed != (expected is Outcome.FAIL):
                study.find(status=Status.INCONCLUSIVE, placebo=_told(name, not now, otherwise))
                study.find(report=replace(report, status=Status.INCONCLUSIVE, complete=False))
                return
    except Spent as spent:
        study.note(f"{spent} No placebo was tried to the end.")


def _told(name: str, value: bool, otherwise: str) -> str:
    return (
        f"A placebo changed the outcome: with {name}={value}, which can change nothing ({parameter(name).why}), "
        f"{otherwise}. So something about this machine or the runs decides, perhaps no setting: first look for what "
        "else runs here, and at what differs between two runs of one configuration."
    )


def _runs_to_miss(rate: float, confidence: float) -> int:
    """After so many passes of what fails at this rate, that rate is not believed any more."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - rate))


def _fails_among(study: Study, question: str, configuration: Configuration, runs: int) -> bool:
    """Whether one of so many runs fails."""
    plans = (
        Plan(f"{question}-{number}", configuration, study.trials.horizon, purpose=Purpose.CHECK)
        for number in range(1, runs + 1)
    )
    return any(study.outcome_of(study.made(plan)) is Outcome.FAIL for plan in plans)
