"""What an entry's words do not warrant is not claimed: logs that have its clue, and another cause than it names."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import explain_text

SITE = "/opt/env/lib/python3.11/site-packages"
OTHER = "ValueError: The sky is of the wrong colour today"


def raised(error: str, *frames: str) -> str:
    """A traceback of a script; a frame is `file function|source`, S the folder of packages."""
    lines = []
    for frame in ("/home/me/train.py main|run()", *frames):
        place, _, source = frame.partition("|")
        file, _, function = place.partition(" ")
        lines.append(f'  File "{file.replace("S/", SITE + "/")}", line 7, in {function or "<module>"}\n    {source}\n')
    return f"Traceback (most recent call last):\n{''.join(lines)}{error}\n"


def module(name: str) -> str:
    return raised(f"ModuleNotFoundError: No module named '{name}'", "S/a/b.py <module>|import it")


LEADS = {
    "Xid of a kernel": (
        "NVRM: Xid (PCI:0000:81:00): 31, pid=9, name=python3, MMU Fault\n",
        "xid-of-a-kernel",
        "Xid 31",
    ),
    "Xid of an old driver": ("NVRM: Xid (0000:01:00): 13, 0005 00000000 0000502d\n", "xid-of-a-kernel", "Xid 13"),
    "Xid of the firmware": ("NVRM: Xid (PCI:0000:81:00): 119, pid=9, Timeout of GSP\n", "xid-of-the-firmware", "GSP"),
    "Xid that follows": ("NVRM: Xid (PCI:0000:81:00): 45, pid=9, name=python3, Ch 10\n", "xid-other", "Xid 45"),
    "Xid of the card": ("NVRM: Xid (PCI:0000:81:00): 79, pid=9, GPU has fallen off the bus.\n", "ecc-error", "bus"),
    "launch failure": (raised("RuntimeError: CUDA error: unspecified launch failure"), "launch-failure", "kernel"),
    "own module": (module("utils"), "module-of-the-project", "project"),
    "part of Python": (module("_lzma"), "python-built-without", "standard library"),
    "distutils": (module("distutils"), "setuptools-module-missing", "distutils"),
    "downloaded code": (module("transformers_modules"), "downloaded-module-missing", "downloaded"),
    "uvloop on Linux": (module("uvloop"), "missing-module", "not installed"),
    "flash-attn without a GPU": (
        raised(
            "ValueError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: "
            "Flash Attention 2 is not available on CPU. Please make sure torch can access a CUDA device."
        ),
        "flash-attn-unusable",
        "sees no GPU",
    ),
    "inotify": (raised("OSError: [Errno 28] inotify watch limit reached"), "inotify-limit", "not the disk"),
    "semaphore": (
        raised("OSError: [Errno 28] No space left on device", "S/x.py f|self._semlock = _multiprocessing.SemLock("),
        "shared-memory-of-the-host",
        "/dev/shm",
    ),
    "file cut short": (
        raised("RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 5887295680 vs 5887295576"),
        "file-not-written",
        "most often",
    ),
    "GPU full at the start": (
        raised("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 2: out of memory"),
        "no-cuda-device",
        "no memory",
    ),
    "closed client": (
        raised("RuntimeError: Cannot send a request, as the client has been closed.", "S/openai/x.py request|call()"),
        "http-client-closed",
        "closed",
    ),
    "offline on purpose": (
        raised(
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/x: "
            "offline mode is enabled."
        ),
        "hub-unreachable",
        "Offline mode is on",
    ),
    "403 of the storage": (
        raised(
            "huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: "
            "https://huggingface.co/datasets/a/b.git/info/lfs/objects/batch\nPrivate repository storage limit reached"
        ),
        "hub-refused",
        "used up",
    ),
    "token expired": (
        raised(
            "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: "
            "https://huggingface.co/api/whoami-v2\nInvalid credentials in Authorization header"
        ),
        "hub-access",
        "token",
    ),
    "connection of a reward": (
        raised("requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(0 bytes read)')"),
        "download-broke",
        "broke off",
    ),
    "nvcc for apex": (
        raised("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
        "cuda-toolkit",
        "toolkit",
    ),
    "ninja failed": (
        raised("subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."),
        "compiler-missing",
        "first error above",
    ),
    "static TLS": (
        raised("ImportError: /lib/libgomp.so.1: cannot allocate memory in static TLS block"),
        "shared-library-missing",
        "too late",
    ),
    "class of another script": (
        raised("AttributeError: Can't get attribute 'Config' on <module '__main__' from 'eval.py'>"),
        "windows-spawn",
        "Config",
    ),
    "half precision on the GPU": (
        raised("RuntimeError: \"geqrf_cuda\" not implemented for 'Half'"),
        "kernel-without-half",
        "geqrf_cuda",
    ),
    "model left on the CPU": (
        raised("RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'"),
        "mac-mixed-precision",
        "on the CPU",
    ),
    "inputs left on the CPU": (
        raised("RuntimeError: Placeholder storage has not been allocated on MPS device!"),
        "mps-limits",
        "left on the CPU",
    ),
    "key the code reads": (
        raised("omegaconf.errors.ConfigAttributeError: Missing key use_kl_in_reward"),
        "command-line",
        "use_kl_in_reward",
    ),
    "read-only": (raised("OSError: [Errno 30] Read-only file system: '/in/x'"), "permission-denied", "reading only"),
    "too new a toolkit": ("nvcc fatal   : Unsupported gpu architecture 'compute_70'\n", "nvcc-old-for-gpu", "any more"),
    "too new a Python": (
        "ERROR: Package 'x' requires a different Python: 3.13.0 not in '<3.13,>=3.9'\n",
        "python-not-in-range",
        "<3.13",
    ),
    "SQLite without a folder": (
        raised("sqlite3.OperationalError: unable to open database file"),
        "database-locked",
        "cannot open",
    ),
    "checkpointing without ZeRO": (
        raised(
            "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: A different number of tensors was saved "
            "during the original forward and recomputation.",
            "S/transformers/models/mixtral/x.py forward|call()",
        ),
        "checkpointing-differs",
        "repeats",
    ),
    "a frozen adapter": (
        raised(
            "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
            "S/peft/peft_model.py forward|call()",
        ),
        "checkpointing-peft",
        "No weight",
    ),
    "engines and processes": (
        raised("ValueError: vllm_tensor_parallel_size (4) must divide world size (6) evenly."),
        "vllm-heads",
        "processes",
    ),
    "cuBLAS without memory": (
        raised("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        "library-without-memory",
        "most often",
    ),
    "killed from outside": (
        "step 1\n/tmp/run.sh: line 3: 1234 Killed      python train.py\n",
        "host-out-of-memory",
        "SIGKILL",
    ),
    "index in a gather": (
        raised("RuntimeError: index 151936 is out of bounds for dimension 2 with size 151936"),
        "index-out-of-range",
        "gather",
    ),
    "storage says no": (
        raised(
            "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation"
        ),
        "storage-credentials",
        "refuses this operation",
    ),
    "protobuf too old": (
        raised(
            "google.protobuf.runtime_version.VersionError: Detected incompatible Protobuf Gencode/Runtime versions "
            "when loading x.proto: gencode 6.3.1 runtime 5.2.0. Runtime version cannot be older than the linked gencode"
        ),
        "protobuf-version",
        "older",
    ),
    "a kind of value": (
        raised("TypeError: Object of type datetime is not JSON serializable"),
        "not-json-serializable",
        "datetime",
    ),
    "recorded otherwise": (
        raised("datasets.exceptions.ExpectedMoreSplitsError: {'validation'}"),
        "data-set-not-as-recorded",
        "recorded",
    ),
    "no Parquet file": (
        raised(
            "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or this "
            "is not a parquet file."
        ),
        "data-set-types",
        "broken",
    ),
    "compressed": (
        raised("UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte"),
        "text-encoding",
        "no text",
    ),
    "no adapter": (raised("ValueError: No adapter loaded. Please load an adapter first."), "adapter-none", "has none"),
    "tensor on the CPU": (
        raised("RuntimeError: No backend type associated with device type cpu"),
        "no-nccl",
        "on the CPU",
    ),
    "old driver for an image": (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver\n",
        "container-without-gpu",
        "newer CUDA",
    ),
    "limits of Slurm": (
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n",
        "slurm-request",
        "limits",
    ),
    "no compiler on Windows": (
        "error: Microsoft Visual C++ 14.0 or greater is required.\n",
        "windows-limits",
        "compiler",
    ),
    "two kinds of drivers": (
        raised("RuntimeError: 2 active drivers ([<class 'nv'>, <class 'amd'>]). There should only be one."),
        "triton-no-driver",
        "several",
    ),
    "no group": (
        raised("AssertionError: data parallel group is not initialized"),
        "process-group-twice",
        "were not set up",
    ),
}


@pytest.mark.parametrize(("log", "entry", "words"), LEADS.values(), ids=LEADS)
def test_what_the_log_shows_is_said(log: str, entry: str, words: str) -> None:
    first = explain_text(log).matches[0]
    assert not first.doubt and first.entry.id == entry
    assert words in first.title


LEFT = {
    "an attribute of one's own": (
        raised("AttributeError: 'NoneType' object has no attribute 'convert_to_fp32'"),
        "bitsandbytes-setup",
    ),
    "a lock of one's own": (
        raised(
            "BlockingIOError: [Errno 11] Resource temporarily unavailable", "/home/me/x.py f|fcntl.flock(f, LOCK_EX)"
        ),
        "too-many-files",
    ),
    "a message of another": (raised("TypeError: not a string", "S/foo/parse.py parse|call()"), "tokenizer-unreadable"),
    "an answer of a service": (
        raised("KeyError: 'text'", "/home/me/x.py f|return r.json()['text']"),
        "data-set-column",
    ),
    "a metric of one's own": (
        raised("KeyError: 'eval_accuracy'", "/home/me/x.py f|row['eval_accuracy']"),
        "best-metric-missing",
    ),
    "None in foreign code": (
        raised(
            "AttributeError: 'NoneType' object has no attribute 'shape'",
            "/root/.cache/huggingface/modules/transformers_modules/org/m/modeling.py forward|x.shape",
        ),
        "remote-code-behind",
    ),
    "a limit of another service": (
        raised(
            "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://api.wandb.ai/graphql"
        ),
        "hub-rate-limit",
    ),
    "a present Python": (
        raised(
            "TypeError: unsupported operand type(s) for |: 'builtin_function_or_method' and 'NoneType'",
            "S/a.py f|x | y",
        ),
        "python-too-old",
    ),
    "LLVM without memory": ("LLVM ERROR: out of memory\nAborted (core dumped)\n", "llvm-error"),
}


@pytest.mark.parametrize(("log", "entry"), LEFT.values(), ids=LEFT)
def test_what_the_log_does_not_show_does_not_lead(log: str, entry: str) -> None:
    matches = explain_text(log).matches
    assert not matches or matches[0].doubt or matches[0].entry.id != entry


BESIDE = [
    "run.sh: line 3: nvidia-smi: command not found",
    "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)",
    "Caching is incompatible with gradient checkpointing in LlamaDecoderLayer. Setting `past_key_value=None`.",
    "boto: Unable to locate credentials",
    "INFO filelock: Waiting to acquire lock on /x.lock",
    "`trust_remote_code` is not supported anymore.",
    "UserWarning: Apex is not installed. Falling back to Torch Norm",
    "UserWarning: already found a `peft_config` attribute in the model.",
    "Input length of input_ids is 512, but `max_length` is set to 20.",
    "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
    "INFO using ProcessGroupHCCL backend",
    "WARNING torch.distributed is not initialized, assuming single process",
    "dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory",
    "mkdir -p failed for path /.config/matplotlib: [Errno 13] Permission denied: '/.config/matplotlib'",
    "429 Client Error: Too Many Requests for url: https://huggingface.co/x; retrying in 1s",
    "WARNING could not import plugin: No module named 'utils'",
]


@pytest.mark.parametrize("line", BESIDE)
def test_a_line_beside_another_error_does_not_lead(line: str) -> None:
    found = explain_text(f"{line}\n{raised(OTHER, 'S/transformers/trainer.py train|step()')}")
    assert found.error is not None and OTHER in found.error.text
    assert not found.matches or found.matches[0].doubt
