"""The report of a bisection as a notebook shows it."""

from __future__ import annotations


def test_the_page_escapes_and_says_what_is_open() -> None:
    from bisect_cfg import Bisection

    def trial(configuration: dict) -> bool:
        if configuration["<b>"] == "<script>":
            raise ValueError("<i>loss</i>")
        return True

    good, bad = {"<b>": "a", "c": 1}, {"<b>": "<script>", "c": 2}
    report = Bisection(good, bad, trial, isolation="none", first=True).run()
    page = report._repr_html_()
    assert "<script>" not in page and "<i>" not in page and "&lt;script&gt;" in page
    assert "There may be other causes." in page
    assert report.causes[0].evidence.trials and f"(trial {report.causes[0].evidence.fails.trials[0]}" in page
