"""Random bisections of random scripts, disturbed at random: ``python studies/stress/run.py --count 300 --seed 0``.

Each case has a script with planted causes (`cases.py`), which trains with a stand-in library (`standin.py`) in real
processes. The tool is run on it as a user would, with fresh folders for the script, the working directory, HOME and
TMPDIR, and is killed now and then. Afterwards the answer is held against what was planted, the folders against what
they were, and the process table against what may be there (`world.py`).

A case is *wrong* if the answer names other causes than the planted ones, or calls an answer complete that is not;
`inconclusive` is honest. Folders of bad cases are kept, with everything to repeat them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import standin
import world
from cases import FAILS, KINDS, Case, arguments, make, script

TOOL = Path(sys.executable).parent / "bisect-cfg"
"""The command that is under test: the one of this interpreter's environment."""

PATIENCE = 150.0
"""Seconds after which a run of the tool is called stuck, on an idle machine; a case takes a few."""

PATIENCE_WAITING = 600.0
"""The same where trials hang or have to be watched for long, each for tens of seconds."""

INTERRUPTED = 20.0
"""Seconds that the tool has to end after SIGINT or SIGTERM."""

STATUSES = {"isolated": 0, "no_failure": 1, "baseline_fails": 1, "inconclusive": 3}
"""Exit status of each status in result.json."""

BAD = ("wrong", "traceback", "left", "touched", "leak", "stuck")
"""What must not happen, as columns of the table."""


@dataclass
class Verdict:
    """What came of a case."""

    case: Case
    folder: Path
    answer: str = "right"
    """`right`, `inconclusive` (honest, but without the planted causes), `refused` (exit status 2), or `wrong`."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    command: str = ""
    status: str = ""
    trials: int = 0
    seconds: float = 0.0

    def note(self, problem: str, text: str) -> None:
        """Record something that must not happen."""
        self.problems.setdefault(problem, []).append(text)
        if problem == "wrong":
            self.answer = "wrong"


class Study:
    """One script and the command that bisects it."""

    def __init__(self, case: Case, root: Path, label: str, environment: dict[str, str], options: list[str]):
        self.case, self.root, self.environment = case, root, environment
        self.script = root / f"{label}{case.folder}"
        self.work = self.script if case.beside else root / "work"
        self.home, self.temporary = Path(environment["HOME"]), Path(environment["TMPDIR"])
        self.state = root / f"checkpoint of {label}"
        self.study = None if case.default_study else root / f"study of {label}"
        for folder in (self.script, self.work):
            folder.mkdir(exist_ok=True)
        self.write(case)
        precious = self.work / "out" / "checkpoint"
        precious.parent.mkdir(exist_ok=True)
        precious.write_text("weights of last night")
        target = os.path.relpath(self.script / case.name, self.work)
        words = [
            "bisect",
            target,
            *case.options,
            *options,
            *(["--study", str(self.study)] if self.study else []),
        ]
        if target.startswith("-"):
            words[1] = f"./{target}"
        tail = arguments(case, os.path.relpath(self.script, self.work))
        self.words = [str(TOOL), *words, *(["--", *tail] if tail else [])]
        self.leave_out = [self.study or self.work / "bisect-cfg-studies"]

    def write(self, case: Case, bad: dict[str, Any] | None = None) -> None:
        """Write the files of the script."""
        for name, text in script(case, once=str(self.state), bad=bad).items():
            (self.script / name).write_text(text)

    def edit(self) -> None:
        """Change the script, or the file of its configuration, as an editor does."""
        causes = self.case.edit[1]
        if causes:
            self.write(replace(self.case, causes=causes))
        else:
            gone = {name for cause in self.case.causes for name in cause}
            self.write(self.case, {name: value for name, value in self.case.bad.items() if name not in gone})

    def result(self) -> dict[str, Any] | None:
        """What the tool wrote as its answer."""
        for path in [self.study] if self.study else sorted((self.work / "bisect-cfg-studies").glob("*")):
            if (path / "result.json").is_file():
                return json.loads((path / "result.json").read_text())
        return None

    def trials(self) -> tuple[float, float]:
        """When the first and the last trial began, as times of files."""
        found = self.study or self.work / "bisect-cfg-studies"
        times = [path.stat().st_mtime for path in found.rglob("command.sh")]
        return min(times, default=0.0), max(times, default=0.0)


def busy() -> float:
    """How much longer things take than on an idle machine: processes that want a processor, for each there is."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def patience(case: Case) -> float:
    """Seconds after which a run of the tool on this case is called stuck, on an idle machine."""
    waits = case.mode in ("hang", "nan, then hang") or {"hangs at exit", "thread that stays"} & {*case.hostile}
    return PATIENCE_WAITING if waits else PATIENCE


