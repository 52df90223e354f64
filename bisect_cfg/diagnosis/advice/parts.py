"""What to do first, by the part of a run in which it failed and the kind of the exception, where nothing says more."""

from __future__ import annotations

from bisect_cfg.diagnosis.advice.reading import LONGEST_QUOTE, Advice, RaisedError, phase_of, place_of

FIRST = {
    "data": "the data alone: run its preparation without the trainer, with num_proc=1 and dataloader_num_workers=0, "
    "and print the row at which it stops",
    "loading": "the model alone: load it in a fresh Python with the same arguments; are all files there and complete, "
    "and is the library new enough for the model?",
    "start": "the start alone: one process first, then two; NCCL_DEBUG=INFO, and RANK, WORLD_SIZE and MASTER_ADDR as "
    "each process sees them",
    "generation": "generation alone: the same prompt through model.generate, or the engine without a trainer, "
    "with a short completion",
    "sync": "the weights' way to the engine: the same model, dtype and vocabulary on both sides, no quantization, and "
    "versions of trainer and engine that are made for each other",
    "reward": "the reward function alone: call it by hand with a few completions, an empty one among them",
    "logprobs": "that pass alone: a micro batch of 1 and short answers; the same model without the engine",
    "forward": "one step alone: batch size 1, attn_implementation eager, CUDA_LAUNCH_BLOCKING=1",
    "backward": "one step alone: batch size 1, gradient checkpointing off, CUDA_LAUNCH_BLOCKING=1",
    "optimizer": 'the optimizer alone: optim="adamw_torch" without DeepSpeed or FSDP for a few steps',
    "evaluation": 'evaluation alone: eval_strategy="no" must train; then compute_metrics by hand, with one batch',
    "saving": "saving alone: save_steps=1; free space and rights of output_dir, and which rank writes",
}
"""For each of `reading.PHASES`."""

KINDS = {
    "KeyError": "A key is not there: mostly a column of the data, a field of a configuration, or the name of a weight.",
    "AttributeError": "Something has no such attribute: it is None, of another type or of another version.",
    "TypeError": "A value is of another type than expected, or a function is called with arguments it does not take.",
    "IndexError": "An index is out of range: something is shorter than expected, often empty.",
    "ValueError": "A value was refused.",
    "NotImplementedError": "What was asked for is not implemented.",
    "OSError": "A file, a device or a connection could not be used.",
    "TimeoutError": "Something did not answer in time: a process, a service or a lock.",
    "RuntimeError": "An operation failed.",
}


def first_step(read: RaisedError) -> str:
    """How to make the part small in which it failed; "" if the frames do not tell which."""
    return FIRST.get(phase_of(read.frames), "")


def by_part(read: RaisedError) -> Advice | None:
    """The exception's kind and the part of the run; None where neither says anything."""
    phase = phase_of(read.frames)
    if not phase and not read.cut:
        return None
    frame = read.caller
    where = f" in {NAMES.get(phase, phase)}" if phase else ""
    where += f", below {place_of(frame)}" if frame else ""
    message = " ".join(read.message.split())[:LONGEST_QUOTE].rstrip(".")
    said = f" What it says: “{message}”." if message else ""
    says = f"{KINDS.get(read.type, 'An exception of its own kind.')} It was raised{where}.{said}"
    steps = [f"{read.library} raised it: its documentation or issues, searched for the message"] if read.library else []
    if read.cut:
        steps.append("the frames below that line are not in the log: the whole traceback shows whose line raised it")
    return Advice("library", says, tuple(steps), place_of(frame))


NAMES = {
    "start": "the start of the processes", "sync": "the update of the engine's weights", "reward": "the reward",
    "logprobs": "the pass for log-probabilities",
    "forward": "the forward pass", "backward": "the backward pass", "data": "the preparation of data",
    "optimizer": "the optimizer's step", "saving": "saving", "loading": "loading",
}  # fmt: skip
"""The parts of a run as a sentence has them."""
