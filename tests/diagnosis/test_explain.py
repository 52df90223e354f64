"""explain: finds what is known, is honest about the rest, and does not mind the size or state of a log."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.diagnosis import _logs, _reading
from bisect_cfg.diagnosis._render import as_json
from bisect_cfg.diagnosis._words import MOST_SCANS, SMALL, USELESS, Words, literals
from bisect_cfg.diagnosis.explain import explain, explain_command, explain_paths, explain_text
from bisect_cfg.diagnosis.knowledge import Entry, load

ROOT = Path(__file__).parents[2]


def rows(count: int = 12, strings: bool = False, **changes: object) -> str:
    """Metric rows of a healthy run, with some values changed; a callable gets the row's number."""
    lines = []
    for step in range(count):
        values: dict[str, object] = {
            "loss": 0.0,
            "grad_norm": 0.3 + step % 3 / 10,
            "learning_rate": 1e-06,
            "reward": 0.4 + step / 100,
            "reward_std": 0.2,
            "frac_reward_zero_std": 0.25,
            "completions/clipped_ratio": 0.1,
            "entropy": 1.1 - step / 100,
            "epoch": step / 100,
        }
        values |= {name: value(step) if callable(value) else value for name, value in changes.items()}
        if strings:
            values = {name: f"{one:.4g}" if isinstance(one, float) else one for name, one in values.items()}
        lines.append(str(values))
    return "\n".join(lines) + "\n"


NOT_FAILURES = {
    "healthy, transformers 4": rows(),
    "healthy, transformers 5": rows(strings=True),
    "healthy, JSON lines": "".join(json.dumps({"loss": 0.0, "grad_norm": i / 9}) + "\n" for i in range(9)),
    "healthy, verl": "".join(f"step:{i} - actor/grad_norm:0.3 - critic/score/mean:0.{i}\n" for i in range(9)),
    "empty": "",
    "one line": "Loading model...\n",
    "loss is 0": rows(loss=0.0, grad_norm=0.4),
    "loss slightly negative": rows(loss=-1e-9),
    "grad_norm above the clip": "max_grad_norm=0.1\n" + rows(grad_norm=lambda step: 3.0 + step),
    "no kl at beta 0": "beta=0.0\n" + rows(),
    "kl NaN from the start at beta 0": "beta=0.0\n" + rows(kl=float("nan")),
    "clip_ratio 0": rows(**{"clip_ratio/region_mean": 0.0}),
    "learning rate 0 on the first step": rows(learning_rate=lambda step: 1e-7 * step),
    "learning rate decays to 0": rows(learning_rate=lambda step: 1e-6 * (11 - step)),
    "no reward on reuse steps": "".join(f"{{'loss': 0.0, 'grad_norm': 0.{i + 1}}}\n" for i in range(8)),
    "one infinite step under fp16": rows(grad_norm=lambda step: float("inf") if step == 2 else 0.5),
    "some groups agree": rows(reward_std=lambda step: 0.0 if step % 3 else 0.2),
    "two rows with equal rewards": rows(2, reward_std=0.0, grad_norm=0.0),
    "learnt the task": rows(
        reward=lambda step: step / 11,
        entropy=lambda step: 2.0 * 0.5**step,
        reward_std=lambda step: 0.2 - step / 99,
    ),
    "some completions cut off": rows(**{"completions/clipped_ratio": 0.9}),
    "progress bars": "".join(f"\r {i}%|###   | {i}/100 [00:09<01:00, 1.2s/it]" for i in range(100)),
    "colours": "\x1b[32mINFO\x1b[0m 03-02 10:11:12 engine.py:7] \x1b[1mstarted\x1b[0m\n",
    "summary of a good run": rows() + "{'train_runtime': 12.3, 'train_loss': 0.0, 'epoch': 1.0}\n",
    "deprecation warnings": "FutureWarning: `tokenizer` is deprecated, will be removed in version 0.16.0\n",
    "file not found": "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n"
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.json'\n",
    "syntax error": '  File "train.py", line 3\n    x =\n      ^\nSyntaxError: invalid syntax\n',
    "key error in a user's reward": "Traceback (most recent call last):\n  File \"r.py\", line 8, in reward\n"
    "KeyError: 'answer'\n",
    "interrupted": "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n"
    "KeyboardInterrupt\n",
    "git": "error: failed to push some refs to 'origin'\nhint: Updates were rejected\n",
    "completions that talk of failure": "Answer: 12 must be divisible by 3. It is out of the memory."
    " He killed time. A floating point exception is an event.\n" + rows(),
    "settings alone": "GRPOConfig(fp16=True, adam_epsilon=1e-08, num_iterations=4)\n" + rows(),
}  # fmt: skip


