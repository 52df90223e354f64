"""Hostile input at the border: no secret leaves in a text, no file, whatever it is, ends in a traceback or a hang."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path

import pytest

from bisect_cfg.common.files import load_json, load_toml, load_yaml, read_text
from bisect_cfg.probe.redact import HIDDEN, know, scrub

WORD, RANDOM = "opensesame", "Zx9q7Lm2Kp4Rt8Wv"
HEX = "0f1e2d3c" * 5

# Every kind of key that has a shape of its own, put together here so that no scanner of repositories takes it for one.
SHAPES = [prefix + RANDOM * 3 for prefix in (
    "hf_", "sk-", "sk-proj-", "sk-ant-api03-", "gsk_", "xai-", "pplx-", "r8_", "nvapi-", "tvly-", "wandb_v1_", "ghp_",
    "gho_", "ghs_", "github_pat_", "glpat-", "npm_", "pypi-", "dckr_pat_", "lin_api_", "AIza", "GOCSPX-", "ya29.",
    "hvs.", "xoxb-", "sk_live_", "glsa_",
)] + [
    "AKIA" + "Q7Z2" * 4, "dapi" + HEX[:32], "dop_v1_" + HEX, "SG." + RANDOM + "." + RANDOM, "SK" + HEX[:32],
    "12345678:AA" + RANDOM * 2, "eyJ" + RANDOM + ".eyJ" + RANDOM + "." + RANDOM, "key-" + HEX[:32],
    "-----BEGIN RSA PRIVATE KEY-----\n" + RANDOM + "\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip

# Where such a key may stand: behind colours, escapes, letters of other scripts, in addresses, in JSON in JSON.
AROUND = [
    "{}", "'{}'", "a\x1b[1;32m{}\x1b[0m", "a\x1b]0;title\x07{}", "a\\n{}", "a\\t{}", "a\\\\n{}\\\\n", "a%0A{}",
    "a%250a{}",
    "a\\u001b[31m{}", "a\\x1b[0m{}", "a\\033[0m{}", "a\\u000a{}", "a\u200b{}", "a\x00{}", "_{}", "令牌{}的",
    "a&quot;{}&quot;",
    "https://{}@host/x", "https://host/?x={}&y=1", "[{}]", "a|{}|", "repr: b'{}'", '{{\\"x\\": \\"{}\\"}}', "\t{}\r",
]  # fmt: skip

# What gives a value away that looks like nothing: S is a word, R a random text.
NAMED = [
    "password: S", "PASSWORD=S", "DB_PASS=S", "db.password = 'S'", "passwd:S", "pwd=S", "Uid=sa;Pwd=S;", "PASSWORD\tS",
    "PASSWORD    S", "password => S", "'password': 'S'", '"password":"S"', '"password":\n  "S"', "password = b'S'",
    "<password>S</password>", '<add password="S"/>', "password: |\n  S\n", "password: >-\n  S", "| password | S |",
    "│ db_password │ S │", "--wandb_key S", "--wandb-key=S", "--token S", "['--token', 'S']", '["--api-key", "S"]',
    "('password', 'S')", "auths=('me', 'x') password=('S', 'T')", "Authorization: Basic S", "Authorization: S",
    "authorization: Bearer S", "{'Authorization': 'token S'}", "Proxy-Authorization: Basic S", "Cookie: a=1; session=S",
    "Set-Cookie: sid=S; Path=/", "cookies={'session': 'S'}", "curl -u me:S https://x", "curl --user 'me:S' https://x",
    "['curl', '-u', 'me:S']", "curl -b 'session=S' x", "sshpass -p S ssh x", "docker login -u me -p S",
    "mysql -u root -pS db", "wandb login RR", "machine api.wandb.ai\n  login user\n  password S",
    "https://x.blob.core.windows.net/a?sv=1&sig=S%3D", "?sig=S", "https://s3/x?X-Amz-Signature=S&x=1",
    "https://x/?access_token=S#a", "https://me:S@host", "postgresql://me:a@S@host/db", "redis://:S@host",
    "AccountKey=S==;EndpointSuffix=x", "api_key=S", "apiKey: S", "client_secret: S", "aws_secret_access_key = S",
    "HF_TOKEN=S", "export WANDB_API_KEY=S", "ENV HF_TOKEN S", "setx HF_TOKEN S", "name: DB_PASS\n  value: S",
    '{"name": "DB_PASSWORD", "value": "S"}', "password%3DS", "{\\\"password\\\": \\\"S\\\"}",
    "\x1b[1mpassword\x1b[0m: S",
    "pass\x1b[0mword=S", "password\\u003dS", "密码: S", "密码password=S", "the password is R", "_auth=R",
    "custom_token=R",
    "PASSWORD=S;next=1", "f(password=S, x=1)", "{password: S, x: 1}", "password=S&x=1", "x-api-key: S",
    "credentials: S",
    "MY_LICENSE_KEY=R", "spring.datasource.password=S", "passphrase='S T'", "smtp_pass: S", "bearer R", "jwt=S",
    "the password is: S", "webhook_secret:\n    S\nlr: 1", "password=\\\nS", "password = SecretStr('S')",
    "**password**: S", "Ocp-Apim-Subscription-Key: S", "echo S | docker login --password-stdin", "API key: S",
    "Incorrect API key provided: R", "password=foo.S", "密码：S", "password&#x3d;S", "password&#61;S", "the pass: R",
    "<td>password</td><td>S</td>",
    "api_keys:\n  - S\n  - x", "tokens_secret: ['S']", "http://me:S/b@host",
    'Authorization: Digest username="me", response="S"',
    "[rank0]: -----BEGIN RSA PRIVATE KEY-----\n[rank0]: RR\n[rank0]: RR\n",
]  # fmt: skip

KEPT = [
    "learning_rate=1e-6 warmup_ratio=0.1", "max_tokens=512", "max_new_tokens: 1024",
    "tokenizer=Qwen/Qwen2.5-0.5B-Instruct",
    "eos_token='</s>' pad_token=<pad>", "num_tokens: 151643", "commit " + HEX, "revision=" + HEX,
    "dataset_hash: " + HEX,
    "sha256:" + HEX, "/home/secret_project/train.py: 3", "outputs/token/model.safetensors",
    "token = os.environ['HF_TOKEN']",
    "hub_token=args.hub_token", "hub_token: null", "password: ''", "HF_TOKEN is not set", "token=$HF_TOKEN",
    "password: ${PASSWORD}", "api_key: <your key>", "Enter password:\nTraceback (most recent call last):",
    "pwd=/home/me/run", "PWD=/work", "num_key_value_heads=2", "key: value", "cache_key=prompt",
    "{'loss': 0.1, 'kl': 2e-3}",
    "bf16=True fp16=False", "def f(token: str = None)", "Unexpected token: value", "tests pass: 3", "pass@1: 0.53",
    "https://huggingface.co/Qwen/Qwen2.5?x=1", "sqlite:///study.db", "user@host: 3", "hf_argparser: hf_hub_download",
    "tokens/s 1234.5", "reward_token_accuracy=0.75", "50%|████ | 3/6", "\x1b[32mINFO\x1b[0m step 3", "step\\n3",
    "special_tokens_map.json", "lora_target=q_proj,k_proj", "signature=SIGFPE", "author=me", "secret_sauce/mean 0.5",
    "botocore.exceptions.NoCredentialsError: Unable to locate credentials", "the forward pass: bfloat16 or float32",
    "the forward pass: torch_dtype=bfloat16 or float32 in place of float16",
    "  3  pass      learning_rate    yours without bf16", "token=token",
    "64 tokens: 12 s", "https://host/a@b", "lambda key: 1", "hub_token=options.hub_token", "http://host:8000/v1/a@main",
]  # fmt: skip


@pytest.mark.parametrize("around", AROUND)
def test_no_key_leaves_whatever_stands_around_it(around):
    for key in SHAPES:
        text = around.format(key)
        done = scrub(text)
        assert RANDOM not in done and HEX[:16] not in done and "Q7Z2" not in done and HIDDEN in done, (text, done)
        assert scrub(done) == done


@pytest.mark.parametrize("template", NAMED)
def test_no_value_leaves_that_its_name_gives_away(template):
    text = re.sub(r"\bS\b|(?<=-p|3D|3d)S", WORD, re.sub(r"\bRR?\b", RANDOM * 2, template))
    done = scrub(text)
    assert WORD not in done and RANDOM not in done and HIDDEN in done, (text, done)
    assert scrub(done) == done


def test_a_known_value_is_found_as_json_writes_it():
    value = f'{WORD} "of" a script'
    know(value)
    assert scrub(json.dumps({"x": value, "y": 1})) == json.dumps({"x": HIDDEN, "y": 1})


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text):
    assert scrub(text) == text


@pytest.mark.parametrize("text", [
    "x" * 3_000_000, "password=" * 100_000, "\x1b[32mINFO\x1b[0m step 3\n" * 50_000, "hf_" * 200_000, "\\" * 500_000,
    "https://a:" + "@" * 200_000, "curl " * 20_000, "password: '" * 50_000, "%0A" * 200_000, "sk-" * 200_000,
])  # fmt: skip
def test_the_time_that_it_takes_grows_with_the_length(text):
    import time

    began = time.process_time()
    scrub(text)
    assert time.process_time() - began < 10


# ------------------------------------------------------------------------------------------------ files that are none

LEVELS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)


@pytest.mark.parametrize(("load", "text"), [
    (partial(load_yaml, settings=True), text) for text in (
        LEVELS, "!!bool 5", "!!int x", "!!timestamp 5", '"\\ud800"', "&a [*a]", "[" * 3000, "a: 1\na: 2", "{" * 2000,
        "!!python/object:os.system x", "? [1]\n: 2", "%YAML 9\n--- x", "---\na\n---\nb", "\t- x", "!!binary a", "\x00",
    )
] + [(load_json, text) for text in ("[" * 100_000, '"\\ud800"', '{"\\ud800": 1}', "1" * 5000, "", "{", "\x00")]
  + [(load_toml, text) for text in ("a = " + "[" * 3000, "a.b = 1\na = 2", "=", "a = 1979-13-01")])  # fmt: skip
def test_data_with_a_trap_in_it(load, text):
    with pytest.raises(ValueError, match="."):
        load(text)


def make(kind: str, path: Path) -> str:
    """A path of a kind that is no file with settings in it."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "huge":
        with path.open("wb") as stream:
            stream.truncate(1 << 40)
    elif kind == "bytes":
        path.write_bytes(b"\xff\xfe\x00learning_rate: \xe9\n" * 20)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "mem":
        path.symlink_to("/proc/self/mem")
    return str(path)


