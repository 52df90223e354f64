# ruff: noqa: E501  (a line of a log is one line)
"""Logs like some that were told wrongly at first sight: what leads, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bisect_cfg.diagnosis import _faults
from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_paths, explain_text
from tests.diagnosis.test_claims_audit_a import GRPO, ME, SITE, TRAINER, tb

ROWS = "".join(
    f'{{"loss": 0.001, "grad_norm": 0.3{at}, "rewards/style/std": 0.2, "reward": 1.4, "reward_std": 0.2, "step": {at}}}\n'
    for at in range(1, 5)
)

TOLD = {
    "a name that has no IPv6 address, in a warning": (
        "The driver is too old",
        tb(ME, f"{SITE}/torch/distributed/distributed_c10d.py barrier", error="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1")
        + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'API call is not supported in the installed CUDA driver'\n"
        + "[W socket.cpp:663] [c10d] The IPv6 network addresses of (node-7, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n"
        + "[ERROR] failed (exitcode: 1) local_rank: 0 (pid: 901) of binary: /usr/bin/python3\n",
    ),
    "columns of LLaMA-Factory": (
        "LLaMA-Factory's format",
        tb(f"{SITE}/multiprocess/pool.py worker", "/root/LLaMA-Factory/src/llamafactory/data/aligner.py convert_sharegpt | messages = example[dataset_attr.messages]", error="KeyError: 'messages'"),
    ),
    "a code page of Windows": (
        "code page of the system",
        tb(f"{SITE}/datasets/packaged_modules/json/json.py _generate_tables | dataset = json.load(f)", error="UnicodeDecodeError: 'charmap' codec can't decode byte 0x98 in position 48: character maps to <undefined>")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + tb("C:/work/training.py do_train", error="datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset"),
    ),
    "a server, and a login of wandb before it": (
        "The server ended the connection",
        "wandb: Currently logged in as: me to https://api.wandb.ai. Use `wandb login --relogin` to force relogin\n"
        + tb(ME, TRAINER, GRPO, f"{SITE}/trl/extras/vllm_client.py update_named_param", f"{SITE}/requests/adapters.py send", error="requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))"),
    ),
    "an interface that is not there": (
        "no network interface",
        "node-3:2108:2108 [0] bootstrap.cc:116 NCCL WARN Bootstrap: no socket interface found\n"
        + tb(ME, f"{SITE}/torch/distributed/distributed_c10d.py all_reduce", error="torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.7")
        + "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n",
    ),
    "a reward by another name": (
        "A reward function does not take",
        tb(ME, TRAINER, f"{SITE}/trl/trainer/grpo_trainer.py _calculate_rewards", error="TypeError: len_penalty() got an unexpected keyword argument 'completion_ids'"),
    ),
    "an engine that makes room for its cache": (
        "in the inference engine",
        tb(ME, f"{SITE}/trl/trainer/grpo_trainer.py __init__ | self.llm = LLM(", f"{SITE}/vllm/engine/llm_engine.py _initialize_kv_caches", f"{SITE}/vllm/executor/executor_base.py initialize_cache | self.collective_rpc('initialize_cache')", f"{SITE}/vllm/worker/cache_engine.py _allocate_kv_cache | torch.zeros(shape)", error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.87 GiB. GPU 7 has a total capacity of 79.11 GiB of which 1.21 GiB is free."),
    ),
    "a reward that is NaN first": (
        "rewards or their spread did",
        ROWS + 8 * '{"loss": 0.0, "grad_norm": NaN, "rewards/style/std": NaN, "reward": 1.4, "reward_std": NaN, "step": 9}\n',
    ),
    "an extension's own file": (
        "xformers has no code for this GPU",
        "NVIDIA GeForce RTX 5090, sm_120\n  0%|          | 0/100 [00:00<?, ?it/s]CUDA error (/__w/xformers/xformers/third_party/flash-attention/hopper/flash_fwd_launch_template.h:175): no kernel image is available for execution on the device\n",
    ),
    "a job that was requeued": (
        "The scheduler ended the job",
        "slurmstepd: error: *** JOB 608 ON dgx-4 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***\nslurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\nsrun: error: dgx-4: tasks 2-3: Exited with exit code 1\n",
    ),
    "a Mac's own way to end a process": (
        "Mixed precision of that kind is not there",
        "libc++abi: terminating due to uncaught exception of type c10::TypeError: Trying to convert BFloat16 to the MPS backend but it does not have support for that dtype.\n"
        + tb("/Users/me/venv/bin/accelerate <module>", f"{SITE}/accelerate/commands/launch.py simple_launcher", error="subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGABRT: 6>."),
    ),
    "a message that says when it happens": (
        "vLLM's memory measurement was disturbed",
        tb(ME, f"{SITE}/vllm/worker/worker.py _assert_memory_footprint_increased_during_profiling | assert peak_memory > 0, (", error="AssertionError: Error in memory profiling. This happens when the GPU memory was not properly cleaned up before initializing the vLLM instance."),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    found = explain_text(log)
    assert words in found.matches[0].title and not found.matches[0].doubt


def test_a_connection_of_nobody_known_is_no_check_of_a_library() -> None:
    log = tb(ME, "/home/me/judge.py score | requests.post(URL)", f"{SITE}/requests/adapters.py send", error="requests.exceptions.ConnectionError: ('Connection aborted.', BadStatusLine('x'))")  # fmt: skip
    found = explain_text(log)
    assert found.advice is not None and found.advice.kind == "network"


def test_what_a_wrapper_lacks_its_model_lacks() -> None:
    log = tb(ME, f"{SITE}/trl/trainer/utils.py get_reward | getattr(model, model.base_model_prefix)", f"{SITE}/deepspeed/runtime/engine.py __getattr__", error="AttributeError: 'DeepSpeedEngine' object has no attribute 'base_model_prefix'")  # fmt: skip
    found = explain_text(log)
    assert found.advice is not None and "a wrapper around the model" in found.advice.says
    assert "PEFT adapter" in found.advice.steps[0]


def test_ranks_of_sglang_stand_before_a_traceback() -> None:
    lines = tb(f"{SITE}/sglang/srt/managers/scheduler.py run_scheduler_process", error="ValueError: The sky leaves no room for the sea").splitlines()  # fmt: skip
    log = "".join(f"[2026-07-09 10:14:5{at} DP0 TP3] {line}\n" for at, line in enumerate(lines))
    assert explain_text(log).error.text == "ValueError: The sky leaves no room for the sea"


def test_what_hydra_says_after_an_assertion_is_none_of_it() -> None:
    log = tb(ME + " | assert logits.shape[0] == labels.shape[0]", error="AssertionError") + "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"  # fmt: skip
    found = explain_text(log)
    assert found.advice is None or "HYDRA" not in " ".join((found.advice.says, *found.advice.steps))


def test_a_backward_pass_under_zero_3_is_no_step_of_the_optimizer() -> None:
    log = tb(ME, TRAINER, f"{SITE}/accelerate/accelerator.py backward", f"{SITE}/deepspeed/runtime/engine.py backward", f"{SITE}/deepspeed/runtime/zero/stage3.py backward", error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.42 GiB. GPU 4 has a total capacity of 39.56 GiB of which 1.05 GiB is free.")  # fmt: skip
    assert "optimizer" not in explain_text(log).matches[0].title


NEMO = "(DTensorPolicyWorkerV2[rank={rank}] pid=500{rank}) {line}\n"


def test_workers_that_name_their_rank() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "/opt/nemo_rl/worker.py", line 9, in get_logprobs',
        "    self.model()",
    ]
    trace += ["RuntimeError: The size of tensor a (1024) must match the size of tensor b (512) at dimension 2"]
    log = "".join(NEMO.format(rank=rank, line=line) for rank in range(8) for line in trace)
    assert "size of tensor a" in explain_text(log).error.text


def test_a_launcher_that_only_says_that_the_server_failed() -> None:
    log = tb(
        f"{SITE}/sglang/launch_server.py run", error="ImportError: cannot import name 'f' from 'torchao.quantization'"
    )
    log += tb(ME, "/app/areal/engine.py launch_server", error="RuntimeError: server launch failed")
    assert "torchao" in explain_text(log).error.text


def test_an_interrupted_start_is_no_run_without_a_failure() -> None:
    loading = "(Worker pid=6) Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:01<00:00, 1.31s/it]\n"
    explanation = explain_text(loading + "(Worker pid=6) No chat template found\n^C\n")
    assert explanation.stands is not None and "No chat template" in explanation.stands.text


def test_a_reward_that_is_gone_as_a_whole_is_not_told_as_a_part() -> None:
    row = "{{'loss': 0.001, 'grad_norm': 0.3, 'rewards/correctness_reward_func': {0}, 'reward': {0}, 'reward_std': {1}}}\n"
    log = row.format(1.1, 0.8) + 60 * row.format(0.0, 0.0)
    assert "right answers" not in explain_text(log).matches[0].title


def test_numbers_that_are_given_in_the_order_of_their_names() -> None:
    says = "AssertionError: data batch size must be divisible by mini_batch_size, got 1032 and 512"
    advice = explain_text(tb(ME, "/app/skyrl/dispatch.py stage_chunks", error=says), entries=()).advice
    assert advice is not None and "1032 is not a multiple of 512" in advice.says


def test_rows_of_other_folders_of_names() -> None:
    row = "2026-06-19 10:46:20.118 | INFO | trainer:train:241 - {{'policy/policy_loss': 0.0, 'policy/raw_grad_norm': 0.0, "
    log = "".join((row + "'reward/avg_raw_reward': 0.0}}\n").format() for _ in range(7))
    assert explain_text(log).matches[0].entry.id == "dead-reward"


def test_a_row_of_datasets_is_a_row_whatever_it_is_called() -> None:
    log = '"""\n' + tb(f"{SITE}/datasets/arrow_dataset.py _map_single", "/w/axolotl/prompt_tokenizers.py parse | prompt['instruction'],",
        f"{SITE}/datasets/formatting/formatting.py __getitem__ | value = self.data[key]", error="KeyError: 'instruction'") + '"""\n'  # fmt: skip
    log += "\nThe above exception was the direct cause of the following exception:\n\n"
    advice = explain_text(log, entries=()).advice  # read from the traceback alone: an entry knows it as well
    assert advice is not None and advice.kind == "column" and "A row of the data has no 'instruction'" in advice.says


