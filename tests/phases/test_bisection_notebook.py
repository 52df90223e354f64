"""`studies/explore.ipynb` runs from top to bottom and says what it claims to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "studies" / "explore.ipynb"


@pytest.mark.training
def test_the_notebook_runs(capsys, monkeypatch) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), namespace)
    report = namespace["report"]
    assert report.causes[0].parameters == ("learning_rate", "max_grad_norm") and report.complete
    assert report.causes[0].signature == "FloatingPointError: loss is nan at step <n>"
    page = report._repr_html_()
    assert "<table>" in page and "learning_rate" in page and "every trial" in page
    assert namespace["share"][1.0] == 0 and namespace["always"] == ["learning_rate", "max_grad_norm"]
    script = namespace["script"]
    assert [cause.parameters for cause in script.causes] == [("model.dtype", "optim")] and script.complete
    printed = capsys.readouterr().out
    assert "Does" in printed and "passes" in printed and "Proven" in printed
