"""Where ways out begin, and how they are ranked."""

from __future__ import annotations

from bisect_cfg.recommend.alternatives import Alternative
from bisect_cfg.recommend.plan import WayOut
from bisect_cfg.recommend.scale import axis_of
from bisect_cfg.recommend.ways import ranked, starting_points

GOOD = {"learning_rate": 1e-6, "gradient_accumulation_steps": 8, "optim": "adamw_torch_fused", "model.dtype": None}
BAD = {"learning_rate": 1e-3, "gradient_accumulation_steps": 1, "optim": "adamw_torch", "model.dtype": "float16"}


def points(causes, corrections, alternatives=(), keep=()):
    return starting_points(
        GOOD,
        BAD,
        causes,
        corrections,
        lambda name, changes: axis_of(name, GOOD[name], BAD[name]),
        alternatives or [[] for _ in causes],
        keep,
    )


def test_a_pair_has_two_one_sided_ways():
    pair = ["gradient_accumulation_steps", "learning_rate"]
    found = points([pair], [["gradient_accumulation_steps"], ["learning_rate"]])
    assert [dict(start.changes) for start in found] == [{"gradient_accumulation_steps": 8}, {"learning_rate": 1e-6}]
    assert [axis.name for start in found for axis in start.ranges] == pair
    kept = points([pair], [["gradient_accumulation_steps"], ["learning_rate"]], keep=["gradient_accumulation_steps"])
    assert list(kept[0].changes) == ["learning_rate"]


FUSED = Alternative({"optim": "adamw_torch_fused"}, "computes in fp32", "measured")
EPSILON = Alternative({"adam_epsilon": 1e-6}, "above the smallest number", "measured")


def test_known_alternatives_come_in_order_of_merit_before_plain_resets():
    found = points([["model.dtype", "optim"]], [["model.dtype"], ["optim"]], [[FUSED, EPSILON]])
    assert [dict(start.changes) for start in found] == [
        {"optim": "adamw_torch_fused"},
        {"adam_epsilon": 1e-6},
        {"model.dtype": None},
    ]
    assert found[0].why and found[0].resets == ("optim",)
    found = points([["model.dtype", "optim"]], [["model.dtype"], ["optim"]], [[FUSED, EPSILON]], keep=["optim"])
    assert [dict(start.changes) for start in found][0] == {"adam_epsilon": 1e-6}


def test_of_two_that_serve_as_well_the_one_that_leaves_the_rest_alone():
    half = Alternative({"bf16": False, "fp16": True}, "keeps half precision", "s")
    full = Alternative({"bf16": False}, "full precision", "s")
    found = starting_points({"bf16": False}, {"bf16": True}, [["bf16"]], [["bf16"]], lambda *_: None, [[half, full]])
    assert [list(start.changes) for start in found] == [["bf16"], ["bf16", "fp16"]]


def test_an_alternative_for_one_cause_comes_with_the_correction_of_the_other():
    causes = [["model.dtype", "optim"], ["learning_rate"]]
    corrections = [["model.dtype", "learning_rate"], ["optim", "learning_rate"]]
    found = points(causes, corrections, [[EPSILON], []])
    assert {"adam_epsilon": 1e-6, "learning_rate": 1e-6} in [dict(start.changes) for start in found]
    assert all(any(axis.name == "learning_rate" for axis in start.ranges) for start in found)


def test_switched_off_is_the_same_as_not_switched_on():
    found = starting_points(
        {"bf16": None},
        {"bf16": True},
        [["bf16"]],
        [["bf16"]],
        lambda *_: None,
        [[Alternative({"bf16": False}, "w", "s")]],
    )
    assert [dict(start.changes) for start in found] == [{"bf16": None}]


def test_two_values_that_come_to_the_same_are_one_way():
    full = Alternative({"model.dtype": "float32"}, "nothing underflows", "s")
    comes_to = {None: "float32"}
    found = starting_points(
        GOOD, BAD, [["model.dtype"]], [["model.dtype"]], lambda *_: None, [[EPSILON, full]],
        identity=lambda changes: [comes_to.get(value, value) for value in changes.values()],
    )  # fmt: skip
    assert [dict(start.changes) for start in found] == [{"model.dtype": None}, {"adam_epsilon": 1e-6}]
    assert found[0].why == "nothing underflows"


def test_verified_ways_come_first_and_then_what_gives_up_least():
    pair = [["gradient_accumulation_steps"], ["learning_rate"]]
    batch, rate = points([[name for names in pair for name in names]], pair)
    ways = [
        WayOut(batch, {"gradient_accumulation_steps": 8}, "rejected"),
        WayOut(rate, {"learning_rate": 1e-5}, "verified"),
        WayOut(rate, {"learning_rate": 5e-4}, "verified"),
        WayOut(rate, {"learning_rate": 9e-4}, "healthy"),
    ]
    found = ranked(ways)
    assert [way.changes.get("learning_rate") for way in found] == [5e-4, 1e-5, 9e-4, None]
    assert found[0].loss < found[1].loss
