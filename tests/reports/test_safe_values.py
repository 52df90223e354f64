"""The lines about safe values say what was seen, in the direction in which the setting moves."""

from __future__ import annotations

from typing import Any

from bisect_cfg.recommend.published import published_for
from bisect_cfg.reports import safe_values


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
    assert settled == "num_iterations: there is no value to try between 1 (good) and 2 (yours)."
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
