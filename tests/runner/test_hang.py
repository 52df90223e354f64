"""When silence is a hang: runs in simulated time, without a process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bisect_cfg.common.json_files import write_json
from bisect_cfg.runner.hang import (
    HANG_SECONDS,
    HANG_TIMES,
    IN_TRAINING,
    KNOWN_TIMES,
    LOOK_SECONDS,
    PAUSE_SECONDS,
    PHASE_SECONDS,
    WITHIN,
    Patience,
    Silence,
)
from bisect_cfg.runner.runs import Pauses
from bisect_cfg.runner.watch import ending_of
from bisect_cfg.study.reproduce import FIRST_PATIENCE

LOOK = 0.02


class Simulated:
    """A run that trains, and the tool that looks at it, in simulated time."""

    def __init__(self, patience: Patience = FIRST_PATIENCE, training: bool = True) -> None:
        self.silence, self.now, self.training = Silence(patience), 0.0, training
        self.steps = self.beats = 0
        self.phase, self.places = "", ["anywhere"]

    def wait(self, seconds: float, look: float = LOOK) -> str | None:
        """Nothing happens for so long; why that is a hang, None if it is not."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + look, end)
            hang = self.silence.look(self.now, self.steps, (self.beats, self.phase), self.training, self.steps)
            if hang is not None:
                return hang
            if self.silence.wants_stacks:
                self.silence.add_stacks({*self.places[0].split("; ")} - {""})
                self.places = [*self.places[1:], self.places[0]]
        return None

    def beat(self, seconds: float) -> str | None:
        self.beats += 1
        return self.wait(seconds)

    def step(self, seconds: float, beats: int = 10) -> str | None:
        hangs = [self.beat(seconds / beats) for _ in range(beats)]
        self.steps += 1
        return next((hang for hang in hangs if hang), None)

    def announced(self, phase: str, seconds: float, *places: str, look: float = LOOK) -> str | None:
        """A slow phase, in which it stands at these places in turn whenever it is asked."""
        self.phase, self.beats, self.places = phase, self.beats + 1, [*places] or self.places
        hang = self.wait(seconds, look)
        self.phase, self.beats = "", self.beats + 1
        return hang or self.wait(LOOK)


def test_a_hang_after_steps_is_found_within_30_seconds_and_a_step_thirty_times_slower_is_none() -> None:
    run = Simulated()
    assert not any(run.step(2.0, beats=20) for _ in range(3))
    assert run.step(60.0, beats=20) is None  # its pauses, too, are thirty times as long
    run = Simulated()
    assert not any(run.step(1.0) for _ in range(3))
    at = run.now
    assert "no heartbeat for 20 s" in run.wait(1000)
    assert HANG_SECONDS < run.now - at < 30


@pytest.mark.parametrize("phase", ["reward call", "load", "first collective"])
def test_slow_phases_have_a_limit_of_their_own(phase: str) -> None:
    assert Simulated(replace(FIRST_PATIENCE, seen={phase: 100.0})).announced(phase, 900.0) is None
    hangs = Simulated()
    assert phase in hangs.announced(phase, 10000.0) and PHASE_SECONDS < hangs.now < PHASE_SECONDS + 1
    run = Simulated()
    assert not any(run.step(0.5) for _ in range(3))
    assert run.announced(phase, 60.0) is None
    assert run.announced(phase, 119.0) is None
    assert run.announced(phase, 700.0) is None, "it has been seen to take 119 s"
    assert run.silence.pauses[IN_TRAINING] < 1, "such silences say nothing of the others"
    at = run.now
    assert "no heartbeat" in run.wait(1000) and run.now - at < 30


