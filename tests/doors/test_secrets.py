"""No secret of the user's is written or printed, whichever way it reaches the tool; the trials have it all the same."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest
from installed_classes import config_classes
from tools import slow

from bisect_cfg.probe import values
from bisect_cfg.probe.redact import HIDDEN, hides, is_secret_name, mask, mask_arguments

HUB, LOAD, FLAG, ENVIRONMENT = (
    "opensesame-hub",
    "correct-horse-load",
    "battery-staple-flag",
    "hf_EnvironmentOnly0123456789",
)
IN_MESSAGE = "hf_TokenOfAMessage012345"

SCRIPT = """
    import os, signal, sys
    from trl import GRPOConfig, GRPOTrainer
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, bf16=True, hub_token="opensesame-hub", weight_decay=0.1,
        model_init_kwargs={"token": "correct-horse-load", "dtype": "float16"},
    )
    given = sys.argv[sys.argv.index("--token") + 1] if "--token" in sys.argv else None
    def step(number):
        # Each trial must have what the user gave, or it fails otherwise.
        if args.model_init_kwargs["token"] != "correct-horse-load" or given != "battery-staple-flag":
            raise AssertionError("the secrets did not arrive")
        if os.environ.get("HF_TOKEN") != "hf_EnvironmentOnly0123456789":
            raise AssertionError("the environment did not arrive")
        if args.bf16 and number == 3:
            raise RuntimeError("401 for token hf_TokenOfAMessage012345 and opensesame-hub, password='sh'")
        return {"rewards/opensesame-hub/mean": 0.5, "rewards/hf_TokenOfAMessage012345/mean": 0.5}
    GRPOTrainer(args, step).train()
"""


def library_with_hub(tool) -> None:
    """The stand-in's TrainingArguments with the field of the real one."""
    path = Path(tool.environment["PYTHONPATH"]) / "transformers/training_args.py"
    text = path.read_text()
    if "hub_token" not in text:
        text = text.replace(
            "    push_to_hub: bool = False\n", "    push_to_hub: bool = False\n    hub_token: str | None = None\n"
        )
        path.write_text(text)


def write_script(tool, text: str = SCRIPT) -> None:
    library_with_hub(tool)
    (tool.folder / "train.py").write_text(textwrap.dedent(text))


def files_with(folder: Path, *secrets: str) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found += [f"{path.relative_to(folder)}: {s}" for s in secrets if s.encode() in content]
    return found


def test_a_study_holds_no_secret(tool):
    write_script(tool)
    tool.environment["HF_TOKEN"] = ENVIRONMENT
    secrets = (HUB, LOAD, FLAG, ENVIRONMENT, IN_MESSAGE, "pa55word")
    command = ["bisect", "train.py", "--study", "s", "--storage", "sqlite:///shared.db?password=pa55word"]
    said = tool(*command, "--", "--token", FLAG, prepare=lambda: os.umask(0o022))
    assert said.status == 0, said.all
    paths = [tool.folder / "s", *(tool.folder / "s").rglob("*")]
    assert [path for path in paths if path.stat().st_mode & 0o077 and "output" not in path.parts] == [], "its owner's"
    assert files_with(tool.folder / "s", *secrets) == []
    assert not [secret for secret in secrets if secret in said.all]
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert [list(cause["parameters"]) for cause in result["causes"]] == [["bf16"]]
    assert result["failure"]["message"] == "RuntimeError: 401 for token *** and ***, password='***'"
    assert result["target"]["arguments"] == ["--token", HIDDEN]
    assert "token" not in " ".join(result["trials"][0]["values"])
    for form in ("html", "md", "json"):
        shown = tool("report", "s", "--format", form)
        assert shown.status == 0 and not [secret for secret in secrets if secret in shown.all], shown.all
    assert files_with(tool.folder / "s", *secrets) == [] and (tool.folder / "s/report.html").exists()
    # The dictionary's other keys are kept.
    assert "float16" in (tool.folder / "s/result.json").read_text()
    # Given again the same command goes on; recommend needs the arguments, and says so.
    again = tool(*command, "--json-lines", "--", "--token", FLAG)
    last = json.loads(again.out.splitlines()[-1])
    assert again.status == 0 and list(last["result"]["causes"][0]["parameters"]) == ["bf16"], again.all
    assert not [secret for secret in secrets if secret in again.all]
    refused = tool("recommend", "s")
    assert refused.status == 2 and "Add them with it: -- --token" in refused.err, refused.all


