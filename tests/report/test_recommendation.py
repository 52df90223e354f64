"""The recommendation as data: one form for every remedy, and only what was seen in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec import structs

from bisect_cfg.remedy.proposals import Safe
from bisect_cfg.remedy.remedy import Proposal, Range, Remedy, RemedyStatus
from bisect_cfg.remedy.schedule import Prefix
from bisect_cfg.report.answer import KnownIssue, Recommendation
from bisect_cfg.report.recommendation import first_of_all, recommendation_of, title_of, write_safe_config
from bisect_cfg.rewrite.recommended import Change
from bisect_cfg.store.causes import Claim
from tests.report import made

ISSUE = KnownIssue("h20", "", cures=("Install nvidia-cublas-cu12 12.4.5.8 or later.",), environment=True)
RATE = Range(1e-6, 1e-3, 1e-4, 2e-4, True, (7, 8), "entropy fell")
RESET = Remedy(
    Proposal({"bf16": False}, resets=("bf16",)), {"bf16": False}, RemedyStatus.VERIFIED, (), (5, 6), 30, tried=True
)
FP16 = Proposal({"bf16": False, "beta": 0.1}, (), "as fast", "measured", merit=0)
OTHER = Remedy(FP16, FP16.changes, RemedyStatus.OPEN)


def found(folder: Path, *remedies: Remedy, **changes: object) -> Recommendation | None:
    safe = Safe(remedies, seeds=(42, 43), full_rate=Prefix(30, 0, False), **changes)
    return recommendation_of(made.findings(folder, safe=safe))


def test_an_environment_at_fault_is_said_first():
    words = first_of_all([made.CAUSE], ISSUE)
    assert "12.4.5.8" in words and "keep bf16" in words and "workaround" in words
    assert (
        first_of_all([made.CAUSE], structs.replace(ISSUE, environment=False)) == "" == first_of_all([made.CAUSE], None)
    )


def test_a_verified_remedy_and_one_that_nobody_has_tried(tmp_path):
    told = found(tmp_path, RESET, OTHER)
    assert told.verified and told.status == "verified" and told.configuration["bf16"] is False
    assert told.evidence == Claim(None, 2, 2, (5, 6)) and told.seeds == (42, 43)
    assert told.failure_rate_at_most == pytest.approx(1 - 0.05**0.5, abs=1e-4)
    assert [(edit.line, edit.old, edit.new) for edit in told.edits] == [(4, "    bf16=True,", "    bf16=False,")]
    assert told.full_rate == "at the full learning rate from the first step"
    (other,) = told.alternatives
    assert (other.status, other.verified, other.why, other.source) == ("untried", False, "as fast", "measured")
    assert other.changes == {"bf16": Change(True, False), "beta": Change(0.0, 0.1)} and other.evidence.trials == ()


def test_a_range_is_kept_as_it_was_seen(tmp_path):
    healthy = found(
        tmp_path,
        dataclasses.replace(RESET, status=RemedyStatus.HEALTHY, passed=(), ranges={"learning_rate": RATE}),
        OTHER,
    )
    known = healthy.ranges["learning_rate"]
    assert (known.healthy_up_to, known.not_from, known.trials) == (1e-4, 2e-4, (7, 8)) and not healthy.verified


def test_without_the_phase_it_is_the_correction_that_passed(tmp_path):
    told = recommendation_of(made.findings(tmp_path))
    assert told.changes == {"bf16": Change(True, False)} and not told.verified and told.status is None
    assert told.evidence == Claim(("learning_rate",), 1, 1, (3,))
    assert told.steps == 10 and title_of(told).endswith("(short runs, not verified).")


def test_the_files_of_a_recommendation_come_and_go_with_it(tmp_path):
    findings = made.findings(tmp_path)
    write_safe_config(findings, recommendation_of(findings))
    assert "bf16: false" in (tmp_path / "safe_config.yaml").read_text()
    assert "+    bf16=False," in (tmp_path / "safe_config.diff").read_text()
    write_safe_config(findings, None)
    assert not list(tmp_path.glob("safe_config.*"))


def test_a_correction_that_did_not_always_pass_is_no_evidence(tmp_path):
    (correction,) = made.REPORT.corrections
    doubted = structs.replace(correction, passes=structs.replace(correction.passes, seen=1, runs=2))
    report = dataclasses.replace(
        made.REPORT, corrections=(doubted,), safe_configuration={"bf16": False, "learning_rate": 1e-6}
    )
    told = recommendation_of(made.findings(tmp_path, report=report))
    assert told.changes.keys() == {"bf16", "learning_rate"} and told.evidence is None


def test_a_reset_that_was_not_run_in_this_phase_rests_on_the_search(tmp_path):
    told = found(tmp_path, dataclasses.replace(RESET, status=RemedyStatus.OPEN, passed=(), tried=False))
    assert told.status == "open" and told.evidence.trials == (3,)
    assert title_of(told).endswith("(short runs, not verified).")


def test_only_short_runs_say_so_in_the_file(tmp_path):
    healthy = dataclasses.replace(RESET, status=RemedyStatus.HEALTHY, passed=())
    assert "NOT VERIFIED" in title_of(found(tmp_path, healthy)) and "NOT" not in title_of(found(tmp_path, RESET))


def test_an_alternative_that_nobody_ran_is_no_recommendation(tmp_path):
    assert found(tmp_path, OTHER) is None
    assert recommendation_of(made.findings(tmp_path, report=None)) is None


def test_what_is_not_settled_is_said_of_what_was_begun(tmp_path):
    begun = dataclasses.replace(RESET, status=RemedyStatus.HEALTHY, passed=(), unsettled=("whether it trains on",))
    never = dataclasses.replace(OTHER, unsettled=("whether it trains on",))
    assert found(tmp_path, begun, never, spent="Stopped.").unsettled == ("Stopped.", "bf16: whether it trains on")
    assert found(tmp_path, begun, never).unsettled == ()


def test_a_wish_that_was_not_met(tmp_path):
    assert found(tmp_path, RESET, keep=frozenset({"bf16", "beta"})).not_kept == ("bf16",)
