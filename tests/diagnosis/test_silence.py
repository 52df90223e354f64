"""Runs that stand still, and texts that are no logs."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis._quoted import quotes
from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_paths, explain_text

STARTED = "2025-03-02 10:11:10 ***** Running training *****\n2025-03-02 10:11:12 step 4/500\n"
WAITS = """^CTraceback (most recent call last):
  File "/w/c10d.py", line 300, in wait
    work.wait()
KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("end", "entry"),
    [
        ("# 12:40 still nothing\n", "stuck"),
        ("# 卡在这里两个小时不动了\n", "stuck"),
        ("".join(f"[watch 1{hour}:00] step 4/500, util 100%\n" for hour in (1, 2, 3)), "stuck"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2025-03-02T14:00:00 DUE TO TIME LIMIT ***\n", "stuck"),
        (WAITS, "stuck"),
        ("INFO 03-02 10:11:14 [x.py:264] Successfully reset prefix cache\n# hangs here\n", "stuck-in-generation"),
    ],
)
def test_a_silence_is_told_by_what_comes_after_it(end: str, entry: str) -> None:
    found = explain_text(STARTED + end)
    assert [match.entry.id for match in found.matches][:1] == [entry]


@pytest.mark.parametrize(
    "end",
    [
        "",
        "2025-03-02 12:40:00 step 5/500\n",  # a slow step
        "2025-03-02 12:40:00 checkpoint saved\n",
        "{'train_runtime': 9.1}\n# nothing more to do\n",
        "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2025-03-02T10:12:00 DUE TO TIME LIMIT ***\n",
        "[rank0]:[W ProcessGroupNCCL.cpp:1] this can potentially cause a hang\n",
        "INFO:     Application startup complete.\n" + WAITS,
        "# 12:40 still nothing\nRuntimeError: CUDA error: an illegal memory access was encountered\n",
    ],
)
def test_what_is_no_silence(end: str) -> None:
    assert not any(match.entry.id.startswith("stuck") for match in explain_text(STARTED + end).matches)


def test_it_says_how_long_and_after_which_line() -> None:
    said = str(explain_text(STARTED + "# 12:40 still nothing\n"))
    assert "nothing for 2 h 28 min after it" in said and "step 4/500" in said


@pytest.mark.parametrize(
    "text",
    [
        'import torch\n\ndef check(n):\n    if n < 2:\n        raise ValueError("CUDA out of memory")\n',
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-lr: 1  # CUDA out of memory\n",
        "a/b.py:3:    raise RuntimeError('CUDA error')\na/c.py:9:# No space left on device\nd.md:1:CUDA out "
        "of memory\n",
        "== test session starts ==\ntests/a.py::b XFAIL (CUDA out of memory)\n==== 3 passed, 1 xfailed in 8.2s ====\n",
        "#!/bin/bash\n# after CUDA out of memory\nset -e\nfor i in 1 2; do\n  if python t.py; then exit 0; fi\ndone\n",
        "#3421 CUDA out of memory with GRPO  open\n#33 NCCL watchdog timeout  closed\n#31 KeyError: prompt  closed\n",
        "name: x\njobs: y\nsteps: z\n# No space left on device\nrun: w\n",
    ],
)
def test_texts_about_errors_are_no_logs(text: str) -> None:
    assert quotes(text.encode(), whole=True)
    assert explain_text(text).status == NO_FAILURE


@pytest.mark.parametrize(
    "text",
    [
        "== test session starts ==\nE   RuntimeError: CUDA error: an illegal memory access\n=== 1 failed, 3 "
        "passed in 8.2s ===\n",
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n",
        "../aten/Indexing.cu:1289: indexSelectLargeIndex: block: [5,0,0] Assertion `srcIndex < n` failed.\n" * 9,
        '[\n {\n  "loss": NaN\n }\n]\n',
        "import torch\nTraceback (most recent call last):\nRuntimeError: CUDA error\n",
        "- step: 1\n- step: 2\n",
        "status:\n  lastState:\n    terminated:\n      exitCode: 137\n      reason: OOMKilled\n",
        "# python train.py --out `date`\nLoading `a`\n[1] `b` is new\nGPU 0 has no memory left in **x**\n",
        "".join(f"(PPOTrainer pid=9) Global step {i}: {{'policy_loss': nan, 'reward': 0.0}}\n" for i in range(9)),
    ],
)
def test_logs_that_look_a_little_like_it(text: str) -> None:
    assert not quotes(text.encode(), whole=True)


