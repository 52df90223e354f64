"""An error of a monitor, a reporter or a thread beside the run never leads over the run's own."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.diagnosis._bystanders import of_bystander
from bisect_cfg.diagnosis._reading import Reading
from bisect_cfg.diagnosis.explain import explain_text
from bisect_cfg.diagnosis.knowledge import load
from tests.diagnosis.collected import FRAMES, ROWS
from tests.diagnosis.test_consequences import OWN, lead

EXPORTER = """Traceback (most recent call last):
  File "/opt/agents/node_gpu_exporter.py", line 61, in <module>
    pynvml.nvmlInit()
pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found
"""
BESIDE = {
    "an exporter": EXPORTER,
    "a monitor that says so": f"{FRAMES}pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded\n"
    "gpu-watch: telemetry disabled, the run continues\n",
    "a thread of a reporter": """Exception in thread StatsFlush:
Traceback (most recent call last):
  File "/opt/agents/stats.py", line 140, in flush
    self.sock.sendall(payload)
BrokenPipeError: [Errno 32] Broken pipe
""",
    "a thread of a data loader": """Exception in thread Thread-4 (_pin_memory_loop):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv
    chunk = read(handle, remaining)
ConnectionResetError: [Errno 104] Connection reset by peer
""",
    "a reporter's thread": """Exception in thread SenderThread:
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/opt/site-packages/wandb/sdk/internal/internal_api.py", line 90, in push
    response.raise_for_status()
requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.wandb.ai', port=443): Read timed out.
""",
    "a viewer": """Traceback (most recent call last):
  File "/opt/conda/bin/tensorboard", line 8, in <module>
    sys.exit(run_main())
ModuleNotFoundError: No module named 'pkg_resources'
""",
    "a task": """Task exception was never retrieved
future: <Task finished name='Task-7' coro=<push() done> exception=ClientConnectorError()>
Traceback (most recent call last):
  File "/opt/agents/push.py", line 8, in push
    await session.post(address)
aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host metrics:9091 ssl:default [Connect call failed]
""",
    "a copy": "cp: error writing '/backup/log.txt': No space left on device\n",
    "an uploader": f"{FRAMES}OSError: [Errno 28] No space left on device\nuploads: disabled\n",
}  # fmt: skip


def errors(log: str) -> list[str]:
    reading = Reading(load())
    reading.read(io.BytesIO(log.encode()))
    return [error.text for error in reading.errors_left()]


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(OWN), st.sampled_from(sorted(BESIDE)), st.booleans())
def test_it_does_not_lead_before_or_after_the_run_s_own_error(report, beside, first):
    log = BESIDE[beside] + report.log if first else f"{report.log}\n{BESIDE[beside]}"
    assert lead(log) in report.right
    found = explain_text(log)
    assert found.error is not None
    assert found.error.text not in BESIDE[beside]


def test_over_a_watchdog_it_does_not_lead_either():
    watchdog = (
        "[rank2]:[E0428 21:02:44.8 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800852 milliseconds before timing out.\n"
    )
    assert lead(EXPORTER + watchdog) == "nccl-timeout"


@pytest.mark.parametrize("beside", BESIDE)
def test_a_run_that_ended_well_has_none(beside):
    ended = f"{ROWS}{{'train_runtime': 3021.2, 'train_loss': 0.1}}\n"
    assert not errors(BESIDE[beside] + ended)
    assert not errors(f"{ended}Training completed. Do not forget to share your model\n{BESIDE[beside]}")


def test_alone_it_is_what_the_log_is_about():
    assert lead(EXPORTER) == "driver-not-loaded"


def test_a_thread_s_own_error_is_no_bystander_s():
    reading = Reading(load())
    log = f"Exception in thread Thread-7 (reward):\n{FRAMES}ValueError: signal only works in main thread\n"
    reading.read(io.BytesIO(log.encode()))
    assert [of_bystander(error) for error in reading.errors_left()] == [False]
