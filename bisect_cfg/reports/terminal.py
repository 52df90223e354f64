"""What the user sees: a live view while trials run, plain lines where there is no terminal, and the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bisect_cfg.capture.launched import PROCESSES
from bisect_cfg.capture.settings import Settings
from bisect_cfg.capture.target import CommandTarget, Sides
from bisect_cfg.configuration import Outcome, Purpose, configuration_of
from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.recommend.attempts import Attempt
from bisect_cfg.recommend.isolated import Health
from bisect_cfg.reports import answer as answers
from bisect_cfg.reports import text
from bisect_cfg.reports.console import Cleaned
from bisect_cfg.reports.events import BisectionEvent, CauseFound, Progress, TrialFinished, TrialStarted
from bisect_cfg.reports.listener import Listener
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.reports.safe_values import OUTCOME_WIDTH, described, print_recommendation, run_line
from bisect_cfg.reports.said import Line, said
from bisect_cfg.study.causes import Cause
from bisect_cfg.study.folder import STUDIES
from bisect_cfg.study.interface import TrialRequest
from bisect_cfg.trials.environments import CACHE
from bisect_cfg.trials.runs import Run
from bisect_cfg.trials.start_points import STARTS

OUTCOMES = {
    Outcome.PASS: ("passes", "green"),
    Outcome.FAIL: ("fails", "red"),
    Outcome.UNRESOLVED: ("unresolved", "yellow"),
}
"""The word and the colour of an outcome."""

SUSPICION_SHOWN = 0.05
"""From this probability on a factor has it beside its name in the live view."""

REFRESH_PER_SECOND = 8
"""Smooth enough for a clock that counts seconds, and nothing beside a training."""

OTHER_STEPS = 0.1
"""Above this share of difference the step of a cause's run and that of the user's run are not the same data."""

SETTINGS_SHOWN = 24
"""More factors than this are not listed one by one."""


class View(Listener):
    """Tells the user what goes on. Live on a terminal, one line per event elsewhere.

    Args:
        console: where to.
        live: whether to redraw; None: if the console is a terminal.
    """

    def __init__(self, console: Console, live: bool | None = None) -> None:
        self.console = console
        self._live_wanted = console.is_terminal if live is None else live
        self._live: Live | None = None
        self._phase = ("", "")
        self._phase_since = time.monotonic()
        self._running: dict[int | str, tuple[str, int, int | None]] = {}
        self._ask_progress: Callable[[], Progress]
        self._progress: Progress | None = None
        self._settings: Settings | Sides | None = None
        self._safe_runs = 0

    def __enter__(self) -> View:
        if self._live_wanted:
            self._live = Live(
                get_renderable=lambda: Cleaned(self._render()),
                console=self.console,
                refresh_per_second=REFRESH_PER_SECOND,
                transient=True,
            )
            self._live.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        if self._live is not None:
            self._live.__exit__(*details)
            self._live = None

    # ------------------------------------------------------------------------------------------------ what is heard

    def phase(self, name: str, detail: str = "") -> None:
        self._phase, self._phase_since = (name, detail), time.monotonic()
        self._running.clear()
        if self._live is None and name == "reproduce":
            self._line(f"{detail[0].upper()}{detail[1:]} ...")
        elif name == "resume":
            self._line(detail[0].upper() + detail[1:] + ".")
        elif name == "where":
            self._progress = None  # the search is over

    def note(self, text: str) -> None:
        self._line(Text(text, style="yellow"))

    def step(self, number: int | str, steps: int, horizon: int | None) -> None:
        asked = self._running.get(number, ("", 0, None))[0]
        self._running[number] = (asked, steps, horizon)

    def run_finished(self, purpose: Purpose, run: Run, outcome: Outcome | None) -> None:
        if purpose == Purpose.BAD_BASELINE and outcome is Outcome.FAIL:
            seconds = text.duration(run.seen.seconds)
            self._line(Text.assemble("Your configuration ", (text.failure(run.seen), "red"), f"  ({seconds})"))
        elif purpose == Purpose.WARM_START and outcome is Outcome.FAIL:
            self._line(f"It fails the same way from a warm start ({text.duration(run.seen.seconds)} a trial).")
        elif purpose == Purpose.BAD_AGAIN and outcome is Outcome.FAIL:
            self._line(f"It fails the same way when it is run again ({text.duration(run.seen.seconds)}).")
        elif purpose == Purpose.GOOD_BASELINE and outcome is Outcome.PASS:
            steps, took = text.count(run.seen.steps, "step"), text.duration(run.seen.seconds)
            does, how = ("trains", f": {steps} in {took}.") if run.seen.counted else ("passes", f" ({took}).")
            self._line(
                Text.assemble(
                    ("The good configuration ", ""), (does, "green"), how,
                )
            )  # fmt: skip

    def factors(self, settings: Settings | Sides) -> None:
        self._settings = settings
        names = ", ".join(factor.name for factor in settings.factors[:SETTINGS_SHOWN])
        more = f" and {len(settings.factors) - SETTINGS_SHOWN} more" if len(settings.factors) > SETTINGS_SHOWN else ""
        verb = "differs" if len(settings.factors) == 1 else "differ"
        head = f"{text.count(len(settings.factors), 'setting')} {verb} from the good configuration"
        self._line(f"{head}: {names}{more}.")
        if settings.not_varied:
            self._line(Text(f"Not varied: {text.with_reasons(settings.not_varied)}.", style="dim"))

    def isolating(self, settings: Settings | Sides, progress: Callable[[], Progress]) -> None:
        self._settings = settings
        self._ask_progress = progress
        self._progress = progress()

    def event(self, event: BisectionEvent) -> None:
        match event:
            case TrialStarted():
                self._running[event.request.number] = (self._asked(event.request), 0, None)
            case TrialFinished():
                self._running.pop(event.request.number, None)
                self._trial_line(event)
            case CauseFound():
                names = " with ".join(f"{n}={text.show(v['bad'])}" for n, v in event.cause.values.items())
                self._line(Text.assemble(("Proven: ", "bold"), (names, "bold red")))
            case _:
                return
        self._progress = self._ask_progress()

    def safe_run_started(self, number: int, attempt: Attempt) -> None:
        if not self._safe_runs:
            self._line("Looking for safe values ...")
        self._safe_runs += 1
        self._running[number] = (described(attempt, self._settings), 0, attempt.steps)

    def safe_run_finished(self, number: int, attempt: Attempt, health: Health, seconds: float) -> None:
        self._running.pop(number, None)
        self._line(run_line(number, described(attempt, self._settings), attempt, health, seconds))

    # ------------------------------------------------------------------------------------------------ what is shown

    def _line(self, line: str | Text) -> None:
        self.console.print(line, highlight=False)

    def _asked(self, request: TrialRequest) -> str:
        """What a trial tests, in a few words."""
        return text.subset(request.subset, [factor.name for factor in self._settings.factors])

    def _trial_line(self, event: TrialFinished) -> None:
        outcome, result = event.outcome, event.result
        if outcome is Outcome.UNRESOLVED:
            said = f"a different failure: {result.signature}"
        elif outcome is Outcome.PASS:
            said = text.count(result.step, "step") if result.step is not None else ""
        elif result.step is None:
            said = ""
        else:
            said = f"step {result.step_of_training}" if result.step else "before training"
        word, style = OUTCOMES[outcome]
        row = Text.assemble(
            (f"{event.request.number:>4}  ", "dim"),
            (f"{word:<{OUTCOME_WIDTH}}", style),
            f" {self._asked(event.request)}",
            (f"  ({', '.join(filter(None, (said, text.duration(result.seconds))))})", "dim"),
            overflow="ellipsis",
            no_wrap=self._live is not None,
        )
        self._line(row)

    def _render(self) -> Group:
        name, detail = self._phase
        parts: list[RenderableType] = []
        elapsed = text.duration(time.monotonic() - self._phase_since)
        progress = None if name == "safe values" else self._progress
        if progress is None:
            parts.append(Text.assemble((f"{detail or name} ", "bold"), (elapsed, "dim")))
            for asked, steps, horizon in self._running.values():
                of = f" of at most {horizon}" if horizon else ""
                done = f"{text.count(steps, 'step')}{of}" if steps else "importing, loading, then training"
                parts.append(Text.assemble("  ", (f"{asked}  " if asked else "", "cyan"), (done, "dim")))
            return Group(*parts)
        left = progress.remaining * progress.seconds
        parts.append(
            Text.assemble(
                (f"{text.count(progress.trials, 'trial')} done", "bold"),
                f", about {progress.remaining} to go (about {text.duration(left)})  ",
                (elapsed, "dim"),
            )
        )
        for asked, steps, horizon in self._running.values():
            of = f"/{horizon}" if horizon else ""
            parts.append(
                Text.assemble(("  testing ", ""), (asked, "cyan"), (f"  step {steps}{of}", "dim"), no_wrap=True)
            )
        parts.append(Padding(self._board(progress), (0, 0, 0, 2)))
        return Group(*parts)

    def _board(self, progress: Progress) -> Text:
        """Every factor: cause, suspected (how much), or ruled out."""
        causes = {name for cause in progress.causes for name in cause.parameters}
        ruled_out = set(progress.ruled_out)
        board = Text()
        for factor in self._settings.factors:
            if factor.name in causes:
                board.append(factor.name, style="bold red")
            elif factor.name in ruled_out:
                board.append(factor.name, style="dim strike")
            else:
                board.append(factor.name)
                guilt = progress.suspicion.get(factor.name, 0.0)
                board.append(f" {guilt:.0%}" if guilt >= SUSPICION_SHOWN else "", style="cyan")
            board.append("  ")
        return board


# ------------------------------------------------------------------------------------------------------- the answer


def told(answer: Answer, result: JsonObject) -> list[Line]:
    """The answer as `print_answer` prints it, for reports."""
    return said(lambda console: print_answer(console, answer, result))


def print_answer(console: Console, answer: Answer, result: JsonObject) -> None:
    """The answer in a few lines."""
    console.print()
    if answer.status == "no_failure":
        _print_no_failure(console, answer)
    elif answer.status == "baseline_fails" and answer.good_run is not None:
        _print_rows(console, answer)
        _print_baseline_fails(console, answer)
    elif answer.again or answer.status == "baseline_fails":
        console.print(Text("No cause could be isolated.", style="bold yellow"))  # why was said as a note
    elif answer.report is None:
        advice = "Nothing is settled yet. Run the same command again with more trials or time to continue."
        console.print(Text(advice, style="bold yellow"))
    else:
        _print_causes(console, answer, result)
    for finding in (result.get("placement") or {}).get("findings", ()):
        console.print(Text.assemble(("Placement  ", "bold"), f"{finding['text']}."))
        if finding["source"]:
            console.print(Text(f"       {finding['source']}", style="dim"))
    issue = result.get("known_issue")
    if issue and answer.status == "isolated":
        console.print(Text.assemble(("Known issue  ", "bold"), " ".join(issue["title"].split())))
        root = " ".join((issue["root_cause"] or issue["cures"][0]).split())
        source = issue["sources"][0]
        source = "Measured by this project, with tiny models on a CPU." if source == "measured" else source
        console.print(Text(f"       {root[:1].upper()}{root[1:]}"))
        console.print(Text(f"       {source}", style="dim"))
    if result.get("simulated"):
        console.print(Text(f"This study's fault is simulated: {result['simulated']}", style="yellow"))
    for warning in result["warnings"]:
        numbers = ", ".join(str(number) for number in warning["trials"][:6])
        more = ", ..." if len(warning["trials"]) > 6 else ""
        console.print(Text(f"Note: {warning['text']} ({numbers}{more}).", style="yellow"))
    for note in result["notes"]:
        if note not in answer.notes:  # those were said when they came up
            console.print(Text(note, style="yellow"))
    trials = text.count(len(result["trials"]), "trial")
    each = "" if isinstance(answer.script, CommandTarget) else f", each {STARTS[answer.start].said}"
    if "environments" in result:
        console.print(Text(_environments(result["environments"]), style="dim"))
    console.print(
        Text(
            f"{trials}{each}; {text.duration(answer.seconds)}. Everything is in "
            f"{answers.short_path(answer.folder)}/: look at report.html",
            style="dim",
        )
    )


def _environments(found: JsonObject) -> str:
    """The environments of trials with other packages, and how to be rid of them."""
    cache = answers.short_path(Path(found["folder"]))
    built = f"{found['built']} built in {text.duration(found['seconds'])}" if found["built"] else "all there already"
    prune = "bisect-cfg envs prune" + ("" if Path(cache) == Path(STUDIES) / CACHE else f" --env-cache {cache}")
    size = f"{max(1, round(found['bytes'] / 2**20))} MiB"
    return f"Ran in {text.count(found['used'], 'environment')} of other packages: {built}, {size}. To remove: {prune}"


def _print_no_failure(console: Console, answer: Answer) -> None:
    if not answer.bad_run.seen.counted:
        console.print(Text("Your configuration does not fail: exit status 0. Nothing to isolate.", style="bold"))
        return
    steps = text.count(answer.bad_run.seen.steps, "step")
    console.print(Text(f"Your configuration does not fail: {steps}, all healthy. Nothing to isolate.", style="bold"))
    console.print(
        "If it fails later: --until-failure goes on as long as it takes, --log FILE (of a run that failed) as long as "
        "that did. If it fails only on other hardware, run bisect-cfg there."
    )


def _print_baseline_fails(console: Console, answer: Answer) -> None:
    good_run = answer.good_run
    said = text.failure(good_run.seen)
    console.print(Text(f"The good configuration fails as well: it {said}.", style="bold red"))
    console.print(
        "So there is nothing to compare with. Use --good name=value or a good.yaml to choose values that "
        f"work here; its log is {answers.short_path(good_run.folder / 'log.txt')}.",
        highlight=False,
    )
    if answer.rows is None and good_run.seen.died is not None and good_run.seen.step_of_training:
        console.print("If it may be the data of that step: --isolate-data finds the row.", highlight=False)


def _print_causes(console: Console, answer: Answer, result: JsonObject) -> None:
    report = answer.report
    if not report.causes:
        console.print(Text("No cause could be proven.", style="bold yellow"))
    for number, cause in enumerate(report.causes, 1):
        title = "Cause" if len(report.causes) == 1 else f"Cause {number}"
        seen = answer.bad_run.seen
        if _in_one_process(cause, answer.settings):
            seen = replace(seen, rank=None)
        step = result["causes"][number - 1]["step"]
        _print_cause(console, title, cause, text.failure(seen, step), answer.origin, _other_steps(answer, step))
    if report.causes and (report.reproduction_rate or 1.0) < 1.0:
        low, high = report.reproduction_interval or (0.0, 1.0)
        console.print(
            f"The failure is random: of all runs with a cause it showed in {report.reproduction_rate:.0%} "
            f"(95 % interval: {low:.0%} to {high:.0%}).\n"
            "The counts above are of one configuration each; the answer weighs all runs.",
            highlight=False,
        )
    if report.causes:
        others = (
            "No other cause is left among the settings that differ."
            if report.complete
            else "There may be other causes: the search ended before that was settled."
        )
        console.print(others, highlight=False)
    _print_where(console, result["where"])
    _print_rows(console, answer)
    print_recommendation(console, answer, result)


def _in_one_process(cause: Cause, settings: Settings) -> bool:
    """Whether a cause was seen to fail in one process, whatever the user starts."""
    subset = cause.evidence.fails.subset
    return subset is not None and configuration_of(subset, settings.good, settings.bad).get(PROCESSES) == 1


def _other_steps(answer: Answer, step: int | None) -> str:
    """Where the steps of a cause's run take so much more or less data than the user's that their numbers are others."""
    theirs = answer.bad_run.seen.step_of_training
    if answer.origin is None or not step or not theirs or abs(step - theirs) <= OTHER_STEPS * theirs:
        return ""
    return f"(Its steps take other amounts of data than yours: your step {theirs} is about its step {step}.)"


def _print_cause(
    console: Console, title: str, cause: Cause, failure: str, origin: Origin | None, elsewhere: str
) -> None:
    table = Table.grid(padding=(0, 2))
    for position, name in enumerate(cause.parameters):
        value = cause.values[name]
        table.add_row(
            Text(title if position == 0 else "", style="bold"),
            Text(f"{'' if position == 0 else 'with '}{name} = {text.show(value['bad'])}", style="bold red"),
            Text(f"good: {text.show(value['good'])}", style="green"),
        )
    console.print(table)
    together = "them" if len(cause.parameters) > 1 else "it"
    claims = [f"Fails {cause.evidence.fails} with only {together} changed from the good configuration"]
    for name, claim in cause.evidence.without.items():
        claims.append(
            f"passes {claim} without {name}{_with(claim.note)}"
            if claim.subset is not None
            else f"without {name}: {claim.note}"
        )
    since = f" Shown {text.since(origin)}." if origin is not None else ""
    lines = [f"With {together} the run {failure}.", ", ".join(claims) + "." + since]
    if elsewhere:
        lines.append(elsewhere)
    if cause.companions:
        left_out = "it" if len(cause.companions) == 1 else "them"
        reason = f"without {left_out} they are invalid or end in a different failure"
        lines.append(f"These runs also had {', '.join(cause.companions)} as you have it: {reason}.")
    if cause.inseparable:
        names = " and ".join(cause.inseparable)
        lines.append(f"{names} cannot be told apart: no valid configuration changes only one of them.")
    _print_lines(console, lines)
    console.print()


def _with(note: str) -> str:
    return f" ({note})" if note else ""


def _print_rows(console: Console, answer: Answer) -> None:
    if answer.rows is not None:
        console.print(
            Text.assemble(("Row    " if len(answer.rows.guilty) == 1 else "Rows   ", "bold"), answer.rows.said())
        )


def _print_where(console: Console, where: JsonObject | None) -> None:
    if where is None:
        return
    console.print()
    lines = text.where(where)
    console.print(Text.assemble(("Where  ", "bold"), lines[0]))
    _print_lines(console, lines[1:])


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text("       " + line))
