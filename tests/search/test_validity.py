"""What cannot be run, what a run is given so that it can, and the listed candidates: against plain enumeration."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from bisect_cfg.search import Problem
from bisect_cfg.search.candidates import EXPECTED_CAUSES, MAX_CANDIDATES, candidates, share_of
from bisect_cfg.search.case import ENOUGH_TRIES, PUZZLING, Validity
from bisect_cfg.search.problem import Counts, bits
from tests.search.oracles import Rule, holds, recorded, subset

B_NEEDS_A: Rule = (1, 0, True)
A_OR_B: Rule = (0, 1, False)


def validity(*rules: Rule, runs: str = "", valid: Callable[[int], bool] | None = None) -> Validity:
    """Of four factors, a to d."""
    return Validity(Problem(tuple("abcd"), valid or (lambda mask: holds(rules, mask))), Counts(recorded(runs)))


def test_the_fewest_companions_from_where_they_may_come() -> None:
    needs = validity(B_NEEDS_A)
    assert needs.companions(subset("a")) == 0
    assert needs.companions(subset("b")) == subset("a") == needs.companions(subset("b"), pool=subset("abc"))
    assert needs.companions(subset("b"), pool=subset("bc")) is None
    assert needs.companions(subset("b"), forbidden=subset("a")) is None
    assert needs.companions(subset("b"), avoid=(subset("ab"),)) is None
    choice = validity(valid=lambda mask: not mask & subset("b") or mask & subset("ac"))
    assert choice.companions(subset("b"), avoid=(subset("a"),)) == subset("c")


def test_what_ended_in_another_failure_is_not_run_again_and_explained_by_the_simplest_rules() -> None:
    seen = validity(runs="abcd:F -:P b:U")  # b needs a, c or d; that it breaks everything the first run refutes
    assert not seen.ok(subset("b")) and seen.ok(subset("ab"))
    assert seen.chance(subset("abcd")) == 1 and seen.chance(subset("ab")) == pytest.approx(1 - 2 / 4)
    assert seen.chance(subset("acd")) == 1, "a run without b says nothing of it"
    told = validity(runs="abcd:F -:P b:U bcd:U bc:U")
    assert told.companions(subset("b")) == subset("a"), "b needs a"
    assert told.chance(subset("ab")) > told.chance(subset("bd")) and not told.promising(subset("bc"))


def test_so_many_runs_that_end_otherwise_are_enough() -> None:
    others = " ".join(f"{word}:U" for word in ("d", "ad", "bd", "cd", "abd", "acd", "bcd", "abcd"))
    some, enough = (validity(runs=text) for text in (others.rpartition(" ")[0], others))
    assert len(others.split()) == ENOUGH_TRIES
    assert enough.given_up(subset("d"), without=0) and not some.given_up(subset("d"), without=0)
    assert not enough.given_up(subset("d"), without=subset("a"))
    assert not enough.puzzling and ENOUGH_TRIES < PUZZLING


def test_one_step_makes_it_valid_or_companions_do() -> None:
    assert validity(B_NEEDS_A).repairs(subset("b"), subset("abcd")) == [(subset("ab"), subset("a")), (0, 0)]
    both = validity(B_NEEDS_A, (1, 2, True), (3, 0, True), (3, 2, True))
    assert both.repairs(subset("bd"), subset("bd")) == [(subset("abcd"), subset("ac"))]


def test_the_least_is_taken_out_of_what_cannot_be() -> None:
    assert validity(A_OR_B).largest_inside(subset("ac")) == [subset("ac")]
    assert validity(A_OR_B).largest_inside(subset("abc")) == [subset("bc"), subset("ac")]
    assert validity(B_NEEDS_A).largest_inside(subset("bcd")) == [subset("cd")]
    assert validity(B_NEEDS_A).shrink(subset("abcd"), subset("b")) == subset("ab")


def test_what_only_changes_together_stays_out_whatever_runs_said() -> None:
    together = validity(valid=lambda mask: mask & 0b11 in (0, 0b11), runs="c:U")
    assert together.grow(subset("acd")) == subset("cd")
    assert validity(B_NEEDS_A).grow(subset("abc")) == subset("abc")


def test_only_seen_is_what_could_be_built() -> None:
    seen = validity(B_NEEDS_A, runs="c:U ab:U")
    assert seen.only_seen(subset("c"), forbidden=0) and seen.only_seen(subset("b"), forbidden=0)
    assert not seen.only_seen(subset("b"), forbidden=subset("a"))
    assert not seen.only_seen(subset("b"), forbidden=0, avoid=(subset("ab"),))


@pytest.mark.parametrize("size", [12, 70])
def test_candidates_are_all_small_subsets_with_the_prior_of_their_size(size: int) -> None:
    rng = random.Random(size)
    members = tuple(sorted(rng.sample(range(size), 9)))
    listed = candidates(size, members, ())
    masks = [listed.mask(row) for row in range(len(listed.sizes))]
    assert len(set(masks)) == 2**9 - 1 and (listed.words is None) == (size > 64)
    assert [mask.bit_count() for mask in masks] == listed.sizes.tolist()
    others = [sum(1 << i for i in rng.sample(range(size), rng.randint(1, size))) for _ in range(8)]
    others += [sum(1 << i for i in rng.sample(members, 3)) for _ in range(8)]
    assert listed.inside_each(others).T.tolist() == [[mask & ~other == 0 for mask in masks] for other in others]
    for other in others:
        assert listed.inside(other).tolist() == [mask & ~other == 0 for mask in masks]
        assert listed.containing(other).tolist() == [other & ~mask == 0 for mask in masks]
    kept = listed.take(np.array([3, 77]))
    assert [kept.mask(0), kept.mask(1)] == [masks[3], masks[77]]


@pytest.mark.parametrize(("size", "largest"), [(4, 4), (19, 5), (60, 3), (200, 2), (400, 1)])
def test_a_decision_looks_at_so_many_candidates_and_no_more(size: int, largest: int) -> None:
    listed = candidates(size, tuple(range(size)), ())
    assert listed.sizes.max() == largest and len(listed.sizes) <= MAX_CANDIDATES


def test_candidates_of_one_size_share_what_it_is_expected_to_have() -> None:
    odds = (1.0, 5.0, 1.0, 0.2)
    listed = candidates(4, (0, 1, 2, 3), odds)
    for count in range(1, 5):
        of_size = listed.sizes == count
        assert listed.intensity[of_size].sum() == pytest.approx(EXPECTED_CAUSES * share_of(count))
    by_mask = {listed.mask(row): float(listed.intensity[row]) for row in range(15)}
    for mask in (subset("ab"), subset("bd"), subset("cd")):
        weighs = np.prod([odds[i] for i in bits(mask)])
        assert by_mask[mask] / by_mask[subset("ac")] == pytest.approx(weighs)
