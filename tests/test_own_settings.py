"""The study of settings of the script's own: each source of them, alone and together with a training option.

Before anything lands the scripts train with the stand-in library; with real TRL they are slow.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import toys
from tools import slow

STUDY = Path(__file__).parents[1] / "studies" / "own_settings"
CASES = json.loads((STUDY / "cases.json").read_text())

PLANTED = """
    SIMULATED_FAULT = "the script's own mix"

    def config(**settings):
        return GRPOConfig(output_dir="out", temperature=1.2, weight_decay=0.1, **settings)

    def train(args, mix, together):
        def step(number):
            if mix > 0.5 and number == 3 and (not together or args.temperature > 1.1):
                raise RuntimeError("the mixture is empty")
        GRPOTrainer(args, step).train()
"""


def assert_found(tool, folder: Path, case: dict, together: bool) -> None:
    tool.environment |= case.get("variables", {})
    name = f"{case['script']}_together.py" if together else f"{case['script']}.py"
    good = [word for one in case.get("good", ()) for word in ("--good", one)]
    options = ("--no-recommend", "--no-where", *good, "--", *case.get("arguments", ()))
    study = tool.bisect(folder / name, *options)
    assert study.result["complete"] and "mix" in study.result["simulated"]
    assert study.causes == [sorted([case["cause"], *(["temperature"] if together else [])])]


IN_PROBE = ("flag", "variable")
"""Which the tests of the probe show before anything lands."""


@pytest.mark.parametrize("case", [slow(case) if case["script"] in IN_PROBE else case for case in CASES])
def test_the_setting_at_fault_is_found(tool, case) -> None:
    folder = shutil.copytree(STUDY, tool.folder / "study")
    toys.script(folder, PLANTED, "planted.py")
    assert_found(tool, folder, case, together=True)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["script"])
def test_the_setting_at_fault_is_found_with_real_trl(real_tool, case, together) -> None:
    assert_found(real_tool, STUDY, case, together)