def run(
    study: Study, verdict: Verdict, kill: list[Any] | None, edit: list[Any] | None, number: int
) -> tuple[int, float]:
    """Run the tool once. Returns its exit status and when the script was edited (0: not)."""
    output = study.root / f"output-{number}.txt"
    start, edited, killed = time.monotonic(), 0.0, False
    end = start + patience(study.case) * busy()
    with open(output, "wb") as file:
        process = subprocess.Popen(
            study.words,
            cwd=study.work,
            env=study.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while process.poll() is None:
        now = time.monotonic()
        if edit and not edited and now >= start + edit[0]:
            study.edit()
            edited = time.time()
        if kill and not killed and now >= start + kill[0]:
            killed = True
            (os.killpg if kill[2] else os.kill)(process.pid, getattr(signal, kill[1]))
            end = min(end, now + INTERRUPTED * busy())
        if now >= end:
            verdict.note("stuck", f"run {number}: no end after {now - start:.0f} s" + (f" ({kill[1]})" if kill else ""))
            process.kill()
            process.wait()
        time.sleep(0.02)
    status = process.wait()
    text = output.read_text(errors="replace")
    if any(line.startswith("Traceback (most recent") for line in text.splitlines()):
        verdict.note("traceback", f"run {number}: a traceback in output-{number}.txt")
    usual = {0, 1, 2, 3} | ({130, -9, -15, 143} if killed or "stuck" in verdict.problems else set())
    if status not in usual:
        verdict.note("traceback", f"run {number}: exit status {status}")
    if alive := world.left(str(study.root)):
        some = list(alive.items())[:3]
        verdict.note("left", f"run {number}: {len(alive)}: {some}")
    return status, edited


def judge(case: Case, result: dict[str, Any] | None, status: int, causes: list[list[str]]) -> tuple[str, str]:
    """`right`, `inconclusive`, `refused` or `wrong`, and why, if `causes` are what is planted."""
    if status == 2:
        return "refused", ""
    if result is None:
        return ("inconclusive", "no result.json") if status == 3 else ("wrong", f"exit status {status}, no result.json")
    said = result["status"]
    # Files that change once the causes are known: the answer stands, without what is missing, and the status is 3.
    cut_short = case.kind == "edited" and said == "isolated" and status == 3
    if STATUSES.get(said) != status and not cut_short:
        return "wrong", f"{said} with exit status {status}"
    planted = case.planted(causes)
    if said == "inconclusive":
        return "inconclusive", ""
    if said == "no_failure":
        return ("right", "") if not planted else ("wrong", "says that nothing fails")
    if said == "baseline_fails":
        return ("right", "") if set() in planted else ("wrong", "says that the good configuration fails")
    found = []
    for cause in result["causes"]:
        names = set(cause["parameters"])
        together = names | set(cause["companions"] or ()) | set(cause["inseparable"] or ())
        needed = {b for _, b in case.needs}
        match = [plant for plant in planted if plant and plant <= together and names <= plant | needed]
        if not match or case.truth(together, causes) != FAILS:
            return "wrong", f"names {sorted(names)}, planted is {[sorted(plant) for plant in planted]}"
        found += match
    if not found:
        return "wrong", "isolated, and names no cause"
    hidden = [set(case.causes[number]) for number in case.masks.values()]
    missing = [sorted(plant) for plant in planted if plant not in found and plant not in hidden]
    if result["complete"] and missing:
        return "wrong", f"calls the answer complete without {missing}"
    advice = result.get("recommendation") or {}
    if advice.get("verified"):
        use = {name for name, value in advice["configuration"].items() if case.bad.get(name, advice) == value}
        if case.truth(use, causes) == FAILS:
            return "wrong", f"recommends as verified what fails: {sorted(use)}"
    return ("right", "") if result["complete"] or "--first" in case.options else ("inconclusive", "not complete")


def uncertain(case: Case, verdict: tuple[str, str], result: dict[str, Any] | None) -> tuple[str, str]:
    """The same for a failure that is random: wrong is only what is called complete."""
    answer, why = verdict
    status = (result or {}).get("status")
    if case.once:
        return ("wrong", "isolates what was seen once") if status == "isolated" else ("inconclusive", "")
    if case.probability < 1 and answer == "wrong" and (status == "no_failure" or not (result or {}).get("complete")):
        return "inconclusive", why
    return answer, why


def examine(case: Case, root: Path, library: Path) -> Verdict:
    """Run one case in the folder `root`."""
    verdict = Verdict(case, root)
    start = time.monotonic()
    root.mkdir(parents=True)
    (root / "case.json").write_text(case.as_json())
    home, temporary = root / "home", root / "tmp"
    home.mkdir()
    temporary.mkdir()
    (home / ".profile").write_text("# mine\n")
    (home / "notes").symlink_to(home / ".profile")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(library),
        "STRESS_CASE": str(root),
        "OMP_NUM_THREADS": "1",
        **case.environment,
    }
    if case.secret_by == "environment":
        environment["STRESS_HF_TOKEN"] = case.secret
    options, studies = [], []
    if case.partner:
        options = ["--storage", f"sqlite:///{root / 'shared.db'}"]
    studies.append(Study(case, root, "a", environment, options))
    if case.partner:
        other = replace(case, causes=case.partner["causes"], mode=case.partner["mode"], kills=[], default_study=False)
        studies.append(Study(other, root, "b", environment, options))
    verdict.command = f"cd {shlex.quote(str(studies[0].work))} && {shlex.join(studies[0].words)}"
    watched = [root]
    leave_out = [path for study in studies for path in [*study.leave_out, study.state]]
    leave_out += [root / name for name in ("shared.db", "shared.db-wal", "shared.db-shm", "shared.db-journal")]
    leave_out += [root / f"output-{number}.txt" for number in range(20)]
    leave_out += [study.script / name for study in studies if case.edit for name in script(case, once="")]
    before = world.snapshot(watched, leave_out)

    number = 0
    for study in studies + ([studies[0]] if case.partner or case.again else []):
        edited = 0.0
        for kill in [*(study.case.kills if number < 10 else []), None]:
            waiting = study.case.edit if not edited else None
            status, when = run(study, verdict, kill, waiting, number)
            edited, number = edited or when, number + 1
            if "stuck" in verdict.problems:
                break
        if "stuck" in verdict.problems:
            break
        try:
            result = study.result()
        except ValueError as error:
            verdict.note("wrong", f"result.json cannot be read: {error}")
            break
        answer = uncertain(study.case, judge(study.case, result, status, study.case.causes), result)
        if answer[0] == "wrong" and study.case.edit:
            answer = min(answer, judge(study.case, result, status, study.case.edit[1]))
        if edited and answer[0] == "right":
            first, last = study.trials()
            if first < edited and last > edited + 1.5:
                answer = (
                    "wrong",
                    f"edited {last - edited:.1f} s before its last trial, and says nothing of it",
                )
        if answer[0] == "wrong":
            verdict.note("wrong", answer[1])
        elif answer[0] != "right" and verdict.answer == "right":
            verdict.answer, verdict.status = answer
        verdict.status = f"{(result or {}).get('status')} {verdict.status}".strip()
        verdict.trials += len((result or {}).get("trials") or ())
        if case.secret:
            _leaks(case, study, verdict)
    if changes := world.differences(before, world.snapshot(watched, leave_out)):
        verdict.note("touched", "; ".join(changes[:10]))
    verdict.seconds = time.monotonic() - start
    return verdict


