"""The probe stays with the processes that a script starts, while the script sees its own environment.

Loaded first of all, by `site/sitecustomize.py`, in every Python process of a run, and for most of them it is all that
is loaded: it imports nothing that the interpreter has not imported yet. From then on

- whatever is started from here (``subprocess``, ``multiprocessing``, ``os.exec*``, ``os.posix_spawn``, ``os.system``, a
  library's own ``system()``) gets the probe's two variables, also where the script gives an environment of its own or
  changes `PYTHONPATH`. ``os.environ`` does not show them. Programs that are not Python do nothing with them;
- the tool can tell that this process is watched: a file of ours is mapped (`answer`), which a fork inherits and an
  ``exec`` ends;
- if the training runs in a process that was started from here, nothing of this one's goes on after it: the run is over
  when the training is (`over`).

A process that was started says so in `BISECT_CFG_PROBE`: ``child:ROOT:FOLDER``, with the process id of the run's first
process and the folder of the trial; ``alone:...`` where no tool follows it (a trial that is repeated by hand).
"""

import _signal
import os as _os  # in which we change what a script uses
import sys
import time

os = type(sys)("os")  # and what we use ourselves: as it was before the script, see `standard_library`
vars(os).update(vars(_os))
open, sleep = open, time.sleep

PROBE, PATH = b"BISECT_CFG_PROBE", b"PYTHONPATH"

SITE = os.fsencode(os.path.join(os.path.dirname(os.path.abspath(__file__)), "site"))

STARTED = ("child:", "alone:")

TRAINER = "trainer"
"""File in the trial's folder: the process id of the process that trains."""


class _State:
    value = None  # of BISECT_CFG_PROBE for what is started from here
    root = 0  # process id of the run's first process
    folder = ""  # of the trial (of the server, before it forks one)
    place = ""  # where this process's own traces go, if it is one of several that train together (see `ranks`)
    joined = False  # whether this process, or the one it is a fork of, was started anew and not forked
    followed = True  # whether a tool follows the run and ends it
    answered: object = None  # the mapping
    wrapped = False


state = _State()
_putenv = os.putenv


def begin(folder):
    """In the first process of a run, or of a trial forked from a server: what is started from here belongs to
    `folder`."""
    state.root, state.folder = os.getpid(), folder
    state.followed = "BISECT_CFG_STUDY" in os.environ
    hand_down(f"{STARTED[0 if state.followed else 1]}{state.root}:{folder}")


def join(value):
    """In a process that a run has started: read the variable's value."""
    kind, root, folder = value.split(":", 2)
    state.joined = True
    state.root, state.folder, state.followed = int(root), folder, kind + ":" == STARTED[0]
    hand_down(value)


def hand_down(value):
    """Give `value` to whatever is started from here."""
    state.value = os.fsencode(value)
    _putenv(PROBE, state.value)
    if not state.wrapped:
        state.wrapped = True
        _putenv(PATH, _joined(os.environb.get(PATH)))
        _wrap_processes()


