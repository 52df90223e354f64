"""The rows of the dataset that a step is about, others in their place, and a training that begins at the data of a
later step. Real TRL: its reward function is told the rows that it really got."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import toys
from tools import slow

from bisect_cfg.probe.protocol import Intake, Origin, PlannedSteps, Resumed, StepRows

SCRIPT = f"""
    import json, sys, toy
    from trl import GRPOConfig

    told = json.loads(sys.argv[1])
    rows = told.pop("rows", 64)
    args = GRPOConfig(output_dir="out", **{{**dict({toys.settings(logging_steps=1, learning_rate=1e-2)}), **told}})
    data = toy.data(rows).add_column("row", list(range(rows)))

    def reward(completions, row, **kwargs):
        print("got", trainer.state.global_step + 1, json.dumps(list(dict.fromkeys(row))), flush=True)
        return toy.reward(completions)

    trainer = toy.trainer(args, train_dataset=data, reward_funcs=reward)
    trainer.train()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    return toys.write(tmp_path_factory.mktemp("batches"), SCRIPT)


def noted(run) -> dict[int, list[int]]:
    """Of the steps that it made: some batches are drawn before their step begins."""
    last = run.traces.before + len(run.traces.metrics.rows)
    return {told.step: told.rows for told in run.traces.all(StepRows) if told.step <= last}


def got(run) -> dict[int, list[int]]:
    """Step -> rows for which it made completions, in their order."""
    assert run.shown.signature is None, (run.folder / "log.txt").read_text()[-2000:]
    found: dict[int, list[int]] = {}
    for step, rows in re.findall(r"got (\d+) (\[.*?\])", (run.folder / "log.txt").read_text()):
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
    assert not noted(untold), "nobody has asked"
    wanted = {str(plain[2][0]): 5, str(plain[3][0]): 6}
    run = warm.run(script, json.dumps({"max_steps": 4}), steps=None, exchanged=wanted)
    assert got(run) == {**plain, 2: [5], 3: [6]} and noted(run) == got(run)


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


def test_other_settings_take_the_same_data(warm, script):
    whole = warm.run(script, json.dumps({"max_steps": 10}), steps=None, exchanged={})
    origin = Origin(None, 6, Intake(1, 1, 1))
    run = warm.run(script, json.dumps({"max_steps": 10, "gradient_accumulation_steps": 2}), steps=1, origin=origin)
    assert noted(run) == {4: [*noted(whole)[7], *noted(whole)[8]]}
