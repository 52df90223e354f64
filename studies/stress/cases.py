"""Random training scripts with planted causes.

A `Case` says everything about one bisection: what the script sets, which settings do it, how it fails, how it is
started and disturbed. `make` draws one from a seed, `script` writes it as Python. What is true of a subset of the
settings is `Case.truth`; the script and the judge both follow it.
"""

from __future__ import annotations

import json
import random
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

from standin import SETTINGS

FAST_MODES = (
    "SIGFPE",
    "SIGSEGV",
    "SIGABRT",
    "exception",
    "changing message",
    "nan loss",
    "nan grad",
    "exit",
    "_exit",
)
"""How a training fails, without waiting. `collapse`, `hang` and `nan, then hang` cost seconds each."""

KINDS: dict[str, int] = {
    "one": 6,
    "two": 6,
    "three": 4,
    "disjoint": 6,
    "other failure": 6,
    "needs": 5,
    "random": 8,
    "once": 3,
    "masked": 5,
    "collapse": 3,
    "hang": 1,
    "started": 8,
    "hostile": 10,
    "source": 6,
    "secret": 4,
    "ranks": 3,
    "two studies": 5,
    "edited": 5,
    "restricted": 5,
    "limits": 4,
    "healthy": 2,
    "good fails": 2,
    "killed": 10,
}
"""Kinds of cases, and how often each is drawn. Jobs, kills and odd surroundings are mixed into all of them."""

FAILS, PASSES, OTHER = "fails", "passes", "other"


@dataclass
class Case:
    """One bisection of a random script."""

    kind: str
    seed: str
    bad: dict[str, Any] = field(default_factory=dict)
    causes: list[list[str]] = field(default_factory=list)
    mode: str = "SIGFPE"
    step: int = 3
    probability: float = 1.0
    once: bool = False
    masks: dict[str, int] = field(default_factory=dict)
    """Setting that hides a cause, to the number of that cause."""
    needs: list[list[str]] = field(default_factory=list)
    """[a, b]: with a and without b the run ends in another failure before the first step is over."""
    later: list[str] = field(default_factory=list)
    """Settings with which a run that got so far ends in another failure after the step of the one under study."""
    fixed: list[str] = field(default_factory=list)
    """Settings that the command holds at what the script has."""
    start: str = "direct"
    source: str = "python"
    hostile: list[str] = field(default_factory=list)
    secret: str = ""
    secret_by: str = ""
    name: str = "train.py"
    folder: str = "script"
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    kills: list[list[Any]] = field(default_factory=list)
    """[seconds after the start, name of the signal, whether to its whole group as a terminal does]"""
    edit: list[Any] = field(default_factory=list)
    """[seconds after the start, the causes that the script has from then on; none: its recipe is made harmless]"""
    partner: dict[str, Any] = field(default_factory=dict)
    """What another script with the same settings has instead; both are bisected in one storage."""
    default_study: bool = False
    """Whether the command names no study folder."""
    beside: bool = False
    """Whether the tool is started in the script's own folder."""
    again: bool = False
    """Whether the same command is run once more when all is done."""

    def truth(self, subset: set[str], causes: list[list[str]] | None = None) -> str:
        """How a run ends with `subset` of the settings as the script has them and the others at their defaults."""
        subset = subset | set(self.fixed)
        if any(a in subset and b not in subset for a, b in self.needs):
            return OTHER
        for number, cause in enumerate(self.causes if causes is None else causes):
            hidden = any(mask in subset and number == hides for mask, hides in self.masks.items())
            if set(cause) <= subset and not hidden:
                return FAILS
        return OTHER if subset & set(self.later) else PASSES

    def planted(self, causes: list[list[str]] | None = None) -> list[set[str]]:
        """The minimal causes among the settings that may vary. One that is empty: the good configuration fails."""
        rest = [set(cause) - set(self.fixed) for cause in (self.causes if causes is None else causes)]
        return [cause for cause in rest if not any(other < cause for other in rest)]

    def as_json(self) -> str:
        """Everything, to repeat the case."""
        return json.dumps(asdict(self), indent=1)


