"""What a traceback says by itself, where no known failure covers it.

An engineer who has never seen a failure still reads a good deal from its traceback: a message that names the
cure; two packages of which one calls the other in a way it does not know; a setting that the script lacks; a
weight whose name the other side does not have; a column that the data lacks; a function of one's own.
`advise` does that and no more: what it says is drawn from the lines of the log, with the place it is read
from, and it is never a known cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bisect_cfg.diagnosis import _errors
from bisect_cfg.diagnosis._text import plain, split_prefix

DEFINITE = ("versions", "setting", "weights", "column", "own-code", "shapes", "dtypes", "devices")
"""Kinds that add to a general entry which packages, setting, weight, column, file or part of a run is meant."""

LONGEST_QUOTE = 300
"""Characters of a message or a source line that are repeated."""

INNER = 4
"""Frames from the inside by which it is judged in which part of a run something happened."""

NAMED = 4
"""Settings that are named at most; a line with more of them is a list of all there are."""

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

TOOLS = {"torch", "ray", "hydra", "datasets", "multiprocess", "numpy", "torchdata", "decorator", "tqdm", "omegaconf", "fire", "click", "IPython", "typer", "tensordict"}  # fmt: skip
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
    r"|\brequires?\b|\b(?:is|are) required\b|\b(?:un)?supported (?:values|options|types)\b"
    r"|\b(?:valid|available|allowed|possible|supported) (?:\w+ )?(?:values|options|keys|choices"
    r"|are)\b|\bexpected (?:one of|to be|at least|a )|\binstead\b|\bout of range\b|\bpip install\b"
    r"|\bneeds? [`'\"]|\bonly the following\b|\bmutually exclusive\b|\bnot both\b|\bat least one\b"
    r"|\bwhich is deprecated\b|\bhas been removed\b"
)
_ADDRESS_ONLY = re.compile(r"https?://\S+")
_WEIGHT = re.compile(
    r"(?:^|\.)(?:layers|blocks|h|experts)\.\d+\.|\.(?:weight|bias|qweight|scales|inv_freq"
    r"|weight_scale\w*)\b|base_layer|lora_[AB]"
    r"|^(?:model\.)?(?:visual|language_model|vision_tower)\.\w"
)
_IN_SYNC = re.compile(
    r"load_weights|update_weight|update_params|sync_weight|_sync_(?:fsdp|peft|param|weight)"
    r"|resync|sharding_manager|broadcast_to_|_move_model_to_vllm|collective_rpc"
    r"|move_model_to|weight_sync|update_named_param|convert_\w*weight|bucket|load_dtensor|weight_loader"
)
_IN_DATA = re.compile(
    r"rl_dataset|dataset|data_?load|preprocess|tokenize|collat|arrow|formatting|prepare_data"
    r"|_map_single|template|data_utils|data_source|non_tensor_batch|/data/"
)
_IN_LOADING = re.compile(
    r"load_state_dict|from_pretrained|load_checkpoint|_load_pretrained|load_model"
    r"|set_peft_model_state|resume|checkpoint_engine|load_sharded"
)
_IN_REWARD = re.compile(r"reward|compute_score|judge|verifier|grader|scor(?:e|er|ing)\b|rubric|accuracy", re.IGNORECASE)
_PLACES = (
    ("while weights are handed to the inference engine", _IN_SYNC),
    ("while weights are loaded", _IN_LOADING),
    ("while rewards are computed", _IN_REWARD),
    ("in rotary position embedding", re.compile(r"rotary|rope|position_ids|mrope")),
    ("in attention", re.compile(r"attention|attn|sdpa|flash")),
    (
        "in the vision tower or where images are put into the prompt",
        re.compile(r"visual|vision|image|pixel|vit\b|video"),
    ),
    ("while log-probabilities are computed", re.compile(r"logp|log_prob|logits|entropy")),
    ("in the loss", re.compile(r"loss|kl_pen|advantage|masked_mean|agg_")),
    ("while answers are generated", re.compile(r"generate|rollout|sampl|engine|llm\.py|inference")),
    ("in the data", _IN_DATA),
    ("in an adapter (LoRA)", re.compile(r"lora|peft|tuners")),
    ("in a product of matrices", re.compile(r"linear\.py|matmul|fused_dense")),
    ("while the optimizer steps", re.compile(r"optim|step\b|grad_norm|clip_grad")),
    (
        "while processes exchange tensors",
        re.compile(r"all_gather|all_reduce|broadcast|scatter|gather|distributed_c10d"),
    ),
)
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
            "assertion", "shapes", "dtypes", "devices", "network" or "library".
        says: what happened, in one or two sentences.
        steps: what to do, first thing first.
        place: the frame it is read from, "" without a traceback.
    """

    kind: str
    says: str
    steps: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True)
class _Read:
    """A traceback, read."""

    type: str
    message: str
    frames: tuple[Frame, ...]

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

    def place(self) -> str:
        """Where in a run it happened, by the innermost frame whose name tells it; "" if none does."""
        for frame in [frame for frame in reversed(self.frames) if frame.package != "python"][:INNER]:
            text = f"{str(frame) if frame.package else frame.function} {frame.source}".replace("tr_loss", "").replace(
                "torch/optim", ""
            )
            for name, pattern in _PLACES:
                if pattern.search(text):
                    return name
        return ""

    def within(self, pattern: re.Pattern[str], depth: int = 6) -> bool:
        """Whether one of the inner frames has a name of this sort."""
        return any(pattern.search(f"{frame.file} {frame.function} {frame.source}") for frame in self.frames[-depth:])

    def callers_of(self, package: str) -> str:
        """The package that calls into another one, by the frames; "" for the user's file."""
        for frame in reversed(self.frames):
            if frame.package not in ("python", package, *(TOOLS - {"torch", "ray"})):
                return frame.package
        return ""


def frames_before(error: _errors.Error) -> tuple[Frame, ...]:
    """The frames of the traceback that ends in an error, outermost first, in the forms of Python, IPython and rich."""
    if not error.before:
        return ()
    lines = []
    for raw in error.before.decode("utf-8", "replace").split("\n")[-_errors.BEFORE_LINES :]:
        shown = plain(raw)
        who, said = split_prefix(shown)
        if who == error.who or not who:
            lines.append(_errors.unframed(said.rstrip()) if said.strip()[:1] in "│┃║|" else said.rstrip())
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
            file = groups["file"]
            found.append(Frame(file, int(groups["line"] or line or 0), groups["function"], source, package_of(file)))
    return tuple(found)


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