def test_a_file_that_is_not_in_a_folder() -> None:
    says = "ValueError: No file with name: consolidated.00.pth found in /tmp/Meta-Llama-3-8B-Instruct."
    advice = explain_text(
        tb(f"{SITE}/torchtune/training/checkpointing/_utils.py get_path | raise ValueError(", error=says), entries=()
    ).advice
    assert advice is not None and "has no file consolidated.00.pth" in advice.says


def test_an_assertion_of_several_lines_shows_no_bracket() -> None:
    says = "AssertionError: Gradient accumulation steps:0 has to be greater than 0"
    log = (
        tb(f"{SITE}/deepspeed/runtime/config.py _batch_assertion | assert (", error=says)
        + "11:31:04 WARNING Terminating\n"
    )
    advice = explain_text(log, entries=()).advice
    assert advice is not None and "“(”" not in advice.says and "Terminating" not in advice.says


def test_an_error_of_several_causes_is_not_told_the_root_of_one() -> None:
    died = "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
    explanation = explain_text(died)
    entry = explanation.matches[0].entry
    assert entry.general and entry.root_cause and not explanation.matches[0].decided
    assert "Root cause" not in str(explanation) and "What does not help" not in str(explanation)


@pytest.mark.parametrize(
    "said",
    [
        "cv2.error: OpenCV(4.10.0) resize.cpp:4152: error: (-215:Assertion failed) !ssize.empty()",
        "struct.error: unpack requires a buffer of 4 bytes",
    ],
)
def test_exceptions_in_small_letters(said: str) -> None:
    error = explain_text(tb(ME, "/w/data.py load | image = cv2.resize(image, size)", error=said)).error
    assert error is not None and error.text == said


