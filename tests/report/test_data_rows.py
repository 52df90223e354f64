"""What is said of the rows of the dataset that make a step fail."""

from __future__ import annotations

from dataclasses import replace

from bisect_cfg.report.data_rows import FoundRows, RowsOfStep

OF = RowsOfStep(300, (7, 12, 80, 81), (20, 22, 900, 0), healthy=(1, 2, 7), total=4000)


def test_each_row_has_another_from_a_healthy_step():
    assert OF.others() == [1, 2, 1, 2]
    assert RowsOfStep(1, (0, 2), (5, 5), total=4).others() == [1, 3]
    assert RowsOfStep(1, (0, 1), (5, 5), total=2).others() == []
    assert RowsOfStep(1, (0, 1), (5, 5)).others() == []


def test_what_is_far_too_long_or_empty_is_more_likely_at_fault():
    odds = OF.odds()
    assert odds["row 80"] == odds["row 81"] > odds["row 7"] == odds["row 12"]
    assert set(RowsOfStep(1, (3, 4), (None, None)).odds().values()) == {1.0}


def test_the_answer_names_the_row():
    found = FoundRows(OF, ((80,),), {80: 1}, ("temperature",), 6)
    assert found.said() == (
        "row 80 (900 characters) of the dataset does it: with row 1 in its place it trains (6 runs; rows are counted "
        "from 0). Shuffling, or another seed, would only move the failure to another step. Step 300 takes 4 rows of 0 "
        "to 900 characters."
    )
    of_evaluation = RowsOfStep(31, (5,), (9,), healthy=(1,), evaluated=True)
    assert FoundRows(of_evaluation, ((5,),), {5: 1}, (), 2).said() == (
        "row 5 (9 characters) of the evaluation set does it: with row 1 in its place it trains (2 runs; rows are "
        "counted from 0)."
    )
    assert "row 80 (900 characters) and row 81 (no text) of the dataset together do it: with row 1, row 2 in their" in (
        FoundRows(OF, ((80, 81),), {80: 1, 81: 2}).said()
    )
    assert (
        "80 (900 characters) of the dataset does it; row 81 (no text) of the dataset does it, each by itself: with row "
        in (FoundRows(OF, ((80,), (81,)), {80: 1, 81: 2}).said())
    )
    assert "There may be others" in FoundRows(OF, ((80,),), {80: 1}, complete=False).said()
    assert FoundRows(OF, note="It is not the rows.").said() == "It is not the rows."


def test_a_row_that_is_longer_than_all_before_it_is_told() -> None:
    said = " Its longest row has 900 characters; the longest on which it trained, 31."
    assert replace(OF, trained_characters=31).longest() == said
    assert OF.longest() == replace(OF, trained_characters=900).longest() == ""
    assert RowsOfStep(1, (3, 4), (None, None), trained_characters=31).longest() == ""