def advise(error: _errors.Error | None) -> Advice | None:
    """What an error and its traceback say by themselves; None if they say nothing that the message does not."""
    if error is None or error.rank == _errors.STATUS or (error.rank == _errors.NATIVE and not error.type_name):
        return None
    kind, message = _split(error)
    if kind in ("KeyboardInterrupt", "SystemExit", "MemoryError"):
        return None
    read = _Read(kind, message, frames_before(error) if error.type_name else ())
    for rule in RULES if error.rank == _errors.RAISED else (_weights, _network, _numbers, _said_alone):
        advice = rule(read)
        if advice is not None:
            return _with_the_message(advice, read)
    return None


def _split(error: _errors.Error) -> tuple[str, str]:
    """The innermost exception's type and message; a wrapper's message may hold another's."""
    text = error.paragraphs()[0]
    kind = error.type_name.rpartition(".")[2]
    message = (
        re.sub(r"^(?:[\w.]+: ?)?", "", text, count=1) if kind and text.startswith((error.type_name, kind)) else text
    )
    inner = re.match(r"Worker failed with error '(?P<inner>.*)', please check", message)
    return kind, inner["inner"] if inner else message


def _with_the_message(advice: Advice, read: _Read) -> Advice:
    """The advice with the message's own words first, where they say what to do."""
    said = None if advice.kind == "message" or _OF_TORCH.search(read.message) else cure_in(read.message)
    if said is None or any(said in step for step in advice.steps):
        return advice
    return Advice(advice.kind, advice.says, (_quote(said, read), *advice.steps), advice.place)


_OF_TORCH = re.compile(
    r"size of tensor a|Sizes of tensors must|all tensors to be on the same device|expanded size"
    r"|mat1 and mat2|must have the same dtype|same reduction dim|_AssertionError"
)
"""Messages of torch that say "must" without saying what to do."""


def cure_in(message: str) -> str | None:
    """The sentences of a message that say what to do, None if none does."""
    text = " ".join(message.split())
    sentences = re.split(r"(?<=[.!?;]) (?=[A-Z`'\"])|\n", text)
    found = [one for one in sentences if _SAYS_THE_CURE.search(one) and len(_ADDRESS_ONLY.sub("", one).strip()) > 12]
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
    quoted = " ".join([*first, *found[:2]])
    return quoted if len(quoted) <= LONGEST_QUOTE else quoted[:LONGEST_QUOTE].rsplit(" ", 1)[0] + " ..."


def settings_in(text: str) -> tuple[str, ...]:
    """The names in a sentence that look like settings."""
    names: dict[str, None] = {}
    for found in _SYMBOLS.finditer(_ADDRESS_ONLY.sub("", text)):
        name = next(one for one in found.groups() if one)
        plain_name = name.strip(".-")
        if (
            len(plain_name) > 2
            and not re.fullmatch(r"[\d.]+", plain_name)
            and not plain_name.endswith((".py", ".json", ".txt"))
        ):
            names.setdefault(name.strip("."), None)
    return tuple(names)[:NAMED]


def settings_of(source: str) -> tuple[str, ...]:
    """The settings that a line of source reads: `args.NAME`, `config.a.NAME`."""
    names: dict[str, None] = {}
    for found in _SETTING.finditer(source):
        name = found[1] if found[1] else ""
        parts = [part for part in name.split(".") if part not in _NOT_A_SETTING]
        if parts:
            names.setdefault(".".join(parts), None)
    return tuple(names)[:NAMED]


def _quote(said: str, read: _Read) -> str:
    names = settings_in(said)
    text = f"do what the message says: “{said}”"
    source = settings_of(read.last.source) if read.last else ()
    named = tuple(dict.fromkeys((*names, *source)))[:NAMED]
    return text + (f" (settings it names: {', '.join(named)})" if named else "")


def called(package: str) -> str:
    """A package as people call it."""
    return PACKAGES.get(package, package)


def pip_name(package: str) -> str:
    """A package as pip calls it."""
    return DISTRIBUTIONS.get(package, package)


def _install(package: str) -> str:
    """How a newer one is got."""
    return (
        "git pull in its folder, with its requirements"
        if package in NOT_ON_PYPI
        else (f"pip install -U {pip_name(package)}")
    )


def _declared(package: str, other: str) -> str:
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
            return f" ({called(package)} {version}, as installed here, asks for {other}{found['specifier'].strip()})"
    return ""


def _pair_steps(caller: str, callee: str) -> tuple[str, ...]:
    """How two packages are made to fit each other."""
    if not caller:
        return (
            f"install the {called(callee)} that your script was written for (its requirements or "
            f"the date of the script), or change the line to what "
            f"the {called(callee)} installed takes",
            f"pip show {pip_name(callee)} says which one this environment has",
        )
    if not callee or callee == caller:
        return (
            f"update {called(caller)} ({_install(caller)}), with the versions of its neighbours that it asks for",
            f"pip show {pip_name(caller)} lists what it requires; pip check names what does not fit",
        )
    return (
        f"make {called(caller)} and {called(callee)} fit: update {called(caller)} "
        f"({_install(caller)}), or install the {called(callee)} that "
        f"this {called(caller)} was made for{_declared(caller, callee)}",
        f"pip show {pip_name(caller)} {pip_name(callee)} says what this environment has; pip "
        f"check names what does not fit",
    )


def _where(frame: Frame | None) -> str:
    return "" if frame is None else str(frame)


def _whose(frame: Frame | None) -> str:
    return "your own file" if frame is None or not frame.package else called(frame.package)