@pytest.mark.parametrize("log", NOT_FAILURES.values(), ids=NOT_FAILURES.keys())
def test_what_is_no_known_failure_matches_nothing(log: str) -> None:
    assert [match.entry.id for match in explain_text(log).matches] == []


def test_there_are_thirty_of_them() -> None:
    assert len(NOT_FAILURES) >= 30


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ({"grad_norm": lambda step: float("nan") if step > 8 else 0.5}, "non-finite-gradient"),
        ({"reward_std": 0.0, "grad_norm": 0.0}, "dead-reward"),
        ({"entropy": lambda i: 5.5 * 0.3**i, "reward": 0.1, "frac_reward_zero_std": 1.0}, "policy-collapse"),
        ({"reward": None}, "missing-reward"),
        ({"kl": lambda step: float("inf") if step == 11 else 0.1 * step}, "kl-overflow"),
    ],
)
def test_metrics_show_what_no_exception_says(changes: dict, entry: str, strings: bool) -> None:
    explanation = explain_text(rows(strings=strings, **changes))
    assert explanation.matches[0].entry.id == entry
    assert explanation.matches[0].evidence[0].number > 0


def test_unknown_failures_are_said_to_be_unknown() -> None:
    explanation = explain_text(NOT_FAILURES["key error in a user's reward"])
    text = str(explanation)
    assert not explanation.matches and "no known issue" in text and "KeyError" in text
    assert "A row of the data has no 'answer'" in text and "bisect-cfg bisect" not in text  # no setting is at fault
    assert explanation.status == 1 and "line 3: KeyError" in text
    assert "bisect-cfg bisect train.py" in str(explain_text("RuntimeError: it went wrong in a way that says nothing\n"))
    healthy = explain_text(rows())
    assert healthy.status == 3 and "No failure was found" in str(healthy)


def test_text_names_line_cure_source_and_command() -> None:
    command = "Command '['/venv/bin/python', 'grpo.py', '--bf16', 'true']' died with <Signals.SIGFPE: 8>.\n"
    text = str(explain_text("one\ntwo\nsubprocess.CalledProcessError: " + command))
    for part in ("line 3:", "gdb's bt", "trl/issues/2906", "bisect-cfg bisect grpo.py", "-- --bf16 true"):
        assert part in text


def test_line_numbers_with_carriage_returns_and_colours() -> None:
    bars = "".join(f"\r{i}%|#| {i}/9" for i in range(9))
    log = f"first\n{bars}\n\x1b[31m[rank1]: IndexError: index out of range in self\x1b[0m\n"
    match = explain_text(log).matches[0]
    assert (match.evidence[0].number, match.evidence[0].text) == (3, "IndexError: index out of range in self")


@pytest.mark.parametrize("seed", range(3))
def test_binary_junk_and_broken_characters(seed: int) -> None:
    junk = random.Random(seed).randbytes(600_000)
    assert not explain(io.BytesIO(junk)).matches
    error = b"\xff\xfe" + "浮点数例外".encode()[:-1] + b"\nCUDA out of memory \xe6\xb5\n"
    assert explain(io.BytesIO(junk + b"\n" + error)).matches[0].entry.id == "gpu-out-of-memory"


def test_a_line_without_end() -> None:
    log = b"x" * 3_000_000 + b" CUDA out of memory " + b"y" * 3_000_000
    assert explain(io.BytesIO(log)).matches[0].entry.id == "gpu-out-of-memory"


@settings(deadline=None)
@given(
    st.sets(st.binary(min_size=4, max_size=9), min_size=1, max_size=6),
    st.lists(st.binary(max_size=30), min_size=1, max_size=8),
    st.data(),
)
def test_the_words_of_a_block_are_all_found(words: set[bytes], junk: list[bytes], data: st.DataObject) -> None:
    marks, muted = (data.draw(st.sets(st.sampled_from(sorted(words)))) for _ in range(2))
    block = b"\n".join(part + data.draw(st.sampled_from(sorted(words))) for part in junk)
    scan = Words(words, marks)
    scan.mute(muted)
    slowly = scan.look(block)  # a small text, one word after the other
    scan.look(bytes(SMALL))
    found = scan.look(block)
    assert found == slowly
    places = sorted((at, word) for word in words - muted for at in range(len(block)) if block.startswith(word, at))
    assert [*zip(found.places, found.words, strict=True)] == places
    assert found.marks == {mark for mark in marks if mark in block}