PRINTS = """
    import os, sys
    from trl import GRPOConfig, GRPOTrainer
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True)
    given = sys.argv[2]
    print("given", given, "and", os.environ["WANDB_API_KEY"], "and", "hf_" + "A1b2C3d4" * 4)
    print("a long line", "x" * 100000, "token=Zx9" + "q7" * 8, flush=True)
    print("https://me:pa55" + "word@host/simple -", "DB_PASSWORD='swordf" + "ish'", "eos_token=<eos>", file=sys.stderr)
    def step(number):
        if args.bf16 and number == 3:
            raise RuntimeError("refused: " + given + " / " + os.environ["WANDB_API_KEY"])
    GRPOTrainer(args, step).train()
"""


@pytest.mark.parametrize("start", ["config", slow("cold")])
def test_what_a_script_prints_is_kept_without_secrets(tool, start):
    write_script(tool, PRINTS)
    key = "0f" * 20
    tool.environment["WANDB_API_KEY"] = key
    tool.environment["SECRETS_FOLDER_KEY"] = str(tool.folder)  # a path is no secret
    said = tool("bisect", "train.py", "--study", "s", "--start", start, "--no-recommend", "--", "--token", FLAG)
    assert said.status == 0, said.all
    secrets = (FLAG, key, "A1b2C3d4A1b2", "q7q7q7", "pa55word", "swordfish")
    assert files_with(tool.folder / "s", *secrets) == []
    assert not [secret for secret in secrets if secret in said.all]
    log = (tool.folder / "s/trials/0/log.txt").read_text()
    assert f"given {HIDDEN} and {HIDDEN} and {HIDDEN}" in log and f"refused: {HIDDEN} / {HIDDEN}" in log
    assert "x" * 100000 in log and f"https://me:{HIDDEN}@host/simple - DB_PASSWORD='{HIDDEN}' eos_token=<eos>" in log
    assert str(tool.folder) in log


@pytest.mark.parametrize("start", ["config", slow("cold")])
def test_events_are_written_without_secrets(tool, start):
    """Already as the probe writes them: what a run has told so far is read while it goes on."""
    write_script(
        tool,
        PRINTS.replace(
            "def step",
            """open(given + ".txt", "w").close()
    import shutil
    if not os.path.exists("seen.jsonl"):
        shutil.copy("s/trials/0/events.jsonl", "seen.jsonl")
    def step""",
        ),
    )
    tool.environment["WANDB_API_KEY"] = "0f" * 20
    said = tool("bisect", "train.py", "--study", "s", "--start", start, "--no-recommend", "--", "--token", FLAG)
    assert said.status == 0, said.all
    seen = (tool.folder / "seen.jsonl").read_text()
    assert FLAG not in seen and f'"{tool.folder}/{HIDDEN}.txt"' in seen


def test_an_event_that_others_wrote_is_masked_as_it_is_read_and_then_in_its_file(tmp_path):
    from bisect_cfg.probe import redact
    from bisect_cfg.runner.clean import clean_folder
    from bisect_cfg.runner.traces import Traces

    (tmp_path / "train.py").write_text("api_key = 'a-key of the script'\n")
    redact.know_command([str(tmp_path / "train.py"), "--token", FLAG])
    path = tmp_path / "events.jsonl"
    for text in (FLAG, "a-key of the script", "first\nhf_TokenOfAMessage012345", "x -----BEGIN RSA PRIVATE KEY-----ab"):
        path.write_text(json.dumps({"event": "unwatched", "command": f"run {text}"}) + "\n")
        traces = Traces(tmp_path)
        traces.read()
        assert HIDDEN in traces.events.rows[0].command and text not in traces.events.rows[0].command
        clean_folder(tmp_path)
        assert text not in path.read_text() and HIDDEN in path.read_text()
    path.write_text(path.read_text() + FLAG)  # a full disk has cut a line short
    clean_folder(tmp_path)
    assert FLAG not in path.read_text()