def _versions(read: _Read) -> Advice | None:
    """One package calls another in a way that the other does not know."""
    frame = read.caller
    caller = frame.package if frame else ""
    message = read.message
    imported = re.search(
        r"cannot import name '(?P<name>\w+)' from (?P<partly>partially initialized module "
        r")?'(?P<module>[\w.]+)'(?: \((?P<path>[^)]*)\))?",
        message,
    )
    if imported:
        return _import_name(imported, frame)
    submodule = re.search(r"No module named '(?P<module>(\w+)(?:\.\w+)+)'", message)
    if submodule:
        package = submodule[2]
        says = (
            f"{_whose(frame)} imports {submodule['module']}, which the {called(package)} "
            f"installed does not have: they are of versions that do not fit."
        )
        return Advice("versions", says, _pair_steps(caller if caller != package else "", package), _where(frame))
    module = re.search(r"module '(?P<module>(\w+)[\w.]*)' has no attribute '(?P<name>\w+)'", message)
    if module:
        package = module[2]
        steps = _pair_steps(caller if caller != package else "", package)
        if not caller:
            steps = (
                *steps,
                f"no file or folder called {package} may lie next to the script: it would be imported in its place",
            )
        says = (
            f"{_whose(frame)} uses {module['module']}.{module['name']}, which the "
            f"{called(package)} installed does not have."
        )
        return Advice("versions", says, steps, _where(frame))
    if read.type == "TypeError":
        return _argument(read)
    lacking = re.search(
        r"'(?P<owner>\w+)' object has no attribute '(?P<name>\w+)'|type object '(?P<type>\w+)' "
        r"has no attribute '(?P<member>\w+)'",
        message,
    )
    if (
        lacking
        and read.type == "AttributeError"
        and (lacking["owner"] or "") not in _PLAIN_TYPES | {"NoneType", "Namespace", "DictConfig"}
    ):
        return _attribute(lacking, read)
    return None


_PLAIN_TYPES = {
    "list",
    "dict",
    "str",
    "int",
    "float",
    "tuple",
    "bool",
    "set",
    "function",
    "method",
    "bytes",
    "generator",
    "builtin_function_or_method",
}


def _import_name(imported: re.Match[str], frame: Frame | None) -> Advice:
    name, module, path = imported["name"], imported["module"], imported["path"] or ""
    package = module.split(".")[0]
    caller = frame.package if frame else ""
    if imported["partly"]:
        says = (
            f"{module} was imported while it was still being imported itself: a circle of "
            f"imports, often because a file has the name of a package."
        )
        steps = (
            f"no file of yours may be called {package}.py or have the name of another package"
            + (f"; the one that was found is {path}" if path else ""),
            "otherwise a fault of the installed version: " + _pair_steps(caller, package)[0],
        )
        return Advice("versions", says, steps, _where(frame))
    if path == "unknown location":
        says = (
            f"Python found a folder called {package} without an __init__.py in place of the "
            f"package: one in the working directory, or what is left of a broken installation."
        )
        steps = (
            f"rename the folder {package}/ next to the script or in the working directory, or "
            f"start from another directory",
            f'python -c "import {package}; print({package}.__path__)" shows which one is taken',
            f"pip uninstall {pip_name(package)}, delete what is left of it in site-packages, and install it again",
        )
        return Advice("versions", says, steps, _where(frame))
    if path and package_of(path) == "" and "packages" not in path and package in PACKAGES:
        says = (
            f"{package} was imported from {path}, which is no installed package: a file or folder "
            f"of that name stands in its way, or a checkout that is older."
        )
        steps = (
            "rename it, or start from another directory; a checkout that is meant is updated "
            "(git pull, pip install -e .)",
            *_pair_steps(caller, package),
        )
        return Advice("versions", says, steps, _where(frame))
    who = _whose(frame)
    says = (
        f"{who} imports {name} from {module}, and the {called(package)} installed does not have "
        f"it: they are of versions that do not fit."
    )
    if caller == package:
        says = (
            f"{called(package)} does not find {name} in its own {module}: files of two versions "
            f"are mixed, or its parts are not of the same version."
        )
        return Advice(
            "versions",
            says,
            (
                f"pip uninstall {pip_name(package)}, then install it again (a second copy, a checkout "
                f"on PYTHONPATH or an overwritten file mixes versions)",
                *_pair_steps(caller, "")[1:],
            ),
            _where(frame),
        )
    return Advice("versions", says, _pair_steps(caller, package), _where(frame))


def _owner(name: str) -> str:
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


def _argument(read: _Read) -> Advice | None:
    """A function that is called with arguments it does not take."""
    found = re.search(
        r"(?P<name>[\w.<>]+)\(\) (?P<what>got (?:an unexpected keyword argument|multiple values "
        r"for (?:keyword )?argument) '(?P<argument>\w+)'.*"
        r"|missing \d+ required (?:positional|keyword-only) arguments?: .*|takes .* positional "
        r"arguments? but .* given)",
        read.message,
    )
    if not found:
        return None
    frame = read.last
    caller = read.caller.package if read.caller else ""
    parts = found["name"].split(".")
    owner = next((one for one in map(_owner, parts) if one), "")
    place = _where(frame)
    function, what = found["name"], found["what"]
    if re.search(r"(?:Config|Arguments|Args)$", parts[0]) and found["argument"] and "unexpected" in what:
        who = f"{called(owner)}'s {parts[0]}" if owner else parts[0]
        says = (
            f"{who} does not have the setting {found['argument']}: {_whose(read.caller)} is "
            f"written for another version of it."
        )
        steps = (
            f"drop or rename {found['argument']}" + (f" in the call at {place}" if not caller else ""),
            *_pair_steps(caller, owner or ""),
        )
        return Advice("setting", says, steps, place)
    own = (
        re.search(r"reward|score|collat|callback|format|accuracy|preprocess|<locals>|formatting", function)
        and owner == ""
    )
    if own and caller:
        says = (
            f"{called(caller)} calls {function}, which "
            f"{what.split(' {')[0]}: that function is not {called(caller)}'s own, and has another signature."
        )
        steps = (
            f"give {function} the arguments that {called(caller)} hands over (see the call at "
            f"{place}), and **kwargs for the rest",
        )
        return Advice("own-code", says, steps, place)
    if not caller:
        says = f"Your own call of {function} does not fit it: it {what}."
        return Advice(
            "own-code" if not owner else "versions",
            says,
            (f"look at the call at {place}", *(_pair_steps("", owner) if owner else ())),
            place,
        )
    other = (
        owner
        if owner and owner != caller
        else next(
            (one.package for one in reversed(read.frames) if one.package not in ("", "python", caller, *TOOLS)), ""
        )
    )
    if caller.startswith("unsloth") or (owner or "").startswith("unsloth"):
        other = "unsloth_zoo" if caller == "unsloth" else "unsloth"
    if parts[0].endswith("Trainer") and len(parts) > 1 and owner == "":
        says = (
            f"{called(caller)} calls {function}, and {parts[0]} overrides that method for another "
            f"{called(caller)}: it {what}."
        )
        declared = (
            f"install the {called(caller)} that the project of {parts[0]} names (its requirements "
            f"or README), or update the project"
        )
        return Advice(
            "versions",
            says,
            (declared, f"or let the method of {parts[0]} take what it is given: def {parts[-1]}(self, ..., **kwargs)"),
            place,
        )
    target = f"{function} of {called(owner)}" if owner and owner != caller else function
    says = (
        f"{called(caller)} calls {target} in a way it does not know: it {what}. That is a pair of "
        f"versions that do not fit, not a setting."
    )
    return Advice("versions", says, _pair_steps(caller, other), place)


