"""What a claim still needs, when it is refuted, what hides a failure, and the plain algorithm by itself."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.search import Problem
from bisect_cfg.search.case import Case
from bisect_cfg.search.problem import Ask, Counts, FoundCause, SubsetClaim
from bisect_cfg.search.proof import (
    REPEATS,
    Masked,
    Needed,
    Proof,
    growing_prefix,
    look_for_masking,
    prove,
    replay,
    split,
)
from bisect_cfg.search.search import CURE_RUNS, PROOF_RUNS, trials_left
from tests.search.oracles import draw, holds, recorded, subset

ENDS = "abc:F -:P "


def case_of(runs: str, valid: Callable[[int], bool] = lambda mask: True, **options: object) -> Case:
    """Of three factors, a to c."""
    return Case(Problem(tuple("abc"), valid, **options), Counts(recorded(ENDS + runs)))  # type: ignore[arg-type]


def b_needs_a(mask: int) -> bool:
    return holds([(1, 0, True)], mask)


def a_with_b(mask: int) -> bool:
    return mask & 0b11 in (0, 0b11)


def proof_of(cause: str, case: Case, times: int = 1) -> Proof:
    found = prove(case, subset(cause), case.problem.full, times)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cause", "runs", "valid", "missing"),
    [
        ("a", "", None, ["a"]),  # that it passes without a, the good configuration shows
        ("ab", "", None, ["ab", "b", "a"]),
        ("ab", "ab:F b:P", None, ["a"]),
        ("b", "", b_needs_a, ["ab", "a"]),
        ("b", "ab:F a:P", b_needs_a, []),
        ("ab", "ab:F", a_with_b, []),
        ("c", "ac:F", lambda mask: not mask & subset("c") or mask & subset("ab"), ["a"]),
    ],
)
def test_what_a_proof_still_needs(cause: str, runs: str, valid: Callable | None, missing: list[str]) -> None:
    proof = proof_of(cause, case_of(runs, valid or (lambda mask: True)))
    asked = {ask.subset for ask in proof.missing}
    assert {subset(letters) for letters in missing} <= asked and not proof.refuted
    assert (proof.found is None) == bool(missing)


def test_every_companion_is_left_out_once_if_another_can_take_its_place() -> None:
    either = case_of("ac:F a:P", lambda mask: not mask & subset("c") or mask & subset("ab"))
    (ask,) = proof_of("c", either).missing
    assert (ask.subset, ask.companions, ask.purpose) == (subset("bc"), subset("b"), Purpose.CAUSE_FAILS)
    assert "without the companion a" in ask.reason


@pytest.mark.parametrize("runs", ["ab:P", "ab:F a:F", "ab:F b:F"])
def test_a_run_refutes_that_it_is_the_whole_cause(runs: str) -> None:
    assert proof_of("ab", case_of(runs)).refuted


def test_a_larger_subset_that_passed_does_not_speak_for_a_smaller_one() -> None:
    assert {ask.subset for ask in proof_of("ab", case_of("ab:F ac:P bc:P")).missing} == {subset("a"), subset("b")}


def test_where_a_claim_is_run_with_costly_settings_as_the_user_has_them_it_says_so() -> None:
    proof = proof_of("ab", case_of("ab:F", work=(0.0, 0.0, -3.0)))
    assert {ask.subset for ask in proof.missing} == {subset("ac"), subset("bc")}
    done = proof_of("ab", case_of("ab:F ac:P bc:P", work=(0.0, 0.0, -3.0))).found
    assert done is not None
    for claim in done.without.values():
        assert claim.note == "with c as you have it" and claim.seen == 1


def test_nothing_is_proven_by_runs_that_all_ended_in_another_failure() -> None:
    assert proof_of("abc", case_of("ab:U ac:U bc:U a:U b:U c:U")).unseen


def test_companions_and_what_leaves_together() -> None:
    found = proof_of("b", case_of("ab:F a:P", b_needs_a)).found
    assert found is not None and (found.companions, found.inseparable) == (subset("a"), 0)
    both = proof_of("a", case_of("ab:F", a_with_b)).found
    assert both is not None and both.parameters == both.inseparable == subset("ab") and not both.companions
    assert split(case_of("", b_needs_a), subset("ab")) == subset("b")
    assert split(case_of("", a_with_b), subset("ab")) == subset("ab")


def test_a_setting_hides_the_failure_only_if_both_runs_keep_to_it() -> None:
    cause = FoundCause(subset("a"), 0, SubsetClaim(subset("a"), Outcome.FAIL, 1, 1))

    def look(runs: str) -> Ask | list[Masked]:
        return look_for_masking(case_of(runs), [cause])

    assert look("a:F ab:P").subset == subset("ab")  # type: ignore[union-attr]
    assert look("a:F " + "ab:P " * REPEATS).subset == subset("a")  # type: ignore[union-attr]
    assert look("a:F " * REPEATS + "ab:P " * REPEATS) == [Masked(subset("b"), subset("a"))]
    assert look("a:F ab:P ab:F") == [], "random"
    assert look("a:F b:P bc:P") == []
    (masked,) = look("a:F " * REPEATS + "ab:P " * REPEATS)  # type: ignore[misc]
    spoiled = [masked.spoils(record) for record in recorded("ab:P abc:P a:P bc:P ab:F")]
    assert spoiled == [True, True, False, False, False]


def test_the_plain_algorithm_finds_a_minimal_failing_subset() -> None:
    rng = random.Random(11)
    for _ in range(40):
        oracle = draw(rng, 7)
        problem = Problem(tuple("abcdefg"))
        found = growing_prefix(problem, lambda mask, reason, oracle=oracle: oracle.fails(mask), problem.full)
        assert found in oracle.causes


@pytest.mark.parametrize(
    ("runs", "asked", "failed"),
    [
        ("a:F", "a", True),
        ("a:P a:F", "a", True),  # a FAIL counts whatever else happened
        ("ab:P", "a", False),
        ("ab:P ab:F", "a", None),
        ("", "a", None),
        ("a:U", "a", False),
    ],
)
def test_a_plain_algorithm_is_answered_from_the_records(runs: str, asked: str, failed: bool | None) -> None:
    run = replay(case_of(runs), subset("abc"), plain=True)
    if failed is None:
        with pytest.raises(Needed) as needed:
            run(subset(asked), "why")
        assert needed.value.ask == Ask(subset(asked), 0, Purpose.SEARCH, "why")
    else:
        assert run(subset(asked), "why") is failed


def test_a_plain_algorithm_is_given_companions() -> None:
    with pytest.raises(Needed) as needed:
        replay(case_of("", b_needs_a), subset("abc"), plain=False)(subset("b"), "why")
    assert (needed.value.ask.subset, needed.value.ask.companions) == (subset("ab"), subset("a"))
    assert replay(case_of("ab:F", b_needs_a), subset("abc"), plain=False)(subset("b"), "why")
    assert not replay(case_of("", b_needs_a), subset("bc"), plain=False)(subset("b"), "why")


def test_what_is_left_narrows_with_the_suspects_and_never_ends_before_a_run() -> None:
    told = [trials_left(suspects, False) for suspects in (1, 2, 4, 19, 400)]
    assert told == sorted(told) and all(1 <= least < most for least, most in told)
    assert trials_left(19, False)[1] - trials_left(19, True)[1] == PROOF_RUNS - CURE_RUNS
    assert trials_left(0, True) == trials_left(0, False) == (1, 2 * CURE_RUNS)
