"""A traceback as an engineer reads it: its frames, whose each is, what its line reads, what its message says to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bisect_cfg.diagnosis import _faults
from bisect_cfg.diagnosis._plain_text import plain, split_prefix

LONGEST_QUOTE = 300
"""Characters of a message or a source line that are repeated."""


INNER_FRAMES = 4
"""Frames from the inside by which it is judged in which part of a run something happened."""


NAMED = 4
"""Settings that are named at most; a line with more of them is a list of all there are."""


INNER = re.compile(
    r"because of the following error[^:]*: (?P<import>.*)|an exception occurred ?: ?\(?['\"](?P<copied>.*)"
    r"|Worker failed with error ['\"](?P<worker>.*?)(?:', please check|$)"
)
"""Messages that only hand on what another error said."""


PACKAGES = {
    "trl": "TRL", "transformers": "transformers", "accelerate": "accelerate", "peft": "PEFT", "vllm": "vLLM",
    "sglang": "SGLang",
    "deepspeed": "DeepSpeed", "torch": "torch", "datasets": "datasets", "verl": "verl",
    "openrlhf": "OpenRLHF", "swift": "ms-swift",
    "llamafactory": "LLaMA-Factory", "unsloth": "unsloth", "unsloth_zoo": "unsloth_zoo", "roll": "ROLL",
    "slime": "slime",
    "megatron": "Megatron-LM", "mcore_adapter": "ROLL's mcore_adapter", "mbridge": "mbridge",
    "verifiers": "verifiers", "ray": "Ray", "open_r1": "open-r1",
    "hivemind_exp": "rl-swarm", "genrl": "rl-swarm's genrl", "liger_kernel": "liger-kernel",
    "bitsandbytes": "bitsandbytes", "xtuner": "XTuner",
    "math_verify": "math_verify", "hydra": "Hydra", "omegaconf": "OmegaConf", "trlx": "trlX",
    "axolotl": "Axolotl", "areal": "AReaL",
    "rlinf": "RLinf", "search_r1": "Search-R1", "ragen": "RAGEN", "verl_tool": "verl-tool",
    "trinity": "Trinity-RFT", "open_instruct": "open-instruct",
    "chatlearn": "ChatLearn", "oumi": "Oumi", "prime_rl": "prime-rl", "agentlightning": "agent-lightning",
    "nemo_rl": "NeMo RL", "skyrl_train": "SkyRL", "rllm": "rLLM", "torchtune": "torchtune",
    "flash_attn": "flash-attn", "qwen_vl_utils": "qwen-vl-utils",
}  # fmt: skip
"""Import names that people run from a checkout as well, as they are called."""


DISTRIBUTIONS = {
    "swift": "ms-swift", "flash_attn": "flash-attn", "liger_kernel": "liger-kernel",
    "unsloth_zoo": "unsloth_zoo", "math_verify": "math-verify",
    "skyrl_train": "skyrl", "PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn",
    "cv2": "opencv-python", "megatron": "megatron-core",
    "hivemind_exp": "rl-swarm", "huggingface_hub": "huggingface-hub", "qwen_vl_utils": "qwen-vl-utils",
    "latex2sympy2_extended": "latex2sympy2-extended",
}  # fmt: skip
"""What pip calls a package, where that is not its import name."""


NOT_ON_PYPI = {
    "roll", "slime", "open_r1", "hivemind_exp", "genrl", "rlinf", "search_r1", "ragen", "verl_tool",
    "chatlearn", "open_instruct", "prime_rl",
    "mcore_adapter", "areal", "nemo_rl", "skyrl_train", "rllm",
}  # fmt: skip
"""Packages that are run from a checkout."""


TOOLS = {
    "torch", "ray", "hydra", "datasets", "multiprocess", "numpy", "torchdata", "decorator", "tqdm", "omegaconf", "fire",
    "click", "IPython", "typer", "tensordict",
}  # fmt: skip
"""Packages that others are built on; between two others they only pass the call on."""


CLASSES = {
    "Accelerator": "accelerate", "Trainer": "transformers", "TrainingArguments": "transformers",
    "LLM": "vllm", "LLMEngine": "vllm",
    "AsyncLLMEngine": "vllm", "AsyncLLM": "vllm", "SamplingParams": "vllm", "EngineArgs": "vllm",
    "AsyncEngineArgs": "vllm", "Worker": "vllm",
    "GPUModelRunner": "vllm", "LoRARequest": "vllm", "TokensPrompt": "vllm", "Engine": "sglang",
    "ServerArgs": "sglang", "PeftModel": "peft",
    "LoraConfig": "peft", "LoraModel": "peft", "DeepSpeedEngine": "deepspeed",
    "DynamicCache": "transformers", "PretrainedConfig": "transformers",
    "PreTrainedModel": "transformers", "PreTrainedTokenizerFast": "transformers",
    "TransformerConfig": "megatron", "DTensor": "torch", "DeviceMesh": "torch",
}  # fmt: skip
"""Classes of the libraries that trainers call, and whose they are."""


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


_NOTEBOOK = re.compile(
    r"^(?:File )?(?P<file>(?:[~/.<]|[A-Za-z]:\\)[^\s:]*\.?[\w>-]*)(?::(?P<line>\d+))?,? in "
    r"(?P<function>[\w.<>]+)\("
)


_BOX = re.compile(r"^\s*(?P<file>(?:/|[A-Za-z]:\\)\S+\.pyx?):(?P<line>\d+) in (?P<function>[\w<>.]+)\s*$")


_POINTED = re.compile(r"^\s*(?:-+> ?|❱ ?)\d+[\s│|]*(?P<source>.*)$")


_CELL = re.compile(r"^(?:Cell In|Input In) ?\[\d+\], line (?P<line>\d+)|^/tmp/ipykernel_\S+ in <")


_SYMBOLS = re.compile(
    r"`{1,2}([\w.-]+)(?:=[^`]*)?`|'((?:--)?[\w.-]+)'|\"((?:--)?[\w.-]+)\""
    r"|(?<![\w`'\"/.])(--?[a-z][\w-]*[_-][\w-]+|[a-z]\w*(?:\.\w+)*_[\w.]*\w)"
)


_SAYS_THE_CURE = re.compile(
    r"\b[Pp]lease (?!see|refer|report|open an|check the stack|note)\w+|\b(?:must|should|has to"
    r"|have to|needs? to|ought to)(?: \w+)? (?:be|have|equal|match|contain|specify|use|set"
    r"|provide|divide)\b"
    r"|\b(?:is|are) (?:larger|longer|greater|smaller|shorter|less|higher|lower|more) than\b|\bnot "
    r"(?:evenly )?divisible\b|\bexceeds?\b"
    r"|(?:^|[.,;:!] )(?:[Tt]ry|[Uu]se|[Ss]et|[Cc]onsider|[Pp]ass|[Ii]nstall|[Uu]pgrade|[Dd]isable"
    r"|[Ee]nable|[Rr]educe|[Ii]ncrease|[Aa]dd|[Rr]un|[Mm]ake sure|[Ee]nsure) \S"
    r"|\b(?:you (?:can|may|need|should|must))\b|\bDid you (?:mean|forget)|\bonly (?:supports?"
    r"|supported|works?|available|allowed)\b"
    r"|\bnot (?:supported|compatible|allowed|implemented|available) (?:with|when|for|in|on|by|yet"
    r"|without|if|together)\b|\bincompatible with\b|\b(?:can ?not|can't) (?:be )?(?:used?|set"
    r"|enabled?|combined?) (?:\S+ )?(?:with|together|when|without|both)\b"
    r"|\bdo(?:es)?(?: not|n't) support\b"
    r"|\brequires?\b|\b(?:is|are) required\b|\b(?:un)?supported (?:values|options|types)\b"
    r"|\b(?:valid|available|allowed|possible|supported) (?:\w+ )?(?:values|options|keys|choices"
    r"|are)\b|\bexpected (?:one of|to be|at least|a )|\binstead\b|\bout of range\b|\bpip install\b"
    r"|\bneeds? [`'\"]|\bonly the following\b|\bmutually exclusive\b|\bnot both\b|\bat least one\b"
    r"|\bwhich is deprecated\b|\bhas been removed\b"
)


_ADDRESS_ONLY = re.compile(r"https?://\S+")
_OF_A_MOMENT = re.compile(
    r"(?:run|running|entering|call|calling|execute|type|typing|with|use|using)\W{1,3}(?:/var)?/tmp/\S"
)
"""A command in a folder that is gone by now: a library that names the program which runs as the one to call."""


WEIGHT = re.compile(
    r"(?:^|\.)(?:layers|blocks|h|experts)\.\d+\.|\.(?:weight|bias|qweight|scales|inv_freq"
    r"|weight_scale\w*)\b|base_layer|lora_[AB]"
    r"|^(?:model\.)?(?:visual|language_model|vision_tower)\.\w"
)


IN_SYNC = re.compile(
    r"load_weights|update_weight|update_params|sync_weight|_sync_(?:fsdp|peft|param|weight)"
    r"|resync|sharding_manager|broadcast_to_|_move_model_to_vllm|collective_rpc"
    r"|move_model_to|weight_sync|update_named_param|convert_\w*weight|bucket|load_dtensor|weight_loader"
)


IN_DATA = re.compile(
    r"rl_dataset|dataset|data_?load|preprocess|tokenize|collat|arrow|formatting|prepare_data"
    r"|_map_single|template|data_utils|data_source|non_tensor_batch|/data/"
)


_IN_LOADING = re.compile(
    r"load_state_dict|from_pretrained|load_checkpoint|_load_pretrained|load_model"
    r"|set_peft_model_state|resume|checkpoint_engine|load_sharded"
)


IN_REWARD = re.compile(r"reward|compute_score|judge|verifier|grader|scor(?:e|er|ing)\b|rubric|accuracy", re.IGNORECASE)


_PLACES = (
    ("while weights are handed to the inference engine", IN_SYNC),
    ("while weights are loaded", _IN_LOADING),
    ("while rewards are computed", IN_REWARD),
    ("in rotary position embedding", re.compile(r"rotary|rope|position_ids|mrope")),
    ("in attention", re.compile(r"attention|attn|sdpa|flash")),
    (
        "in the vision tower or where images are put into the prompt",
        re.compile(r"visual|vision|image|pixel|vit\b|video"),
    ),
    ("while log-probabilities are computed", re.compile(r"logp|log_prob|logits|entropy")),
    ("in the loss", re.compile(r"loss|kl_pen|advantage|masked_mean|agg_")),
    (
        "while answers are generated",
        re.compile(r"generate\b|_generate_|rollout|_sample\b|llm_engine|entrypoints/llm|inference"),
    ),
    ("in the data", IN_DATA),
    ("in an adapter (LoRA)", re.compile(r"lora|peft|tuners")),
    ("in a product of matrices", re.compile(r"linear\.py|matmul|fused_dense")),
    ("while the optimizer steps", re.compile(r"optim|grad_norm|clip_grad")),
    (
        "while processes exchange tensors",
        re.compile(r"all_gather|all_reduce|broadcast|scatter|gather|distributed_c10d"),
    ),
)


PHASES = {
    "evaluation": re.compile(
        r"evaluation_loop|prediction_loop|prediction_step|\bevaluate\b|nested_concat|pad_across_processes"
        r"|validation_(?:step|loop)|\b_?validate\b"
    ),
    "saving": re.compile(
        r"save_pretrained|save_model|save_checkpoint|_save\w*\b|safe_save_file|torch/serialization\.py.*save|consolidate"
    ),
    "sync": IN_SYNC,
    "reward": re.compile(r"reward_func|_calculate_rewards|compute_score|compute_reward|reward_fn"),
    "loading": re.compile(
        r"from_pretrained|load_state_dict|load_checkpoint|_load_pretrained|load_model|resume_from|get_peft_model"
    ),
    "generation": re.compile(r"\bgenerate\w*\b|_sample\b|rollout|llm_engine|execute_model|sample_tokens"),
    "optimizer": re.compile(
        r"optimizer\.step|/optim/|torch/optim|\boptimizer_step|adamw?\.py|clip_grad|unscale_|lr_scheduler"
        r"|zero/stage\w*\.py \w*(?:step|optimizer|sub_group|clip)"
    ),
    "backward": re.compile(r"backward|autograd/"),
    "data": re.compile(r"load_dataset|datasets/|data_?loader|dataloader|_map_single|tokenize|collat|preprocess"),
    "start": re.compile(
        r"init_process_group|init_distributed|rendezvous|_initialize_distributed|prepare_model|setup_ddp|init_workers"
        r"|init_torch_distributed|initialize_ray_cluster"
    ),
    "forward": re.compile(r"\b_?forward\w*\b|_call_impl|compute_loss|training_step"),
}
"""The parts of a run (and `logprobs`, see `phase_of`), by names of frames; of several the one first named here counts,
which says most."""


_ENGINES = ("vllm", "sglang")
"""Packages whose forward pass is no training."""


_NOT_OF_A_PHASE = re.compile(
    r"actor_rollout|rollout_(?:id|ids|data\w*|batch\w*)\b|(?<=[(.])resume_from_checkpoint(?==|\))"
)
"""Names in a line of source that are no part of the run: verl's of a worker, an argument of train()."""