def _attribute(lacking: re.Match[str], read: _Read) -> Advice | None:
    owner, name = lacking["owner"] or lacking["type"], lacking["name"] or lacking["member"]
    frame = read.caller
    caller, place = (frame.package if frame else ""), _where(read.last)
    if frame is None:
        return None
    whose = _owner(owner)
    if re.search(r"(?:Config|Arguments|Args)$", owner):
        says = (
            f"{_whose(frame)} reads the setting {name} of a {owner}, and the {owner} of this "
            f"environment has no such setting."
        )
        return Advice("setting", says, (*_pair_steps(caller, whose if whose != caller else ""),), place)
    if owner.endswith("Trainer") and not whose and caller != "transformers":
        who = called(caller) if caller else "the script"
        says = (
            f"The trainer {owner} lacks {name}: it is derived from a trainer of TRL (or transformers) that had it, "
            f"and the one installed does not."
        )
        steps = (
            f"install the TRL and transformers that {who} names (its requirements, or the date of its last commit)",
            f"or a newer {who}, made for the TRL installed; pip show trl transformers says which one that is",
        )
        return Advice("versions", says, steps, place)
    if not caller:
        says = f"Your own file asks an object of class {owner} for {name}, which it does not have."
        steps = (
            f"look at {place}: another name, or another "
            f"{called(whose) or 'version of the library'} than the script was written for",
        )
        return Advice(
            "versions" if whose else "own-code", says, (*steps, *(_pair_steps("", whose) if whose else ())), place
        )
    says = f"{called(caller)} asks an object of class {owner} for {name}, which it does not have."
    if whose and whose != caller:
        says += (
            f" That class is {called(whose)}'s: a pair of versions that do not fit, or a model or "
            f"engine of another kind than {called(caller)} expects there."
        )
    else:
        says += (
            " Either it was handed an object of another kind than it expects (a model without the "
            "wrapper, an engine of another kind), or its parts are of versions that do not fit."
        )
    names = settings_of(read.last.source) if read.last else ()
    first = (f"the settings read on that line: {', '.join(names)}",) if names else ()
    return Advice("versions", says, (*_pair_steps(caller, whose if whose != caller else ""), *first), place)


def _setting(read: _Read) -> Advice | None:
    """A setting that the script or its configuration does not know, or that is unset."""
    frame, place = read.caller, _where(read.last)
    message = read.message
    found = re.search(
        r"'(?P<kind>Namespace|\w*Arguments|SimpleNamespace|Args|DictConfig|\w*Config)' object has "
        r"no attribute '(?P<name>\w+)'",
        message,
    )
    if found and found["kind"] in ("Namespace", "SimpleNamespace", "Args", "DictConfig"):
        name, who = found["name"], _whose(frame)
        says = f"{who} reads the option {name}, and the parser of the script that was started does not define it."
        steps = (
            f"another entry script of the same project may define --{name} (--help lists the "
            f"options); this one does not know it",
            "update the project (script and package must be of one version: pip install -e . again after git pull)"
            if frame and frame.package
            else "add the option to your parser, or read it with getattr(args, ..., default)",
        )
        return Advice("setting", says, steps, place)
    found = re.search(
        r"Key '(?P<name>[\w.]+)' is not in struct|Could not override '(?P<over>[\w.@/+]+)'|Key "
        r"'(?P<key>[\w.]+)' not in '(?P<cls>\w+)'|Could not find '(?P<group>[\w./]+)'",
        message,
    )
    if found:
        name = next(one for one in (found["name"], found["over"], found["key"], found["group"]) if one)
        full = re.search(r"full_key: (?P<full>[\w.]+)", message)
        key = full["full"] if full else name
        says = (
            f"The configuration has no key {key}: it is misspelt, has moved, or belongs to "
            f"another version of the project than the configuration."
        )
        steps = (
            f"look {name} up in the project's own YAML files of the version installed: names move between releases",
            f"+{key}=VALUE on the command line adds a key that the configuration lacks (Hydra), "
            f"where the code reads it",
            "configuration, script and package of one version (a recipe from the main branch with "
            "an older package does this)",
        )
        return Advice("setting", says, steps, place)
    found = re.search(
        r"Interpolation key '(?P<name>[^']+)' not found|Cannot find primary config "
        r"'(?P<config>[^']+)'",
        message,
    )
    if found:
        what = (
            f"The configuration refers to {found['name']}, which is not in it"
            if found["name"]
            else (f"Hydra does not find the configuration {found['config']}")
        )
        steps = (
            "configuration and package of one version; --config-path (an absolute one) and "
            "--config-name as the files are",
            "the message and hydra.searchpath say where it looked",
        )
        return Advice("setting", what + ".", steps, place)
    found = re.search(
        r"Value '(?P<value>[^']*)'.{0,40} (?:could not be converted to|is not a valid|is "
        r"incompatible with type hint) '?(?P<type>\w+)",
        message,
    )
    if found:
        full = re.search(r"full_key: (?P<full>[\w.]+)", message)
        key = full["full"] if full else "the setting"
        return Advice(
            "setting",
            f"{key} is {found['value']!r}, and {found['type']} is expected.",
            (f"give {key} a value of that type (quotes, brackets and null are read by Hydra)",),
            place,
        )
    missing = re.search(
        r"Missing mandatory value: (?P<name>[\w.]+)|the following arguments are required: "
        r"(?P<names>.+)",
        message,
    )
    if missing:
        name = missing["name"] or missing["names"]
        return Advice(
            "setting",
            f"The setting {name} has no value and needs one.",
            (f"give {name} on the command line or in the configuration",),
            place,
        )
    source = read.last.source if read.last else ""
    if "NoneType" in message and source:
        names = settings_of(source)
        whose = _whose(read.last)
        if names:
            says = f"{whose} meets None at “{source[:LONGEST_QUOTE]}”: a setting that is read there has no value."
            steps = (
                f"set {', '.join(names)}, or leave out what makes the code read it",
                *(_update(read.last.package) if read.last and read.last.package else ()),
            )
            return Advice("setting", says, steps, place)
    return None