def test_a_notice_before_a_traceback_does_not_explain_it() -> None:
    notice = "`flash-attention` package not found, consider installing for better performance: No module named 'flash_attn'.\n"
    says = "AssertionError: Padding_idx must be within num_embeddings"
    log = notice + tb(
        ME, "/w/modeling_phi3_v.py __init__ | self.embed_tokens = nn.Embedding(n, m, self.padding_idx)", error=says
    )
    explanation = explain_text(log)
    assert not explanation.matches and "Padding_idx" in explanation.error.text


def test_a_warning_that_asks_for_a_setting_is_not_that_setting() -> None:
    warned = (
        "UserWarning: torch.utils.checkpoint: please pass in use_reentrant=True or use_reentrant=False explicitly.\n"
    )
    says = "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons"
    log = tb(ME, TRAINER, f"{SITE}/torch/autograd/graph.py backward", error=says)
    assert not explain_text(warned + log).matches[0].decided
    assert explain_text("gradient_checkpointing_kwargs={'use_reentrant': False}\n" + log).matches[0].decided


def test_a_watchdog_ends_its_own_process() -> None:
    log = (
        "(Worker pid=8) [E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (172.17.0.2, 44737).\n"
        "(Actor pid=7) [E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3856)\n"
        "(Actor pid=7) [E ProcessGroupNCCL.cpp:495] To avoid data inconsistency, we are taking the entire process down.\n"
        "(Actor pid=7) *** SIGABRT received at time=1712716402 on cpu 88 ***\n(Actor pid=7) Fatal Python error: Aborted\n"
    )
    explanation = explain_text(log)
    assert "client socket has timed out" in explanation.error.text and "docker" in explanation.matches[0].title