def set_variables(values):
    """Environment variables as they are to be, by name; None: not set."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def restore_path():
    """Let this process see `PYTHONPATH` as it would be without us. Only where `_joined` has put our folder there."""
    value = os.environb.get(PATH)
    if value == SITE:
        del os.environb[PATH]
    elif value is not None and value.startswith(SITE + b":"):
        os.environb[PATH] = value[len(SITE) + 1 :]
    if PROBE in os.environb:
        del os.environb[PROBE]


def answer():
    """Show that this process is watched: a file of ours appears among its mappings."""
    if state.answered is None:
        import mmap

        handle = os.open(os.path.join(SITE, b"sitecustomize.py"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            state.answered = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)


# ------------------------------------------------------------------------------------------------- what is handed down


def _joined(path):
    if path is None:
        return SITE
    return path if path == SITE or path.startswith(SITE + b":") else SITE + b":" + path


def _with_ours(environment):
    """An environment for a process that is started from here, by name or as a list of ``NAME=value``; unchanged if it
    is neither (None: as it is here; otherwise the call says so)."""
    listed = isinstance(environment, (list, tuple))
    try:
        pairs = (one.split(b"=", 1) for one in environment) if listed else environment.items()
        found = {os.fsencode(name): os.fsencode(value) for name, value in pairs}
    except (TypeError, AttributeError, ValueError):
        return environment
    found[PATH] = _joined(found.get(PATH))
    found[PROBE] = state.value
    return [name + b"=" + value for name, value in found.items()] if listed else found


def _around(owner, name, call):
    """As `wrap.around`, which needs `functools`."""
    original = getattr(owner, name, None)
    if original is None:
        return

    def wrapped(*arguments, **keywords):
        return call(original, *arguments, **keywords)

    for part in ("__name__", "__qualname__", "__doc__", "__module__"):
        try:
            setattr(wrapped, part, getattr(original, part))
        except (AttributeError, TypeError):
            pass
    setattr(owner, name, wrapped)


def _wrap_processes():
    """Around everything with which Python starts a process, sets a variable, or waits for a process.

    ``os.environ`` and the functions of ``os``, ``subprocess`` and ``multiprocessing`` look these up when they are
    called, or are imported after us.
    """
    import _posixsubprocess

    def putenv(original, name, value):
        key = os.fsencode(name)
        if key != PROBE:
            original(name, _joined(os.fsencode(value)) if key == PATH else value)

    def unsetenv(original, name):
        key = os.fsencode(name)
        if key == PATH:
            _putenv(PATH, SITE)
        elif key != PROBE:
            original(name)

    def fork_exec(original, *arguments):
        return original(*arguments[:5], *map(_with_ours, arguments[5:6]), *arguments[6:])

    def start(original, path, argv, env, **options):
        return original(path, argv, _with_ours(env), **options)

    def wait(original, *arguments):
        result = original(*arguments)
        pid, status = result[:2]
        if pid and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
            _noticed(pid, status)
        return result

    def system(original, command):
        status = original(command)
        _noticed(0, status)
        return status

    _around(_posixsubprocess, "fork_exec", fork_exec)
    for call, names in (
        (putenv, ["putenv"]), (unsetenv, ["unsetenv"]), (start, ["execve", "posix_spawn", "posix_spawnp"]),
        (wait, ["waitpid", "wait", "wait3", "wait4"]), (system, ["system"]),
    ):  # fmt: skip
        for name in names:
            _around(_os, name, call)

    early = sys.modules.get("subprocess")  # a .pth file has imported it: it has the originals
    if early is not None:
        if hasattr(early, "_fork_exec"):
            early.__dict__["_fork_exec"] = _posixsubprocess.fork_exec
        if hasattr(early, "_del_safe"):
            early._del_safe.waitpid = _os.waitpid


# ------------------------------------------------------------------------------------------------- the end of a run


def trainer():
    """Process id of the process that trains (of several: of that at our place), None as long as there is none."""
    return _trainer_at(state.place or state.folder)


def _trainer_at(folder):
    if folder is None:
        return None
    try:
        with open(os.path.join(folder, TRAINER)) as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return None


def _trainers():
    """Process ids of all that train together."""
    folders = [state.folder]
    try:
        ranks = os.path.join(state.folder, "ranks")
        folders += [os.path.join(ranks, name) for name in os.listdir(ranks)]
    except OSError:
        pass
    return [pid for pid in map(_trainer_at, folders) if pid is not None]


def claim(place=None):
    """Make this process the one that trains (at a place, if there are several); whether it is."""
    place = place or state.place or state.folder
    path = os.path.join(place, TRAINER)
    for _ in range(2):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            known = _trainer_at(place)
            if known == os.getpid():
                return True
            if known is None or os.path.exists(f"/proc/{known}"):
                return False
            os.unlink(path)  # repeated by hand: of the time before
            continue
        try:
            os.write(handle, b"%d" % os.getpid())
        finally:
            os.close(handle)
        return True
    return False


def release():
    """This process is not the one that trains any more: another one may be."""
    if trainer() == os.getpid():
        os.unlink(os.path.join(state.place or state.folder, TRAINER))


def _noticed(pid, status):
    """A process started from here has ended. If it was the one that trains, the run is over."""
    if not state.folder or state.place:
        return
    training = _trainers()
    if not training or os.getpid() in training:
        return
    if len(training) > 1 and not state.followed:
        return  # by hand the launcher itself ends the others
    gone = [one for one in training if one == pid or not os.path.exists(f"/proc/{one}")]
    if gone:
        over(os.waitstatus_to_exitcode(status), gone[0])


def over(code, pid=None):
    """The training (in process `pid`) has ended with `code`: say so and wait here for the end of the run; nothing else
    happens any more."""
    line = f'{{"event": "over", "code": {code}, "pid": {pid or os.getpid()}}}\n'
    handle = os.open(
        os.path.join(state.folder, "events.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
    hold(code)


def hold(code):
    """Wait to be ended. By hand there is nobody who does it: end the run from here."""
    if not state.followed:
        if state.root != os.getpid():
            try:
                os.kill(state.root, _signal.SIGKILL)
            except OSError:
                pass
        os._exit(code if code >= 0 else 128 - code)
    while True:
        os.kill(os.getpid(), _signal.SIGSTOP)  # all threads of it
        sleep(0.1)