def _leaks(case: Case, study: Study, verdict: Verdict) -> None:
    """Look for the secret in all that the tool wrote."""
    names = set()
    for path in [*study.leave_out[0].rglob("*"), *study.root.glob("output-*.txt")]:
        if path.is_file() and not path.is_symlink() and case.secret.encode() in path.read_bytes():
            names.add(path.name)
    if names:
        verdict.note("leak", f"{case.secret_by}: {sorted(names)}")


def table(verdicts: list[Verdict]) -> str:
    """One row a kind."""
    head = ("kind", "cases", "right", "inconclusive", "refused", *BAD, "trials", "seconds")
    rows = [head]
    for kind in [*KINDS, "all"]:
        of = [verdict for verdict in verdicts if kind in ("all", verdict.case.kind)]
        if not of:
            continue
        counts = [sum(v.answer == word for v in of) for word in ("right", "inconclusive", "refused")]
        counts += [sum(problem in v.problems for v in of) for problem in BAD]
        numbers = [len(of), *counts, sum(v.trials for v in of), round(sum(v.seconds for v in of))]
        rows.append((kind, *map(str, numbers)))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, run the cases, print the table and what is bad."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="cases")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--only", choices=list(KINDS), help="cases of this kind")
    parser.add_argument("--index", type=int, help="only the case of this number")
    parser.add_argument("--folder", type=Path, help="where the cases lie; kept [a temporary folder]")
    given = parser.parse_args()
    base = given.folder or Path(tempfile.mkdtemp(prefix="stress-"))
    library = standin.write(base / "library")
    # A shell's background job ignores SIGINT, and the tool would with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    numbers = range(given.count) if given.index is None else [given.index]
    verdicts: list[Verdict] = []

    def one(number: int) -> None:
        case = make(f"{given.seed}-{number}", given.only)
        try:
            verdict = examine(case, base / f"case-{number}", library)
        except Exception as error:
            print(f"{number}: this program failed: {error!r}", flush=True)
            raise
        verdicts.append(verdict)
        bad = ", ".join(f"{name}: {' | '.join(texts)}" for name, texts in verdict.problems.items())
        print(
            f"{number:4} {case.kind:14} {verdict.answer:13} {verdict.status:24} {verdict.seconds:5.1f} s  {bad}",
            flush=True,
        )
        if bad:
            again = f"--seed {given.seed} --index {number}" + (f" --only '{given.only}'" if given.only else "")
            (verdict.folder / "repeat.sh").write_text(
                f"# {bad}\n{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).resolve()))} {again}\n"
                f"# in the kept folder:\n# {verdict.command}\n"
            )
            print(f"     repeat: python studies/stress/run.py {again}\n     {verdict.command}", flush=True)
        elif not given.folder:
            shutil.rmtree(verdict.folder)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, numbers))
    print(f"\n{table(verdicts)}\n\nBad cases are kept in {base}")
    if any(verdict.problems for verdict in verdicts):
        sys.exit(1)


if __name__ == "__main__":
    main()
