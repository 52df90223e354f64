"""Where remedies begin, and how they are ranked."""

from __future__ import annotations

from bisect_cfg.recommend.alternatives import Alternative
from bisect_cfg.recommend.proposals import proposals_for, ranked
from bisect_cfg.recommend.remedy import Remedy
from bisect_cfg.recommend.search_range import search_range_of

GOOD = {"learning_rate": 1e-6, "gradient_accumulation_steps": 8, "optim": "adamw_torch_fused", "model.dtype": None}
BAD = {"learning_rate": 1e-3, "gradient_accumulation_steps": 1, "optim": "adamw_torch", "model.dtype": "float16"}


def points(causes, corrections, alternatives=(), keep=()):
    return proposals_for(
        GOOD,
        BAD,
        causes,
        corrections,
        lambda name, changes: search_range_of(name, GOOD[name], BAD[name]),
        alternatives or [[] for _ in causes],
        keep,
        lambda changes: None,
    )


def test_a_pair_has_two_one_sided_remedies():
    pair = ["gradient_accumulation_steps", "learning_rate"]
    found = points([pair], [["gradient_accumulation_steps"], ["learning_rate"]])
    assert [dict(proposal.changes) for proposal in found] == [
        {"gradient_accumulation_steps": 8},
        {"learning_rate": 1e-6},
    ]
    assert [search_range.name for proposal in found for search_range in proposal.ranges] == pair
    kept = points([pair], [["gradient_accumulation_steps"], ["learning_rate"]], keep=["gradient_accumulation_steps"])
    assert list(kept[0].changes) == ["learning_rate"]


FUSED = Alternative({"optim": "adamw_torch_fused"}, "computes in fp32", "measured")
EPSILON = Alternative({"adam_epsilon": 1e-6}, "above the smallest number", "measured")


def test_known_alternatives_come_in_order_of_merit_before_plain_resets():
    found = points([["model.dtype", "optim"]], [["model.dtype"], ["optim"]], [[FUSED, EPSILON]])
    assert [dict(proposal.changes) for proposal in found] == [
        {"optim": "adamw_torch_fused"},
        {"adam_epsilon": 1e-6},
        {"model.dtype": None},
    ]
    assert found[0].why and found[0].resets == ("optim",)
    found = points([["model.dtype", "optim"]], [["model.dtype"], ["optim"]], [[FUSED, EPSILON]], keep=["optim"])
    assert [dict(proposal.changes) for proposal in found][0] == {"adam_epsilon": 1e-6}


def test_of_two_that_serve_as_well_the_one_that_leaves_the_rest_alone():
    half = Alternative({"bf16": False, "fp16": True}, "keeps half precision", "s")
    full = Alternative({"bf16": False}, "full precision", "s")
    found = proposals_for(
        {"bf16": False}, {"bf16": True}, [["bf16"]], [["bf16"]], lambda *_: None, [[half, full]], (), lambda _: None
    )
    assert [list(proposal.changes) for proposal in found] == [["bf16"], ["bf16", "fp16"]]


def test_an_alternative_for_one_cause_comes_with_the_correction_of_the_other():
    causes = [["model.dtype", "optim"], ["learning_rate"]]
    corrections = [["model.dtype", "learning_rate"], ["optim", "learning_rate"]]
    found = points(causes, corrections, [[EPSILON], []])
    assert {"adam_epsilon": 1e-6, "learning_rate": 1e-6} in [dict(proposal.changes) for proposal in found]
    assert all(any(search_range.name == "learning_rate" for search_range in proposal.ranges) for proposal in found)


def test_switched_off_is_the_same_as_not_switched_on():
    found = proposals_for(
        {"bf16": None},
        {"bf16": True},
        [["bf16"]],
        [["bf16"]],
        lambda *_: None,
        [[Alternative({"bf16": False}, "w", "s")]],
        (),
        lambda _: None,
    )
    assert [dict(proposal.changes) for proposal in found] == [{"bf16": None}]


def test_two_values_that_come_to_the_same_are_one_remedy():
    full = Alternative({"model.dtype": "float32"}, "nothing underflows", "s")
    comes_to = {None: "float32"}
    found = proposals_for(
        GOOD, BAD, [["model.dtype"]], [["model.dtype"]], lambda *_: None, [[EPSILON, full]], (),
        lambda changes: [comes_to.get(value, value) for value in changes.values()],
    )  # fmt: skip
    assert [dict(proposal.changes) for proposal in found] == [{"model.dtype": None}, {"adam_epsilon": 1e-6}]
    assert found[0].why == "nothing underflows"


def test_verified_remedies_come_first_and_then_what_gives_up_least():
    pair = [["gradient_accumulation_steps"], ["learning_rate"]]
    batch, rate = points([[name for names in pair for name in names]], pair)
    remedies = [
        Remedy(batch, {"gradient_accumulation_steps": 8}, "rejected"),
        Remedy(rate, {"learning_rate": 1e-5}, "verified"),
        Remedy(rate, {"learning_rate": 5e-4}, "verified"),
        Remedy(rate, {"learning_rate": 9e-4}, "healthy"),
    ]
    found = ranked(remedies)
    assert [remedy.changes.get("learning_rate") for remedy in found] == [5e-4, 1e-5, 9e-4, None]
    assert found[0].loss < found[1].loss
