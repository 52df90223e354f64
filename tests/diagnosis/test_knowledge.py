"""The knowledge files: every entry keeps to the schema, and its own sample leads to it."""

from __future__ import annotations

import dataclasses
import json
import pydoc_data.topics
import re
import sys
from pathlib import Path

import pytest

from bisect_cfg.diagnosis import knowledge
from bisect_cfg.diagnosis._render import Explanation, Line, Match, as_json, render
from bisect_cfg.diagnosis._words import literals
from bisect_cfg.diagnosis.conditions import evaluate
from bisect_cfg.diagnosis.explain import explain_text
from bisect_cfg.diagnosis.knowledge import Entry, KnowledgeError, check, load
from bisect_cfg.diagnosis.signature import Signature

ENTRIES = load()
GOOD = {
    "id": "one", "title": "t", "any": ["some words"], "meaning": "m", "cures": ["c"],
    "sources": ["owner/name#1"], "sample": "some words",
}  # fmt: skip


def test_there_are_enough_and_the_original_reports_come_first() -> None:
    assert len(ENTRIES) > 60
    assert ENTRIES[0].id == "h20-cublas-sigfpe"
    addresses = " ".join(address for entry in ENTRIES[:9] for address in entry.sources)
    for report in ("trl/issues/2906", "trl/issues/2996", "trl/issues/2851", "RLHF#815", "trl/issues/3348"):
        assert report.replace("#", "/issues/") in addresses


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_sample_is_explained_by_its_entry_first(entry: Entry) -> None:
    matches = explain_text(entry.sample).matches
    assert matches and matches[0].entry.id == entry.id
    assert len(matches) == 1 or matches[1].score < matches[0].score, "another entry fits as well"
    assert matches[0].why and matches[0].evidence


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_entry_says_what_to_do(entry: Entry) -> None:
    assert entry.trigger and entry.root_cause and entry.cures
    assert all(len(text) < 400 for text in (*entry.cures, *entry.not_helping))
    assert "placeholder" not in str(dataclasses.asdict(entry))


def test_entries_are_kept_until_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "one.yaml"
    table.write_text(json.dumps([GOOD]))
    monkeypatch.setattr(knowledge, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    first = load.__wrapped__(tmp_path)
    [kept] = (tmp_path / "__pycache__").glob("*.pickle")
    monkeypatch.setattr(knowledge, "_read", lambda folder: pytest.fail("read again, though nothing has changed"))
    assert load.__wrapped__(tmp_path) == first
    monkeypatch.undo()
    monkeypatch.setattr(knowledge, "FOLDER", tmp_path)
    kept.write_bytes(kept.read_bytes()[:100])
    assert load.__wrapped__(tmp_path) == first
    table.write_text(json.dumps([{**GOOD, "title": "another"}]))
    assert load.__wrapped__(tmp_path)[0].title == "another"
    table.write_text("[{}]")
    with pytest.raises(KnowledgeError):
        load.__wrapped__(tmp_path)


def test_no_clue_makes_the_scan_stop_everywhere() -> None:
    prose = "\n".join(pydoc_data.topics.topics.values())
    patterns = {clue.value for entry in ENTRIES for clue in entry.clues if clue.kind == "line"}
    common = [one for one in patterns if min(map(prose.count, literals(one))) > 60]
    assert not common, "each match has only words that prose is full of; a log of prose is read word by word"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"titel": "x"}, "unknown field 'titel'"),
        ({"cures": []}, "'cures' is missing"),
        ({"any": ["a|b"]}, "plain characters"),
        ({"any": ["(unclosed words"]}, "unterminated"),
        ({"any": ["(?i)some words"]}, "separate clues"),
        ({"any": [{"metric": "sadness"}]}, "is no clue"),
        ({"any": [{"signal": "SIGNONE"}]}, "is no clue"),
        ({"sources": ["trl 2906"]}, "owner/repository#number"),
        ({"id": "Two Words"}, "lower case"),
        ({"conditions": {"packages": {"trl": "0.18"}}}, "no version specifier"),
        ({"conditions": {"gpus": "H20"}}, "unknown or of the wrong type"),
        ({"cures": [1.0]}, "quote it"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(change: dict, said: str) -> None:
    with pytest.raises(KnowledgeError, match="here") as error:
        check({**GOOD, **change}, "here")
    assert said in str(error.value)


def test_an_entry_in_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "- id: mine\n  title: Mine\n  any: ['flux capacitor overheated']\n  meaning: m\n  cures: [c]\n"
        "  sources: [measured]\n  sample: flux capacitor overheated\n"
    )
    entries = load(tmp_path)
    assert explain_text("E: flux capacitor overheated\n", entries=entries).matches[0].entry.id == "mine"
    (tmp_path / "twice.yaml").write_text((tmp_path / "mine.yaml").read_text())
    load.cache_clear()
    with pytest.raises(KnowledgeError, match="used twice"):
        load(tmp_path)
    (tmp_path / "twice.yaml").write_text("- id: [")
    with pytest.raises(KnowledgeError, match="twice.yaml: not YAML"):
        load(tmp_path)