_ENGINE_STARTS = re.compile(
    r"_initialize_kv_caches|initialize_cache\b|_allocate_kv_cache|determine_available_memory|determine_num_available_blocks"
    r"|initialize_from_config|profile_run|capture_model|init_memory_pool|init_cuda_graphs"
)
"""An engine that makes room for its cache, or measures it: it calls its workers as for an update of the weights."""


def phase_of(frames: Sequence[Frame]) -> str:
    """The part of a run in which a traceback ends, "" if its frames do not tell."""
    text = "\n".join(f"{frame.file} {frame.function} {frame.source}" for frame in frames)
    text = _NOT_OF_A_PHASE.sub("", text)
    if _ENGINE_STARTS.search(text):
        return "generation"
    inner = next((frame.package for frame in reversed(frames) if frame.package not in ("python", *TOOLS)), "")
    if inner in _ENGINES and not any(PHASES[name].search(text) for name in ("sync", "loading", "start")):
        return "generation"
    found = next((name for name, pattern in PHASES.items() if pattern.search(text)), "")
    scored = found in ("", "forward", "backward", "data") and _SCORES.search(text) and not _TRAINS.search(text)
    return "logprobs" if scored else found


_SCORES = re.compile(
    r"\b(?:get_(?:reference_policy_)?logprobs|compute_(?:ref_)?log_probs?|compute_logprobs|fwd_logprobs\w*"
    r"|_get_per_token_logps\w*|get_per_token_logps\w*|forward_only)\b"
)
_TRAINS = re.compile(
    r"training_step|compute_loss|train_step|train_one_step|update_(?:policy|actor|critic)|train_actor|policy_train"
    r"|ppo_train|\.backward\(|\bbackward\b"
)
"""The pass that only computes log-probabilities of answers, before the training step: frames that say so, and none of
a step."""


