# ruff: noqa: E501  (a line of a log is one line)
"""More logs like some that were told wrongly at first sight: words of what leads, or of its first step."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_text
from tests.diagnosis.leading import led
from tests.diagnosis.test_claims_audit_a import GRPO, ME, SITE, TRAINER, tb

IN_POD = tb(ME, f"{SITE}/trl/generation/vllm_client.py <module> | from vllm_ascend.distributed import PyHcclCommunicator", error="ModuleNotFoundError: No module named 'vllm_ascend'")  # fmt: skip
IMPORT_FAILED = tb(ME, f"{SITE}/trl/import_utils.py _get_module | raise RuntimeError(", error="RuntimeError: Failed to import trl.trainer.grpo_trainer because of the following error (look up to see its traceback):\nNo module named 'vllm_ascend'")  # fmt: skip
RATIOS = "".join(
    f"{{'loss': 0.01, 'grad_norm': 0.08, 'reward': 0.5, 'reward_std': 0.2, 'sampling/sampling_logp_difference/mean': {apart}, 'sampling/importance_sampling_ratio/mean': 0.5{at % 9}}}\n"
    for at in range(30)
    for apart in (0.012,)
)

TOLD = {
    "the operations of Apple's Metal": (
        "Metal (MPS)",
        'loc("mps_matmul"("(mpsFileLoc): /AppleInternal/Library/mpsgraph/MetalPerformanceShadersGraph/Core/Files/MPSGraphUtilities.mm":43:0)): error: invalid shape\n'
        "LLVM ERROR: Failed to infer result type(s).\nzsh: abort      python train.py\n",
    ),
    "a compiler's error elsewhere": ("compiler of GPU kernels", "LLVM ERROR: Failed to compute parent layout for slice layout.\n"),
    "memory of the GPU, by CUDA's own name": (
        "torch_memory_saver",
        "(SGLangHttpServer pid=25) [torch_memory_saver.cpp] cuMemCreate CUDA_ERROR_OUT_OF_MEMORY (may not be an issue e.g. torch allocator will free cache and retry)\n"
        "(SGLangHttpServer pid=25) [torch_memory_saver.cpp] cudaError error: 2 (out of memory)  file=csrc/core.cpp func=resume line=172\n",
    ),
    "a type that msgpack does not take, while a server goes on": (
        "cannot hand each other an object of this kind (torch.dtype)",
        tb(f"{SITE}/vllm/v1/serial_utils.py enc_hook | raise TypeError(", error="TypeError: Object of type <class 'torch.dtype'> is not serializable. Set VLLM_ALLOW_INSECURE_SERIALIZATION=1 to allow fallback to pickle-based serialization.")
        + 'INFO:     127.0.0.1:51100 - "GET /health/ HTTP/1.1" 200 OK\n' * 3,
    ),
    "a setting that is handed to the trainer": (
        "args=DPOConfig(max_prompt_length=",
        tb(ME, f"{SITE}/transformers/utils/deprecation.py wrapped_func | return func(*args, **kwargs)", error="TypeError: DPOTrainer.__init__() got an unexpected keyword argument 'max_prompt_length'"),
    ),
    "the same, in the configuration": (
        "another name now or another place",
        tb(ME, error="TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'max_prompt_length'"),
    ),
    "a reward that gets more than it takes": (
        "does not take the argument answer",
        tb("/w/train_grpo.py <module> | train_grpo(model=model, reward_funcs=[_verifier_reward])", f"{SITE}/mlx_lm_lora/trainer/grpo_trainer.py calculate_rewards_and_advantages | func_rewards = reward_func(", error="TypeError: _verifier_reward() got an unexpected keyword argument 'answer'"),
    ),
    "a ratio of whole answers": ("each token's log-probability hardly differs", RATIOS),
    "the same without a difference of tokens": (
        "Mostly a filter of sampling",
        RATIOS.replace("sampling/sampling_logp_difference/mean", "other"),
    ),
    "the command of supervised training": (
        "swift sft was started with the loss",
        tb("D:\\envs\\swift\\lib\\site-packages\\swift\\cli\\sft.py <module> | sft_main()", "D:\\envs\\swift\\lib\\site-packages\\swift\\plugin\\loss.py get_loss_func | return LOSS_MAPPING[loss_type]['loss_func']", error="KeyError: 'grpo'"),
    ),
    "pods and containers before each line": (
        "TRL imports vllm_ascend",
        "".join(f"2026-03-11T16:42:19.49{at % 10}Z qwen35-worker-1 pytorch [rank0]: {line}\n" for at, line in enumerate((IN_POD + "\nThe above exception was the direct cause of the following exception:\n\n" + IMPORT_FAILED).splitlines()))
        + "2026-03-11T16:42:19.499Z qwen35-worker-1 pytorch E0325 10:15:22.452773 3941 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 4022) of binary: /opt/conda/bin/python3.10\n",
    ),
    "a part of a framework that is named like a monitor": (
        "broken off, or got no answer in time",
        "04:55:10   ERROR Background task watcher failed\n"
        + tb("/app/src/prime_rl/orchestrator/watcher.py apply_policy_update | await self.receiver.receive(step)", f"{SITE}/httpx/_transports/default.py map_httpcore_exceptions | raise mapped_exc(message) from exc", error="httpx.ReadTimeout")
        + "04:55:11   ERROR Orchestrator exited with code 1; shutting down trainer\n",
    ),
    "an engine that slept and kept its memory": (
        "gave back no memory",
        "INFO 03-01 10:00:00 [gpu_worker.py:104] Sleep mode freed 0.00 GiB memory, 63.41 GiB memory is still in use.\n"
        + tb(ME, TRAINER, GRPO, error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.39 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.12 GiB is free."),
    ),
    "a wait for GPUs that are not there": (
        "Ray does not have the GPUs",
        "".join(f"Not enough GPUs available. Requested 16 GPUs, but only 8 are available in the cluster.\nRetrying placement group creation... {at}/6. Next retry in {2**at} seconds.\n" for at in range(1, 6)),
    ),
    "Unsloth's functions": (
        "Unsloth's own function",
        tb(ME, TRAINER, error="TypeError: _unsloth_get_batch_samples() takes 3 positional arguments but 4 were given"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    assert words in led(log)


def rows_of_slime(rewards: list[float], apart: list[float]) -> str:
    return "".join(
        f"(Trainer pid=1) data.py:212 - rollout {at}: {{'rollout/raw_reward': {reward:.3f}, 'rollout/response_lengths': 460.6}}\n"
        f"(Trainer pid=1) model.py:601 - step {at}: {{'train/loss': 0.003, 'train/train_rollout_logprob_abs_diff': {off:.3f}, 'train/grad_norm': 0.5}}\n"
        for at, (reward, off) in enumerate(zip(rewards, apart, strict=True))
    )


def test_an_engine_that_computes_otherwise_counts_where_nothing_is_learnt() -> None:
    level, rising = [0.30 + 0.01 * (at % 3) for at in range(40)], [0.30 + at / 100 for at in range(40)]
    near, far = [0.02] * 40, [0.18] * 40
    told = {name: explain_text(rows_of_slime(*rows)) for name, rows in {
        "far": (level, far), "near": (level, near), "learns": (rising, far),
    }.items()}  # fmt: skip
    assert told["far"].matches[0].entry.id == "engine-drifts"
    assert told["near"].status == told["learns"].status == NO_FAILURE


def test_a_silence_after_the_engine_came_up_is_not_the_data_s() -> None:
    log = (
        "Generating train split: 100%|##########| 72441/72441 [00:00<00:00, 127019.27 examples/s]\n"
        "INFO 03-06 20:12:23 [core.py:138] init engine (profile, create kv cache, warmup model) took 57.97 seconds\n"
        "  0%|          | 0/2588 [00:00<?, ?it/s]\n"
        "slurmstepd: error: *** JOB 55120 ON node-02 CANCELLED AT 2025-03-07T00:10:02 DUE TO TIME LIMIT ***\n"
    )
    assert "data is prepared" not in str(explain_text(log))


def advice_on(log: str) -> str:
    """What is read from the traceback alone."""
    advice = explain_text(log, entries=()).advice
    return " ".join((advice.says, *advice.steps)) if advice else ""


def test_what_a_library_has_generated_is_no_script() -> None:
    log = tb(f"{SITE}/trl/cli.py main | parser = make_parser()", f"{SITE}/transformers/hf_argparser.py _add_dataclass_arguments | type_hints = get_type_hints(dtype)", "<string> <module>", error="NameError: name 'SomethingConfig' is not defined")  # fmt: skip
    assert "The script" not in advice_on(log)


def test_a_compiled_file_is_a_package_s() -> None:
    log = tb(ME, "pyarrow/error.pxi pyarrow.lib.check_status", error="pyarrow.lib.ArrowNotImplementedError: Unsupported cast from list to text")  # fmt: skip
    assert "function pyarrow.lib.check_status" not in advice_on(log)


def test_a_kernel_that_does_not_compile_was_checked_by_nobody() -> None:
    log = tb("/w/LLaMA-Factory/src/llamafactory/train/sft/trainer.py compute_loss", f"{SITE}/triton/compiler/code_generator.py ast_to_ttir | raise CompilationError(fn.src, node, repr(e)) from e", error="triton.compiler.errors.CompilationError: at 4:31:def _forward_kernel(\n    a_ptr, b_ptr,\n):\n    program_id = tl.program_id(0).cast(tl.int64)\n                               ^\nAttributeError(\"'tensor' object has no attribute 'cast'\")")  # fmt: skip
    told = str(explain_text(log))
    assert "checked something" not in told and "the message names a_ptr" not in told


def test_a_split_is_no_column() -> None:
    log = tb(ME, f"{SITE}/trl/trainer/sft_trainer.py _prepare_dataset", f"{SITE}/datasets/arrow_dataset.py map", error="ValueError: Column to remove ['train'] not in the dataset. Current columns in the dataset: ['prompt', 'completion']")  # fmt: skip
    assert "name of a split" in advice_on(log) and "rename_column" not in advice_on(log)


def test_a_plugin_that_is_called_as_a_reward_is_no_pair_of_versions() -> None:
    log = tb(ME, f"{SITE}/transformers/trainer.py train", f"{SITE}/swift/trainers/rlhf_trainer/grpo_trainer.py _score_completions | output_reward_func = reward_func(completions, **reward_inputs)", error="TypeError: CleanORM.__call__() missing 2 required positional arguments: 'clean_response' and 'key_response'")  # fmt: skip
    assert "called as a reward" in advice_on(log) and "ms-swift and transformers fit" not in advice_on(log)


def test_torch_s_must_is_no_advice() -> None:
    assert "says itself what to change" not in advice_on("RuntimeError: The size of tensor a (768) must match the size of tensor b (797) at non-singleton dimension 1\n")  # fmt: skip


def test_a_log_that_ends_within_a_traceback() -> None:
    cut = "step 3\n" + tb(ME, f"{SITE}/accelerate/launchers.py notebook_launcher | start_processes(", error="").rstrip(
        "\n"
    )
    explanation = explain_text(cut)
    assert explanation.status == 1 and "ends within this traceback" in str(explanation)
    assert "ends within" not in str(explain_text(cut + "\nValueError: it is over\n"))


def test_a_ratio_at_its_cap() -> None:
    rows = RATIOS.replace("ratio/mean': 0.5", "ratio/mean': 2.5")
    assert explain_text(rows).matches[0].decided
    assert explain_text(rows.replace("sampling/sampling_logp_difference/mean", "other")).status == NO_FAILURE


def test_what_a_case_says_comes_before_a_general_step() -> None:
    log = "\U0001f9a5 Unsloth - 2x faster free finetuning | Num GPUs used = 2\n" + tb(ME, f"{SITE}/unsloth/models/llama.py _CausalLM_fast_forward", error="RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!")  # fmt: skip
    explanation = explain_text(log)
    assert explanation.matches[0].decided and explanation.advice is not None
    assert "CUDA_VISIBLE_DEVICES=0" in explanation.steps[0]


def test_a_failed_connection_that_says_no_error() -> None:
    said = (
        "ERROR: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n"
    )
    assert explain_text("INFO starting\n" + said).status != NO_FAILURE
    assert explain_text("INFO starting\nERROR count: no errors\n").status == NO_FAILURE


def test_a_script_that_ray_has_copied_is_not_ray_s() -> None:
    copied = "/tmp/ray/session_2025-04-01_10-00-00_1_1/runtime_resources/working_dir_files/_ray_pkg_8e1/openrlhf/cli/train_ppo_ray.py"
    log = tb(
        f"{copied} <module> | assert args.some_number > 1, 'it must be more'", error="AssertionError: it must be more"
    )
    assert "OpenRLHF checks a condition" in advice_on(log)


def test_a_column_that_is_to_be_removed() -> None:
    log = tb(ME, f"{SITE}/datasets/arrow_dataset.py map", error="ValueError: Column to remove ['prompt_id'] not in the dataset. Current columns in the dataset: ['prompt']")  # fmt: skip
    assert "was to be removed" in advice_on(log) and "rename_column" not in advice_on(log)


LATER = {
    "an allocator that sleep mode refuses, told as memory": (
        "sleep mode and expandable segments exclude each other",
        "AssertionError: Expandable segments are not compatible with memory pool. Please track pytorch#147851\n"
        + tb(ME, f"{SITE}/unsloth_zoo/vllm_utils.py load_vllm | raise MemoryError(", error="MemoryError: Your GPU ran out of memory"),
    ),
    "the memory of a server, by the name of its process": (
        "in the inference engine",
        "== server.log ==\nINFO:     127.0.0.1:40112 - \"POST /pause HTTP/1.1\" 200 OK\n"
        "(EngineCore_DP0 pid=3301) ERROR 08-19 16:01:44 [core.py:1012] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 4 has a total capacity of 79.11 GiB of which 612.00 MiB is free.\n"
        'INFO:     127.0.0.1:40120 - "POST /update_weights HTTP/1.1" 500 Internal Server Error\n',
    ),
    "weights that sleep has thrown away": (
        "answers rubbish since it woke up",
        'INFO:     127.0.0.1:41031 - "POST /sleep?level=2 HTTP/1.1" 200 OK\n'
        'INFO:     127.0.0.1:41040 - "POST /wake_up HTTP/1.1" 200 OK\nrollout 1: "' + 40 * "!" + '"\n',
    ),
    "device_map in several processes": (
        "accelerate refuses to train a model",
        tb(ME, f"{SITE}/accelerate/accelerator.py prepare_model | raise ValueError(", error="ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed mode. Please rerun your script specifying `--num_processes=1` or by launching with `python {{myscript.py}}`."),
    ),
    "a weight that is a shard": (
        "its weight was empty or flat",
        tb(ME, f"{SITE}/trl/trainer/ppo_trainer.py step | self.batched_forward_pass(self.ref_model, queries)", f"{SITE}/torch/nn/functional.py embedding | return torch.embedding(weight, input)", error="RuntimeError: 'weight' must be 2-D"),
    ),
    "a trainer of another age than TRL": (
        "of different ages",
        tb(ME, f"{SITE}/trl/trainer/grpo_trainer.py _get_train_sampler", error="AttributeError: 'XGRPOTrainer' object has no attribute 'num_iterations'. Did you mean: 'num_generations'?"),
    ),
    "a GPU by its number on the machine": (
        "(cuda:6) is not among those that this process sees",
        tb(ME, f"{SITE}/trl/trainer/grpo_trainer.py __init__", error="ValueError: The requested device for vllm (cuda:6) is not available. You are likely using vLLM without restricting the number of GPUs for training."),
    ),
    "an engine that reads its own weights anew": (
        "could not load its own weights again after sleep",
        tb(f"{SITE}/vllm/v1/worker/gpu_model_runner.py reload_weights | model_loader.load_weights(self.get_model())", f"{SITE}/vllm/model_executor/models/qwen2.py load_weights | param = params_dict[name]", error="KeyError: 'layers.0.mlp.gate_up_proj.weight'"),
    ),
    "a file that Unsloth wrote, in a notebook": (
        "A file that Unsloth wrote imports BaseTrainer",
        "File ~/work/unsloth_compiled_cache/UnslothAlignPropTrainer.py:5\n----> 5 from trl.trainer.alignprop_trainer import (Accelerator, BaseTrainer)\n\nImportError: cannot import name 'BaseTrainer' from 'trl.trainer.alignprop_trainer'\n",
    ),
    "probabilities of another model": (
        "disagree about every token",
        RATIOS.replace("difference/mean': 0.012", "difference/mean': 11.7").replace("ratio/mean': 0.5", "ratio/mean': 0.0001"),
    ),
    "a checkpoint of a smaller model": (
        "a model of another width",
        tb(ME, error="RuntimeError: Error(s) in loading state_dict for FullyShardedDataParallel:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([151936, 896]) from checkpoint, the shape in current model is torch.Size([152064, 3584]).\n\tsize mismatch for model.layers.0.self_attn.k_proj.weight: copying a param with shape torch.Size([128, 896]) from checkpoint, the shape in current model is torch.Size([512, 3584])."),
    ),
    "a vocabulary that is padded": (
        "The vocabulary differs",
        tb(ME, error="RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([151936, 896]) from checkpoint, the shape in current model is torch.Size([152064, 896])."),
    ),
    "shared memory of a container": (
        "no room in shared memory",
        tb(ME, "/usr/lib/python3.10/multiprocessing/heap.py __init__ | os.ftruncate(self.fd, size)", error="OSError: [Errno 28] No space left on device"),
    ),
    "an attention layer of another transformers": (
        "called without position_embeddings",
        tb(ME, f"{SITE}/peft/peft_model.py forward", f"{SITE}/transformers/models/llama/modeling_llama.py forward", error="TypeError: LlamaAttention.forward() missing 1 required positional argument: 'position_embeddings'"),
    ),
    "a server that refused the weights": (
        "answered an update of its weights with an error (HTTP 500)",
        'INFO:     127.0.0.1:40120 - "POST /update_weights HTTP/1.1" 500 Internal Server Error\n',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), LATER.values(), ids=LATER.keys())
def test_what_leads_as_well(words: str, log: str) -> None:
    test_what_leads(words, log)


def test_a_version_that_is_too_old_is_no_lack_of_gpus() -> None:
    says = "ImportError: FlashAttention2 has been toggled on, but it cannot be used: you need flash_attn package version to be greater or equal than 2.1.0. Detected version 2.0.4. See the page on inference on one GPU#flashattention-2"
    assert "More GPUs are asked for" not in str(explain_text(tb(ME, f"{SITE}/transformers/modeling_utils.py _check_and_enable_flash_attn_2", error=says)))  # fmt: skip


def test_a_job_that_tells_its_error_in_one_line() -> None:
    explanation = explain_text("Model loaded\nError in Job: A formatting function was provided while it may not be\n")
    assert explanation.status == 1 and "line 2: Error in Job" in str(explanation)


def test_a_reporter_whose_network_came_back() -> None:
    log = "wandb: Network error (ReadTimeout), entering retry loop.\nwandb: Network connection restored.\nwandb: Synced 5 W&B file(s)\n"
    assert explain_text(log).status == NO_FAILURE
    assert explain_text(log.splitlines()[0] + "\n").status != NO_FAILURE


def test_logs_of_two_pods_with_the_commands_that_showed_them() -> None:
    log = (
        "# kubectl logs reverse-trainer-0\n00:04:11    INFO Starting RL trainer\n00:04:19    INFO Waiting for training batch to arrive\n"
        "# kubectl logs reverse-orchestrator-0\n00:04:02    INFO Starting orchestrator\n"
        + "".join(f"00:0{at}:00 WARNING Still waiting for weight checkpoint 1 ({60 * at}s)\n" for at in range(5, 10))
    )
    assert not explain_text(log).no_log


def test_a_worker_s_name_is_no_sharded_tensor() -> None:
    log = tb("/opt/nemo-rl/nemo_rl/models/policy/lm_policy.py save_checkpoint | raise ValueError(", error="ValueError: safetensors is only supported with DTensorPolicyWorkerV2 (_v2=true).")  # fmt: skip
    assert "sharded tensor" not in str(explain_text(log))


def test_an_attribute_of_a_framework_s_own_class_is_not_transformers() -> None:
    log = tb("/root/swift/llm/argument/base_args/model_args.py _init_rope_scaling | if self.model_info.rope_scaling:", error="AttributeError: 'ModelInfo' object has no attribute 'rope_scaling'")  # fmt: skip
    assert 'pip install "transformers<5"' not in str(explain_text(log))


def test_warnings_of_python_are_no_findings_of_a_search() -> None:
    log = "".join(f"/opt/env/lib/python3.11/site-packages/trl/trainer/utils.py:{at}: UserWarning: Could not find response key in row {at}\n" for at in range(60))  # fmt: skip
    assert not explain_text(log).no_log
    assert explain_text(log.replace("UserWarning: Could", "could")).no_log
