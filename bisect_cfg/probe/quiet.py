"""A trial writes nowhere but into its own folder: reporters, hub and checkpoints off, output redirected.

The same holds for the first reproduction. None of this touches what is computed: a checkpoint, a report or an
upload draws no random number.
"""


from . import record
from .held import os
from .imports import when_imported

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

# Uploads of huggingface_hub that a script may call before it trains.
_HUB_WRITES = ("create_commit", "upload_file", "upload_folder", "upload_large_folder", "create_branch", "create_tag")

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


class _State:
    folder = None  # where output goes while there is no trial: in a server, before it forks


state = _State()


def install():
    """Switch trackers and uploads off for this process and its children."""
    os.environ.update(_TRACKERS_OFF)
    when_imported("huggingface_hub.hf_api", _wrap_hub)


def redirects(name):
    """Whether a setting says where output goes, and so is ours while a trial runs."""
    return name in PINNED or name in ("output_dir", "logging_dir")


def silence(arguments):
    """Redirect a `TrainingArguments` object before it is resolved."""
    for name, value in PINNED.items():
        if hasattr(arguments, name):
            setattr(arguments, name, value)
    folder = record.folder() or state.folder
    if folder is not None:
        arguments.output_dir = os.path.join(folder, "output")
        if getattr(arguments, "logging_dir", None) is not None:
            arguments.logging_dir = os.path.join(folder, "output", "runs")


def _wrap_hub(module):
    def skipped(name):
        def nothing(*args, **kwargs):
            record.event("skipped", call=name)

        return nothing

    def create_repo(*args, **kwargs):
        record.event("skipped", call="create_repo")
        name = kwargs.get("repo_id") or next((arg for arg in args if isinstance(arg, str)), "user/name")
        return module.RepoUrl("https://huggingface.co/" + name)

    replacements = {name: skipped(name) for name in _HUB_WRITES if hasattr(module.HfApi, name)}
    replacements["create_repo"] = create_repo
    for name, function in replacements.items():
        setattr(module.HfApi, name, function)
        if hasattr(module, name):  # the module exports bound methods of one instance under the same names
            setattr(module, name, function)
