"""One sentence for each kind of failure, and for where runs begin and fail; the same on every screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bisect_cfg.common.cells import SUFFIX
from bisect_cfg.common.configuration import present
from bisect_cfg.common.failures.health import RULES
from bisect_cfg.probe.protocol import Origin as Resumption
from bisect_cfg.remedy.terms import Health
from bisect_cfg.report.answer import Origin
from bisect_cfg.report.contrast import Contrast
from bisect_cfg.runner.verdict import REFUSED, Verdict
from bisect_cfg.runner.where import Where

SIGNALS = {
    "SIGFPE": "a floating point exception",
    "SIGSEGV": "a segmentation fault",
    "SIGABRT": "an abort",
    "SIGKILL": "killed from outside, usually because memory ran out",
    "SIGBUS": "a bus error",
    "SIGILL": "an illegal instruction",
    "SIGTERM": "terminated from outside",
}
"""What the signals mean, in the words a shell would use."""

VERBS = {
    **{rule.kind: rule.words for rule in RULES if rule.failure},
    "hang": "hangs",
    "out-of-memory": "runs out of memory",
    "unwatched": "is stopped",
    REFUSED: "cannot go on",
}
"""What runs do that end in a failure of these kinds."""


def failure(shown: Verdict, step: int | None = None, placed: bool = True) -> str:
    """One sentence without its subject and its dot on how a run fails: ``dies at step 3 with ValueError: no``.

    Args:
        shown: by the run; it is a failure.
        step: at which another run with the same failure fails; what came after it in this one is left out. None: of
            this run.
        placed: whether the place belongs to it, as far as that is known.
    """
    signature = present(shown.signature)
    seen, kind, name = shown.seen, signature.kind, signature.name
    said = shown.message.rstrip(".")
    other = step is not None
    step = step if other else shown.step_of_training
    at = "" if seen.rank is None else f" on rank {seen.rank}"
    if seen.counted:
        at += f" at step {step}" if step else " before the first step of training"
    place = f", in {seen.place}" if seen.place and placed else ""
    if kind == "signal":
        return f"dies with {name}{f' ({SIGNALS[name]})' if name in SIGNALS else ''}{at}{place}"
    if kind == "exit":
        ends = f"ends with exit status {name}{at}" if name != "0" else f"ends in the middle of training{at}"
        return ends + (f": {said}" if signature.message else "")
    if kind == "non-finite" and name == "parameters":
        then = f", then dies with {seen.after.rstrip('.')}" if seen.after and not other else ""
        return f"gets {said}{at}{then}"
    if kind in ("no-gradient", "dead-reward"):
        return f"{VERBS[kind]}: {said}"
    if kind in VERBS:
        return f"{VERBS[kind]}{at}: {said}{place}" + (f"; {seen.after}" if seen.after else "")
    if kind in ("no-steps", "no-training"):
        return "ends before the first step of training"
    return f"dies{at} with {said or name}"


def since(origin: Resumption) -> str:
    """Where trials begin, to follow "from" or "shown"."""
    return since_step(Origin("data" if origin.checkpoint is None else "state", origin.step))


def unhealthy(health: Health) -> str:
    """Why a run that looked for safe values is not healthy; "" if it is."""
    return failure(health.died) if health.died is not None else health.why


def place_lines(place: Where) -> list[str]:
    """Where it fails, in one to five lines."""
    if not place.same_failure:
        return [place.note]
    inside = f"{place.operation} in {place.module}" if place.operation and place.module else ""
    seen = (
        inside or place.operation or place.module,
        *(one for one in (place.line, place.text) if one != place.operation),
    )
    lines = [one for one in seen if one]
    if place.step:
        lines[:1] = [": ".join([f"step {place.step}", *lines[:1]])]
    own = list(_called_by_libraries(place.frames))
    if own and own[-1] != place.line:
        lines.append(f"called from {own[-1]}")
    if place.native:
        lines.append(f"native: {place.native}")
    return lines


def _called_by_libraries(frames: Sequence[str]) -> Iterator[str]:
    """The frames of the user's own code, but for those that only start the training: a notebook's cells, and files that
    are named without a folder (`runner.where.short`) where a library has called them."""
    in_library = False
    for frame in frames:
        path = frame.partition(":")[0]
        if f"{SUFFIX}, cell" in frame or (in_library and not path.startswith("<") and "/" not in path):
            yield frame
        in_library = in_library or "/" in path


def contrast_lines(found: Contrast) -> list[str]:
    """What only failing runs say, in one to four lines."""
    one = found.metric
    lines = [f"failing runs print: {line}" for line in found.lines]
    if one is None:
        return lines
    spread = f"{one.lowest:.3g} to {one.highest:.3g}" if one.lowest != one.highest else f"{one.lowest:.3g}"
    value = one.value if isinstance(one.value, str) else f"{one.value:.3g}"
    return [f"failing runs have {one.metric} {value} at step {one.step}; passing ones {spread}", *lines]


def since_step(origin: Origin) -> str:
    """From where on something was shown."""
    if origin.kind == "data":
        return f"with the weights of step 0 and the data from step {origin.step} of your run on"
    return f"from step {origin.step} of your run on"
