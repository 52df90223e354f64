"""What doctor prints: the worst first, notes after it, and what was not looked at."""

from __future__ import annotations

import math

import click

from bisect_cfg.doctor.examine import Diagnosis
from bisect_cfg.doctor.findings import Finding
from bisect_cfg.doctor.show import render

HERE = {"python": "3.11.7", "packages": {"torch": "2.4.0"}, "gpus": []}
FAULT = Finding("problem", "bf16 crashes here", "cuBLAS 12.1 on an H20", "install cuBLAS 12.4", "https://a/1", "h20")
NOTE = Finding("note", "gdb is missing", "stacks end in Python", "apt install gdb", "measured", "gdb")


def shown(diagnosis: Diagnosis) -> str:
    return click.unstyle(render(diagnosis)).replace("no\nGPU", "no GPU")  # where the line breaks is no matter


def test_nothing_found():
    said = shown(Diagnosis((), HERE, skipped="there is no GPU here"))
    assert said.startswith("Python 3.11.7, torch 2.4.0, no GPU")
    assert said.endswith("Nothing known is wrong with this environment. GPU probes skipped: there is no GPU here.")


def test_a_problem_comes_before_notes_and_says_what_to_do():
    said = shown(Diagnosis((NOTE, FAULT), HERE, {"args.bf16": True}, "train.py", skipped="x"))
    assert said.index("PROBLEM  bf16 crashes here") < said.index("Note: gdb is missing")
    assert "         Do: install cuBLAS 12.4\n         https://a/1" in said
    assert "train.py: 1 setting captured, nothing was trained" in said and "1 finding." in said


def test_probes_that_ran_are_counted():
    said = shown(Diagnosis((), HERE, probes=({"name": "a"}, {"name": "b", "signal": "SIGFPE"})))
    assert said.endswith("GPU probes: 1 of 2 passed.")


def test_several_environments_and_the_log_of_a_command_that_died():
    there = {**HERE, "host": "b"}
    said = shown(Diagnosis((), HERE, None, "train.py", ({**HERE, "host": "a"}, there), skipped="x", log=("bang",)))
    assert "2 environments compared, 2 hosts" in said and "Its last lines:\n    bang" in said
    assert "train.py: no configuration was captured" in said


def test_numbers_that_json_lacks_are_the_text_that_result_json_has():
    content = Diagnosis((), HERE, {"args.max_grad_norm": math.inf, "args.x": math.nan}).to_json()
    assert content["configuration"] == {"args.max_grad_norm": "inf", "args.x": "nan"}
