"""The studies of late failures, each begun in three ways, again and again: what the tool finds, and what it takes.

    python studies/late_cost/ways.py ways.jsonl --rounds 3

The ways are those that a user has: the command alone, after which the first run saves checkpoints of the tool's own;
with the log of a run that failed, and nothing else of it; with a checkpoint that this run had saved. Each run is a line
of the file, and what is in the file is not run again; the failed runs lie in a folder beside it. ``--readme`` puts a
table into each study's README.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measure import between_marks, measured_with

STUDIES = Path(__file__).parents[1]

ARGUMENTS = {
    "late_collapse": ("--all_from", "200"),
    "late_overflow": (),
    "bad_row": (),
}
"""Of each study's script."""

OPTIONS = {"bad_row": ("--isolate-data",)}
"""Of the tool, besides those of the way."""

ENDED = {"late_collapse": ("--max_steps", "240")}
"""A collapse ends no run: the user does."""

SAVED = 150
"""The user's checkpoint is of this step."""

WAYS = {
    "own": "by itself (`--until-failure`)",
    "log": "with only a log (`--log`)",
    "theirs": f"from the user's checkpoint of step {SAVED} (`--from-checkpoint`)",
}


def failed_run(study: str, folder: Path) -> tuple[Path, Path]:
    """The log of a run that fails, and a checkpoint that it has saved before; made once."""
    log, checkpoint = folder / "train.log", folder / "out" / f"checkpoint-{SAVED}"
    if log.exists():
        return log, checkpoint
    folder.mkdir(parents=True, exist_ok=True)
    script = STUDIES / study / "train.py"
    saving = ("--save_strategy", "steps", "--save_steps", str(SAVED), "--output_dir", str(folder / "out"))
    command = [sys.executable, str(script), *ARGUMENTS[study], *ENDED.get(study, ()), *saving]
    done = subprocess.run(command, capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    return log, checkpoint


def measured(study: str, way: str, log: Path, checkpoint: Path, folder: Path) -> dict:
    """One run of the tool, as a line of the file."""
    given = {"own": ("--until-failure",), "log": ("--log", log), "theirs": ("--from-checkpoint", checkpoint)}[way]
    command = [sys.executable, "-m", "bisect_cfg", "bisect", "--plain", "--no-recommend", "--study", folder, *given]
    command += [*OPTIONS.get(study, ()), STUDIES / study, "--", *ARGUMENTS[study]]
    begun = time.perf_counter()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    path = folder / "result.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    rows = [(file.parent.name, file.read_text().count("\n")) for file in folder.glob("trials/*/metrics.jsonl")]
    return {
        "study": study, "way": way, "status": done.returncode, "seconds": round(seconds, 1),
        "failing": result.get("failure", {}).get("step"), "origin": result.get("origin"),
        "causes": [sorted(cause["parameters"]) for cause in result.get("causes", ())],
        "complete": result.get("complete"), "rows": (result.get("rows") or {}).get("guilty"),
        "trials": len(rows), "steps": sum(steps for _, steps in rows),
        "first": sum(steps for name, steps in rows if name == "0"),
        "wrong": list(_wrong(study, result)), "said": "" if path.exists() else (done.stdout + done.stderr)[-2000:],
    }  # fmt: skip


def _wrong(study: str, result: dict) -> Iterator[str]:
    """In what an answer is not the one that the study expects."""
    expected = json.loads((STUDIES / study / "expected.json").read_text())
    found = {
        "status": result.get("status"), "complete": result.get("complete"),
        "causes": [sorted(cause["parameters"]) for cause in result.get("causes", ())],
        "rows": (result.get("rows") or {}).get("guilty"),
    }  # fmt: skip
    yield from (name for name, value in found.items() if name in expected and value != expected[name])
    if result.get("failure", {}).get("kind") != expected["failure"]["kind"]:
        yield "failure"


def table(rows: list[dict]) -> list[str]:
    """The runs of one study, as lines of Markdown."""
    lines = [
        measured_with(),
        "",
        "| | as expected | failed at | trials began at | runs | steps trained (of these the first run's) | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in dict.fromkeys(row["way"] for row in rows):
        of = [row for row in rows if row["way"] == way]
        cells = [
            f"{sum(not row['wrong'] for row in of)} of {len(of)}",
            _values(row["failing"] for row in of),
            _values(_begun(row["origin"]) for row in of),
            _values(row["trials"] for row in of),
            _values(f"{row['steps']} ({row['first']})" for row in of),
            _values(round(row["seconds"]) for row in of),
        ]
        lines.append(f"| {WAYS[way]} | " + " | ".join(cells) + " |")
    return lines


def _begun(origin: dict | None) -> str:
    return "0" if not origin else f"{origin['step']}" + (", its data" if origin["kind"] == "data" else "")


def _values(values: Iterator) -> str:
    """One value if all are the same, otherwise each."""
    told = [str(value) for value in values]
    return told[0] if len(set(told)) == 1 else ", ".join(told)


def main() -> None:
    """Measure, print; ``--readme`` updates the READMEs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=27, help="so many runs now at most")
    parser.add_argument("--readme", action="store_true")
    arguments = parser.parse_args()
    known = [json.loads(line) for line in arguments.file.read_text().splitlines()] if arguments.file.exists() else []
    begun = len(known)
    for turn, study, way in itertools.product(range(arguments.rounds), ARGUMENTS, WAYS):
        done = sum(row["study"] == study and row["way"] == way for row in known)
        if done > turn or len(known) == begun + arguments.most:
            continue
        log, checkpoint = failed_run(study, arguments.file.absolute().with_suffix("") / study)
        with tempfile.TemporaryDirectory() as temporary:
            known.append(measured(study, way, log, checkpoint, Path(temporary) / "study"))
        with arguments.file.open("a") as stream:
            stream.write(json.dumps(known[-1]) + "\n")
    for study in dict.fromkeys(row["study"] for row in known):
        lines = table([row for row in known if row["study"] == study])
        print(f"{study}\n" + "\n".join(lines) + "\n")
        if arguments.readme:
            between_marks(STUDIES / study / "README.md", lines)


if __name__ == "__main__":
    main()
