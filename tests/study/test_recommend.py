"""The search for safe values, with real processes of a stand-in library: found, verified, resumable, honest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
import toys
import yaml
from tools import recorded, slow

SCRIPT = """
    import os, signal, time
    from trl import GRPOConfig, GRPOTrainer

    LEARNING_RATE = 3e-2
    args = GRPOConfig(
        output_dir="out",
        learning_rate=LEARNING_RATE,
        warmup_steps=0,
        weight_decay=0.1,
        temperature=0.9,
    )
    hot = 0
    def step(number):
        global hot
        {pause}
        rate = args.learning_rate * min(1, number / args.warmup_steps if args.warmup_steps else 1)
        hot = hot + 1 if rate > {threshold} else 0
        if hot == 3:
            os.kill(os.getpid(), signal.SIGFPE)
        {more}
        return {{"learning_rate": rate, "entropy": {entropy}}}
    GRPOTrainer(args, step).train()
"""


def script(
    folder: Path, threshold: str = "1e-3", entropy: str = "2.0", pause: str = "pass", more: str = "pass"
) -> Path:
    path = folder / "train.py"
    text = textwrap.dedent(SCRIPT).lstrip()
    path.write_text(text.format(threshold=threshold, entropy=entropy, pause=pause, more=more))
    return path


def read(study: Path) -> dict:
    return json.loads((study / "result.json").read_text())


def safe_trials(study: Path) -> dict[int, tuple]:
    """The runs of this phase that are over: number -> (what was run, outcome, when)."""
    if not (study / "study.db").exists():
        return {}
    return {
        trial.number: (
            json.dumps(trial.user_attrs["recommend"]),
            trial.user_attrs.get("outcome"),
            trial.datetime_complete,
        )
        for trials in recorded(f"sqlite:///{study / 'study.db'}").values()
        for trial in trials
        if "recommend" in trial.user_attrs and trial.state.is_finished()
    }


def test_a_learning_rate_that_trains(tool):
    path = script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s")
    assert said.status == 0, said.all
    result = read(tool.folder / "s")
    found = result["recommendation"]
    known = found["ranges"]["learning_rate"]
    assert known["healthy_up_to"] <= 1e-3 <= known["not_from"] <= 1.5 * known["healthy_up_to"]
    rate = found["changes"]["learning_rate"]["to"]
    assert 5e-5 <= rate < known["healthy_up_to"]
    assert (
        found["verified"]
        and found["evidence"]["seen"] == found["evidence"]["runs"] == len(found["evidence"]["trials"]) == 3
    )
    assert found["failure_rate_at_most"] == pytest.approx(0.6316)
    rows = {row["number"]: row for row in result["trials"]}
    proof = [rows[number] for number in found["evidence"]["trials"]]
    assert {row["seed"] for row in proof} == {42, 43, 44} and {row["outcome"] for row in proof} == {"pass"}
    assert all(row["values"] == found["configuration"] and row["step"] == found["steps"] for row in proof)
    assert yaml.safe_load((tool.folder / "s/safe_config.yaml").read_text())["learning_rate"] == rate
    assert f"LEARNING_RATE = {rate!r}" in said.out and "train.py:4" in said.out
    # The diff is one that `patch` takes, and the script then trains.
    subprocess.run(
        ["patch", "-s", str(path)], input=(tool.folder / "s/safe_config.diff").read_text(), text=True, check=True
    )
    assert f"LEARNING_RATE = {rate!r}" in path.read_text()
    patched = tool("bisect", "train.py", "--study", "patched", "--steps", "60")
    assert patched.status == 1 and "does not fail" in patched.out
    tool.assert_nothing_left()


@pytest.mark.parametrize(
    "warmup, how", [(30, "through the warmup of 30 steps"), slow(400, "without the warmup of 400")]
)
def test_what_only_survives_under_a_warmup_is_not_recommended(tool, warmup, how):
    script(tool.folder, threshold="0.9 * 3e-2")
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--good", f"warmup_steps={warmup}")
    assert said.status == 0, said.all
    result = read(tool.folder / "s")
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["learning_rate", "warmup_steps"]]
    found = result["recommendation"]
    assert found["verified"] and list(found["changes"]) == ["learning_rate"]
    other = [remedy for remedy in found["alternatives"] if "warmup_steps" in remedy["changes"]]
    assert other and not any(remedy["verified"] for remedy in other)
    (trials,) = recorded(f"sqlite:///{tool.folder / 's/study.db'}").values()
    modes = [trial.user_attrs["recommend"]["mode"] for trial in trials if "recommend" in trial.user_attrs]
    assert any(how in mode for mode in modes)


def test_a_pair_has_two_one_sided_remedies(tool):
    more = "if args.weight_decay > 0.05 and rate > 5e-4 and number == 4: os.kill(os.getpid(), signal.SIGFPE)"
    script(tool.folder, threshold="1.0", more=more)
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--remedies", "2")
    assert said.status == 0, said.all
    found = read(tool.folder / "s")["recommendation"]
    remedies = [found, *found["alternatives"]]
    assert {tuple(remedy["changes"]) for remedy in remedies} == {("learning_rate",), ("weight_decay",)}
    assert all(remedy["verified"] for remedy in remedies)
    by_name = {name: known for remedy in remedies for name, known in remedy["ranges"].items()}
    assert by_name["learning_rate"]["healthy_up_to"] <= 5e-4 <= by_name["learning_rate"]["not_from"]
    assert by_name["weight_decay"]["healthy_up_to"] <= 0.05 <= by_name["weight_decay"]["not_from"]
    first = list(found["changes"])[0]
    again = tool("recommend", "s", "--keep", first)
    assert again.status == 0, again.all
    assert list(read(tool.folder / "s")["recommendation"]["changes"]) != [first]
    assert "No remedy was found" not in again.out
    neither = tool("recommend", "s", "--keep", "learning_rate", "--keep", "weight_decay")
    (changed,) = read(tool.folder / "s")["recommendation"]["not_kept"]
    assert f"No remedy was found that leaves {changed} as it is." in neither.out


def test_the_first_remedy_is_verified_and_the_others_as_the_time_allows(tool):
    """fp16 weights have five known cures, one of them under two names; a step takes 20 ms."""
    more = "if args.optim == 'adamw_torch' and args.bf16 and number == 3: os.kill(os.getpid(), signal.SIGFPE)"
    path = script(tool.folder, threshold="1.0", more=more, pause="time.sleep(0.02)")
    path.write_text(path.read_text().replace("temperature=0.9", "optim='adamw_torch', bf16=True"))
    said = tool("bisect", "train.py", "--study", "s", "--no-where")
    assert said.status == 0, said.all
    result = read(tool.folder / "s")
    remedies = [result["recommendation"], *result["recommendation"]["alternatives"]]
    verified = [remedy for remedy in remedies if remedy["verified"]]
    untried = [remedy for remedy in remedies if remedy["status"] == "untried"]
    assert verified[0] is remedies[0]
    for remedy in untried:
        assert not remedy["evidence"]["trials"] and not remedy["rejected"]
    assert untried and "Not verified:" in said.out  # how long it goes on: tests/recommend/test_order.py
    before = safe_trials(tool.folder / "s")
    asked = tool("recommend", "s", "--remedies", len(remedies))
    assert asked.status == 0 and "Known, not verified" not in asked.out, asked.all
    after = [read(tool.folder / "s")["recommendation"], *read(tool.folder / "s")["recommendation"]["alternatives"]]
    # What does not cure this failure was run and is rejected; nothing is left untried.
    assert all(remedy["verified"] or remedy["rejected"] for remedy in after), [
        (remedy["changes"], remedy["status"]) for remedy in after
    ]
    assert before.items() <= safe_trials(tool.folder / "s").items()


def test_alive_and_not_healthy_is_not_recommended(tool):
    script(tool.folder, entropy="2.0 if args.learning_rate == 5e-5 and args.weight_decay == 0 else 2.0 * 0.8 ** number")
    said = tool("bisect", "train.py", "--study", "s", "--no-where")
    result = read(tool.folder / "s")
    assert result["status"] == "isolated" and result["recommendation"] is None
    assert "No remedy trained healthily" in said.out and "entropy fell" in said.out and "APPLY" not in said.out
    assert "entropy fell" in said.out and not (tool.folder / "s/safe_config.yaml").exists()


def test_a_reset_that_only_delays_a_silent_failure_is_told(tool):
    # The policy collapses at once with both settings, and slowly, beyond the trials, with learning_rate alone.
    fast, slow = "0.2 ** number", "0.94 ** number"
    entropy = f"2.0 * (1 if args.learning_rate < 1e-3 else {fast} if args.weight_decay else {slow})"
    groups = "'frac_reward_zero_std': 1.0 if args.learning_rate > 1e-3 and args.weight_decay and number > 2 else 0.0"
    path = script(tool.folder, threshold="1.0", entropy=f"{entropy}, {groups}")
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "-v")
    assert said.status == 0, said.all + path.read_text()
    result = read(tool.folder / "s")
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["learning_rate", "weight_decay"]]
    assert list(result["recommendation"]["changes"]) == ["learning_rate"]
    assert "Not recommended: weight_decay=0" in said.out and "may only delay the failure" in said.out


def test_when_the_budget_ends_nothing_is_called_verified_that_is_not(tool):
    script(tool.folder)
    assert tool("bisect", "train.py", "--study", "s", "--no-where", "--no-recommend").status == 0
    first = read(tool.folder / "s")
    assert first["recommendation"]["verified"] is False
    searched = len(first["trials"])
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--max-trials", searched + 3)
    cut = read(tool.folder / "s")
    assert len(cut["trials"]) == searched + 3
    assert cut["recommendation"]["verified"] is False and cut["recommendation"]["unsettled"]
    assert "Healthy in" not in said.out and "Not verified" in said.out and "how far learning_rate can go" in said.out
    assert "NOT VERIFIED" in (tool.folder / "s/safe_config.yaml").read_text()
    before = safe_trials(tool.folder / "s")
    assert tool("bisect", "train.py", "--study", "s", "--no-where").status == 0
    assert read(tool.folder / "s")["recommendation"]["verified"] is True
    assert before.items() <= safe_trials(tool.folder / "s").items()


def test_when_the_time_is_up_what_is_open_is_said(tool):
    script(tool.folder, pause="time.sleep(0.05)")  # three verifications of 30 steps take more than four seconds
    assert tool("bisect", "train.py", "--study", "s", "--no-where", "--no-recommend").status == 0
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--max-seconds", "2")
    cut = read(tool.folder / "s")["recommendation"]
    assert cut["verified"] is False and "the time was up" in cut["unsettled"][0] and len(cut["unsettled"]) > 1
    assert "Healthy in" not in said.out and "Not verified" in said.out and "Not settled" in said.out


def test_an_alternative_that_nobody_ran_is_never_recommended(tool):
    more = "if args.optim == 'adamw_torch' and args.bf16 and number == 3: os.kill(os.getpid(), signal.SIGFPE)"
    path = script(tool.folder, threshold="1.0", more=more)
    path.write_text(path.read_text().replace("temperature=0.9", "optim='adamw_torch', bf16=True"))
    assert tool("bisect", "train.py", "--study", "s", "--no-where", "--no-recommend").status == 0
    searched = len(read(tool.folder / "s")["trials"])
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--max-trials", searched)
    cut = read(tool.folder / "s")["recommendation"]
    assert len(read(tool.folder / "s")["trials"]) == searched
    assert cut["verified"] is False and cut["status"] == "open" and cut["evidence"]["seen"] >= 1
    assert "Not verified" in said.out and "in short runs" in said.out
    passed = [row["values"] for row in read(tool.folder / "s")["trials"] if row["outcome"] == "pass"]
    assert cut["configuration"] in passed


def test_recommend_reuses_every_run(tool):
    script(tool.folder)
    assert tool("bisect", "train.py", "--study", "s", "--no-where").status == 0
    before = safe_trials(tool.folder / "s")
    assert tool("recommend", "s").status == 0
    assert safe_trials(tool.folder / "s") == before
    assert tool("recommend", "s", "--verify-seeds", "5").status == 0
    after = safe_trials(tool.folder / "s")
    assert before.items() <= after.items() and len(after) == len(before) + 2
    assert read(tool.folder / "s")["recommendation"]["evidence"]["runs"] == 5
    assert tool("recommend", "s", "--margin", "0.1").status == 0
    assert after.items() <= safe_trials(tool.folder / "s").items()
    known = read(tool.folder / "s")["recommendation"]["ranges"]["learning_rate"]
    assert known["healthy_up_to"] <= 1e-3 <= known["not_from"] <= 1.52 * known["healthy_up_to"]


def test_keep_takes_names_that_exist(tool):
    script(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--keep", "learning_rat")
    assert said.status == 2 and "Did you mean learning_rate?" in said.err and "Traceback" not in said.all


def test_recommend_needs_a_study(tool):
    said = tool("recommend", "nowhere")
    assert said.status == 2 and "holds no study" in said.err and "Traceback" not in said.all


@pytest.mark.parametrize("jobs", [1, slow(3)])
@pytest.mark.parametrize("how", [signal.SIGKILL, slow(signal.SIGINT)])
def test_stopped_anywhere_it_goes_on_and_runs_nothing_twice(tool, how, jobs):
    script(tool.folder, pause="time.sleep(0.01)")
    study = tool.folder / "s"
    assert tool("bisect", "train.py", "--study", "s", "--no-where", "--no-recommend").status == 0
    for wanted in (1, 4):
        process = tool.start("bisect", "train.py", "--study", "s", "--no-where", "--jobs", jobs)
        deadline = time.monotonic() + 60
        while len(safe_trials(study)) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        before = safe_trials(study)
        os.killpg(process.pid, how)
        _, err = process.communicate(timeout=30)
        assert "Traceback" not in err
        tool.assert_nothing_left()
        assert before.items() <= safe_trials(study).items()
    assert tool("bisect", "train.py", "--study", "s", "--no-where").status == 0
    assert read(study)["recommendation"]["verified"] is True
    counted = [asked for asked, outcome, _ in safe_trials(study).values() if outcome in ("pass", "fail")]
    assert len(counted) == len(set(counted)), "a finished run was run again"
    tool.assert_nothing_left()


@pytest.mark.parametrize(
    ("name", "read", "text", "new"),
    [
        (
            "c.json",
            "import json; c = json.load(open('c.json'))",
            '{"beta": 0.2, "learning_rate": 0.1}\n',
            '{"beta": 0.0, ',
        ),
        (
            "c.toml",
            "import tomllib; c = tomllib.load(open('c.toml', 'rb'))",
            "learning_rate = 0.1\nbeta = 0.2\n",
            "beta = 0.0",
        ),
    ],
)
def test_the_line_of_a_file_that_the_script_reads_itself(tool, name, read, text, new):
    (tool.folder / name).write_text(text)
    body = f"""
    {read}
    args = GRPOConfig(output_dir="out", **c)
    GRPOTrainer(args, lambda step: 1 / (step - 3 if args.beta else 1) and {{}}).train()
    """
    said = tool("bisect", toys.script(tool.folder, body), "--study", "s", "--no-recommend", "--no-where")
    assert said.status == 0, said.all
    (edit,) = json.loads((tool.folder / "s/result.json").read_text())["recommendation"]["edits"]
    assert Path(edit["file"]).name == name and edit["new"].startswith(new)