HOSTILE: dict[str, tuple[str, str]] = {
    "writes files": (
        "top",
        """
        for place in (HERE, os.getcwd()):
            with open(os.path.join(place, "bydesign-%d" % os.getpid()), "w") as file:
                file.write("x" * 5000)
        """,
    ),
    "chdir": ("top", "os.chdir('/')"),
    "prints megabytes": ("train", "for _ in range(3000): print('x' * 1000, _)"),
    "prints each step": ("step", "print('\\r' + 'y' * 20000, number, end='')"),
    "odd bytes": (
        "train",
        "os.write(1, bytes(range(256)) * 40 + b'\\x1b]0;title\\x07\\x1b[2J[red]b[/nope] \\xff\\xfe')",
    ),
    "fake events": ("train", """print('{"event": "end", "kind": "finished", "step": 1}\\n[]\\nnull')"""),
    "closes descriptors": ("train", "os.closerange(3, 512)"),
    "closes output": ("train", "os.close(1); os.close(2)"),
    "closes all": ("train", "os.closerange(0, 512)"),
    "writes to descriptors": (
        "train",
        """
        for number in range(3, 512):
            try:
                os.set_blocking(number, False)
                os.write(number, b"garbage\\n{}\\n[1]\\n")
            except OSError:
                pass
        """,
    ),
    "ignores signals": (
        "top",
        "for name in ('SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR1'): signal.signal(getattr(signal, name), signal.SIG_IGN)",
    ),
    "handles signals": (
        "top",
        "for name in ('TERM', 'INT', 'ABRT', 'ALRM'): signal.signal(getattr(signal, 'SIG' + name), lambda *a: None)",
    ),
    "ignores children": ("top", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
    "blocks signals": ("top", "signal.pthread_sigmask(signal.SIG_BLOCK, set(range(1, 32)) - {6, 8, 11})"),
    "alarm": (
        "train",
        "signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, .01, .01)",
    ),
    "clears environment": ("train", "os.environ.clear()"),
    "odd environment": (
        "top",
        "os.environ.update(HOME='/nowhere', TMPDIR='/nowhere', PATH='', PYTHONPATH='/nowhere')",
    ),
    "thread": (
        "top",
        "import threading; threading.Thread(target=lambda: [time.sleep(.01) for _ in range(10000)], "
        "daemon=True).start()",
    ),
    "thread that stays": (
        "train",
        "import threading; threading.Thread(target=time.sleep, args=(300,)).start()",
    ),
    "hangs at exit": ("train", "import atexit; atexit.register(time.sleep, 300)"),
    "own session": ("train", "os.getpgid(0) == os.getpid() or os.setsid()"),
    "no output": ("train", "sys.stdout = sys.stderr = None"),
    "own hook": ("top", "sys.excepthook = lambda *a: os.write(2, b'no idea\\n')"),
    "umask": ("top", "os.umask(0o777)"),
    "few files": ("train", "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))"),
    "child": ("train", "subprocess.Popen(['sleep', '300'])"),
    "child that holds output": (
        "train",
        "subprocess.Popen(['sleep', '300'], start_new_session=True, close_fds=False)",
    ),
    "daemon": (
        "train",
        """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                program = [sys.executable, "-S", "-c", "import time; time.sleep(300)", HERE]
                os.execve(sys.executable, program, {})
            os._exit(0)
        """,
    ),
    "forked pool": (
        "train",
        """
        import multiprocessing
        workers = multiprocessing.get_context("fork").Pool(2)
        workers.map(abs, range(4))
        """,
    ),
    "reads input": ("top", "sys.stdin.read()"),
    "forgets itself": ("top", "del __file__"),
    "changes modules": (
        "top",
        "import json, types; json.dumps = None; sys.modules['json'] = types.ModuleType('json')",
    ),
    "patched open": (
        "train",
        """
        import builtins
        real = builtins.open
        builtins.open = lambda name, *a, **k: real(name, *a, **k) if "checkpoint" in str(name) else 1 / 0
        """,
    ),
    "recursion": ("train", "sys.setrecursionlimit(200)"),
}
"""Habits of scripts: where the line stands (before the configuration, before the training, in each step), and the
line."""

COSTLY = ("hangs at exit", "thread that stays")

STARTS = ("execv", "subprocess", "check_call", "spawn", "fork", "wrapper")


def _level(dice: random.Random, name: str) -> Any:
    return dice.choice(SETTINGS[name][2])


def make(seed: str, kind: str | None = None) -> Case:
    """The case of this seed; the same seed gives the same case."""
    dice = random.Random(seed)
    drawn = dice.choices(list(KINDS), list(KINDS.values()))[0]
    case = Case(kind or drawn, seed)
    count = dice.choice((3, 5, 8, 12, 19, 25))
    sizes = {"two": [2], "three": [3], "disjoint": dice.choice(([1, 1], [1, 2], [2, 2])), "masked": [1, 1]}
    shape = sizes.get(case.kind) or dice.choice(([1], [1], [2], [1, 1]))
    names = dice.sample(list(SETTINGS), max(count, sum(shape) + 3))
    case.bad = {name: _level(dice, name) for name in names}
    pool = list(names)
    dice.shuffle(pool)
    case.causes = [sorted(pool.pop() for _ in range(size)) for size in shape]
    case.mode = dice.choice(FAST_MODES)
    case.step = dice.choice((1, 2, 3, 3, 5, 8))
    _kind(dice, case, pool)
    _surroundings(dice, case)
    return case


def _kind(dice: random.Random, case: Case, pool: list[str]) -> None:
    """What is special in this kind of case. `pool` are the settings that do no harm so far."""
    if case.kind == "other failure":
        case.later = [pool.pop() for _ in range(dice.choice((1, 1, 2)))]
    elif case.kind == "needs":
        case.needs = [[dice.choice([pool.pop(), case.causes[0][0]]), pool.pop()]]
        case.step = max(case.step, 2)
    elif case.kind == "random":
        case.probability = dice.uniform(0.6, 0.95)
        case.causes = case.causes[:1]
    elif case.kind == "once":
        case.once = True
    elif case.kind == "masked":
        case.masks = {pool.pop(): 0}
    elif case.kind == "collapse":
        case.mode, case.step = "collapse", 2
    elif case.kind == "hang":
        case.mode, case.causes = dice.choice(("hang", "nan, then hang")), case.causes[:1]
        case.causes[0] = case.causes[0][:1]
        if dice.random() < 0.7:
            case.options += ["--trial-timeout", "2"]
        case.bad = {name: case.bad[name] for name in [*list(case.bad)[:3], *case.causes[0]]}
    elif case.kind == "started":
        case.start = dice.choice(STARTS)
    elif case.kind == "hostile":
        case.hostile = dice.sample([name for name in HOSTILE if name not in COSTLY], dice.choice((1, 1, 2, 3)))
        if dice.random() < 0.1:
            case.hostile.append(dice.choice(COSTLY))
    elif case.kind == "source":
        case.source = dice.choice(("yaml", "flags", "argparse", "json", "module"))
    elif case.kind == "secret":
        case.secret = "hf_" + "".join(dice.choices("abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ", k=34))
        case.secret_by = dice.choice(("hub_token", "model_init_kwargs", "flag", "environment"))
    elif case.kind == "ranks":
        case.environment.update(
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(dice.randint(20000, 30000)),
        )
        case.hostile = dice.choice((["listens"], []))
    elif case.kind == "two studies":
        case.partner = {"causes": [[pool.pop()]], "mode": dice.choice((case.mode, dice.choice(FAST_MODES)))}
    elif case.kind == "edited":
        case.source = dice.choice(("python", "yaml", "module"))
        case.edit = [round(dice.uniform(0.3, 4.0), 2), [[pool.pop()]] if case.source == "python" else []]
    elif case.kind == "restricted":
        others = [name for name in case.bad if dice.random() < 0.3] or [pool.pop()]
        if dice.random() < 0.5:
            case.fixed = others
            case.options += [word for name in others for word in ("--exclude", name)]
        else:
            case.fixed = [name for name in case.bad if name not in others]
            case.options += [word for name in others for word in ("--only", name)]
    elif case.kind == "limits":
        case.options += dice.choice(
            (
                ["--max-trials", str(dice.randint(1, 12))],
                ["--max-seconds", str(dice.randint(1, 4))],
                ["--first"],
            )
        )
    elif case.kind == "healthy":
        case.causes = []
    elif case.kind == "good fails":
        case.causes = [[]]


def _surroundings(dice: random.Random, case: Case) -> None:
    """Options, jobs, kills and odd surroundings, for a part of the cases of every kind."""
    if case.kind not in ("hostile", "edited", "hang") and dice.random() < 0.2:
        case.hostile = [*case.hostile, dice.choice([name for name in HOSTILE if name not in COSTLY])]
    if dice.random() < 0.3:
        case.options += ["--jobs", dice.choice(("2", "2", "4"))]
    if dice.random() < 0.6:
        case.options += ["--no-recommend"]
    if dice.random() < 0.8 or case.kind in ("hang", "collapse"):
        case.options += ["--no-where"]
    if dice.random() < 0.5:
        case.options += ["--plain"]
    if dice.random() < 0.2:
        case.options += ["--start", dice.choice(("config", "imports", "imports", "cold"))]
    if dice.random() < 0.2:
        case.options += ["--confirm", dice.choice(("1", "2", "5"))]
    if dice.random() < 0.3:
        case.environment.update(
            dice.choice(
                (
                    {"LC_ALL": "C"},
                    {"PYTHONIOENCODING": "ascii"},
                    {"NO_COLOR": "1"},
                    {"COLUMNS": "20"},
                    {"TERM": "dumb"},
                    {"FORCE_COLOR": "1", "COLUMNS": "40"},
                    {"PYTHONOPTIMIZE": "2"},
                    {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
                )
            )
        )
    if dice.random() < 0.2:
        case.folder = dice.choice(("my [red] dir", "Zoë's läuft", "a b; c", "d" * 60, "50%_off#1?x=1"))
    if dice.random() < 0.1 and case.source == "python" and case.start == "direct":
        case.name = dice.choice(("train [1].py", "训练.py", "-train.py", "a b.py"))
    if any(name.startswith("closes") for name in case.hostile):  # who prints after that fails by itself
        case.hostile = [name for name in case.hostile if HOSTILE.get(name, ("", ""))[1].find("print") < 0]
        case.hostile = [name for name in case.hostile if name != "odd bytes"]
    case.default_study, case.beside = dice.random() < 0.5, dice.random() < 0.4
    case.again = dice.random() < 0.15
    if case.source == "json" and "changes modules" in case.hostile:
        case.hostile.remove("changes modules")
    if case.kind == "killed" or dice.random() < 0.2:
        for _ in range(dice.choice((1, 1, 2, 3))):
            name = dice.choice(("SIGKILL", "SIGKILL", "SIGINT", "SIGTERM"))
            case.kills.append([round(dice.uniform(0.8, 4.5), 2), name, name == "SIGINT" and dice.random() < 0.5])


# ---------------------------------------------------------------------------------------------------- the script

STEP = '''
def level(name):
    """Whether a setting does what the script's own value of it does."""
    value, good, bad = getattr(args, name), GOOD[name], BAD[name]
    if value == bad:
        return True
    if value == good or type(bad) not in (int, float) or type(good) not in (int, float):
        return False
    return (value - good) / (bad - good) >= 0.6


def causes(active):
    return [
        number for number, cause in enumerate(CAUSES)
        if active >= set(cause) and not any(mask in active and number == hides for mask, hides in MASKS.items())
    ]


def fail(number):
    if MODE == "SIGFPE":
        os.kill(os.getpid(), signal.SIGFPE)
    elif MODE == "SIGSEGV":
        import ctypes
        ctypes.string_at(0)
    elif MODE == "SIGABRT":
        os.abort()
    elif MODE == "exception":
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    elif MODE == "changing message":
        raise ValueError(f"tensor at {hex(id(object()))} of process {os.getpid()} is bad at {time.time()}")
    elif MODE == "nan loss":
        return {"loss": float("nan")}
    elif MODE == "nan grad":
        return {"loss": float("nan"), "grad_norm": float("nan")}
    elif MODE == "exit":
        sys.exit(3)
    elif MODE == "_exit":
        os._exit(7)
    elif MODE == "hang":
        time.sleep(3600)
    elif MODE == "nan, then hang":
        if number > STEP:
            time.sleep(3600)
        return {"loss": float("nan"), "grad_norm": float("nan")}
    elif MODE == "collapse":
        return {"entropy": 2.0 * 0.2 ** (number - STEP + 1), "reward_std": 0.0, "reward": 0.0, "grad_norm": 0.0}


def lucky():
    """Whether this run gets away with it."""
    if not hasattr(lucky, "answer"):
        lucky.answer = int.from_bytes(os.urandom(4), "little") / 2**32 >= PROBABILITY
        if ONCE:
            lucky.answer = os.path.exists(ONCE)
            open(ONCE, "a").close()
    return lucky.answer


def step(number):
    %(step)s
    active = {name for name in BAD if level(name)}
    if any(a in active and b not in active for a, b in NEEDS):
        raise KeyError("another failure: what this needs is not there")
    if number >= STEP and causes(active) and not lucky():
        return fail(number)
    if number > STEP + 1 and active & set(LATER):
        raise OSError("another failure, and a later one")
'''


def _lines(text: str, indent: str = "") -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), indent)


