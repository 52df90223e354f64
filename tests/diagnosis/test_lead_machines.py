# ruff: noqa: E501  (a line of a log is one line)
"""Logs of machines, launchers and Ray: words of what leads; and what must not be said in logs that look like them."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import explain_text
from tests.diagnosis.leading import led
from tests.diagnosis.test_claims_audit_a import ME, SITE, TRAINER, tb

RAY_STARTED = "2025-05-02 08:14:11,301\tINFO worker.py:1832 -- Started a local Ray instance. View the dashboard at 127.0.0.1:8265\n"
TIME_LIMIT = "slurmstepd: error: *** JOB 55120 ON node-02 CANCELLED AT 2025-05-02T12:14:02 DUE TO TIME LIMIT ***\n"
HIP_RAISED = tb(
    ME,
    f"{SITE}/torch/cuda/__init__.py set_device",
    error="torch.AcceleratorError: HIP error: invalid device ordinal\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n",
)
STORE_FAILED = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
TO_STORE = f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py _create_tcp_store"
CLOSED = tb(
    "/opt/env/bin/torchrun <module>",
    f"{SITE}/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py run | raise RendezvousClosedError()",
    error="torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
)
UNBALANCED = "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes."
NO_SERVER = tb(
    ME,
    f"{SITE}/trl/extras/vllm_client.py check_server | raise ConnectionError(",
    error="ConnectionError: The vLLM server can't be reached at http://0.0.0.0:8000 after 240.0 seconds. Make sure the server is running by running `trl vllm-serve`.",
)
IN_USE = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
NO_XLA = "AttributeError: module 'torch' has no attribute 'xla'"
NO_BACKEND = "RuntimeError: No backend type associated with device type xpu"


def launch(address: str, nodes: int) -> str:
    at = "I0211 09:00:01.100000 81 torch/distributed/launcher/api.py:194]"
    return f"{at}   min_nodes        : {nodes}\n{at}   max_nodes        : {nodes}\n{at}   rdzv_backend     : c10d\n{at}   rdzv_endpoint    : {address}:29500\n"


def timed_out(address: str) -> str:
    return f"[E211 09:01:02.000 socket.cpp:1011] [c10d] The client socket has timed out after 60000ms while trying to connect to ({address}, 29500).\n"


TOLD = {
    "nothing after Ray's start": (
        "Nothing comes after Ray's start",
        "+ python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=sglang trainer.nnodes=1\n" + RAY_STARTED + TIME_LIMIT,
    ),
    "a traceback that a logger's message begins": (
        "cannot connect to each other over gloo",
        "[2025-02-13 03:11:58 TP3] Scheduler hit an exception: "
        + tb(f"{SITE}/torch/distributed/distributed_c10d.py _new_process_group_helper | backend_class = ProcessGroupGloo(", error="RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error")
        + "\n[2025-02-13 03:11:59] Received sigquit from a child proces. It usually means the child failed.\nKilled\n",
    ),
    "a GPU of AMD that is hidden": ("An AMD GPU number is asked for", HIP_RAISED),
    "nodes that ROLL does not count": (
        "num_gpus_per_node no larger than that",
        tb("/root/ROLL/roll/distributed/scheduler/resource_manager.py __init__ | assert num_nodes <= ray_num_nodes, (", error="AssertionError: The Ray clusters(ray_num_nodes: 1) cannot meet the required number of nodes (`num_nodes`3)."),
    ),
    "a port for ssh": (
        'export PDSH_SSH_ARGS_APPEND=""',
        tb("/opt/conda/bin/deepspeed <module>", f"{SITE}/deepspeed/launcher/multinode_runner.py get_cmd", error="KeyError: 'PDSH_SSH_ARGS_APPEND'"),
    ),
    "a lock at the end": (
        "TRITON_CACHE_DIR=",
        "{'train_runtime': 812.4, 'train_loss': 1.02, 'epoch': 1.0}\n^C\nException ignored in atexit callback: <function matmul_ext_update_autotune_table at 0x7fd0>\n"
        f'  File "{SITE}/deepspeed/ops/transformer/inference/triton/matmul_ext.py", line 444, in matmul_ext_update_autotune_table\n    fp16_matmul._update_autotune_table()\n'
        f'  File "{SITE}/deepspeed/ops/transformer/inference/triton/matmul_ext.py", line 83, in put\n    with FileLock(self.lock_path):\n'
        f'  File "{SITE}/filelock/_api.py", line 225, in acquire\n    time.sleep(poll_interval)\nKeyboardInterrupt\n',
    ),
    "oneCCL under an engine": (
        "FI_PROVIDER_PATH=",
        "(Worker_TP0 pid=41) 2026:08:13-02:00:30:( 41) |CCL_ERROR| atl_ofi_helper.cpp:1118 fi_getinfo error: ret -61, providers 0\n"
        "(Worker_TP0 pid=41) oneCCL: atl_ofi_comm.cpp:232 init_transport: EXCEPTION: failed to initialize ATL\n"
        "(EngineCore pid=30) RuntimeError: Engine core initialization failed. See root cause above.\n",
    ),
    "a trainer and its engine on the same GPUs": (
        "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK",
        tb("/w/verl/workers/rollout/sglang_rollout/sglang_rollout.py __init__ | self.inference_engine = VerlEngine(", f"{SITE}/sglang/srt/model_executor/model_runner.py init_torch_distributed", error=UNBALANCED),
    ),
    "an engine alone": (
        "another process holds it, most often",
        tb(f"{SITE}/sglang/srt/managers/scheduler.py run_scheduler_process", f"{SITE}/sglang/srt/model_executor/model_runner.py init_torch_distributed", error=UNBALANCED),
    ),
    "two nodes and a loopback address": (
        "which is each node itself",
        launch("127.0.1.1", 2) + timed_out("127.0.1.1") + tb("/opt/env/bin/torchrun <module>", TO_STORE, error=STORE_FAILED),
    ),
    "an address that nobody opens": (
        "no node has opened it",
        "torchrun --nnodes=1:3 --rdzv_backend=c10d --rdzv_endpoint=192.0.0.1:1234 train.py\n" + timed_out("192.0.0.1") + tb("/opt/env/bin/torchrun <module>", TO_STORE, error=STORE_FAILED),
    ),
    "a rendezvous and a port": (
        "had found its port 29400 taken",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to 0.0.0.0:29400 (errno: 98 - Address already in use).\n" + CLOSED,
    ),
    "Unsloth's own engine": (
        "Unsloth has loaded vLLM in this very process",
        "Unsloth: vLLM loading unsloth/qwen2.5-3b with actual GPU utilization = 49.4%\n" + "Server is not up yet. Retrying in 2.0 seconds...\n" * 3 + NO_SERVER,
    ),
    "a group of a library": (
        "a library makes a process group of its own",
        "".join(f"(Actor pid=30) {line}\n" for line in tb("/opt/prismatic/overwatch/overwatch.py __init__ | self.distributed_state = PartialState()", f"{SITE}/torch/distributed/rendezvous.py _create_c10d_store | return TCPStore(", error=IN_USE).splitlines()),
    ),
    "TRL on a TPU": (
        'pip install "trl==0.21.0"',
        tb(TRAINER, f"{SITE}/trl/trainer/sft_trainer.py training_step | with self.maybe_activation_offload_context:", error=NO_XLA),
    ),
    "checkpointing on a TPU": (
        "Gradient checkpointing asks for torch.xla",
        tb(TRAINER, f"{SITE}/transformers/models/gemma/modeling_gemma.py forward", f"{SITE}/torch/utils/checkpoint.py _get_device_module | device_module = getattr(torch, device)", error=NO_XLA),
    ),
    "oneCCL's bindings": (
        "libintel-ext-pt-gpu.so",
        f"{SITE}/oneccl_bindings_for_pytorch/__init__.py:25: UserWarning: Warning: Cannot load xpu CCL. CCL doesn't work for XPU device due to libintel-ext-pt-gpu.so: cannot open shared object file: No such file or directory\n"
        + tb(ME, f"{SITE}/torch/distributed/distributed_c10d.py all_gather_into_tensor", error=NO_BACKEND),
    ),
    "an import that crashes": ("CANN and torch_npu do not go together", "$ python3 -c 'import torch_npu'\nSegmentation fault (core dumped)\n"),
    "a library for the linker": (
        "the linker does not find libcurand",
        "Building extension module cpu_adam...\n/usr/bin/ld: cannot find -lcurand\ncollect2: error: ld returned 1 exit status\nninja: build stopped: subcommand failed.\nRuntimeError: Error building extension 'cpu_adam'\n",
    ),
    "the same of another extension": (
        "The linker does not find libcublas",
        "/usr/bin/ld: cannot find -lcublas: No such file or directory\ncollect2: error: ld returned 1 exit status\nerror: command '/usr/bin/g++' failed with exit code 1\n",
    ),
    "no platform": ("docker restart", tb(f"{SITE}/vllm/config.py __post_init__", error="RuntimeError: Failed to infer device type")),
}  # fmt: skip

OTHERS = {
    "workers of Ray that have come": (
        "Nothing comes after Ray's start",
        RAY_STARTED + "(TaskRunner pid=88110) Size of train dataloader: 29\n" + TIME_LIMIT,
    ),
    "a job that was not waiting in an engine": (
        "with an inference engine stands still",
        "+ python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=4\n" + RAY_STARTED + TIME_LIMIT,
    ),
    "one node at its own address": (
        "which is each node itself",
        launch("127.0.0.1", 1) + timed_out("127.0.0.1") + tb("/opt/env/bin/torchrun <module>", TO_STORE, error=STORE_FAILED),
    ),
    "another error on two nodes": (
        "which is each node itself",
        launch("localhost", 2) + tb(ME, error="FileNotFoundError: [Errno 2] No such file or directory: '/data/train.jsonl'"),
    ),
    "a store that was lost in the middle": (
        "no node has opened it",
        "{'loss': 1.2, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        + tb("/opt/env/bin/torchrun <module>", f"{SITE}/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py _call_store", error=STORE_FAILED),
    ),
    "a rendezvous without a word about its port": ("found its port", CLOSED),
    "a server that was not started": ("Unsloth", NO_SERVER),
    "a launch without a library": ("process group of its own", tb(ME, f"{SITE}/accelerate/state.py __init__", error=IN_USE)),
    "a device without a backend": ("oneCCL", tb(ME, f"{SITE}/torch/distributed/distributed_c10d.py all_reduce", error=NO_BACKEND)),
    "another crash": ("CANN", "torch 2.6.0+cu124, CUDA:0\nFatal Python error: Segmentation fault\nSegmentation fault (core dumped)\n"),
    "a GPU of NVIDIA": ("An AMD GPU number", tb(ME, error="RuntimeError: CUDA error: invalid device ordinal")),
    "CUDA's own library": ("toolkit of torch's version", "/usr/bin/ld: cannot find -lcuda: No such file or directory\nsubprocess.CalledProcessError: Command '['/usr/bin/gcc', 'main.c', '-lcuda']' returned non-zero exit status 1.\n"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    assert words in led(log)


@pytest.mark.parametrize(("words", "log"), OTHERS.values(), ids=OTHERS.keys())
def test_what_is_not_said(words: str, log: str) -> None:
    assert words not in led(log)


def test_a_message_s_prefix_is_not_that_of_its_frames() -> None:
    log = "[2025-02-13 03:11:58 TP0] Scheduler hit an exception: " + tb(
        ME, error="ValueError: a message of no known failure"
    )
    assert str(explain_text(log + "Killed\n").error.text).startswith("ValueError: a message")
