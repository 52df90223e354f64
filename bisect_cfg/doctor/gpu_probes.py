"""Small computations on the GPUs, each in a process of its own: prints one JSON line for each.

Runs in the interpreter that trains (its source is handed over, see `gpu`), so it uses the standard library and
torch, and the syntax stays at Python 3.9. torch is imported once; every computation is a forked child, which is
sound because the parent never touches CUDA. A child that dies of a signal is a result like any other.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

PATIENCE = 60.0
"""Seconds for one probe, most of them to start CUDA. A copy between two cards can hang for good."""

MOST_PAIRS = 16
"""Peer-to-peer copies tried: all pairs of four cards, or a ring over more."""

TOLERANCE = 0.05
"""Error of a half-precision product of 512 terms, relative to its largest element. Rounding the factors makes 0.004 in
bfloat16 and 0.0007 in float16 (measured on a CPU, 20 seeds)."""

H20_PRODUCTS = (("bfloat16", 2, 1024, 18432), ("bfloat16", 8, 1024, 4096), ("float16", 64, 14688, 1536))
"""Those of the reports: the integer division by zero in cuBLASLt depends on shape and data type, so only these say
something."""


def probes(torch: Any) -> dict[str, Callable[[], str | None]]:
    """The computations that apply here, by name; each answers with what is wrong, or None."""
    count = torch.cuda.device_count()
    oldest = min(torch.cuda.get_device_capability(index)[0] for index in range(count))
    halves = ["bfloat16", "float16"] if oldest >= 8 else ["float16"]
    made: dict[str, Callable[[], str | None]] = {"product " + dtype: partial(product, torch, dtype) for dtype in halves}
    for dtype, rows, inner, columns in H20_PRODUCTS:
        if dtype in halves:
            name = f"H20 product {dtype} ({rows},{inner})x({inner},{columns})"
            made[name] = partial(linear, torch, dtype, rows, inner, columns)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    if len(pairs) > MOST_PAIRS:
        pairs = [(a, (a + 1) % count) for a in range(count)][:MOST_PAIRS]
    for a, b in pairs:
        made[f"copy cuda:{a} to cuda:{b}"] = partial(copy, torch, a, b)
    return made


def product(torch: Any, dtype: str) -> str | None:
    torch.manual_seed(0)
    left, right = torch.randn(64, 512), torch.randn(512, 64)
    kind = getattr(torch, dtype)
    found = (left.cuda().to(kind) @ right.cuda().to(kind)).float().cpu()
    error = float((found - left @ right).abs().max() / (left @ right).abs().max())
    # NaN is larger than nothing, and wrong as well.
    return None if error < TOLERANCE else f"the result is wrong: relative error {error:.3g}"


def linear(torch: Any, dtype: str, rows: int, inner: int, columns: int) -> str | None:
    layer = torch.nn.Linear(inner, columns, device="cuda", dtype=getattr(torch, dtype))
    with torch.no_grad():
        found = layer(torch.ones(rows, inner, device="cuda", dtype=getattr(torch, dtype)))
        torch.cuda.synchronize()
    return None if bool(torch.isfinite(found).all()) else "the result is not finite"


def copy(torch: Any, source: int, target: int) -> str | None:
    sent = torch.arange(1 << 20, device=f"cuda:{source}")
    arrived = sent.to(f"cuda:{target}")
    torch.cuda.synchronize(target)
    return None if torch.equal(sent.cpu(), arrived.cpu()) else "what arrived is not what was sent"


def in_a_child(compute: Callable[..., object], *given: object) -> dict[str, Any]:
    """What it answers in a forked child: `answer`, or `signal` or `error` if it came to none; and `seconds`."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def answer() -> None:
        try:
            sender.send({"answer": compute(*given)})
        except Exception as error:
            sender.send({"error": (type(error).__name__ + ": " + str(error).strip().split("\n")[0])[:4000]})

    started = time.time()
    child = multiprocessing.get_context("fork").Process(target=answer)
    child.start()
    sender.close()
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        result = {"error": f"no answer within {PATIENCE:.0f} s"}
    elif child.exitcode < 0:
        result = {"signal": signal.Signals(-child.exitcode).name}
    elif child.exitcode > 0:
        result = {"error": f"ended with status {child.exitcode}"}
    else:
        result = receiver.recv()
    return {"seconds": round(time.time() - started, 2), **result}


def main() -> None:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # counting the cards must not start CUDA in this process
    import torch

    # Capabilities are asked for in a child: that starts CUDA, and then no fork of this process is sound.
    listed = in_a_child(lambda: list(probes(torch)) if torch.cuda.is_available() else [])
    if "answer" not in listed:
        print(json.dumps({"probe": "start CUDA", **listed}))
    for name in listed.get("answer", []):
        result = in_a_child(lambda which: probes(torch)[which](), name)
        wrong = result.pop("answer", None)
        print(json.dumps({"probe": name, **result, **({"error": wrong} if wrong else {})}), flush=True)


if __name__ == "__main__":
    main()
