# ruff: noqa: E501  (a line of a log is one line)
"""Logs whose cause was not named, or not as the first thing: words of what leads, or of its first step."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import explain_text
from tests.diagnosis.test_claims_audit_a import ME, SITE, TRAINER, tb

DPO = f"{SITE}/trl/trainer/dpo_trainer.py"
NO_FLASH = "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed."
ZERO3 = "[2024-02-01 08:00:00,100] [INFO] [comm.py:652:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl\n"

TOLD = {
    "an empty copy of a split parameter": (
        "copied (copy.deepcopy",
        tb(ME, f"{SITE}/deepspeed/runtime/zero/partitioned_param_coordinator.py fetch_sub_module | assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()", error="AssertionError: {'id': 12, 'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_numel': 0, 'shape': (0,), 'ds_shape': (0,), 'requires_grad': True}"),
    ),
    "weights that are gathered for vLLM": (
        "after it had been gathered for vLLM",
        tb(ME, f"{SITE}/trl/trainer/grpo_trainer.py _move_model_to_vllm", f"{SITE}/deepspeed/runtime/zero/partition_parameters.py free_param | assert not param.ds_active_sub_modules, param.ds_summary()", error="AssertionError: {'id': 0, 'status': 'AVAILABLE', 'numel': 896, 'persist': False, 'active_sub_modules': {57}}"),
    ),
    "the same without vLLM": (
        "dataloader_drop_last=True",
        tb(ME, f"{SITE}/deepspeed/runtime/zero/partition_parameters.py free_param | assert not param.ds_active_sub_modules, param.ds_summary()", error="AssertionError: {'id': 0, 'status': 'AVAILABLE', 'numel': 896, 'persist': False, 'active_sub_modules': {57}}"),
    ),
    "a configuration of DeepSpeed": (
        "The configuration of DeepSpeed's engine",
        ZERO3 + tb(ME, f"{SITE}/trl/trainer/online_dpo_trainer.py training_step | rows = [self.tokenize_row(x, model.config.is_encoder_decoder, self.tokenizer) for x in inputs]", error="AttributeError: 'dict' object has no attribute 'is_encoder_decoder'"),
    ),
    "CUDA in a notebook": (
        "inside of the function that notebook_launcher is given",
        tb("/tmp/ipykernel_3/12.py <module> | notebook_launcher(main, num_processes=4)", f"{SITE}/accelerate/launchers.py notebook_launcher | raise RuntimeError(", error="RuntimeError: CUDA has been initialized before the `notebook_launcher` could create a forked subprocess."),
    ),
    "FlashAttention on whichever GPU": ("an older GPU (V100, T4)", tb(ME, f"{SITE}/transformers/modeling_utils.py _check_and_enable_flash_attn_2", error=NO_FLASH)),
    "a target of Lustre that is full": (
        "storage targets (OST)",
        "saving checkpoint at iteration 20 to /fsx/run\nOSError: [Errno 28] No space left on device\n$ df -h /fsx\n10.0.0.9@tcp:/fsx     9.0T  8.1T  900G  90% /fsx\n",
    ),
    "an old release of bitsandbytes": (
        "bitsandbytes==0.39.1",
        "CUDA SETUP: Detected CUDA version 117\n" + tb("/w/finetune.py <module>", f"{SITE}/bitsandbytes/cextension.py <module> | raise RuntimeError('''", error="RuntimeError: \n        CUDA Setup failed despite GPU being available. Please run the following command to get more information:\n\n        python -m bitsandbytes"),
    ),
    "a tokenizer of tiktoken": (
        "A tokenizer of tiktoken",
        tb("/w/pre.py prepare | dataset = dataset.map(", f"{SITE}/multiprocess/pool.py _handle_tasks | put(task)", error="TypeError: cannot pickle 'builtins.CoreBPE' object"),
    ),
    "a release of TRL with a fault": (
        "trl==0.7.9",
        tb(ME, f"{DPO} compute_loss", f"{SITE}/torch/nn/modules/linear.py forward | return F.linear(input, self.weight, self.bias)", error="RuntimeError: expected scalar type Float but found BFloat16") + "$ pip freeze | grep trl\ntrl==0.7.8\n",
    ),
    "SGLang's check under a worker of Ray": (
        "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK",
        "".join(f"(WorkerDict pid=77) {line}\n" for line in tb(f"{SITE}/sglang/srt/model_executor/model_runner.py init_torch_distributed | raise ValueError(", error="ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.").splitlines())
        + "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task\n",
    ),
    "weights that do not arrive": (
        "while the weights go from the trainer to the engines",
        "2025-12-20 04:11:40 - INFO - [Main Thread] Synchronizing weights to vLLM engines\n"
        + "".join(f"2025-12-20 04:{12 + at}:40 - WARNING - [Main Thread] weight sync has not finished after {60 * at + 60}s\n" for at in range(30))
        + "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2025-12-20T09:00:01 DUE TO TIME LIMIT ***\n",
    ),
    "log-probabilities of pairs that are NaN": (
        "max_prompt_length well below max_length",
        "".join(f"{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-07, 'rewards/chosen': nan, 'rewards/rejected': nan, 'rewards/accuracies': 0.0, 'rewards/margins': nan, 'logps/rejected': nan, 'logps/chosen': nan, 'epoch': 0.0{at}}}\n" for at in range(1, 9)),
    ),
    "a mark that is not found": (
        "response_template=tokenizer.encode",
        "".join(f"{SITE}/trl/trainer/utils.py:120: UserWarning: Could not find response key `[835, 13]` in the following instance: <s> Q {at}\n{{'loss': 0.0, 'learning_rate': 0.0002, 'epoch': 0.0{at}}}\n" for at in range(1, 9)),
    ),
    "a prompt that ms-swift did not make": (
        "trl>=0.11,<0.12",
        tb("/w/swift/cli/rlhf.py <module> | rlhf_main()", f"{DPO} _tokenize | prompt = features['prompt']", error="KeyError: 'prompt'"),
    ),
    "padding with None": (
        "tokenizer.pad_token = tokenizer.eos_token",
        tb(ME, TRAINER, f"{SITE}/trl/trainer/utils.py __call__ | padded_batch[k] = pad_sequence(to_pad, batch_first=True, padding_value=padding_value)", error="TypeError: pad_sequence(): argument 'padding_value' (position 3) must be float, not NoneType"),
    ),
    "a manager of adapters that unsloth replaced": (
        "The LoRA manager that unsloth_zoo puts into vLLM",
        tb(ME, f"{SITE}/unsloth_zoo/vllm_utils.py load_vllm | llm = LLM(**engine_args)", f"{SITE}/vllm/v1/worker/lora_model_runner_mixin.py maybe_setup_dummy_loras", error="AttributeError: 'LRUCacheWorkerLoRAManager' object has no attribute 'get_dummy_lora_warmup_rank'"),
    ),
    "CUDA that is not linked": (
        "CUDA's libraries not linked",
        tb(ME, f"{SITE}/unsloth/__init__.py <module> | raise ImportError(", error="ImportError: Unsloth: CUDA is not linked properly.\nWe tried running `ldconfig /usr/lib64-nvidia` ourselves, but it didn't work."),
    ),
    "a second rollout of slime": (
        "slime sets overlap_grad_reduce up in each rollout",
        tb("/w/slime/train.py train", "/w/slime/slime/backends/megatron_utils/model.py train | assert config.no_sync_func is None", error="AssertionError"),
    ),
    "a converter with the sizes of the training": (
        "without the parallel sizes of the training",
        tb("/w/slime/tools/convert_hf_to_torch_dist.py get_args | validate_args(args)", error="AssertionError: world size (8) is not divisible by total_model_size (total_model_size=64)"),
    ),
    "experts of a rollout": (
        "gives up that rollout alone",
        tb("/app/src/prime_rl/orchestrator/trajectories.py interleave_rollout | assert start == expected, (", error="AssertionError: Routed experts delta start mismatch at step 3: start=91, expected=70, prefix_len=71"),
    ),
    "a format of the second worker": (
        "policy.dtensor_cfg._v2=true",
        tb("/opt/nemo-rl/nemo_rl/models/policy/lm_policy.py save_checkpoint | raise ValueError(", error="ValueError: safetensors is only supported with DTensorPolicyWorkerV2 (_v2=true)."),
    ),
    "an input that Gemma asks for": (
        "The model asks for token_type_ids in training",
        tb(ME, f"{DPO} concatenated_forward | outputs = model(input_ids, **model_kwargs)", error="ValueError: `token_type_ids` is required as a model input when training"),
    ),
    "a script behind the server's options": (
        "A training script was handed to trl vllm-serve",
        "$ CUDA_VISIBLE_DEVICES=0 trl vllm-serve --model Qwen/Qwen2.5-0.5B --max_model_len 512 run.py\nINFO:     Started server process [31]\nINFO:     Application startup complete.\nINFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n(no further output after 2 h)\n",
    ),
    "a limit by TRL's name": ("--max_length N in place of", "ValueError: remaining_argv: ['--max_prompt_length', '4096']\n"),
    "a value head in the new PPO": (
        "AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=1)",
        tb(ME, f"{SITE}/trl/trainer/ppo_trainer.py __init__ | self.critic_backbone = getattr(value_model, value_model.base_model_prefix)", error="AttributeError: 'AutoModelForCausalLMWithValueHead' object has no attribute 'base_model_prefix'"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    told = " ".join(str(explain_text(log)).partition("Several things end like this. What")[0].partition("It may have to do with")[0].split())  # fmt: skip
    assert words in told


def test_a_server_alone_is_no_failure() -> None:
    log = "$ trl vllm-serve --model NAME --max_model_len 512\nStart trl vllm-serve --model NAME first, then train.py\nINFO:     Application startup complete.\n$ python train.py\n"
    assert "handed to trl vllm-serve" not in str(explain_text(log))