@pytest.mark.parametrize(("training", "phase", "limit"), [(True, "", 120), (False, "", 1800), (False, "load", 1800)])
def test_a_run_has_time_while_nothing_is_known(training: bool, phase: str, limit: float) -> None:
    run = Simulated(training=training)
    run.phase = phase
    assert run.wait(limit - 1, look=0.5) is None
    assert run.wait(3, look=0.5)


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 1.0, None]), st.floats(0, 0.95), st.booleans()), min_size=1, max_size=10)
)
def test_no_run_is_a_hang_whose_pauses_grow_less_than_tenfold(pauses: list) -> None:
    run, longest = Simulated(), 0.0
    for fixed, share, step in pauses:
        limit = max(HANG_SECONDS, HANG_TIMES * longest) if run.steps else 120.0
        pause = fixed or share * min(limit, 300.0)
        assert run.wait(pause, look=0.3) is None
        run.beats += 1
        run.steps += step
        longest = max(longest, pause)
    at, run.steps = run.now, max(run.steps, 1)
    assert run.wait(10_000, look=0.5)
    assert run.now - at < max(HANG_SECONDS, HANG_TIMES * longest) + 6


@pytest.mark.parametrize(("code", "longest"), [(0, 15.0), (1, 0.1), (None, 0.1)])
def test_a_pause_at_the_end_counts_where_the_run_ended_well(code: int | None, longest: float) -> None:
    run = Simulated()
    run.step(1.0)
    assert run.wait(15.0) is None
    assert ending_of(run.silence, code, None, run.now).longest_silence == pytest.approx(longest, abs=0.2)


def test_time_in_which_nobody_looked_is_no_silence() -> None:
    run = Simulated()
    run.step(1.0)
    for _ in range(int(HANG_SECONDS / LOOK_SECONDS) - 5):
        run.now += 1000.0  # a laptop that slept, a tool that was stopped
        assert run.wait(LOOK) is None


def test_a_fixed_limit_counts_steps_alone() -> None:
    run = Simulated(Patience(60, 20, 5))
    assert run.step(1.0) is None
    hangs = [run.beat(1.0) for _ in range(8)]
    assert any(hang and "no optimizer step for 5 s" in hang for hang in hangs)


# ------------------------------------------------------------------------------------------------------ known hangs


def after(hang: float | None, *runs: list[tuple[str, float]]) -> Patience:
    """How patient the next run is after a run that hung in "judge" for so long (None: none did), and runs that passed,
    each with its pauses in reward calls: where, for how long."""
    pauses = Pauses()
    for seconds, told in ((hang, []), *((None, run) for run in runs)):
        run = Simulated()
        for place, pause in told:
            run.announced("reward call", pause, place, look=0.2)
        run.steps = 1
        why = run.announced("reward call", seconds, "judge", look=0.2) if seconds else None
        ending = ending_of(run.silence, None if why else 0, why, run.now)
        pauses.add(replace(ending, steps=0 if seconds else 1))
    return replace(FIRST_PATIENCE, seen=pauses.phases, hangs=pauses.hangs)


def until_hang(patience: Patience, *places: str, longest: float = 0.0) -> float | None:
    """Seconds after which a run that stands at these places in a reward call is called the known hang, after a pause
    that ended."""
    run = Simulated(patience)
    run.step(0.1)
    if longest:
        assert run.announced("reward call", longest, look=0.2) is None
    at = run.now
    why = run.announced("reward call", 1000.0, *(places or ["judge"]), look=0.2)
    return run.now - at if "where an earlier run hung" in why else None


FAST = [("", 0.1)]


def test_a_known_hang_is_not_waited_for_and_the_first_is() -> None:
    assert until_hang(after(None, FAST)) is None
    assert until_hang(after(300.0, FAST)) < PAUSE_SECONDS + 2
    assert until_hang(after(300.0, FAST), "elsewhere") is None
    assert until_hang(after(300.0, FAST), "judge", "elsewhere") is None, "it moves"
    assert until_hang(after(300.0, FAST), "elsewhere", "judge", "judge") is not None, "it has come to a stand there"
    assert until_hang(after(300.0)) is None, "nobody knows yet how long such a call may take"
    assert until_hang(replace(after(300.0), repeats=True)) < PAUSE_SECONDS + 2, "but of the configuration that hung"


