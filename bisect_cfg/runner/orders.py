"""What the probe of a run is told, and how a run with a probe is started cold, by us or by hand."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bisect_cfg.common.configuration import Purpose
from bisect_cfg.common.json_files import write_json, write_text
from bisect_cfg.probe.protocol import ORDERS_FILE, Cold, Encoded, TrialOrders, to_json
from bisect_cfg.runner.environments import Environment
from bisect_cfg.runner.fork_server import Starts, probe_environment
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.ranks import free_port, own_port
from bisect_cfg.targets import launch_settings
from bisect_cfg.targets.captured import Capture
from bisect_cfg.targets.factors import processes_in
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.pinned import varied_variables
from bisect_cfg.targets.shell_line import is_masked, shell_line


def inside(namespace: str, overrides: Mapping[str, Encoded]) -> dict[str, Encoded]:
    """The overrides of one namespace, by the rest of their names."""
    return {name.removeprefix(namespace): v for name, v in overrides.items() if name.startswith(namespace)}


def variables_from_start(plan: Plan, capture: Capture | None) -> dict[str, Encoded]:
    """The environment variables for which a run must start cold: a library may have read them by the time of a fork.
    Not those that the script was seen to read and nobody has named: a fork gets them when it reads them."""
    read, named = varied_variables(capture), capture.named if capture is not None else ()
    variables = inside(launch_settings.VARIABLE, plan.overrides or {})
    return {
        name: value for name, value in variables.items() if name not in read or launch_settings.VARIABLE + name in named
    }


def orders_of(plan: Plan, folder: Path, starts: Starts, *, jobs: int = 1, device: str | None = None) -> TrialOrders:
    """What the probe of a run in this folder is told.

    Args:
        plan, folder: of the run.
        starts: what is known of the script, in the user's own environment.
        jobs: how many runs there are at once.
        device: that it alone has; None: all that we see.
    """
    capture, launched = starts.capture, starts.launched
    overrides = dict(plan.overrides or {})
    deepspeed = _write_deepspeed_file(overrides, folder, capture)
    started = capture is not None and capture.started
    env: dict[str, str | None] = {}
    if plan.purpose is not Purpose.BAD_BASELINE:
        env |= own_port(os.environ)
    if (
        overrides.get(launch_settings.LAUNCHER) == launch_settings.PYTHON
        and launched is not None
        and capture is not None
    ):
        env |= launch_settings.without_launcher(launched.given[0], capture.accelerate)
    launch = {name: value for name, value in overrides.items() if name.startswith("launch.")}
    if launch:
        accelerate = launch_settings.ask_accelerate(starts.target.python) if capture is None else capture.accelerate
        for name, value in launch.items():
            env |= accelerate.variables_of(name, value)
    elsewhere = ("launch.", PACKAGE, *(launch_settings.VARIABLE + name for name in variables_from_start(plan, capture)))
    env |= {**deepspeed, **({} if device is None else {"CUDA_VISIBLE_DEVICES": device})}
    launcher = overrides.get(launch_settings.LAUNCHER)
    if plan.instruments is not None:
        env["CUDA_LAUNCH_BLOCKING"] = "1"
    return TrialOrders(
        str(folder),
        {name: value for name, value in overrides.items() if not name.startswith(elsewhere)},
        targets=plan.targets,
        steps=plan.steps,
        opened=plan.opened,
        stop_when_non_finite=plan.stop is not StopRule.DEATH,
        env=env,
        started=started,
        port=free_port() if started and launched is None else None,
        instruments=plan.instruments,
        threads=max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None,
        processes=None if capture is None else processes_in(capture.args, overrides),
        launcher=launcher if isinstance(launcher, str) else None,
        origin=plan.origin,
        failing=plan.failing,
        checkpoints=plan.checkpoints,
        least_seconds=plan.least_seconds,
        exchanged=None if plan.exchanged is None else {str(row): other for row, other in plan.exchanged.items()},
    )


def _write_deepspeed_file(overrides: dict[str, Encoded], folder: Path, capture: Capture | None) -> dict[str, str]:
    """Write a DeepSpeed file for a run that is to have another one than the user's.

    Returns:
        The environment variables that name it, where the launcher names the user's; where the training arguments do,
        it is added to the overrides.
    """
    changes = inside(launch_settings.DEEPSPEED_FILE, overrides)
    if not changes or capture is None or capture.deepspeed is None:
        return {}
    path = folder / "deepspeed.json"
    write_json(path, launch_settings.with_leaves(capture.deepspeed.content, changes))
    if capture.deepspeed.of_launcher:
        return {launch_settings.DEEPSPEED_FILE_VARIABLE: str(path)}
    overrides.setdefault("args.deepspeed", str(path))
    return {}


def write_cold_orders(
    plan: Plan, orders: TrialOrders, starts: Starts, environment: Environment | None
) -> tuple[list[str], dict[str, str]]:
    """Write the orders for a cold start, and the command that repeats the run by hand; what starts it cold: words and
    all variables; with the packages of an environment in place of the user's."""
    folder, (command, more) = Path(orders.folder), starts.cold(orders, free_port(), environment)
    variables = inside(launch_settings.VARIABLE, plan.overrides or {})
    gone = [name for name, value in variables.items() if value is None]
    given = {name: str(value) for name, value in variables.items() if value is not None}
    own = {name: value for name, value in os.environ.items() if name not in gone}
    probed, restore = probe_environment({**own, **given}, folder / ORDERS_FILE)
    write_json(folder / ORDERS_FILE, to_json(Cold(restore, orders)))
    # By hand the run writes into a folder of its own, so that the evidence stays as it is.
    again = replace(orders, folder=str(folder / "by-hand"))
    write_json(folder / "orders-by-hand.json", to_json(Cold(restore, again)))
    shown = {name: value for name, value in starts.target.variables.items() if not is_masked(name, value)}
    env = {name: value for name, value in orders.env.items() if value is not None}
    shown |= {name: own[name] for name in varied_variables(starts.capture) if name in own}
    shown |= {**given, **more, **{name: probed[name] for name in restore}, **env}
    shown["BISECT_CFG_PROBE"] = str(folder / "orders-by-hand.json")
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in shown.items())
    write_by_hand(
        folder,
        f"mkdir -p {shlex.quote(again.folder)}",
        f"exec env {''.join(f'-u {name} ' for name in gone)}{words} \\",
        f"  {shell_line(command)}",
    )
    return command, {**probed, **more}


def write_by_hand(folder: Path, *lines: str) -> None:
    """Write the shell commands that repeat a run by hand."""
    head: Sequence[str] = ("#!/bin/sh", "# Repeats this trial by hand, with everything printed here.")
    write_text(folder / "command.sh", "\n".join([*head, f"cd {shlex.quote(os.getcwd())} || exit", *lines, ""]))
