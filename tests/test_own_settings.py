"""The study of settings of the script's own: each source of them, alone and together with a training option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools import slow

STUDY = Path(__file__).parents[1] / "studies" / "own_settings"
CASES = json.loads((STUDY / "cases.json").read_text())

RUNS = [
    ((case, together) if together and case["script"] in ("flag", "with_hydra") else slow(case, together))
    for case in CASES
    for together in (False, True)
]


@pytest.mark.training
@pytest.mark.parametrize(("case", "together"), RUNS)
def test_the_setting_at_fault_is_found(real_tool, case, together):
    real_tool.environment |= case.get("variables", {})
    name = f"{case['script']}_together.py" if together else f"{case['script']}.py"
    good = [word for one in case.get("good", ()) for word in ("--good", one)]
    said = real_tool(
        "bisect", STUDY / name, "--study", "s", "--no-recommend", "--no-where", *good, "--", *case.get("arguments", ())
    )
    assert said.status == 0, said.all
    result = json.loads((real_tool.folder / "s/result.json").read_text())
    assert result["complete"] and "mix" in result["simulated"]
    expected = sorted([case["cause"], *(["temperature"] if together else [])])
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [expected]
