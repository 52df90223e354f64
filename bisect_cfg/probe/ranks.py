"""One of several processes that train together: which one this is, where it writes, how it ends.

A launcher tells each of its processes its number (``RANK``) and how many there are (``WORLD_SIZE``). The process with
number 0 writes into the trial's folder, like one that trains alone; each other into ``ranks/N`` of it, the same files.

A process that has come to its end does not leave: the others may still need it to come to theirs (what it sends is
still on its way), and if it left they would die of that, and tell of a lost connection. It says that it is over (event
``over``) and waits. The tool ends them all once all are over, or once one has failed. Repeated by hand, each waits for
the others for a while and then leaves by itself.
"""

import sys

from . import children, protocol, record, wrap
from .standard_library import os, time

# How the launchers tell a process its number. The first that is set counts.
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

# What torchrun, `accelerate launch` and MPI tell a process of the others. With these a training config opens a process
# group as soon as it is built.
LAUNCHED = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK",
)  # fmt: skip

FOLDER = "ranks"

# The position of `use_port` among the arguments of accelerate's `notebook_launcher`.
_USE_PORT = 4

# By hand, how long a process that is over waits for the others.
_WAIT_SECONDS = 30.0

_state: dict = {"rank": None, "world": 1, "port": None}


def number(names, default):
    """A number that a launcher has put into one of these environment variables."""
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return default


def told():
    """The number of this process and how many there are: as a launcher has put it into the environment, or as it is in
    the process group that the script has opened (accelerate's `debug_launcher` only tells that)."""
    rank, world = number(RANK, None), number(WORLD, 1)
    distributed = sys.modules.get("torch.distributed")
    if (rank is None or world < 2) and distributed is not None and distributed.is_available():
        if distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return rank, world


# What the environment said at the start: a cluster says it to scripts that train alone, too.
_AT_START = told()


def several():
    """Whether this process is one of several that train together."""
    return _state["rank"] is not None


def rank():
    """The number of this process; 0 if it trains alone."""
    return _state["rank"] or 0


def numbered():
    """Whether this process has become one of several since it began."""
    return not several() and told()[1] > 1 and told() != _AT_START


def begin(folder):
    """In a process that may be the training: find out which one it is, and claim its place.

    Returns:
        The folder of this process, that of the trial unless it is one of several.
    """
    rank, world = told()
    if rank is None or world < 2:
        return folder
    place = folder if rank == 0 else os.path.join(folder, FOLDER, str(rank))
    os.makedirs(place, 0o700, exist_ok=True)
    if not children.claim(place):
        return folder  # started by one of them
    children.state.place = place
    _state.update(rank=rank, world=world)
    _meet()
    return place


def install():
    """Processes that the script starts itself meet at the trial's own port: trials that run at once must not meet."""
    wrap.in_module("accelerate.launchers", "notebook_launcher", _launch)


def meet_at(port):
    """From now on they do; None: where the script says."""
    _state["port"] = port


def _meet():
    # torch's agent keeps the store, at the port of the process that started them all.
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if _state["port"] is not None and "MASTER_PORT" in os.environ and not agent:
        os.environ["MASTER_PORT"] = str(_state["port"])


def _launch(original, *args, **kwargs):
    if _state["port"] is not None and len(args) <= _USE_PORT and kwargs.get("num_nodes", 1) == 1:
        kwargs["use_port"] = str(_state["port"])
    return original(*args, **kwargs)


def note(**details):
    """Record which process this is."""
    record.event(protocol.RankBegin(os.getpid(), rank(), _state["world"], **details))


def given():
    """What the launcher has added to the environment that it was started with itself: name -> value."""
    try:
        with open(f"/proc/{children.state.root}/environ", "rb") as stream:
            lines = stream.read().split(b"\0")
    except OSError:
        return {}
    before = dict(line.split(b"=", 1) for line in lines if b"=" in line)
    ours = (children.PROBE, children.PATH)
    return {
        os.fsdecode(name): os.fsdecode(value)
        for name, value in os.environb.items()
        if before.get(name) != value and name not in ours
    }


def words():
    """This process's own command line."""
    found = getattr(sys, "orig_argv", None)
    if found is None:  # Python 3.9
        with open("/proc/self/cmdline", "rb") as stream:
            found = [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]
    return list(found)


def over(code):
    """This process is over: say so, and wait for the others."""
    record.event(protocol.Over(code, os.getpid()))
    with open(os.path.join(children.state.place, "over"), "w") as stream:
        stream.write(str(code))
    deadline = time.monotonic() + _WAIT_SECONDS
    while children.state.followed or (code == 0 and time.monotonic() < deadline and not _all_over()):
        time.sleep(0.05)  # other threads go on: what they have to send is sent
    os._exit(code if code >= 0 else 128 - code)


def _all_over():
    trial = children.state.folder
    places = [os.path.join(trial, FOLDER, str(rank)) for rank in range(1, _state["world"])]
    return all(os.path.exists(os.path.join(place, "over")) for place in (trial, *places))
