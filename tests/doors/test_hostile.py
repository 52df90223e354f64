"""Whatever is typed, damaged or refused by the machine: a sentence, a status of its own, never a traceback."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tools import ForkedTool, Said, Tool, slow

SCRIPT = """
    import os, signal, sys
    from trl import GRPOConfig, GRPOTrainer
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True)
    def step(number):
        if args.bf16 and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""
QUICK = ("--confirm", "1", "--no-recommend", "--no-where")


def write(folder: Path, text: str = SCRIPT, name: str = "train.py") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(textwrap.dedent(text))


def assert_told(said, *words: str, status: int | tuple[int, ...] = 2) -> None:
    """A sentence for people and the status it should have; no traceback, and no control character."""
    wanted = (status,) if isinstance(status, int) else status
    assert said.status in wanted, (said.status, said.all)
    assert not re.search(r"^(Traceback|Exception in thread|Exception ignored)", said.all, re.MULTILINE), said.all
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said.all), repr(said.all)
    for word in words:
        assert word in said.all, said.all


def shell(tool: Tool, command: str, **options: object):
    command = command.replace("BISECT", f"{sys.executable} -m bisect_cfg")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tool.folder,
        env=tool.environment,
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )
    return Said(done.returncode, done.stdout, done.stderr)


# ------------------------------------------------------------------------------------------- said before the first run


@pytest.mark.parametrize(("options", "words"), [
    (["--margin", "nan"], "--margin"), (["--max-seconds", "1e400"], "--max-seconds"),
    (["--good", "learning_rate=nan"], "NaN"), (["--good", "learning_rate=1e999"], "larger than a number"),
    (["--good", "run_name=!!binary aGk="], "binary"), (["--good", "a=&a [*a]"], "contains itself"),
    (["--good", "beta=1", "--good", "beta=0.5"], "beta twice"),
    (["--pin", "output_dir=x"], "--pin output_dir"), (["--pin", "beta=1", "--pin", "args.beta=2"], "beta twice"),
    (["--storage", "redis://localhost"], "redis://localhost"), (["--storage", "nonsense://x"], "nonsense://x"),
    (["--storage", "sqlite:////no/such/folder/x.db"], "unable to open"), (["--storage", "x"], "The storage x"),
    (["--failure", "a{99999999999999}"], "--failure"), (["--devices", "a,b"], "--devices must be CUDA devices"),
    (["--devices", "0,-1"], "'-1'"), (["--devices", "GPU"], "'GPU'"),
    (["--only", "bf16", "--exclude", "args.bf16"], "--only and --exclude both name bf16"),
])  # fmt: skip
def test_before_the_first_run(tool, options, words):
    write(tool.folder)
    assert_told(tool("bisect", "train.py", "--study", "s", *options), words)
    assert not (tool.folder / "s").exists()


@pytest.mark.parametrize(("options", "words"), [
    (["--only", "args.bf61"], "Did you mean bf16?"), (["--exclude", "bf61"], "Did you mean bf16?"),
    (["--keep", "bf61"], "Did you mean bf16?"), (["--keep", "lr"], "learning_rate"),
    (["--pin", "bf61=true"], "Did you mean bf16?"),
])  # fmt: skip
def test_a_name_that_nobody_knows(tool, options, words):
    write(tool.folder)
    assert_told(tool("bisect", "train.py", *options), words)


def test_max_trials_counts_the_first_runs(tool):
    write(tool.folder)
    for most in (1, 2):
        said = tool("bisect", "train.py", "--study", "s", "--max-trials", most)
        assert_told(said, f"Stopped after {most} trial", "--max-trials", status=3)
        assert len(list((tool.folder / "s/trials").glob("*/ending.json"))) == most
        assert json.loads((tool.folder / "s/result.json").read_text())["status"] == "inconclusive"
    assert_told(tool("bisect", "train.py", "--study", "s", *QUICK), "CAUSE   bf16", status=0)


# ---------------------------------------------------------------------------------------------------- what is printed


def test_names_are_shown_and_not_obeyed(tool):
    write(tool.folder / "my [red] dir [bold]")
    said = tool("bisect", "my [red] dir [bold]/train.py", "--study", "[dim]s :smile:\x1b[31m\x07", *QUICK)
    assert_told(said, "'[dim]s :smile:'", status=0)