def script(case: Case, *, once: str, bad: dict[str, Any] | None = None) -> dict[str, str]:
    """The files of the script, name to text.

    Args:
        once: Path of the file that remembers whether the failure has been seen.
        bad: What the script sets, if not `case.bad`.
    """
    bad = case.bad if bad is None else bad
    extra = ""
    if case.secret_by == "hub_token":
        extra = f", hub_token={case.secret!r}"
    elif case.secret_by == "model_init_kwargs":
        extra = f", model_init_kwargs={{'token': {case.secret!r}}}"
    elif case.secret_by == "environment":
        extra = ", hub_token=os.environ['STRESS_HF_TOKEN']"
    habits: dict[str, list[str]] = {place: [] for place in ("top", "train", "step")}
    for name in case.hostile:
        if name == "listens":
            line = "import socket; server = socket.socket(); server.bind(('127.0.0.1', int(os.environ['MASTER_PORT'])))"
            habits["train"].append(line)
        else:
            place, line = HOSTILE[name]
            habits[place].append(_lines(line))
    config, files = _configuration(case, bad, extra)
    constants = {
        "GOOD": {name: SETTINGS[name][1] for name in case.bad},
        "BAD": case.bad,
        "CAUSES": case.causes,
        "MASKS": case.masks,
        "NEEDS": case.needs,
        "LATER": case.later,
        "MODE": case.mode,
        "STEP": case.step,
        "PROBABILITY": case.probability,
        "ONCE": once if case.once else "",
    }
    facts = "\n".join(f"{name} = {value!r}" for name, value in constants.items())
    body = [
        "import os, signal, subprocess, sys, time",
        "HERE = os.path.dirname(os.path.abspath(__file__))",
        *habits["top"],
        "from trl import GRPOConfig, GRPOTrainer",
        config,
        facts,
        (STEP % {"step": _lines("\n".join(habits["step"]) or "pass", "    ").strip()}),
        *habits["train"],
        "GRPOTrainer(args, step).train()",
        "with open(os.path.join(HERE, 'after-the-training'), 'w') as file: file.write('never')",
    ]
    text = "\n".join(body) + "\n"
    files.update(_started(case, text))
    return files


