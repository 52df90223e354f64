"""The rows of the dataset that a step is about, those of the failing run first, others in their place, and a training
that begins at the data of a later step. Real TRL: its reward function is told the rows that it really got."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import toys
from tools import slow

from bisect_cfg.probe.protocol import FailingData, Intake, Origin, PlannedSteps, Resumed, StepRows

SCRIPT = f"""
    import json, sys, toy
    from trl import GRPOConfig

    told = json.loads(sys.argv[1])
    rows, longer = told.pop("rows", 64), told.pop("longer", [])
    several = told.pop("several", False)
    args = GRPOConfig(output_dir="out", **{{**dict({toys.settings(logging_steps=1, learning_rate=1e-2)}), **told}})
    data = toy.data(rows).add_column("row", list(range(rows)))
    data = data.map(lambda row: {{"prompt": " ".join([row["prompt"]] * (1 + (row["row"] in longer)))}})

    def reward(completions, row, **kwargs):
        what = "got" if trainer.model.training else "evaluated"
        print(what, trainer.state.global_step + 1, json.dumps(list(dict.fromkeys(row))), flush=True)
        return toy.reward(completions)

    few = data.select(range(min(6, rows)))
    few = {{"few": few}} if several else few
    trainer = toy.trainer(args, train_dataset=data, eval_dataset=few, reward_funcs=reward)
    trainer.train()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    return toys.write(tmp_path_factory.mktemp("batches"), SCRIPT)


def noted(run) -> dict[int, list[int]]:
    """Of the steps that it made: some batches are drawn before their step begins."""
    last = run.traces.before + len(run.traces.metrics.rows)
    return {told.step: told.rows for told in run.traces.all(StepRows) if told.step <= last and not told.evaluated}


def got(run, what: str = "got") -> dict[int, list[int]]:
    """Step -> rows for which it made completions, in their order."""
    assert run.shown.signature is None, (run.folder / "log.txt").read_text()[-2000:]
    found: dict[int, list[int]] = {}
    for step, rows in re.findall(what + r" (\d+) (\[.*?\])", (run.folder / "log.txt").read_text()):
        found.setdefault(int(step), []).extend(json.loads(rows))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        slow({"rows": 3, "max_steps": 8}),
        slow({"num_generations": 2, "gradient_accumulation_steps": 3}),
        slow({"num_iterations": 2}),
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2},
        {"dataloader_num_workers": 1},
    ],
)
def test_the_rows_of_each_step_are_noted(warm, script, settings):
    run = warm.run(script, json.dumps({"max_steps": 4, **settings}), steps=None, exchanged={})
    theirs, ours = got(run), noted(run)
    assert len(ours) == settings.get("max_steps", 4)
    last = None
    for step in sorted(ours):  # where completions are used again, the rows are those they were made for
        last = theirs.get(step, last)
        assert sorted(ours[step]) == sorted(last)
    one = run.traces.event(StepRows)
    assert one.total == settings.get("rows", 64) and one.characters == [len("1 + 2 =")] * len(one.rows)


def test_rows_are_exchanged(warm, script):
    untold = warm.run(script, json.dumps({"max_steps": 4}), steps=None)
    plain = got(untold)
    assert untold.traces.event(StepRows).characters == [None], "nobody has asked"
    wanted = {str(plain[2][0]): 5, str(plain[3][0]): 6}
    run = warm.run(script, json.dumps({"max_steps": 4}), steps=None, exchanged=wanted)
    assert got(run) == {**plain, 2: [5], 3: [6]} and noted(run) == plain, "noted are those in whose place they come"


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (6, {}),
        slow(7, {"rows": 3, "max_steps": 12}),
        slow(6, {"num_iterations": 2}),
        (4, {"gradient_accumulation_steps": 2, "warmup_steps": 20}),
        slow(5, {"beta": 0.0, "lr_scheduler_type": "cosine"}),
    ],
)
def test_without_a_checkpoint_only_the_data_and_the_schedule_are_further(warm, script, step, settings):
    told = json.dumps({"max_steps": 10, **settings})
    whole = warm.run(script, told, steps=None, exchanged={})
    origin = Origin(None, step, whole.traces.event(PlannedSteps).intake)
    run = warm.run(script, told, steps=3, origin=origin)
    assert got(run) and noted(run) == {at: noted(whole)[at] for at in (step + 1, step + 2, step + 3)}
    assert run.traces.event(Resumed).checkpoint is None and run.traces.before == step
    rates = [[row["learning_rate"] for row in one.traces.metrics.rows] for one in (run, whole)]
    assert rates[0] == rates[1][step : step + 3]
    again, other = (warm.run(script, told, steps=3, origin=Origin(None, step, draw=draw)) for draw in (0, 1))
    rewards = [[row.get("reward") for row in one.traces.metrics.rows] for one in (run, again, other)]
    assert rewards[0] == rewards[1] != rewards[2]


