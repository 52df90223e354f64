# ruff: noqa: E501  (a line of a log is one line)
"""Known failures claim no more than a log shows: the words of an entry, in logs whose cause is another one."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import explain_text
from bisect_cfg.diagnosis.knowledge import load

SITE = "/opt/env/lib/python3.11/site-packages"
ME = "/home/me/train.py <module>"
TRAINER = f"{SITE}/transformers/trainer.py train"
GRPO = f"{SITE}/trl/trainer/grpo_trainer.py _prepare_inputs"
REWARDS = f"{SITE}/trl/trainer/grpo_trainer.py _calculate_rewards"
VLLM = f"{SITE}/vllm/v1/engine/core.py run_engine_core"


def tb(*frames: str, error: str) -> str:
    """A traceback. A frame is a path, a function, and after a bar the line of code."""
    lines = []
    for frame in frames:
        place, _, code = frame.partition(" | ")
        path, function = place.split()
        lines.append(f'  File "{path}", line 17, in {function}\n    {code or "call()"}\n')
    return f"Traceback (most recent call last):\n{''.join(lines)}{error}\n"


def rows(*, start: str = "", **more: object) -> str:
    return start + "".join(
        "{"
        + f"'loss': {1.9 - i / 10:.2f}, 'grad_norm': 0.{30 + i}, 'learning_rate': 1e-05"
        + "".join(f", '{k}': {v}" for k, v in more.items())
        + f", 'epoch': 0.{i + 1}}}\n"
        for i in range(6)
    )


FALSE = {
    # 1-reports
    "weights of a sampler": ("weights went NaN", tb(ME, TRAINER, f"{SITE}/torch/utils/data/sampler.py __iter__ | rand_tensor = torch.multinomial(self.weights, self.num_samples)", error="RuntimeError: probability tensor contains either `inf`, `nan` or element < 0")),
    "sum of a sampler's weights": ("No probability above zero", tb(ME, TRAINER, f"{SITE}/torch/utils/data/sampler.py __iter__ | rand_tensor = torch.multinomial(self.weights, self.num_samples)", error="RuntimeError: invalid multinomial distribution (sum of probabilities <= 0)")),
    "replica with a KeyError": ("several GPUs", tb(ME, f"{SITE}/torch/nn/parallel/data_parallel.py forward", f"{SITE}/torch/_utils.py reraise", error="KeyError: Caught KeyError in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n  File \"/home/me/model.py\", line 9, in forward\n    x = batch[\"pixel\"]\nKeyError: 'pixel'")),
    "replica out of memory": ("several GPUs", tb(ME, f"{SITE}/torch/nn/parallel/data_parallel.py forward", f"{SITE}/torch/_utils.py reraise", error="torch.OutOfMemoryError: Caught OutOfMemoryError in replica 1 on device 1.\nOriginal Traceback (most recent call last):\n  File \"/home/me/model.py\", line 9, in forward\n    x = f(x)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 12.00 MiB is free.")),
    "two devices in a cache": ("vLLM", "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1! (when checking argument for argument tensors in method wrapper_CUDA_cat)\n"),
    "rotary, twice as long": ("one token apart", tb(ME, TRAINER, "/root/.cache/huggingface/modules/transformers_modules/foo/modeling_foo.py apply_rotary_pos_emb | q_embed = (q * cos) + (rotate_half(q) * sin)", error="RuntimeError: The size of tensor a (4096) must match the size of tensor b (2048) at non-singleton dimension 2")),
    "OpenRLHF without an engine": ("wake-up race", tb("/opt/site-packages/openrlhf/cli/train_sft.py train", "/opt/site-packages/openrlhf/trainer/sft_trainer.py fit", f"{SITE}/flash_attn/flash_attn_interface.py _flash_attn_varlen_forward", error="RuntimeError: CUDA error: an illegal memory access was encountered")),
    "FSDP without a reference": ("reference model", "torchrun --nproc_per_node 2 sft.py --fsdp full_shard\n" + tb("/home/me/sft.py <module>", TRAINER, "/home/me/sft.py compute_loss | w = self.class_weights[labels]", error="RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")),
    # 2-numbers
    "clipping off, small rewards": ("The rewards are not scaled", "GRPOConfig(max_grad_norm=0.0)\n" + rows(reward=0.4, reward_std=0.2) + "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'reward': 0.4, 'reward_std': 0.2, 'epoch': 0.8}\n" * 3),
    "NaN under ZeRO-3, supervised": ("run with rewards under ZeRO-3", "deepspeed --num_gpus 8 sft.py --deepspeed ds_zero3.json\n" + rows() + "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.8}\n" * 3),
    "num_iterations of k-means": ("importance ratio", "kmeans: num_iterations=20 done\n" + rows() + "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.8}\n" * 3),
    "NaN loss with num_iterations": ("importance ratio", "GRPOConfig(num_iterations=2, fp16=True)\n" + rows(reward=0.4, reward_std=0.2) + "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'reward': 0.4, 'reward_std': 0.2, 'epoch': 0.8}\n" * 3),
    "not all truncated": ("Every completion was truncated", "GRPOConfig(mask_truncated_completions=True, max_completion_length=2048)\n" + "".join(f"{{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 1e-06, 'completions/clipped_ratio': 0.1{i}, 'reward': 0.0, 'reward_std': 0.0}}\n" for i in range(6))),
    "a jump without resuming": ("in a run that loads a checkpoint", "Loading checkpoint shards: 100%|##########| 4/4 [00:03<00:00]\n" + "".join(f"{{'loss': {x}, 'grad_norm': 1.0, 'learning_rate': 1e-5}}\n" for x in (2.1, 1.6, 1.2, 0.9, 0.8, 9.8, 9.1, 8.2, 7.1, 6.0, 5.2))),
    # 3-settings
    "a view, message alone": ("whole groups of num_generations", "RuntimeError: shape '[4, 1024]' is invalid for input of size 3072\n"),
    "temperature as an integer": ("must be above zero", tb("/home/me/chat.py <module>", f"{SITE}/transformers/generation/logits_process.py __init__", error="ValueError: `temperature` (=1) has to be a strictly positive float, otherwise your next token scores will be invalid.")),
    "penalty as an integer": ("must be above zero", tb("/home/me/chat.py <module>", f"{SITE}/transformers/generation/logits_process.py __init__", error="ValueError: `penalty` has to be a strictly positive float, but is 1")),
    "an empty name": ("reference model", tb("/home/me/infer.py <module> | tok = AutoTokenizer.from_pretrained(os.environ.get('MODEL', ''))", f"{SITE}/transformers/utils/hub.py cached_file", f"{SITE}/huggingface_hub/utils/_validators.py validate_repo_id", error="huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or '.' and the maximum length is 96: ''.")),
    "sync_ref_model in an echo": ("sync_ref_model", "GRPOConfig(sync_ref_model=False, ref_model_sync_steps=64, use_peft=True)\n" + tb(ME, "/home/me/own.py step", error="IndexError: list index out of range")),
    "a package that is not needed": ("not installed", "Flash-attention is not installed. Falling back to SDPA.\n" + tb(ME, TRAINER, "/home/me/own.py step", error="IndexError: list index out of range")),
    "fsdp without a launcher": ("not installed", tb(ME, f"{SITE}/transformers/training_args.py __post_init__", error="ValueError: Using fsdp only works in distributed training.")),
    "an assignment of another size": ("reward function", tb("/home/me/eval.py <module> | scores[i] = model_scores", error="RuntimeError: The expanded size of the tensor (8) must match the existing size (4) at non-singleton dimension 0.  Target sizes: [8].  Tensor sizes: [4]")),
    "text in the data": ("setting that is compared", tb("/home/me/prep.py <module> | df = df[df.apply(lambda r: 0.5 <= r['score'], axis=1)]", f"{SITE}/pandas/core/frame.py apply", "/home/me/prep.py <lambda> | 0.5 <= r['score']", error="TypeError: '<=' not supported between instances of 'float' and 'str'")),
    "no GPU in sight": ("This GPU has no", tb(ME, f"{SITE}/transformers/training_args.py __post_init__", error="ValueError: Your setup doesn't support bf16/gpu.")),
    "rope warning": ("rope settings", "Unrecognized keys in `rope_scaling` for 'rope_type'='yarn': {'original_max_position_embeddings'}\n" + tb(ME, TRAINER, "/home/me/own.py collate", error="KeyError: 'input_values'")),
    "zero stage without an optimizer": ("Optimizer and scheduler of DeepSpeed", tb(ME, f"{SITE}/deepspeed/__init__.py initialize", f"{SITE}/deepspeed/runtime/engine.py _configure_zero_optimizer", error="AssertionError: zero stage 2 requires an optimizer")),
    "DummyOptim in a line": ("Optimizer and scheduler of DeepSpeed", tb(ME + " | optimizer = DummyOptim(params, lr=args.lr)", f"{SITE}/accelerate/utils/deepspeed.py __init__", error="TypeError: 'generator' object is not subscriptable")),
    # 8-inference
    "a download beside vLLM": ("server", "INFO 02-13 [config.py:54] vLLM API server version 0.8.5\n" + tb("/home/me/load.py <module> | ds = load_dataset('me/private')", f"{SITE}/datasets/load.py load_dataset", f"{SITE}/requests/adapters.py send", error="requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))")),
    "a maximum that is exceeded": ("prompt is longer", tb("/home/me/serve.py <module>", f"{SITE}/vllm/config.py _verify_args", error="ValueError: max_num_seqs (5000) exceeds maximum of 4096 for this platform")),
    "a shared memory limit": ("prompt is longer", tb("/home/me/a.py <module>", "/home/me/a.py write", error="ValueError: row group size 3000000000 exceeds maximum of 2147483647")),
    "truncation without a maximum 2": ("-100", tb(ME + " | tok(text, truncation=True, max_length=tok.model_max_length)", f"{SITE}/transformers/tokenization_utils_fast.py set_truncation_and_padding | self._tokenizer.enable_truncation(**target)", error="OverflowError: int too big to convert")),
    "weights at the start": ("trainer", "vllm serve me/merged\n" + tb(VLLM, f"{SITE}/vllm/model_executor/model_loader/default_loader.py load_weights", f"{SITE}/vllm/model_executor/models/utils.py _load_module", error="ValueError: There is no module or parameter named 'lm_head.bias' in Qwen2ForCausalLM")),
    "shapes at the start": ("trainer", "vllm serve me/merged --tensor-parallel-size 2\n" + tb(VLLM, f"{SITE}/vllm/model_executor/model_loader/default_loader.py load_weights", f"{SITE}/vllm/model_executor/layers/linear.py weight_loader | assert param_data.shape == loaded_weight.shape", error="AssertionError")),
    "names at the start": ("trainer", "vllm serve me/merged\n" + tb(VLLM, f"{SITE}/vllm/model_executor/model_loader/default_loader.py load_weights", f"{SITE}/vllm/model_executor/models/mixtral.py load_weights", error="KeyError: 'layers.0.block_sparse_moe.experts.w13.weight'")),
    "LoRA on a model that has none": ("rank is above", tb(VLLM, f"{SITE}/vllm/lora/models.py __init__", error="ValueError: Phi4FlashForCausalLM is not supported with LoRA yet.")),
    "a rank that is not in the list": ("rank is above", tb(VLLM, f"{SITE}/vllm/config.py __post_init__", error="ValueError: max_lora_rank (12) must be one of (8, 16, 32, 64, 128, 256).")),
    "an overwritten output": ("Capturing CUDA graphs failed", tb(ME, TRAINER, f"{SITE}/torch/autograd/graph.py _engine_run_backward", error="RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. Stack trace: File \"/home/me/m.py\", line 5, in forward. To prevent overwriting, clone the tensor outside of torch.compile() or call torch.compiler.cudagraph_mark_step_begin() before each model invocation.")),
    "another attention's NaN": ("cuDNN", tb(ME, TRAINER, f"{SITE}/torch/autograd/graph.py _engine_run_backward", error="RuntimeError: Function 'ScaledDotProductEfficientAttentionBackward0' returned nan values in its 0th output.")),
    "cudnn_sdp is off": ("cuDNN", "attention backends: flash_sdp=True cudnn_sdp=False\n" + rows() + "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.8}\n" * 3),
    # 9-data
    "a page's template": ("messages", tb("/home/me/report.py <module> | html = env.get_template('index.html').render(x=x)", f"{SITE}/jinja2/loaders.py get_source", error="jinja2.exceptions.TemplateNotFound: 'index.html' not found in search path: 'templates'")),
    "a note on the padding token": ("padding token", "Warning: pad_token is not set, using eos_token instead\n" + tb(ME, TRAINER, "/home/me/own.py collate", error="KeyError: 'input_values'")),
    "a note on padding": ("padding on the left", "A decoder-only architecture is being used, but right-padding was detected! For correct generation results, please set `padding_side='left'` when initializing the tokenizer.\n" + tb(ME, "/home/me/eval.py score | return gold[row['id']]", error="KeyError: 'q17'")),
    "parsed JSON in a reward": ("A reward function got a list", tb(ME, REWARDS + " | output_reward_func = reward_func(prompts=prompts, completions=completions)", "/home/me/rewards.py json_reward | answer = json.loads(text)['answer']", error="TypeError: list indices must be integers or slices, not str")),
    "matches in a reward": ("A reward function got a list", tb(ME, REWARDS + " | output_reward_func = reward_func(prompts=prompts, completions=completions)", "/home/me/rewards.py answer_reward | found = re.findall(r'<answer>(.*?)</answer>', text).strip()", error="AttributeError: 'list' object has no attribute 'strip'")),
    "a pointer of Git LFS": ("torch.load refuses", tb(ME, f"{SITE}/torch/serialization.py load", error="_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load` from `False` to `True`.\nPlease file an issue with the following so that we can make `weights_only=True` compatible with your use case: WeightsUnpickler error: Unsupported operand 118")),
    "a whole other size": ("attention heads", tb(ME, f"{SITE}/torch/nn/modules/module.py load_state_dict", error="RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([151936, 896]) from checkpoint, the shape in current model is torch.Size([151936, 1536]).\n\tsize mismatch for model.layers.0.self_attn.q_proj.weight: copying a param with shape torch.Size([896, 896]) from checkpoint, the shape in current model is torch.Size([1536, 1536]).\n\tsize mismatch for model.layers.0.self_attn.k_proj.weight: copying a param with shape torch.Size([128, 896]) from checkpoint, the shape in current model is torch.Size([256, 1536]).")),
    "a whole other size 2": ("another number of rows", tb(ME, f"{SITE}/torch/nn/modules/module.py load_state_dict", error="RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([151936, 896]) from checkpoint, the shape in current model is torch.Size([151936, 1536]).\n\tsize mismatch for model.norm.weight: copying a param with shape torch.Size([896]) from checkpoint, the shape in current model is torch.Size([1536]).")),
    "packed weights": ("attention heads", tb(ME, f"{SITE}/torch/nn/modules/module.py load_state_dict", error="RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.layers.0.self_attn.k_proj.weight: copying a param with shape torch.Size([2097152, 1]) from checkpoint, the shape in current model is torch.Size([1024, 4096]).")),
    "a layer that LoRA does not know": ("does not find", tb(ME, f"{SITE}/peft/tuners/lora/model.py _create_new_module", error="ValueError: Target module Qwen3MoeExperts() is not supported. Currently, only the following modules are supported: `torch.nn.Linear`, `torch.nn.Embedding`.")),
    "moving a quantized model": ("cannot be trained", tb("/home/me/infer.py <module> | model = AutoModelForCausalLM.from_pretrained(n, load_in_4bit=True).to('cuda')", f"{SITE}/transformers/modeling_utils.py to", error="ValueError: `.to` is not supported for `4-bit` or `8-bit` bitsandbytes models. Please use the model as it is, since the model has already been set to the correct devices and casted to the correct `dtype`.")),
    "Unsloth, supervised": ("GRPO", "Unsloth 2025.8.1 patched 28 layers\n" + tb(ME, f"{SITE}/trl/trainer/sft_trainer.py train", f"{SITE}/unsloth_zoo/loss_utils.py unsloth_fused_ce_loss", "/home/me/model.py forward", error="RuntimeError: mat1 and mat2 shapes cannot be multiplied (512x4096 and 3584x1024)")),
    "another trainer's batch": ("verl", "AssertionError: train_batch_size must be divisible by micro_batch_size\n"),
    "sizes in a rollout": ("longer than max_prompt_length", "(WorkerDict pid=4242) " + tb("/opt/site-packages/verl/workers/fsdp_workers.py generate_sequences", "/opt/site-packages/verl/workers/rollout/hf_rollout.py generate_sequences", f"{SITE}/transformers/models/qwen2/modeling_qwen2.py forward", error="RuntimeError: The size of tensor a (64) must match the size of tensor b (128) at non-singleton dimension 3").replace("\n", "\n(WorkerDict pid=4242) ")),
    "a model without a head": ("no usable labels", tb(ME + " | model = AutoModel.from_pretrained(name)", TRAINER, f"{SITE}/transformers/trainer.py compute_loss", error="ValueError: The model did not return a loss from the inputs, only the following keys: last_hidden_state,pooler_output. For reference, the inputs it received are input_ids,attention_mask,labels.")),
    "some rows without marks": ("No token has a label", "UserWarning: Could not find response key `### Response:` in the following instance: Below is an instruction ... This instance will be ignored in loss calculation.\n" + rows() + "{'train_runtime': 100.0, 'train_loss': 1.6, 'epoch': 1.0}\n"),
    "some rows without marks, then an error": ("No token has a label", "UserWarning: Could not find response key `### Response:` in the following instance: Below is an instruction ... This instance will be ignored in loss calculation.\n" + rows() + tb(ME, "/home/me/eval.py score | return gold[row['id']]", error="KeyError: 'q17'")),
    "DDP of a model on the CPU": ("device_map", tb(ME + " | model = DDP(model, device_ids=[rank])", f"{SITE}/torch/nn/parallel/distributed.py __init__", error="ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU modules or CPU modules, but got device_ids [1], output_device 1, and module parameters {device(type='cpu')}.")),
    "moving an offloaded model": ("training", tb("/home/me/infer.py <module> | pipe = pipeline('text-generation', model=model, device=0)", f"{SITE}/accelerate/big_modeling.py wrapper", error="RuntimeError: You can't move a model that has some modules offloaded to cpu or disk.")),
    "a vocabulary": ("a size that divides num_attention_heads", tb(VLLM, f"{SITE}/vllm/config.py verify", error="ValueError: vocab_size (151665) must be divisible by tensor parallel size (4)")),
    "a handler in a thread": ("time limit", tb("/home/me/app.py serve", f"{SITE}/lightning/pytorch/trainer/connectors/signal_connector.py _register_signal | signal.signal(signum, handlers)", error="ValueError: signal only works in main thread of the main interpreter")),
    "an engine in a thread": ("time limit", tb("/home/me/app.py serve", f"{SITE}/vllm/entrypoints/llm.py __init__", f"{SITE}/vllm/v1/engine/core.py run | signal.signal(signal.SIGTERM, signal_handler)", error="ValueError: signal only works in main thread of the main interpreter")),
    "a limit that is off on purpose": ("time limit", "Timeout is disabled as parsing_timeout is None or <= 0, you must provide the logic for timeout interruption in your code to prevent code getting stuck.\n" + tb(ME, REWARDS, "/home/me/rewards.py acc | return gold[k]", error="KeyError: 'q17'")),
    "a limit that is off, and no reward": ("time limit", "Timeout is disabled as parsing_timeout is None or <= 0, you must provide the logic for timeout interruption in your code to prevent code getting stuck.\n" + "{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 1e-06, 'reward': 0.0, 'reward_std': 0.0}\n" * 6),
    # 12-weights
    "a square error of integers": ("Labels or indices", tb(ME, TRAINER, f"{SITE}/torch/nn/functional.py mse_loss", error="RuntimeError: \"mse_cuda\" not implemented for 'Int'")),
    "a product of integers": ("Labels or indices", tb(ME, "/home/me/model.py forward | y = F.linear(x, self.w)", f"{SITE}/torch/nn/functional.py linear", error="RuntimeError: \"addmm_cuda\" not implemented for 'Int'")),
    "a spread in healthy rows": ("One completion for each prompt", "UserWarning: std(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor\nGRPOConfig(num_generations=8)\n" + rows(reward=0.4, reward_std=0.2) + tb(ME, "/home/me/eval.py score | return gold[row['id']]", error="KeyError: 'q17'")),
    "a plain model on no device": ("quantized", tb("/home/me/infer.py <module> | model = AutoModelForCausalLM.from_pretrained(n, device_map='auto')", f"{SITE}/accelerate/utils/modeling.py set_module_tensor_to_device", error="ValueError: lm_head.weight is on the meta device, we need a `value` to put in on cpu.")),
    "a plain model on the disk": ("quantized", tb("/home/me/infer.py <module> | model = AutoModelForCausalLM.from_pretrained(n, device_map='auto')", f"{SITE}/accelerate/big_modeling.py dispatch_model", error="ValueError: You are trying to offload the whole model to the disk. Please use the `disk_offload` function instead.")),
    "two types under ZeRO-3": ("quantized model under", "ds_zero3.json lora fp32 adapters\n" + tb(ME, TRAINER, f"{SITE}/deepspeed/runtime/zero/partition_parameters.py all_gather_coalesced", f"{SITE}/deepspeed/runtime/utils.py get_only_unique_item", error="RuntimeError: expected there to be only one unique element in <generator object Init._convert_to_deepspeed_param.<locals>.all_gather_coalesced.<locals>.<genexpr> at 0x7f2ec8daf900>")),
    "a tensor on the GPU": ("bfloat16", tb(ME, "/home/me/metrics.py acc | p = logits.numpy()", error="TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")),
    "a tensor with a gradient": ("bfloat16", tb(ME, "/home/me/metrics.py acc | p = logits.numpy()", error="RuntimeError: Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")),
    "a collective of a view": ("cannot be saved", tb(ME, "/home/me/dist.py gather | dist.all_gather(out, x.t())", f"{SITE}/torch/distributed/distributed_c10d.py all_gather", error="ValueError: Tensors must be contiguous")),
    "weights of one's own under ZeRO-3": ("when the checkpoint is loaded", "ds_zero3.json\n" + tb("/home/me/train.py <module> | model.load_adapter(path)", f"{SITE}/peft/utils/save_and_load.py set_peft_model_state_dict", error="RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n\tsize mismatch for base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight: copying a param with shape torch.Size([16, 896]) from checkpoint, the shape in current model is torch.Size([0]).")),
    "FSDP without generation": ("generates", "accelerate launch --use_fsdp sft.py\n" + tb(ME, f"{SITE}/torch/distributed/fsdp/fully_sharded_data_parallel.py forward", "/home/me/model.py head | F.linear(h, self.lm_head.weight)", error="RuntimeError: The tensor has a non-zero number of elements, but its data is not allocated yet.")),
    # found when they were read once more
    "a spread in healthy GRPO rows": ("One completion for each prompt", "GRPOTrainer started\nUserWarning: std(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor\n" + rows(reward=0.4, reward_std=0.2) + "{'train_runtime': 100.0, 'train_loss': 1.6, 'epoch': 1.0}\n"),
    "LoRA in SGLang": ("vLLM does not take", tb("/home/me/a.py <module>", f"{SITE}/sglang/srt/lora/lora_manager.py load", error="ValueError: unsupported LoRA target module lm_head")),
    "a note of the allocator": ("sleep mode", "INFO [cumem.py] CuMemAllocator: initialised pool\n" + tb(ME, f"{SITE}/vllm/entrypoints/llm.py generate", "/home/me/own.py step", error="KeyError: 'q'")),
    "training while the engine sleeps": ("put to sleep (requests", "INFO It took 3.1 seconds to fall asleep.\n" + tb(ME, GRPO, f"{SITE}/flash_attn/flash_attn_interface.py _flash_attn_backward", error="RuntimeError: CUDA error: an illegal memory access was encountered")),
    "an assertion of one's own": ("vLLM", tb("/home/me/own.py merge | assert len(seqs) == 1", error="AssertionError")),
    "a judge that is late": ("server did not answer", "use_vllm=True\n" + tb(ME, REWARDS, "/home/me/rewards.py judge", error="requests.exceptions.ReadTimeout: HTTPConnectionPool(host='localhost', port=5001): Read timed out. (read timeout=30)")),
    "a page's variable": ("messages", tb("/home/me/report.py <module> | t.render(x=1)", f"{SITE}/jinja2/environment.py render", error="jinja2.exceptions.UndefinedError: 'title' is undefined")),
    "cuDNN without memory": ("these shapes", tb(ME, f"{SITE}/transformers/integrations/sdpa_attention.py forward", error="RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")),
    "an API of chats": ("engine", tb("/home/me/judge.py ask", f"{SITE}/openai/_base_client.py _request", error="openai.BadRequestError: Error code: 400 - {'error': {'message': \"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.\", 'code': 'context_length_exceeded'}}")),
}  # fmt: skip

SHOWN = {
    "rotary, one short": ("one token apart", tb(ME, GRPO, f"{SITE}/transformers/models/qwen2/modeling_qwen2.py apply_rotary_pos_emb | q_embed = (q * cos) + (rotate_half(q) * sin)", error="RuntimeError: The size of tensor a (61) must match the size of tensor b (62) at non-singleton dimension 2")),
    "Xid 79": ("GPU", "[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n" + tb(ME, TRAINER, f"{SITE}/torch/nn/functional.py embedding", error="RuntimeError: CUDA error: an illegal memory access was encountered")),
    "a reference under FSDP": ("reference model", "torchrun train.py --fsdp full_shard\n" + tb(ME, GRPO + " | ref_per_token_logps = self._get_per_token_logps(self.ref_model, ids)", error="RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")),
    "temperature as an integer": ("whole number", tb("/home/me/chat.py <module>", f"{SITE}/transformers/generation/logits_process.py __init__", error="ValueError: `temperature` (=1) has to be a strictly positive float, otherwise your next token scores will be invalid.")),
    "temperature 0 in inference": ("do_sample=False", tb("/home/me/chat.py <module> | out = model.generate(**inputs, do_sample=True, temperature=0.0)", f"{SITE}/transformers/generation/utils.py generate", f"{SITE}/transformers/generation/logits_process.py __init__", error="ValueError: `temperature` (=0.0) has to be a strictly positive float, otherwise your next token scores will be invalid.")),
    "top_k of -1": ("vLLM's way", tb(ME, GRPO, f"{SITE}/transformers/generation/logits_process.py __init__", error="ValueError: `top_k` has to be a strictly positive integer, but is -1").replace("call()", "llm(use_vllm=False)")),
    "penalty as an integer": ("whole number", "ValueError: `penalty` has to be a strictly positive float, but is 1\n"),
    "a reference without a name": ("reference model", tb(ME, f"{SITE}/trl/trainer/grpo_trainer.py __init__ | self.ref_model = AutoModelForCausalLM.from_pretrained(model_id)", f"{SITE}/huggingface_hub/utils/_validators.py validate_repo_id", error="huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or '.' and the maximum length is 96: ''.")),
    "the learning rate is text": ("A setting that is compared", tb(ME, TRAINER, f"{SITE}/torch/optim/adamw.py __init__ | if not 0.0 <= lr:", error="TypeError: '<=' not supported between instances of 'float' and 'str'")),
    "no GPU in sight": ("sees no GPU", tb(ME, f"{SITE}/transformers/training_args.py __post_init__", error="ValueError: Your setup doesn't support bf16/gpu.")),
    "an old GPU": ("no bfloat16", tb(ME, f"{SITE}/transformers/training_args.py __post_init__", error="ValueError: Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0")),
    "ZeRO without an optimizer": ("no optimizer", tb(ME, f"{SITE}/deepspeed/runtime/engine.py _configure_zero_optimizer", error="AssertionError: zero stage 2 requires an optimizer")),
    "rewards of another count": ("wrong number of rewards", tb(ME, REWARDS + " | rewards_per_func[:, i] = torch.tensor(output_reward_func)", error="RuntimeError: The expanded size of the tensor (8) must match the existing size (4) at non-singleton dimension 0.  Target sizes: [8].  Tensor sizes: [4]")),
    "a long prompt": ("longer than the engine takes", "ValueError: Input length 9000 exceeds model's maximum context length of 8192\n"),
    "truncation without a maximum": ("Truncation", tb(ME + " | tok(text, truncation=True)", f"{SITE}/transformers/tokenization_utils_fast.py set_truncation_and_padding | self._tokenizer.enable_truncation(**target)", error="OverflowError: int too big to convert")),
    "padding that is decoded": ("-100", tb(ME, f"{SITE}/transformers/tokenization_utils_base.py batch_decode", f"{SITE}/transformers/tokenization_utils_fast.py _decode | text = self._tokenizer.decode(token_ids)", error="OverflowError: can't convert negative int to unsigned")),
    "weights of the trainer": ("was handed", tb(f"{SITE}/trl/scripts/vllm_serve.py update_named_param", f"{SITE}/vllm/model_executor/models/qwen2.py load_weights", error="ValueError: There is no module or parameter named 'base_model' in Qwen2ForCausalLM")),
    "weights at the start": ("checkpoint that the engine loads", tb(VLLM, f"{SITE}/vllm/model_executor/model_loader/default_loader.py load_weights", f"{SITE}/vllm/model_executor/models/utils.py _load_module", error="ValueError: There is no module or parameter named 'lm_head.bias' in Qwen2ForCausalLM")),
    "another attention's NaN": ("Anomaly detection", tb(ME, TRAINER, f"{SITE}/torch/autograd/graph.py _engine_run_backward", error="RuntimeError: Function 'ScaledDotProductEfficientAttentionBackward0' returned nan values in its 0th output.")),
    "a colocated engine": ("runs inside the trainer", "GRPOConfig(use_vllm=True, vllm_mode='colocate')\n" + tb(ME, TRAINER, "/home/me/callbacks.py on_step_end | self.trainer.vllm_client.reset_prefix_cache()", error="AttributeError: 'GRPOTrainer' object has no attribute 'vllm_client'")),
    "a template with a mistake": ("cannot be parsed", tb("/home/me/sft.py <module> | tok.apply_chat_template(messages, tokenize=False)", f"{SITE}/transformers/utils/chat_template_utils.py _compile_jinja_template", f"{SITE}/jinja2/environment.py handle_exception", error="jinja2.exceptions.TemplateSyntaxError: Encountered unknown tag 'generation'.")),
    "a pointer of Git LFS": ("no checkpoint", tb(ME, f"{SITE}/torch/serialization.py load", error="_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load` from `False` to `True`.\nPlease file an issue with the following so that we can make `weights_only=True` compatible with your use case: WeightsUnpickler error: Unsupported operand 118")),
    "a whole other size": ("another size", tb(ME, f"{SITE}/torch/nn/modules/module.py load_state_dict", error="RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([151936, 896]) from checkpoint, the shape in current model is torch.Size([151936, 1536]).\n\tsize mismatch for model.layers.0.self_attn.k_proj.weight: copying a param with shape torch.Size([128, 896]) from checkpoint, the shape in current model is torch.Size([256, 1536]).")),
    "other heads": ("attention heads", tb(ME, f"{SITE}/torch/nn/modules/module.py load_state_dict", error="RuntimeError: Error(s) in loading state_dict for GPTModel:\n\tsize mismatch for decoder.layers.0.self_attention.linear_qkv.weight: copying a param with shape torch.Size([1152, 896]) from checkpoint, the shape in current model is torch.Size([2688, 896]).")),
    "packed weights": ("quantized", tb(ME, f"{SITE}/torch/nn/modules/module.py load_state_dict", error="RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.layers.0.self_attn.k_proj.weight: copying a param with shape torch.Size([2097152, 1]) from checkpoint, the shape in current model is torch.Size([1024, 4096]).")),
    "a model without a head": ("no head", tb(ME + " | model = AutoModel.from_pretrained(name)", TRAINER, f"{SITE}/transformers/trainer.py compute_loss", error="ValueError: The model did not return a loss from the inputs, only the following keys: last_hidden_state,pooler_output. For reference, the inputs it received are input_ids,attention_mask,labels.")),
    "labels that are None": ("no usable labels", tb(ME, TRAINER, f"{SITE}/transformers/trainer.py compute_loss", error="ValueError: The model did not return a loss from the inputs, only the following keys: logits,past_key_values. For reference, the inputs it received are input_ids,attention_mask,labels.")),
    "an alarm in a thread": ("time limit", tb("/home/me/rewards.py score", f"{SITE}/math_verify/utils.py wrapper | signal.signal(signal.SIGALRM, handler)", error="ValueError: signal only works in main thread of the main interpreter")),
    "an engine in a thread": ("handler of signals", tb("/home/me/app.py serve", f"{SITE}/vllm/v1/engine/core.py run | signal.signal(signal.SIGTERM, signal_handler)", error="ValueError: signal only works in main thread of the main interpreter")),
    "labels of 32 bit": ("Labels or indices", tb(ME, TRAINER, f"{SITE}/torch/nn/functional.py cross_entropy", error="RuntimeError: expected scalar type Long but found Int")),
    "a tensor on the GPU": ("on the GPU", tb(ME, "/home/me/metrics.py acc | p = logits.numpy()", error="TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")),
    "adapters under ZeRO-3": ("adapter is loaded", "ds_zero3.json\n" + tb("/home/me/train.py <module> | model.load_adapter(path)", f"{SITE}/peft/utils/save_and_load.py set_peft_model_state_dict", error="RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n\tsize mismatch for base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight: copying a param with shape torch.Size([16, 896]) from checkpoint, the shape in current model is torch.Size([0]).")),
    "a quantized model under ZeRO-3": ("quantized model under", "load_in_8bit=True\n" + tb(ME, TRAINER, f"{SITE}/bitsandbytes/nn/modules.py forward", f"{SITE}/deepspeed/runtime/utils.py get_only_unique_item", error="RuntimeError: expected there to be only one unique element in <generator object Init._convert_to_deepspeed_param.<locals>.all_gather_coalesced.<locals>.<genexpr> at 0x7f2ec8daf900>")),
    "a name that a template lacks": ("uses raise_exception", tb("/home/me/a.py <module> | tok.apply_chat_template(messages)", error="jinja2.exceptions.UndefinedError: 'raise_exception' is undefined")),
    "a folder without an adapter": ("No adapter", "ValueError: Can't find 'adapter_config.json' at '/models/x'\n"),
    "shapes while tracing": ("torch.compile traces", tb(ME, f"{SITE}/torch/_dynamo/utils.py run_node", error="torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node with fake tensors: call_function <built-in function add>(*(FakeTensor(..., size=(4, 8)), FakeTensor(..., size=(4, 9))), **{}): got RuntimeError('The size of tensor a (8) must match the size of tensor b (9) at non-singleton dimension 1)')")),
}  # fmt: skip


def leading(log: str) -> str:
    found = explain_text(log)
    if not found.matches or found.matches[0].doubt:
        return ""
    return f"{found.matches[0].title}\n{found.matches[0].steps[0]}"


@pytest.mark.parametrize(("claim", "log"), FALSE.values(), ids=FALSE.keys())
def test_a_cause_that_the_log_does_not_show_does_not_lead(claim: str, log: str) -> None:
    assert claim not in leading(log)


def test_the_claims_are_made_somewhere() -> None:
    """What no entry says can lead nowhere: the tests above could not fail."""
    said = "\n".join(part for entry in load() for one in (entry, *entry.cases) for part in (one.title, *one.cures[:1]))
    assert not [claim for claim, _ in FALSE.values() if claim not in said]


@pytest.mark.parametrize(("claim", "log"), SHOWN.values(), ids=SHOWN.keys())
def test_a_cause_that_the_log_shows_leads(claim: str, log: str) -> None:
    assert claim in leading(log)