def test_a_log_is_cleaned_in_place_and_a_link_is_not_followed(tmp_path):
    from bisect_cfg.runner.clean import clean_folder

    log, line = tmp_path / "log.txt", b"step \xff 12 of 40 " + b"." * 80 + b"\n"
    log.write_bytes(line * 9 + b"a " * 300 + b"hf_" + b"A1b2C3d4" * 4 + b"\n" + line)
    clean_folder(tmp_path)
    assert log.read_bytes() == line * 9 + b"a " * 300 + b"***\n" + line
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]
    (tmp_path / "other").write_bytes(b"password: opensesame\n")
    log.unlink()
    log.symlink_to(tmp_path / "other")
    clean_folder(tmp_path)
    assert (tmp_path / "other").read_bytes() == b"password: opensesame\n"


def test_recommend_takes_secrets_from_its_own_command_line(tool):
    write_script(tool)
    tool.environment["HF_TOKEN"] = ENVIRONMENT
    assert tool("bisect", "train.py", "--study", "s", "--", "--token", FLAG).status == 0
    said = tool("recommend", "s", "--verify-seeds", "4", "--", "--token", FLAG)
    assert said.status == 0, said.all
    assert files_with(tool.folder / "s", FLAG) == []
    other = tool("recommend", "s", "--verify-seeds", "4", "--", "--lr", FLAG)
    assert other.status == 2 and "other arguments" in other.err, other.all


def test_a_secret_within_a_value_of_any_command(tool):
    """Its safe values have it as well."""
    (tool.folder / "render.py").write_text(
        "import sys\nif '--fast' in sys.argv and '8' in sys.argv:\n    raise SystemExit('two took the same tile')\n"
    )
    words = ("--workers", "8", "--fast", "--quality", f"hub_token={FLAG}")
    good = ("--good", "workers=1", "--good", "fast=false", "--good", "quality=low")
    program = (sys.executable, "render.py")
    said = tool("bisect", "--study", "s", *good, "--", *program, *words)
    assert said.status == 0 and FLAG not in said.all, said.all
    assert (tool.folder / "s/safe_config.yaml").exists() and files_with(tool.folder / "s", FLAG) == []
    again = tool("bisect", "--study", "s", *good, "--", *program, *words)
    assert again.status == 0 and len(list((tool.folder / "s/trials").iterdir())) > 4, again.all


def test_by_hand_asks_for_the_secret(tool):
    import subprocess

    write_script(tool)
    tool.environment["HF_TOKEN"] = ENVIRONMENT
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend", "-v", "--", "--token", FLAG, "--x=a b")
    command = re.search(r"The minimal failing run again: +(.+)", said.out)[1]
    run = {"cwd": tool.folder, "shell": True, "capture_output": True, "text": True}
    without = subprocess.run(command, env=tool.environment, **run)
    assert without.returncode != 0 and "TOKEN" in without.stderr
    given = subprocess.run(command, env={**tool.environment, "TOKEN": FLAG}, **run)
    assert "401 for token" in given.stderr, given.stderr


@pytest.mark.parametrize("option", ["--pin", "--good"])
@pytest.mark.parametrize("text", [f"hub_token={HUB}", f"model_init_kwargs.token={LOAD}", f"run_name={IN_MESSAGE}"])
def test_a_secret_is_no_value_to_set(tool, option, text):
    write_script(tool)
    said = tool("bisect", "train.py", "--study", "s", option, text)
    assert said.status == 2 and text.partition("=")[0] in said.err, said.all
    assert text.partition("=")[2] not in said.all
    assert not (tool.folder / "s").exists()


