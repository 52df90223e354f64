"""What people read of a recommendation: the library's fault first, and verified only what is."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from bisect_cfg.reports.recommendation import first_of_all
from bisect_cfg.reports.safe_values import print_recommendation

ISSUE = {"environment": True, "cures": ["Install nvidia-cublas-cu12 12.4.5.8 or later."]}


def found(**changes):
    return {
        "configuration": {"bf16": False},
        "changes": {"bf16": {"from": True, "to": False}},
        "verified": True,
        "status": "verified",
        "evidence": {"seen": 3, "runs": 3, "trials": [7, 8, 9]},
        "steps": 30,
        "failure_rate_at_most": 0.6316,
        "ranges": {},
        "full_rate": "at the full learning rate from the first step",
        "published": {},
        "edits": [{"file": "train.py", "line": 3, "old": "bf16=True,", "new": "bf16=False,", "settings": ["bf16"]}],
        "first": "",
        "alternatives": [],
        "unsettled": [],
        **changes,
    }


def printed(recommendation, *, kind="signal", parameters=None) -> str:
    out = io.StringIO()
    answer = SimpleNamespace(safe=None, report=None, folder=Path("s"), details={})
    result = {
        "recommendation": recommendation,
        "horizon": 12,
        "failure": {"kind": kind},
        "causes": [{"parameters": parameters or {"bf16": {"good": False, "bad": True}}}],
    }
    print_recommendation(Console(file=out, width=200, no_color=True), answer, result)
    return out.getvalue()


def test_an_environment_at_fault_is_said_first():
    causes = [SimpleNamespace(parameters=("bf16",))]
    words = first_of_all(causes, ISSUE)
    assert "12.4.5.8" in words and "keep bf16" in words and "workaround" in words
    assert first_of_all(causes, {**ISSUE, "environment": False}) == "" == first_of_all(causes, None)
    text = printed(found(first=words))
    assert text.index("12.4.5.8") < text.index("Use instead")


def test_verified_ones_say_what_that_excludes():
    text = printed(found())
    assert "Use instead  bf16: False" in text and "3 of 3 runs" in text and "63%" in text and "train.py:3" in text


def test_unverified_ones_are_never_printed_as_verified():
    text = printed(found(verified=False, status="healthy", unsettled=["Stopped.", "bf16: whether it trains on"]))
    assert "Use instead" not in text and "Not verified" in text and "Not settled: bf16" in text
    rejected = found(
        verified=False, status="rejected", rejected="grad_norm is inf", changes={"lr": {"from": 1, "to": 2}}
    )
    text = printed(found(alternatives=[rejected]))
    assert "Or  " not in text and "Not recommended  lr: 2   grad_norm is inf" in text


def test_a_reset_that_only_delays_a_silent_failure_says_so():
    rejected = found(verified=False, status="rejected", rejected="learns nothing", changes={"lr": {"from": 2, "to": 1}})
    pair = {"lr": {"good": 1, "bad": 2}, "beta": {"good": 0.0, "bad": 0.1}}
    advice = "may only delay the failure"
    assert advice in printed(found(alternatives=[rejected]), kind="collapse", parameters=pair)
    assert advice not in printed(found(alternatives=[rejected]), kind="signal", parameters=pair)
    assert advice not in printed(found(alternatives=[rejected]), kind="collapse", parameters={"lr": pair["lr"]})


def test_a_wish_that_could_not_be_met_is_said():
    assert "No remedy was found that leaves bf16 as it is." in printed(found(not_kept=["bf16"]))
    assert "No remedy was found" not in printed(found(not_kept=[]))


def test_a_line_that_is_added_is_shown_alone():
    edit = {"file": "train.py", "line": 4, "old": "", "new": "    adam_epsilon=1e-06,", "settings": ["adam_epsilon"]}
    assert "add adam_epsilon=1e-06" in printed(found(edits=[edit]))


def test_what_could_not_be_placed_is_said_with_what_to_write():
    missing = {"setting": "lr", "why": "train.py:3 computes it: lr=2 * rate", "add": "write lr=0.1 there"}
    assert "lr: train.py:3 computes it: lr=2 * rate; write lr=0.1 there." in printed(found(unplaced=[missing]))
