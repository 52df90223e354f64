"""Logs of frequent failures (memory, drivers, compilers, launchers, installations) whose message has several causes."""

from __future__ import annotations

import textwrap

import pytest

from bisect_cfg.diagnosis.explain import explain_text

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 148.00 MiB. GPU 0 has a capacity of 79.15 GiB"
TOO_OLD = (
    "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update"
)
TORCHRUN = """\
W0505 12:05:33.922000 21 torch/distributed/elastic/multiprocessing/api.py:7] Sending process 280 closing signal SIGTERM
E0505 12:05:37.022000 21 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 0 \
(pid: 283) of binary: /opt/conda/bin/python
"""

LOGS = {
    "two processes share the card": (
        f"""\
        Traceback (most recent call last):
          File "/home/li/train.py", line 131, in main
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
          File "/opt/site-packages/transformers/models/qwen2/modeling_qwen2.py", line 57, in forward
            down_proj = self.down_proj(x)
        {OOM} of which 2 MiB is free. Process 41 has 18.20 GiB memory in use. Process 52 has 5.30 GiB memory in use.
        """,
        "gpu-out-of-memory",
        "several processes share that card",
    ),
    "pinned memory of a data loader": (
        """\
        RuntimeError: Caught RuntimeError in pin memory thread for device 0.
        Original Traceback (most recent call last):
          File "/opt/site-packages/torch/utils/data/_utils/pin_memory.py", line 64, in pin_memory
            return data.pin_memory(device)
        RuntimeError: CUDA error: out of memory
        """,
        "gpu-out-of-memory",
        "could not be pinned",
    ),
    "pinned memory of an offloaded optimizer": (
        """\
          File "/opt/site-packages/deepspeed/runtime/zero/stage3.py", line 812, in _configure_offloading
            self.optimizer_swapper = get_accelerator().pin_memory(torch.empty(numel))
          File "/opt/site-packages/deepspeed/accelerator/cuda_accelerator.py", line 285, in pin_memory
            return tensor.pin_memory()
        RuntimeError: CUDA error: out of memory
        """,
        "gpu-out-of-memory",
        "could not be pinned",
    ),
    "an engine that starts": (
        "ERROR [core.py:390] RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 requests.",
        "gpu-out-of-memory",
        "while the engine (vLLM or SGLang) started",
    ),
    "a batch of one": (
        f"""\
        TrainingArguments(per_device_train_batch_size=1, gradient_checkpointing=True)
        Traceback (most recent call last):
          File "/root/sft.py", line 40, in <module>
            trainer.train()
          File "/opt/site-packages/transformers/trainer.py", line 4020, in training_step
            self.accelerator.backward(loss, **kwargs)
        {OOM}
        """,
        "gpu-out-of-memory",
        "one row at a time already",
    ),
    "a merge": (
        f"""\
          File "/root/merge.py", line 22, in <module>
            model = model.merge_and_unload()
          File "/opt/site-packages/peft/tuners/lora/layer.py", line 700, in merge
        {OOM}
        """,
        "gpu-out-of-memory",
        "while an adapter was merged",
    ),
    "a checkpoint that is read": (
        f"""\
          File "/root/sft.py", line 40, in <module>
            trainer.train(resume_from_checkpoint=True)
          File "/opt/site-packages/transformers/trainer.py", line 3000, in _load_optimizer_and_scheduler
            torch.load(os.path.join(checkpoint, OPTIMIZER_NAME), map_location=map_location)
        {OOM}
        """,
        "gpu-out-of-memory",
        "read to resume",
    ),
    "timeout(1)": (
        "{'loss': 1.0, 'epoch': 0.4}\ntimeout: sending signal KILL to command 'python'\nKilled\n",
        "host-out-of-memory",
        "time limit of the command itself",
    ),
    "the kernel log alone": (
        "[12312.1] Memory cgroup out of memory: Killed process 2121 (python) total-vm:81234567kB",
        "host-out-of-memory",
        "limit of the container or job",
    ),
    "quantization with an old driver": (
        f"{TOO_OLD}\nRuntimeError: No GPU found. A GPU is needed for quantization.\n",
        "quantization-without-cuda",
        "driver is older",
    ),
    "CUDA on a Mac": (
        """\
          File "/Users/ann/miniforge3/lib/python3.11/site-packages/torch/cuda/__init__.py", line 310, in _lazy_init
            raise AssertionError("Torch not compiled with CUDA enabled")
        AssertionError: Torch not compiled with CUDA enabled
        """,
        "no-cuda-device",
        "This is a Mac",
    ),
    "bitsandbytes on a Mac": (
        """\
          File "/Users/ann/lib/python3.11/site-packages/transformers/quantizers/quantizer_bnb_4bit.py", line 73, in f
            validate_bnb_backend_availability(raise_exception=True)
        ImportError: Using `bitsandbytes` 4-bit quantization requires the latest version of bitsandbytes: `pip install`
        """,
        "bitsandbytes-setup",
        "on a Mac",
    ),
    "a container without GPUs": (
        """\
        WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.
        RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU
        """,
        "no-cuda-device",
        "The container was started without the GPUs",
    ),
    "bitsandbytes without code for the GPU": (
        """\
        torch 2.7.0+cu128, bitsandbytes 0.45.0, NVIDIA GeForce RTX 5090
        Error no kernel image is available for execution on the device at line 100 in file /src/csrc/ops.cu
        """,
        "no-kernel-image",
        "An extension",
    ),
    "Triton's ptxas": (
        """\
        ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'
        triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error
        """,
        "nvcc-old-for-gpu",
        "ptxas that Triton brings",
    ),
    "Windows without cl": (
        r"""
          File "C:\Users\Max\torch\_inductor\cpp_builder.py", line 85, in check_compiler_exist_windows
            raise RuntimeError(f"Compiler: {compiler} is not found.")
        torch._inductor.exc.InductorError: RuntimeError: Compiler: cl is not found.
        """,
        "compiler-missing",
        "There is no C compiler on this Windows",
    ),
    "Windows without Triton": (
        r"""
          File "C:\Users\Max\venv\Lib\site-packages\unsloth\__init__.py", line 40, in <module>
            import triton
        ModuleNotFoundError: No module named 'triton'
        """,
        "missing-module",
        "Triton is not installed on this Windows",
    ),
    "gcc newer than nvcc": (
        """\
        /usr/cuda/include/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 12
        ninja: build stopped: subcommand failed.
        RuntimeError: Error compiling objects for extension
        """,
        "compiler-missing",
        "newer than this nvcc takes",
    ),
    "an older NCCL": (
        "ImportError: /opt/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowDeregister",
        "shared-library-missing",
        "The NCCL that is found lacks",
    ),
    "shared memory of an engine": (
        """\
          File "/usr/lib/python3.11/multiprocessing/shared_memory.py", line 120, in __init__
            os.ftruncate(self._fd, size)
        OSError: [Errno 28] No space left on device
        """,
        "shared-memory-of-the-host",
        "/dev/shm",
    ),
    "the port of a server": (
        """\
          File "/opt/site-packages/vllm/entrypoints/openai/api_server.py", line 1040, in create_server_socket
            sock.bind(addr)
        OSError: [Errno 98] Address already in use
        """,
        "address-in-use",
        "The port of a server is taken",
    ),
    "a name without address": (
        "DistNetworkError: The client socket has failed to connect to any network address of (head, 29500)."
        " The IPv4 network addresses of (head, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        "rendezvous",
        "has no address on this node",
    ),
    "preemption in Kubernetes": (
        "Warning  Preempted  2m  scheduler  Preempted by pod 1234 on node gpu-7\ncommand terminated with exit code 143",
        "slurm-limit",
        "Kubernetes took the node",
    ),
    "an assertion in C": (
        "python3: /opt/lib/reader.cc:88: void Reader::next(): Assertion `pos_ < size_' failed.\n" + TORCHRUN,
        "process-aborted",
        "A check in native code failed",
    ),
    "an assertion of Triton": (
        "python: /lib/Conversion/TritonGPUToLLVM/ReduceOpToLLVM.cpp:280: virtual mlir::X f(): Assertion `a' failed.\n"
        + TORCHRUN,
        "llvm-error",
        "The compiler of GPU kernels",
    ),
    "a lambda": (
        "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
        "windows-spawn",
        "A function that stands inside another one",
    ),
    "python -m": (
        "/bin/python3: Error while finding module specification for 'verl.trainer.main_ppo' (ModuleNotFoundError: No "
        "module named 'verl')",
        "missing-module",
        "not installed",
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_case_that_the_log_shows_leads(name):
    text, entry, title = LOGS[name]

    found = explain_text(textwrap.dedent(text)).matches[0]

    assert found.entry.id == entry and not found.doubt
    assert title in found.title


def test_processes_of_an_engine_on_the_same_card_are_no_strangers():
    text = f"""\
  File "/root/verl/verl/workers/actor/dp_actor.py", line 300, in update_policy
    loss.backward()
{OOM}. Process 12 has 40.10 GiB memory in use. Process 13 has 35.10 GiB memory in use.
"""
    assert "verl's update" in explain_text(text).matches[0].title


def test_who_was_ended_does_not_lead_where_a_process_gave_up():
    assert "launcher-killed-child" not in [match.entry.id for match in explain_text(TORCHRUN).matches]
