"""bisect-cfg report, on the study of a real (stand-in) training: its forms, and a study that has no answer."""

from __future__ import annotations

import json

import toys


def test_a_study_is_shown(tool):
    toys.script(tool.folder)
    assert tool("bisect", "train.py", "--study", "s", "--no-recommend").status == 0
    html = (tool.folder / "s/report.html").read_text()
    assert "bf16 = True" in html and 'data-plot="suspicion"' in html and 'data-plot="trace-0"' in html
    assert (tool.folder / "s/report.html").stat().st_mode & 0o077 == 0

    shown = tool("report", "s", "--format", "md")
    assert shown.status == 0 and shown.err == "" and "\nbf16: True  # yours\n" in shown.out, shown.all

    # The same of a study that was interrupted before its answer.
    (tool.folder / "s/result.json").unlink()
    known = json.loads(tool("report", "s", "--format", "json").out)
    assert known["status"] == "unfinished" and {"pass", "fail"} == {row["outcome"] for row in known["trials"]}
    assert known["failure"]["signature"] == "SIGFPE"
    assert "has no answer" in tool("report", "s", "--format", "md").out
    assert tool("report", "s").out == "s/report.html\n"
    assert "has no answer" in (tool.folder / "s/report.html").read_text()

    refused = tool("report", "elsewhere")
    assert refused.status == 2 and "holds no study" in refused.err
    tool.assert_nothing_left()