_SETTING = re.compile(
    r"\b(?:args|config|cfg|hf_config|training_args|script_args|model_args|finetuning_args"
    r"|data_args|\w+_config|\w+_args|self\.config|self\.args)\.([A-Za-z_][\w.]*)(?!\w*\()"
    r"|\[(['\"])(\w+)\2\]"
)


_NOT_A_SETTING = {
    "get",
    "keys",
    "items",
    "update",
    "pop",
    "copy",
    "to",
    "size",
    "shape",
    "append",
    "format",
    "split",
    "__class__",
    "__name__",
}


@dataclass(frozen=True)
class Frame:
    """One frame of a printed traceback.

    Attributes:
        file: as printed.
        line: in that file; 0 if the traceback does not say.
        function: its name.
        source: the line of source that was printed with it, "" if none was.
        package: the import name of the package it belongs to; "" for the user's own file, "python" for Python's
            library.
    """

    file: str
    line: int
    function: str
    source: str
    package: str

    def __str__(self) -> str:
        parts = re.split(r"[/\\]", self.file)
        if self.package and self.package in parts:
            shown = "/".join(parts[len(parts) - 1 - parts[::-1].index(self.package) :])
        else:
            shown = "/".join(parts[-2:]) if self.package else self.file
        return shown + (f":{self.line}" if self.line else "") + f" in {self.function}"


