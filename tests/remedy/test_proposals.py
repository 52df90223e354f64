"""Where remedies begin, in which order, and what contradicts the proof."""

from __future__ import annotations

import pytest

from bisect_cfg.remedy.alternatives import Alternative
from bisect_cfg.remedy.proposals import Proven, proposals_for, ranked
from bisect_cfg.remedy.ranges import search_range_of
from bisect_cfg.remedy.remedy import Remedy

RATE, BATCH, DTYPE = "learning_rate", "gradient_accumulation_steps", "model.dtype"
GOOD = {RATE: 1e-6, BATCH: 8, "optim": "adamw_torch_fused", DTYPE: None}
BAD = {RATE: 1e-3, BATCH: 1, "optim": "adamw_torch", DTYPE: "float16"}
FUSED = Alternative({"optim": "adamw_torch_fused"}, "computes in fp32", "measured")
EPSILON = Alternative({"adam_epsilon": 1e-6}, "above the smallest number", "measured")
CURE = Alternative({"packages.torch": "2.9"}, "the known cure", "measured", cures=True)


def offered(causes, corrections, alternatives=None, failed=(), **options):
    """Proposals for some causes; without corrections each setting of the only cause is one."""
    corrections = corrections or [[name] for name in causes[0]]
    proven = Proven(GOOD, BAD, causes, corrections, failed)
    moving = lambda name, changes: search_range_of(name, GOOD[name], BAD[name])  # noqa: E731
    return proposals_for(proven, moving, alternatives or [[] for _ in causes], **options)


def changes(*arguments, **options):
    return [dict(proposal.changes) for proposal in offered(*arguments, **options)]


PAIR, FLOATS = [[BATCH, RATE]], [[DTYPE, "optim"]]
RESET_OPTIM, RESET_DTYPE = {"optim": "adamw_torch_fused"}, {DTYPE: None}


@pytest.mark.parametrize(
    ("asked", "options", "expected"),
    [
        ((PAIR, None), {}, [{BATCH: 8}, {RATE: 1e-6}]),  # a pair has two one-sided remedies
        ((PAIR, None), {"keep": [BATCH]}, [{RATE: 1e-6}, {BATCH: 8}]),
        # known alternatives in order of merit, before plain resets
        ((FLOATS, None, [[FUSED, EPSILON]]), {}, [RESET_OPTIM, {"adam_epsilon": 1e-6}, RESET_DTYPE]),
        ((FLOATS, None, [[FUSED, EPSILON]]), {"keep": ["optim"]}, [{"adam_epsilon": 1e-6}, RESET_DTYPE, RESET_OPTIM]),
        ((FLOATS, None, [[EPSILON, CURE]]), {},
         [{"packages.torch": "2.9"}, {"adam_epsilon": 1e-6}, RESET_OPTIM, RESET_DTYPE]),
        # one change that removes two overlapping causes comes before two, however little these are
        (([["optim", RATE], [RATE, BATCH]], [["optim", BATCH], [RATE]]), {},
         [{RATE: 1e-6}, {"optim": "adamw_torch_fused", BATCH: 8}]),
        # ... and two before one that the user would rather not change
        (([["optim", RATE], [RATE, BATCH]], [["optim", BATCH], [RATE]]), {"keep": [RATE]},
         [{"optim": "adamw_torch_fused", BATCH: 8}, {RATE: 1e-6}]),
        # an alternative that was run and failed
        ((FLOATS, None, [[Alternative({BATCH: 8}, "w", "s"), EPSILON]]), {"failed": [{**BAD, BATCH: 8}]},
         [{"adam_epsilon": 1e-6}, RESET_OPTIM, RESET_DTYPE]),
        # one that leaves out what the cause does without: the cause alone was seen to fail
        ((FLOATS, None, [[Alternative({BATCH: 8, RATE: 1e-6}, "w", "s")]]), {}, [RESET_OPTIM, RESET_DTYPE]),
        # one that comes to the guilty value
        ((FLOATS, None, [[Alternative({DTYPE: "half"}, "w", "s")]]),
         {"identity": lambda given: str({**BAD, **given}).replace("half", "float16")}, [RESET_OPTIM, RESET_DTYPE]),
    ],
)  # fmt: skip
def test_what_is_proposed_and_in_which_order(asked, options, expected):
    assert changes(*asked, **options) == expected


def test_a_remedy_keeps_what_it_can_move_and_why():
    batch, rate = offered(PAIR, None)
    assert [moving.name for proposal in (batch, rate) for moving in proposal.ranges] == [BATCH, RATE]
    (fused, *_) = offered(FLOATS, None, [[FUSED]])
    assert (fused.why, fused.resets, fused.merit) == ("computes in fp32", ("optim",), 0)


def test_of_two_that_serve_as_well_the_one_that_leaves_the_rest_alone():
    half = Alternative({"bf16": False, "fp16": True}, "keeps half precision", "s")
    full = Alternative({"bf16": False}, "full precision", "s")
    proven = Proven({"bf16": None}, {"bf16": True}, [["bf16"]], [["bf16"]])
    found = proposals_for(proven, lambda *_: None, [[half, full]])
    # Switched off is the same as not switched on.
    assert [dict(proposal.changes) for proposal in found] == [{"bf16": None}, {"bf16": False, "fp16": True}]


def test_an_alternative_for_one_cause_comes_with_the_correction_of_the_other():
    causes = [[DTYPE, "optim"], [RATE]]
    found = offered(causes, [[DTYPE, RATE], ["optim", RATE]], [[EPSILON], []])
    assert {"adam_epsilon": 1e-6, RATE: 1e-6} in [dict(proposal.changes) for proposal in found]
    assert all([moving.name for moving in proposal.ranges] == [RATE] for proposal in found)


def test_two_values_that_come_to_the_same_are_one_remedy():
    full = Alternative({DTYPE: "float32"}, "nothing underflows", "s")

    def identity(settings):
        return str({name: value or "float32" for name, value in {**BAD, **settings}.items()})

    found = offered([[DTYPE]], None, [[EPSILON, full]], identity=identity)
    assert [dict(proposal.changes) for proposal in found] == [{DTYPE: None}, {"adam_epsilon": 1e-6}]
    assert found[0].why == "nothing underflows"


def test_verified_remedies_come_first_and_then_what_gives_up_least():
    batch, rate = offered(PAIR, None)
    remedies = [
        Remedy(batch, {BATCH: 8}, "rejected"),
        Remedy(rate, {RATE: 1e-5}, "verified"),
        Remedy(rate, {RATE: 5e-4}, "verified"),
        Remedy(rate, {RATE: 9e-4}, "healthy"),
    ]
    found = ranked(remedies)
    assert [remedy.changes.get(RATE) for remedy in found] == [5e-4, 1e-5, 9e-4, None]
    assert found[0].loss < found[1].loss
