"""What happens at the start of the target's process, before its script: read the orders, set the hooks."""

import atexit
import sys

from . import (
    children,
    dry_run,
    heartbeat,
    imports,
    instruments,
    library_objects,
    own_settings,
    protocol,
    ranks,
    record,
    redact,
    serve,
    side_effects,
    sources,
    training,
)
from .standard_library import faulthandler, gc, json, open, os

# Until a trial forks, even `torch.cuda.is_available()` must not initialise CUDA; imports call it.
_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"

# Variables that the libraries look at when they are used, not when they are imported; scripts often set them.
_READ_LATER = ("WANDB_", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES")


def start(path):
    """Read the orders at `path` (see `protocol`) and prepare this process, the first of a run or of a server."""
    orders = _orders(path)
    _know_this_process()
    if isinstance(orders, protocol.Inspect):
        children.hand_down(path)
        dry_run.start(orders)
        return
    children.set_variables(orders.restore)
    _install()
    ranks.install()
    heartbeat.install(training.HEAVY)
    os.register_at_fork(after_in_child=_forked)
    if isinstance(orders, protocol.Serve):
        _serve(orders)
        return
    _hand_down(orders.request)
    serve.begin(orders.request)
    _attach()
    _note_preparations()


def join():
    """In a process that a run has started, and that looks for one of the libraries: be ready for its being the
    training.

    Only when it builds a training config it counts as part of the run, and only when it trains the trial is about it.
    Most do neither: workers of data loaders, compilers, engines.
    """
    _know_this_process()
    try:
        orders = _orders(os.path.join(children.state.folder, protocol.ORDERS_FILE))
    except (OSError, ValueError, TypeError, KeyError):  # the trial is over, and so will we be in a moment
        return
    _install()
    if isinstance(orders, protocol.Cold):
        serve.begin(orders.request, first=False)
        _engage_at_config()
        if ranks.several():  # a launcher has started it to train
            record.claim()
            _engage()


def _orders(path):
    with open(path, encoding="utf-8") as stream:
        return protocol.read(protocol.Orders, json.load(stream))


def _know_this_process():
    redact.know_command(getattr(sys, "argv", ()))
    children.answer()


def _install():
    for part in (library_objects, own_settings, training, side_effects):
        part.install()


# ------------------------------------------------------------------------------------------------------- a warm start


def _serve(orders):
    """Import the libraries, or run the script up to where a trial begins to differ, and fork there for each trial."""
    server = serve.Server(orders.socket)
    os.set_inheritable(orders.socket, False)
    nvml_of_the_user = {_NVML: os.environ.get(_NVML)}
    os.environ[_NVML] = "1"
    serve.keep_single_threaded()

    def wait_for_orders():
        # Hundreds of thousands of objects are there by now, and most of them for good. A child that collects garbage
        # (accelerate does before the first step) would look through all of them, and copy their pages by looking.
        gc.freeze()
        server.send(protocol.Ready(serve.unsound()))
        told = server.run()
        if isinstance(told, protocol.ForkPoint):
            sources.state.before = lambda *at: wait_for_orders() if at == (told.kind, told.index) else None
            return
        children.set_variables(nvml_of_the_user)  # a forked child: from here on as the user has it
        _hand_down(told)
        serve.begin(told)
        if ranks.several():
            ranks.note()
        serve.restore_threads(told.threads)
        _attach()

    for name in orders.modules:  # in the order of the first run
        if name not in sys.modules:
            try:
                __import__(name)
            except Exception:  # it does not import on its own, and is imported by the script later
                continue
    wait_for_orders()


# ------------------------------------------------------------------------------- processes that may turn out to train


def _forked():
    """In a process that a run has forked: be ready for its getting a number."""
    if record.folder() is not None and not ranks.several():
        _engage_at_config()


def _engage_at_config():
    """Have this process counted when it builds a training config, at the latest when it trains."""
    training.engage = _engage
    sources.state.before = lambda kind, index: _engage() if kind == "args" else None


def _engage():
    """This process is about to train: it is one of several if it was numbered after its start, by a launcher within the
    script (accelerate's `notebook_launcher`, `torch.multiprocessing`)."""
    if training.engage is None:
        return
    training.engage = sources.state.before = None
    numbered, started = ranks.numbered(), children.state.joined
    if numbered:
        record.move(ranks.begin(children.state.folder))
        record.claim()
        ranks.note()  # nothing to launch it with: such a script starts its processes itself in every trial
    elif started:
        ranks.note(words=ranks.words(), given=ranks.given())
    if started:
        heartbeat.install(training.HEAVY)  # not before: other processes are left as they are
    if instruments.state.spec is None:
        instruments.begin(training.orders.instruments, record.folder())
    if numbered or started:
        _attach()


# ------------------------------------------------------------------------------------------------ files and handlers


def _hand_down(request):
    """What this trial's process starts belongs to the trial, and finds its orders in the trial's folder."""
    children.begin(request.folder)
    path = os.path.join(request.folder, protocol.ORDERS_FILE)
    if not os.path.exists(path):  # repeated by hand
        with open(path, "w", encoding="utf-8", opener=record.private) as stream:
            json.dump(protocol.to_json(protocol.Cold({}, request)), stream)


def _note_preparations():
    """Record what the script sets up before it imports a library that reads it at import.

    ``os.environ["HF_ENDPOINT"] = ...`` or a folder put first on ``sys.path`` comes too late for a library that was
    imported ahead of the script; the tool must know.
    """
    environment, path = dict(os.environ), set(sys.path)

    def note():
        changed = {name for name, _ in environment.items() ^ os.environ.items() if not name.startswith(_READ_LATER)}
        own = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv and sys.argv[0] else None
        added = [entry for entry in sys.path if entry not in path and os.path.abspath(entry) != own]
        if changed or added:
            record.event(protocol.Prepared(sorted(changed), added))

    imports.before_first_import(training.HEAVY + ("numpy", "huggingface_hub", "tokenizers"), note)


def _attach():
    """Files and handlers that belong to one trial's process."""
    path = os.path.join(record.folder(), protocol.STACKS_FILE)
    stacks = open(path, "a", opener=record.private)  # kept open: faulthandler writes to its descriptor
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(protocol.STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    record.event(protocol.Started(os.getpid()))
    atexit.register(training.script_end)