@dataclass(frozen=True)
class Advice:
    """What the traceback alone says.

    Attributes:
        kind: what sort of failure it is, for tools: "message", "own-code", "versions", "setting", "weights", "column",
            "key", "assertion", "shapes", "dtypes", "devices", "network" or "library".
        says: what happened, in one or two sentences.
        steps: what to do, first thing first.
        place: the frame it is read from, "" without a traceback.
    """

    kind: str
    says: str
    steps: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True)
class RaisedError:
    """A traceback, read."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    dotted: str = ""  # the type with its module, where that is printed
    cut: bool = False  # whether the frames below the last one are missing
    asked_a_row: bool = False  # whether it was a row of `datasets` that was asked for a key

    @property
    def library(self) -> str:
        """The library that the exception's type is of; "" for one of Python's or the user's own."""
        top, dot, _ = self.dotted.partition(".")
        own = {re.split(r"[/\\]", frame.file)[-1].removesuffix(".py") for frame in self.frames if not frame.package}
        return top if dot and top not in {"builtins", "__main__", *own} else ""

    @property
    def last(self) -> Frame | None:
        """The innermost frame that is not Python's own library."""
        return next((frame for frame in reversed(self.frames) if frame.package != "python"), None)

    @property
    def caller(self) -> Frame | None:
        """The innermost frame of a package that does something of its own, or of the user."""
        found = (frame for frame in reversed(self.frames) if frame.package not in ("python", *TOOLS))
        return next(found, self.last)

    @property
    def own(self) -> Frame | None:
        """The user's function that failed: the innermost frame, apart from the libraries that it calls for small
        things."""
        inside = False
        for frame in reversed(self.frames):
            if not frame.package:
                return frame if not inside else None
            if frame.package in PACKAGES and frame.package not in ("math_verify", "datasets"):
                inside = True
        return None

    @property
    def raiser(self) -> Frame | None:
        """The frame that an operation failed in: the innermost one, where all between it and the user is a tool's."""
        return self.caller if self.caller is None or self.caller.package else self.last

    def place(self) -> str:
        """Where in a run it happened, by the innermost frame whose name tells it; "" if none does."""
        for frame in [frame for frame in reversed(self.frames) if frame.package != "python"][:INNER_FRAMES]:
            text = (str(frame) if frame.package else frame.function).replace("torch/optim", "")
            for name, pattern in _PLACES:
                if pattern.search(text):
                    return name
        return ""

    def within(self, pattern: re.Pattern[str], depth: int = 6) -> bool:
        """Whether one of the inner frames has a name of this sort."""
        return any(pattern.search(f"{frame.file} {frame.function} {frame.source}") for frame in self.frames[-depth:])


