"""What people write and what tests provoke is no log, whatever failure it quotes; a report of a failure is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.diagnosis import _faults, _told
from bisect_cfg.diagnosis._quoted import quotes
from bisect_cfg.diagnosis._told import expected, told
from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_paths, explain_text
from tests.diagnosis.collected import AFTER, BEFORE, FRAMES

HEAD = "============================= test session starts ==============================\ncollected 2 items\n\n"


def indented(log: str) -> str:
    return "".join(f"    {line}\n" for line in log.splitlines() if line.strip())


FRAMED: dict[str, Callable[[str], str]] = {
    "pytest, a live log": lambda log: HEAD
    + "tests/test_a.py::test_one\n-------------------------------- live log call --------------------------------\n"
    + "".join(f"ERROR    trainer:trainer.py:88 {line}\n" for line in log.splitlines())
    + "PASSED      [100%]\n\n=========== 1 passed, 1 xfailed, 3 warnings in 21.44s ===========\n",
    "pytest -s": lambda log: f"{HEAD}tests/test_a.py {log}.\n\n======= 2 passed in 1.03s =======\n",
    "unittest": lambda log: f"test_it (tests.test_a.T) ... {log}ok\n\n{'-' * 70}\nRan 2 tests in 0.213s\n\nOK\n",
    "GoogleTest": lambda log: f"[==========] Running 1 test from 1 test suite.\n{log}[       OK ] A.B (3 ms)\n"
    "[  PASSED  ] 1 test.\n",
    "Go": lambda log: f"=== RUN   TestRetry\n{log}--- PASS: TestRetry (0.01s)\nPASS\nok  \tx.org/client\t0.123s\n",
    "Jest": lambda log: f"PASS src/log.test.js\n  Console\n{log}\nTests:       9 passed, 9 total\nTime:        2.1 s\n",
    "a manual": lambda log: f"NAME\n    a - b\n\nSYNOPSIS\n    a FILE\n\nDIAGNOSTICS\n{indented(log)}\nBUGS\n",
    "a mail": lambda log: "From: anna@x.org\nSubject: Re: your run\n\nYou wrote:\n\n"
    + "".join(f"> {line}\n" for line in log.splitlines())
    + "\nThat was the old node.\nIt works since Friday.\n",
    "a page": lambda log: f"# Troubleshooting\n\nIf you see this:\n\n```\n{log}```\n\nset x.\nThat is all.\nIt is.\n",
    "a review of what happened": lambda log: "Post-mortem of 3 November\n\nAt two in the night a rank died with\n\n"
    + indented(log) + "\nThe root cause was a cable.\nIt was replaced in the morning.\n",
}  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(st.sampled_from((*BEFORE, *AFTER)), st.sampled_from(sorted(FRAMED)))
def test_no_failure_that_is_quoted_is_told_as_one(report, frame: str) -> None:
    found = explain_text(FRAMED[frame](report.log))
    assert found.status == NO_FAILURE and not found.matches


ERROR = FRAMES + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize(
    "log",
    [
        HEAD + ERROR + "======= 1 failed, 2 passed in 1.03s =======\n",
        f"test_it (tests.test_a.T) ... {ERROR}\nRan 2 tests in 0.213s\n\nFAILED (errors=1)\n",
        HEAD + "tests/test_a.py ..\n======= 2 passed in 1.03s =======\n$ python train.py\n" + ERROR,
        "I run the script of the documentation, and get this after an hour:\n\n" + ERROR + "\nWhat can I do?\n",
        "### Reproduction\n\nI run the example.\nIt ends like this.\n\n```\n" + ERROR + "```\n",
        "From: slurm@x.org\nSubject: Job 7 failed\n\nThe end of its output follows.\nIt ran for an hour.\n\n" + ERROR,
        "10:31:02 trainer: loading\n10:31:09 server: ready\n10:31:30 trainer: step 1\n10:31:31 trainer: "
        "CUDA out of memory. Tried to allocate 2.00 GiB\n",
        "[10:31:02] trainer: loading\n[10:31:09] server: ready\n[10:31:30] trainer: step 1\n[10:31:31] trainer: 2\n"
        "[10:31:33] trainer: 3\n[10:31:41] trainer: CUDA out of memory. Tried to allocate 2.00 GiB\n",
        "10:31 start\n10:40 anna: started it\n" + ERROR,
    ],
)
def test_a_report_of_a_failure_is_a_log(log: str) -> None:
    assert not told(log)
    assert [match.entry.id for match in explain_text(log).matches][:1] == ["gpu-out-of-memory"]


@pytest.mark.parametrize(
    "text",
    [
        "Q: What does “CUDA error: device-side assert triggered” mean?\nA: An index is out of range.\n",
        "anna  10:02 AM\nanyone seen “NCCL error: unhandled system error”?\nbert  10:04 AM\nyes, my typo\n",
        "[04/11/2025 10:02] anna: ValueError: chat_template is not set\n[04/11/2025 10:03] bert: base model?\n"
        "[04/11/2025 10:04] anna: yes, fine now\n",
        "Abstract. Training often ends in CUDA out of memory errors on a single GPU, which costs time. We show that "
        "checkpointing helps a lot. In three of twelve runs a NaN loss was seen at the higher of two rates, none "
        "at the lower one.\n",
        "| error | meaning |\n|---|---|\n| CUDA out of memory | too large |\n| KeyError: 'prompt' | a column |\n",
        'id,title,status\n101,"RuntimeError: CUDA error: device-side assert triggered",closed\n102,"Docs",open\n',
        '> +    raise RuntimeError("CUDA out of memory")\nShould this be another class?\nIt would not be caught.\n',
    ],
)
def test_what_people_say(text: str) -> None:
    assert told(text) and explain_text(text).status == NO_FAILURE


@pytest.mark.parametrize(
    "line",
    ["ConnectionResetError: [Errno 104] Connection reset by peer means that the other side closed.",
     "as expected: `temperature` (=0.0) has to be a strictly positive float", "CUDA out of memory (simulated)",
     "caught ZeroDivisionError: division by zero, returning inf",
     "  FAILED: ValueError: max_num_batched_tokens (4096) is smaller than max_model_len (8192)   <- sample output"],
)  # fmt: skip
def test_an_error_that_its_line_calls_none(line: str) -> None:
    assert expected(line.encode()) and explain_text(f"step 1\n{line}\nstep 2\n").status == NO_FAILURE


@pytest.mark.parametrize("line", [b"RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
                                  b"ValueError: not as many values as expected"])  # fmt: skip
def test_others_are_not(line: bytes) -> None:
    assert not expected(line)


@given(st.text(max_size=300))
def test_any_text_can_be_asked(text: str) -> None:
    assert isinstance(told(text), str)


SHOWN = {
    "a list of what happened": "id,node,what,state\n7,n3,Xid 79 GPU has fallen off the bus,closed\n8,fs,No space left "
    "on device,closed\n",
    "a page in HTML": "<h1>Troubles</h1>\n<pre>ConnectionError: The vLLM server can't be reached at http://0.0.0.0:80 "
    "after 240.0 seconds.</pre>\n<p>Start it <code>first</code>.</p>\n",
    "a page with a traceback": f"<html>\n<body>\n<h2>Errors</h2>\n<pre>\n{FRAMES}ValueError: batch 7 is odd\n</pre>"
    "\n<p>Choose an even batch size.</p>\n</body>\n</html>\n",
    "a table with another separator": "id;node;what;state\n7;n3;Xid 79 GPU has fallen off the bus;closed\n8;fs;No "
    "space left on device;closed\n",
    "what is known": "pattern,cause,cure\nCUDA out of memory,the batch,lower it\nNo space left on device,disk,delete\n",
    "people with names above": f"nora  9:12 AM\nseen this?\n```\n{FRAMES}torch.OutOfMemoryError: CUDA out of memory.\n"
    "```\ntom  9:14 AM\nyes, the logits. we use liger\nnora  9:15 AM\nthanks, works now\n",
    "one commit": "commit 1a2b3c4d5e6f\nAuthor: A <a@b.c>\nDate:   Mon Jan 5\n\n    Fix RuntimeError: CUDA error: "
    "invalid device ordinal\n",
    "translations": 'msgid "CUDA out of memory"\nmsgstr "Voll"\nmsgid "No space left on device"\nmsgstr "Voll"\n',
    "an outline": "* Meeting\n** TODO look into NCCL timeouts of last week\n** DONE No space left on device on fs1\n",
    "people who are done": f"#help\n[09:12] ann: this?\n[09:12] ann: ```\n{FRAMES}torch.OutOfMemoryError: CUDA out "
    "of memory. Tried to allocate 2 GiB.\n```\n[09:14] bob: the logits\n[09:15] ann: thanks, works now\n",
}


@pytest.mark.parametrize("text", SHOWN.values(), ids=SHOWN)
def test_what_is_shown_in_a_frame_is_no_failure(text: str) -> None:
    assert explain_text(text).status == NO_FAILURE


@pytest.mark.parametrize(
    "text",
    [
        SHOWN["people who are done"].replace("thanks, works now", "no idea what to do"),
        f"<pre>\n{FRAMES}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n</pre>\n",
        f"[09:12] ann: fixed the config, and now:\n{FRAMES}ValueError: batch 7 is odd\n",
    ],
)
def test_who_still_asks_is_answered(text: str) -> None:
    assert explain_text(text).status != NO_FAILURE


def test_a_log_of_journald_is_no_prose() -> None:
    said = [*FRAMES.splitlines(), "We gave up. They did not answer. It is over.", "ValueError: batch 7 is odd"] * 3
    log = "".join(f"Feb 02 15:35:{at:02} gpu52 train[310248]: {line}\n" for at, line in enumerate(said))
    assert explain_text(log).error is not None


TICKET = (
    "Ticket 7   status: RESOLVED\nTitle: node 3 reports Xid 79\n08:11 NVRM: Xid (PCI:0000:1b:00): 79\nImpact: none\n"
)
QUERY = "-- a week\nSELECT count(*) FILTER (WHERE message ILIKE '%CUDA out of memory%')\nFROM logs\nGROUP BY 1;\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (QUERY, "a query"),
        (TICKET, "a ticket that is done with"),
        (TICKET.replace("RESOLVED", "OPEN"), ""),
        ("SELECT the model\nRuntimeError: CUDA error: out of memory\n", ""),
    ],
)
def test_queries_and_tickets(text: str, kind: str) -> None:
    assert told(text) == kind


def test_a_failure_that_was_expected() -> None:
    assert expected(b"08:06:16Z xfail: tests/test_fsdp.py::test_flatten (ValueError: Cannot flatten integer tensors)")
    assert not expected(b"ValueError: the run failed: no data")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            '<?xml version="1.0"?>\n<testsuites><testsuite name="pytest" errors="0" failures="0" tests="1">\n'
            '<testcase name="a">'
            "<system-err>\nERROR monitor: collapse suspected\n</system-err></testcase></testsuite></testsuites>\n",
            "the output of tests that passed",
        ),
        ("---\ntitle: NaN\ndate: 2025-03-14\n---\n\nOne sees\n\n{'loss': nan, 'grad_norm': nan}\n", "a page of text"),
        (
            "# 常见问题\n\n**问：出现 `torch.OutOfMemoryError` 怎么办？**\n\n减小。\n\n**问：正常吗？**\n\n正常。\n",
            "questions with answers",
        ),
    ],
    ids=["JUnit", "front matter", "问"],
)
def test_more_frames(text: str, kind: str) -> None:
    found = explain_text(text)
    assert found.status == NO_FAILURE and found.no_log == kind


def test_tests_that_failed_in_junit_s_report_are_no_such_text() -> None:
    text = '<testsuite errors="0" failures="1">\n<system-err>\nRuntimeError: CUDA out of memory. Tried\n</system-err>\n'
    assert explain_text(text).status != NO_FAILURE


@given(st.from_regex(_told._EXPECTED))
def test_a_line_that_says_so_has_one_of_the_words(line: bytes) -> None:
    assert any(word in line for word in _told._OF_EXPECTED)


@given(st.from_regex(_faults._NATIVE))
def test_a_native_error_has_one_of_the_words(line: str) -> None:
    assert any(word in line for word in _faults._OF_NATIVE)


CHAT = (
    "2025-09-21 20:15  小林\n我之前一直 RuntimeError: CUDA error: an illegal memory access was encountered\n"
    "2025-09-21 20:17  阿哲\n升级就好了\n2025-09-21 20:18  小林\n好\n"
)


@pytest.mark.parametrize(
    "text", [CHAT, "ERROR: Exception in ASGI application (expected by test_rejects)\nPASSED\n"], ids=["chat", "test"]
)
def test_what_is_told_of_and_what_a_test_expects(text: str) -> None:
    assert explain_text(text).status == NO_FAILURE


PRINTED = "fine\nERROR: it did not work\nRuntimeError: CUDA error: device-side assert triggered\n{%- if x -%}\n"


@pytest.mark.parametrize("name", ["chat_template.jinja", "kernel.cu", "parent.pom", "run.log"])
def test_a_file_that_is_called_a_program_is_no_log(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(PRINTED)
    explanation, _ = explain_paths([str(tmp_path / name)])
    assert (explanation.status == NO_FAILURE) == (name != "run.log")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (21 * "# what it does\n" + "error: none\n#log_level = ERROR\n", "a file of settings"),
        (20 * "# sh start.sh\n" + "RuntimeError: it failed\n" * 21, ""),
        ('\n.TH "READ" 1\n.SH NAME\nread entries with ERROR or higher\nAborted (core dumped)\n', "a page of a manual"),
    ],
)
def test_settings_with_comments_and_a_manual_s_source(text: str, kind: str) -> None:
    assert quotes(text.encode(), whole=True) == kind


@pytest.mark.parametrize("line", ["ERROR = 4", "M1 = [E1;E2]", "[E Ê LATIN CAPITAL LETTER E"])
def test_what_looks_like_a_level_and_is_none(line: str) -> None:
    assert _faults.classify(line, line) is None


@pytest.mark.parametrize("line", ["[E socket.cpp:957] refused", "[E1112 10:11:12.3 x.cpp:9] no", "[2026] [ERROR] no"])
def test_what_is_a_level(line: str) -> None:
    assert _faults.classify(line, line) is not None


@pytest.mark.parametrize(("last", "quoted"), [("LOG:  checkpoint starting: time", True), ("PANIC:  no space", False)])
def test_a_database_that_serves_on(last: str, quoted: bool) -> None:
    said = [
        "LOG:  checkpoint complete",
        "ERROR:  duplicate key value violates a constraint",
        "STATEMENT:  INSERT",
        last,
    ]
    text = "".join(f"2025-10-04 00:0{at}:00.5 UTC [3979] {line}\n" for at, line in enumerate(said))
    assert (told(text) == "the log of a database") == quoted
