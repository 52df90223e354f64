"""Watching a run changes nothing of it: real TRL, every start, against the plain command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
import toys
from tools import slow

from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.probe.protocol import LOGGING
from bisect_cfg.runner.hang import Patience, heartbeat_in
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.trials import Trials
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.script import Script

SCRIPT = f"""
    import sys, toy, torch
    from transformers import TrainerCallback
    from trl import GRPOConfig

    torch.set_num_threads(2)

    class Print(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in logs:
                row = (repr(float(logs.get(name, -1))) for name in NAMES)
                print("ROW", state.global_step, *row, torch.get_num_threads(), flush=True)

    NAMES = ("loss", "grad_norm", "learning_rate", "reward", "reward_std", "entropy")
    args = GRPOConfig(output_dir="out", learning_rate=1e-2, warmup_steps=3, max_grad_norm=0.5, num_iterations=2,
                      logging_steps=1, max_steps=6, gradient_accumulation_steps=2, {toys.settings()})
    model = toy.model()
    for module in model.modules():
        module.p = 0.1  # whatever drops out does
    if "compile" in sys.argv:  # without a break: whatever cannot be traced is an error
        model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True, dynamic=True)
    if "module" in sys.argv:
        model.model = torch.compile(model.model, backend="aot_eager", dynamic=True)
    trainer = toy.trainer(args, model=model, callbacks=[Print()], reward_funcs=lambda completions, **kwargs: [
        float(len(set(text))) + torch.rand(()).item() for text in completions])
    trainer.train()
"""

STEPS = 6
SLOW = Patience(300, 120, 120)


def rows(text: str) -> list[str]:
    return re.findall(r"ROW \d.*$", text, re.MULTILINE)  # a progress bar may stand before it


@pytest.mark.slow
@pytest.mark.training
def test_rows_are_those_of_the_plain_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = toys.write(tmp_path, SCRIPT)
    plain = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    expected = rows(plain.stdout)
    assert len(expected) == STEPS, plain.stderr[-2000:]
    assert len({row.split()[3] for row in expected}) > STEPS / 2  # it does train
    assert all(row.endswith(" 2") for row in expected)

    shutil.rmtree(tmp_path / "out")

    (tmp_path / "study/trials").mkdir(parents=True)
    runner = Trials(LocalEngine(Site(Script(path), tmp_path / "study"), 1))
    try:
        cold = runner.train(Plan(0, {}, None, start="cold", patience=SLOW, overrides={}))
        capture = read_capture(cold.traces.events.rows)
        runner.site.starts.learn(capture)
        found = {"cold": cold}
        for start in ("imports", "config"):
            assert runner.site.starts.start_at(start) is None
            runner.known_settings = Comparison(capture, runner.site.starts.resolve).factors()
            found[start] = runner.train(Plan(start, runner.settings.bad, None, patience=SLOW))
        found["config again"] = runner.train(Plan("again", runner.settings.bad, 4, patience=SLOW))
    finally:
        runner.site.close()
    for start, run in found.items():
        assert run.shown.signature is None, start
        wanted = expected[: 4 if start == "config again" else STEPS]
        assert rows((run.folder / "log.txt").read_text()) == wanted, start
        for row, line in zip(run.traces.metrics.rows, wanted, strict=True):
            assert [row["step"], row["loss"], row["grad_norm"]] == [float(word) for word in line.split()[1:4]], start
    assert not (tmp_path / "out").exists()  # the plain command alone writes there


@pytest.mark.parametrize("argument", ["plain", slow("compile"), slow("module")])
def test_counting_heartbeats_changes_no_number(warm, tmp_path, argument):
    path = toys.write(tmp_path, SCRIPT)
    steps = STEPS if argument == "plain" else 2  # compiling takes long enough
    runs = [warm.run(path, argument, steps=steps, patience=300.0, heartbeat=on) for on in (True, False)]
    texts = [(run.folder / "log.txt").read_text() for run in runs]
    assert len(rows(texts[0])) == steps, texts[0][-3000:]
    assert rows(texts[0]) == rows(texts[1])
    volatile = {"time", "step_time", "num_tokens_per_second"}
    kept = [[{k: v for k, v in row.items() if k not in volatile} for row in run.traces.metrics.rows] for run in runs]
    assert kept[0] == kept[1] and len(kept[0]) == steps
    assert texts[0].count("global hooks") == texts[1].count("global hooks") == 0
    counted, silent = (heartbeat_in(run.folder) for run in runs)
    assert counted[0] > steps * (8 if argument != "plain" else 100)  # tokens, or modules
    assert counted[1] in ("", LOGGING), "a run is ended while it reports its last step"
    assert silent == (0, "")
