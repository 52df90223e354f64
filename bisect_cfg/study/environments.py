"""The environments that a study builds: the two between which packages vary, and that of a known cure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisect_cfg.common.configuration import present
from bisect_cfg.common.words import duration
from bisect_cfg.errors import InputError
from bisect_cfg.explain.knowledge import Entry
from bisect_cfg.remedy.alternatives import Alternative
from bisect_cfg.runner.environments import CACHE, CannotBuild, Environments
from bisect_cfg.runner.orders import inside
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Packages
from bisect_cfg.study.study import Study
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import EDITABLE, PACKAGE, Installed, Mixtures, installed_by

INSTALLERS = ("uv", "pip", "poetry", "pdm")
"""Those that get packages from an index; conda and Debian write another name, or none."""

NAMED = 12
"""So many packages are listed by name: of a whole system they would be hundreds."""


def both_environments(study: Study, settings: Factors) -> Packages | None:
    """Build the two environments between which packages vary; None if none does.

    Raises:
        InputError: one of them cannot be built.
    """
    good, bad = (inside(PACKAGE, settings.overrides(levels)) for levels in (settings.good, settings.bad))
    if not good:
        return None
    installed, environments = study.installed, _environments(study)
    for text in odd_ones(installed):
        study.note(text)
    packages = Packages(installed.levels, Mixtures({}, {}, installed.markers))
    found = []
    for side, levels in (
        ("Your environment cannot be built again", bad),
        ("The good environment cannot be built", good),
    ):
        try:
            found.append(installed_by(environments.of(packages.lines(levels)).python))
        except CannotBuild as error:
            raise InputError(
                f"{side}. uv says:\n{error}",
                "Trials with other packages run in environments that uv builds: from an index (UV_INDEX_URL, "
                "UV_FIND_LINKS), wheels and folders.",
            ) from None
    _say_what_was_built(study, environments)
    mine, theirs = found
    return replace(packages, mixtures=Mixtures(theirs.distributions, mine.distributions, installed.markers))


def odd_ones(installed: Installed) -> list[str]:
    """What is to be known of packages that cannot be had from an index as they are, before anything is built."""
    every = sorted(installed.distributions.values(), key=lambda one: one.name)
    editable = [f"{one.name} ({one.level.removeprefix(EDITABLE)})" for one in every if one.level.startswith(EDITABLE)]
    foreign = [
        f"{one.name} {one.version}" + (f" ({one.installer})" if one.installer else "")
        for one in every
        if one.installer.lower().split(" ")[0] not in INSTALLERS and not one.level.startswith(EDITABLE)
    ]
    notes = []
    if foreign:
        notes.append(
            "Installed by conda or the system, not by pip or uv, so that trials get that version from the index, "
            f"which may be another build: {_listed(foreign)}."
        )
    if editable:
        notes.append(f"Installed as editable; trials use the sources where they lie: {_listed(editable)}.")
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def not_rebuilt(run: Run, tries: int, settings: Factors) -> str:
    """That the failure is not seen in the user's environment as it was built anew, and what that means; `run` is the
    last of the `tries` there."""
    ending = "passes" if run.shown.signature is None else f"ends with {run.shown.signature}"
    often = "" if tries == 1 else f" in {tries} of {tries} runs"
    if inside(PACKAGE, settings.overrides(settings.bad)):
        return f"With the packages that --pin names your configuration {ending}{often}, so there is nothing to isolate."
    return (
        f"In an environment that was built anew with the same versions your configuration {ending}{often}. So versions "
        "do not explain the failure: look for a package that was changed by hand or built here, for what is not "
        "Python's (a driver, a system library), and for PYTHONPATH."
    )


def cures_of(study: Study, entry: Entry | None) -> tuple[Alternative, ...]:
    """The versions that are known to cure a failure, ready to be tried; what cannot be is said.

    Args:
        study: of this pass; its trials can have such packages afterwards.
        entry: the known failure; None if it is not known.
    """
    if entry is None or not entry.cured_by or not study.options.environments or not study.target.python:
        return ()
    trials, installed = study.trials, study.installed
    wanted = {name: level for name, level in entry.cured_by.items() if installed.levels.get(name) not in (None, level)}
    if not wanted:
        return ()
    same = Mixtures(installed.distributions, installed.distributions, installed.markers)
    packages = trials.packages or Packages(installed.levels, same, varied=False)
    environments, named = _environments(study), ", ".join(f"{name} {level}" for name, level in wanted.items())
    try:
        environments.of(packages.lines(wanted))
    except CannotBuild as error:
        study.note(f"The known cure ({named}) could not be tried: uv says {str(error).splitlines()[-1]}")
        return ()
    _say_what_was_built(study, environments)
    trials.packages = packages
    why = f"The known cure: with {named} the configuration stays as it is."
    settings = {f"{PACKAGE}{name}": level for name, level in wanted.items()}
    return (Alternative(settings, why, ", ".join(entry.sources[:3]), cures=True),)


def _environments(study: Study) -> Environments:
    """The cache of environments, in which trials find theirs from now on."""
    if study.site.environments is None:

        def building(lines: Sequence[str]) -> None:
            study.listener.phase("environment", f"building an environment of {len(lines)} packages")

        cache = study.options.env_cache or study.folder.parent / CACHE
        study.site.environments = Environments(cache, study.installed.base, building, study.site.program)
    return study.site.environments


def _say_what_was_built(study: Study, environments: Environments) -> None:
    for environment in environments.built:
        study.note(f"Built an environment in {duration(present(environment.seconds))}: {environment.folder}")
