"""A site: this machine's part in a study. It starts the process of a plan, stays with it and says what came of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import shlex
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.json_files import make_folder, write_json, write_text
from bisect_cfg.probe.protocol import Encoded
from bisect_cfg.runner.environments import Environment, Environments
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import ENDING_FILE, Pauses, Run, load_run
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.supervisor import Supervisor
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.watch import Ending

COLD_SAME, COLD_OTHER = "same", "other"
"""What a cold run shows that repeats a warm one: the same failure, or something else."""

Progress = Callable[[int | str, Sequence[Row], int | None], None]
"""Called with trial number, metric rows so far and horizon while a trial runs."""


def inside(namespace: str, overrides: Mapping[str, Encoded]) -> dict[str, Encoded]:
    """The overrides of one namespace, by the rest of their names."""
    return {name.removeprefix(namespace): v for name, v in overrides.items() if name.startswith(namespace)}


class Site(ABC):
    """Runs plans on this machine. Thread-safe: parallel trials call it from a thread each.

    Args:
        folder: the study folder.
        timeout: seconds of silence that are called a hang; None: the site tells by the runs so far.
        devices: values of CUDA_VISIBLE_DEVICES, one for each parallel trial; empty: all trials see what we see.
        on_progress: see `Progress`.
        watched: whether a probe watches what is started.

    Attributes:
        environments: builds the environments of trials with packages of their own; None: no trial has any.
    """

    def __init__(
        self, folder: Path, timeout: float | None, devices: Sequence[str], on_progress: Progress, *, watched: bool
    ) -> None:
        self.folder = folder
        self.environments: Environments | None = None
        self._timeout, self._on_progress = timeout, on_progress
        self._supervisor = Supervisor(watched)
        self._pauses = Pauses.of(folder)
        self._interrupted = threading.Event()
        self._unneeded: set[int | str] = set()
        self._devices: queue.SimpleQueue[str] | None = queue.SimpleQueue() if devices else None
        for device in devices:
            self._devices.put(device)

    @property
    def start(self) -> str:
        """How trials start now."""
        return COLD

    # ------------------------------------------------------------------------------------------------------ running

    @abstractmethod
    def run(self, plan: Plan) -> Run:
        """Do what a plan says, to the end.

        Raises:
            KeyboardInterrupt: it was interrupted.
            CannotBuild: its packages cannot be installed together.
        """

    def sure(self, plan: Plan) -> tuple[Run, str]:
        """As `run`. Another failure than the one under study may come from a warm start: it is repeated cold, in the
        folder ``NAME-cold``, once for each such failure.

        Returns:
            The run that counts, and what the cold one showed (`COLD_SAME`, `COLD_OTHER`); "" if there was none.
        """
        return self.run(plan), ""

    def load(self, name: int | str) -> Run | None:
        """A run that came to its end, read back from its folder; None if there is none."""
        return load_run(self.folder, name)

    def program(self, command: Sequence[str], log: Path) -> int:
        """Run something that is no trial, with its output in a file, and return its exit code. It ends with the
        tool."""
        run = self._supervisor.start(command, os.environ, log.parent, log.name)
        try:
            return run.wait()
        finally:
            run.end()

    def interrupt(self) -> None:
        """End the running trials. None starts before `go_on`."""
        self._interrupted.set()

    def go_on(self) -> None:
        """Trials may start again. Call it once all that were interrupted have ended."""
        self._interrupted.clear()

    def end(self, name: int | str) -> None:
        """End one run, whose result can change nothing any more."""
        self._unneeded.add(name)

    def close(self) -> None:
        """End everything that was started; nothing of the study runs afterwards."""
        self._interrupted.set()  # a thread that still waits for a trial starts no other
        self._supervisor.close()

    # ------------------------------------------------------------------------------------------- what all runs need

    def _has_shown(self, plan: Plan, traces: Traces) -> bool:
        return plan.name in self._unneeded or plan.has_shown(traces)

    @contextlib.contextmanager
    def _device(self) -> Iterator[str | None]:
        """A device that no other trial has meanwhile; None where all see what we see."""
        if self._devices is None:
            yield None
            return
        device = self._devices.get()
        try:
            yield device
        finally:
            self._devices.put(device)

    def _environment(self, plan: Plan) -> Environment | None:
        """Where a run finds its packages; None for the user's environment."""
        return None if plan.requirements is None else self.environments.of(plan.requirements)

    def _new_folder(self, name: int | str) -> Path:
        folder = self.folder / "trials" / str(name)
        if folder.exists():  # of a trial that was interrupted: its traces are kept
            aside = (folder.with_name(f"{name}.interrupted-{i}") for i in itertools.count(1))
            folder.rename(next(path for path in aside if not path.exists()))
        make_folder(folder)
        return folder

    @staticmethod
    def _write_by_hand(folder: Path, *lines: str) -> None:
        """Write the shell commands that repeat a trial by hand."""
        head = ("#!/bin/sh", "# Repeats this trial by hand, with everything printed here.")
        write_text(folder / "command.sh", "\n".join([*head, f"cd {shlex.quote(os.getcwd())} || exit", *lines, ""]))

    def _write_ending(self, folder: Path, ending: Ending, **more: object) -> None:
        """Write how a run ended: from now on it counts."""
        write_json(folder / ENDING_FILE, {**asdict(ending), **more})
        self._pauses.add(ending, more["steps"])
