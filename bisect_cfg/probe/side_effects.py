"""A trial reports and uploads nothing, and writes into its own folder.

The same holds for the first reproduction. None of this touches what is computed: a checkpoint, a report or an upload
draws no random number.
"""

import sys

from . import protocol, record, resuming, saves, wrap
from .standard_library import functools, os

# Experiment trackers a script may start itself, past `report_to`; each variable is the tracker's own off switch.
_TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_START_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "DVCLIVE_TEST": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # a trial is not a use of the libraries that anyone should count
}

# Uploads of huggingface_hub that a script may call before it trains or from a callback, and what else changes a
# repository. The first three give an answer that scripts look at: the commit.
_HUB_COMMITS = ("create_commit", "upload_file", "upload_folder")
_HUB_WRITES = (
    *_HUB_COMMITS, "upload_large_folder", "create_repo", "create_branch", "create_tag", "delete_repo", "delete_file",
    "delete_files", "delete_folder", "delete_branch", "delete_tag", "move_repo", "super_squash_history",
    "update_repo_settings", "update_repo_visibility",
)  # fmt: skip

# What asks whoever sits there for a token: nobody does. The token that this machine has is used.
_HUB_ASKS = ("notebook_login", "interpreter_login")

# Settings that would write, report or upload. They are pinned in every trial and are never factors.
PINNED = {
    "report_to": "none",
    "push_to_hub": False,
    "hub_model_id": None,
    "hub_token": None,
    "log_completions_hub_repo": None,
    "trackio_space_id": None,
    "save_strategy": "no",
    "save_only_model": False,
    "load_best_model_at_end": False,
}

# Of these what saves is left to a training that only prepares something: what it saves, a later one may load.
_SAVING = ("save_strategy", "save_only_model", "load_best_model_at_end")

# Where transformers saves if it is not told.
_OUTPUT_DIR = "trainer_output"


def install():
    """Switch trackers and uploads off for this process and its children."""
    os.environ.update(_TRACKERS_OFF)
    for name in _HUB_WRITES:
        wrap.in_module("huggingface_hub.hf_api", f"{name} HfApi.{name}", functools.partial(_skip, name))
    for name in _HUB_ASKS:
        wrap.in_module("huggingface_hub._login", name, functools.partial(_skip, name))
    wrap.in_module("transformers.utils.hub", "PushToHubMixin.push_to_hub", functools.partial(_skip, "push_to_hub"))
    saves.install()
    resuming.install()


def redirects(name):
    """Whether a setting says where output goes, and so is ours while a trial runs."""
    return name in PINNED or name in ("output_dir", "logging_dir")


def silence(arguments, prepares=False):
    """Redirect a `TrainingArguments` object before it is resolved; `prepares`: the training that it is for only
    prepares the one under study."""
    for name, value in PINNED.items():
        if hasattr(arguments, name) and not (prepares and name in _SAVING):
            setattr(arguments, name, value)
    own = arguments.output_dir or _OUTPUT_DIR
    arguments.output_dir = saves.place_of(own)
    if os.path.isdir(own):
        os.makedirs(arguments.output_dir, exist_ok=True)  # scripts look for it before they look for a checkpoint in it
    if getattr(arguments, "logging_dir", None) is not None:
        arguments.logging_dir = saves.place_of(arguments.logging_dir)


def _skip(name, original, /, *arguments, run_as_future=False, **keywords):
    """Answer in place of a function of this name, without calling it."""
    record.event(protocol.Skipped(name))
    names = [one for one in arguments if isinstance(one, str)]
    answer = _answer(name, keywords.get("repo_id") or (names or ["name"])[0], keywords)
    if not run_as_future:
        return answer
    future = sys.modules["concurrent.futures"].Future()  # hf_api has imported it
    future.set_result(answer)
    return future


def _answer(name, repository, keywords):
    """What the hub would have answered, as far as scripts look at it; None where this version makes it otherwise."""
    kind = {"dataset": "datasets/", "space": "spaces/"}.get(keywords.get("repo_type"), "")
    # Always with a namespace, which the real hub fills in.
    address = f"https://huggingface.co/{kind}" + "/".join(["user", *repository.strip("/").split("/")][-2:])
    try:
        module = sys.modules["huggingface_hub.hf_api"]
        if name == "create_repo":
            return module.RepoUrl(address)
        if name in (*_HUB_COMMITS, "push_to_hub"):
            said = {part: keywords.get(f"commit_{part}") or "" for part in ("message", "description")}
            commit = "0" * 40
            return module.CommitInfo(f"{address}/commit/{commit}", said["message"], said["description"], commit)
    except Exception:
        pass
    return None
