"""Scripts that send their own output elsewhere: what they die of is in the events, not in the log alone."""

from __future__ import annotations

import json
import textwrap

import pytest
import toys
from tools import ForkedTool

ELSEWHERE = {
    "another stream": "sys.stderr = sys.stdout = open('own.log', 'w')",
    "another file": "handle = os.open('own.log', os.O_WRONLY | os.O_CREAT); os.dup2(handle, 1); os.dup2(handle, 2)",
    "a closed stream": "sys.stderr.close(); sys.stdout.close()",
    "a hook of its own": """
import logging
logging.basicConfig(filename='own.log')
sys.excepthook = lambda kind, error, trace: logging.critical('died', exc_info=(kind, error, trace))
""",
}


@pytest.mark.parametrize("how", ["another file", "a hook of its own"])
def test_what_ends_its_training(tool: ForkedTool, how: str) -> None:
    load = "\n    def load(path):\n        raise ValueError('no rows in ' + path)\n    def step"
    text = toys.FAILS.replace("os.kill(os.getpid(), signal.SIGFPE)", "load('x')").replace("\n    def step", load)
    toys.script(tool.folder, ELSEWHERE[how] + textwrap.dedent(text))
    said = tool("bisect", "train.py", "--study", "study", "--no-recommend")
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "study" / "result.json").read_text())
    assert list(result["causes"][0]["parameters"]) == ["bf16"]
    assert result["failure"]["message"] == "ValueError: no rows in x"
    assert result["where"]["line"].startswith("train.py:") and result["where"]["line"].endswith(" in load")