def _update(package: str) -> tuple[str, ...]:
    return (f"if that is not it: a newer {called(package)} ({_install(package)}), since it does not say what it lacks",)


def _weights(read: _Read) -> Advice | None:
    """A weight's name or shape that the other side does not have."""
    message = read.message
    key = re.search(r"KeyError: '([^']+)'|^'([\w.]+)'$|method failed: '([\w.]+)'|^([\w.]+)$", message.strip())
    name = next((one for one in key.groups() if one), "") if key else ""
    weight = name if name and _WEIGHT.search(name) and "." in name else ""
    loading = re.search(r"size mismatch for ([\w.]+)", message) or re.search(
        r"()(?:Missing|Unexpected) key\(s\)|Error\(s\) in loading state_dict|not found in (?:the "
        r")?(?:state_?dict|checkpoint)|no module or parameter named",
        message,
    )
    if not weight and not loading:
        return None
    place, frame = _where(read.last), read.caller
    sync = read.within(_IN_SYNC, 12) or "collective_rpc" in message
    named = weight or (loading[1] if loading else "")
    if sync and (weight or "no module" in message):
        engine = next((one for one in ("sglang", "vllm") if any(item.package == one for item in read.frames)), "vllm")
        trainer = next(
            (
                item.package
                for item in reversed(read.frames)
                if item.package not in ("", "python", "vllm", "sglang", *TOOLS)
            ),
            "",
        )
        who = called(trainer) if trainer else "the trainer"
        says = (
            f"{who} hands {called(engine)} a weight called {named or 'otherwise'}, which the "
            f"model inside {called(engine)} does not have: the two sides name the weights "
            f"differently."
        )
        steps: tuple[str, ...] = ()
        if re.search(r"base_layer|lora_|base_model", named + message):
            steps = (
                "that name is LoRA's (PEFT wraps the layers): merge the adapter before weights "
                "are sent, or switch LoRA off as a check; a newer trainer renames or merges by "
                "itself",
            )
        elif re.search(r"visual|language_model|vision", named):
            steps = (
                "transformers from 4.52 on names the parts of vision models differently: take the "
                "transformers that this " + called(engine) + " was made for, or update both",
            )
        elif re.search(r"experts|gate|router", named):
            steps = (
                "experts (MoE) are fused on one side and single on the other: a newer trainer "
                "that knows this model, or the versions it names for it",
            )
        declared = _declared(trainer, engine) if trainer else ""
        steps += (
            f"the versions of {who}, {called(engine)} and transformers that the project pins for this model{declared}",
            "the engine must have been started with the very model that is trained (same folder, "
            "no quantization, no added tokens)",
        )
        return Advice("weights", says, steps, place)
    if weight or loading:
        says = (
            f"A checkpoint and the model do not fit: "
            f"{'the weight ' + named if named else 'names or shapes of weights'} is not the same "
            f"on both sides."
        )
        steps = (
            "the checkpoint must come from this very model class and size; an adapter's folder "
            "needs its base model, a sharded checkpoint its merge first",
            "a resized vocabulary, a value head or a prefix (module., _orig_mod., "
            "base_model.model.) makes such a difference",
            f"{_whose(frame)} of the version that wrote it; otherwise update {called('transformers')} with it",
        )
        return Advice("weights", says, steps, place)
    return None


_WITHOUT_DATA = {"peft", "vllm", "sglang", "torch", "deepspeed", "accelerate", "megatron", "ray"}
"""Packages that see no row of the data."""


def _column(read: _Read) -> Advice | None:
    """A column or key that the data lacks."""
    message = read.message.strip()
    key = re.fullmatch(r"['\"]?([\w /-]{1,60})['\"]?", message) if read.type == "KeyError" else None
    found = re.search(
        r"[Cc]olumn(?:s)? (?:name )?\[?['\"`]?([\w-]+)['\"`]?\]? (?:is |are )?(?:not in|doesn't "
        r"exist|does not exist|not found|missing)|Column to (?:remove|rename|select) \['?(\w+)'?"
        r"|['\"`](\w+)['\"`] (?:column )?(?:is )?not (?:found )?in (?:the )?(?:dataset|columns"
        r"|data)"
        r"|[Tt]he following columns? .*?(?:don't|do not|doesn't) .*?",
        message,
    )
    name = key[1] if key else next((one for one in found.groups() if one), "") if found else ""
    frame, place = read.last, _where(read.last)
    held = re.search(r'key "(\w+)" not found in (?:TensorDict|DataProto)', message)
    if held:
        says = f"The batch has no tensor {held[1]!r}, which {_whose(read.caller)} reads ({_where(read.caller)})."
        steps = (
            f"the step that makes {held[1]} did not run, or is of another version: a rollout, a "
            f"tool or a reward that adds it, switched off or taken from another commit",
            f"print the keys of the batch before that line; then the versions of "
            f"{_whose(read.caller)} and of the engine that it names",
        )
        return Advice("column", says, steps, _where(read.caller))
    inside = frame is not None and frame.package in _WITHOUT_DATA
    if not name or not (
        found or (not inside and (read.within(_IN_DATA, 3) or (read.own is not None and read.within(_IN_REWARD, 3))))
    ):
        return None
    whose = _whose(read.caller)
    says = (
        f"A row of the data has no {name!r}; {whose} asks for it at {place}."
        if frame
        else (f"A row of the data has no {name!r}.")
    )
    steps = [
        f"print(dataset.column_names) and one row: is {name} there, spelt like that, in the "
        f"training and the validation file?"
    ]
    if frame and frame.package and frame.package not in TOOLS:
        steps.append(
            f"write the data as {called(frame.package)} wants it (its own data preparation script "
            f"or documented format), or give it the name your column has"
        )
        if frame.package in ("trl", "transformers", "unsloth"):
            steps.append("remove_unused_columns=False, if the column is there and was dropped")
    else:
        steps.append(f"dataset.rename_column(YOUR_COLUMN, {name!r}), or change the line at {place}")
    return Advice("column", says, tuple(steps), place)