_ACCESS = {"__getitem__", "__getattr__", "__getattribute__", "__missing__", "__delitem__"}


def without_access(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames without those at the end in which a container is only asked for what it does not have."""
    end = len(frames)
    while end > 1 and frames[end - 1].function in _ACCESS:
        end -= 1
    return frames[:end]


def frames_before(error: _faults.Error) -> tuple[Frame, ...]:
    """The frames of the traceback that ends in an error, outermost first, in the forms of Python, IPython and rich."""
    if not error.before:
        return ()
    lines = []
    for raw in error.before.decode("utf-8", "replace").split("\n")[-_faults.BEFORE_LINES :]:
        shown = plain(raw)
        who, said = split_prefix(shown)
        if who == error.who or not who:
            lines.append(_faults.unframed(said.rstrip()) if said.strip()[:1] in "│┃║|" else said.rstrip())
    start = max((at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line), default=0)
    found: list[Frame] = []
    for at in range(start, len(lines)):
        cell = _CELL.match(lines[at])
        match = _FRAME.match(lines[at]) or _BOX.match(lines[at]) or _NOTEBOOK.match(lines[at])
        if cell or match:
            source, line = _source(lines, at + 1)
            groups = (
                match.groupdict() if match else {"file": "the notebook", "line": cell["line"], "function": "<cell>"}
            )
            file, function = groups["file"], groups["function"]
            generated = file == "<string>" and (found or function != "<module>")  # code that a library has made
            package = "python" if generated else package_of(file)
            found.append(Frame(file, int(groups["line"] or line or 0), function, source, package))
    handed_on = bool(found) and found[-1].package == "ray" and found[-1].function == "get_objects"
    return () if handed_on else tuple(found)  # raised in a worker, of which no frame is there


def _source(lines: Sequence[str], at: int) -> tuple[str, int]:
    """The source line under a frame, and its number where an arrow stands at it."""
    for line in lines[at : at + 8]:
        pointed = _POINTED.match(line)
        if pointed:
            number = re.search(r"\d+", line)
            return pointed["source"].strip(), int(number.group()) if number else 0
        if _FRAME.match(line) or _BOX.match(line):
            break
    following = lines[at] if at < len(lines) else ""
    return (following.strip(), 0) if following.startswith("    ") and not _FRAME.match(following) else ("", 0)


def package_of(file: str) -> str:
    """The import name of the package a file belongs to: "" for somebody's own, "python" for Python's library."""
    parts = re.split(r"[/\\]", file)
    sent = next((at for at, part in enumerate(parts) if part.startswith("_ray_pkg_")), 0)
    parts = ["", *parts[sent + 1 :]] if sent else parts  # Ray's copy of the working directory
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            after = parts[len(parts) - parts[::-1].index(folder) :]
            return after[0].removesuffix(".py") if after else ""
    if "unsloth_compiled_cache" in parts:
        return "unsloth"
    if (
        file.startswith("<frozen ")
        or re.search(r"[/\\]lib[/\\]python3\.\d+[/\\]", file)
        or re.search(r"[/\\]Lib[/\\]\w+\.py$", file)
    ):
        return "python"
    if parts[-1].startswith("ipython-input") or file.startswith("<"):
        return ""
    if parts[-1].endswith((".pyx", ".pxi")) and not file.startswith(("/", "\\")):
        return parts[0].removesuffix(".pyx")  # compiled, with the name that its file had where it was built
    home = 3 if parts[1:2] in (["home"], ["Users"]) else 1  # a person may be called like a package
    for at in range(home, len(parts) - 1):
        # a checkout: the package's folder with its modules below it, and no script in somebody's folder of that name
        below = parts[at + 1 :]
        if (
            parts[at] in PACKAGES
            and not _NOT_PACKAGED & set(below)
            and (len(below) > 1 or parts[at - 1].lower() == parts[at] or below[0] in _ENTRIES)
        ):
            return parts[at]
    return ""


_NOT_PACKAGED = {"examples", "scripts", "experiments", "projects", "notebooks"}


_ENTRIES = {"launcher.py", "cli.py", "__init__.py", "__main__.py", "main_ppo.py", "arguments.py"}


_OF_PYTHON = ("TypeError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "NameError")
"""Exceptions that Python itself raises on a line of somebody's code."""


def said_cure(read: RaisedError) -> str | None:
    """What the message says to do; Python's own words about a value ("first arg must be str") say nothing of it."""
    raised = read.last is None or not read.last.source or re.search(r"\braise\b|\bassert\b", read.last.source)
    return cure_in(read.message) if raised or read.type not in _OF_PYTHON else None


def cure_in(message: str) -> str | None:
    """The sentences of a message that say what to do, None if none does."""
    text = " ".join(message.split())
    sentences = re.split(r"(?<=[.!?;]) (?=[A-Z`'\"])|\n", text)
    found = [
        one
        for one in sentences
        if _SAYS_THE_CURE.search(one) and len(_ADDRESS_ONLY.sub("", one).strip()) > 12 and not _OF_A_MOMENT.search(one)
    ]
    if not found:
        return None
    at = sentences.index(found[0])
    # what "it" and "instead" refer to stands before
    first = (
        [sentences[at - 1]]
        if at
        and re.match(r"(?:It|This|That|They|Please|You|Try|Use|Set)\b", found[0])
        and len(sentences[at - 1]) < LONGEST_QUOTE / 2
        else []
    )
    return _both_ends(" ".join([*first, *found[:2]]))


def _both_ends(text: str) -> str:
    """A text as far as it is repeated: what to do stands at the end of a long one as often as at its beginning."""
    half = LONGEST_QUOTE // 2
    if len(text) <= LONGEST_QUOTE:
        return text
    return f"{text[:half].rsplit(' ', 1)[0]} ... {text[-half:].partition(' ')[2]}"


_SUSPECTS = re.compile(
    r"\b(?:can|may|might|could) (?:also )?be (?:caused by|due to|because)|\b(?:probably|possibly|likely|usually|often)"
    r" (?:because|due to|caused by|means)\b|\b[Pp]erhaps (?:your|the|you)\b|\bthis (?:usually|often|probably) means\b",
)


def suspected_in(message: str) -> str:
    """The sentence of a message that says what may have caused it; "" if none does."""
    sentences = re.split(r"(?<=[.!?;]) (?=[A-Z`'\"(])", " ".join(message.split()))
    return next((one[:LONGEST_QUOTE] for one in sentences if _SUSPECTS.search(one)), "")


_VERBS = (
    r"(?:set|use|pass|provide|specify|install|upgrade|update|downgrade|add|remove|increase|decrease|reduce|lower|raise"
    r"|enable|disable|switch|change|rename|replace|adjust|choose|configure|pin|make sure|ensure|consider|try)"
)
_TELLS = re.compile(
    rf"\b[Pp]lease (?:also |either |instead )?{_VERBS}\b"
    rf"|\b[Yy]ou (?:should|must|need to|have to|can|could|may(?: want to)?|might) (?:also |either |instead )?{_VERBS}\b"
    rf"|(?:^|[.;:!?,)] )(?:[Ee]ither |[Tt]o fix (?:this|it),? |[Ii]nstead,? )?(?i:{_VERBS}) (?=\S)"
    r"|\bby (?:setting|passing|adding|using|installing)\b|\bpip install\b"
    r"|\b(?:use|pass|set) \S+ instead\b|\b(?:renamed|moved) to\b|\breplaced (?:by|with)\b|\bin favou?r of\b"
)
_NO_CURE = re.compile(
    r"CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA|HYDRA_FULL_ERROR|TORCH_DISTRIBUTED_DEBUG|NCCL_DEBUG|TORCH_SHOW_CPP"
    r"|TORCHDYNAMO_VERBOSE|TORCH_LOGS|stack ?trace|traceback|full (?:error|log)|more (?:details|information)"
    r"|for details|[Rr]eport|open an issue|file a bug|ignore this|safely ignore|ignore_mismatched_sizes|suppress"
    r"|if needed|see the logs"
)
"""... which only show more of a failure, or hide it."""


def told_cure(message: str) -> str:
    """The sentences of an error's message that tell somebody what to do about it; "" if none does."""
    text = " ".join(message.split())
    sentences = re.split(r"(?<=[.!?;]) (?=[A-Z`'\"(])", text)
    found = [
        one for one in sentences if _TELLS.search(one) and not _NO_CURE.search(one) and not _OF_A_MOMENT.search(one)
    ]
    names = [name for one in found for name in settings_in(one)]
    if not found or not (names or re.search(r"pip install|[Uu]p(?:grade|date)|`", " ".join(found))):
        return ""
    # A variable to set is the most that a message can say.
    found = [*found[:1], *sorted(found[1:], key=lambda one: _SET.search(one) is None)]
    return _both_ends(" ".join(found[:2]))


_SET = re.compile(r"\b[A-Z][A-Z0-9_]{3,}=\w")
"""A variable of the environment and its value."""


NOT_SETTINGS = (".py", ".json", ".txt", ".cc", ".cpp", ".cu", ".h", ".weight", ".bias")
"""Ends of names that are files or tensors."""


def settings_in(text: str) -> tuple[str, ...]:
    """The names in a sentence that look like settings."""
    names: dict[str, None] = {}
    for found in _SYMBOLS.finditer(_ADDRESS_ONLY.sub("", text)):
        name = next(one for one in found.groups() if one)
        plain_name = name.strip(".-")
        if len(plain_name) > 2 and not re.fullmatch(r"[\d.]+", plain_name) and not plain_name.endswith(NOT_SETTINGS):
            names.setdefault(name.strip("."), None)
    return tuple(names)[:NAMED]


def settings_of(source: str) -> tuple[str, ...]:
    """The settings that a line of source reads: `args.NAME`, `config.a.NAME`."""
    names: dict[str, None] = {}
    for found in _SETTING.finditer(source):
        name = found[1] if found[1] else ""
        parts = [part for part in name.split(".") if part and part not in _NOT_A_SETTING]
        if parts:
            names.setdefault(".".join(parts), None)
    return tuple(names)[:NAMED]


def quoted(said: str, read: RaisedError) -> str:
    names = settings_in(said)
    text = (
        f"do what the message says: “{said}”"
        if _TELLS.search(said)
        else f"the message says what does not fit: “{said}”"
    )
    source = settings_of(read.last.source) if read.last else ()
    named = tuple(dict.fromkeys((*names, *source)))[:NAMED]
    return text + (f" (settings it names: {', '.join(named)})" if named else "")


def called(package: str) -> str:
    """A package as people call it."""
    return PACKAGES.get(package, package)


def pip_name(package: str) -> str:
    """A package as pip calls it."""
    return DISTRIBUTIONS.get(package, package)


def how_to_install(package: str) -> str:
    """How a newer one is got."""
    return (
        "git pull in its folder, with its requirements"
        if package in NOT_ON_PYPI
        else (f"pip install -U {pip_name(package)}")
    )


def declared_range(package: str, other: str) -> str:
    """What a package that is installed here asks of another one, as a sentence; "" if it is not, or asks nothing."""
    import importlib.metadata

    try:
        wanted = importlib.metadata.requires(pip_name(package)) or []
        version = importlib.metadata.version(pip_name(package))
    except importlib.metadata.PackageNotFoundError:
        return ""
    for line in wanted:
        found = re.match(
            rf"{re.escape(pip_name(other))}(?:\[[^\]]*\])?\s*\(?(?P<specifier>[<>=!~][^;)]*)", line, re.IGNORECASE
        )
        if found and "extra ==" not in line:
            asked = f"{called(package)} {version} asks for {other}{found['specifier'].strip()}"
            return f" (looked up on this machine, not in the log: {asked})"
    return ""


def pair_steps(caller: str, callee: str) -> tuple[str, ...]:
    """How two packages are made to fit each other."""
    if not caller:
        return (
            f"install the {called(callee)} that the script was written for (its requirements or "
            f"its date), or change the line to what "
            f"the {called(callee)} installed takes",
            f"pip show {pip_name(callee)} says which one this environment has",
        )
    if not callee or callee == caller:
        return (
            f"is the script written for the {called(caller)} that is installed (pip show {pip_name(caller)})? The "
            f"examples of that version show what it takes and what it expects to be handed",
            f"pip check names neighbours of {called(caller)} that are of another version than it asks for",
        )
    return (
        f"make {called(caller)} and {called(callee)} fit: the versions that the project or recipe names for both; if "
        f"it names none, update {called(caller)} ({how_to_install(caller)}), or install the {called(callee)} that "
        f"this {called(caller)} was made for{declared_range(caller, callee)}",
        f"pip show {pip_name(caller)} {pip_name(callee)} says what this environment has; pip "
        f"check names what does not fit",
    )


def place_of(frame: Frame | None) -> str:
    return "" if frame is None else str(frame)


def belongs_to(frame: Frame | None) -> str:
    """Whose code a frame is, as a sentence has it; a file of no package may be the user's, or one of a checkout."""
    if frame is None:
        return "the code"
    if frame.package:
        return called(frame.package)
    return frame.file if frame.file == "the notebook" else re.split(r"[/\\]", frame.file)[-1].strip("<>") or "the code"


def owner_of(name: str) -> str:
    """The package of a class or function by its name; "" if the name does not tell."""
    if name in CLASSES:
        return CLASSES[name]
    if name.startswith(("Unsloth", "_Unsloth", "unsloth_")):
        return "unsloth"
    if re.fullmatch(r"(?:GRPO|DPO|SFT|PPO|KTO|RLOO|ORPO|Reward|OnlineDPO)(?:Trainer|Config)", name):
        return "trl"
    if re.search(
        r"(?:ForCausalLM|ForConditionalGeneration|TokenizerFast|DecoderLayer|ImageProcessor\w*"
        r"|RMSNorm)$",
        name,
    ):
        return "transformers"
    return ""


def or_update(package: str) -> tuple[str, ...]:
    return (
        f"if that is not it: a newer {called(package)} ({how_to_install(package)}), since it does not say "
        "what it lacks",
    )
