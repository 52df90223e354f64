"""What people read about safe values: what comes first, only what is verified as verified, and what was seen."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bisect_cfg.remedy.alternatives import published_for
from bisect_cfg.remedy.schedule import Prefix
from bisect_cfg.reports import safe_values
from bisect_cfg.reports.safe_values import print_recommendation

AT_ONCE = Prefix(12, 0, False)


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


def printed(recommendation, *, kind="signal", parameters=None, full_rate=AT_ONCE) -> str:
    out = io.StringIO()
    answer = SimpleNamespace(safe=SimpleNamespace(full_rate=full_rate), report=None, folder=Path("s"), details={})
    result = {
        "recommendation": recommendation,
        "horizon": 12,
        "failure": {"kind": kind},
        "causes": [{"parameters": parameters or {"bf16": {"good": False, "bad": True}}}],
    }
    print_recommendation(Console(file=out, width=400, no_color=True), answer, result)
    return out.getvalue()


def test_verified_ones_say_what_that_excludes():
    text = printed(found())
    assert "Use instead  bf16: False" in text and "3 of 3 runs" in text and "63%" in text and "train.py:3" in text


def test_how_the_runs_met_the_full_rate_is_said_where_there_is_a_warmup():
    assert "warmup" not in printed(found())
    assert "The runs went through the warmup of 20 steps and 12 beyond." in printed(
        found(), full_rate=Prefix(32, 20, False)
    )
    assert "without the warmup of 205 steps." in printed(found(), full_rate=Prefix(30, 205, True))


def test_what_is_first_of_all_comes_first():
    text = printed(found(first="Install nvidia-cublas-cu12 12.4.5.8."))
    assert text.index("First  Install nvidia-cublas-cu12 12.4.5.8.") < text.index("Use instead")


def test_unverified_ones_are_never_printed_as_verified():
    text = printed(found(verified=False, status="healthy", unsettled=["Stopped.", "bf16: whether it trains on"]))
    assert "Use instead" not in text and "Not verified" in text and "Not settled: bf16" in text
    rejected = found(
        verified=False, status="rejected", rejected="grad_norm is inf", changes={"lr": {"from": 1, "to": 2}}
    )
    text = printed(found(alternatives=[rejected]))
    assert "Or  " not in text and "Not recommended  lr: 2   grad_norm is inf" in text


def test_what_is_known_and_not_verified_comes_with_the_command_that_runs_it():
    untried = found(verified=False, status="untried", changes={"lr": {"from": 1, "to": 2}})
    assert "Known, not verified  lr: 2   (bisect-cfg recommend s --remedies 2 runs them)" in printed(
        found(alternatives=[untried])
    )


def test_what_passed_in_the_search_alone_is_said_once_to_be_not_verified():
    text = printed(found(verified=False, status="open", evidence={"seen": 1, "runs": 1, "trials": [3]}))
    assert "Not verified  bf16: False   passed 1/1 in short runs  (safe_config.yaml)" in text


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


CALL = 'args = GRPOConfig(output_dir="out", learning_rate=1e-3, betas=(0.9, 0.99), {}num_generations=4)'


@pytest.mark.parametrize(
    ("old", "new", "settings", "said"),
    [
        (CALL.format("bf16=True, "), CALL.format("bf16=False, "), ["bf16"], "train.py:3  bf16=True  ->  bf16=False\n"),
        (CALL.format("bf16=True, "), CALL.format(""), ["bf16"], "train.py:3  bf16=True  ->  (remove it)\n"),
        (CALL.format(""), CALL.format("bf16=False, "), ["bf16"], "train.py:3  add bf16=False\n"),
        ("bf16=True,", "bf16=False,", ["bf16"], "train.py:3  bf16=True,  ->  bf16=False,\n"),
        # without the name it would say nothing
        (CALL.format(""), CALL.format("").replace("0.99", "0.9"), ["betas"], f"{CALL.format('')}  ->  args ="),
    ],
)
def test_of_a_long_line_what_changes_is_shown(old, new, settings, said):
    edit = {"file": "train.py", "line": 3, "old": old, "new": new, "settings": settings}
    assert said in printed(found(edits=[edit]))


def test_what_could_not_be_placed_is_said_with_what_to_write():
    missing = {"setting": "lr", "why": "train.py:3 computes it: lr=2 * rate", "add": "write lr=0.1 there"}
    assert "lr: train.py:3 computes it: lr=2 * rate; write lr=0.1 there." in printed(found(unplaced=[missing]))


def known(good: float, bad: float, healthy: float, unhealthy: float) -> dict[str, Any]:
    return {
        "good": good, "bad": bad, "healthy_up_to": healthy, "not_from": unhealthy, "settled": True,
        "shown": "entropy fell from 2 to 0.1", "trials": [8, 9, 11],
    }  # fmt: skip


def test_a_range_is_told_from_good_to_bad() -> None:
    found = {"ranges": {"learning_rate": known(1e-6, 0.03, 6e-3, 9e-3), "temperature": known(1.0, 0.2, 0.67, 0.45)}}
    rate, heat = safe_values._ranges(found)
    assert (
        rate
        == "learning_rate was healthy up to 0.006 and unhealthy at 0.009 (3 short runs): entropy fell from 2 to 0.1."
    )
    assert heat.startswith("temperature was healthy down to 0.67 and unhealthy at 0.45 (3 short runs)")
    (*_, stepped) = safe_values._ranges({**found, "stepped_back": 1})
    assert stepped.startswith("Moved back 1 time from there")


def test_a_range_without_a_run_claims_no_run() -> None:
    untried = {**known(1, 2, 1, 2), "trials": [], "shown": ""}
    (settled,) = safe_values._ranges({"ranges": {"num_iterations": untried}})
    assert settled == ("num_iterations: 1 (good) and 2 (yours) are too close for a run between them to tell anything.")
    (cut_short,) = safe_values._ranges({"ranges": {"beta": {**untried, "settled": False}}})
    assert cut_short == "beta: no value was tried between 1 (good) and 2 (yours)."


def test_published_values_come_with_what_to_know_about_them() -> None:
    def said(name: str, own: Any) -> str:
        values = [{"value": p.value, "recipe": p.recipe, "note": p.note} for p in published_for(name, {})]
        return "".join(safe_values._published(name, values, own))

    assert "1e-08 (TRL defaults; as you have it)" in said("adam_epsilon", 1e-8)
    assert "as you have it" not in said("adam_epsilon", 1e-6)
    assert "0.04 before TRL 0.19" in said("beta", 0.1)
    assert said("save_steps", 500) == ""
