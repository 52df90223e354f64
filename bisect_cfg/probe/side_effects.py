"""A trial writes nowhere but into its own folder: reporters, hub and checkpoints off, output redirected.

The same holds for the first reproduction. None of this touches what is computed: a checkpoint, a report or an
upload draws no random number.
"""

import sys

from . import protocol, record, saves
from .held import functools, os
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

# Uploads of huggingface_hub that a script may call before it trains or from a callback, and what else changes a
# repository. The first three give an answer that scripts look at: the commit.
_HUB_COMMITS = ("create_commit", "upload_file", "upload_folder")
_HUB_WRITES = (
    *_HUB_COMMITS, "upload_large_folder", "create_branch", "create_tag", "delete_repo", "delete_file", "delete_files",
    "delete_folder", "delete_branch", "delete_tag", "move_repo", "super_squash_history", "update_repo_settings",
    "update_repo_visibility",
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


class _State:
    folder = None  # where output goes while there is no trial: in a server, before it forks


state = _State()


def install():
    """Switch trackers and uploads off for this process and its children."""
    os.environ.update(_TRACKERS_OFF)
    when_imported("huggingface_hub.hf_api", _wrap_hub)
    when_imported("huggingface_hub._login", _wrap_login)
    when_imported("transformers.utils.hub", _wrap_push)
    when_imported("accelerate.launchers", _use_free_port)
    saves.install()


def _use_free_port(module):
    """Have `notebook_launcher` let its processes meet at a free port where it is told none: trials that run at once
    would all meet at 29500."""
    import socket

    launcher = module.notebook_launcher
    defaults = list(launcher.__defaults__ or ())
    names = launcher.__code__.co_varnames[: launcher.__code__.co_argcount][-len(defaults) :]
    if "use_port" in names[: len(defaults)]:
        with socket.socket() as one:
            one.bind(("", 0))
            defaults[names.index("use_port")] = str(one.getsockname()[1])
        launcher.__defaults__ = tuple(defaults)


def redirects(name):
    """Whether a setting says where output goes, and so is ours while a trial runs."""
    return name in PINNED or name in ("output_dir", "logging_dir")


def silence(arguments, index=0, prepares=False):
    """Redirect a `TrainingArguments` object before it is resolved.

    Args:
        arguments: the object.
        index: its number, in order of creation.
        prepares: whether the training that it is for only prepares the one under study.
    """
    for name, value in PINNED.items():
        if hasattr(arguments, name) and not (prepares and name in _SAVING):
            setattr(arguments, name, value)
    folder = record.trial() or state.folder
    if folder is not None:
        place = os.path.join(folder, saves.OUTPUT, *((f"config-{index + 1}",) if index else ()))
        if isinstance(arguments.output_dir, str) and os.path.isdir(arguments.output_dir):
            os.makedirs(place, exist_ok=True)  # scripts look for it before they look for a checkpoint in it
        saves.redirect(arguments.output_dir, place)
        arguments.output_dir = place
        if getattr(arguments, "logging_dir", None) is not None:
            arguments.logging_dir = os.path.join(folder, saves.OUTPUT, "runs")


def _wrap_hub(module):
    def skipped(name):
        def nothing(*args, run_as_future=False, **kwargs):
            record.event(protocol.Skipped(name))
            answer = _commit(module, kwargs) if name in _HUB_COMMITS else None
            if not run_as_future:
                return answer
            future = sys.modules["concurrent.futures"].Future()  # hf_api has imported it
            future.set_result(answer)
            return future

        return nothing

    def create_repo(*args, **kwargs):
        record.event(protocol.Skipped("create_repo"))
        name = kwargs.get("repo_id") or next((arg for arg in args if isinstance(arg, str)), "name")
        return _repository(module, name, kwargs.get("repo_type"))

    replacements = {name: skipped(name) for name in _HUB_WRITES if hasattr(module.HfApi, name)}
    replacements["create_repo"] = create_repo
    for name, function in replacements.items():
        setattr(module.HfApi, name, function)
        if hasattr(module, name):  # the module exports bound methods of one instance under the same names
            setattr(module, name, function)


def _wrap_login(module):
    def skipped(name):
        return lambda *args, **kwargs: record.event(protocol.Skipped(name))

    for name in _HUB_ASKS:
        if hasattr(module, name):
            setattr(module, name, skipped(name))


def _wrap_push(module):
    # Before it uploads it reads the repository's card: without a network that takes minutes, in silence.
    mixin = getattr(module, "PushToHubMixin", None)
    original = getattr(mixin, "__dict__", {}).get("push_to_hub")
    if not callable(original):
        return

    @functools.wraps(original)
    def push_to_hub(self, *args, **kwargs):
        record.event(protocol.Skipped("push_to_hub"))
        hub = sys.modules.get("huggingface_hub.hf_api")
        return _commit(hub, {**({"repo_id": args[0]} if args else {}), **kwargs})

    mixin.push_to_hub = push_to_hub


def _repository(module, name, kind):
    """The address of a repository as the hub would give it: always with a namespace, which the real hub fills in."""
    kinds = {"dataset": "datasets/", "space": "spaces/"}
    name = "/".join(["user", *str(name).strip("/").split("/")][-2:])
    return module.RepoUrl(f"https://huggingface.co/{kinds.get(kind, '')}{name}")


def _commit(module, given):
    """What an upload would have answered; None where this version of the library makes it otherwise."""
    try:
        repository = _repository(module, given.get("repo_id") or "name", given.get("repo_type"))
        commit = "0" * 40
        return module.CommitInfo(
            commit_url=f"{repository}/commit/{commit}",
            commit_message=given.get("commit_message") or "",
            commit_description=given.get("commit_description") or "",
            oid=commit,
        )
    except Exception:
        return None