@pytest.mark.parametrize(
    "prefix",
    [
        "trainer-0 | [rank0]: ", "10.0.0.4: [rank0]: ", "node2: ", "[swift-grpo-0] 09/11 11:06:51 ",
        "[pod/trainer-0/pytorch] ", "Nov 20 03:11:02 gpu7 python3[4122]: ", "2025-05-07T08:01:28.903692502Z stderr F ",
        "[1,mpirank:0,algo-1]<stderr>:", "(WorkerDict pid=12, ip=10.0.0.4) ", "[1,3]<stderr>:", "3: ",
        "[Generator rank 1] ",
    ],
)  # fmt: skip
def test_an_error_is_found_behind_any_prefix(prefix: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "/w/t.py", line 3, in f', "RuntimeError: something new"]
    found = explain_text("".join(f"{prefix}{line}\n" for line in lines))
    assert found.error is not None and found.error.text == "RuntimeError: something new"


def test_what_a_clue_catches_stands_in_the_answer() -> None:
    missing = explain_text("ModuleNotFoundError: No module named 'math_verify'\n")
    assert "python -m pip install math_verify" in str(missing)
    taken = explain_text("OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8123): in use\n")
    assert "grep 8123" in str(taken)
    assert "grep 29500" in str(explain_text("OSError: [Errno 98] Address already in use\n"))


def test_the_version_that_is_behind_is_named() -> None:
    frame = '  File "/opt/site-packages/{}", line 3, in f\n    call()\n'
    log = "trl 0.14.0\ntransformers 4.53.2\nTraceback (most recent call last):\n" + frame.format("trl/trainer/x.py")
    said = str(explain_text(log + "AttributeError: 'Engine' object has no attribute 'unheard'\n"))
    assert "trl 0.14.0 (January 2025) is far behind transformers 4.53.2 (June 2025)" in " ".join(said.split())
    near = str(explain_text(log.replace("0.14.0", "0.18.1") + "AttributeError: 'Engine' object has no attribute 'u'\n"))
    assert "far behind" not in near


def test_a_kill_after_an_exception_is_not_the_cause() -> None:
    log = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\nRuntimeError: something new\nKilled\n'
    assert explain_text(log).matches == ()
    assert explain_text("Killed\n").matches[0].entry.id == "host-out-of-memory"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import torch\n\n\ndef check(n):\n    return n\n", "source code"),
        ("# p.py\nimport torch\nfrom x import y\n\ndef check(n):\n    # one\n    return y(n)\n", "source code"),
        ("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-lr: 1\n", "a diff"),
        ("#!/bin/bash\n#SBATCH --nodes=2\nset -e\nexport A=1\nsrun python t.py\n", "a script"),
        ("# title\n\nSome words.\n\n## Install\n\n```\npip install x\n```\n", "a page of text"),
        (
            "# When a job dies\n\nThe words `CUDA out of memory` mean a batch that is too large.\n\n* lower the "
            "**batch size**\n* see [hosts](hosts.md) for `oom_kill event`.\n",
            "a page of text",
        ),
        ('{\n "bf16": {"enabled": "auto"},\n "steps": 3\n}\n', "a file of settings in JSON"),
        ("name: x\njobs: y\nsteps: z\n# one\nrun: w\n", "a file of settings"),
        ("groups:\n- name: a\n  rules:\n  - alert: Memory\n    summary: OOMKilled\n", "a file of settings"),
        (
            "# Postmortem of Monday\n\nSummary: exit code 137 at night.\n\nTimeline:\n03:12 oom-kill: Killed process 4 "
            "(python)\n\nRoot cause: eight workers kept a copy each.\nAction items: fewer workers.\n",
            "a page of text",
        ),
    ],
)
def test_a_text_that_is_no_log_is_told_what_it_is(text: str, kind: str) -> None:
    found = explain_text(text)
    assert found.status == NO_FAILURE
    said = " ".join(str(found).split())
    assert f"This looks like {kind}, not like the log of a run." in said and "bisect-cfg bisect" not in said


@pytest.mark.parametrize(
    "end",
    [
        "GPU9:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying\n",
        "  0%|          | 0/1868 [00:00<?, ?it/s]`use_cache=True` is incompatible\n97 %, 38121 MiB\n",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2\n",
    ],
)
def test_an_output_that_ends_before_training_may_stand_still(end: str) -> None:
    for before in ("Loading the model\n", "#!/bin/bash\nset -e\nexport A=1\nsrun python t.py\nTPU available: False\n"):
        found = explain_text(before + end)
        assert found.status == NO_FAILURE and found.stands is not None
        assert "the run stands still" in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "Connection refused, retrying\nConnected\nsaved\n",
        "  0%|   | 0/9 [00:00<?, ?it/s]\r 11%|#  | 1/9 [00:01<00:08, 1.0s/it]\n",
        "Initializing distributed: MEMBER: 1/2\n{'loss': 0.5, 'grad_norm': 0.3}\n",
        "  0%|   | 0/9 [00:00<?, ?it/s]\nTraining completed\n",
    ],
)
def test_what_went_on_is_not_said_to_stand(text: str) -> None:
    assert explain_text(text).stands is None


def test_a_terminal_s_interruption_has_the_time_of_what_is_printed_next() -> None:
    end = (
        "^C\nKeyboardInterrupt\n[rank0]:[W302 12:40:02.300 CudaIPCTypes.cpp:16] Producer process has been terminated\n"
    )
    assert [match.entry.id for match in explain_text(STARTED + end).matches][:1] == ["stuck"]


def test_what_stands_still_in_one_file_goes_on_in_the_other(tmp_path) -> None:
    out, err = tmp_path / "job.out", tmp_path / "job.err"
    rows = "".join(f"{{'loss': 0.1, 'grad_norm': 0.3, 'epoch': 0.{step}}}\n" for step in range(9))
    out.write_text(rows)
    stopped = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2025-03-02T14:00:00 DUE TO PREEMPTION ***\n"
    err.write_text(STARTED + stopped)
    assert explain_text(STARTED + stopped).matches[0].entry.id == "stuck"
    assert explain_paths([str(tmp_path)])[0].matches[0].entry.id == "slurm-limit"


def test_what_a_worker_printed_last_is_no_note() -> None:
    worker = "(LLMRayActor pid=1) INFO 04-09 01:52:46 [core.py:151] init engine took 47.83 seconds\n"
    found = explain_text(worker + "^C\n(base) u@h:~$ date\nWed Apr  9 04:40:12 UTC 2025\n")
    assert found.matches and found.matches[0].entry.id.startswith("stuck")
