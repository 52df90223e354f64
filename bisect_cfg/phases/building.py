"""The environments that a study builds: the two between which packages vary, and that of a known cure."""

from __future__ import annotations

from collections.abc import Sequence

from bisect_cfg.capture.distributions import PACKAGE, Mixtures, installed_by
from bisect_cfg.capture.settings import Settings
from bisect_cfg.diagnosis.knowledge import Entry
from bisect_cfg.errors import InputError
from bisect_cfg.phases.context import Context
from bisect_cfg.recommend.alternatives import Alternative
from bisect_cfg.reports.text import duration
from bisect_cfg.trials.environments import CACHE, CannotBuild, Environments, Packages
from bisect_cfg.trials.runner import inside


def both_environments(context: Context, settings: Settings) -> Packages | None:
    """Build the two environments between which packages vary; None if none does.

    Args:
        context: of this pass.
        settings: with packages among its factors or pins.

    Raises:
        InputError: one of them cannot be built.
    """
    good, bad = (inside(PACKAGE, settings.overrides(levels)) for levels in (settings.good, settings.bad))
    if not good:
        return None
    installed, environments = context.installed, _environments(context)
    packages = Packages(installed.levels, Mixtures({}, {}, installed.markers), environments)
    found = []
    for side, levels in (("yours", bad), ("the good one", good)):
        try:
            found.append(installed_by(packages.environment_of(levels).python))
        except CannotBuild as error:
            foreign = sorted(one.name for one in installed.distributions.values() if one.installer not in ("uv", "pip"))
            hint = f" These were not put there by pip or uv: {', '.join(foreign)}." if foreign else ""
            raise InputError(
                f"The environment of {side} cannot be built again. uv says:\n{error}",
                f"Trials with other packages run in environments that uv builds from an index.{hint}",
            ) from None
    _say_what_was_built(context, environments)
    mine, theirs = found
    mixtures = Mixtures(theirs.distributions, mine.distributions, installed.markers)
    return Packages(installed.levels, mixtures, environments)


def cures_of(context: Context, entry: Entry | None) -> tuple[Alternative, ...]:
    """The versions that are known to cure a failure, ready to be tried; what cannot be is said.

    Args:
        context: of this pass; its runner learns where such trials run.
        entry: the known failure; None if it is not known.
    """
    if entry is None or not entry.cured_by or not context.options.environments:
        return ()
    runner = context.runner
    installed = context.installed
    wanted = {name: level for name, level in entry.cured_by.items() if installed.levels.get(name) not in (None, level)}
    if not wanted:
        return ()
    packages = runner.known.packages
    if packages is None:
        environments = _environments(context)
        mixtures = Mixtures(installed.distributions, installed.distributions, installed.markers)
        packages = Packages(installed.levels, mixtures, environments, varied=False)
    named = ", ".join(f"{name} {level}" for name, level in wanted.items())
    try:
        packages.environment_of(wanted)
    except CannotBuild as error:
        context.note(f"The known cure ({named}) could not be tried: uv says {str(error).splitlines()[-1]}")
        return ()
    _say_what_was_built(context, packages.environments)
    runner.learn(packages=packages)
    why = f"The known cure: with {named} the configuration stays as it is."
    settings = {f"{PACKAGE}{name}": level for name, level in wanted.items()}
    return (Alternative(settings, why, ", ".join(entry.sources[:3]), cures=True),)


def _environments(context: Context) -> Environments:
    def building(lines: Sequence[str]) -> None:
        context.listener.phase("environment", f"building an environment of {len(lines)} packages")

    cache = context.options.env_cache or context.folder.parent / CACHE
    return Environments(cache, context.installed.base, building, context.runner.program)


def _say_what_was_built(context: Context, environments: Environments) -> None:
    for environment in environments.built:
        context.note(f"Built an environment in {duration(environment.seconds)}: {environment.folder}")
