"""Events and the cause: what is survived or only follows never leads over what failed, on whichever rank."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.common.failures.excerpt import read_excerpt
from bisect_cfg.explain.events import Event, cause_of, find_events

TRACEBACK = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 8, in <module>\n    trainer.train()\n'
ROW = "{'loss': 0.01, 'grad_norm': 0.3, 'reward': 0.2, 'epoch': 0.1}\n"
CONSEQUENCES = (
    "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:24105",
    "[rank2]:[E ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "slurmstepd: error: *** STEP 88.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
    "ray.exceptions.ActorDiedError: The actor died because its node has died.",
    "train.py FAILED",
    "exitcode  : 1 (pid: 77)",
)


def events(log: str) -> list[Event]:
    return find_events(read_excerpt(io.BytesIO(log.encode("utf-8", "replace"))).lines)


def cause(log: str) -> str:
    found = cause_of(events(log))
    return found.text if found else ""


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@given(
    before=st.lists(st.sampled_from(CONSEQUENCES), max_size=3),
    after=st.lists(st.sampled_from(CONSEQUENCES), max_size=6),
    rank=st.integers(0, 7),
)
def test_what_only_follows_is_not_the_cause(before: list[str], after: list[str], rank: int) -> None:
    other = (rank + 1) % 8
    log = "".join(of_rank(other, TRACEBACK + one) for one in before)
    log += of_rank(rank, TRACEBACK + "ValueError: the reward has 7 values for 8 completions")
    log += "".join(f"{one}\n" for one in after)
    assert cause(log) == "ValueError: the reward has 7 values for 8 completions"


@given(st.integers(0, 3), st.integers(1, 4))
def test_what_training_goes_on_after_was_survived(before: int, after: int) -> None:
    log = ROW * before + TRACEBACK + "ValueError: no number\n" + ROW * after
    assert cause(log) == "" and all(event.survived for event in events(log))
    assert cause(log + TRACEBACK + "KeyError: 'solution'\n") == "KeyError: 'solution'"


@pytest.mark.parametrize(
    "log",
    [
        "ERROR: HTTP 503, retrying in 2 s\nFetching 4 files: 100%|####| 4/4 [00:01]\nmodel loaded\nstep 1 done\n",
        TRACEBACK + "ConnectionError: hub\nfalling back to the local cache\nmodel loaded\nstep 1 done\nstep 2 done\n",
        TRACEBACK + "ValueError: plot\n" + ROW * 3 + "{'train_runtime': 12.3, 'train_loss': 0.1}\n",
        "--- Logging error ---\n" + TRACEBACK + "BlockingIOError: could not write\n" + "step 3 done\n",
        "Exception ignored in: <function Loader.__del__ at 0x7f>\nAssertionError: can only test a child process\n",
        "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + TRACEBACK + "OSError: handle is closed\n",
    ],
)
def test_what_the_program_copes_with_is_no_cause(log: str) -> None:
    assert cause(log) == ""


@pytest.mark.parametrize(
    ("log", "kind", "text"),
    [
        ("train.sh: line 3: 812 Floating point exception(core dumped) python train.py\n", "signal", "Floating point"),
        ("train.py: error: argument --beta: invalid float value: 'x'\n", "said", "argument --beta"),
        ("terminate called after throwing an instance of 'c10::Error'\n", "native", "terminate called"),
        ("Out of memory: Killed process 812 (python) total-vm:1kB\n", "native", "Out of memory"),
        (TRACEBACK + "  warnings.warn(\n", "exception", "the log ends within this traceback"),
        ("2026-01-01 10:00:00,123 ERROR trainer failed to write\n", "logged", "trainer failed"),
        ("KeyError: 'solution'\n", "exception", "KeyError"),
    ],
)
def test_errors_of_every_shape(log: str, kind: str, text: str) -> None:
    found = cause_of(events(log))
    assert found is not None and found.kind == kind and text in found.text


def test_a_wrapped_message_is_one_text() -> None:
    log = (
        TRACEBACK + "ValueError: The global batch size (3 x 1) must be evenly\ndivisible by the number of generations\n"
    )
    found = cause_of(events(log))
    assert found is not None and "evenly\ndivisible" in found.message


def test_chained_exceptions_end_in_the_last_one() -> None:
    log = TRACEBACK + "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert cause(log + TRACEBACK + "ValueError: no column a\n") == "ValueError: no column a"


@given(st.text(max_size=400))
def test_any_text_is_read(text: str) -> None:
    cause_of(events(text))
