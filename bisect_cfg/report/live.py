"""What the user sees while it runs: a live view on a terminal, a line a trial elsewhere, or nothing but the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bisect_cfg.common import words
from bisect_cfg.common.configuration import Outcome, Purpose, equal
from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.words import short_path
from bisect_cfg.probe.protocol import Origin, Resumed
from bisect_cfg.remedy.order import Left
from bisect_cfg.remedy.remedy import Attempt
from bisect_cfg.remedy.terms import Health
from bisect_cfg.report import sentences
from bisect_cfg.report.answer import Answer
from bisect_cfg.report.events import BisectionEvent, CauseFound, Listener, Progress, TrialFinished, TrialStarted
from bisect_cfg.report.insights import learned
from bisect_cfg.report.terminal import NARROW, Cleaned, Hanging, print_answer
from bisect_cfg.runner.runs import Run
from bisect_cfg.store.interface import TrialRequest
from bisect_cfg.targets.factors import Factors

OUTCOMES = {
    Outcome.PASS: ("passes", "green"),
    Outcome.FAIL: ("fails", "red"),
    Outcome.UNRESOLVED: ("unresolved", "yellow"),
}
"""The word and the colour of an outcome."""

SUSPICION_SHOWN = 0.05
"""From this probability on a factor has a line of its own in the live view."""

SUSPECTS_SHOWN = 8
"""So many have one at most: the view stays on the screen."""

BAR, NARROW_BAR = 12, 4
"""Columns of a bar that is full, on a terminal and on a narrow one."""

METRICS, NARROW_METRICS = ("loss", "grad_norm", "reward", "entropy", "learning_rate"), 2
"""What is shown of a running trial's last step, the first three that it has; two on a narrow terminal."""

REFRESH_SECONDS = 0.25
"""Often enough for a clock that counts seconds, and nothing beside a training."""

IN_TWO_LINES = 3
"""So many running trials at most have two lines each."""

SETTINGS_SHOWN = 24
"""More factors than this are not listed one by one."""

WITH_LINES = ("resume", "factors", "warm start", "good baseline", "isolate", "safe values")
"""Phases that say lines of their own. Of any other one is said when it begins, where nothing is redrawn."""


OUTCOME_WIDTH = len("unresolved")
"""Columns of the outcome in the lines of the runs: its longest word."""


def described(attempt: Attempt, settings: Factors | None) -> str:
    """What a run tries, in a few words."""
    known = {} if settings is None else {**settings.resolved, **settings.bad}
    changes = [
        f"{name}: {words.show(value, name)}"
        for name, value in attempt.configuration.items()
        if not equal(value, known.get(name))
    ]
    seed = f", {'run' if settings and not settings.seen else 'seed'} +{attempt.seed}" if attempt.seed else ""
    return f"{', '.join(changes) or 'your configuration'}{seed}"


def _run_line(number: int, word: str, style: str, asked: str, *said: str) -> Hanging:
    """One run in one line: what came out in a word, what it tested, and what else there is to say."""
    told = f"  ({', '.join(filter(None, said))})"
    row = Text.assemble((f"{number:>4}  ", "dim"), (f"{word:<{OUTCOME_WIDTH}}", style), f" {asked}", (told, "dim"))
    return Hanging(row, rest=OUTCOME_WIDTH + 7)


