"""The baselines of a script: a sound way to start trials, the bad configuration failing there, the good one training.

What is found lies in the study folder and its state, and is looked for there first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bisect_cfg.factors import Outcome
from bisect_cfg.script_study import Listener, Options
from bisect_cfg.study_folder import save_state
from bisect_cfg.targets.settings import RESOURCES
from bisect_cfg.trials.script import LEVELS, Run, ScriptRunner, load_run
from bisect_cfg.trials.verdict import judge

WARM_TRIES = 2
"""How often the bad configuration may pass at a start level before that level is given up: a failure can be random,
but a level that hides it is of no use."""

DEAR_FACTOR = 3.0
DEAR_SECONDS = 5.0
"""The good configuration cannot be afforded when its steps take this many times as long as those of the user's own,
and more than so many seconds each: library defaults can mean eight long completions where the user has one."""


class Baselines:
    """Finds them.

    Args:
        options: of the user.
        listener: hears of the phases and runs.
        folder: of the study.
        state: of the study, see `study_folder`.
        runner: its level, settings and horizon are set on the way.
        note: says a sentence to the user, once.
    """

    def __init__(
        self,
        options: Options,
        listener: Listener,
        folder: Path,
        state: dict[str, Any],
        runner: ScriptRunner,
        note: Callable[[str], None],
    ) -> None:
        self._options, self._listener, self._note = options, listener, note
        self._folder, self._state, self._runner = folder, state, runner
        self._unsound: dict[str, str] = {}  # level -> why trials cannot start there

    def find(self, bad_run: Run) -> tuple[list[Run], Run]:
        """Find the fastest way to start trials at which both configurations behave as they should.

        At a sound level the bad configuration fails as it does cold, and the good one passes. A script can make a
        level unsound in ways that only show in the second trial (it deletes a folder that all forks share), so a
        good configuration that dies is tried at the next level before it is believed.

        Returns:
            The runs of the bad configuration at the chosen level, and the run of the good one.
        """
        for level in self.levels():
            warm_runs = self._warm_start(level)
            if warm_runs is None:
                continue
            good_run = self._good_baseline(bad_run, level)
            outcome = self.outcome_of(good_run)
            if outcome is Outcome.UNRESOLVED and level != "cold":
                self._note(
                    f"Started at level {level} the good configuration ends with {good_run.seen.failure}; "
                    "trying a start from further back."
                )
                continue
            break
        self.keep("level", level)
        self._listener.run_finished("good baseline", good_run, outcome)
        return warm_runs, good_run

    def outcome_of(self, run: Run) -> Outcome:
        """What a baseline says; silent symptoms of the good configuration are the script's own."""
        return judge(run.seen, self._runner.is_failure, frozenset(run.seen.silent_kinds))[0]

    def levels(self) -> tuple[str, ...]:
        """The start levels still to be considered: none warmer than was settled before, or than the user allows."""
        wanted = [level for level in (self._state.get("level"), self._options.level) if level]
        return LEVELS[max((LEVELS.index(level) for level in wanted), default=0) :]

    def bring_up(self, level: str) -> bool:
        """Have trials start at a level; whether that is sound. If not, the user hears why, once."""
        reason = self._unsound.get(level) or self._runner.start_server(level)
        if reason is not None and level not in self._unsound:
            self._unsound[level] = reason
            self._note(f"Trials cannot start at level {level}: {reason}.")
        return reason is None

    def _warm_start(self, level: str) -> list[Run] | None:
        """Bring a level up and see the bad configuration fail there; None if the level is of no use."""
        self._listener.phase("warm start", f"level {level}")
        if self._state.get("level") == level:
            self._runner.level = level  # settled before; the server comes up when a trial needs it
        elif not self.bring_up(level):
            return None
        if level == "cold":
            return []
        runs = []
        for attempt in range(WARM_TRIES):
            run = self._run(f"bad-{level}-{attempt + 1}", self._runner.settings.bad)
            runs.append(run)
            outcome = self.outcome_of(run)
            self._listener.run_finished("warm start", run, outcome)
            if outcome is Outcome.FAIL:
                return runs
        shown = runs[-1].seen.failure
        self._note(
            f"Started at level {level} the bad configuration "
            f"{'passes' if shown is None else f'ends with {shown}'}; trying a start from further back."
        )
        return None

    def keep(self, key: str, value: Any) -> None:
        """Remember something in the study's state."""
        if self._state.get(key) != value:
            self._state[key] = value
            save_state(self._folder, self._state)

    def _run(self, name: str, configuration: dict[str, Any]) -> Run:
        known = load_run(self._folder, name)
        if known is not None:
            return known
        return self._runner.train(name, configuration, self._runner.horizon)

    def _good_baseline(self, bad_run: Run, level: str) -> Run:
        """Run the good configuration; move the user's resource settings into it if it cannot be afforded."""
        self._listener.phase("good baseline", "making sure the good configuration trains")
        moved = "moved" in self._state
        run = self._run(f"good-{level}{'-affordable' if moved else ''}", self._runner.settings.good)
        if not moved:
            reason = self._unaffordable(run, bad_run)
            names = [
                factor.name
                for factor in self._runner.settings.factors
                if factor.name.split(".")[0] in RESOURCES and factor.name not in self._options.only
            ]
            if reason and names:
                self.keep("moved", names)
                self.keep("moved_because", reason)
                self._runner.settings = self._runner.settings.without(names)
                run = self._run(f"good-{level}-affordable", self._runner.settings.good)
        if self._state.get("moved"):
            self._note(
                f"With the library's defaults the good configuration cannot be afforded here "
                f"({self._state['moved_because']}), so it keeps your {', '.join(self._state['moved'])}. "
                "Name them with --only to vary them all the same."
            )
        return run

    def _unaffordable(self, good: Run, bad: Run) -> str:
        if good.seen.died is not None and good.seen.died.kind == "out-of-memory":
            return "it runs out of memory"
        hung = good.seen.died is not None and good.seen.died.kind == "hang"
        if hung and not (bad.seen.died is not None and bad.seen.died.kind == "hang"):
            return "its steps take too long"
        theirs = bad.seen.pace or (bad.seen.seconds - self._runner.start_seconds)
        ours = good.seen.pace
        if ours is not None and ours > DEAR_SECONDS and ours > DEAR_FACTOR * theirs:
            return f"its steps take {ours:.0f} s, yours {theirs:.0f} s"
        return ""
