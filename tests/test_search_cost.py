"""The study of the search's cost: it runs, it counts every launch, and its oracles are the same for all."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[1] / "studies" / "search_cost"


@pytest.fixture
def study(monkeypatch):
    """The study's folder on the path, as when its program is run."""
    monkeypatch.syspath_prepend(str(STUDY))


def run(*arguments: str) -> str:
    command = [sys.executable, str(STUDY / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.training
def test_a_row_is_measured_printed_and_put_in_place_of_the_older_one(tmp_path) -> None:
    arguments = ("--only", "n=8, k=2", "--confirm", "1", "--out", str(tmp_path))
    run(*arguments, "--instances", "3")
    printed = run(*arguments, "--instances", "6", "--processes", "2")
    (row,) = json.loads((tmp_path / "table.json").read_text())
    assert row["case"] == "n=8, k=2" and row["instances"] == 6 and row["exact"] == 1.0
    assert 6 <= row["trials"] <= 20 and row["invalid"] == 0
    line = (tmp_path / "table.md").read_text().splitlines()[-1]
    assert line in printed.splitlines()
    assert json.loads((tmp_path / "table.json").read_text())[0]["trials"] == row["trials"]


@pytest.mark.slow
@pytest.mark.training
def test_the_public_class_and_the_search_alone_run_the_same_trials(study) -> None:
    import oracles
    import ours

    names = (
        "n=19, k=2",
        "p=0.5, n=19, k=2",
        "two overlapping pairs, n=19",
        "cause from the prior, n=19, risk",
    )
    chosen = [case for case in oracles.cases() if case.name in names or case.name.startswith("TRL")]
    assert len(chosen) > len(names)
    for case in chosen:
        for number in range(1 if case.fixed else 3):
            one, other = oracles.Oracle(case.instance(number)), oracles.Oracle(case.instance(number))
            first = ours.by_class(case, one, ours.Setting(1))
            second = ours.by_rounds(case, other, ours.Setting(1))
            assert (one.asked, first.causes, first.complete) == (other.asked, second.causes, second.complete)
            assert one.invalid == 0


def test_cases_of_one_kind_share_their_causes(study) -> None:
    import oracles

    kinds: dict[str, set[tuple]] = {}
    for case in oracles.cases():
        kinds.setdefault(case.kind, set()).add(tuple(case.instance(i).causes for i in range(5)))
    assert all(len(drawn) == 1 for drawn in kinds.values()) and len(kinds) < len(oracles.cases())
    case = next(c for c in oracles.cases() if c.name == "p=0.5, n=19, k=2")
    full, coins = case.instance(0).full, []
    for _ in range(2):
        oracle = oracles.Oracle(case.instance(0))
        coins.append([oracle.run(full) for _ in range(50)])
    assert coins[0] == coins[1] and coins[0][0] is True and 10 < sum(coins[0]) < 40


def test_an_invalid_launch_counts_and_too_many_end_the_run(study) -> None:
    import oracles

    case = next(c for c in oracles.cases() if c.name.startswith("TRL"))
    oracle = oracles.Oracle(case.instance(0))
    alone = 1 << oracles.OPTIONS.index("num_generations")
    assert oracle.run(alone) is None and oracle.invalid == oracle.launches == 1
    oracle.launches = oracles.LIMIT
    with pytest.raises(oracles.Exhausted):
        oracle.run(0)


@pytest.mark.parametrize(
    "name",
    ["rimbisect", "lithium", "ddmin", "failmin", "shrinkray", "envbisect", "picire", "mlbisect", "one_at_a_time",
     "textbook_ddmin"],
)  # fmt: skip
def test_a_tool_of_others_finds_a_single_cause(study, name) -> None:
    import oracles
    import peers

    loaded = peers.load(name)
    if loaded is None:
        pytest.skip(f"{name} is not installed")
    case = next(c for c in oracles.cases() if c.name == "n=8, k=2")
    for number in range(5):
        oracle = oracles.Oracle(case.instance(number))
        assert loaded[0].solve(oracle, 1).causes == set(oracle.instance.causes)
        assert 5 <= oracle.launches <= 60


def test_a_missing_tool_is_left_out_with_a_line(study, capsys) -> None:
    import peers

    assert peers.load("nothing_of_that_name") is None
    assert "nothing_of_that_name is left out" in capsys.readouterr().out


def test_a_trace_is_what_its_kind_of_run_says(study) -> None:
    import determinism
    import oracles

    case = next(c for c in oracles.cases() if c.name == "p=0.5, n=19, k=1")
    kinds: dict[str, list[set[str]]] = {}
    for kind, number in product(determinism.ROWS, range(8)):
        oracle = determinism.Traced(case.instance(number), kind=kind)
        traces = [oracle.trace for _ in range(20) if oracle.run(oracle.instance.full)]
        kinds.setdefault(kind, []).append({*traces})
        assert len(traces) > 2 and (kind != "noise" or len({*traces}) == len(traces))
    assert all(traces == {""} for traces in kinds["no trace"])
    assert all(len(traces) == 1 and "" not in traces for traces in kinds["repeats"])
    assert len(frozenset.union(*map(frozenset, kinds["repeats"]))) == 8
    assert all(2 <= len(traces) <= determinism.STEPS for traces in kinds["step drawn"])


@pytest.mark.training
def test_a_row_of_what_determinism_saves(study, capsys) -> None:
    import determinism

    determinism.main(["--certain", "4", "--only", r"repeats \| p=1, 1 setting"])
    (row,) = capsys.readouterr().out.splitlines()[2:]
    assert row.startswith("| repeats | p=1, 1 setting | default, 95% | ") and row.endswith(" | 4 | 0 (0.0%) | 0 | 4 |")


@pytest.mark.slow
@pytest.mark.training
def test_two_checkouts_meet_the_same_luck(study) -> None:
    from compare import ratio

    assert ratio([10, 20, 30], [11, 22, 33]) == (pytest.approx(1.1), pytest.approx(0.0))
    found, error = ratio([10, 20], [12, 20])
    assert found == pytest.approx(32 / 30) and error > 0.04
    command = [sys.executable, str(STUDY / "compare.py"), str(STUDY.parents[1]), "--instances", "3"]
    only = ("--only", r"^p=0\.9, n=19, k=1 confirm=1")
    (line,) = subprocess.run([*command, *only], capture_output=True, text=True, check=True).stdout.splitlines()[2:]
    assert line.startswith("| p=0.9, n=19, k=1 | confirm=1, 99% |") and "| +0.0% ± 0.0% | 100.0% | 100.0% | 3 |" in line
