"""Logs of public failure reports that no entry was written from, and logs without a failure.

Each has its source, the error lines that the thread reports (as facts, with noise of our own around them), the entries
that answer it, and those that are related. `AFTER` were looked up after the entries had been written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

STARTED = (
    "INFO 03-02 10:11:12 [__init__.py:239] Automatically detected platform cuda.\n"
    "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00,  1.20it/s]\n"
    "Map: 100%|##########| 7473/7473 [00:02<00:00, 3121.31 examples/s]\n"
)
FRAMES = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in <module>\n    trainer.train()\n'
ROWS = "".join(
    f"{{'loss': 0.0{i}, 'grad_norm': 0.{30 + i}, 'learning_rate': 9.{9 - i}e-07, 'reward': 0.{20 + i}, 'reward_std': 0.1{i}, "
    f"'entropy': 0.{60 - i}, 'frac_reward_zero_std': 0.25, 'epoch': 0.0{i}}}\n" for i in range(1, 8)
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """One failure: where it was reported, what it printed, which entries answer it, which ones come near."""

    source: str
    log: str
    right: tuple[str, ...]
    related: tuple[str, ...] = field(default=())


def ended(error: str, *frames: str, rows: bool = False, prefix: str = "", before: str = "") -> str:
    """A log that ends in an exception."""
    lines = FRAMES + "".join(f"  {frame}\n" for frame in frames) + error + "\n"
    if prefix:
        lines = "".join(prefix + line + "\n" for line in lines.splitlines())
    return STARTED + (ROWS if rows else "") + before + lines


TRL = 'File "/opt/conda/lib/python3.10/site-packages/trl/trainer/grpo_trainer.py", line 912, in _prepare_inputs'
HF = 'File "/opt/conda/lib/python3.10/site-packages/transformers/trainer.py", line 2245, in train'
VLLM = 'File "/opt/conda/lib/python3.10/site-packages/vllm/entrypoints/llm.py", line 230, in __init__'

BEFORE = [
    Report("hiyouga/LlamaFactory#8451", ended("TypeError: Accelerator.unwrap_model() got an unexpected keyword argument 'keep_torch_compile'", HF, prefix="[rank0]: "), ("accelerate-keep-torch-compile",)),
    Report("huggingface/trl#4617", ended("ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params' (/usr/lib/vllm/sampling_params.py)", TRL), ("vllm-guided-decoding",)),
    Report("verl-project/verl#4337", ended("AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you mean: 'num_special_tokens_to_add'?", VLLM, prefix="(vLLMHttpServer pid=884) "), ("vllm-transformers-5",)),
    Report("VsonicV/es-at-scale#41", ended("ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, ray::ESNcclLLM.__init__() (pid=32617)\nAttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended", VLLM), ("vllm-transformers-5",)),
    Report("modelscope/ms-swift#3268", ended("ImportError: cannot import name 'GRPOConfig' from 'trl' (/home/work/.local/trl/__init__.py)"), ("trl-without-grpo",)),
    Report("huggingface/trl#2782", ended("AttributeError: 'Qwen2ForCausalLM' object has no attribute 'optimizer'", TRL, prefix="[rank3]: "), ("zero3-model-optimizer",), ("library-attribute",)),
    Report("huggingface/trl#3859", ended("AttributeError: 'LLMEngine' object has no attribute 'model_executor'", TRL), ("vllm-v1-model-executor",), ("vllm-worker-attribute",)),
    Report("OpenRLHF/OpenRLHF#922", STARTED + "(ActorModelRayActor pid=700388)   File \"/x/vllm/entrypoints/llm.py\", line 495, in collective_rpc\n(ActorModelRayActor pid=700388) AttributeError: 'LLMEngine' object has no attribute 'model_executor'\n", ("vllm-v1-model-executor",)),
    Report("huggingface/trl#3158", STARTED + "vm:77:77 [0] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 40\n" + ended("RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", TRL), ("nccl-duplicate-gpu",), ("nccl-invalid-usage",)),
    Report("NVIDIA/Megatron-LM#661", ended("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1727, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.19.3\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 3 and rank 0 both on CUDA device f000"), ("nccl-duplicate-gpu",)),
    Report("verl-project/verl#472", STARTED + "(WorkerDict pid=27497) [2025-03-04 19:28:30,014 E 27497 27497] logging.cc:113: Unhandled exception: what(): thread: Resource temporarily unavailable [system:11]\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR\n", ("too-many-files",), ("ray-actor-died",)),
    Report("OpenRLHF/OpenRLHF#305", ended("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: CriticModelRayActor\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."), ("ray-actor-died",)),
    Report("AgentR1/Agent-R1#33", ended("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: TaskRunner\nWorker exits with an exit code None. The worker may have exceeded K8s pod memory limits."), ("ray-actor-died", "host-out-of-memory")),
    Report("EleutherAI/lm-evaluation-harness#1689", ended("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), ("cublas-not-initialized",)),
    Report("Dao-AILab/flash-attention#1832", ended("ImportError: /home/robot/env/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"), ("torch-extension-abi",)),
    Report("NVIDIA/nccl#525", STARTED + "[3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n[3] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-146 (size 9637888)\n" + ended("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:825, unhandled system error, NCCL version 2.9.6"), ("nccl-shared-memory",), ("nccl-system-error",)),
    Report("pytorch/pytorch#149845", ended("RuntimeError: CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."), ("no-kernel-image",)),
    Report("huggingface/open-r1#85", ended("ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was passed! For information", prefix="[rank0]: "), ("chat-template-missing",)),
    Report("EvolvingLMMs-Lab/lmms-eval#661", ended("ValueError: No chat template is set for this processor. Please either set the `chat_template` attribute, or provide a chat template as an argument."), ("chat-template-missing",)),
    Report("bigcode-project/starcoder#77", STARTED + "AssertionError: Check batch related parameters. train_batch_size is not\nequal to micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 *\n8 * 1\nERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 91809) of binary: /opt/python\n", ("deepspeed-batch",)),
    Report("deepspeedai/DeepSpeed#1279", ended("AssertionError: CUDA_HOME does not exist, unable to compile CUDA op(s)"), ("deepspeed-cuda-home",)),
    Report("deepspeedai/DeepSpeed#1077", ended("Exception: Installed CUDA version 11.0 does not match the version torch was compiled with 10.1, unable to compile cuda/cpp extensions without a matching cuda version.") + "Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f30>\nTraceback (most recent call last):\n  File \"cpu_adam.py\", line 91, in __del__\nAttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n", ("deepspeed-cuda-home",)),
    Report("verl-project/verl#5889", STARTED + "(vLLMHttpServer pid=1835067) ERROR 04-07 12:12:08 [multiproc_executor.py:597] torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 18071, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n", ("address-in-use",)),
    Report("pytorch/pytorch#85604", STARTED + "[W socket.cpp:401] [c10d] The server socket has failed to bind to 0.0.0.0:47531 (errno: 98 - Address already in use).\n[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address.\n", ("address-in-use",)),
    Report("cocktailpeanut/fluxgym#302", ended("RuntimeError: use_libuv was requested but PyTorch was build without libuv support"), ("libuv-windows",)),
    Report("vllm-project/vllm#12498", STARTED + "ERROR 01-28 03:21:01 engine.py:387] triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 66560, Hardware limit: 65536. Reducing block sizes or `num_stages` may help.\n", ("triton-out-of-resources",)),
    Report("Knowledgator/TurboT5#8", STARTED + "OutOfResources: out of resource: shared memory, Required: 114688, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n", ("triton-out-of-resources",)),
    Report("vllm-project/vllm#33297", STARTED + "(EngineCore_DP0 pid=972) ERROR 01-28 15:59:42 [core.py:935] ValueError: Free memory on device cuda:0 (1.53/22.05 GiB) on startup is less than desired GPU memory utilization (0.9, 19.84 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n", ("vllm-free-memory",), ("vllm-engine-start",)),
    Report("zai-org/ChatGLM3#100", ended("RuntimeError: The NVIDIA driver on your system is too old (found version 11060). Please update your GPU driver"), ("driver-too-old",)),
    Report("unslothai/unsloth#1914", STARTED + "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])\n" + ended("wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])"), ("wandb-key",)),
    Report("microsoft/MInference#51", ended("RuntimeError: FlashAttention only supports Ampere GPUs or newer."), ("flash-attn-old-gpu",)),
    Report("huggingface/accelerate#3718", ended("ValueError: fp16 mixed precision requires a GPU (not 'mps')."), ("mac-mixed-precision",)),
    Report("unslothai/unsloth#2173", ended("ConnectionError: The vLLM server can't be reached at 0.0.0.0:8000 after 120.0 seconds. Make sure the server is running by running `trl vllm-serve`."), ("vllm-server-not-up",)),
    Report("knoveleng/open-rs#8", STARTED + "2025-03-26 05:53:13 - INFO - trl.extras.vllm_client - Server is not up yet. Retrying in 2.0 seconds...\n" * 9, ("vllm-server-not-up",)),
]  # fmt: skip

AFTER = [
    Report("gensyn-ai/rl-swarm#304", STARTED + "ERROR:hivemind_exp.trainer.hivemind_grpo_trainer:stealthy seahorse:Encountered error during training!\n" + ended("TypeError: GRPOTrainer._get_train_sampler() takes 1 positional argument but 2 were given", HF), ("trainer-train-sampler",), ("library-argument",)),
    Report("modelscope/ms-swift#4868", STARTED + "usage: rlhf.py [-h] [--rlhf_type RLHF_TYPE]\nrlhf.py: error: unrecognized arguments:  --vllm_mode colocate\n", ("command-line",)),
    Report("modelscope/ms-swift#2713", ended("ValueError: remaining_argv: ['--train_type', 'sft']"), ("command-line",), ("removed-argument",)),
    Report("modelscope/ms-swift#8378", STARTED + "{'loss': 0.1, 'grad_norm': nan, 'reward': 0.2, 'kl': nan}\nTrain:   7%|7| 82/1218 [18:06:05<227:39:40, 721.46s/it]/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n" + ended("torch.AcceleratorError: CUDA error: device-side assert triggered", prefix="[rank5]: "), ("sampling-non-finite-weights", "non-finite-gradient")),
    Report("modelscope/ms-swift#7228", ended("RuntimeError: Multiple errors: [Exception('Server 1 failed: 500, Internal Server Error')]", prefix="[rank0]: "), ("vllm-server-lost",)),
    Report("gensyn-ai/rl-swarm#340", STARTED + "ERROR:hivemind_exp.trainer.hivemind_grpo_trainer:lobster:Exception during training\n" + ended("TypeError: correctness_reward_func() missing 1 required positional argument: 'answer'", TRL), ("reward-signature",)),
    Report("2U1/Qwen-VL-Series-Finetune#234", ended("TypeError: accuracy_reward() missing 1 required positional argument: 'assistant'", TRL, prefix="[rank0]: "), ("reward-signature",)),
    Report("huggingface/open-r1#384", ended("TypeError: len_reward() missing 1 required positional argument: 'solutions'", TRL, prefix="[rank2]: "), ("reward-signature",)),
    Report("greyhaven-ai/autocontext#1043", ended("TypeError: _autocontext_verifier_reward() got an unexpected keyword argument 'answer'"), ("reward-signature",)),
    Report("insait-institute/open-proof-corpus#2", ended("AssertionError", 'File "/x/verl/trainer/ppo/ray_trainer.py", line 400, in _validate_config', "  assert config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size"), ("verl-batch-sizes",)),
    Report("verl-project/verl#5821", ended("ValueError: train_batch_size (32) must be >= actor.ppo_mini_batch_size (64)"), ("verl-batch-sizes",)),
    Report("PRIME-RL/TTRL#43", ended("ray.exceptions.RayTaskError(ActorDiedError): ray::TaskRunner.run() (pid=106666, ip=1.2.3.4)") + "AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization\n", ("verl-batch-sizes",)),
    Report("unslothai/unsloth#1875", ended("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2158x4096 and 1x8388608)"), ("quantized-training",)),
    Report("unslothai/unsloth#3387", ended("torch._dynamo.exc.TorchRuntimeError: Failed running call_function: a and b must have same reduction dim, but got [s1, s2] X [1152, 262144].", 'File "/content/unsloth_compiled_cache/UnslothGRPOTrainer.py", line 234, in accumulate_chunk'), ("unsloth-logits",), ("compile-failed",)),
    Report("modelscope/ms-swift#5235", ended("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options", 'File "/x/transformers/trainer.py", line 2522, in _load_rng_state', prefix="[rank0]: "), ("weights-only",)),
    Report("allenai/open-instruct#673", ended("_pickle.UnpicklingError: Weights only load failed. (1) In PyTorch 2.6, we changed the default value of the `weights_only` argument", prefix="[rank1]: "), ("weights-only",)),
    Report("huggingface/trl#3842", ended("RuntimeError: shape '[-1, 4]' is invalid for input of size 3", TRL, rows=True), ("partial-group",)),
    Report("huggingface/trl#3257", ended("AttributeError: 'AutoModelForCausalLMWithValueHead' object has no attribute 'warnings_issued'", TRL, prefix="[rank2]: "), ("value-head-in-grpo",), ("library-attribute",)),
    Report("huggingface/trl#5301", ended("AttributeError: 'LLM' object has no attribute 'collective_step'", TRL, prefix="[rank0]: "), ("vllm-worker-attribute",)),
    Report("pytorch/pytorch#178251", ended("RuntimeError: Function 'ScaledDotProductEfficientAttentionBackward0' returned nan values in its 0th output"), ("cudnn-attention-nan", "anomaly-nan")),
    Report("huggingface/trl#1409", ended("ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers' (/usr/lib/transformers/__init__.py)"), ("library-import",)),
    Report("modelscope/ms-swift#9261", ended("RuntimeError: Failed to import trl.trainer.grpo_trainer because of the following error (look up to see its traceback):\nNo module named 'mergekit'", prefix="[rank0]: "), ("mergekit-missing",), ("library-import", "missing-module")),
    Report("verl-project/verl#2515", ended("ValueError: Total available GPUs 8.0 is less than total desired GPUs 16"), ("ray-resources",)),
    Report("ModalMinds/MM-EUREKA#32", STARTED + "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker.\n", ("ray-actor-died",)),
    Report("vllm-project/vllm#15046", ended("ValueError: StableLMAlphaForCausalLM has no vLLM implementation and the Transformers implementation is not compatible with vLLM."), ("vllm-unknown-architecture",)),
    Report("alvinliu0/HumanGaussian#4", ended("huggingface_hub.utils._errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache."), ("hub-unreachable",)),
    Report("KimMeen/Time-LLM#158", ended("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:98 (errno: 13 - Permission denied)."), ("address-in-use", "permission-denied")),
    Report("OpenRLHF/OpenRLHF#860", ended("KeyError: 'prompt'", prefix="[rank1]: "), ("missing-prompt-column",)),
    Report("vllm-project/vllm#18831", STARTED + "node:1:1 [0] misc/shmutils.cc:72 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file or directory (2)\n" + ended("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error (run with NCCL_DEBUG=INFO for details)"), ("nccl-shared-memory", "nccl-system-error")),
    Report("huggingface/transformers#31367", ended("OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/x."), ("hub-gated",), ("hub-access",)),
    Report("llm-notes: KeyboardInterrupt after OOM", ended("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 79.10 GiB", TRL, rows=True), ("gpu-out-of-memory",)),
    Report("vllm-project/vllm#12981", STARTED + ROWS + "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:56\nCUDA Error: invalid argument at /workspace/csrc/cumem_allocator.cpp:57\nFatal Python error: Segmentation fault\nSegmentation fault (core dumped)\n", ("wake-up-out-of-memory",), ("vllm-sleep-mode",)),
    Report("NVIDIA/nccl#1235", STARTED + "n1:30:31 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\nn1:30:29 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1-ib<511>\n" + ended("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, internal error - please report this issue to the NCCL developers, NCCL version 2.18.1", prefix="[rank0]: "), ("nccl-out-of-memory",), ("nccl-cuda-error",)),
    Report("Alibaba-NLP/ZeroSearch#11", ended("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 148.00 MiB. GPU 0 has a total capacity of 31.60 GiB of which 87.44 MiB is free. Process 4416 has 30.51 GiB memory in use. Process 4496 has 1022.00 MiB memory in use.", prefix="(WorkerDict pid=4496) "), ("gpu-taken-by-another",), ("gpu-out-of-memory",)),
    Report("huggingface/trl#2796", ended("RuntimeError: The tensor has a non-zero number of elements, but its data is not allocated yet. Caffe2 uses a lazy", before="fsdp_transformer_layer_cls_to_wrap: Qwen2DecoderLayer\n"), ("fsdp-generate",), ("zero3-empty-weight",)),
    Report("pytorch/pytorch#164346", ended("RuntimeError: HIP error: invalid device function\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."), ("rocm-no-kernel",), ("rocm-fault",)),
    Report("yifan123/flow_grpo#181", ended("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`", rows=True), ("cublas-execution-failed",)),
    Report("hiyouga/LlamaFactory#986", ended("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", rows=True), ("loss-scale-minimum",)),
    Report("hiyouga/LlamaFactory#8379", ended("ValueError: Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, we now require users to upgrade torch to at least v2.6 in order to use the function.", HF), ("torch-load-refused",), ("weights-only",)),
    Report("huggingface/trl#2770", ended("TypeError: Qwen2ForCausalLM.forward() got an unexpected keyword argument 'logits_to_keep'", TRL), ("logits-to-keep",), ("library-argument",)),
    Report("verl-project/verl#5485", ended("ImportError: cannot import name 'AutoModelForCausalLMWithValueHead' from 'trl'", prefix="(TaskRunner pid=466) "), ("trl-moved",), ("library-import",)),
    Report("huggingface/trl#3250", ended("AttributeError: 'PPOTrainer' object has no attribute 'generate'"), ("trl-moved",), ("library-attribute",)),
    Report("huggingface/transformers#30702", ended("RuntimeError: DDP expects same model across all ranks, but Rank 5 has 128 params, while rank 0 has inconsistent 1506656875 params.", rows=True, prefix="[rank5]: "), ("mismatched-code-on-ranks",)),
    Report("huggingface/trl#3788", ended("ValueError: max_num_batched_tokens (4096) is smaller than max_model_len (8192). This effectively limits the maximum sequence length", VLLM), ("vllm-batched-tokens",)),
    Report("GAIR-NLP/DeepResearcher#7", STARTED + "wandb: Network error (ConnectTimeout), entering retry loop.\n" + ended("wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.", prefix="(main_task pid=5123) "), ("wandb-network",), ("wandb-key",)),
    Report("vllm-project/vllm#18580", ended("RuntimeError: Triton Error [CUDA]: device kernel image is invalid", VLLM), ("triton-image-invalid",)),
    Report("pytorch/pytorch#122602", ended("TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead."), ("mps-float64",)),
    Report("hiyouga/LlamaFactory#1794", ended("ValueError: FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision evaluation (`--fp16_full_eval`) can only be used on CUDA or NPU devices or certain XPU devices (with IPEX).", HF), ("half-precision-without-cuda",), ("mac-mixed-precision",)),
    Report("vllm-project/vllm#23238", ended("RuntimeError: Expected there to be 1 prompt updates corresponding to 1 image items, but instead found 0 prompt updates!", VLLM), ("image-marks",)),
]  # fmt: skip

_SURVIVED = FRAMES + "ValueError: could not convert string to float: 'seven'\n"
HEALTHY = {
    **{f"rows, {name}": STARTED + text for name, text in {
        "plain": ROWS, "twice": ROWS * 2, "with a summary": ROWS + "{'train_runtime': 12.3, 'train_loss': 0.0, 'epoch': 1.0}\n",
        "with a survived traceback": ROWS + _SURVIVED + ROWS,
        "with a survived OOM": ROWS + FRAMES + "torch.OutOfMemoryError: CUDA out of memory.\n" + ROWS,
        "with a retried download": "ERROR - huggingface_hub - HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. Retrying\n" + ROWS,
        "with a warning of TRL about vLLM": "UserWarning: TRL currently only supports vLLM version `0.10.2`. You have version 0.11.0 installed.\n" + ROWS,
        "with unused parameters warned of": "UserWarning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters\n" + ROWS,
        "with a server that came up": "INFO - trl.extras.vllm_client - Server is not up yet. Retrying in 2.0 seconds...\n".replace("is not up yet", "was waited for") + ROWS,
        "with a completion about CUDA": ROWS + "completion: the error 'CUDA out of memory' means that the batch is too large\n" + ROWS,
        "with a completion that quotes": ROWS + "| Traceback (most recent call last): ... KeyError: 'prompt' |\n" + ROWS,
        "with a NaN kl at beta 0": ROWS.replace("'epoch'", "'kl': nan, 'epoch'"),
        "strings": ROWS.replace("0.", "'0.").replace(", '", "', '").replace("}", "'}").replace("''", "'"),
        "with a killed sandbox": "bash: line 1: 4411 Killed                  timeout 5 python3 sol.py\n" + ROWS,
        "TensorFlow noise": "2025-03-02 10:11:12.1 E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered\n" + ROWS,
        "pip conflict": "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.\n" + ROWS,
        "deprecations": "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.\n" * 3 + ROWS,
        "a caught import": "Could not import flash_attn, falling back to sdpa\n" + ROWS,
        "process group warning": ROWS + "{'train_runtime': 9.1, 'train_loss': 0.0}\n[rank0]:[W302 10:11:12 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.\n",
        "leaked semaphores": ROWS + "{'train_runtime': 9.1, 'train_loss': 0.0}\nUserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown\n",
    }.items()},
    **{f"verl {i}": STARTED + "".join(f"(TaskRunner pid=7) step:{k} - actor/grad_norm:0.{20 + (k * i) % 7} - critic/score/mean:0.{30 + k} - actor/entropy:0.{50 - k}\n" for k in range(1, 12)) for i in range(1, 4)},
    **{f"Megatron {i}": "".join(f" iteration {k:8}/ 100 | consumed samples: {k * 256} | learning rate: 1.0E-06 | lm loss: {2.0 - k / 50:.6E} | grad norm: {1 + k % 3 / i:.3f} | number of nan iterations: 0 |\n" for k in range(1, 12)) for i in range(1, 3)},
    **{f"JSON lines {i}": "".join(f'{{"step": {k}, "loss": 0.0{k % 9}, "grad_norm": 0.{i}{k % 7}, "reward": 0.{20 + k}}}\n' for k in range(1, 30)) for i in range(1, 4)},
    "OpenRLHF": "".join(f"Episode [1/1]:  {k}%|##| {k}/100 [00:10<01:00, 1.1s/it, policy_loss=0.01, reward=0.{30 + k}, kl=0.00{k}]\n" for k in range(1, 30)),
    "LLaMA-Factory": "".join(f"[INFO|2025-03-02 10:11:{k:02}] llamafactory.train.callbacks:143 >> {{'loss': 0.{80 - k}, 'learning_rate': 4.9e-05, 'epoch': 0.{k:02}}}\n" for k in range(1, 30)),
    "empty": "", "one line": "Loading model...\n", "bars alone": "".join(f"\r {k}%|#| {k}/100 [00:01<00:09]" for k in range(99)),
    "nginx": '127.0.0.1 - - [02/Mar/2025:10:11:12 +0000] "GET /x HTTP/1.1" 200 612\n' * 9,
    "pytest": "===== 41 passed, 9 skipped, 1 xfailed in 768.72s (0:12:48) =====\n",
    "make": "gcc -O2 -c a.c -o a.o\ngcc a.o -o a\n", "apt": "Setting up libc6 (2.31) ...\nProcessing triggers for man-db\n",
    "compiler warning": "a.c:3:5: warning: unused variable 'x' [-Wunused-variable]\n",
    "docker build": "Step 3/9 : RUN pip install trl\n ---> Using cache\n", "git": "Already up to date.\n",
    "prose": "The exception proves the rule. An error of judgement, he said, kills nobody; a fault is no failure.\n" * 3,
    "poem of errors": "To err is human. Segmentation is a fault of oranges. No bus, no error. The signal was lost in space.\n",
    "python docs": "The FloatingPointError exception is not currently used. OverflowError is raised when the result is too large.\n",
    "SQL": "INFO sqlalchemy.engine.Engine SELECT error_code FROM runs\n", "rates": "eval: word_error_rate=0.12, error_rate: 0.03, errors=0\n",
    "vLLM server": "INFO:     127.0.0.1:56516 - \"POST /generate/ HTTP/1.1\" 200 OK\n" * 9,
    "gpu table": "|   0  NVIDIA GeForce RTX 4090        On  | 00000000:1E:00.0 Off |                  Off |\n",
    "environment": "- Transformers version: 4.52.4\n- Accelerate version: 1.7.0\n- TRL version: 0.18.0\n- PyTorch version: 2.7.0\n",
    "help": "usage: train.py [-h] [--lr LR]\n\noptions:\n  -h, --help  show this help message and exit\n",
    "yaml": "learning_rate: 1.0e-6\nnum_generations: 8\nuse_vllm: true\nvllm_mode: colocate\n",
    "slurm header": "Job started on node7 at 10:11\nGPUs: 8\n", "ok": "Training completed. Do not forget to share your model on huggingface.co/models =)\n",
    "tests mention OOM": "tests/test_oom.py::test_out_of_memory_is_caught PASSED\ntests/test_x.py::test_segmentation_fault PASSED\n",
    **{f"healthy run {i}": "".join(
        f"{{'loss': {(-1) ** k * k / 9000}, 'grad_norm': {0.1 + (k * i) % 5 / 10}, 'reward': {min(0.1 * i + k / 60, 1)}, 'reward_std': 0.2, "
        f"'entropy': {1.2 - k / 60}, 'frac_reward_zero_std': {(k * i) % 4 / 8}}}\n" for k in range(50)) for i in range(1, 9)},
    "a data set row": '{"question": "What raises ValueError: invalid literal?", "answer": "int(\'x\')"}\n' * 3,
}  # fmt: skip
