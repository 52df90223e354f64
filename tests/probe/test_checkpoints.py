"""Of several processes the first one decides when all of them save a checkpoint."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.probe import checkpoints
from bisect_cfg.probe.protocol import CheckpointOrders, CheckpointSaved, Intake, NoCheckpoints


def a_process(number: int, orders: CheckpointOrders) -> checkpoints.Saver:
    args = SimpleNamespace(world_size=2, process_index=number)
    model = SimpleNamespace(parameters=lambda: [])
    return checkpoints.Saver(SimpleNamespace(args=args, model=model, state=SimpleNamespace(global_step=0)), orders)


@given(
    st.lists(st.booleans(), min_size=20, max_size=60),
    st.sampled_from([Intake(1, 1, 1), Intake(4, 4, 1), Intake(4, 8, 2), Intake(2, 3, 2)]),
    st.sampled_from([None, 15, 30]),
    st.integers(0, 40),
)
def test_all_save_after_the_same_steps(first_comes_first, intake, before, fails_at):
    """Whichever of them comes first to the begin of a step; and none does once saving has failed."""
    done: dict[int, list[int]] = {0: [], 1: []}
    events, now = [], [0.0]

    def save(trainer, module, folder):
        if trainer.args.process_index == 0 and trainer.state.global_step >= fails_at > 0:
            raise OSError("disk full")
        done[trainer.args.process_index].append(trainer.state.global_step)

    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
        checkpoints, _save=save, record=SimpleNamespace(event=events.append, private=None),
        children=SimpleNamespace(state=SimpleNamespace(folder=folder)),
        origin=SimpleNamespace(intake_of=lambda trainer: intake), time=SimpleNamespace(monotonic=lambda: now[0]),
    ):  # fmt: skip
        both = []
        for number in (0, 1):
            with mock.patch.object(checkpoints.ranks, "rank", lambda number=number: number):
                both.append(a_process(number, CheckpointOrders(1 << 20, before)))
        for step, order in enumerate(first_comes_first, 1):
            now[0] += 1.0
            for one in both if order else both[::-1]:
                one.trainer.state.global_step = step
                one.after_step(None)
    told = [event.step for event in events if isinstance(event, CheckpointSaved)]
    assert told == done[0] and all(step * intake.accumulated % intake.batches == 0 for step in told)
    failed = any(isinstance(event, NoCheckpoints) for event in events)
    assert done[1][: len(done[0])] == done[0] and len(done[1]) - len(done[0]) <= failed  # it may have come there first
    assert told or failed or before
