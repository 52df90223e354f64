"""What a trial taught, in words."""

from __future__ import annotations

import pytest

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.report.insights import learned

PASS, FAIL = Outcome.PASS, Outcome.FAIL
NAMES = ["lr", "bf16", "optim", "beta"]
BASELINES = [(NAMES, FAIL), ([], PASS)]
MANY = [f"s{number}" for number in range(12)]


@pytest.mark.parametrize(("subset", "outcome", "before", "said"), [
    (["lr"], PASS, [], "lr alone passes: the failure needs one of bf16, optim, beta"),
    (["lr"], PASS, [(["lr", "bf16"], FAIL)], "Without bf16, what failed before passes: the failure needs it"),
    (["lr", "bf16", "optim"], PASS, [], "Without beta your configuration passes: the failure needs it"),
    (["lr", "bf16"], PASS, [], "lr and bf16 together pass: the failure needs one of optim, beta"),
    (["bf16"], FAIL, [], "bf16 alone is enough to make it fail"),
    (["lr", "bf16"], FAIL, [], "lr and bf16 are enough to make it fail"),
    (["lr", "bf16", "optim"], FAIL, [], "It fails without beta, too: it is not needed"),
    (["bf16"], FAIL, [(["bf16"], FAIL)], "It fails again"),
    (["bf16"], PASS, [(["bf16"], PASS)], "It passes again"),
    (["bf16"], PASS, [(["bf16"], FAIL)], "The same run came out differently before: the failure is random"),
    (["bf16"], Outcome.UNRESOLVED, [], "It ended in another failure, so this says nothing about the cause"),
    ([], PASS, [], "It passes again"),
])  # fmt: skip
def test_after_the_two_ends(subset, outcome, before, said):
    assert learned(subset, outcome, [*BASELINES, *before], NAMES) == said


def test_the_two_ends_themselves():
    assert learned(NAMES, FAIL, [], NAMES) == ""
    assert learned([], PASS, [(NAMES, FAIL)], NAMES).startswith("The good configuration passes: ")
    assert learned([], FAIL, [(NAMES, FAIL)], NAMES).startswith("The good configuration fails as well: ")


def test_many_settings_are_counted():
    assert learned(["s3"], PASS, [(MANY, FAIL)], MANY) == "s3 alone passes: the failure needs one of the 11 others"
    half = MANY[6:]
    assert learned(half, PASS, [(MANY, FAIL)], MANY) == (
        "Without 6 settings (s0, s1, s2, ...) it passes: the failure needs at least one of them"
    )
    assert learned(half, FAIL, [(MANY, FAIL)], MANY) == (
        "It fails without 6 settings (s0, s1, s2, ...), too: they are not needed"
    )


@pytest.mark.parametrize(("subset", "outcome", "earlier"), [
    (["lr", "bf16"], PASS, (["lr"], FAIL)), (["lr"], FAIL, (["lr", "bf16"], PASS)),
])  # fmt: skip
def test_nothing_is_claimed_that_does_not_follow(subset, outcome, earlier):
    said = learned(subset, outcome, [*BASELINES, earlier], NAMES)
    assert said == "A larger set passes where a smaller one fails: the failure is random, or a setting hides it"
