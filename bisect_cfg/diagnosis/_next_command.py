"""The command to paste after a log was explained."""

from __future__ import annotations

import re
import shlex

from bisect_cfg.probe.secrets import mask_arguments

_TYPED = re.compile(
    r"(?:^|[$#>%;&] ?|\s)(?:python[\d.]*|torchrun|accelerate launch|deepspeed|srun python[\d.]*)(?= )[^\n;|&]{0,200}? "
    r"(?P<script>(?!\S*(?:site|dist)-packages)[\w./~-]+\.py)\b",
    re.MULTILINE,
)
"""A command line with a script."""


def next_command(launched: str | None, head: str = "", own: str = "") -> str:
    """The next command to paste. The script's own name and flags where the log gives them away.

    Args:
        launched: the line in which Python tells a launcher's command, None if there is none.
        head: the beginning of the log, in which a command may have been typed.
        own: the user's own file in the traceback, "" if it has none.
    """
    target, arguments = "", ""
    if launched:
        words = re.findall(r"'((?:[^'\\]|\\.)*)'", launched.split("Command '", 1)[1].split("]'", 1)[0])
        scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
        if scripts:
            target = words[scripts[0]]
            arguments = shlex.join(mask_arguments(words[scripts[0] + 1 :]))
    if not target:
        typed = _TYPED.search(head)
        target = typed["script"] if typed else own or "train.py"
    return f"bisect-cfg bisect {target} --study study" + (f" -- {arguments}" if arguments else "")