KINDS = ("fifo", "folder", "loop", "huge", "bytes", "zero", "mem", "missing")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_none_is_not_read(tmp_path, kind):
    with pytest.raises((OSError, UnicodeDecodeError)):
        read_text(make(kind, tmp_path / "x.yaml"))


TRAIN = """
    from trl import GRPOConfig, GRPOTrainer
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True)
    GRPOTrainer(args, lambda number: {}).train()
"""
COMMANDS = [
    ("bisect", "train.py", "--good", "{}.yaml"), ("bisect", "train.py", "--good-packages", "{}.txt"),
    ("bisect", "--bad", "{}.yaml", "--", sys.executable, "run.py", "{{config}}"), ("explain", "{}.log"),
    ("bisect", "--bad", "{}.toml", "--", sys.executable, "run.py", "{{config}}"),
    ("doctor", "--fingerprint", "{}.json"), ("report", "{}"), ("apply", "{}"), ("recommend", "{}"), ("doctor", "{}.py"),
]  # fmt: skip
CONTENTS = {
    "alias": LEVELS, "bool": "bf16: !!bool 5\n", "surrogate": 'run_name: "\\ud800"\n', "deep": "a = " + "[" * 3000,
    "list": "[1, 2]", "object": "{}", "null": "null", "number": "5", "nul": "\x00",
    "environment": '{"environment": {"gpus": 5}}',
}  # fmt: skip


