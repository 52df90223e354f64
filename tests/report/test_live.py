"""What the user reads while it runs: live, narrow, without colours, without a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console
from rich.text import Text

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import Resumed
from bisect_cfg.remedy.order import Left
from bisect_cfg.remedy.remedy import Aim, Attempt
from bisect_cfg.remedy.terms import Health
from bisect_cfg.report import live
from bisect_cfg.report.events import CauseFound, Progress, TrialFinished, TrialStarted
from bisect_cfg.report.json_lines import JsonLines
from bisect_cfg.report.live import Quiet, View
from bisect_cfg.store.interface import TrialRequest, TrialResult
from tests.report import made

DOCS = Path(__file__).resolve().parents[2] / "docs"
TRIED = ((frozenset({"bf16", "learning_rate"}), Outcome.FAIL), (frozenset(), Outcome.PASS))
SUSPICION = {"bf16": 0.48, "learning_rate": 0.001}
NOW = Progress(3, (), 2, (), tuple(SUSPICION), (), (2, 6), (1.0, 4.0), SUSPICION, TRIED)
REQUEST = TrialRequest(5, {}, frozenset({"bf16"}), Purpose.SEARCH, "Does bf16 alone fail?")


def screen(width: int, **options: object) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, **options)


@pytest.fixture
def view(tmp_path):
    seen = View(Console(file=io.StringIO(), width=300, no_color=True), live=False)
    settings = made.findings(tmp_path).settings
    seen.factors(settings)
    seen.isolating(settings, lambda: NOW)
    return seen


def said(view: View) -> str:
    return view.console.file.getvalue().splitlines()[-1]


def drawn(tmp_path: Path, width: int, **changes: object) -> list[str]:
    """The live view in the middle of a trial, after one that passed."""
    seen = View(screen(width), live=False)
    seen.isolating(made.findings(tmp_path).settings, lambda: dataclasses.replace(NOW, **changes))
    seen.event(TrialFinished(REQUEST, TrialResult(Outcome.PASS, None, "", 2.0, 10), Outcome.PASS))
    seen.event(TrialStarted(dataclasses.replace(REQUEST, number=6, subset=frozenset({"learning_rate"}))))
    seen.step(6, [{"step": 1, "time": 0.1, "loss": 0.31234, "grad_norm": "nan", "reward": 2.0}], 14)
    seen.console.file.truncate(0)
    seen.console.file.seek(0)
    seen.console.print(seen._render())
    return [line.rstrip() for line in seen.console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("outcome", "step", "line"),
    [
        (Outcome.PASS, 1, "   5  passes     yours without learning_rate  (1 step, 2.0 s)"),
        (Outcome.FAIL, 3, "   5  fails      yours without learning_rate  (step 3, 2.0 s)"),
        (Outcome.FAIL, 0, "   5  fails      yours without learning_rate  (before training, 2.0 s)"),
        (Outcome.UNRESOLVED, 3, "   5  unresolved yours without learning_rate  (a different failure: E, 2.0 s)"),
    ],
)
def test_a_trial_is_one_line(view, outcome, step, line):
    view.event(TrialFinished(REQUEST, TrialResult(outcome, "E", "", 2.0, step), outcome))
    assert said(view) == line


def test_what_is_proven_is_said_at_once(view):
    view.event(CauseFound(made.CAUSE))
    assert said(view) == "Proven: bf16=True"


def test_a_phase_that_says_nothing_of_its_own_is_said(view):
    view.phase("rows", "which of 8 rows make it fail")
    assert said(view) == "Which of 8 rows make it fail ..."
    view.phase("isolate", "")
    assert said(view) == "Which of 8 rows make it fail ..."


def test_the_first_run(view, tmp_path):
    view.run_finished(Purpose.BAD_BASELINE, made.run(tmp_path, made.DIED), Outcome.FAIL)
    assert said(view).startswith("Your configuration dies with SIGFPE") and said(view).endswith("(2.0 s)")
    before = dataclasses.replace(made.DIED, died=Signature("exception", "E"), trained=False, message="E: no.", place="")
    view.run_finished(Purpose.BAD_BASELINE, made.run(tmp_path, before), Outcome.FAIL)
    assert said(view) == "Your configuration dies before the first step of training with E: no  (2.0 s)"


@pytest.mark.parametrize(("checkpoint", "where"), [
    ("/s/checkpoint-296", "from step 296 of your run on"),
    (None, "with the weights of step 0 and the data from step 296 of your run on"),
])  # fmt: skip
def test_where_a_run_of_the_bad_configuration_began_is_said(view, tmp_path, checkpoint, where):
    run = made.run(tmp_path, made.DIED, Resumed(step=296, checkpoint=checkpoint))
    view.run_finished(Purpose.WARM_START, run, Outcome.FAIL)
    assert said(view) == f"It fails the same way from a warm start, {where} (2.0 s a trial)."


def test_the_live_view(tmp_path):
    head, *rest = drawn(tmp_path, 100)
    assert head.startswith("3 trials done, 2 to 6 to go (2.0 s to 24 s) if the failure always shows  ")
    assert rest == [
        "  trial 6   yours without bf16",
        "            step 1 of at most 14  loss 0.312  grad_norm nan  reward 2",
        "  learned   Without learning_rate your configuration passes: the failure needs it",
        "  suspects  bf16  ██████        48%",
        "            less than 5%: learning_rate",
    ]


def test_a_cause_that_is_proven_and_what_is_ruled_out(tmp_path):
    lines = drawn(tmp_path, 100, causes=(made.CAUSE,), ruled_out=("learning_rate",), remaining=(1, 6), jobs=4)
    assert lines[0].startswith("3 trials done, 1 to 6 to go (1.0 s to 8.0 s)")  # two rounds of four
    assert lines[-2:] == ["  proven   bf16", "  cleared  learning_rate"]


def test_what_is_left_while_safe_values_are_looked_for(tmp_path):
    seen = View(screen(200), live=False)
    seen.isolating(made.findings(tmp_path).settings, lambda: NOW)
    seen.phase("safe values", "looking for safe values")
    for left, words in (
        (Left((3, 7), (20.0, 90.0)), "3 to 7 to go (20 s to 90 s)"),
        (Left((1, 1), (4.0, 4.0)), "1 to go (4.0 s)"),
        (Left((1, 2), (0.0, 0.0)), "1 to 2 to go"),
    ):
        seen.safe_runs_left(left)
        seen.console.file.truncate(0)
        seen.console.print(seen._render())
        assert f"Looking for safe values: {words} if verifications are healthy" in seen.console.file.getvalue()


def test_nothing_is_lost_in_forty_columns(tmp_path):
    narrow, wide = drawn(tmp_path, 40), drawn(tmp_path, 300)
    assert max(map(len, narrow)) <= 40
    words = " ".join(narrow).split()
    for word in " ".join(wide[1:]).replace("█", "").replace("reward 2", "").split():
        assert word in words, word


def test_a_terminal_without_unicode(tmp_path):
    class Ascii(io.StringIO):
        encoding = "ascii"

    seen = View(Console(file=Ascii(), width=100, force_terminal=True, color_system=None), live=False)
    seen.isolating(made.findings(tmp_path).settings, lambda: NOW)
    seen.console.print(seen._render())
    assert "######" in seen.console.file.getvalue() and seen.console.file.getvalue().isascii()


@pytest.mark.parametrize(("variables", "redraws"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False)])
def test_a_terminal_that_cannot_redraw_has_lines(variables, redraws):
    out = io.StringIO()
    with View(Console(file=out, force_terminal=True, _environ=variables)) as seen:
        seen.note("something")
    assert ("\x1b[" in out.getvalue().replace("\x1b[33m", "").replace("\x1b[0m", "")) is redraws


def test_no_colour_is_one(tmp_path):
    out = io.StringIO()
    with View(Console(file=out, force_terminal=True, _environ={"TERM": "xterm-256color", "NO_COLOR": "1"})) as seen:
        seen.isolating(made.findings(tmp_path).settings, lambda: NOW)
        seen.event(TrialFinished(REQUEST, TrialResult(Outcome.FAIL, "E", "", 2.0, 3), Outcome.FAIL))
    assert "fails" in out.getvalue() and "\x1b[3" not in out.getvalue()


def test_nothing_is_redrawn_while_a_line_is_printed(tmp_path, monkeypatch):
    """Rich looks how many lines to erase, then draws what is printed: whatever is drawn between the two stays."""
    drawn = []

    class Slow(Text):
        def __rich_console__(self, console, options):
            before = len(drawn)
            time.sleep(3 * live.REFRESH_SECONDS)
            assert len(drawn) == before
            yield from super().__rich_console__(console, options)

    with View(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})) as seen:
        refresh = seen._live.refresh
        monkeypatch.setattr(seen._live, "refresh", lambda: (drawn.append(1), refresh()))
        while not drawn:  # it is redrawn at all
            time.sleep(0.01)
        seen._line(Slow("a line"))


@pytest.mark.parametrize("listener", [Quiet, lambda to: View(to, live=False)])
def test_the_answer_is_said_at_the_end_and_notes_on_the_way(tmp_path, listener):
    answer = made.answer(tmp_path, status="baseline_fails", report=None, good_run=None, notes=("Nothing differs.",))
    out = io.StringIO()
    with listener(Console(file=out, width=200, no_color=True)) as told:
        told.note("Nothing differs.")
        assert out.getvalue() == "" or not isinstance(told, Quiet)
        told.answer(answer, tmp_path / "s")
    assert "RESULT  The good configuration fails as well" in out.getvalue() and "Nothing differs." in out.getvalue()
    assert out.getvalue().splitlines()[-1] == f"MORE    bisect-cfg report {tmp_path}/s --open"


# ----------------------------------------------------------------------------------------------------------- JSON lines


@pytest.fixture(scope="module")
def schema():
    found = json.loads((DOCS / "json-lines.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def kinds(schema: jsonschema.Draft202012Validator) -> set[str]:
    return {one["properties"]["event"]["const"] for one in schema.schema["oneOf"]}


def test_every_event_is_a_line_as_the_schema_has_it(tmp_path, schema):
    out = io.StringIO()
    found = made.findings(tmp_path)
    attempt = Attempt({"bf16": False, "learning_rate": 1e-3}, 0, 30, Aim.VERIFY, "")
    with JsonLines(out) as told:
        told.phase("reproduce", "running")
        told.note("token=hf_AbCdEf1234567890")
        told.run_finished(Purpose.BAD_BASELINE, found.bad_run, Outcome.FAIL)
        told.factors(found.settings)
        told.isolating(found.settings, lambda: NOW)
        told.event(TrialStarted(REQUEST))
        for number in range(3):
            told.step(5, [{"step": number, "time": 0.1, "loss": float("nan"), "rewards/<script>": 1.0}], None)
        told.event(TrialFinished(REQUEST, TrialResult(Outcome.PASS, None, "", 2.0, 10), Outcome.PASS))
        told.event(CauseFound(made.CAUSE))
        told.safe_runs_left(Left((3, 7), (20.0, 90.0)))
        told.safe_run_started(6, attempt)
        told.safe_run_finished(6, attempt, Health(False, why="entropy fell"), 1.0)
        told.answer(made.answer(tmp_path), tmp_path)
    with pytest.raises(InputError), JsonLines(out):
        raise InputError("It is not there.", "Look.")
    with pytest.raises(KeyboardInterrupt), JsonLines(out):
        raise KeyboardInterrupt
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    for line in lines:
        schema.validate(line)
    assert {line["event"] for line in lines} == kinds(schema)
    of = {line["event"]: line for line in lines}
    assert of["answer"]["result"]["causes"][0]["parameters"] == {"bf16": {"good": False, "bad": True}}
    assert sum(line["event"] == "step" for line in lines) == 1 and of["step"]["metrics"]["loss"] == "nan"
    assert of["note"]["text"] == "token=***"
    assert of["trial_finished"]["learned"].startswith("Without learning_rate ")
    assert of["progress"]["trials_left"] == [2, 6] and of["progress"]["seconds_left"] == [2.0, 24.0]


def test_the_events_are_documented(schema):
    text = (DOCS / "json-lines.md").read_text()
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert {name for cell in first for name in cell.replace("`", "").replace(",", " ").split()} == kinds(schema)
