"""Texts about failures are no logs of them; reports of failures are, in whatever they are wrapped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.explain.not_a_log import kind_of

CORPUS = Path(__file__).parent.parent / "corpus"
HEALTHY = {path.stem: path.read_text() for path in (CORPUS / "healthy").glob("*.log")}
ERROR = (
    'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in <module>\n    trainer.train()\n'
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
)
HEAD = "============================= test session starts ==============================\ncollected 2 items\n\n"


@pytest.mark.parametrize("path", sorted((CORPUS / "reports").glob("*.log")), ids=lambda path: path.stem)
def test_a_report_of_a_failure_is_a_log(path: Path) -> None:
    log = path.read_text()
    assert kind_of(log, True) == kind_of(log, False) == ""
    assert kind_of(f"### Bug\n\nI run the example.\n\n```\n{log}{ERROR}```\n\nWhat can I do?\n", True) == ""


def test_healthy_texts_that_are_no_logs() -> None:
    kinds = {name: kind_of(text, True) for name, text in HEALTHY.items()}
    assert {name: kind for name, kind in kinds.items() if kind} == {
        "faq": "a page of text", "shell": "a script", "ci": "a file of settings", "grep": "the findings of a search",
        "helptext": "the help of a command", "pytest": "a passed test run", "prose": "a page of text",
        "help": "the help of a command", "a-data-set-row": "a data set",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import torch\n\n\ndef check(n):\n    if n < 2:\n        raise ValueError('CUDA error')\n", "a script"),
        ("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-lr: 1  # CUDA out of memory\n", "a script"),
        ("#!/bin/bash\n# after CUDA out of memory\nset -e\nfor i in 1 2; do\n  echo $i\ndone\n", "a script"),
        ("# title\n\nSome words.\n\n## Install\n\n```\npip install x\n```\n", "a page of text"),
        ("# When a job dies\n\nThe words `CUDA out of memory` mean a batch.\n\n* lower **it**\n", "a page of text"),
        ("# Post-mortem\n\nSummary: exit code 137 at night.\n\n- oom-kill: Killed process 4\n", "a page of text"),
        ("name: x\njobs: y\nsteps: z\n# No space left on device\nrun: w\n", "a file of settings"),
        ('{\n "bf16": {\n  "enabled": "auto"\n },\n "steps": 3\n}\n', "a file of settings"),
        ("groups:\n- name: a\n  rules:\n  - alert: Memory\n    summary: OOMKilled\n", "a file of settings"),
        ('{"messages": [{"role": "user", "content": "RuntimeError: CUDA error"}]}\n' * 4, "a data set"),
        (HEAD + "tests/test_a.py " + ERROR + ".\n\n=== 2 passed, 1 xfailed in 1.03s ===\n", "a passed test run"),
        (f"test_it (a.T) ... {ERROR}ok\n\n-----\nRan 2 tests in 0.213s\n\nOK\n", "a passed test run"),
        (HEAD + ERROR + "======= 1 failed, 2 passed in 1.03s =======\n", ""),
        (f"test_it (a.T) ... {ERROR}\nRan 2 tests in 0.213s\n\nFAILED (errors=1)\n", ""),
        (HEAD + "tests/test_a.py ..\n======= 2 passed in 1.03s =======\n$ python train.py\n" + ERROR, ""),
        ("import torch\n\n\ndef check(n):\n    return n\n\n\ncheck(3)\n" + ERROR, ""),
        ("status:\n  lastState:\n    terminated:\n      exitCode: 137\n      reason: OOMKilled\n", ""),
        ("    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n", ""),
        ("srun: error: a\nsrun: error: b\nsrun: error: a\n# done\n", ""),
        ('[\n {\n  "loss": NaN\n }\n]\n', ""),
        ("# python train.py --out `date`\nLoading `a`\n[1] `b` is new\nGPU 0 has no memory left in **x**\n", ""),
        ("../aten/Indexing.cu:1289: indexSelect: block: [5,0,0] Assertion `srcIndex < n` failed.\n" * 9, ""),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x\n", ""),
        ("", ""),
    ],
)
def test_what_a_text_is(text: str, kind: str) -> None:
    assert kind_of(text, True) == kind


def test_a_text_of_which_the_middle_is_not_seen_may_be_a_log() -> None:
    assert kind_of("import torch\n\ndef check(n):\n    return n\n", False) == ""


@given(st.text(max_size=300), st.booleans())
def test_any_text_with_a_traceback_is_a_log(text: str, whole: bool) -> None:
    assert isinstance(kind_of(text, whole), str)
    assert kind_of(f"{text}\n{ERROR}", whole) == ""
