"""Entries of processes, trainers, hangs and projects claim no more than a log shows."""

from pathlib import Path

import pytest
import yaml

from bisect_cfg.diagnosis._render import render
from bisect_cfg.diagnosis.explain import explain_text

CASES = yaml.safe_load(Path(__file__).with_name("claims_audit_c.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", [one for one in CASES if "not" in one], ids=lambda case: case["not"])
def test_words_that_another_failure_prints_too(case: dict[str, str]) -> None:
    leading = [match.entry.id for match in explain_text(case["log"]).matches[:1] if not match.doubt]
    assert case["not"] not in leading


@pytest.mark.parametrize("case", [one for one in CASES if "words" in one], ids=lambda case: case["entry"])
def test_what_the_log_decides_is_told(case: dict[str, str]) -> None:
    found = explain_text(case["log"])
    assert found.matches[0].entry.id == case["entry"] and not found.matches[0].doubt
    assert case["words"] in " ".join(render(found).split())