LOOP = [f"line {number}; {WITHIN}judge" for number in range(5)]


def test_a_known_hang_in_a_loop_is_known_by_its_function() -> None:
    run = Simulated()
    why = run.announced("reward call", 300.0, *LOOP, look=0.2)
    known = replace(FIRST_PATIENCE, hangs=run.silence.stood, seen={"reward call": 0.1})
    assert why is not None and known.hangs == {f"{WITHIN}judge"}
    assert HANG_SECONDS <= until_hang(known, *reversed(LOOP)) < HANG_SECONDS + 2
    assert until_hang(known, "line 1", "line 2") is None, "of another function"
    slow = replace(known, seen={"reward call": 6.0})
    assert HANG_TIMES * 6.0 <= until_hang(slow, *LOOP) < HANG_TIMES * 6.0 + 2, "a call may take so long"
    run = Simulated(known)
    assert run.announced("reward call", HANG_SECONDS - 1, *LOOP, look=0.2) is None
    assert run.announced("reward call", PHASE_SECONDS - 1, *LOOP, look=0.2) is None, "it has paused there"


@given(st.floats(0.1, 60), st.floats(0.1, 60))
def test_a_known_hang_takes_five_times_the_longest_pause(own: float, earlier: float) -> None:
    wanted = max(PAUSE_SECONDS, KNOWN_TIMES * max(own, earlier))
    found = until_hang(after(300.0, [("elsewhere", earlier)]), longest=own)
    assert found is None or wanted - KNOWN_TIMES * 0.25 < found < wanted + 3
    assert found is not None or wanted > PHASE_SECONDS - 3, "as long as the ordinary limit"


PLACES = st.sampled_from(["judge", "generation", "saving", "logging"])
PAUSES = st.lists(st.tuples(PLACES, st.floats(1, 60)), max_size=4)


@example([[("judge", PAUSE_SECONDS + 0.3)]], [("judge", 60.0)])
@example([[]], [("judge", PAUSE_SECONDS + 0.3), ("judge", 60.0)])
@given(st.lists(PAUSES, min_size=1, max_size=4), PAUSES)
def test_a_place_where_a_run_has_paused_is_no_known_hang(runs: list, pauses: list) -> None:
    run = Simulated(after(300.0, FAST, *runs))
    seen = [pause for told in runs for place, pause in told if place == "judge"]
    for place, pause in pauses:
        why = run.announced("reward call", pause, place, look=0.2)
        if place != "judge" or any(pause > PAUSE_SECONDS + 0.2 for pause in seen):
            assert why is None
        elif why is not None:
            assert pause >= KNOWN_TIMES * (max([0.0, *seen]) - 0.4)
            return
        seen += [pause] if place == "judge" else []


def test_pauses_and_hangs_are_read_back_from_the_study(tmp_path) -> None:
    endings = (
        [],  # damaged, as those with a 7
        {"longest_silence": 3.0, "steps": 4, "phases": {"load": 50.0}, "paused": ["here", "there"]},
        {"longest_silence": 90.0, "steps": 0, "phases": {"load": 20.0}},
        {"phases": 7},
        {"paused": 7},
        {"longest_silence": 95.0, "exit_code": 1},
        {"exit_code": None, "hang": "no heartbeat", "stood": ["judge"]},
        {"exit_code": None, "hang": "no heartbeat", "stood": ["there"]},
    )
    for number, told in enumerate(endings):
        (tmp_path / f"trials/{number}").mkdir(parents=True)
        ending = {"exit_code": 0, "hang": None, "seconds": 1.0, **told} if told else told
        write_json(tmp_path / f"trials/{number}/ending.json", ending)
    pauses = Pauses.of(tmp_path)
    assert (pauses.silence, pauses.phases["load"], pauses.hangs) == (3.0, 50.0, {"judge"})
    assert pauses.passing == 90.0, "with or without steps: of a command nobody may know any"