@pytest.mark.training
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:3]))
def test_commands_that_are_given_them(tool, command):
    (tool.folder / "train.py").write_text(textwrap.dedent(TRAIN))
    (tool.folder / "run.py").write_text("")
    suffix = next((Path(word).suffix for word in command if word.startswith("{}")), "")
    for name in (*KINDS, *CONTENTS):
        path = tool.folder / f"{name}{suffix}"
        if name in CONTENTS:
            path.write_text(CONTENTS[name])
        else:
            make(name, path)
        said = tool(*(word.format(name) for word in command))
        assert said.status in (0, 1, 2, 3), (name, said.status, said.all)
        assert not re.search("^Traceback|Internal error", said.all, re.MULTILINE), (name, said.all)


@pytest.mark.parametrize(("change", "status"), [
    ("UPDATE trials SET state='x'", 70), ("UPDATE trial_user_attributes SET value_json='['", 70),
    ("ALTER TABLE trials RENAME COLUMN state TO other", 2),
    ("PRAGMA writable_schema=1; UPDATE sqlite_master SET sql='x'", 2),
])  # fmt: skip
def test_a_damaged_database_is_told_from_a_fault_of_ours(tmp_path, monkeypatch, change, status):
    """Only what the driver says of its file is a damaged file; anything else may be ours, and its details are kept."""
    import sqlite3

    import optuna

    from bisect_cfg.crash import ended_by

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    address = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=address, study_name="a")
    study.optimize(lambda trial: trial.set_user_attr("b", 1) or trial.suggest_float("x", 0, 1), n_trials=1)
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.executescript(change)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        optuna.load_study(storage=address, study_name="a").get_trials()
    ended = ended_by(raised.value)
    assert ended.status == status and ("damaged" in ended.message and "--restart" in ended.advice) is (status == 2)
    assert [path.read_text().count("Traceback") > 0 for path in tmp_path.glob("*.txt")] == [True] * (status == 70)
