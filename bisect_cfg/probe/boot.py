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
    """Read the orders at `path` (see `protocol`) and prepare this process."""
    orders = _orders(path)
    redact.know_command(getattr(sys, "argv", ()))
    children.answer()
    if isinstance(orders, protocol.Inspect):
        children.hand_down(path)
        dry_run.start(orders)
        return
    children.set_variables(orders.restore)

    library_objects.install()
    own_settings.install()
    ranks.install()
    heartbeat.install(training.HEAVY)
    training.install()
    side_effects.install()
    os.register_at_fork(after_in_child=_forked)
    if isinstance(orders, protocol.Cold):
        serve.begin(orders.request)
        _hand_down(orders.request)
        _attach(orders.request.folder)
        _note_preparations()
    else:
        _serve(orders)


def _serve(orders):
    """Import the libraries, or run the script up to where a trial begins to differ, and fork there for each trial."""
    server = serve.Server(orders.socket)
    os.set_inheritable(orders.socket, False)
    nvml_of_the_user = os.environ.get(_NVML)
    os.environ[_NVML] = "1"
    serve.keep_single_threaded()

    def wait_for_orders(position):
        # Hundreds of thousands of objects are there by now, and most of them for good. A child that collects garbage
        # (accelerate does before the first step) would look through all of them, and copy their pages by looking.
        gc.freeze()
        server.send(protocol.Ready(position, serve.unsound()))
        told = server.run()
        if isinstance(told, protocol.ForkPoint):
            sources.state.before = fork_point(told)
            return
        if nvml_of_the_user is None:  # a forked child: from here on as the user has it
            os.environ.pop(_NVML, None)
        else:
            os.environ[_NVML] = nvml_of_the_user
        serve.begin(told)
        _hand_down(told)
        if ranks.several():
            ranks.note()
        serve.restore_threads(told.threads)
        _attach(record.folder())

    def fork_point(wanted):
        def before(kind, index):
            if (kind, index) == (wanted.kind, wanted.index):
                sources.state.before = None
                wait_for_orders(f"{kind} {index}")

        return before

    _import(orders.modules)
    wait_for_orders("imports")


def _orders(path):
    with open(path, encoding="utf-8") as stream:
        return protocol.read(protocol.Orders, json.load(stream))


def join():
    """In a process that a run has started, and that looks for one of the libraries: be ready for its being the
    training.

    Only when it builds a training config it counts as part of the run, and only when it trains the trial is about it.
    Most do neither: workers of data loaders, compilers, engines.
    """
    redact.know_command(getattr(sys, "argv", ()))
    children.answer()
    folder = children.state.folder
    try:
        orders = _orders(os.path.join(folder, protocol.ORDERS_FILE))
    except (OSError, ValueError, TypeError, KeyError):  # the trial is over, and so will we be in a moment
        return
    library_objects.install()
    own_settings.install()
    training.install()
    side_effects.install()
    if not isinstance(orders, protocol.Cold):
        return
    serve.begin(orders.request, first=False)

    def engage():
        if training.engage is not None:
            training.engage = None
            if not _take_number():
                ranks.note(words=ranks.words(), given=ranks.given())
            heartbeat.install(training.HEAVY)  # not before: other processes are left as they are
            instruments.begin(orders.request.instruments, record.folder())
            _attach(record.folder())

    _engage_at_config(engage)
    if ranks.several():  # a launcher has started it to train
        record.claim()
        engage()


def _engage_at_config(engage):
    """Call `engage` when this process builds a training config, at the latest when it trains."""

    def before(kind, index):
        if kind == "args":
            sources.state.before = None
            engage()

    training.engage = engage
    sources.state.before = before


def _forked():
    """In a process that a run has forked: be ready for its getting a number."""
    if record.folder() is None or ranks.several():
        return

    def engage():
        training.engage = None
        numbered = _take_number()
        if instruments.state.spec is None:
            instruments.begin(training.orders.instruments, record.folder())
        if numbered:
            _attach(record.folder())

    _engage_at_config(engage)


def _take_number():
    """Be one of several if this process was numbered after its start, by a launcher within the script (accelerate's
    `notebook_launcher`, `torch.multiprocessing`); whether it is."""
    if not ranks.numbered():
        return False
    record.move(ranks.begin(record.trial()))
    record.claim()
    ranks.note()  # nothing to launch it with: such a script starts its processes itself in every trial
    return True


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
        changed = sorted(
            name
            for name in {*environment, *os.environ}
            if environment.get(name) != os.environ.get(name) and not name.startswith(_READ_LATER)
        )
        own = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv and sys.argv[0] else None
        added = [entry for entry in sys.path if entry not in path and os.path.abspath(entry) != own]
        if changed or added:
            record.event(protocol.Prepared(changed, added))

    imports.before_first_import(training.HEAVY + ("numpy", "huggingface_hub", "tokenizers"), note)


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
    stacks = open(
        os.path.join(folder, protocol.STACKS_FILE), "a", opener=record.private
    )  # kept open: faulthandler writes to its descriptor
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(protocol.STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    record.event(protocol.Started(os.getpid()))
    atexit.register(training.script_end)