def _network(read: _Read) -> Advice | None:
    """A request over the network that failed."""
    if re.search(r"c10d|NCCL|ProcessGroup|TCPStore|[Rr]endezvous|client socket|server socket", read.message):
        return None  # processes of the run among each other
    if not re.search(
        r"Connect|Timeout|HTTP|SSL|Proxy|Max retries|APIError|RateLimit|Authentication"
        r"|RemoteDisconnected|Unauthorized|status code",
        f"{read.type} {read.message}",
    ):
        return None
    message = read.message
    found = re.search(
        r"host='?(?P<host>[\w.-]+)'?(?:, port=(?P<port>\d+))?"
        r"|https?://(?P<url>[\w.-]+)(?::(?P<urlport>\d+))?"
        r"|(?P<ip>\d+\.\d+\.\d+\.\d+):(?P<ipport>\d+)",
        message,
    )
    status = re.search(
        r"(?:[Ss]tatus|[Cc]ode|HTTP|[Ee]rror|[Ff]ailed|response)\W{0,8}\b(401|403|404|408|429|500"
        r"|502|503|504)\b|^\W{0,2}(401|403|404|408|429|500|502|503|504) ",
        message,
    )
    if not found and not status:
        return None
    number = next((one for one in status.groups() if one), "") if status else ""
    host = next((one for one in (found["host"], found["url"], found["ip"]) if one), "") if found else ""
    port = next((one for one in (found["port"], found["urlport"], found["ipport"]) if one), "") if found else ""
    address = f"{host}{':' + port if port else ''}" or "the server"
    meanings = {
        "401": "it does not accept the key", "403": "it does not allow this", "404":
            "it has no such address (another server, or another version of it)", "408": "it waited too long",
        "429": "too many requests at once", "500":
            "the server itself failed: its own log says why", "502":
            "nothing answered behind the gateway", "503":
            "it is not ready or overloaded", "504": "it took too long",
    }  # fmt: skip
    said = (
        f"{address} answered {number}: {meanings[number]}."
        if number
        else (f"{address} could not be reached or did not answer in time.")
    )
    own = bool(re.match(r"(?:localhost|0\.0\.0\.0|127\.|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.)", host))
    place = _where(read.caller)
    if own or not host or (host and "." not in host):
        steps = (
            f"is the server at {address} still running, and ready? Its own log says why it is "
            f"not; curl http://{address}/ from this machine",
            "http_proxy set in the environment catches local addresses too: "
            "no_proxy=localhost,127.0.0.1 and the host's own address",
            "fewer requests at once, and a longer time limit in the script",
        )
    elif "huggingface" in host:
        steps = (
            f"reach {host} from this machine (compute nodes often cannot), or HF_ENDPOINT of a mirror",
            "download the model before and give its folder; HF_HUB_OFFLINE=1 then asks nobody",
        )
    elif "wandb" in host:
        steps = (
            "WANDB_MODE=offline, or report_to=none; the run does not need it",
            f"reach {host} from this machine (proxy, firewall)",
        )
    else:
        steps = (
            f"does {host} answer from this machine (curl, proxy, key, quota)?",
            "what calls it during training should survive a failure: retry, a time limit, and a reward for the rest",
        )
    who = f" It is called by {_whose(read.caller)} ({place})." if place else ""
    return Advice("network", said + who, steps, place)


def _own_code(read: _Read) -> Advice | None:
    """The user's own file raised it."""
    frame = read.own
    if frame is None or read.type in ("ModuleNotFoundError", "ImportError"):
        return None
    earlier = [
        one for one in read.frames[: read.frames.index(frame)] if one.package in PACKAGES and one.package not in TOOLS
    ]
    reward = bool(_IN_REWARD.search(frame.function) or _IN_REWARD.search(frame.file.rpartition("/")[2]))
    what = (
        "reward function"
        if reward
        else "function"
        if frame.function not in ("<module>", "main", "<cell>")
        else "script"
    )
    by = f", which {called(earlier[-1].package)} calls," if earlier else ""
    says = (
        f"Your own {what} {frame.function if what != 'script' else ''}".strip()
        + (f"{by} raised it, at {frame.file}{':' + str(frame.line) if frame.line else ''}")
        + (f": “{frame.source[:LONGEST_QUOTE]}”." if frame.source else ".")
    )
    if reward:
        steps = (
            f"make {frame.function} survive what it cannot score: one odd completion is enough to "
            f"end the run (try, and a reward of 0.0)",
            f"call {frame.function} by hand on a few real completions and rows; print what it gets at that line",
        )
    elif read.within(_IN_DATA):
        steps = (f"print what {frame.function} gets at that line: a row of another shape than it expects",)
    else:
        steps = (f"look at that line: {_hint(read)}",)
    return Advice("own-code", says, steps, _where(frame))


def _hint(read: _Read) -> str:
    return {
        "KeyError": f"the key {read.message.strip()[:80]} is not there; print the keys",
        "IndexError": "the list is shorter than the index; print its length",
        "NameError": "the name is not defined in that place (an import, or a notebook cell that was not run)",
        "UnboundLocalError": "the variable is set only in a branch that was not taken",
        "FileNotFoundError": "the path is relative to the directory the run was started in",
        "ZeroDivisionError": "the divisor is 0, often an empty list of completions or rewards",
        "ModuleNotFoundError": "the package is not in this environment",
    }.get(read.type, "print the values it uses")


_SHAPES = re.compile(
    r"size of tensor|[Ss]izes? (?:of tensors )?must match|shape|mat1 and mat2|dimension|expanded "
    r"size|broadcast|reshape|split_with_sizes|index_\w+\(\)|same reduction dim|stack expects|out "
    r"of bounds|numel|length mismatch|same length|size mismatch"
)
_DTYPES = re.compile(
    r"dtype|same type|scalar type|expected \w+ (?:type )?but (?:got|found) \w+|Half|BFloat16"
    r"|bfloat16 != |Float and|FloatTensor"
)
_DEVICES = re.compile(
    r"same device|two devices|device meta|on cpu|device type|cuda:\d|Torch not compiled with CUDA"
    r"|is on device"
)
_SHARDED = re.compile(r"mixed torch\.Tensor and DTensor|DTensor")