def test_control_characters_of_a_run_never_reach_the_terminal(tool):
    write(tool.folder, SCRIPT.replace(
        "os.kill(os.getpid(), signal.SIGFPE)",
        "print('\\x1b]0;log\\x07'); raise ValueError('\\x1b[2J\\x1b]0;title\\x07[red]told[/] \\x9b31m\\u202e')",
    ))  # fmt: skip
    assert_told(tool("bisect", "train.py", "--study", "s", "--confirm", "1"), "[red]told[/]", status=0)
    write(tool.folder, "print('\\x1b]0;log\\x07loaded')\nraise SystemExit(3)", "dies.py")
    assert_told(tool("bisect", "dies.py"), "Its last lines", "loaded")


@pytest.mark.parametrize("variables", [
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, slow({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
])  # fmt: skip
def test_any_locale(fresh_tool, variables):
    write(fresh_tool.folder / "größe 训练", SCRIPT.replace("bf16=True", "bf16=True, lr_scheduler_type='größe'"))
    fresh_tool.environment.update(variables)
    assert_told(fresh_tool("bisect", "größe 训练/train.py", "--study", "s", "--confirm", "1"), "bf16", status=0)


def test_bytes_that_are_no_text_in_a_file_name(tool):
    write(tool.folder)
    os.rename(tool.folder / "train.py", os.fsencode(tool.folder) + b"/tr\xff.py")
    assert_told(tool("bisect", os.fsdecode(b"tr\xff.py"), *QUICK), "bf16", status=0)


# --------------------------------------------------------------------------------------------- what the machine refuses


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["--help"], ["explain", "log"], ["bisect", "train.py", "--study", "s"]]
)
def test_output_to_a_full_device(tool, arguments):
    write(tool.folder)
    (tool.folder / "log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n" * 400)
    assert_told(tool(*arguments, stdout="/dev/full"), "output cannot be written")
    assert tool(*arguments, stdout="/dev/full", stderr="/dev/full").status == 2
    tool.assert_nothing_left()


@pytest.mark.parametrize(("command", "statuses"), [
    ("BISECT bisect --help | true; exit ${PIPESTATUS[0]}", (141,)), ("BISECT explain log >&- 2>&-", (0,)),
    ("BISECT bisect train.py --study s | head -1; exit ${PIPESTATUS[0]}", (0, 141)),
])  # fmt: skip
def test_output_that_nobody_reads(tool, command, statuses):
    write(tool.folder)
    (tool.folder / "log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n" * 400)
    assert_told(shell(tool, command), status=statuses)
    tool.assert_nothing_left()


