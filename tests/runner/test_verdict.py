"""The one judge, and that all who read a verdict read the same one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import traces_of

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.failures.health import RULES, SILENT_KINDS
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.remedy.remedy import Aim, Attempt, Wishes
from bisect_cfg.remedy.terms import Isolated
from bisect_cfg.report.answer_of import failure_of
from bisect_cfg.report.sentences import VERBS
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import (
    SAY_NOTHING,
    Failure,
    Metrics,
    Observation,
    Standard,
    judge,
    trace_of,
)
from bisect_cfg.store.causes import Report
from bisect_cfg.study.study import Study
from bisect_cfg.targets.captured import NOTHING_SEEN
from bisect_cfg.targets.factors import Factors

CRASH, NAN, COLLAPSE = Signature("signal", "SIGFPE"), Signature("non-finite", "parameters"), Signature("collapse")


def rows(*kinds: str) -> list[dict[str, float]]:
    """Metric rows that show these symptoms, each from its own metric."""
    made = [{"step": step, "loss": 0.1, "grad_norm": 1.0, "entropy": 2.0, "reward_std": 0.2} for step in range(1, 13)]
    for at, row in enumerate(made):
        if "collapse" in kinds and at > 2:
            row |= {"entropy": 0.001, "frac_reward_zero_std": 1.0}
        if "non-finite" in kinds and at > 2:
            row |= {"loss": float("nan")}
        if "no-gradient" in kinds:
            row |= {"grad_norm": 0.0}
    return made


deaths = st.sampled_from([None, CRASH, NAN, Signature("exception", "ValueError", "no"), *map(Signature, SAY_NOTHING)])
shown = st.sets(st.sampled_from(["collapse", "non-finite", "no-gradient"]))
failures = st.one_of(
    st.none(), st.builds(Failure, st.sampled_from([CRASH, NAN, COLLAPSE, Signature("non-finite", "loss")]))
)
usual = st.frozensets(st.sampled_from(["collapse", "no-gradient"]))


@given(deaths, shown, failures, usual, st.booleans())
def test_a_pass_shows_nothing_a_failure_is_the_one_under_study_and_only_a_pass_is_healthy(
    died, kinds, failure, usual, compared
) -> None:
    seen = Observation(died, 12, 1.0)
    verdict = judge(seen, Metrics(rows(*kinds)), Standard(failure, usual, good=rows() if compared else None))
    assert (verdict.signature is None) == (verdict.outcome is Outcome.PASS)
    if verdict.outcome is Outcome.FAIL and failure is not None:
        assert failure.includes(verdict.signature) and verdict.signature.kind not in SAY_NOTHING
    if died is not None:
        assert verdict.signature == died, "what a run died of counts before what its metric rows show"
    assert (verdict.healthy is None) == (not compared)
    assert not verdict.healthy or died is None and kinds <= usual
    assert died is not None or kinds or verdict.healthy is not False


def test_what_might_have_come_back_counts_at_the_end() -> None:
    late = [row | {"loss": float("nan") if row["step"] > 9 else 0.1} for row in rows()]
    assert judge(Observation(None, 12, 1.0), Metrics(late)).signature == Signature("non-finite", "loss")


def test_a_collapse_that_comes_before_the_failure_as_well_does_not_hide_it() -> None:
    """The reward of a curriculum falls by design, in the failing run too."""
    seen, collapsed = Observation(None, 12, 1.0), Metrics(rows("collapse"))
    assert judge(seen, collapsed, Standard(Failure(CRASH))).outcome is Outcome.UNRESOLVED
    verdict = judge(seen, collapsed, Standard(Failure(CRASH, despite=frozenset({"collapse"})), good=rows()))
    assert verdict.outcome is Outcome.PASS and verdict.signature is None and verdict.healthy is False


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ("any", {"SIGFPE", "SIGSEGV", "NAN", "SAMPLED", "LOSS", "OTHER"}),
        ("signal", {"SIGFPE", "SIGSEGV"}),
        ("non-finite", {"NAN", "SAMPLED", "LOSS"}),
        ("sig(fpe|segv)", {"SIGFPE", "SIGSEGV"}),
        ("column", {"OTHER"}),
        ("", {"OTHER"}),
    ],
)
def test_what_counts_as_the_failure_if_the_user_says_so(asked: str, counts: set[str]) -> None:
    shown = {
        "SIGFPE": CRASH,
        "SIGSEGV": Signature("signal", "SIGSEGV"),
        "NAN": NAN,
        "SAMPLED": Signature("exception", "RuntimeError", "probability tensor contains either `inf`, `nan`"),
        "LOSS": Signature("non-finite", "loss"),
        "OTHER": Signature("exception", "ValueError", "no such column"),
    }
    failure = Failure(shown["OTHER"], asked=asked)
    assert {name for name, signature in shown.items() if failure.includes(signature)} == counts


@settings(deadline=None)
@given(deaths, shown, failures.filter(bool), usual, usual)
def test_search_phases_safe_values_and_reports_read_the_same_verdict(
    tmp_path_factory, died, kinds, failure, usual, later
) -> None:
    """A run that collapses while a crash is studied was UNRESOLVED to the search and a pass to what proves it. What was
    stored of it is judged anew when more is known of the good run."""
    folder = tmp_path_factory.getbasetemp() / "trials" / "3"
    seen = Observation(died, 12, 1.0, message=str(died or ""))
    run = Run(seen, traces_of(folder, rows=rows(*kinds)), folder, 12, "cold")
    runner = Trials(SimpleNamespace(site=SimpleNamespace(folder=folder.parents[1])))
    runner.standard = Standard(failure, usual)
    study = Study(None, None, None, folder.parents[1], None, None, runner)
    in_search = runner.judged(run)
    assert in_search.outcome is study.outcome_of(run) is runner.classify(in_search)
    stored = replace(in_search, attributes=msgspec.json.decode(msgspec.json.encode(in_search.attributes)))
    runner.standard = Standard(failure, later)
    assert runner.classify(stored) is run.judged(Standard(failure, later)).outcome
    runner.standard = Standard(failure, usual)
    assert in_search.signature == (str(study.verdict_of(run).signature) if in_search.outcome.value != "pass" else None)

    wishes = Wishes()
    runner.known_settings, runner.horizon = Factors(NOTHING_SEEN, ()), 12
    good = Run(replace(seen, died=None), traces_of(folder.with_name("good"), rows=rows()), folder)
    isolated = Isolated(runner, Report("isolated"), good, good, wishes)
    healthy = isolated.health_of(run, Attempt({}, 0, 12, Aim.RESET, "")).healthy
    assert not healthy or run.judged(Standard(failure)).outcome is Outcome.PASS

    told = failure_of(run)
    assert (told is None) == (run.shown.signature is None) == (run.shown.outcome is Outcome.PASS)
    assert told is None or told.signature == str(run.shown.signature)


# ------------------------------------------------------------------------------------------- traces


@given(st.sampled_from([CRASH, NAN, Signature("exception", "ValueError", "no")]), st.integers(1, 12))
def test_equal_runs_have_equal_traces_and_one_bit_tells_them_apart(died, steps) -> None:
    seen, made = Observation(died, steps, 1.0), rows()[:steps]
    timed = [{**row, "time": 17.0 + row["step"]} for row in made]
    other = [*made[:-1], {**made[-1], "grad_norm": made[-1]["grad_norm"] + 2**-52}]
    assert trace_of(seen, Metrics(made)) == trace_of(seen, Metrics(timed)) != ""
    assert trace_of(seen, Metrics(other)) not in ("", trace_of(seen, Metrics(made)))


NO_TRACE = (Signature("hang"), Signature("out-of-memory", "GPU"), Signature("signal", "SIGKILL", "killed from outside"))


@pytest.mark.parametrize(("died", "made"), [*((one, rows()) for one in (*NO_TRACE, None)), (CRASH, [])])
def test_where_nothing_follows_from_metrics_there_is_no_trace(died, made) -> None:
    assert trace_of(Observation(died, len(made), 1.0), Metrics(made)) == ""


def test_of_a_silent_failure_the_trace_ends_where_it_is_certain() -> None:
    """How long a run goes on after that depends on when somebody looks."""
    seen, long = Observation(None, 12, 1.0), rows("collapse")
    certain = judge(seen, Metrics(long)).step
    whole = trace_of(seen, Metrics(long))
    assert whole == trace_of(seen, Metrics(long[:certain])) != ""
    changed = [{**row, "loss": 0.2} if row["step"] == certain + 1 else row for row in long]
    assert trace_of(seen, Metrics(changed)) == whole


def test_every_kind_of_the_table_has_its_words_where_it_is_shown() -> None:
    assert set(SILENT_KINDS) | {"non-finite"} == {rule.kind for rule in RULES if rule.failure}
    assert all(VERBS[rule.kind] == rule.words for rule in RULES if rule.failure)


REWARD = Signature("non-finite", "reward")
SAMPLED = Signature("exception", "RuntimeError", "probability tensor contains either `inf`, `nan` or element < #")


@pytest.mark.parametrize(("died", "shown", "outcome"), [
    (None, REWARD, Outcome.FAIL), (NAN, REWARD, Outcome.FAIL), (SAMPLED, REWARD, Outcome.FAIL),
    (CRASH, CRASH, Outcome.UNRESOLVED),
])  # fmt: skip
def test_an_infinite_reward_is_the_same_failure_whatever_it_leads_to(died, shown, outcome):
    """... which depends on the completions of the step: in one trial the weights break, another survives it."""
    seen = Observation(died, 12, 1.0, non_finite_at=7 if died is NAN else None)
    broken = [{**row, "reward": float("inf") if row["step"] == 5 else 0.3} for row in rows()]
    verdict = judge(seen, Metrics(broken), Standard(Failure(REWARD, silent=True)))
    assert (verdict.signature, verdict.outcome) == (shown, outcome)
    if shown is REWARD:
        assert (verdict.step, verdict.message, verdict.silent) == (5, "reward is inf", True)
    assert judge(seen, Metrics(rows()), Standard(Failure(REWARD, silent=True))).outcome is not Outcome.FAIL
    assert judge(seen, Metrics(broken), Standard(Failure(NAN))).outcome is (
        Outcome.FAIL if died is NAN else Outcome.UNRESOLVED if died else Outcome.PASS
    )