def test_other_settings_take_the_same_data_from_the_same_step_on(warm, script):
    whole = warm.run(script, json.dumps({"max_steps": 10}), steps=None, exchanged={})
    rows, intake = [*noted(whole)[7], *noted(whole)[8]], Intake(1, 1, 1)
    told, failing = {"max_steps": 10, "gradient_accumulation_steps": 2}, FailingData(rows, 2, intake)
    run = warm.run(script, json.dumps(told), steps=1, origin=Origin(None, 6, intake), failing=failing)
    assert noted(run) == {7: rows}


FIRST = [40, 3, 17, 9]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle_dataset": False, "gradient_accumulation_steps": 2},
        slow({"num_generations": 2, "gradient_accumulation_steps": 3}),
        slow({"steps_per_generation": 4, "gradient_accumulation_steps": 2}),
        slow({"dataloader_num_workers": 1, "seed": 7}),
        slow({"num_iterations": 2, "per_device_train_batch_size": 8}),
    ],
)
def test_the_rows_of_the_failing_run_come_first_in_whatever_batches(warm, script, settings):
    """And each other row as often as without them, in its own place or in that of one of them."""
    told = json.dumps({"rows": 48, "max_steps": 100, **settings})
    first = FailingData(FIRST, 4, Intake(1, 1, 1))
    plain, run = (warm.run(script, told, steps=52, failing=failing) for failing in (None, first))
    theirs, ours = ([row for rows in got(one).values() for row in rows] for one in (plain, run))
    epoch = len(dict.fromkeys(theirs))
    assert ours[:4] == FIRST and sorted(ours[:epoch]) == sorted(theirs[:epoch])
    moved = [row for row, own in zip(ours, theirs, strict=True) if row != own]
    assert {*moved} <= {*FIRST, *theirs[:4]}


@pytest.mark.parametrize("batch", [4, slow(8)])
def test_the_longest_rows_come_first(warm, script, batch):
    told = {"max_steps": 9, "longer": [50, 51][: batch // 4], "per_device_train_batch_size": batch}
    plain, run = (
        warm.run(script, json.dumps(told), steps=3, failing=failing)
        for failing in (None, FailingData([], longest=True))
    )
    assert sorted(got(run)[1]) == told["longer"] not in got(plain).values()
    moved = {step for step, rows in got(run).items() if rows != got(plain)[step]}
    assert moved <= {1} | {step for step, rows in got(plain).items() if {*rows} & {50, 51}}


def test_they_come_first_from_where_a_trial_begins(warm, script):
    """Also of one that takes its data otherwise, which makes more steps to come through them; what the failing run
    itself takes stays where it is."""
    told = json.dumps({"max_steps": 20})
    whole = warm.run(script, told, steps=None, exchanged={})
    intake = whole.traces.event(PlannedSteps).intake
    rows = [row for step in (7, 8) for row in noted(whole)[step]]
    origin, failing = Origin(None, 6, intake), FailingData(rows, 2, intake)
    same = warm.run(script, told, steps=3, origin=origin, failing=failing)
    assert got(same) == {step: noted(whole)[step] for step in (7, 8, 9)}
    told = json.dumps({"max_steps": 20, "shuffle_dataset": False})
    other = warm.run(script, told, steps=3, origin=origin, failing=failing)
    assert [got(other)[step] for step in (7, 8)] == [[row] for row in rows]
    twice = FailingData(rows, 2, Intake(2, 1, 1))
    assert sorted(noted(warm.run(script, told, steps=3, origin=origin, failing=twice))) == [7, 8, 9, 10, 11]


def test_one_of_several_sets_has_no_names_and_is_evaluated_all_the_same(warm, script):
    told = {"max_steps": 9, "per_device_eval_batch_size": 4, "eval_steps": 50, "eval_strategy": "steps"}
    failing = FailingData([], 2, None, evaluates=2)
    run = warm.run(script, json.dumps({**told, "several": True}), steps=4, failing=failing)
    assert {*got(run, "evaluated")} == {3}
    events = [event for event in run.traces.all(StepRows) if event.evaluated]
    assert [event.named for event in events] == [False] * 6 + [True] and not any(event.rows for event in events)


def test_an_evaluation_comes_when_the_failing_run_died_of_one(warm, script):
    """Its rows are noted batch by batch, and others can be taken in their place; without evaluations there is none."""
    every = {"max_steps": 9, "per_device_eval_batch_size": 4, "num_generations_eval": 2, "eval_steps": 50}
    failing = FailingData([], 2, None, evaluates=2)
    for strategy, steps in (("steps", {3}), ("no", set())):
        told = json.dumps({**every, "eval_strategy": strategy})
        run = warm.run(script, told, steps=4, failing=failing, exchanged={"5": 1})
        seen = got(run, "evaluated")
        assert {*seen} == steps
        events = [event for event in run.traces.all(StepRows) if event.evaluated]
        taken = [row for event in events for row in dict.fromkeys({5: 1}.get(row, row) for row in event.rows)]
        assert taken == [row for rows in seen.values() for row in rows]
        if steps:
            assert len(events) == 4 and not events[-1].rows and {event.step for event in events} == {2}
            assert {*seen[3]} == {0, 1, 2, 3, 4}, "row 1 in the place of row 5"