def _numbers(read: _Read) -> Advice | None:
    """Shapes, types of numbers or devices that do not match, by where in a run they met."""
    if (
        read.type
        not in (
            "RuntimeError",
            "ValueError",
            "AssertionError",
            "IndexError",
            "TorchRuntimeError",
            "TypeError",
            "InternalTorchDynamoError",
        )
        or not read.message
    ):
        return None
    message = read.message
    if _SHARDED.search(message):
        return _sharded(read)
    kind = next(
        (
            name
            for name, pattern in (("devices", _DEVICES), ("dtypes", _DTYPES), ("shapes", _SHAPES))
            if pattern.search(message)
        ),
        "",
    )
    if not kind or not (read.frames or kind != "shapes"):
        return None
    frame, where = read.caller, read.place()
    whose, place = _whose(frame), _where(frame)
    noun = {
        "devices": "Tensors on different devices",
        "dtypes": "Tensors of different number types",
        "shapes": "Tensors of different shapes",
    }[kind]
    says = f"{noun} met{' ' + where if where else ''}" + (f", in {whose} ({place})." if frame else ".")
    sync = where.startswith("while weights")
    if kind == "dtypes":
        first = (
            "load the trained model in the type the engine has (torch_dtype=bfloat16, or the "
            "engine's dtype), or cast before weights are sent"
            if sync
            else "one type throughout: bf16=True with torch_dtype=bfloat16 (or float32 "
            "everywhere); a layer that was left in another type (lm_head, adapter, value "
            "head) is cast to the model's"
        )
    elif kind == "devices":
        first = (
            "move what the line reads to the other tensor's device (.to(x.device)); no device_map "
            "in training; everything that goes into the model through accelerator.prepare or "
            ".to(device)"
        )
    elif sync:
        first = (
            "both sides must hold the same model: same folder, no added tokens on one side, no "
            "quantization; and the parallel sizes that the weights were cut for"
        )
    elif "vision" in where:
        first = (
            "the number of image tokens in the prompt and what the images give must agree: no "
            "cutting of prompts with images (max_prompt_length), the processor of the same "
            "version as the model"
        )
    elif "attention" in where or "rotary" in where:
        first = (
            "another attn_implementation (sdpa, eager) as a check; use_cache off with gradient "
            "checkpointing; position ids and mask of the same length as the tokens"
        )
    else:
        first = (
            "print the shapes on that line with a batch of one: it shows which side was cut or "
            "padded (truncation, an answer too few, a mask made elsewhere)"
        )
    steps = [first]
    if frame and frame.package:
        steps.append(
            f"no frame of your own is inside: a newer {called(frame.package)} "
            f"({_install(frame.package)}) with the versions it asks for, if the settings do not "
            f"explain it"
        )
    return Advice(kind, says, tuple(steps), place)


def _sharded(read: _Read) -> Advice:
    """A tensor of FSDP2 or of tensor parallelism met a plain one."""
    frame, where = read.caller, read.place()
    says = (
        f"A sharded tensor (DTensor, of FSDP2 or tensor parallelism) met a plain one{' ' + where if where else ''}"
    ) + (f", in {_whose(frame)} ({_where(frame)})." if frame else ".")
    trainer = next(
        (one.package for one in reversed(read.frames) if one.package not in ("", "python", "vllm", "sglang", *TOOLS)),
        "",
    )
    engine = next((one.package for one in reversed(read.frames) if one.package in ("vllm", "sglang")), "torch")
    steps = (
        "the weights have to be gathered where they are handed over (param.full_tensor()): "
        + (
            f"a newer {called(trainer)} does so for its version of torch and {called(engine)}"
            if trainer
            else "update the trainer"
        ),
        f"the versions of torch{' and ' + called(engine) if engine != 'torch' else ''} that "
        f"{called(trainer) if trainer else 'it'} "
        f"names{_declared(trainer, 'torch') if trainer else ''}",
        "FSDP1 in place of FSDP2 (fsdp_version), or without tensor parallelism, as a check",
    )
    return Advice("weights", says, steps, _where(frame))


def _lookup(read: _Read) -> Advice | None:
    """A name that a table of the package does not have."""
    source, frame = (read.last.source, read.last) if read.last else ("", None)
    found = re.search(
        r"(\w*(?:mapping|map|config|adapters|registry|table|dict|classes|functions|fns|types"
        r"|templates|factory|models)\w*)\[",
        source,
        re.IGNORECASE,
    )
    name = read.message.strip().strip("'\"")
    if (
        read.type != "KeyError"
        or not found
        or frame is None
        or not frame.package
        or frame.package in TOOLS
        or len(name) > 60
    ):
        return None
    who = called(frame.package)
    says = f"{who} looks {name!r} up in its {found[1]} and does not find it: this {who} does not know that name."
    steps = (
        f"is {name!r} spelt as the documentation of {who} has it, and was it made or registered "
        f"before? Names of commands move (help of the version installed)",
        f"a newer {who} ({_install(frame.package)}), if its documentation has the name",
    )
    return Advice("setting", says, steps, _where(frame))


def _file(read: _Read) -> Advice | None:
    """A file that is not there, or is no JSON."""
    place = _where(read.caller)
    if read.type in ("FileNotFoundError", "NotADirectoryError"):
        path = re.search(r"'([^']+)'|\"([^\"]+)\"", read.message)
        name = (path[1] or path[2]) if path else "the file"
        says = f"{name} does not exist on this machine" + (
            f"; {_whose(read.caller)} wants to read it ({place})." if place else "."
        )
        relative = (
            ""
            if name.startswith(("/", "~")) or not path
            else (
                "it is relative to the directory the run was started in (for Ray, to that of the "
                "worker): give the whole path"
            )
        )
        steps = (
            relative
            or "every machine and container of the run must see that path (mounts, a download or "
            "preparation step that was left out)",
            "ls it on the machine, under the user, where the process runs",
        )
        return Advice("file", says, steps, place)
    if read.type == "JSONDecodeError":
        says = (
            f"What is read as JSON is none{', at ' + place if place else ''}: an empty answer or "
            f"a page of HTML from a server, or a broken line of a file."
        )
        return Advice(
            "file",
            says,
            (
                "print the first hundred characters of it; a server: its status and log; a file: the "
                "line that the message names",
            ),
            place,
        )
    return None