class Quiet(Listener):
    """Says nothing but the answer, and what was noted on the way."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self.console, self.verbose = console, verbose

    def answer(self, answer: Answer, folder: Path) -> None:
        for note in answer.notes:
            self.console.print(Text(note, style="yellow"))
        print_answer(self.console, answer, Path(short_path(folder)), self.verbose)


@dataclass(frozen=True)
class _Running:
    """A trial that runs: what it tests, its steps so far of at most so many, and the metrics of the last one."""

    asked: str = ""
    steps: int = 0
    horizon: int | None = None
    last: Row = field(default_factory=dict)


class View(Listener):
    """Tells the user what goes on: live (None: on a terminal that can redraw), or one line per event."""

    def __init__(self, console: Console, live: bool | None = None, verbose: bool = False) -> None:
        self.console, self.verbose = console, verbose
        self._live_wanted = console.is_terminal and not console.is_dumb_terminal if live is None else live
        self._live: Live | None = None
        self._drawing, self._over = threading.RLock(), threading.Event()
        self._phase = ("", "")
        self._phase_since = time.monotonic()
        self._running: dict[int | str, _Running] = {}
        self._ask_progress: Callable[[], Progress]
        self._progress: Progress | None = None
        self._settings: Factors | None = None
        self._learned = ""
        self._safe_runs = 0
        self._safe_left: Left | None = None

    def __enter__(self) -> Self:
        if self._live_wanted:
            self._live = Live(
                get_renderable=lambda: Cleaned(self._render()), console=self.console, auto_refresh=False, transient=True
            )
            self._live.__enter__()
            self._over.clear()
            threading.Thread(target=self._redraw, args=(self._live,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with self._drawing:
            if self._live is not None:
                self._live.__exit__(kind, error, trace)
                self._live = None

    def _redraw(self, live: Live) -> None:
        # Rich's own thread may redraw between the moment at which a line that is printed looks how many lines are to be
        # erased, and the moment at which it erases them: lines would be lost, and others stay.
        while not self._over.wait(REFRESH_SECONDS):
            with self._drawing:
                if live is self._live:
                    live.refresh()

    def answer(self, answer: Answer, folder: Path) -> None:
        self.__exit__(None, None, None)
        print_answer(self.console, answer, Path(short_path(folder)), self.verbose)

    # ------------------------------------------------------------------------------------------------ what is heard

    def phase(self, name: str, detail: str = "") -> None:
        self._phase, self._phase_since = (name, detail), time.monotonic()
        self._running.clear()
        if self._live is None and name not in WITH_LINES:
            self._line(f"{detail[0].upper()}{detail[1:]} ...")
        elif name == "resume":
            self._line(detail[0].upper() + detail[1:] + ".")
        if name == "where":
            self._progress = None  # the search is over
        self._changed()

    def note(self, text: str) -> None:
        self._line(Text(text, style="yellow"))

    def step(self, number: int | str, rows: Sequence[Row], horizon: int | None) -> None:
        running = self._running.get(number, _Running())
        self._running[number] = replace(running, steps=len(rows), horizon=horizon, last=rows[-1] if rows else {})
        self._changed()

    def run_finished(self, purpose: Purpose, run: Run, outcome: Outcome | None) -> None:
        if purpose == Purpose.BAD_BASELINE and outcome is Outcome.FAIL:
            seconds = words.duration(run.seen.seconds)
            self._line(Text.assemble("Your configuration ", (sentences.failure(run.shown), "red"), f"  ({seconds})"))
        elif purpose == Purpose.WARM_START and outcome is Outcome.FAIL:
            self._line(
                f"It fails the same way from a warm start{_from(run)} ({words.duration(run.seen.seconds)} a trial)."
            )
        elif purpose == Purpose.BAD_AGAIN and outcome is Outcome.FAIL:
            self._line(f"It fails the same way when it is run again{_from(run)} ({words.duration(run.seen.seconds)}).")
        elif purpose == Purpose.GOOD_BASELINE and outcome is Outcome.PASS:
            steps, took = words.count(run.seen.steps, "step"), words.duration(run.seen.seconds)
            does, how = ("trains", f": {steps} in {took}.") if run.seen.counted else ("passes", f" ({took}).")
            self._line(Text.assemble("The good configuration ", (does, "green"), how))

    def factors(self, settings: Factors) -> None:
        self._settings = settings
        verb = "differs" if len(settings.varied) == 1 else "differ"
        head = f"{words.count(len(settings.varied), 'setting')} {verb} from the good configuration"
        self._line(f"{head}: {_some([factor.name for factor in settings.varied])}.")
        if settings.not_varied:
            self._line(Text(f"Not varied: {words.with_reasons(settings.not_varied)}.", style="dim"))

    def isolating(self, settings: Factors, progress: Callable[[], Progress]) -> None:
        self._settings = settings
        self._ask_progress = progress
        self._progress = progress()

    def event(self, event: BisectionEvent) -> None:
        match event:
            case TrialStarted():
                self._running[event.request.number] = _Running(self._asked(event.request))
            case TrialFinished():
                self._running.pop(event.request.number, None)
                before = self._progress.tried if self._progress is not None else ()
                self._learned = learned(event.request.subset, event.outcome, before, self._names())
                self._trial_line(event)
            case CauseFound():
                names = " with ".join(f"{n}={words.show(v['bad'], n)}" for n, v in event.cause.values.items())
                self._line(Text.assemble(("Proven: ", "bold"), (names, "bold red")))
            case _:
                return
        self._progress = self._ask_progress()
        self._changed()

    def safe_runs_left(self, left: Left) -> None:
        self._safe_left = left

    def safe_run_started(self, number: int, attempt: Attempt) -> None:
        if not self._safe_runs:
            self._line("Looking for safe values ...")
        self._safe_runs += 1
        self._running[number] = _Running(described(attempt, self._settings), 0, attempt.steps)
        self._changed()

    def safe_run_finished(self, number: int, attempt: Attempt, health: Health, seconds: float) -> None:
        self._running.pop(number, None)
        word, style = ("healthy", "green") if health.healthy else ("unhealthy", "red")
        steps = words.count(attempt.steps, "step") if attempt.steps > 1 else "passes"
        said = steps if health.healthy else sentences.unhealthy(health)
        asked = described(attempt, self._settings)
        self._line(_run_line(number, word, style, asked, said, words.duration(seconds)))

    # ------------------------------------------------------------------------------------------------ what is shown

    def _changed(self) -> None:
        """What runs is another; a terminal is redrawn by a clock."""

    def _line(self, line: str | Text | Hanging) -> None:
        with self._drawing:
            self.console.print(line)

    def _names(self) -> list[str]:
        return [] if self._settings is None else [factor.name for factor in self._settings.varied]

    def _asked(self, request: TrialRequest) -> str:
        """What a trial tests, in a few words."""
        return words.subset(request.subset, self._names())

    def _trial_line(self, event: TrialFinished) -> None:
        outcome, result = event.outcome, event.result
        if outcome is Outcome.UNRESOLVED:
            said = f"a different failure: {result.signature}"
        elif outcome is Outcome.PASS:
            said = words.count(result.step, "step") if result.step is not None else ""
        elif result.step is None:
            said = ""
        else:
            said = f"step {result.step_of_training}" if result.step else "before training"
        word, style = OUTCOMES[outcome]
        asked = self._asked(event.request)
        self._line(_run_line(event.request.number, word, style, asked, said, words.duration(result.seconds)))

    def _render(self) -> Group:
        name, detail = self._phase
        seeking = name == "safe values"
        progress = None if seeking else self._progress
        width = self.console.width
        elapsed = words.duration(time.monotonic() - self._phase_since)
        said = detail or name
        head = Text(said[:1].upper() + said[1:], style="bold") if progress is None else _how_far(progress)
        if seeking and self._safe_left is not None:
            runs, seconds = self._safe_left.runs, self._safe_left.seconds
            head.append(f": {_to_go(runs, seconds)} if verifications are healthy", style="not bold")
        rows = Table.grid(padding=(0, 2))
        begins = "running" if self._settings and not self._settings.seen else "importing, loading, then training"
        trials = list(self._running.items())  # a trial's own thread may add its steps
        for number, running in trials:
            told = _running(running, width, "\n" if len(trials) <= IN_TWO_LINES else "  ", begins)
            rows.add_row(Text(f"  trial {number}" if running.asked else "", style="cyan"), told)
        if progress is not None:
            if self._learned:
                rows.add_row(Text("  learned", style="dim"), Text(self._learned))
            for label, content in self._board(progress, width):
                rows.add_row(Text(f"  {label}", style="dim"), content)
        return Group(Text.assemble(head, (f"  {elapsed}", "dim")), rows)

    def _board(self, progress: Progress, width: int) -> Iterator[tuple[str, Text]]:
        """Every factor: cause, suspected (how much), or ruled out."""
        proven = {name for cause in progress.causes for name in cause.parameters}
        if proven:
            yield "proven", Text(", ".join(name for name in self._names() if name in proven), style="bold red")
        open_ones = [name for name in self._names() if name not in proven and name not in progress.ruled_out]
        guilt = {name: progress.suspicion.get(name, 0.0) for name in open_ones}
        suspects = sorted((name for name in open_ones if guilt[name] >= SUSPICION_SHOWN), key=lambda name: -guilt[name])
        bar = BAR if width >= NARROW else NARROW_BAR
        longest = min(max(map(len, suspects), default=0), width // 2)
        block = "#" if self.console.options.ascii_only else "\u2588"
        for position, name in enumerate(suspects[:SUSPECTS_SHOWN]):
            shown = name if len(name) <= longest else name[: longest - 3] + "..."
            yield (
                "" if position else "suspects",
                Text.assemble(
                    f"{shown:<{longest}}  ", (f"{block * max(round(guilt[name] * bar), 1):<{bar}}", "cyan"),
                    f" {guilt[name]:>4.0%}",
                ),
            )  # fmt: skip
        rest = [name for name in open_ones if name not in suspects[:SUSPECTS_SHOWN]]
        if rest:
            less = f"less than {SUSPICION_SHOWN:.0%}: " if len(suspects) <= SUSPECTS_SHOWN and suspects else ""
            label = "open" if proven else "suspects"
            yield "" if suspects else label, Text(f"{less}{_some(rest)}")
        ruled_out = [name for name in self._names() if name in progress.ruled_out]
        if ruled_out:
            yield "cleared", Text(_some(ruled_out), style="dim")


def _from(run: Run) -> str:
    """Where a run began, to follow how it was started; "" if it was at its beginning."""
    resumed = run.traces.event(Resumed)
    return "" if resumed is None else f", {sentences.since(Origin(resumed.checkpoint, resumed.step))}"


def _how_far(progress: Progress) -> Text:
    """Trials done and to come, and the time that these may take."""
    done = (f"{words.count(progress.trials, 'trial')} done", "bold")
    if not progress.remaining[1]:
        return Text.assemble(done)
    return Text.assemble(done, f", {_to_go(progress.remaining, progress.left)} if the failure always shows")


def _to_go(runs: tuple[int, int], seconds: tuple[float, float]) -> str:
    """``3 to 5 to go (20 s to 1 min 5 s)``; each the least and the most."""
    many, took = (
        shown[0] if shown[0] == shown[1] else " to ".join(shown)
        for shown in (tuple(map(str, runs)), tuple(map(words.duration, seconds)))
    )
    return f"{many} to go" + (f" ({took})" if seconds[1] else "")


def _running(running: _Running, width: int, between: str, begins: str) -> Text:
    """What a trial tests; how far it is (what it does before its first step), and its last metrics."""
    if not running.steps:
        done = begins
    else:
        of = f" of at most {running.horizon}" if running.horizon else ""
        done = f"step {running.steps}{of}"
    known = [f"{name} {_number(value)}" for name in METRICS if (value := running.last.get(name)) is not None]
    metrics = known[: 3 if width >= NARROW else NARROW_METRICS]
    asked = f"{running.asked}{between}" if running.asked else ""
    return Text.assemble(asked, ("  ".join([done, *metrics]), "dim"), no_wrap=between != "\n", overflow="ellipsis")


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - SETTINGS_SHOWN
    return ", ".join(names[:SETTINGS_SHOWN]) + (f" and {more} more" if more > 0 else "")
