"""An explanation as text: the likeliest failure in full, the others in a line each, the next command last."""

from __future__ import annotations

import shutil
import textwrap

from bisect_cfg.diagnosis.explain import Explanation, Match

WIDEST = 100
"""Columns of running text; wider lines are hard to read, whatever the terminal."""

LONGEST_EVIDENCE = 240
"""Characters of a log line that are shown."""

ALTERNATIVES = 5
"""Further matches that are listed. More means that the log is a collection, not a run."""


def show(explanation: Explanation) -> None:
    """Prints it."""
    print(render(explanation))


def render(explanation: Explanation) -> str:
    """The whole explanation as plain text."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    parts = [_known(explanation.matches[0], width)] if explanation.matches else [_unknown(explanation, width)]
    others = explanation.matches[1 : 1 + ALTERNATIVES]
    if others:
        lines = ["It may also be:"]
        for match in others:
            place = f" (line {match.evidence[0].number})" if match.evidence else ""
            lines.append(_wrap(f"{match.entry.title}{place} [{match.entry.id}]", width, "  - ", "    "))
        parts.append("\n".join(lines))
    parts.append(_next(explanation, width))
    return "\n\n".join(parts)


def _known(match: Match, width: int) -> str:
    entry = match.entry
    lines = [_wrap(entry.title, width, "", ""), f"[{entry.id}]", "", "Why this:"]
    lines += [_wrap(reason, width, "  - ", "    ") for reason in match.why]
    lines += [f"  {line.number:>8} | {line.text[:LONGEST_EVIDENCE]}" for line in match.evidence[:4]]
    if match.unchecked:
        lines += [_wrap(f"if {'; '.join(match.unchecked)} (the log does not say)", width, "  - ", "    ")]
    lines += ["", _wrap(entry.meaning, width, "", "")]
    if entry.trigger:
        lines += [_wrap(entry.trigger, width, "Trigger:    ", "            ")]
    if entry.root_cause:
        lines += [_wrap(entry.root_cause, width, "Root cause: ", "            ")]
    lines += ["", "What to do, in this order:"]
    lines += [_wrap(cure, width, f"  {number}. ", "     ") for number, cure in enumerate(entry.cures, 1)]
    if entry.not_helping:
        lines += ["What does not help:"] + [_wrap(one, width, "  - ", "    ") for one in entry.not_helping]
    sources = ["measured with tiny models on a CPU" if one == "measured" else one for one in entry.sources]
    lines += ["", "Known from:"] + [f"  {source}" for source in sources]
    return "\n".join(lines)


def _unknown(explanation: Explanation, width: int) -> str:
    if explanation.signature is None:
        text = (
            f"Nothing known was found in these {explanation.lines} lines, and no failure either: no "
            "traceback, no signal, no metrics that went wrong. If the run died, the end of its output is "
            "missing; add 2>&1 to the command that writes the log."
        )
        return _wrap(text, width, "", "")
    text = "The log shows a failure that no known issue covers. A cause would be a guess. The failure:"
    return _wrap(text, width, "", "") + "\n\n  " + str(explanation.signature)


def _next(explanation: Explanation, width: int) -> str:
    if not explanation.matches and explanation.signature is None:
        return _wrap("To compare a configuration that fails with one that works:", width, "", "") + (
            f"\n\n  {explanation.command}"
        )
    settings = explanation.matches[0].entry.bisect if explanation.matches else ()
    text = "To find out which of your settings do it, with short real runs"
    text += f" (suspects: {', '.join(settings)}):" if settings else ":"
    return _wrap(text, width, "", "") + f"\n\n  {explanation.command}"


def _wrap(text: str, width: int, first: str, rest: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), width, initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
