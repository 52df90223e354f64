"""Runs a training script and says where the time until its first step goes: ``python timed.py train.py``.

The clock starts with the process, and anew in a process that is forked from it. When the first optimizer step is over,
one line `PARTS {...}` is printed: seconds by part, each without the parts inside it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import sys
import time
from pathlib import Path

PARTS = (
    ("trl.trainer.grpo_config", "GRPOConfig.__post_init__", "building the configuration"),
    ("trl", "GRPOTrainer.__init__", "the trainer's constructor"),
    ("transformers", "Trainer.create_accelerator_and_postprocess", "accelerate's constructor"),
    ("gc", "collect", "collecting garbage (accelerate)"),
    ("transformers", "Trainer.get_train_dataloader", "the data loader"),
    ("transformers", "Trainer.create_optimizer", "the optimizer"),
    ("transformers", "Trainer.create_scheduler", "the schedule"),
    ("accelerate", "Accelerator.prepare", "accelerate's preparation"),
    ("_bisect_cfg_probe.training", "_record_begin", "the probe's own record"),
    ("transformers", "Trainer.train", "the rest of the trainer's setup"),
)
"""What is timed: module, name in it, what it is."""

SCRIPT = "the script: model, tokenizer, data"
FIRST_STEP = "the first step (generation, loss, optimizer)"


class Clock:
    """Seconds by part; the innermost part that is running gets them."""

    def __init__(self) -> None:
        self.running = [SCRIPT]
        self.restart()

    def restart(self) -> None:
        """Begin at zero, in the middle of whatever runs."""
        self.seconds: dict[str, float] = {}
        self.since = time.perf_counter()

    def turn(self) -> None:
        """Give the time since the last turn to the part that runs."""
        now = time.perf_counter()
        part = self.running[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.since
        self.since = now

    def timed(self, function, part):
        """The same function, its time taken."""

        @functools.wraps(function)
        def inner(*args, **kwargs):
            self.turn()
            self.running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.turn()
                self.running.pop()

        return inner


def main() -> None:
    """Set the clock and run the script that is named on the command line."""
    clock = Clock()
    os.register_at_fork(after_in_child=clock.restart)
    for module, path, part in PARTS:
        if module not in sys.modules and module.startswith("_"):
            continue  # there is no probe in a run by hand
        owner = importlib.import_module(module) if module != "gc" else gc
        *above, name = path.split(".")
        for step in above:
            owner = getattr(owner, step)
        setattr(owner, name, clock.timed(getattr(owner, name), part))

    from transformers.trainer_callback import CallbackHandler

    begin, end = CallbackHandler.on_step_begin, CallbackHandler.on_step_end

    def on_step_begin(self, *args, **kwargs):
        if clock.running[-1] != FIRST_STEP:
            clock.turn()
            clock.running.append(FIRST_STEP)
        return begin(self, *args, **kwargs)

    def on_step_end(self, *args, **kwargs):
        clock.turn()
        CallbackHandler.on_step_begin, CallbackHandler.on_step_end = begin, end
        print("\nPARTS " + json.dumps(clock.seconds), flush=True)
        return end(self, *args, **kwargs)

    CallbackHandler.on_step_begin, CallbackHandler.on_step_end = on_step_begin, on_step_end
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