def test_who_reads_an_attribute_of_another_object() -> None:
    says = "AttributeError: 'HuggingFaceTokenizer' object has no attribute 'unique_identifiers'"
    line = "self.unique_identifiers['tokenizer'] = self.config.tokenizer.unique_identifiers"
    log = tb(ME, f"{SITE}/megatron/core/datasets/megatron_dataset.py __init__ | {line}", error=says)
    advice = explain_text(log, entries=()).advice
    assert advice is not None and "own HuggingFaceTokenizer" not in advice.says


def test_memory_in_the_pass_for_log_probabilities() -> None:
    says = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB. GPU 7 has a total capacity of 79.11 GiB of which 6.02 GiB is free."
    before = "GRPO\n" + tb("/opt/nemo_rl/algorithms/grpo.py grpo_train | fprop_logprobs = policy.get_logprobs(", "/opt/nemo_rl/models/policy/workers/megatron_policy_worker.py get_logprobs | list_of_logprobs = forward_backward_func(", error=says)  # fmt: skip
    assert "log-probabilities of answers" in explain_text(before).matches[0].title


def test_answers_of_dpo_that_are_nan() -> None:
    row = "{{'loss': {0}, 'learning_rate': 5e-06, 'rewards/chosen': {1}, 'logps/chosen': {1}, 'epoch': 0.01}}\n"
    log = row.format(0.6931, -187.1) + 6 * row.format(0.0, "nan")
    assert explain_text(log).matches[0].entry.id == "non-finite-gradient"


