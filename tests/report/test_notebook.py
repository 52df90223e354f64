"""A study in a notebook: frames, figures, and what a cell shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import bisect_cfg
from bisect_cfg import Outcome, TrialResult
from bisect_cfg.errors import InputError
from bisect_cfg.report.notebook import StudyReport
from tests.report.made import begun, study

HOSTILE = "<script>alert(1)</script>"


def test_a_study_is_loaded_with_its_frames(tmp_path: Path) -> None:
    report = bisect_cfg.load(study(tmp_path / "s"))
    assert report.status == "isolated" and report.complete and report.causes[0].parameters == ("bf16",)
    assert list(report.trials["tested"]) == [
        "your configuration", "the good configuration", "yours without learning_rate", "yours without bf16"
    ]  # fmt: skip
    assert list(report.trials["bf16"]) == [True, False, True, False]
    assert list(report.metrics.columns) == ["trial", "outcome", "step", "metric", "value"]
    assert len(report.metrics) == 2 * (3 + 10 + 3 + 10)
    assert "bf16 = True" in str(report) and "bf16 = True" in report._repr_html_()


def test_the_database_of_a_folder_is_its_study(tmp_path: Path) -> None:
    folder = begun(study(tmp_path / "s"))
    address = f"sqlite:///{folder / 'study.db'}"
    assert str(bisect_cfg.load(address)) == str(bisect_cfg.load(folder)) and bisect_cfg.load(address).complete


def test_every_plot_is_a_figure_and_one_without_data_says_so(tmp_path: Path) -> None:
    report = bisect_cfg.load(study(tmp_path / "s", metrics=("loss", HOSTILE)))
    matrix = report.plot_matrix()
    assert [list(row) for row in matrix.data[0].z] == [[1.0, 0.0, 1.0, 0.0], [0.5, 0.0, 0.0, 0.5]]
    assert list(matrix.data[1].marker.symbol) == ["x", "circle", "x", "circle"]
    titles = [one.text for one in report.plot_traces().layout.annotations]
    assert titles == ["loss", "&lt;script&gt;alert(1)&lt;/script&gt;"]
    assert report.plot_traces("loss").layout.title.text == "loss"
    figure = report.plot_suspicion()
    assert len(figure.data) == 0 and "study" in figure.layout.annotations[0].text


def fails(configuration) -> TrialResult:
    bad = configuration["lr"] > 1e-4 and configuration["clip"] == 0
    outcome = Outcome.FAIL if bad else Outcome.PASS
    return TrialResult(outcome, f"boom {HOSTILE}" if bad else None, intermediate={1: 0.5, 2: 0.1})


SIDES = {"good": {"lr": 1e-6, "clip": 1.0, "beta": 0.0}, "bad": {"lr": 1e-3, "clip": 0.0, "beta": 0.1}}


def test_a_function_has_the_same_plots_and_frames() -> None:
    report = bisect_cfg.Bisection(**SIDES, trial=fails, isolation="none").run()
    assert report.folder is None and report.causes[0].parameters == ("clip", "lr")
    assert len(report.plot_matrix().data[0].x) == len(report.trials) and len(report.plot_suspicion().data) == 3
    assert set(report.metrics["metric"]) == {"intermediate value"} and len(report.metrics) == 2 * len(report.trials)
    assert report.plot_traces().layout.title.text == "intermediate value"
    page = report._repr_html_()
    assert HOSTILE not in page and "&lt;script&gt;" in page and "every trial" in page


@pytest.mark.training
def test_a_study_of_a_function_is_loaded_from_its_storage(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/s.db"
    first = bisect_cfg.Bisection(**SIDES, trial=fails, isolation="none", storage=address, max_trials=4)
    begun = bisect_cfg.load(address)
    assert (begun.status, len(begun.trials)) == ("empty", 0)
    first.run()
    assert bisect_cfg.load(address).status == "inconclusive" and len(bisect_cfg.load(address).trials) == 4
    made = bisect_cfg.Bisection(**SIDES, trial=fails, isolation="none", storage=address).run()
    report = bisect_cfg.load(address, "bisection")
    assert report.status == "isolated" and report.complete and report.causes == made.causes
    assert str(report) == str(made) and report.trials.equals(made.trials) and report.metrics.equals(made.metrics)
    assert len(report.plot_matrix().data[0].x) == len(made.trials)
    for name, where, said in (
        ("other", address, "has no study other"),
        (None, f"sqlite:///{tmp_path}/none.db", "none.db is not there"),
    ):
        with pytest.raises(InputError, match=said):
            bisect_cfg.load(where, name)
    assert not (tmp_path / "none.db").exists()


def test_the_settings_and_the_study_show_what_is_known(tmp_path: Path) -> None:
    bisection = bisect_cfg.Bisection(**SIDES, trial=fails, isolation="none")
    assert "3 settings that differ, 0 trials done" in bisection._repr_html_()
    factors = bisection.run().factors
    assert list(zip(factors["name"], factors["bad"], factors["known"], strict=True)) == [
        ("clip", 0.0, "cause"), ("lr", 1e-3, "cause"), ("beta", 0.1, "cleared")
    ]  # fmt: skip
    begun = bisect_cfg.Bisection(**SIDES, trial=fails, isolation="none", max_trials=4).run().factors
    assert begun["suspicion"][begun["known"] == "suspected"].between(0.01, 1).any()
    named = {"good": {HOSTILE: 1, "hub_token": "hf_a"}, "bad": {HOSTILE: 2, "hub_token": f"hf_{'b' * 34}"}}
    hostile = bisect_cfg.Bisection(**named, trial=lambda c: c[HOSTILE] == 1, isolation="none")
    for words in (hostile.run().factors._repr_html_(), hostile._repr_html_(), hostile.run()._repr_html_()):
        assert HOSTILE not in words and "&lt;script&gt;" in words and "bbbb" not in words
    secret = {"good": {"model": "/home/anneliese/a"}, "bad": {"model": "/home/anneliese/b"}}
    homely = bisect_cfg.Bisection(**secret, trial=lambda c: c["model"].endswith("a"), isolation="none").run()
    asked = homely.ask({"model": "/home/anneliese/c"})
    plots = (homely.plot_matrix(), asked.plot_traces())
    for words in (homely._repr_html_(), repr(homely), repr(asked), asked._repr_html_(), homely.factors._repr_html_(),
                  repr(homely.factors), *map(repr, plots)):  # fmt: skip
        assert "anneliese" not in words
    assert "~/b" in homely._repr_html_() and homely.causes[0].values["model"]["bad"] == "/home/anneliese/b"
    report = bisect_cfg.load(study(tmp_path / "s"))
    assert dict(zip(report.factors["name"], report.factors["known"], strict=True)) == {
        "bf16": "cause", "learning_rate": "cleared"
    }  # fmt: skip


TOKEN = "hf_" + "Ab1" * 10


def test_what_a_cell_prints_has_no_token_and_what_is_read_has_it() -> None:
    good = {"lr": 1, "hub_token": "opensesame12", "long": "x" * 999}
    bad = {"lr": 2, "hub_token": TOKEN, "long": "y" * 999}
    report = bisect_cfg.Bisection(good, bad, lambda c: c["hub_token"] != TOKEN, isolation="none").run()
    asked = report.ask({"lr": 3})
    other = bisect_cfg.Bisection(good, bad, lambda c: c["lr"] < 2, isolation="none").run()
    assert other.safe_configuration["hub_token"] == TOKEN == asked.values["hub_token"]
    for found in (report, other):
        cell = (found, found.causes, found.causes[0].evidence, found.safe_configuration, asked, asked.values)
        pages = (found._repr_html_(), asked._repr_html_())
        frames = (found.trials.to_string(), found.factors.to_string(), repr(found.factors))
        for words in (*map(repr, cell), *pages, *frames):
            assert TOKEN not in words and "opensesame12" not in words
    assert "***" in repr(report.causes)
    assert "x" * 99 not in repr(report.causes) + str(report) + report._repr_html_().split("<details>")[0]


def test_a_failure_without_words_has_none_and_nothing_is_claimed_of_nothing() -> None:
    sides = {"good": {"a": 1}, "bad": {"a": 2}, "isolation": "none"}
    report = bisect_cfg.Bisection(**sides, trial=lambda c: c["a"] < 2).run()
    assert str(report).startswith(f"        {len(report.trials)} trials in ") and "fails:" not in report._repr_html_()
    undecided = bisect_cfg.Bisection(**sides, trial=lambda c: None).run()
    assert "        1 trial in " in str(undecided) and "1 trial in" in undecided._repr_html_()
    assert "RESULT  Nothing is settled yet." in str(undecided)
    assert undecided.ask({"a": 7}).note == "", "no failure is under study"


def test_the_report_of_a_function_says_what_a_script_s_does() -> None:
    def trial(configuration: dict) -> bool:
        if configuration["lr"] > 0.1 and not configuration["warm"]:
            raise ValueError("no good at 7")
        return True

    sides = {"good": {"lr": 1e-3, "warm": 10, "other": 1}, "bad": {"lr": 1.0, "warm": 0, "other": 2}}
    text = str(bisect_cfg.Bisection(**sides, trial=trial, isolation="none").run()).splitlines()
    assert text[1:4] == [
        "CAUSE   lr = 1        good: 0.001",
        "        and warm = 0  good: 10",
        "        The trial fails: ValueError: no good at 7.",
    ]
    assert text[4].startswith("        Fails ") and "with these two alone; passes 1/1 with" in text[4]
    assert text[5:7] == [
        "        No other cause is left among the 3 settings that differ.",
        "FIX     lr = 0.001: that passes 2/2, all else as yours.",
    ]
    first = bisect_cfg.Bisection(**sides, trial=trial, isolation="none", first=True).run()
    assert "There may be other causes" in str(first)
    unset = {"good": {"env.MODE": None, "beta": None}, "bad": {"env.MODE": "strict", "beta": 1}}
    report = bisect_cfg.Bisection(**unset, trial=lambda c: c["env.MODE"] is None, isolation="none").run()
    assert "env.MODE = strict  good: not set" in str(report)


def test_one_more_trial_says_what_it_means_for_the_answer() -> None:
    runs = []

    def trial(configuration: dict) -> bool | None:
        runs.append(configuration)
        return None if configuration["beta"] == 7 else configuration["lr"] < 1e-4 or len(runs) > most

    most = 1000
    report = bisect_cfg.Bisection(**SIDES, trial=trial, isolation="none").run()
    asked = report.ask({"lr"})
    assert (asked.outcome, asked.note) == (Outcome.FAIL, "") and str(asked).startswith(f"Trial {asked.number}: only lr")
    assert asked.number in list(report.trials["number"]) and "font-weight:bold" in asked._repr_html_()
    most = 0
    assert "passes all the same: the failure is random, or something hides it" in report.ask({"lr", "beta"}).note
    assert report.ask({"beta": 3}).note == "" and report.ask({"beta": 7}).outcome is Outcome.UNRESOLVED
    with pytest.raises(InputError, match="cannot run a trial"):
        StudyReport(report.recorded).ask({"lr"})


def test_what_turns_the_writing_around_stays_out_of_pages_and_messages() -> None:
    name = "lr\u202e\nx"
    report = bisect_cfg.Bisection({name: 1}, {name: 2}, lambda c: c[name] < 2, isolation="none").run()
    assert "\u202e" not in report._repr_html_() + report.ask({name: 2})._repr_html_()
    with pytest.raises(InputError) as refused:
        report.ask("\u202e\n")
    assert "\u202e" not in str(refused.value) and len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize("nothing", [None, 5, ""])
def test_what_is_no_place_of_a_study(nothing) -> None:
    with pytest.raises(TypeError, match="takes the folder of a study or the address of a storage"):
        bisect_cfg.load(nothing)
    with pytest.raises(InputError, match="^/etc holds no study"):
        bisect_cfg.load("/etc")


def test_a_storage_that_is_made_is_its_owners_alone(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    address = f"sqlite:///{tmp_path / 'all.db'}?token=x"
    bisect_cfg.Bisection({"a": 1}, {"a": 2}, lambda c: c["a"] < 2, isolation="none", storage=address).run()
    assert (tmp_path / "all.db").stat().st_mode & 0o777 == 0o600
    assert not [one for one in recwarn if "token" in str(one.message)]