def test_words_that_are_muted_stop_the_scan_no_more_and_come_back() -> None:
    flood, other = b"Assertion failed\n" * (USELESS + 1), b"Assertion failed\nout of memory\n"
    scan = Words([b"Assertion", b"memory"])
    scan.look(bytes(SMALL + 1))
    for _ in range(2 * MOST_SCANS):
        scan.mute([b"Assertion"])
        assert scan.look(flood).words == [] and scan.look(other).words == [b"memory"]
        scan.mute([])
        assert scan.look(other).words == [b"Assertion", b"memory"]


class Endless(io.RawIOBase):
    """A log of many megabytes that is never in memory."""

    def __init__(self, chunk: bytes, count: int, tail: bytes) -> None:
        self._chunks: Iterator[bytes] = iter([chunk] * count + [tail])

    def read(self, size: int = -1) -> bytes:
        return next(self._chunks, b"")


def test_large_logs_in_bounded_memory() -> None:
    chunk = (rows(300) + "".join(f"\r{i}%|###  | {i}/999 [00:01<00:09]" for i in range(3000)) + "\n").encode()
    count = 20_000_000 // len(chunk)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log = Endless(chunk, count, b"RuntimeError: 'weight' must be 2-D\n")
    explanation = explain(log)  # type: ignore[arg-type]
    assert explanation.matches[0].entry.id == "zero3-empty-weight"
    assert explanation.lines == count * 301 + 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize("entry", [entry for entry in load() if entry.sample][::24], ids=lambda entry: entry.id)
def test_the_answer_is_the_same_in_whatever_blocks_a_log_is_read(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    log = (rows(200) + entry.sample + "\n").encode()
    whole = explain(io.BytesIO(log))
    monkeypatch.setattr(_logs, "blocks", functools.partial(_logs.blocks, size=1 << 15))
    assert explain(io.BytesIO(log)) == whole


def test_what_ends_a_run_is_found_at_the_end_of_a_flood_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reading, "FLOOD", 500)
    monkeypatch.setattr(_logs, "blocks", functools.partial(_logs.blocks, size=1 << 15))
    looked_at: list[int] = []
    feed = _logs.Reader.feed
    monkeypatch.setattr(_logs.Reader, "feed", lambda *given: looked_at.append(feed(*given)) or looked_at[-1])
    flood = "".join(
        f"ERROR: reward of {at}: ValueError: could not convert string to float: 'x{at}'\n" for at in range(40)
    )
    log = (flood + rows(12)) * 200 + flood + "RuntimeError: 'weight' must be 2-D\n" + flood
    found = explain_text(log)
    assert found.matches[0].entry.id == "zero3-empty-weight"
    assert sum(looked_at) < 0.4 * log.count("ERROR")


