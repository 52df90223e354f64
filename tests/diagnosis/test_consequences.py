"""What follows from a failure never leads over it, whatever it is and however often it is printed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.diagnosis._consequences import after, follows
from bisect_cfg.diagnosis.explain import explain_text
from tests.diagnosis.collected import AFTER, BEFORE, FRAMES, ROWS, STARTED

WAITING = "Server is not up yet. Retrying in 2.0 seconds...\n" * 2
LAUNCHER = 'Traceback (most recent call last):\n  File "/opt/conda/bin/accelerate", line 8, in <module>\n'
CONSEQUENCES = {
    "the server is not there": f"""{WAITING}{FRAMES}  File "/home/me/client.py", line 112, in check_server
    raise ConnectionError(
ConnectionError: The vLLM server can't be reached at http://0.0.0.0:8000 after 240.0 seconds. Make sure it is running.
""",
    "it refuses": FRAMES + "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Max "
    "retries exceeded with url: /generate (Caused by NewConnectionError(': [Errno 111] Connection refused'))\n",
    "the port is taken": FRAMES + "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
    "local network address. port: 29500, useIpv6: false, name: EADDRINUSE, message: address already in use\n",
    "others waited": """[rank5]:[E1104 09:24:11.102 ProcessGroupNCCL.cpp:629] [Rank 5] Watchdog caught collective \
operation timeout: WorkNCCL(SeqNum=118, OpType=ALLREDUCE, Timeout(ms)=9) ran for 9 milliseconds before timing out.
terminate called after throwing an instance of 'c10::DistBackendError'
""",
    "a peer is gone": "".join(f"[rank6]: {line}\n" for line in FRAMES.splitlines())
    + "[rank6]: RuntimeError: [../gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.3.17]\n",
    "a worker is gone": FRAMES + "RuntimeError: DataLoader worker (pid(s) 51234) exited unexpectedly\n",
    "the scheduler, at once": "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    "slurmstepd: error: *** STEP 71140.0 ON g09 CANCELLED AT 2025-11-04T09:20:41 ***\n",
    "the scheduler, at last": "slurmstepd: error: *** JOB 7 ON g5 CANCELLED AT 2025-10-02 DUE TO TIME LIMIT ***\n",
    "somebody": f"^C{LAUNCHER}    sys.exit(main())\nKeyboardInterrupt\n",
    "make": "make: *** [Makefile:22: train] Error 1\n",
    "a launcher": f"{LAUNCHER}    simple_launcher(args)\nsubprocess.CalledProcessError: Command '['python', 'a.py']' "
    "returned non-zero exit status 1.\n",
}  # fmt: skip
SAID_BY_OTHERS = {"slurm-limit", "slurm-cancelled", "address-in-use", "connection-lost", "vllm-server-not-up"}


def lead(log: str) -> str | None:
    first = explain_text(log).matches[:1]
    return first[0].entry.id if first and not first[0].doubt else None


OWN = [
    report
    for report in (*BEFORE, *AFTER)
    if report.log.count("Traceback (most") == 1
    and lead(report.log) in report.right
    and not any(follows(line) for line in report.log.splitlines())
]


def test_there_are_enough_reports_with_an_error_of_their_own() -> None:
    assert len(OWN) >= 40


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(OWN), st.lists(st.sampled_from(sorted(CONSEQUENCES)), min_size=1, max_size=3, unique=True))
def test_a_consequence_after_an_error_does_not_change_what_leads(report, consequences: list[str]) -> None:
    assert lead(report.log + "".join(map(CONSEQUENCES.get, consequences))) == lead(report.log)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(sorted(CONSEQUENCES)), min_size=1, max_size=2, unique=True))
def test_nor_where_the_error_is_not_known(consequences: list[str]) -> None:
    unknown = STARTED + FRAMES + "ValueError: the moon is in the wrong phase\n"
    found = explain_text(unknown + "".join(map(CONSEQUENCES.get, consequences)))
    assert found.error is not None and "the moon" in found.error.text
    assert not found.matches or found.matches[0].doubt or found.matches[0].entry.aftermath


def test_what_only_announces_a_failure_is_none() -> None:
    log = "Error executing job with overrides: ['algorithm.adv_estimator=grpo']\n"
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\nWorker exit type: "
    assert lead(log + died + "SYSTEM_ERROR Worker exit detail: killed by SIGKILL, possible causes: (1) oom\n") == (
        "ray-actor-died"
    )


def test_alone_it_is_what_happened() -> None:
    assert lead(STARTED + CONSEQUENCES["the server is not there"]) == "vllm-server-not-up"
    assert lead(STARTED + CONSEQUENCES["the port is taken"]) == "address-in-use"
    assert lead(ROWS + CONSEQUENCES["the scheduler, at last"]) == "slurm-limit"


def test_a_collapse_before_the_scheduler_ended_the_job_is_told() -> None:
    rows = "".join(
        f"{{'loss': 0.01, 'grad_norm': {0.4 if step < 40 else 0.0}, 'learning_rate': 1e-06, 'reward': "
        f"{0.3 + step / 200 if step < 40 else 0.0}, 'reward_std': {0.2 if step < 40 else 0.0}, 'entropy': "
        f"{0.6 if step < 40 else 0.001}, 'completion_length': {300 if step < 40 else 3}, 'epoch': {step / 100}}}\n"
        for step in range(120)
    )
    led = lead(rows)
    assert led is not None and led not in SAID_BY_OTHERS
    for name in ("the scheduler, at once", "the scheduler, at last"):
        assert lead(rows + CONSEQUENCES[name]) == led


def test_a_service_of_others_is_no_consequence() -> None:
    assert not follows("ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded")
    assert follows("ConnectionError: HTTPConnectionPool(host='10.0.0.7', port=8000): Max retries exceeded")


@given(st.integers(1, 50), st.integers(1, 50))
def test_only_what_comes_later_is_after(first: int, line: int) -> None:
    assert after(first, [(line, "Connection refused")]) == (line > first)
    assert not after(first, [(line + first, "ValueError: x")]) and not after(first, [])
    assert follows("KeyboardInterrupt") and not follows("ValueError: x")


def test_a_name_that_a_failed_import_should_have_defined_is_what_follows():
    failed = (
        'Traceback (most recent call last):\n  File "/tmp/ipython-input-3.py", line 1, in <module>\n'
        "    from helpers import FastThing\n"
        "ImportError: cannot import name 'Gone' from 'trl.trainer' (/opt/site-packages/trl/trainer/__init__.py)\n"
    )
    later = (
        'Traceback (most recent call last):\n  File "/tmp/ipython-input-4.py", line 1, in <module>\n'
        "    {0} = {0}.load()\nNameError: name '{0}' is not defined\n"
    )
    error = explain_text(failed + later.format("FastThing")).error
    assert error is not None and error.text.startswith("ImportError")
    error = explain_text(failed + later.format("another")).error
    assert error is not None and error.text.startswith("NameError")  # nothing says that it follows


def test_what_a_scheduler_ends_after_a_timeout_was_not_killed_for_memory() -> None:
    late = "[rank1]:[E221 03:41:11.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    late += "WorkNCCL(SeqNum=9, OpType=BROADCAST) ran for 1800040 milliseconds before timing out.\n"
    left = "srun: error: n4: task 1: Aborted (core dumped)\n"
    left += "slurmstepd: error: *** STEP 8.0 ON n4 CANCELLED AT 2025-02-21 ***\n"
    assert lead(f"{late}{left}srun: error: n4: tasks 0,2-3: Killed\n") == "nccl-timeout"
    assert lead("srun: error: n4: task 3: Killed\nsrun: Terminating StepId=8.0\n") == "host-out-of-memory"


def test_a_failed_check_of_native_code_is_told_and_not_the_signal_to_the_others() -> None:
    check = (
        "Train:   0%|  | 0/624 [00:00<?, ?it/s]python3: /project/lib/Allocation.cpp:47: getOrder(Attribute): Assertion "
    )
    check += '`!(a && b) && "only on Ampere"\' failed.\n'
    ended = "W0316 20:33:41.3 5511 torch/distributed/elastic/api.py:897] Sending process 5 closing signal SIGTERM\n"
    found = explain_text(check + ended)
    assert found.error is not None and found.error.number == 1


def test_what_a_builder_wraps_is_the_error() -> None:
    found = explain_text(
        'Traceback (most recent call last):\n  File "/w/p.py", line 31, in read\n    for line in open(p):\n'
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xa1 in position 5: invalid start byte\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/opt/site-packages/datasets/builder.py", line 9, in _prepare\n'
        '    raise DatasetGenerationError("An error") from e\n'
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset\n"
    )
    assert found.error is not None and found.error.text.startswith("UnicodeDecodeError")


def test_an_error_of_one_s_own_after_the_weights_were_gone_does_not_lead() -> None:
    fine = "".join(f"{{'loss': 0.1, 'grad_norm': 0.3, 'reward': 0.4, 'kl': 0.0{step}}}\n" for step in range(9))
    lost = "{'loss': nan, 'grad_norm': nan, 'reward': 0.0, 'kl': nan}\n"
    raised = 'Traceback (most recent call last):\n  File "/w/grpo.py", line 44, in judge\n    return hit / len(words)\n'
    error = "ZeroDivisionError: division by zero\n"
    assert lead(fine + lost * 20 + raised + error) in ("non-finite-gradient", "diverged-before-nan", "kl-overflow")
    assert lead(fine + raised + error) == lead(raised + error)


def test_a_launcher_s_words_do_not_lead_over_a_crash_that_names_itself() -> None:
    log = "Fatal Python error: none_dealloc: deallocating None: bug likely caused by a refcount error\n"
    log += "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n  exitcode  : -6 (pid: 5)\n"
    found = explain_text(log)
    assert found.error is not None and found.error.number == 1
    assert not found.matches or not found.matches[0].entry.aftermath or found.matches[0].doubt


def test_who_ends_a_run_says_nothing_of_why() -> None:
    fine = "".join(f"{{'loss': 1.{step}, 'grad_norm': 0.3, 'learning_rate': 5e-4}}\n" for step in range(9))
    lost = "{'loss': nan, 'grad_norm': nan, 'learning_rate': 5e-4}\n" * 9
    ended = (
        '^CTraceback (most recent call last):\n  File "/w/t.py", line 9, in <module>\n    main()\nKeyboardInterrupt\n'
    )
    assert lead(fine + lost + ended) == "non-finite-gradient"
