"""The known failure that a run shows, where the field has met it before."""

from __future__ import annotations

import io
from collections.abc import Sequence

from bisect_cfg.common.configuration import Configuration
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.explain.match import Match
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import unprinted
from bisect_cfg.store.causes import Cause
from bisect_cfg.targets.factors import Factors


def known_failure(
    run: Run, settings: Factors | None, causes: Sequence[Cause], environment: Fingerprint
) -> Match | None:
    """The known failure that a run shows, with what its log decides of it.

    Only an entry that is specific, whose every condition is met here, and that blames no setting which the trials have
    cleared, is worth saying beside a proof.

    Args:
        run: that failed.
        settings: of the script; None where they are not known.
        causes: that were proven.
        environment: its fingerprint.
    """
    from bisect_cfg.explain import explain  # it reads all that is known

    if run.shown.signature is None:
        return None
    configuration: Configuration = {}
    if settings is not None:
        configuration = {**settings.resolved, **settings.bad}
    # Some clues are settings that a log may have printed; here they are known.
    printed = "".join(f"{name}={value}\n" for name, value in configuration.items())
    own = (run.folder / "log.txt").read_bytes().decode(errors="replace")
    text = "\n".join([printed + own, *unprinted(run.failing[1], own)])
    log = io.BytesIO(text.encode("utf-8", "replace"))
    found = explain(log, environment=environment, configuration=configuration, failure=run.shown.signature).matches
    guilty = {name for cause in causes for name in cause.parameters}
    for match in found:
        accused = match.entry.conditions.get("parameters")
        if guilty and accused and guilty.isdisjoint(accused):
            continue  # the trials say otherwise
        if not match.unchecked and not match.entry.general:
            return match
    return None
