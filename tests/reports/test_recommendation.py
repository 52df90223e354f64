"""The recommendation as data: one form for every remedy, and only what was seen in it."""

from __future__ import annotations

from types import SimpleNamespace

from bisect_cfg.reports.recommendation import first_of_all

ISSUE = {"environment": True, "cures": ["Install nvidia-cublas-cu12 12.4.5.8 or later."]}


def test_an_environment_at_fault_is_said_first():
    causes = [SimpleNamespace(parameters=("bf16",))]
    words = first_of_all(causes, ISSUE)
    assert "12.4.5.8" in words and "keep bf16" in words and "workaround" in words
    assert first_of_all(causes, {**ISSUE, "environment": False}) == "" == first_of_all(causes, None)
