"""The door to a study that runs in a job of Slurm: submitted, watched and gone on with by the same command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from bisect_cfg import crash
from bisect_cfg.api import TYPED, check, found_target, typed
from bisect_cfg.common.json_files import make_folder
from bisect_cfg.engines.slurm import SLURM, Job, check_ray, job_file, parse
from bisect_cfg.options import Options
from bisect_cfg.store.folder import default_folder, ready_folder
from bisect_cfg.targets.target import with_variables


def run_in_job(
    target: str,
    arguments: Sequence[str],
    options: Options,
    flags: Sequence[str],
    sbatch: Sequence[str],
    dry_run: bool,
    wants_to_cancel: Callable[[], bool | None],
) -> int:
    """Bisect in a job of Slurm, and show what that prints; its exit status. An InputError is what stands in the way, or
    has ended the job.

    Args:
        target: as typed.
        arguments: as typed.
        options: how it is bisected.
        flags: the options, as they are typed.
        sbatch: options of sbatch, as they are typed.
        dry_run: whether the job file is shown, and nothing else done.
        wants_to_cancel: asks, at Ctrl-C; None where nobody can be asked.
    """
    wanted, script = parse(sbatch), found_target(target, arguments, options)
    with with_variables(script):
        check(options, script)
    folder = (options.study or default_folder(script)).absolute()
    command = [sys.executable, "-P", "-m", "bisect_cfg", "bisect", "--on", "ray", *flags]
    text, variables = job_file([*command, "--study", str(folder), "--", target, *arguments], folder, wanted)
    if dry_run:
        print(text, end="")
        return 0
    check_ray()
    job = Job(folder, crash.complain)
    if not job.find():
        with ready_folder(script, folder, options.restart):
            make_folder(folder / SLURM)
        job.submit(text, {**variables, TYPED: typed()})
    return job.watch(wants_to_cancel)
