"""A command as a line for a shell, without the secrets in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from bisect_cfg.probe.redact import HIDDEN, is_secret_name, mask_arguments


def is_masked(name: str, value: str) -> bool:
    """Whether ``NAME=VALUE`` holds a secret, so that it is written down nowhere."""
    word = f"{name}={value}"
    return list(mask_arguments([word])) != [word]


def shell_line(command: Sequence[str]) -> str:
    """A command for a shell; where it had a secret, whoever runs it puts that into a variable."""
    words, flag = [shlex.quote(command[0])], ""
    for own, shown in zip(command[1:], mask_arguments(command[1:]), strict=True):
        if own == shown:
            words.append(shlex.quote(own))
        else:
            name = flag if shown == HIDDEN else shown.partition("=")[0]
            name = name if is_secret_name(name, own) else "secret"
            variable = re.sub(r"\W+", "_", name.strip("-")).upper() or "SECRET"
            before, _, after = shown.partition(HIDDEN)
            asked = f'"${{{variable}:?the study keeps no secrets, give this one in {variable}}}"'
            words.append((shlex.quote(before) if before else "") + asked + (shlex.quote(after) if after else ""))
        flag = own
    return " ".join(words)