H20 = {
    "gpus": [{"name": "NVIDIA H20"}],
    "cuda": "12.1",
    "cublas": {"package": "nvidia-cublas-cu12", "version": "12.1.3.1"},
    "packages": {"torch": "2.5.1+cu121", "trl": "0.17.0.dev0", "vllm": "0.6.6.post1"},
}


def test_conditions_hold_fail_or_stay_open() -> None:
    conditions = {"gpu": "H20", "cublas": "<12.3.4.1", "packages": {"trl": "<0.18", "openrlhf": "<0.6"}}
    assert [verdict.holds for verdict in evaluate(conditions, H20)] == [True, None, True, True]
    cured = {**H20, "cublas": {"version": "12.4.5.8"}}
    assert [verdict.holds for verdict in evaluate({"cublas": "<12.3.4.1"}, cured)] == [False]
    parameters = {"parameters": {"beta": "!=0", "use_vllm": False, "model.dtype": "float16"}}
    held = evaluate(parameters, {}, {"args.beta": 0.04, "use_vllm": True})
    assert [verdict.holds for verdict in held] == [True, False, None]
    assert evaluate(parameters, {}, {"model.dtype": "float16"})[-1].holds


def test_the_environment_rules_out_and_supports() -> None:
    log = "Floating point exception (core dumped)\n"
    blind, seen = explain_text(log), explain_text(log, environment=H20).matches[0]
    assert blind.matches[0].entry.id == "integer-division"  # no H20 in sight, no cu121
    assert [match.entry.id for match in blind.seen] == ["h20-cublas-sigfpe"]
    assert seen.entry.id == "h20-cublas-sigfpe" and seen.score > blind.seen[0].score
    assert any("NVIDIA H20" in reason for reason in seen.why)
    assert "cuBLAS <12.3.4.1" in blind.seen[0].unchecked and "cuBLAS <12.3.4.1" not in seen.unchecked
    cured = explain_text(log, environment={**H20, "cublas": {"version": "12.4.5.8"}})
    assert cured.matches[0].entry.id == "integer-division"


def test_what_trl_refuses_today_is_what_older_versions_died_of() -> None:
    said = (
        "ValueError: GRPOTrainer does not support `nn.DataParallel`, which `Trainer` uses when several GPUs are visible"
    )
    found = explain_text(f'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n{said}.\n')
    assert found.matches[0].entry.id == "several-gpus-one-process"


def test_a_failure_seen_from_outside_needs_no_log() -> None:
    explanation = explain_text("", failure=Signature("signal", "SIGFPE"), environment=H20)
    assert explanation.matches[0].entry.id == "h20-cublas-sigfpe"
    collapsed = explain_text("", failure=Signature("collapse"))
    assert collapsed.matches[0].entry.id == "policy-collapse" and str(collapsed)


_UNFILLED = re.compile(r"\{\w+\|")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_no_output_has_a_field_that_was_not_filled(entry: Entry) -> None:
    for decided in ((), *((case,) for case in entry.cases)):
        still_open = tuple(case for case in entry.cases if case not in decided)
        match = Match(entry, 1, (), (), decided=decided, open=still_open)
        for shown in (match, dataclasses.replace(match, doubt="it may be another")):
            told = Explanation((shown,), None, "command", error=Line(1, "SomeError: said", ""))
            assert not _UNFILLED.search(render(told))
            assert not _UNFILLED.search(as_json(told))