def test_a_loss_of_verl_that_was_finite_before() -> None:
    row = "step:{} - actor/pg_loss:0.01 - actor/grad_norm:{} - critic/score/mean:0.2\n"
    log = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8\n"
    log += "".join(row.format(at, 0.2) for at in range(20)) + "".join(row.format(at, "nan") for at in range(20, 30))
    assert explain_text(log).matches[0].entry.id != "verl-mini-batch"


POD = "Status:           Running\nConditions:\n  ContainersReady             True \n    State:          Running\n      Started:      Mon, 18 May 2026 06:14:51 +0000\n"
CAME_THROUGH = {
    "a daemon of the machine": "Oct 12 06:31:51 gpu-17 sshd[82013]: error: kex_exchange_identification: Connection closed by remote host\nOct 12 08:00:00 gpu-17 systemd[1]: Started session-411.scope - Session 411 of User trainer.\n",
    "a line that is skipped": "  skip line 2210: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe2 in position 71: unexpected end of data\nDropped 3 malformed lines, 112 too long.\nWrote data/train.parquet (602114 rows)\n",
    "a warning of code of its own": "WARNING:hf-to-gguf:Failed to load model config: The repository contains custom code which must be executed to correctly load the model.\nWriting: 100%|####| 8.05G/8.05G [00:31<00:00]\nINFO:hf-to-gguf:Model successfully exported to m.gguf\n",
    "a request that waited": "(autoscaler +41s) Warning: The following resource request cannot be scheduled right now: {'GPU': 8.0}.\n2026-05-11 23:11:40,002\tSUCC cli.py:72 -- Job 'raysubmit_8QkqT1' succeeded\n",
    "a pod that was started again": POD + "    Last State:     Terminated\n      Reason:       Completed\n      Exit Code:    0\n      Finished:     Sun, 17 May 2026 06:10:51 +0000\n",
    "kl that is NaN now and then": "".join(f"{{'loss': 0.0, 'grad_norm': 0.07, 'reward': {0.5 + at / 99}, 'reward_std': 0.3, 'kl': {'nan' if at % 37 == 1 else 0.01}}}\n" for at in range(90)),
}  # fmt: skip


@pytest.mark.parametrize("log", CAME_THROUGH.values(), ids=CAME_THROUGH.keys())
def test_what_was_got_over(log: str) -> None:
    assert explain_text(log).status == NO_FAILURE


def test_a_pod_whose_container_was_killed_is_told() -> None:
    killed = "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"
    assert explain_text(POD + killed).status != NO_FAILURE


def test_a_table_that_leaves_the_rows_of_evaluations_empty(tmp_path: Path) -> None:
    rows = [
        dict.fromkeys(("loss", "grad_norm", "reward"), None) | {"eval/loss": 1.0}
        if at % 20 == 19
        else {"loss": 0.01, "grad_norm": 0.2, "reward": 0.4 + at / 500}
        for at in range(100)
    ]
    (tmp_path / "history.json").write_text(json.dumps(rows))
    assert explain_paths([str(tmp_path / "history.json")])[0].status == NO_FAILURE


def test_an_error_of_a_logger_in_json_between_other_lines() -> None:
    logged = '{"timestamp": "2026-04-11T05:20:48Z", "level": "error", "event": "Training error: expected mat1 and mat2 to have the same dtype, but got: BFloat16 != Half"}\n'
    explanation = explain_text("  0%|          | 0/60 [00:00<?, ?it/s]\n" + logged)
    assert explanation.error is not None and "same dtype" in explanation.error.text and explanation.stands is None


def test_who_asks_through_a_function_that_looks_names_up() -> None:
    says = "AttributeError: module 'trl.scripts.vllm_serve' has no attribute 'WeightSyncWorkerExtension'"
    log = tb(
        f"{SITE}/swift/llm/infer/rollout.py llm_worker",
        f"{SITE}/vllm/utils.py resolve_obj_by_qualname | return getattr(module, obj_name)",
        error=says,
    )
    advice = explain_text(log, entries=()).advice  # by the traceback alone
    assert advice is not None and advice.says.startswith("ms-swift uses")
    assert "pip install -U trl" in explain_text(log).steps[0]


