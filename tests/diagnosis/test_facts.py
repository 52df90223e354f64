"""Evidence beside an error: what is read of it, and that it decides between the causes an error may have."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import NO_FAILURE, explain, explain_text
from bisect_cfg.diagnosis.facts import facts_of, memory_of

GEMM = "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, a, CUDA_R_16BF)`\n"
TIMEOUT = "[rank{}]:[E502 10:32:44 ProcessGroupNCCL.cpp:616] [Rank {}] Watchdog caught collective operation timeout: "
TIMEOUT += "WorkNCCL(SeqNum={}, OpType={}, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800021 milliseconds\n"
MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB\n"
)
FRAMES = 'Traceback (most recent call last):\n  File "/home/me/run.py", line 3, in <module>\n    trainer.train()\n'
SITE = "/opt/lib/python3.11/site-packages"
NO_KWARGS = "ImportError: cannot import name 'FlashAttentionKwargs' from 'transformers.modeling_x' (/x.py)\n"
QUANTIZED = "ImportError: Using `bitsandbytes` 8-bit quantization requires Accelerate: `pip install accelerate`\n"
SIZES = (
    "RuntimeError: Error(s) in loading state_dict for M:\n\tsize mismatch for {}: copying a param with shape "
    "torch.Size([8, 4]) from checkpoint, the shape in current model is torch.Size([9, 4]).\n"
)
NCCL = "DistBackendError: NCCL error in: x.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
ACTOR = (
    "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\nThere are some potential "
    "root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) SIGSEGV or others\n"
)
REFUSED = (
    "wandb: Currently logged in as: me to https://api.wandb.ai.\n"
    'wandb: ERROR It appears that you do not have permission: {"message":"permission denied","path":["upsertBucket"]}\n'
    "wandb.errors.CommError: It appears that you do not have permission to access the requested resource\n"
)
NO_HUB = "ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x\n"
REPO_ID = "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/data/m'.\n"
KEYWORD = "TypeError: {}.__init__() got an unexpected keyword argument '{}'\n"


UNTRAINABLE = (
    "ValueError: The model you are trying to fine-tune is quantized with {} but that quantization method do not "
    "support training.\n"
)
NO_LOSS = (
    "ValueError: The model did not return a loss from the inputs, only the following keys: logits. For reference, the "
    "inputs it received are {}.\n"
)
BUILD = "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/a/main.c']' returned non-zero exit status 1.\n"
NO_GPUS = "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!\n"


def frame(file: str, function: str) -> str:
    return f'  File "{SITE}/{file}", line 7, in {function}\n    x()\n'


UNREACHED = "ConnectionError: The vLLM server can't be reached at http://10.0.0.7:8000 after 240.0 seconds.\n"


@pytest.mark.parametrize(
    ("log", "name", "value"),
    [
        ("transformers             4.44.2\n", "packages", {"transformers": "4.44.2"}),
        ("Requirement already satisfied: trl>=0.8 in /usr/x (0.8.6)\n", "packages", {"trl": "0.8.6"}),
        ("trl 0.14.0\ntrl==0.15.0\n", "packages", None),
        (">>> torch.cuda.is_available()\nFalse\n", "cuda_available", False),
        ("2.2.1+cu121 False\n", "cuda_available", False),
        ("XLA:TPU compile error\n", "device", "tpu"),
        ("HIP error: invalid device function\n", "device", "rocm"),
        ("  File x/trl/trainer/grpo_trainer.py\n", "task", "rl"),
        ("NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo\n", "variables", {"NCCL_SOCKET_IFNAME": "lo"}),
        ("HF_TOKEN=hf_abc\n", "variables", None),
        ("args: bf16=True, x\n", "settings", {"bf16": True}),
        ("--bf16 false --beta 0.04\n", "settings", {"bf16": False, "beta": 0.04}),
        ("bf16=True\nbf16=False\n", "settings", None),
        ("Map (num_proc=4):  41%|####      | 10/26 [30:12<43:28]\n", "progress", "data"),
        ("Map:  41%|####      | 10/26 [00:12]\nMap: 100%|####| 26/26 [00:20]\n", "progress", None),
        (TIMEOUT.format(0, 0, 5, "ALLREDUCE") + TIMEOUT.format(1, 1, 5, "ALLREDUCE"), "collectives", None),
        (
            TIMEOUT.format(0, 0, 7, "ALLREDUCE") + TIMEOUT.format(1, 1, 5, "BROADCAST"),
            "collectives",
            "rank 1 at BROADCAST number 5; rank 0 at ALLREDUCE number 7",
        ),
        (f"{UNREACHED}INFO: Uvicorn running on http://10.0.0.9:8000\n", "answers", "10.0.0.9:8000"),
        (f"{UNREACHED}$ curl -s http://127.0.0.1:8000/health\n{{}}\n", "answers", "127.0.0.1:8000"),
        (f"{UNREACHED}INFO: Uvicorn running on http://0.0.0.0:8001\n", "answers", "0.0.0.0:8001"),
        (f"{UNREACHED}INFO: Uvicorn running on http://0.0.0.0:8000\n", "answers", None),
        (UNREACHED, "answers", None),
        ("INFO: Uvicorn running on http://0.0.0.0:8000\n", "answers", None),
    ],
)
def test_what_is_read(log: str, name: str, value: object) -> None:
    assert facts_of(log, ["bf16", "beta"]).get(name) == value


@pytest.mark.parametrize(
    ("log", "leads"),
    [
        ("GPU 0: Tesla V100-SXM2-32GB\n" + GEMM, "no bfloat16"),
        ("INFO: Uvicorn running on http://10.0.0.9:8000\n" + UNREACHED, "10.0.0.9:8000"),
        ("|   0  Tesla T4            Off |\n" + GEMM, "no bfloat16"),
        ("LD_LIBRARY_PATH=/usr/local/cuda-11.8/lib64\n" + GEMM, "cuBLAS of another CUDA"),
        (GEMM, "cuBLAS refuses a product"),
        (NO_KWARGS + "transformers 4.44.2\n", "transformers is too old"),
        (NO_KWARGS + "transformers==4.46.0\n", "transformers is too old"),
        (NO_KWARGS + "transformers 5.1.0\n", "it was taken out"),
        (FRAMES + frame("transformers/trainer.py", "evaluation_loop") + MEMORY, "in evaluation"),
        (FRAMES + frame("lightning/loops.py", "validation_step") + MEMORY, "in evaluation"),
        (FRAMES + frame("transformers/modeling_utils.py", "from_pretrained") + MEMORY, "was loaded"),
        (FRAMES + frame("torch/optim/adamw.py", "_init_group") + MEMORY, "optimizer's step"),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile error. Ran out of memory in memory space hbm\n", "TPU"),
        (MEMORY, "The GPU ran out of memory"),
        ("Map:  41%|####      | 10/26 [30:12<43:28]\n" + TIMEOUT.format(1, 1, 3, "ALLREDUCE"), "still being prepared"),
        ("worker-0   0/1   Evicted   0   3h\n" + TIMEOUT.format(0, 0, 300, "ALLREDUCE"), "evicted"),
        (TIMEOUT.format(0, 0, 70, "ALLREDUCE") + TIMEOUT.format(1, 1, 50, "BROADCAST"), "rank 1 at BROADCAST"),
        ("CUDA available: False\n" + QUANTIZED, "No GPU is in sight"),
        ("accelerate 0.30.0\n" + QUANTIZED, "accelerate is installed"),
        (QUANTIZED, "accelerate is missing"),
        ('"GET /get_world_size/ HTTP/1.1" 404\nException: Request failed: 404, {"detail":"Not Found"}\n', "vllm-serve"),
        ("Exception: Request failed: 500, Internal Server Error\n", "answered with an error (5xx)"),
        ("RuntimeError: can't start new thread\n", "more threads"),
        (
            "pthread_create failed for thread 1: Operation not permitted\nRuntimeError: can't start new thread\n",
            "seccomp",
        ),
        ("OSError: [Errno 24] Too many open files: 'a'\n", "more files"),
        ("ImportError: DLL load failed: 页面文件太小，无法完成操作。\n", "paging file"),
        ("OSError: [WinError 1455] Die Auslagerungsdatei ist zu klein. Error loading torch_cpu.dll\n", "paging file"),
        ('OSError: [WinError 126] The module was not found. Error loading "c10.dll"\n', "DLL"),
        (SIZES.format("model.embed_tokens.weight"), "vocabulary differs"),
        (SIZES.format("transformer.wte.weight"), "vocabulary differs"),
        (SIZES.format("base_model.model.layers.0.q_proj.lora_A.default.weight"), "another rank"),
        (SIZES.format("score.weight"), "number of outputs"),
        (SIZES.format("model.layers.0.mlp.up_proj.weight"), "does not fit the model"),
        ("Failed to initialize NVML: Unknown Error\nRuntimeError: No CUDA GPUs are available\n", "lost its GPUs"),
        ("torch==2.6.0+cpu\nRuntimeError: No CUDA GPUs are available\n", "build for CPUs"),
        ("RuntimeError: No CUDA GPUs are available\n", "No GPU is visible"),
        (NCCL + "Cuda failure 802 'system not yet initialized'\n", "fabric manager"),
        (NCCL + "Cuda failure 101 'invalid device ordinal'\n", "does not see"),
        (NCCL, "NCCL met a CUDA error"),
        (
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, "
            "got 88 from PyObject\n",
            "compiled for NumPy 1",
        ),
        (
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 88 from C header, "
            "got 96 from PyObject\n",
            "compiled for NumPy 2",
        ),
        (
            "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string. in row 3\n",
            "JSON file is broken",
        ),
        (
            "pyarrow.lib.ArrowTypeError: (\"Expected bytes, got a 'int' object\", 'Conversion failed for column score "
            "with type object')\n",
            "column score holds values of several types",
        ),
        (UNTRAINABLE.format("QuantizationMethod.MXFP4"), "quantized as MXFP4"),
        (UNTRAINABLE.format("QuantizationMethod.AWQ"), "refuses to train weights that are quantized in this way (AWQ)"),
        (NO_LOSS.format("input_ids,labels"), "no usable labels"),
        (NO_LOSS.format("input_ids"), "There is no loss to go back from"),
        (
            "EZ9999: 2024-05-17 Op Gelu does not has any binary.\nERR01005 OPS internal error\n",
            "compiled operator Gelu",
        ),
        ("torch._dynamo.exc.FailOnRecompileLimitHit: Hard failure due to fullgraph=True\n", "compiled anew too often"),
        ("torch._dynamo.exc.Unsupported: call_method x\n", "cannot trace this code"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory\n" + BUILD, "linker does not find libcuda"),
        (BUILD, "The C compiler was run and failed"),
        (
            "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet "
            "initialized (Triggered internally)\n" + NO_GPUS,
            "fabric manager",
        ),
        (NO_GPUS, "the process sees no GPU"),
        ("MemoryError: Unsloth: Your GPU ran out of memory loading vLLM.\n", "The GPU ran out of memory"),
        ("MemoryError\n", "The machine ran out of memory"),
        (
            "ray.exceptions.ObjectStoreFullError: Failed to put object in object store because it is full.\n",
            "object store",
        ),
        ("NameError: name 'is_torch_npu_available' is not defined\nUnsloth: patched\n", "name is_torch_npu_available"),
        (
            'data.max_prompt_length=512\n  File "/w/verl/protocol.py", line 712, in concat\n    torch.cat(a)\n'
            "RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 512 but got size 600 for "
            "tensor number 2\n",
            "longer than max_prompt_length",
        ),
        (
            "INFO - Server is not up yet: HTTPConnectionPool(host='10.1.4.7', port=8000): No route to host\n",
            "does not reach the vLLM server",
        ),
        (
            MEMORY.strip() + ". Process 7 has 61.24 GiB memory in use. Including non-PyTorch memory, this process has "
            "8.43 GiB memory in use.\n",
            "Another process holds",
        ),
        (ACTOR, "process died (killed"),
        ("memory.max_usage_in_bytes 500\n" + ACTOR, "memory limit of the container"),
        ("*** SIGSEGV received at time=1 on cpu 3 ***\n" + ACTOR, "Native code crashed"),
        (REFUSED, "The account me may not write"),
        ("wandb.errors.CommError: failed to upsert bucket: returned error 500\n", "does not take this run"),
        ("wandb: ERROR api key is not valid\nwandb.errors.CommError: 401 api_key\n", "does not accept the API key"),
        (
            FRAMES + frame("megatron/core/dist_checkpointing/x.py", "load") + "megatron.core.dist_checkpointing.core."
            "CheckpointingException: Global shape mismatch for loaded (4, 2) and expected (8, 2) tensor\n",
            "another layout",
        ),
        (FRAMES + frame("huggingface_hub/hf_api.py", "create_commit") + NO_HUB, "wants a repository"),
        (FRAMES + frame("transformers/utils/hub.py", "cached_file") + NO_HUB, "hub cannot be reached"),
        ("Model successfully saved to ./out\n" + FRAMES + REPO_ID, "only the model card"),
        (FRAMES + REPO_ID, "stands where a name"),
        ("python run_dpo.py\nKeyError: 'prompt'\n", "beside chosen and rejected (DPO)"),
        ("KeyError: 'prompt'\n", "no prompt in what the code reads"),
        (KEYWORD.format("SFTConfig", "max_seq_length"), "has another name now"),
        (KEYWORD.format("AxolotlDPOConfig", "max_prompt_length"), "project's own configuration"),
        (KEYWORD.format("GRPOConfig", "loss_type"), "does not have the setting loss_type"),
        (FRAMES + frame("me/score.py", "get_reward") + "IndexError: index out of range in self\n", "second model"),
        ("$ lfs quota -u me /home\nOSError: [Errno 28] No space left on device\n", "quota of the account"),
        ("OSError: [Errno 28] No space left on device\n", "The disk is full"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 5 GB)\n", "memory of this Mac"),
        ("NotImplementedError: 'aten::x' is not currently implemented for the MPS device.\n", "operation"),
        (
            "amdgpu 0000:1b:00.0: ring gfx_0.0.0 timeout, signaled seq=1\nfailed (exitcode: -6) local_rank: 3 (pid: 3)"
            "\n",
            "AMD GPU hung",
        ),
        (
            "RuntimeError: HIP error: no kernel image is available for execution on the device\n",
            "no code for this AMD GPU",
        ),
    ],
)
def test_the_evidence_decides(log: str, leads: str) -> None:
    explanation = explain_text(log)
    assert leads in explanation.matches[0].title, str(explanation)


def test_without_evidence_the_causes_are_told_apart_and_none_leads() -> None:
    said = str(explain_text(GEMM))
    assert said.startswith("cuBLAS refuses a product")
    assert "What tells which" in said and "bfloat16" in said and "LD_LIBRARY_PATH" in said
    decided = str(explain_text("GPU 0: Tesla V100-SXM2-32GB\n" + GEMM))
    assert "fp16=True" in decided and "What tells which" not in decided and "If that is not it" in decided


def test_a_pair_of_versions_that_the_log_contradicts_is_ruled_out() -> None:
    line = "TypeError: Accelerator.unwrap_model() got an unexpected keyword argument 'keep_torch_compile'\n"
    assert explain_text(line).matches[0].entry.id == "accelerate-keep-torch-compile"
    found = explain_text(line + "accelerate 1.6.0\ntransformers 4.52.1\n").matches
    assert "accelerate-keep-torch-compile" not in [match.entry.id for match in found]


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            "NCCL INFO NCCL_SOCKET_IFNAME set by environment to docker0\n"
            "NCCL INFO Call to connect returned Connection refused, retrying\n",
            "stuck-on-loopback",
        ),
        (
            "ds3_gather_for_generation: False\nzero_stage: 3\n  0%|          | 0/200 [00:00<?, ?it/s]\n",
            "stuck-gather-for-generation",
        ),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16\n", "stuck-waiting-for-members"),
    ],
)
def test_what_stands_at_the_start_is_named_and_not_called_failed(log: str, entry: str) -> None:
    explanation = explain_text(log)
    assert explanation.matches[0].entry.id == entry
    assert explanation.status == NO_FAILURE and "If nothing follows" in str(explanation)


def test_facts_of_a_large_log_are_read_from_its_ends() -> None:
    import io

    filler = b"some words of progress\n" * 20_000
    log = b"GPU 0: Tesla V100-SXM2-32GB\n" + filler + GEMM.encode()
    assert "no bfloat16" in explain(io.BytesIO(log)).matches[0].title


def test_a_word_far_before_the_error_decides_nothing() -> None:
    far = "LD_LIBRARY_PATH is set by the module system\n" + "words\n" * 200 + GEMM
    assert "refuses a product" in explain_text(far).matches[0].title
    near = "words\n" * 200 + "LD_LIBRARY_PATH is set by the module system\n" + GEMM
    assert "cuBLAS of another CUDA" in explain_text(near).matches[0].title


@pytest.mark.parametrize("line", ["torch 2.4.0+rocm6.1", "amdgpu 0000:bd:00.0: reset", "AMD Instinct MI300X"])
def test_cures_for_nvidia_do_not_lead_on_an_amd_gpu(line: str) -> None:
    found = explain_text(f"{line}\nRuntimeError: no kernel image is available for execution on the device\n").matches
    assert "cu128" not in " ".join(step for match in found for step in match.steps)


OF_TORCH = "CUDA out of memory. Tried to allocate {} GPU 0 has a total capacity of 139.81 GiB of which {} is free. "


@pytest.mark.parametrize(
    ("message", "memory"),
    [
        (OF_TORCH.format("58.15 GiB.", "41.20 GiB") + "5.02 GiB is reserved by PyTorch but unallocated.", "full"),
        (OF_TORCH.format("2.00 GiB.", "512.00 MiB") + "9.02 GiB is reserved by PyTorch but unallocated.", "in pieces"),
        (OF_TORCH.format("2.00 GiB.", "512.00 MiB") + "300.12 MiB is reserved by PyTorch but unallocated.", "full"),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 60 GiB already allocated;"
            " 1.2 GiB free; 75.1 GiB reserved in total by PyTorch)",
            "in pieces",
        ),
        ("CUDA error: out of memory", ""),
    ],
)
def test_memory_in_pieces(message: str, memory: str) -> None:
    assert memory_of(message) == memory
