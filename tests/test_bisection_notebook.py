"""`studies/explore.ipynb` runs from top to bottom and says what it claims to say."""

from __future__ import annotations

import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[1] / "studies" / "explore.ipynb"


def test_the_notebook_runs(capsys) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), namespace)
    report = namespace["report"]
    assert report.causes[0].parameters == ("learning_rate", "max_grad_norm") and report.complete
    assert report.causes[0].signature == "FloatingPointError: loss is nan at step N"
    assert "<table>" in report._repr_html_()
    assert namespace["share"][1.0] == 0
    assert "Does" in capsys.readouterr().out
