"""`studies/explore.ipynb` runs from top to bottom in a real Jupyter kernel; its committed outputs are of such a run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

STUDIES = Path(__file__).resolve().parents[2] / "studies"
NOTEBOOK = STUDIES / "explore.ipynb"

CELL_SECONDS = 600
"""For a machine that has much else to do."""

ASKED = """import json
print(json.dumps({
    "script": [list(cause.parameters) for cause in report.causes],
    "function": [list(cause.parameters) for cause in function.causes],
    "asked": list(report.trials.query("purpose == 'asked'")["outcome"]),
    "rates": list(function.trials.query("purpose == 'asked'")["outcome"]),
    "flaky": [list(cause.parameters) for cause in answer.causes],
}))"""


def outputs(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """The kind and the text of each output of the cells."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            for kind, data in ({"text/plain": output["text"]} if "text" in output else output.get("data", {})).items():
                yield kind, data if isinstance(data, str) else json.dumps(data)


@pytest.mark.slow
@pytest.mark.training
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLOTLY_RENDERER", "plotly_mimetype")
    shutil.copytree(STUDIES / "fp16_adam", tmp_path / "fp16_adam")
    shutil.copy(STUDIES / "stand_in.py", tmp_path)
    notebook = nbformat.read(NOTEBOOK, 4)
    notebook.cells.append(nbformat.v4.new_code_cell(ASKED))
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=where).execute()
    assert json.loads(notebook.cells[-1].outputs[0]["text"]) == {
        "script": [["model.dtype", "optim"]],
        "function": [["learning_rate", "max_grad_norm"]],
        "asked": ["pass"],
        "rates": ["pass", "pass", "fail", "fail"],
        "flaky": [["beta", "bf16"]],
    }
    kinds = [kind for kind, _ in outputs(notebook)]
    assert (
        kinds.count("application/vnd.plotly.v1+json") == 5 and "application/vnd.jupyter.widget-view+json" not in kinds
    )


def test_the_committed_outputs_are_of_a_run_and_tell_nothing_of_the_machine() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    found = list(outputs(notebook))
    told = "\n".join(text for kind, text in found if kind.startswith("text/"))
    assert "model.dtype = float16" in told and "adam_epsilon: 0.0001" in told and "asked" in told
    assert {"image/png", "application/vnd.plotly.v1+json"} <= {kind for kind, _ in found}
    paths = re.findall(r"(?<![\w.~<-])/(?:tmp|home|root|work|usr|var|Users|opt)\b[^\s'\"<]*", told)
    assert paths == []
