"""How far a run came, as its log tells."""

from __future__ import annotations

import json

import pytest

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.errors import InputError
from bisect_cfg.study.told_in_log import steps_reached, told_in

ROW = "{'loss': 0.1, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'reward': 0.5, 'epoch': 0.4}"
BAR = "Map: 100%|####| 7473/7473 [00:01<00:00, 5000.00 examples/s]\n"


@pytest.mark.parametrize(
    ("name", "text", "steps"),
    [
        ("out.log", f"{BAR}\r 40%|####  | 400/1000 [00:10<00:20, 30.00it/s]\r{ROW}\nRuntimeError: no\n", 400),
        ("out.log", f"{BAR}\r  0%|  | 0/1000 [00:00<?, ?it/s]\r  1%| | 12/1000 [00:10<00:20]\nKilled\n", 12),
        ("log.jsonl", "".join(json.dumps({"step": n, "loss": 1.0, "reward": 0.1}) + "\n" for n in (1, 2, 37)), 37),
        ("trainer_state.json", json.dumps({"log_history": [{"step": 5, "loss": 0.5, "reward": 1.0}]}), 5),
        ("metrics.csv", "step,loss,reward\n10,0.5,0.1\n250,0.4,0.2\n", 250),
    ],
)
def test_the_last_step_is_found(tmp_path, name, text, steps):
    path = tmp_path / name
    path.write_text(text)
    assert steps_reached(path) == steps


@pytest.mark.parametrize("text", ["nothing of the kind\n", BAR, None])
def test_what_tells_of_no_step_is_said(tmp_path, text):
    path = tmp_path / "log"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match="--log") as error:
        steps_reached(path)
    assert error.value.advice


INDEX, FPE = Signature("exception", "IndexError"), Signature("signal", "SIGFPE")
NAN = Signature("non-finite", "parameters")


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("IndexError: index out of range in self", INDEX),
        ("Floating point exception (core dumped)", FPE),
        ("died with <Signals.SIGFPE: 8>", FPE),
        ("{'loss': 'nan'}", NAN),
        ("{'loss': 0.1}\nKilled", None),
    ],
)
def test_whether_a_log_tells_of_a_failure(tmp_path, log, told):
    path = tmp_path / "train.log"
    path.write_text(f" 10%|#  | 299/3000 [00:51<07:43,  5.83it/s]\n{log}\n")
    assert [one for one in (INDEX, FPE, NAN) if told_in(path, one, "")] == ([] if told is None else [told])