def _configuration(case: Case, bad: dict[str, Any], extra: str) -> tuple[str, dict[str, str]]:
    """The lines that build `args`, and the files that they read."""
    if case.secret_by == "flag":
        return (
            (
                "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--token')\n"
                f"token = parser.parse_args().token\nargs = GRPOConfig(output_dir='out', hub_token=token, {_call(bad)})"
            ),
            {},
        )
    if case.source == "yaml":
        import yaml

        return (
            "import yaml\nwith open(os.path.join(HERE, 'recipe.yaml')) as file: args = "
            "GRPOConfig(**yaml.safe_load(file))",
            {"recipe.yaml": yaml.safe_dump({"output_dir": "out", **bad})},
        )
    if case.source == "json":
        return (
            "import json\nwith open(sys.argv[sys.argv.index('--config') + 1]) as file: args = "
            "GRPOConfig(**json.load(file))",
            {"recipe.json": json.dumps({"output_dir": "out", **bad})},
        )
    if case.source == "flags":
        return (
            (
                "import ast\npairs = [word[2:].split('=', 1) for word in sys.argv[1:]]\n"
                "args = GRPOConfig(output_dir='out', **{name: ast.literal_eval(value) for name, value in pairs})"
            ),
            {},
        )
    if case.source == "argparse":
        lines = [
            "import argparse, ast",
            "parser = argparse.ArgumentParser()",
            "parser.add_argument('--output', default='out')",
        ]
        lines += [f"parser.add_argument('--{name.replace('_', '-')}', type=ast.literal_eval)" for name in bad]
        lines += [
            "given = vars(parser.parse_args())",
            "args = GRPOConfig(output_dir=given.pop('output'), **given)",
        ]
        return "\n".join(lines), {}
    if case.source == "module":
        return "from recipe import args", {
            "recipe.py": f"from trl import GRPOConfig\nargs = GRPOConfig(output_dir='out', {_call(bad)})\n"
        }
    return f"args = GRPOConfig(\n    output_dir='out',\n    {_call(bad)}{extra},\n)", {}