def test_a_request_that_a_server_of_one_s_own_refuses() -> None:
    says = (
        "requests.exceptions.HTTPError: 400 Client Error: Bad Request for url: http://7.150.10.22:15000/update_weights"
    )
    advice = explain_text(
        tb("/root/slime/ray/actor_group.py update_weights", f"{SITE}/requests/models.py raise_for_status", error=says)
    ).advice
    assert advice is not None and "answered 400" in advice.says and "own output" in advice.steps[0]


def test_a_loss_of_a_run_with_rewards_does_not_diverge() -> None:
    rows = "".join(
        f"Iteration 1/1, Step {at}/500, GRPO iter 1/1, loss: {0.001 + (at / 250) ** 4:.4f}\nAverage Reward: 1.4\n"
        for at in range(1, 500, 3)
    )
    assert explain_text(rows).status == NO_FAILURE


LINES = {
    "held-out-loss-nan": "***** eval metrics *****\n  epoch                   =     2.9925\n  eval_loss               =        nan\n",
    "loss-said-to-be-nan": "▶ Training policy...\n  • Loss: nan\n  • Avg Reward: 0.1875\n",
}


@pytest.mark.parametrize("entry", LINES)
def test_nan_that_a_line_tells(entry: str) -> None:
    assert explain_text(LINES[entry]).matches[0].entry.id == entry


def test_a_key_that_a_configuration_lacks() -> None:
    log = tb("/usr/local/bin/tune <module>", f"{SITE}/torchtune/utils/_checkpointing/_checkpointer.py load_checkpoint | num_heads=self._config['num_attention_heads'],", error="KeyError: 'num_attention_heads'")  # fmt: skip
    advice = explain_text(log, entries=()).advice  # read from the traceback alone: an entry knows it as well
    assert advice is not None and "another format" in advice.says


def test_memory_that_ran_out_at_the_end_of_a_long_warning() -> None:
    said = "UserWarning: Failed to clone() tensor with name lm_head.weight. " + 30 * "This may mean much. "
    log = f"{{'train_runtime': 5423.1, 'train_loss': 0.91, 'epoch': 3.0}}\n{said}Error: CUDA out of memory. Tried to allocate 502.00 MiB (GPU 1; 39.59 GiB total capacity)\n"
    assert explain_text(log).matches[0].entry.id == "gpu-out-of-memory"


RAY_GETS = tb("/opt/conda/lib/python3.10/site-packages/ray/_private/worker.py get_objects | raise value.as_instanceof_cause()", error="ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunner.run() (pid=9012, ip=10.0.0.4)")  # fmt: skip


def test_ray_only_hands_on_what_a_worker_raised() -> None:
    log = (
        RAY_GETS
        + "RuntimeError: The size of tensor a (768) must match the size of tensor b (797) at non-singleton dimension 1\n"
    )
    assert "Ray's" not in str(explain_text(log)) and "in Ray (" not in str(explain_text(log))


def test_a_reward_that_is_called_by_position() -> None:
    says = "TypeError: format_reward() takes 1 positional argument but 2 were given"
    log = tb(ME, TRAINER, f"{SITE}/trl/trainer/grpo_trainer.py _calculate_rewards | reward_func(", error=says)
    assert "by their position" in explain_text(log).matches[0].title


