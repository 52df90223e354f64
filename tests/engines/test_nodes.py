"""One of four nodes fails everything, or passes everything, or does so with certain settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tools import slow

from bisect_cfg.common.configuration import Outcome, Status
from bisect_cfg.engines.nodes import without_lost
from bisect_cfg.search import Conclusion, FoundCause, Problem, SubsetClaim
from bisect_cfg.study.bisection import Bisection
from tests.engines.simulated import Runner, virtual
from tests.engines.test_chaos import causes, mask
from tests.search.oracles import draw, recorded, subset

WRONG: dict[str, Callable[[Outcome, int], Outcome]] = {
    "fails everything": lambda outcome, subset: Outcome.FAIL,
    "passes everything": lambda outcome, subset: Outcome.PASS,
    "fails with the first setting": lambda outcome, subset: Outcome.FAIL if subset & 1 else outcome,
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("times", [10, slow(100)])
def test_a_bad_node_changes_no_answer_and_is_named(
    times: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [f"node-{slot // 2}" for slot in range(8)]
    named = right = 0
    for seed in range(times):
        rng = random.Random(seed)
        oracle, odd = draw(rng, rng.randint(3, 8)), f"node-{rng.randrange(4)}"

        def shows(configuration, node, oracle=oracle, odd=odd):
            outcome, subset = oracle.run(mask(configuration)), mask(configuration)
            return WRONG[kind](outcome, subset) if node == odd else outcome

        folder = tmp_path / str(seed)
        folder.mkdir()
        with virtual(monkeypatch, folder, nodes, shows, seed=seed, chaos={}) as engine:
            good, bad = ({f"f{bit}": side for bit in range(oracle.size)} for side in (0, 1))
            report = Bisection(good, bad, Runner(engine), jobs=8).search()
        found = {frozenset(cause.parameters) for cause in report.causes}
        assert found <= causes(oracle) and (not report.complete or found == causes(oracle)), (seed, report)
        assert report.status in ("isolated", "inconclusive"), (seed, report)
        right += report.complete
        assert all(row.node for row in report.rows)
        named += any(f"on {odd} only" in note for note in report.notes)
    assert right >= 0.9 * times and (named >= 0.95 * times or kind == "fails with the first setting")


@pytest.mark.parametrize(
    ("causes", "runs", "kept"),
    [
        ([("ab", "ab")], "abc:F -:P ab:F a:P b:P bc:Ulost", ["ab"]),  # it may be another cause
        ([("abc", "abc")], "abc:F -:P ab:Ulost ac:P bc:P", []),  # it may be a smaller one
        ([("ab", "abc")], "abcd:F -:P abc:F ab:Ulost abd:P", []),  # the companion may be of the cause
        ([("a", "a")], "abc:F -:P a:F ab:Ulost bc:P b:Ulost", None),  # what both would show follows
    ],
)
def test_what_a_lost_trial_could_refute_is_not_named(
    causes: list[tuple[str, str]], runs: str, kept: list[str] | None
) -> None:
    problem, records = Problem(tuple("abcd")), recorded(runs)
    found = tuple(FoundCause(subset(cause), 0, SubsetClaim(subset(witness), Outcome.FAIL)) for cause, witness in causes)
    before = Conclusion(Status.ISOLATED, found, complete=True)
    after = without_lost(problem, records, before)
    if kept is None:
        assert after == before
    else:
        assert [cause.parameters for cause in after.causes] == [subset(cause) for cause in kept]
        assert not after.complete and "the machine was lost each time" in after.notes[0]
        assert after.status == (Status.ISOLATED if kept else Status.INCONCLUSIVE)


def random_failures(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Whether a study of a failure that shows every other time names a cause that is none, and a node."""
    oracle = replace(draw(random.Random(seed), 4), rate=0.5, rng=random.Random(seed))
    nodes = [f"node-{slot // 2}" for slot in range(8)]
    shows = lambda configuration, node: oracle.run(mask(configuration))  # noqa: E731
    with virtual(monkeypatch, folder, nodes, shows, seed=seed, chaos={}) as engine:
        good, bad = ({f"f{bit}": side for bit in range(oracle.size)} for side in (0, 1))
        report = Bisection(good, bad, Runner(engine), jobs=8).search()
    wrong = not {frozenset(cause.parameters) for cause in report.causes} <= causes(oracle)
    return wrong, any("only" in note for note in report.notes)


@pytest.mark.slow
def test_a_random_failure_is_seldom_blamed_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for seed in range(30):
        (folder := tmp_path / str(seed)).mkdir()
        told.append(random_failures(seed, folder, monkeypatch))
    assert sum(wrong for wrong, _ in told) <= 2 and sum(named for _, named in told) <= 6