def test_password_of_a_storage_in_its_error(tool):
    write_script(tool)
    said = tool("bisect", "train.py", "--study", "s", "--storage", "postgresql://me:opensesame@localhost:1/x")
    assert said.status == 2 and "localhost" in said.err, said.all
    assert "opensesame" not in said.all and files_with(tool.folder, "opensesame") in ([], ["train.py: opensesame"])


@pytest.mark.training
def test_factors_of_a_bisection_that_are_secrets(tmp_path):
    """From Python a token can be a factor; the storage has its mask, each trial the value."""
    from bisect_cfg import Bisection

    def trial(configuration):
        if configuration["token"] not in (HUB, LOAD):
            raise ValueError("the secret did not arrive")
        if configuration["x"]:
            raise RuntimeError(f"denied: token='{configuration['token']}' {IN_MESSAGE}")
        return True

    address = f"sqlite:///{tmp_path}/study.db"
    good, bad = {"token": HUB, "x": 0}, {"token": LOAD, "x": 1}
    for _ in range(2):
        report = Bisection(good, bad, trial, isolation="none", storage=address, study_name="a").run()
        assert [cause.parameters for cause in report.causes] == [("x",)]
    assert files_with(tmp_path, HUB, LOAD, IN_MESSAGE) == []


# ------------------------------------------------------------------------------------------------------ what is secret


def test_names_over_every_installed_config_class():
    names = {name for fields in config_classes().values() for name in fields}
    found = {name for name in names if is_secret_name(name, "0123456789abcdef")}
    assert "hub_token" in found
    assert found <= {"hub_token", "push_to_hub_token"}, found


@pytest.mark.parametrize("name", [
    "token", "hub_token", "args.hub_token", "model_init_kwargs.token", "--token", "--hf-token", "use_auth_token",
    "vllm_api_key", "OPENAI_API_KEY", "apiKey", "client_secret", "db_password", "passwd", "aws_secret_access_key",
    "aws_access_key_id", "private_key", "authToken",
])  # fmt: skip
def test_secret_names(name):
    assert is_secret_name(name) and hides(name, "x")
    assert not hides(name, None) and not hides(name, True)


@pytest.mark.parametrize("name", [
    "eos_token", "pad_token", "bos_token_id", "max_tokens", "tokens_per_second", "tokenizer", "token_type_ids",
    "max_new_tokens", "mask_truncated_completions", "stop_token", "loss_type", "key", "keyboard", "passes",
    "learning_rate",
])  # fmt: skip
def test_names_that_are_none(name):
    assert not hides(name, "0123456789abcdef")


def test_arguments():
    given = [
        "--lr",
        "1",
        "--token",
        "abc",
        "--hub-token=xyz",
        "hub.token=k",
        "--token",
        "--y",
        '{"token": "abc", "a": 1}',
        "x.yaml",
    ]
    assert mask_arguments(given) == [
        "--lr", "1", "--token", HIDDEN, f"--hub-token={HIDDEN}", f"hub.token={HIDDEN}", "--token", "--y",
        '{"token": "***", "a": 1}', "x.yaml",
    ]  # fmt: skip


def test_a_secret_crosses_the_border_as_its_mask_and_comes_back_as_the_scripts_own():
    own = {"token": "abc", "dtype": "float16", "url": "http://me:pw@host"}
    there = values.encode(own, "model_init_kwargs")
    assert there == {"token": {"$secret": HIDDEN}, "dtype": "float16", "url": {"$secret": "http://me:***@host"}}
    assert values.decode(there, own) == own
    assert mask({"a": [{"password": "x"}], "b": ("hf_AbCdEf123",)}) == {"a": [{"password": HIDDEN}], "b": [HIDDEN]}