# What follows leads to one of an entry's causes, where the log decides for it; the words are of several reports.
DECIDED = {
    "A batch of 300 rows cannot be split evenly over 7 workers": (
        "AssertionError: only support equal chunk. Got size of DataProto 300 and chunk 7."
    ),
    "The headers of Python are missing (Python.h), so nothing can be compiled against it": (
        "/opt/torch/include/torch/csrc/python_headers.h:12:10: fatal error: Python.h: No such file or directory\n"
        "ninja: build stopped: subcommand failed.\n"
        "RuntimeError: Error building extension 'fused_adam'"
    ),
    "FSDP was given quantized weights (float8_e4m3fn), which it cannot flatten with the others": (
        "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float8_e4m3fn"
    ),
    "Ray has no place for the group 'GPU': 2.0, 'CPU': 40.0, and the run waits for one": (
        "Demands:\n {'GPU': 2.0, 'CPU': 40.0} * 1 (PACK): 1+ pending placement groups\n"
        "Waiting for placement group to be scheduled...\n"
        "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2025-04-08T02:46:23 DUE TO TIME LIMIT ***"
    ),
    "An installed package (axolotl) and this TRL are of versions that do not fit": (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    import axolotl\n'
        '  File "/opt/site-packages/axolotl/core/data.py", line 9, in <module>\n'
        "    from trl.trainer.utils import ConstantLengthDataset\n"
        "ImportError: cannot import name 'ConstantLengthDataset' from 'trl.trainer.utils'"
    ),
    "Megatron's padded vocabulary is another one than the checkpoint's": (
        "RuntimeError: Error(s) in loading state_dict for GPTModel:\n\tsize mismatch for "
        "embedding.word_embeddings.weight: copying a param with shape torch.Size([50304, 64]) from checkpoint, "
        "the shape in current model is torch.Size([50432, 64])."
    ),
    "Query, key or value weights have another shape than in the checkpoint (other attention heads or groups, most "
    "often)": (
        "RuntimeError: Error(s) in loading state_dict for GPTModel:\n\tsize mismatch for "
        "decoder.layers.0.self_attention.linear_qkv.weight: copying a param with shape torch.Size([1280, 64]) from "
        "checkpoint, the shape in current model is torch.Size([3072, 64])."
    ),
    "The model's configuration has no padding token (the tokenizer may have one)": (
        "ValueError: Cannot handle batch sizes > 1 if no padding token is defined."
    ),
    "An index was out of range before (a token id has no row in the embedding, most often); cuBLAS only meets the "
    "broken state of the GPU": (
        "Indexing.cu:1290: indexSelectLargeIndex: block: [1,0,0], thread: [6,0,0] Assertion `srcIndex < "
        "srcSelectDimSize` failed.\nRuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
        "`cublasCreate(handle)`"
    ),
    "One rank saves while the others train on: saving sharded weights needs all ranks": (
        "py-spy rank 0: state_dict (fsdp.py) <- save_fsdp_model <- save_state (accelerator.py:9)\n"
        "py-spy rank 2: all_gather_into_tensor <- forward <- main (train.py:18)\n"
        "[rank2]:[E0728 17:05:22.9 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600852 milliseconds before timing out."
    ),
    "A reward (sandbox, judge, tool) of one rank has not come back, and the others waited for it": (
        "[rank3] reward: 15/16 programs judged, 1 outstanding (1700 s)\n"
        "[rank2]:[E0728 17:05:22.9 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600852 milliseconds before timing out."
    ),
    "A GPU number is asked for that is not among the visible ones (CUDA_VISIBLE_DEVICES=2,3 counts as 0, 1, ...)": (
        "+ export CUDA_VISIBLE_DEVICES=2,3\n  File \"/opt/actor.py\", line 9, in init\n"
        "RuntimeError: CUDA error: invalid device ordinal"
    ),
    "InfiniBand or RoCE reports an error": (
        "n3:44:49 [2] NCCL WARN NET/IB : Got completion from peer 10.1.1.7<38560> (n4) with status=12 opcode=0 len=0\n"
        "[rank2]:[E0728 17:05:22.9 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600852 milliseconds before timing out."
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", DECIDED)
def test_the_log_decides_for_a_cause(title: str) -> None:
    first = explain_text(DECIDED[title]).matches[0]
    assert (first.title, first.doubt) == (title, "")


def test_one_generation_leads_over_weights_that_became_nan_late() -> None:
    log = (
        "torchrun grpo.py --deepspeed zero3.json --num_generations 1\n"
        "UserWarning: std(): degrees of freedom is <= 0. Correction should be strictly less than the factor\n"
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 9.9e-07, 'reward': 0.25, 'reward_std': nan}\n"
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
    )
    assert [match.entry.id for match in explain_text(log).matches][0] == "one-generation-std"


ROWS = (
    "{'loss': 0.0, 'grad_norm': 0.3, 'learning_rate': 1e-06, 'num_tokens': 81.0, 'completions/mean_length': 8.0, "
    "'completions/clipped_ratio': 0.1, 'rewards/accuracy_reward/mean': 0.5, 'reward': 0.4, 'reward_std': 0.1, "
    "'kl': 0.0, 'step_time': 3.1, 'frac_reward_zero_std': 0.0, 'entropy': 0.4, 'epoch': 0.1}"
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_no_clue_is_looked_for_in_every_row_of_a_run(entry: Entry) -> None:
    lines = [clue.value for clue in entry.clues if clue.kind == "line" and not re.search(clue.value, ROWS)]
    assert not [value for value in lines if all(run in ROWS for run in literals(value))]


def test_no_field_is_written_twice() -> None:
    """YAML takes the last of two, without a word."""
    import yaml

    files = [*sorted(knowledge.FOLDER.glob("*.yaml")), knowledge._version_pairs.TABLE]
    for file in files:
        nodes = [yaml.compose(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
        while nodes:
            node = nodes.pop()
            if isinstance(node, yaml.MappingNode):
                names = [key.value for key, _ in node.value]
                assert len(names) == len({*names}), (file.name, node.start_mark.line + 1, names)
                nodes += [value for _, value in node.value]
            elif isinstance(node, yaml.SequenceNode):
                nodes += node.value
