"""One answer for each way in which a study ends, as `screens/NAME.txt` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bisect_cfg.common.configuration import Purpose, Status
from bisect_cfg.remedy.remedy import Range
from bisect_cfg.report import answer as its
from bisect_cfg.report.answer import UNFINISHED, Answer, Recommendation, Remedy
from bisect_cfg.report.contrast import Contrast, StandsOut
from bisect_cfg.rewrite.recommended import Change, ShownEdit
from bisect_cfg.runner.where import Where
from bisect_cfg.search.proof import CANNOT
from bisect_cfg.store.causes import Cause, Claim, ConfigFile, Correction, Evidence, Levels, Reproduction, Trial
from bisect_cfg.targets.pinned import NO_DEFAULT

GOOD = {"bf16": False, "learning_rate": 1e-6, "temperature": 1.0, "beta": 0.0, "num_generations": 8}
BAD = {"bf16": True, "learning_rate": 0.03, "temperature": 0.2, "beta": 0.1, "num_generations": 4}
DIES = "dies with SIGFPE (a floating point exception) at step 1"
COLLAPSES = "collapses the policy at step 12: entropy fell from 2.02 to 0.0024"
FOLDER = Path("bisect-cfg-studies/train")


def claim(*trials: int, subset: tuple[str, ...] | None = (), runs: int = 0, note: str = "") -> Claim:
    return Claim(subset, len(trials), runs or len(trials), trials, note)


def cause(names: str, passes_without: Mapping[str, Claim], text: str = DIES, **more: Any) -> Cause:
    """A cause that failed in trial 2, and in whatever else `fails` says."""
    parameters = {name: Levels(GOOD.get(name), BAD.get(name)) for name in names.split()}
    more.setdefault("watched", 24)
    fails = more.pop("fails", claim(2, subset=tuple(parameters)))
    return Cause(parameters, Evidence(fails, dict(passes_without)), text=text, **more)


def trials(count: int = 13, start: str | None = "config", **values: Any) -> tuple[Trial, ...]:
    """The two ends, the failing minimum, and what else there was."""
    purposes = (Purpose.BAD_BASELINE, Purpose.GOOD_BASELINE, Purpose.CAUSE_FAILS)
    of = ({**BAD, **values}, {**GOOD, **dict.fromkeys(values)}, {**GOOD, "bf16": True})
    return tuple(
        Trial(
            number,
            "fail" if number in (0, 2) else "pass",
            (purposes[number] if number < 3 else Purpose.SEARCH).value,
            step=1 if number in (0, 2) else 24,
            values=of[number] if number < 3 else GOOD,
            folder=f"trials/{number}",
            start="cold" if number == 0 else start,
        )
        for number in range(count)
    )


def remedy(name: str, new: Any, **more: Any) -> Remedy:
    return Remedy({name: Change(BAD.get(name), new)}, **more)


def recommended(name: str, new: Any, *, edits: tuple[ShownEdit, ...] | None = None, **more: Any) -> Recommendation:
    """A verified one with its edit in the script."""
    old, text = f"    {name}={BAD[name]},", f"    {name}={new},"
    placed = (ShownEdit(old, text, (name,), "train.py", 26, None, 0, 9, text, "before", "after"),)
    known = {"verified": True, "status": "verified", "evidence": claim(7, 8, 9), "steps": 30, "seeds": (42, 43, 44),
             "failure_rate_at_most": 0.6316, "full_rate": "at the full learning rate from the first step"}  # fmt: skip
    return Recommendation({name: Change(BAD[name], new)}, **{**known, **more}, edits=placed if edits is None else edits)


ONE = Answer(
    Status.ISOLATED,
    trials(),
    True,
    failure=its.Failure("signal", "SIGFPE", "SIGFPE", DIES, signal="SIGFPE", step=1, log="trials/0/log.txt"),
    where=Where(True, step=1, operation="div", module="model.layers.0.self_attn.q_proj (Linear)",
                line="h20_simulation.py:30 in _divide"),
    causes=(cause("bf16", {"bf16": claim(1)}),),
    recommendation=recommended("bf16", False, alternatives=(remedy("fp16", True, status="untried"),)),
    target=its.Target("train.py", command="python train.py", config="GRPOConfig"),
    environment={"packages": {"trl": "0.14.0", "torch": "2.4.0"}, "gpus": [{"name": "NVIDIA H20"}]},
    start="config",
    horizon=24,
    simulated="the division by zero of trl#2906.",
    seconds=79.0,
    warnings=(its.Warnings("loss was NaN or infinite in trials that passed nevertheless", (1, 3)),),
)  # fmt: skip

PAIR = replace(
    ONE,
    simulated="",
    warnings=(),
    failure=its.Failure("collapse", "entropy fell", "collapse", COLLAPSES, step=12),
    where=Where(True, step=1, text="AdamW moves model.embed_tokens.weight by 158 % of its size"),
    known_issue=its.KnownIssue("collapse", "The policy collapsed: one answer takes all.", "the rate is high",
                           ("lower it",), ("measured",)),
    causes=(
        cause(
            "learning_rate temperature",
            {
                "learning_rate": claim(7, subset=("temperature",)),
                "temperature": claim(4, 11, subset=("learning_rate",)),
            },
            COLLAPSES,
            fails=claim(6, 12, subset=("learning_rate", "temperature")),
        ),
    ),
    recommendation=recommended(
        "temperature", 0.67, steps=48, stepped_back=1,
        ranges={"temperature": Range(1.0, 0.2, 0.45, 0.3, True, (9, 10), "entropy fell")},
        alternatives=(
            remedy("learning_rate", 1e-6, status="rejected", rejected="learns nothing"),
            remedy("learning_rate", 1e-5, status="healthy"),
        ),
    ),
)  # fmt: skip

COMMAND = "accelerate launch train.py --bf16 False --config CONFIG"
ENDED = {"causes": (), "recommendation": None, "where": None, "simulated": "", "warnings": (), "complete": False}

CASES: dict[str, Answer] = {
    "one_cause": ONE,
    "two_settings": PAIR,
    "companions": replace(ONE, causes=(cause("bf16", {"bf16": claim(1)}, companions=("beta", "num_generations")),)),
    "inseparable": replace(
        ONE,
        causes=(
            cause("beta num_generations", dict.fromkeys(("beta", "num_generations"), claim(subset=None, note=CANNOT)),
                  inseparable=("beta", "num_generations")),
        ),
        corrections=(Correction(("beta", "num_generations"), claim(5)),),
        recommendation=recommended("beta", 0.0, edits=(), unplaced=(
            its.Unplaced("beta", "it is computed there: beta=2 * rate", "write beta=0.0 at train.py:9"),
            its.Unplaced("num_generations", "it is given there", "set num_generations to 8 on the command line"))),
    ),
    "random_failure": replace(
        ONE,
        causes=(cause("bf16", {"bf16": claim(1, 3, 4)}, fails=claim(2, subset=("bf16",), runs=5)),),
        reproduction=Reproduction(0.52, (0.33, 0.7)),
    ),
    "incomplete": replace(
        ONE,
        complete=False,
        notes=("Stopped after 13 trials, as --max-trials asks.",),
        stopped="Stopped after 13 trials, as --max-trials asks.",
        recommendation=recommended(
            "bf16", False, verified=False, status="healthy", evidence=claim(), not_kept=("bf16",),
            ranges={"beta": Range(0.0, 0.1, 0.0, 0.1, False)}, unsettled=("Stopped.", "bf16: whether it trains on"),
        ),
    ),
    "not_varied": replace(
        ONE,
        not_varied={"script.mix": f"{NO_DEFAULT}: your script has none", "seed": "randomness stays"},
        unvaried={"seed": Levels(42, 7), "script.rows": Levels(1000, 64), "script.data": Levels(None, "mine")},
    ),
    "hidden_failure": replace(
        ONE, recommendation=None,
        rejected=(remedy("bf16", False, status="rejected", rejected="dies at step 11 with AssertionError: too late",
                         died="AssertionError"),),
    ),
    "two_causes": replace(
        ONE,
        causes=(
            cause("bf16", {"bf16": claim(1)}),
            cause("learning_rate", {"learning_rate": claim(5)}, "gets NaN weights at step 3", fails=claim(6)),
        ),
        corrections=(Correction(("bf16", "learning_rate"), claim(11, 12)),),
        recommendation=None,
    ),
    "known_environment": replace(
        ONE,
        known_issue=its.KnownIssue("h20", "cuBLAS 12.1 divides by zero on an H20.", "", ("Install cuBLAS 12.4.",),
                                   ("https://github.com/huggingface/trl/issues/2906",), True),
        recommendation=recommended("bf16", False, first="Install cuBLAS 12.4. Then keep bf16: the change below is "
                                   "only the workaround."),
    ),
    "late": replace(
        ONE,
        only_failing=Contrast(StandsOut("grad_norm", 3, 410.5, 0.2, 1.4), ("UserWarning: the scale was halved",)),
        origin=its.Origin("state", 250, "/gone/checkpoint-250", True),
        placement=its.Placement({}, (its.PlacementFinding("elsewhere", "The reference model is on cpu", source="https://a/3348"),)),
        rows={"text": "row 80 (900 characters) of the dataset does it.", "guilty": [[80]]},
        recommendation=recommended("bf16", False, alternatives=(
            remedy("beta", 0.04, verified=True, status="verified", evidence=claim(5, 6, 8)),)),
        environments={"folder": "/cache", "used": 2, "built": 1, "seconds": 40.0, "bytes": 2**30},
        cluster={"slots": 4, "nodes": ["a", "b"], "lost": 1},
    ),
    "no_failure": replace(ONE, **ENDED | {"status": Status.NO_FAILURE, "failure": None, "trials": (
        Trial(0, "pass", Purpose.BAD_BASELINE.value, step=24, folder="trials/0"),)}),
    "good_fails": replace(
        ONE, **ENDED | {"status": Status.BASELINE_FAILS, "trials": trials(2)},
        good_failure=its.Failure("exception", text="dies at step 3 with E: no", step=3, log="trials/1/log.txt"),
        good_tried=("the documented example of GRPOConfig (beta=0)",),
        good_reasons=("Your own code may be at fault, whatever the settings are: train.py:7, in step.",),
        not_varied={"script.mix": f"{NO_DEFAULT}: your script has none", "seed": "chance"},
    ),
    "nothing_differs": replace(ONE, **ENDED | {"status": Status.BASELINE_FAILS, "trials": trials(1), "notes": (
        "No setting differs from the good configuration.",)}),
    "inconclusive": replace(
        ONE,
        **ENDED | {"status": Status.INCONCLUSIVE, "notes": ("Stopped after 13 trials, as --max-trials asks.",)},
    ),
    "unfinished": replace(ONE, **ENDED | {"status": UNFINISHED, "notes": (
        "This study has no answer: it ended before its time, with 13 trials done.",)}),
    "function": replace(
        ONE, where=None, simulated="", warnings=(), recommendation=None, target=its.Target(), horizon=None,
        trials=trials(5, start=None),
        causes=(cause("bf16", {"bf16": claim(1)}, "fails: ValueError: no good at 7", watched=None),),
        corrections=(Correction(("bf16",), claim(3)),),
    ),
    "command": replace(
        ONE, where=None, simulated="", warnings=(),
        target=its.Target("accelerate", ("launch", "train.py"), "accelerate launch train.py --bf16 True"),
        causes=(cause("bf16", {"bf16": claim(1)}, command=COMMAND, config=ConfigFile("config.yaml", "beta: 0\n")),),
        recommendation=recommended(
            "bf16", False, seeds=(), full_rate="", command=COMMAND,
            edits=(ShownEdit("--bf16 True", "--bf16 False", ("bf16",)),),
            unplaced=(its.Unplaced("beta", "--bad gives it", "set beta to 0"),),
        ),
    ),
}  # fmt: skip