def test_printed_data_costs_its_ends_only(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.dumps({"prompt": "TypeError: what it says " * 20_000, "reward": 0.5}) + "\n"
    looked_at: list[int] = []
    feed = _logs.Reader.feed
    monkeypatch.setattr(_logs.Reader, "feed", lambda *given: looked_at.append(feed(*given)) or looked_at[-1])
    assert explain_text(row * 8 + "RuntimeError: 'weight' must be 2-D\n").matches[0].entry.id == "zero3-empty-weight"
    assert sum(looked_at) < 200


def test_of_a_flood_of_assertions_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (
        "/aten/Indexing.cu:1289: indexSelectLargeIndex: block: [5,0,0], thread: [{},0,0] Assertion "
        "`srcIndex < srcSelectDimSize` failed.\n"
    )
    log = "".join(line.format(number) for number in range(50_000))
    looked_at: list[int] = []
    feed = _logs.Reader.feed
    monkeypatch.setattr(_logs.Reader, "feed", lambda *given: looked_at.append(feed(*given)) or looked_at[-1])
    match = explain_text(log).matches[0]
    assert match.entry.id == "index-out-of-range" and len(match.evidence) <= 3
    assert sum(looked_at) < 5_000


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: 'weight' must be 2-D\n")
    assert explain_command(str(log)) == 0
    assert "ZeRO-3" in capsys.readouterr().out
    log.write_text("nothing\n")
    assert explain_command(str(log)) == 3
    log.write_text("ValueError: what nobody knows\n")
    assert explain_command(str(log)) == 1
    assert "line 1: ValueError: what nobody knows" in capsys.readouterr().out
    assert explain_command(str(tmp_path / "absent.log")) == 2
    assert "absent.log" in capsys.readouterr().err


def test_starts_without_what_is_slow_to_load() -> None:
    """How many seconds a start takes is for `studies/log_speed/measure.py` to say."""
    code = (
        "import sys\n"
        "from bisect_cfg.diagnosis.explain import explain_command; explain_command('-')\n"
        "slow = 'torch', 'transformers', 'trl', 'rich', 'pandas', 'numpy', 'optuna'\n"
        "heavy = [name for name in slow if name in sys.modules]\n"
        "print(heavy, file=sys.stderr); sys.exit(bool(heavy))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", code]
    answer = subprocess.run(run, input="IndexError: index out of range in self\n", text=True, env=environment)
    assert answer.returncode == 0


def test_literals() -> None:
    assert literals(r"size (\d+) must (?:not )?be divisible") == ("size ", " must ", "be divisible")
    assert literals(r"(?:found it)+ here") == ("found it", " here")


def test_nan_is_told_by_the_kind_of_training_that_the_rows_are_of(tmp_path: Path) -> None:
    nan = float("nan")
    steps = [
        {"step": at, "loss": nan if at > 8 else 1.0, "grad_norm": nan if at > 8 else 0.5, "learning_rate": 1e-5}
        for at in range(16)
    ]
    for more, word, kind in (({}, "num_iterations", "supervised"), ({"reward": 0.4}, "labels", "with rewards")):
        path = tmp_path / "trainer_state.json"
        path.write_text(json.dumps({"log_history": [{**row, **more} for row in steps]}))
        (found, _) = explain_paths([str(path)])
        assert kind in found.matches[0].title and word not in " ".join(found.steps)


def test_secrets_in_the_lines_that_are_quoted_are_masked() -> None:
    token, key = "hf_" + "a1B2c3D4e5F6g7H8", "sk-" + "Zz19" * 6
    lines = (
        f"OSError: You are trying to access a gated repo with token={token}\n",
        f"OddError: the service at https://me:{key}@example.org said no (api_key='{key}')\n",
        f"subprocess.CalledProcessError: Command '['python', 'train.py', '--hub_token', '{token}', '--lr', '1']' "
        f"returned non-zero exit status 1\n",
    )
    for line in lines:
        explanation = explain_text(
            'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    f()\n' + line
        )
        for shown in (str(explanation), as_json(explanation)):
            assert token not in shown and key not in shown and "***" in shown


def test_nan_in_everything_at_once_is_no_overflow_of_the_kl_term() -> None:
    nan = float("nan")
    broken = {name: lambda step: nan if step > 8 else 0.005 for name in ("kl", "loss", "grad_norm", "entropy")}
    assert explain_text(rows(**broken)).matches[0].entry.id == "non-finite-gradient"


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("RuntimeError: no new thread\ntrainer-1 exited with code 1\n", "RuntimeError: no new thread"),
        ("12: TypeError: no iterator\n 0: building data\n", "TypeError: no iterator"),
        ("5: x.ConfigurationException: You asked for: [0, 1]\n5:  But there is only: [0]\n",
         "x.ConfigurationException: You asked for: [0, 1] But there is only: [0]"),
        ('Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\n'
         "RuntimeError:\n        An attempt has been made before the\n        process has finished.\n",
         "RuntimeError: An attempt has been made before the process has finished."),
    ],
)  # fmt: skip
def test_an_error_is_shown_with_its_own_lines_and_no_others(log: str, shown: str) -> None:
    error = explain_text(log).error
    assert error is not None and error.text == shown


def test_the_reason_says_which_words_are_meant() -> None:
    found = explain_text("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n")
    assert found.matches[0].why[0] == "line 1: “CUDA out of memory”"


def test_a_warning_about_a_missing_package_explains_no_assertion() -> None:
    log = (
        '/x/n.py:48: UserWarning: Please install apex from source\n  warnings.warn("Please install apex from source")\n'
    )
    failed = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\nAssertionError: 8 is not 3\n'
    assert explain_text(log + failed).matches == ()
    assert explain_text(failed + "ImportError: Please install apex\n").matches


def test_no_suspect_is_said_not_to_help() -> None:
    for entry in load():
        said = " ".join(entry.not_helping)
        assert not (entry.bisect and "other training settings" in said), entry.id
        assert not ("a smaller batch" in said and any("batch_size" in name for name in entry.bisect)), entry.id


def test_the_error_that_is_shown_is_the_one_that_is_meant():
    log = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit "
        "detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
        "Error executing job with overrides: ['algorithm.adv_estimator=grpo']\n"
    )
    shown = str(explain_text(log)).split("The error in the log:\n")[1].splitlines()[0]
    assert shown.startswith("  line 1: A worker died")