def _gpu(read: _Read) -> Advice | None:
    """The GPU refused an operation."""
    found = re.search(
        r"(?:(?:CUDA|HIP|NPU|XPU|MUSA)(?: runtime)? error: )?(?P<what>CUBLAS_STATUS_\w+"
        r"|CUDNN_STATUS_\w+)",
        read.message,
    )
    found = found or re.search(r"(?:CUDA|HIP|NPU|XPU|MUSA)(?: runtime)? error: (?P<what>[^.\n]{3,80})", read.message)
    if not found:
        return None
    frame = read.caller
    where = read.place() if read.frames and read.frames[-1].package == "torch" else ""
    says = (
        (f"The GPU refused an operation ({found['what'].split(' CUDA kernel')[0].split(' HIP kernel')[0].strip()})")
        + (f" {where}" if where else "")
        + (f", or one before {_where(frame)}: kernels run later than they are called." if frame else ".")
    )
    steps = (
        "CUDA_LAUNCH_BLOCKING=1 (HIP: AMD_SERIALIZE_KERNEL=3) for one short run: the traceback "
        "then ends at the operation itself",
        "the same step on the CPU, or with a smaller batch: an index out of range and a full GPU both end like this",
        "python -m torch.utils.collect_env: the torch build, the driver and the GPU must fit each other",
    )
    return Advice("gpu", says, steps, _where(frame))


_CONDITIONS = {
    "dtype": "it compares number types: one type for all weights (an adapter, a value head or a layer "
    "left in float32 next to bfloat16 breaks that)",
    "is_available": "it asks whether something is installed or present on this machine",
    "shape": "it compares shapes: print both sides of it",
    "device": "it compares devices: print where both sides lie",
}
"""What a condition is about, by a word of it."""


def _assertion(read: _Read) -> Advice | None:
    """An assertion, with or without words."""
    if read.type != "AssertionError":
        return None
    frame, place = read.last, _where(read.last)
    source = frame.source if frame else ""
    message = read.message.strip().removeprefix("AssertionError").strip(": ")
    if not message and not source.startswith("assert"):
        return None
    condition = re.match(r"assert (?P<condition>.+?)(?:, *[fr]?['\"(].*|,? *[\\(]?)$", source)
    names = settings_of(source)
    says = f"{_whose(frame)} checks a condition that does not hold"
    says += f": {message[:LONGEST_QUOTE].rstrip('.')}." if message else ""
    if condition:
        says += f"{'' if message else '.'} The condition: “{condition['condition'][:LONGEST_QUOTE]}”."
    steps = []
    if names:
        steps.append(f"change {', '.join(names)}, which the check reads, so that it holds")
    elif message:
        named = settings_in(message)
        steps.append(
            f"see to it that it holds: {message[:LONGEST_QUOTE]}" + (f" (it names {', '.join(named)})" if named else "")
        )
    elif condition:
        steps.append(f"see to it that it holds: {condition['condition'][:LONGEST_QUOTE]}")
    about = next((words for word, words in _CONDITIONS.items() if condition and word in condition["condition"]), "")
    if about:
        steps.append(about)
    if frame and frame.package:
        steps.append(
            f"{place} shows the lines around the check; if the settings agree with it, a newer {called(frame.package)}"
        )
    return Advice("assertion", says, tuple(steps), place)


def _said_alone(read: _Read) -> Advice | None:
    """A message that says itself what to do."""
    said = cure_in(read.message)
    if said is None:
        return None
    place = _where(read.last)
    says = (
        f"{_whose(read.caller)} refuses to go on, and says why."
        if read.frames
        else ("The message says itself what to change.")
    )
    return Advice("message", says, (_quote(said, read),), place)


def _library(read: _Read) -> Advice | None:
    """Whatever else failed inside of a package."""
    frame = read.caller
    if frame is None or not frame.package:
        return None
    place, source = _where(frame), frame.source
    where = read.place()
    above = next(
        (
            one.package
            for one in reversed(read.frames)
            if one.package in PACKAGES and one.package not in TOOLS | {frame.package}
        ),
        "",
    )
    by = f" (which {called(above)} calls)" if above and frame.package not in PACKAGES else ""
    who = called(above) if by else called(frame.package)
    if source.startswith("raise") and read.message:
        says = (
            f"{called(frame.package)}{by} checked something and refuses to go on: "
            f"“{read.message[:LONGEST_QUOTE]}” ({place})."
        )
        names = settings_in(read.message)
        steps = [f"the message names {', '.join(names)}: is that what you meant to give?"] if names else []
        steps.append(f"the lines above {place} show what was checked; if all is as it should be, a newer {who}")
        return Advice("library", says, tuple(steps), place)
    says = (
        f"It failed inside of {called(frame.package)}{by}"
        + (f", {where}" if where else "")
        + f", at {place}"
        + (f": “{source[:LONGEST_QUOTE]}”." if source else ".")
    )
    names = settings_of(source)
    steps = []
    if "NoneType" in read.message:
        steps.append(
            "something on that line is None: what should have made it failed or was left out "
            "(warnings above), or a setting has no value"
        )
    if names:
        steps.append(
            f"the settings read on that line: {', '.join(names)}; are they what {called(frame.package)} expects?"
        )
    if re.search(
        r"unsupported operand type|must be (?:str|real number|int|float)|not (?:iterable"
        r"|subscriptable|callable)|object cannot be|has no len\(\)",
        read.message,
    ) and _IN_REWARD.search(source + frame.function):
        steps.append(
            "a reward function handed over something else than one number for each answer (a dict, a list, None)"
        )
    handed = re.search(
        r"'(list|dict|str|int|float|tuple|bool|ndarray|bytes)' object (?:has no attribute|is not"
        r"|does not|cannot)|(list|string) indices must be integers",
        read.message,
    )
    if handed:
        steps.append(
            f"it was handed a value of type {handed[1] or handed[2]} where it expects something "
            f"else: a row of the data, a reward or a setting of another form (print it)"
        )
    steps.append(
        f"no frame of your own is inside: a fault of {who}, or a case it does not handle. A newer "
        f"{who} ({_install(above if by else frame.package)}), and its issues searched for the "
        f"message"
    )
    return Advice("library", says, tuple(steps), place)


RULES: tuple[Callable[[_Read], Advice | None], ...] = (
    _versions, _setting, _weights, _lookup, _column, _network, _gpu, _file, _own_code, _numbers, _assertion,
    _said_alone, _library,
)  # fmt: skip
"""From what says most about the cause to what says least."""