FALLEN = [{"loss": 0.0, "grad_norm": 0.2, "reward": -1.0, "reward_std": max(0.001, 0.4 - at / 60), "completion_length": max(2, 300 - 9 * at), "entropy": max(0.001, 0.5 - at / 70)} for at in range(60)]  # fmt: skip
ODD = {
    "numbers that somebody left out": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ... GiB. GPU 0 has a total capacity of ... GiB of which ... MiB is free.\n",
    "a reward that is the same throughout": "".join(f"{row}\n" for row in FALLEN),
    "a reward that the last rows leave out": "".join(f"{row if at < 50 else {name: value for name, value in row.items() if name != 'reward'}}\n" for at, row in enumerate(FALLEN)),
}  # fmt: skip


@pytest.mark.parametrize("log", ODD.values(), ids=ODD.keys())
def test_odd_rows_and_messages_end_nothing(log: str) -> None:
    assert explain_text(log).status in (0, 1, 3)


def test_a_run_that_was_interrupted_after_its_start_does_not_stand() -> None:
    for begun in (" 49%|####     | 49/100 [05:00<05:10,  6.1s/it]\n", "step 50 saved\n"):
        assert explain_text(f"loading\n{begun}^C\n").stands is None


def test_a_pod_s_description_with_its_log_is_read() -> None:
    assert explain_text(POD + tb(ME, error="RuntimeError: it failed for a reason")).status != NO_FAILURE


def test_a_solved_task_with_a_part_of_a_smaller_best() -> None:
    rows = "".join(
        f"{{'loss': 0.0, 'grad_norm': {0.2 if at < 80 else 0.0}, 'rewards/accuracy/mean': {min(1.0, 0.3 + at / 100)}, "
        f"'rewards/answer_format/mean': 0.5, 'reward': {min(1.5, 0.8 + at / 100)}, 'reward_std': {0.3 if at < 80 else 0.0}, "
        f"'frac_reward_zero_std': {0.3 if at < 80 else 1.0}, 'entropy': {max(0.004, 0.5 - at / 120)}}}\n"
        for at in range(120)
    )
    assert explain_text(rows).status == NO_FAILURE


def test_the_end_of_many_evaluations_counts() -> None:
    rows = "".join(
        f"{{'loss': {2.0 - at / 300:.3f}, 'grad_norm': 15.0, 'learning_rate': 1e-05, 'epoch': {at / 100}}}\n"
        f"{{'eval_loss': {1.0 if at < 300 else 1.0 + (at - 300) / 50:.3f}, 'epoch': {at / 100}}}\n"
        for at in range(400)
    )
    assert explain_text(rows).matches[0].entry.id == "held-out-loss-rose"


@pytest.mark.parametrize(
    "line", ["[E compiler_depend.ts:429] NPU function error", "[E /opt/pytorch/a.cpp:12] no", "ERROR ===> failed"]
)
def test_what_is_a_level_too(line: str) -> None:
    assert _faults.classify(line, line) is not None


def test_what_is_killed_by_the_machine_is_no_noise_of_a_daemon() -> None:
    said = "Oct 12 06:31:51 gpu-17 systemd-oomd[801]: error: Killed /user.slice/train.scope due to memory pressure\n"
    assert explain_text(said).status != NO_FAILURE


def test_a_worker_that_ends_after_the_training() -> None:
    died = "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit detail: The process receives a SIGTERM.\n"
    done = "(TaskRunner pid=4) 'Final validation metrics: {'val-core/openai/gsm8k/reward/mean@1': 0.6277}'\n"
    assert "Ray shut down" in explain_text(done + died).matches[0].title
    assert "Ray shut down" not in explain_text(died).matches[0].title


@pytest.mark.parametrize(("losses", "vanished"), [([2.3, 0.0], True), ([2.3, 1.0, 0.3, 0.05, 0.0], False)])
def test_a_loss_that_is_0_at_once(losses: list[float], vanished: bool) -> None:
    rows = "".join(f"{{'loss': {loss}, 'learning_rate': 0.0001, 'epoch': 0.1}}\n" for loss in [*losses, *[0.0] * 9])
    assert bool(explain_text(rows).matches) == vanished
