"""What `bisect-cfg doctor` prints: the environment in a line, the findings with the worst first, how it was looked."""

from __future__ import annotations

import shutil

import click

from bisect_cfg.common.fingerprint import describe
from bisect_cfg.common.text import WIDEST, wrapped
from bisect_cfg.common.words import count, shown_safely
from bisect_cfg.doctor.examine import Diagnosis
from bisect_cfg.doctor.findings import Finding

COLOURS = {"problem": "red", "warning": "yellow", "note": "cyan"}
LABELS = {"problem": "PROBLEM", "warning": "WARNING", "note": "Note"}
INDENT = " " * 9


def show(diagnosis: Diagnosis) -> None:
    """Print it; colours only on a terminal."""
    click.echo(shown_safely(render(diagnosis)))


def render(diagnosis: Diagnosis) -> str:
    """The whole answer, with colours that `click.echo` takes out where nobody sees them."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    parts = ["\n".join(_head(diagnosis, width))]
    serious = [finding for finding in diagnosis.findings if finding.level != "note"]
    parts += ["\n".join(_finding(finding, width)) for finding in serious]
    if diagnosis.log:
        parts.append("Its last lines:\n" + "\n".join(f"    {line}" for line in diagnosis.log))
    notes = [finding for finding in diagnosis.findings if finding.level == "note"]
    if notes:
        told = (f"Note: {one.title}: {one.why}. Do: {one.cure}" for one in notes)
        parts.append("\n".join(wrapped(text, width, "", "      ") for text in told))
    parts.append(_verdict(diagnosis, len(serious), width))
    return "\n\n".join(parts)


def _head(diagnosis: Diagnosis, width: int) -> list[str]:
    lines = [wrapped(describe(diagnosis.environment), width, "", "  ")]
    if diagnosis.environments:
        hosts = {str(one.get("host")) for one in diagnosis.environments}
        lines.append(f"{count(len(diagnosis.environments), 'environment')} compared, {count(len(hosts), 'host')}")
    if diagnosis.target:
        known = diagnosis.configuration
        told = f"{count(len(known), 'setting')} captured, nothing was trained" if known else ""
        lines.append(f"{diagnosis.target}: {told or 'no configuration was captured'}")
    return lines


def _finding(finding: Finding, width: int) -> list[str]:
    label = LABELS[finding.level].ljust(len(INDENT))
    lines = [wrapped(finding.title, width, label, INDENT)]
    lines[0] = click.style(label, fg=COLOURS[finding.level], bold=True) + lines[0][len(label) :]
    lines += [wrapped(text, width, INDENT, INDENT) for text in (finding.why, finding.meaning) if text]
    lines.append(wrapped(finding.cure, width, f"{INDENT}Do: ", f"{INDENT}    "))
    return [*lines, INDENT + ("measured with this version" if finding.source == "measured" else finding.source)]


def _verdict(diagnosis: Diagnosis, serious: int, width: int) -> str:
    looked = "this environment and configuration" if diagnosis.configuration else "this environment"
    said = f"{count(serious, 'finding')}." if serious else f"Nothing known is wrong with {looked}."
    if diagnosis.probes is None:
        said += f" GPU probes skipped: {diagnosis.skipped}."
    else:
        good = sum("signal" not in one and "error" not in one for one in diagnosis.probes)
        said += f" GPU probes: {good} of {len(diagnosis.probes)} passed."
    return wrapped(said, width, "", "")
