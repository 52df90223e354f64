"""`studies/explore.ipynb` runs from top to bottom and says what it claims to say."""

from __future__ import annotations

import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[1] / "studies" / "explore.ipynb"


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


def test_the_page_escapes_and_says_what_is_open() -> None:
    from bisect_cfg import Bisection

    def trial(configuration: dict) -> bool:
        if configuration["<b>"] == "<script>":
            raise ValueError("<i>loss</i>")
        return True

    good, bad = {"<b>": "a", "c": 1}, {"<b>": "<script>", "c": 2}
    report = Bisection(good, bad, trial, isolation="none", first=True).run()
    page = report._repr_html_()
    assert "<script>" not in page and "<i>" not in page and "&lt;script&gt;" in page
    assert "There may be other causes." in page
    assert report.causes[0].evidence.trials and f"(trial {report.causes[0].evidence.fails.trials[0]}" in page
