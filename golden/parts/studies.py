"""The answers of the studies: each is run as a user would type it, and what is no measurement is kept of its result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

STUDIES = Path(__file__).parents[2] / "studies"
ONE_STEP = "--no-recommend --no-where"
OLD = "{home}/.cache/bisect-cfg-environments/trl-0.14/bin/python"
"""An environment of studies/trl_2906_original/requirements.txt; it is built where it is missing."""

USUAL = {
    "trl_2906": "{here}",
    "fp16_adam": "{here}",
    "unclipped_reward": "{here}",
    "collapse": "{here}",
    "lr_temperature": "{here}",
    "openrlhf_illegal_memory": "--good {here}/good.yaml -- {command}",
    "launcher": f"{ONE_STEP} --only launch.launcher --only learning_rate --only temperature --good {{here}}/good.yaml "
    "-- {command}",
    "fsdp_ref_model": f"{ONE_STEP} --only beta --only launch.distributed_type --only learning_rate --only temperature "
    "--good {here}/good.yaml -- {command}",
    "two_ranks": f"{ONE_STEP} --only ddp_find_unused_parameters --only launch.num_processes --only learning_rate "
    "--only gradient_checkpointing_kwargs.use_reentrant --only max_completion_length {command}",
    "late_collapse": f"{ONE_STEP} --only learning_rate --only temperature {{here}} -- --all_from 10",
    "late_overflow": "--no-recommend --until-failure {here}",
    "bad_row": "--no-recommend --isolate-data {here}",
}
SLOW = {
    "late_collapse, from a checkpoint": f"{ONE_STEP} --until-failure {{here}} -- --all_from 200",
    "vllm_versions": "--no-recommend {here} --python {made}/env/bin/python --good-packages {made}/good.txt",
    "real_versions": f"{ONE_STEP} {{here}} --good-packages {{here}}/good.txt",
    "trl_2906_root_cause": "{made} --python {made}/env/bin/python",
    "trl_2906_root_cause, packages": f"{ONE_STEP} {{made}} --python {{made}}/env/bin/python "
    "--good-packages {made}/good.txt",
    "trl_2906_original": f"{{here}} --python {OLD}",
}
"""Study -> the arguments of `bisect-cfg bisect`. {here}: its folder; {made}: what its make.py makes; {command}: the
command that it is about."""


LATE = {"late_collapse", "late_collapse, from a checkpoint", "late_overflow"}
"""The step at which they fail is another one on another processor."""


def answers() -> Iterator[tuple[str, object]]:
    for name in USUAL:
        yield name, answer(name)


def answer(name: str) -> dict[str, object]:
    """What the tool finds in a study."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        status, result = run(name, Path(folder))
    return {"exit": status} if result is None else {"exit": status, **kept(name, result)}


def run(name: str, folder: Path) -> tuple[int, dict | None]:
    """The exit status, and result.json if there is one."""
    study, arguments = name.partition(",")[0], {**USUAL, **SLOW}[name]
    here, made, tools = STUDIES / study, folder / "made", Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:/usr/bin:/bin"}
    if "{made}" in arguments:
        subprocess.run([sys.executable, here / "make.py", made], check=True, capture_output=True)
        environment["PATH"] = f"{made / 'bin'}:{environment['PATH']}"
        if (made / "wheels").is_dir():
            environment["UV_FIND_LINKS"] = str(made / "wheels")
    places = {"here": here, "made": made, "home": Path.home()}
    words: list[str] = []
    for word in arguments.split():
        words += command(here) if word == "{command}" else [word.format(**places)]
    if "{home}" in arguments:
        _old_environment(here, Path(OLD.format(**places)))
    study_folder = folder / "studies" / "s"
    done = subprocess.run(
        [sys.executable, "-m", "bisect_cfg", "bisect", "--study", str(study_folder), *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=3000,
    )  # fmt: skip
    path = study_folder / "result.json"
    return done.returncode, json.loads(path.read_text()) if path.exists() else None


def command(here: Path) -> list[str]:
    """The command that a study is about: of its expected.json, or of its command.sh."""
    expected = json.loads((here / "expected.json").read_text())
    if "command" in expected:
        return [word.format(folder=here) for word in expected["command"]]
    words = (here / "command.sh").read_text().partition("-- ")[2].replace("\\\n", " ").split()
    return [words[0], str(here / words[1]), *words[2:]]


def _old_environment(here: Path, python: Path) -> None:
    """Python 3.9 is looked for among pyenv's versions too, of which its shims show one alone."""
    if not python.exists():
        folder, uv = python.parents[1], Path(sys.executable).parent / "uv"
        places = [str(path) for path in Path("~/.pyenv/versions").expanduser().glob("*/bin")]
        environment = {**os.environ, "PATH": os.pathsep.join([*places, os.environ["PATH"]])}
        subprocess.run([uv, "venv", "-q", "--python", "3.9", folder], check=True, env=environment)
        subprocess.run([uv, "pip", "install", "-q", "-p", python, "-r", here / "requirements.txt"], check=True)


def kept(name: str, result: dict) -> dict[str, object]:
    """Of a result what does not differ between two runs.

    That has what is recommended, but not with --no-recommend: which of several corrections is named then depends on the
    trials that there were.
    """
    failure, found = result.get("failure") or {}, result.get("recommendation") or {}
    changes = {setting: change["to"] for setting, change in found.get("changes", {}).items()}
    told = ["kind", "signal", "exception", "quantity", *(() if name in LATE else ("step", "message"))]
    return {
        "status": result["status"],
        "complete": result["complete"],
        "causes": sorted((_levels(cause["parameters"]) for cause in result["causes"]), key=sorted),
        "companions": sorted(sorted(cause["companions"]) for cause in result["causes"]),
        "inseparable": sorted(sorted(cause["inseparable"]) for cause in result["causes"]),
        "failure": {key: plain(failure[key]) for key in told if failure.get(key) not in (None, "")},
        **(
            {}
            if "--no-recommend" in {**USUAL, **SLOW}[name]
            else {"changes": changes, "verified": found.get("verified")}
        ),
        "known_issue": (result.get("known_issue") or {}).get("id"),
        "origin": (result.get("origin") or {}).get("kind"),
        "rows": (result.get("rows") or {}).get("guilty"),
    }


def _levels(parameters: dict) -> dict[str, list[object]]:
    return {name: [levels["good"], levels["bad"]] for name, levels in parameters.items()}


def plain(told: object) -> object:
    """A message without folders, numbers of processes, and what was measured."""
    return (
        re.sub(r"(/[\w.+-]+)+/|^rank \d+: |(?<=from )[\d.]+ to [\d.e-]+", "", told) if isinstance(told, str) else told
    )
