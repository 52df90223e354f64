"""Small computations on the GPUs, each in a process of its own: prints one JSON line for each.

Runs in the interpreter that trains (its source is handed over, see `gpu`), so it uses the standard library and
torch, and the syntax stays at Python 3.9. torch is imported once; every computation is a forked child, which is
sound because the parent never touches CUDA. A child that dies of a signal is a result like any other.

The three products of the H20 are those of the reports: the integer division by zero in cuBLASLt depends on shape
and data type, so only these say something.
"""

import json
import os
import signal
import sys
import time

PATIENCE = 60.0
"""Seconds for one probe, most of them to start CUDA. A copy between two cards can hang for good."""

MOST_PAIRS = 16
"""Peer-to-peer copies tried: all pairs of four cards, or a ring over more."""

TOLERANCE = 0.05
"""Error of a half-precision product of 512 terms, relative to its largest element. Rounding the factors makes 0.004 in
bfloat16 and 0.0007 in float16 (measured on a CPU, 20 seeds)."""


def probes(torch):
    """The computations by name; which of them apply here."""
    count = torch.cuda.device_count()
    capabilities = [torch.cuda.get_device_capability(index)[0] for index in range(count)]
    halves = (["bfloat16"] if min(capabilities) >= 8 else []) + ["float16"]
    wanted = []
    for dtype in halves:
        wanted.append(("product " + dtype, lambda dtype=dtype: product(torch, dtype)))
    for name, dtype, shape in (
        ("H20 product bfloat16 (2,1024)x(1024,18432)", "bfloat16", (2, 1024, 18432)),
        ("H20 product bfloat16 (8,1024)x(1024,4096)", "bfloat16", (8, 1024, 4096)),
        ("H20 product float16 (64,14688)x(14688,1536)", "float16", (64, 14688, 1536)),
    ):
        if dtype in halves:
            wanted.append((name, lambda dtype=dtype, shape=shape: linear(torch, dtype, *shape)))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    if len(pairs) > MOST_PAIRS:
        pairs = [(a, (a + 1) % count) for a in range(count)][:MOST_PAIRS]
    for a, b in pairs:
        wanted.append((f"copy cuda:{a} to cuda:{b}", lambda a=a, b=b: copy(torch, a, b)))
    return wanted


def product(torch, dtype):
    torch.manual_seed(0)
    left, right = torch.randn(64, 512), torch.randn(512, 64)
    kind = getattr(torch, dtype)
    found = (left.cuda().to(kind) @ right.cuda().to(kind)).float().cpu()
    error = float((found - left @ right).abs().max() / (left @ right).abs().max())
    if not error < TOLERANCE:  # NaN as well
        return f"the result is wrong: relative error {error:.3g}"
    return None


def linear(torch, dtype, rows, inner, columns):
    layer = torch.nn.Linear(inner, columns, device="cuda", dtype=getattr(torch, dtype))
    with torch.no_grad():
        found = layer(torch.ones(rows, inner, device="cuda", dtype=getattr(torch, dtype)))
        torch.cuda.synchronize()
    return None if bool(torch.isfinite(found).all()) else "the result is not finite"


def copy(torch, source, target):
    sent = torch.arange(1 << 20, device=f"cuda:{source}")
    arrived = sent.to(f"cuda:{target}")
    torch.cuda.synchronize(target)
    return None if torch.equal(sent.cpu(), arrived.cpu()) else "what arrived is not what was sent"


def in_a_child(compute):
    """Runs it; what went wrong, or None: `signal`, `error` and `seconds` of the result."""
    started = time.time()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            said = compute()
        except Exception as error:
            said = type(error).__name__ + ": " + str(error).strip().split("\n")[0]
        os.write(writing, (said or "").encode()[:4000])
        os._exit(0)
    os.close(writing)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.time() - started > PATIENCE:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reading)
            return {"error": f"no answer within {PATIENCE:.0f} s", "seconds": round(time.time() - started, 2)}
        time.sleep(0.02)
    with os.fdopen(reading) as answer:
        said = answer.read()
    result = {"seconds": round(time.time() - started, 2)}
    if os.WIFSIGNALED(status):
        result["signal"] = signal.Signals(os.WTERMSIG(status)).name
    elif said:
        result["error"] = said
    return result


def main():
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # counting the cards must not start CUDA in this process
    import torch

    def listed():
        return [name for name, _ in probes(torch)] if torch.cuda.is_available() else []

    # Capabilities are asked for in a child: that starts CUDA, and then no fork of this process is sound.
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writing, json.dumps(listed()).encode())
        except Exception as error:
            os.write(writing, json.dumps({"error": str(error).strip().split("\n")[0]}).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        names = answer.read()
    os.waitpid(pid, 0)
    names = json.loads(names) if names else {"error": "CUDA does not start"}
    if isinstance(names, dict):
        print(json.dumps({"probe": "start CUDA", "error": names["error"]}))
        return
    for name in names:

        def compute(name=name):
            return dict(probes(torch))[name]()

        print(json.dumps({"probe": name, **in_a_child(compute)}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
