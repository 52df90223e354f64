"""A known issue beside a proof."""

from __future__ import annotations

import pytest

from bisect_cfg.store.causes import Cause, Claim, Evidence
from bisect_cfg.study.known import advises_guilty_value


@pytest.mark.parametrize(
    ("name", "bad", "cure", "contradicts"),
    [
        ("fp16", True, "bf16=False with fp16=True.", True),
        ("bf16", True, "bf16=False with fp16=True, and tf32=False", False),
        ("model.attn_implementation", "sdpa", 'attn_implementation="sdpa" or "eager"', True),
        ("attn_implementation", "flash_attention_2", 'attn_implementation="sdpa" or "eager"', False),
        ("temperature", 1.0, "temperature=1.05 for training", False),
        ("beta1", 0.9, "adam_beta1=0.9", False),
    ],
)
def test_an_issue_that_advises_the_guilty_value_contradicts_the_proof(name, bad, cure, contradicts):
    cause = Cause((name,), {name: {"good": None, "bad": bad}}, (), None, Evidence(Claim((name,)), {}))
    assert advises_guilty_value(["update the driver", cure], [cause]) is contradicts
