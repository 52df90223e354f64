"""In a real Jupyter kernel: what a cell shows, and what an interrupt leaves behind."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client import BlockingKernelClient, KernelManager

pytestmark = pytest.mark.training  # importing the tool in a process of its own takes seconds

WAIT_SECONDS = 120.0
"""For a machine that has much else to do."""

COMMAND = """import sys, time
from pathlib import Path
if "--check" in sys.argv:
    Path("running").touch()
    while not Path("go").exists():
        time.sleep(0.1)
    sys.exit("both" if "--output" in sys.argv else 0)
"""

BISECT = f"""import bisect_cfg
report = bisect_cfg.bisect(
    command=[{sys.executable!r}, "-c", {COMMAND!r}, "{{flags}}"],
    good={{"check": False, "output": False, "unique": False}},
    bad={{"check": True, "output": True, "unique": True}},
    study="study",
    recommend=False,
)
report"""

FUNCTION = """from pathlib import Path
import time

def trial(configuration):
    if configuration["a"]:
        Path("running").touch()
        while not Path("go").exists():
            time.sleep(0.1)
    return not (configuration["a"] and configuration["b"])

bisection = bisect_cfg.Bisection({"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 1, "c": 1}, trial)
report = bisection.run()
report"""


class Kernel:
    """A notebook's kernel in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WAIT_SECONDS)
        self.process = psutil.Process(self.manager.provisioner.pid)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str, meanwhile: Callable[[], None] = lambda: None) -> dict[str, list[dict]]:
        """Run a cell: its messages by their kind."""
        asked = self.client.execute(code)
        meanwhile()
        found: dict[str, list[dict]] = {}
        while True:
            message = self.client.get_iopub_msg(timeout=WAIT_SECONDS)
            if message["parent_header"].get("msg_id") != asked:
                continue
            found.setdefault(message["msg_type"], []).append(message["content"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found

    def interrupt_once_it_runs(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (self.folder / "running").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.manager.interrupt_kernel()

    def left(self) -> list[psutil.Process]:
        """The processes that a cell has left behind, once they have had the time to end."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self.process.children(recursive=True)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    made = Kernel(tmp_path_factory.mktemp("notebook"))
    yield made
    made.close()


@pytest.mark.parametrize(("code", "cause"), [(BISECT, ["check", "output"]), (FUNCTION, ["a", "b"])])
def test_an_interrupted_cell_leaves_nothing_running_and_can_be_run_again(kernel: Kernel, code: str, cause) -> None:
    for name in ("running", "go"):
        (kernel.folder / name).unlink(missing_ok=True)
    stopped = kernel.run(code, kernel.interrupt_once_it_runs)
    assert stopped["error"][0]["ename"] == "KeyboardInterrupt"
    assert stopped["error"][0]["traceback"] == ["KeyboardInterrupt: nothing is lost."]  # and no frames of ours
    assert "Interrupted; what ran was ended." in stopped["update_display_data"][-1]["data"]["text/plain"]
    assert kernel.left() == []
    refused = kernel.run("bisect_cfg.load('nowhere')")["error"][0]
    assert refused["traceback"] == ["InputError: nowhere holds no study.", refused["traceback"][1]]
    (kernel.folder / "go").touch()
    again = kernel.run(code)
    assert "error" not in again, again["error"]
    shown = {message["transient"]["display_id"] for message in again["display_data"] + again["update_display_data"]}
    assert len(shown) == 1  # one output, which was redrawn
    last = again["update_display_data"][-1]["data"]
    assert "Proven: " in last["text/plain"] and "</span>" in last["text/html"] and "Proven: " in last["text/html"]
    assert not any("\x1b" in words for words in last.values()) and "stream" not in again
    page = again["execute_result"][0]["data"]["text/html"]
    assert all(name in page for name in cause)
    assert code is FUNCTION or "Fails" in page  # the words of the terminal, which went to no cell
    one = kernel.run(f"report.ask({{{cause[0]!r}}})")
    assert f"only {cause[0]}" in one["execute_result"][0]["data"]["text/html"]
    if code is BISECT:
        assert "One more trial (only check), " in one["update_display_data"][-1]["data"]["text/plain"]
    told = kernel.run("print(__import__('json').dumps([report.status, list(report.causes[0].parameters)]))")
    assert json.loads(told["stream"][0]["text"]) == ["isolated", cause]
    assert kernel.left() == []


def test_a_bisection_in_the_background_leaves_the_cells_free_and_ends_with_the_kernel(kernel: Kernel) -> None:
    for name in ("running", "go"):
        (kernel.folder / name).unlink(missing_ok=True)
    code = BISECT.replace("recommend=False,", "recommend=False,\n    wait=False,").replace('"study"', '"free"')
    begun = kernel.run(code)
    assert "running" in begun["execute_result"][0]["data"]["text/plain"]
    waited = kernel.run("report.wait()", kernel.interrupt_once_it_runs)
    assert waited["error"][0]["ename"] == "KeyboardInterrupt"
    told = kernel.run("print(report.done, report.report.status)")
    assert told["stream"][0]["text"].split() == ["False", "running"]  # the waiting was interrupted, and no more
    (kernel.folder / "go").touch()
    ended = kernel.run("found = report.wait()\nprint(found.status, list(found.causes[0].parameters), report.done)")
    assert ended["stream"][0]["text"] == "isolated ['check', 'output'] True\n"
    refused = kernel.run("bisect_cfg.bisect('nowhere.py', wait=False).wait()")["error"][0]
    assert refused["traceback"][0] == "InputError: There is no script nowhere.py."
    (kernel.folder / "go").unlink()
    (kernel.folder / "running").unlink()
    kernel.run(code.replace('"free"', '"other"'))
    deadline = time.monotonic() + WAIT_SECONDS
    while not (kernel.folder / "running").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left = kernel.process.children(recursive=True)
    kernel.run("report._process.stdin.close(); report._process.wait(60)")  # the first is what a kernel's end does
    assert left and not psutil.wait_procs(left, WAIT_SECONDS)[1]
