"""Numbers that a message compares: one that is no multiple of another, or more GPUs than there are."""

from __future__ import annotations

import math
import re

from bisect_cfg.diagnosis.advice.reading import LONGEST_QUOTE, Advice, RaisedError, place_of

_DIVIDES = re.compile(
    r"(?P<left>[^.;]{0,160}?)\b(?:is|are|must be|should be|has to be|needs? to be|to be)? ?(?:not )?(?:evenly )?"
    r"(?:divisible by|(?:a |an integer )?multiples? of)\b(?P<right>[^.;]{0,160})",
    re.DOTALL,
)
_NUMBERS = re.compile(r"(?<![A-Za-z_])\d+(?:[^\d\n]{0,24}?[*x×][^\d\n]{0,24}?\d+)*")
_GOT = re.compile(r"\b(?:got|found|is|was|were|given)\b(?P<numbers>[^.;]{0,60})")
_GPUS = re.compile(r"GPU|gpu|CUDA device|cuda device|\bdevices?\b|accelerator", re.IGNORECASE)
_TOO_FEW = re.compile(
    r"(?:request\w*|desired|required?s?|needs?|asks? for|larger|greater|more|exceeds?|not enough|fewer|less)\b.{0,160}?"
    r"\b(?:available|only has|only have|visible|found|detected|there (?:is|are)|[io]n this node|than)\b",
    re.IGNORECASE | re.DOTALL,
)
SUGGESTED = 6
"""Divisors that are listed."""


def indivisible(read: RaisedError) -> Advice | None:
    """One number is no multiple of another."""
    found = _DIVIDES.search(read.message)
    left = _product(found["left"], last=True) if found else None
    got = _GOT.search(found["right"]) if found else None
    given = [int(one) for one in re.findall(r"(?<!\w)\d+", got["numbers"])] if got else []
    right = _product(found["right"][: got.start()] if got else found["right"]) if found else None
    if not left and not right and len(given) == 2:
        left, right = given  # "x must be divisible by y, got 10 and 4"
    elif right and not left:
        left = next((one for one in given if one % right), None)
    if not found or not left or not right or left % right == 0:
        return None
    below, above = left // right * right, -(-left // right) * right
    fitting = [str(one) for one in range(1, left + 1) if left % one == 0][-SUGGESTED:]
    says = f"{left} is not a multiple of {right}: “{' '.join(read.message.split())[:LONGEST_QUOTE]}”."
    steps = (
        f"either the first number becomes a multiple of {right} ({f'{below} or ' if below else ''}{above}), or the "
        f"second one a divisor of {left} ({', '.join(fitting)})",
        "what makes the first: batch size per device x processes x accumulation for a batch, nodes x GPUs for a world "
        "size; the second: num_generations, mini batches, tensor, pipeline and sequence parallel sizes",
    )
    return Advice("setting", says, steps, place_of(read.last))


def _product(text: str, last: bool = False) -> int | None:
    """The first (or last) number of a text, or the product that is written there."""
    groups = _NUMBERS.findall(text)
    numbers = [int(one) for one in re.findall(r"\d+", groups[-1 if last else 0])] if groups else []
    return math.prod(numbers) or None if numbers else None


def too_few_gpus(read: RaisedError) -> Advice | None:
    """More GPUs are asked for than the process sees."""
    if not (_GPUS.search(read.message) and _TOO_FEW.search(read.message) and re.search(r"\d", read.message)):
        return None
    if re.search(r"memory|capability|GiB|MiB|dtype|package version|Detected version", read.message):
        return None
    said = " ".join(read.message.split())[:LONGEST_QUOTE]
    says = f"More GPUs are asked for than are in sight, by the message: “{said}”."
    steps = (
        "in the same job and container: echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L; "
        'python -c "import torch; print(torch.cuda.device_count())"',
        "Slurm: --gpus-per-task (and --gpu-bind) gives each task one GPU only; --gpus-per-node=N or --gres=gpu:N lets "
        "all tasks of the node see all of them",
        "or ask for what is there: devices, nproc_per_node, n_gpus_per_node, tensor_parallel_size; over several nodes, "
        "see that they have all joined (ray status) and that nnodes is set",
    )
    return Advice("setting", says, steps, place_of(read.last))