@pytest.mark.parametrize("kilobytes", [0, 200])
def test_disk_that_is_full(tool, kilobytes):
    write(tool.folder)
    limit = (kilobytes * 1024, resource.RLIM_INFINITY)
    said = tool("bisect", "train.py", "--study", "s", prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert said.status == 2, said.all
    if kilobytes:  # with nothing at all, not even its sentence can be written into a file
        assert_told(said)
        assert any(word in said.all for word in ("too large", "larger", "cannot be read or written")), said.all
    assert "--restart" not in said.all
    tool.assert_nothing_left()


@pytest.mark.parametrize("descriptors", [12, 28])
def test_few_descriptors_are_no_interruption(tool, descriptors):
    write(tool.folder)
    said = tool(
        "bisect", "train.py", "--study", "s", "--jobs", "4", "--no-recommend",
        prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
    )  # fmt: skip
    assert_told(said, status=(0, 2))
    assert "Interrupted" not in said.all
    if said.status:
        assert "open" in said.all or "ulimit" in said.all, said.all
    tool.assert_nothing_left()


# Short sleeps: a signal in the microseconds between Python's last look at them and the call of the system would wait
# for the end of a long one (15 of 12,000 signals on a busy machine did).
WAITS = "print('importing', flush=True)\nimport time\nfor _ in range(10_000):\n    time.sleep(0.01)\n"
MAKES_ITS_OWN = """
try:
    print("importing", flush=True)
    import time
    for _ in range(10_000):
        time.sleep(0.01)
except BaseException:
    raise ImportError("this library does not work here")
"""


@pytest.mark.parametrize(("module", "text", "arguments", "number"), [
    ("click", WAITS, ["--help"], signal.SIGINT), ("click", MAKES_ITS_OWN, ["--help"], signal.SIGTERM),
    ("optuna", WAITS, ["bisect", "train.py"], signal.SIGTERM),
    ("optuna", MAKES_ITS_OWN, ["bisect", "train.py"], signal.SIGINT),
])  # fmt: skip
def test_ctrl_c_while_it_is_still_importing(fresh_tool, module, text, arguments, number):
    write(fresh_tool.folder)
    write(fresh_tool.folder / "first", text, f"{module}.py")
    fresh_tool.environment["PYTHONPATH"] = f"{fresh_tool.folder / 'first'}:{fresh_tool.environment['PYTHONPATH']}"
    process = fresh_tool.start(*arguments)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=90)
    assert_told(Said(process.returncode, out, err), "Interrupted", status=128 + number)
    fresh_tool.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "when",
    [
        "import bisect_cfg.entry; {}; bisect_cfg.entry.main()",
        "import atexit; atexit.register(lambda: {}); import bisect_cfg.entry as e; e.main()",
    ],
)
def test_a_signal_before_there_is_a_handler_or_while_the_interpreter_ends(tool, when, number):
    code = f"import os, sys; sys.argv[1:] = ['--version']; {when.format(f'os.kill(os.getpid(), {int(number)})')}"
    done = subprocess.run([sys.executable, "-c", code], env=tool.environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-number, "")  # for which a shell has 130 or 143


def test_a_fault_of_ours_has_its_own_status_and_a_file(fresh_tool):
    """Broken on purpose: whatever escapes is told in two lines."""
    (fresh_tool.folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'bisect_cfg.api':\n"
        "            raise TypeError('planted [red] token=abcdef123456 hf_Planted0123456789')\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    fresh_tool.environment["PYTHONPATH"] = f"{fresh_tool.folder}:{fresh_tool.environment['PYTHONPATH']}"
    fresh_tool.environment["TMPDIR"] = str(fresh_tool.folder)
    said = fresh_tool("bisect", "train.py")
    assert_told(said, "Internal error: TypeError: planted [red]", "bisect-cfg-error-", "report", status=70)
    (kept,) = fresh_tool.folder.glob("bisect-cfg-error-*")
    assert "Traceback" in kept.read_text() and kept.stat().st_mode & 0o077 == 0
    assert "hf_Planted" not in said.all + kept.read_text() and "abcdef123456" not in said.all + kept.read_text()


# ---------------------------------------------------------------------------------------------------- damaged studies


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, library: Path) -> ForkedTool:
    """A finished study; tests work on copies of its folder, made at the same place."""
    made = ForkedTool(tmp_path_factory.mktemp("finished"), library)
    write(made.folder)
    assert_told(made("bisect", "train.py", "--study", "s", *QUICK), status=0)
    shutil.copytree(made.folder / "s", made.folder / "kept")
    return made


@pytest.fixture
def study(finished: ForkedTool) -> ForkedTool:
    shutil.rmtree(finished.folder / "s", ignore_errors=True)
    shutil.copytree(finished.folder / "kept", finished.folder / "s")
    return finished


COMMAND = '{"target": "train.py", "arguments": %s, "python": null, "folder": ".", "options": %s}'


