"""What happens at the start of the target's process, before its script: read the orders, set the hooks."""

import atexit
import faulthandler
import json
import os
import signal
import sys

from . import capture, imports, quiet, record, serve, watch

# A real-time signal that nobody uses: asks a silent process for the Python stacks of all its threads.
STACK_SIGNAL = signal.SIGRTMIN + 9

# Until a trial forks, even `torch.cuda.is_available()` must not initialise CUDA; imports call it.
_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def start(path):
    """Read the orders at `path` and prepare this process.

    The orders are a JSON object: ``level`` ("cold", "imports", "config"), ``restore`` (environment variables as
    the user has them, None for absent), ``targets``, and for a cold start the ``request`` (see `serve.begin`), for
    a server its ``socket`` (a file descriptor), ``modules`` to import and the ``fork_at`` point.
    """
    with open(path, encoding="utf-8") as stream:
        orders = json.load(stream)
    for name, value in orders["restore"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    capture.state.targets = orders.get("targets") or {}
    capture.install()
    watch.install()
    quiet.install()
    if orders["level"] == "cold":
        request = orders["request"]
        serve.begin(request)
        _attach(request["folder"])
        return

    server = serve.Server(orders["socket"])
    os.set_inheritable(orders["socket"], False)
    nvml_of_the_user = os.environ.get(_NVML)
    os.environ[_NVML] = "1"
    serve.keep_single_threaded()

    def wait_for_orders(position):
        reason = serve.unsound()
        server.send({"ready": position, "unsound": reason})
        request = server.run()  # returns in a forked child
        if nvml_of_the_user is None:
            os.environ.pop(_NVML, None)
        else:
            os.environ[_NVML] = nvml_of_the_user
        serve.begin(request)
        serve.restore_threads(request.get("threads"))
        _attach(request["folder"])

    if orders["level"] == "imports":
        _import(orders["modules"])
        wait_for_orders("imports")
        return

    fork_at = (orders["fork_at"]["kind"], orders["fork_at"]["index"])

    def before(kind, index):
        if (kind, index) == fork_at:
            capture.state.before = None
            wait_for_orders(f"{kind} {index}")

    capture.state.before = before


def _import(modules):
    # In the order of the first run; a module that does not import on its own is imported by the script later.
    for name in modules:
        if name not in sys.modules:
            try:
                __import__(name)
            except Exception:
                continue


def _attach(folder):
    """Files and handlers that belong to one trial's process."""
    stacks = open(os.path.join(folder, "stacks.txt"), "a")  # kept open: faulthandler writes to its descriptor
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    record.event("started", pid=os.getpid())
    atexit.register(lambda: record.event("script_end"))