def _call(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def arguments(case: Case, folder: str) -> list[str]:
    """What follows `--` on the tool's command line."""
    if case.secret_by == "flag":
        return ["--token", case.secret]
    if case.source == "json":
        return ["--config", f"{folder}/recipe.json"]
    if case.source == "flags":
        return [f"--{name}={value!r}" for name, value in case.bad.items()]
    if case.source == "argparse":
        return [f"--{name.replace('_', '-')}={value!r}" for name, value in case.bad.items()]
    return []


def _started(case: Case, text: str) -> dict[str, str]:
    """The script's files, where another one starts the one that trains."""
    if case.start == "direct":
        return {case.name: text}
    head = "import os, subprocess, sys\nHERE = os.path.dirname(os.path.abspath(__file__))\n"
    inner = "[sys.executable, os.path.join(HERE, 'inner.py'), *sys.argv[1:]]"
    if case.start == "execv":
        return {case.name: f"{head}os.execv(sys.executable, {inner})\n", "inner.py": text}
    if case.start == "subprocess":
        return {case.name: f"{head}sys.exit(subprocess.call({inner}))\n", "inner.py": text}
    if case.start == "check_call":
        return {case.name: f"{head}subprocess.check_call({inner})\n", "inner.py": text}
    if case.start == "wrapper":
        return {
            case.name: f"{head}sys.exit(os.system(' '.join(map(repr, {inner}))) >> 8)\n",
            "inner.py": text,
        }
    main = "def main():\n" + textwrap.indent(text, "    ")
    return {
        case.name: f"{main}\n\nif __name__ == '__main__':\n    import multiprocessing, sys\n"
        f"    child = multiprocessing.get_context({case.start!r}).Process(target=main)\n"
        "    child.start()\n    child.join()\n    sys.exit(child.exitcode)\n"
    }