@pytest.mark.parametrize(("name", "text"), [
    ("command.json", "[]"), ("command.json", '{"target": 1}'), ("command.json", COMMAND % ("[1]", "{}")),
    ("command.json", COMMAND % ("[]", "5")), ("command.json", COMMAND % ("[]", '{"good": 3, "jobs": null}')),
    ("command.json", COMMAND % ("[]", '{"good": [["a", 1, 2]], "prior": {}}')), ("command.json", "\x00"),
    ("command.json", COMMAND.replace('"."', '"/no/such/folder"') % ("[]", "{}")),
    ("state.json", '{"target": {}, "options": {}}'), ("state.json", "\udcff"),
    ("state.json", '{"target": {"script": "x", "arguments": 2, "script_hash": 1, "good_file_hash": 2}, "options": {}}'),
])  # fmt: skip
def test_files_of_the_study(study, name, text):
    (study.folder / "s" / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert_told(study("recommend", "s", "--trust", "--verify-seeds", "1"))


NO_EVENTS = """\
[]
null
{}
{"event": "train_begin", "own_files": 3, "time": "x"}
{"event": "exception"}
{"event": "config"}
{"event": "assigned", "kind": "args", "index": 9, "name": "x"}
"""


@pytest.mark.parametrize("validity", ['{"resolved": 1, "errors": 2}', '{"resolved": {}, "errors": [[["a"], 3]]}'])
def test_caches_and_traces_of_the_study(study, validity):
    """What can be made again, or passed over, is; the answer stays."""
    folder = study.folder / "s"
    (folder / "validity.json").write_text(validity)
    (folder / "trials/0/ending.json").write_text('{"exit_code": "x", "hang": 3, "seconds": "y"}')
    (folder / "trials/0/metrics.jsonl").write_text('[]\n3\n{"loss": "x", "time": null, "step": "a"}\n')
    with (folder / "trials/0/events.jsonl").open("a") as events:
        events.write(NO_EVENTS)
    for left in folder.glob("study.db*"):
        left.unlink()
    assert_told(study("bisect", "train.py", "--study", "s", *QUICK), "CAUSE   bf16", status=0)


@pytest.mark.parametrize("text", ["[]", "[]\n", "null\n3\n", ""])
def test_events_of_the_first_run_that_say_nothing(study, text):
    (study.folder / "s/trials/0/events.jsonl").write_text(text)
    assert_told(study("bisect", "train.py", "--study", "s", *QUICK), "damaged", "trials/0/events.jsonl", "--restart")


@pytest.mark.parametrize("text", ["no database at all, not even nearly", "SQLite format 3\0" + "x" * 5000])
def test_database_of_the_study(study, text):
    for left in (study.folder / "s").glob("study.db-*"):
        left.unlink()
    (study.folder / "s/study.db").write_text(text)
    assert_told(study("bisect", "train.py", "--study", "s", *QUICK), "study.db", "--restart")
    assert not list((study.folder / "s").glob("study.db-*"))


# ------------------------------------------------------------------------------------------------------- the notebook


def test_values_from_python_are_taken_as_they_are(tool):
    """None, True, a number and a text that looks like one are different settings."""
    write(tool.folder)
    (tool.folder / "notebook.py").write_text(
        textwrap.dedent("""
        import bisect_cfg
        bisect_cfg.bisect(
            "train.py", study="s", good={"bf16": None, "lr_scheduler_type": "1e-3", "temperature": 1.5},
            pin={"model_init_kwargs": {"a": None, "b": "None"}}, confirm=1, recommend=False, where=False,
        )
    """)
    )
    said = shell(tool, f"{sys.executable} notebook.py")
    assert said.status == 0, said.all
    rows = json.loads((tool.folder / "s/result.json").read_text())["trials"]
    good = next(row["values"] for row in rows if row["purpose"] == "good baseline")
    assert good["bf16"] is None and good["lr_scheduler_type"] == "1e-3" and good["temperature"] == 1.5
    orders = json.loads((tool.folder / "s/trials/0/orders.json").read_text())["request"]["overrides"]
    assert orders == {"args.model_init_kwargs": {"a": None, "b": "None"}}
    again = tool("recommend", "s", "--verify-seeds", "1")
    assert again.status == 0, again.all


@pytest.mark.parametrize(("options", "error"), [
    ({"margin": float("nan")}, "InputError"), ({"jobs": True}, "InputError"), ({"nonsense": 1}, "TypeError"),
    ({"good": {"learning_rate": float("nan")}}, "InputError"), ({"good": {"learning_rate": object()}}, "InputError"),
    ({"good": {"hub_token": "abc"}}, "InputError"), ({"first": 3}, "InputError"), ({"log": 5}, "InputError"),
])  # fmt: skip
def test_options_from_python(tmp_path, monkeypatch, options, error):
    import bisect_cfg

    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception) as raised:
        bisect_cfg.bisect("train.py", **options)
    assert type(raised.value).__name__ == error
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
