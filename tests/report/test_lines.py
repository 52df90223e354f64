"""The answer as people see it: whole screens, and what holds for every one of them.

`BISECT_CFG_SCREENS=write pytest tests/report/test_lines.py` writes `screens/` anew; read the difference.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from bisect_cfg.common.configuration import Status
from bisect_cfg.report.answer import Answer
from bisect_cfg.report.line import COMMAND, as_text
from bisect_cfg.report.lines import lines_of
from bisect_cfg.report.terminal import console, print_answer
from bisect_cfg.rewrite.recommended import ShownEdit
from tests.report import cases
from tests.report.cases import CASES, FOLDER, ONE, PAIR, cause, claim, recommended

SCREENS = Path(__file__).with_name("screens")
ISOLATED = {name: answer for name, answer in CASES.items() if answer.status == Status.ISOLATED and name != "function"}


def screen(answer: Answer, folder: Path | None = FOLDER, width: int = 80, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    print_answer(console(file=out, width=width, no_color=True), answer, folder, verbose)
    return out.getvalue().splitlines()[1:]


@pytest.mark.parametrize("name", CASES)
def test_the_whole_screen(name: str) -> None:
    folder = None if name == "function" else FOLDER
    details = as_text(line for line in lines_of(CASES[name], folder) if line.detail)
    shown = "\n".join([*screen(CASES[name], folder), "", "-v adds:", details]).removesuffix("\n\n-v adds:\n") + "\n"
    path = SCREENS / f"{name}.txt"
    if os.environ.get("BISECT_CFG_SCREENS") == "write":
        path.write_text(shown)
    assert shown == path.read_text()


def test_there_is_no_other_screen() -> None:
    assert {path.stem for path in SCREENS.iterdir()} == CASES.keys()


@pytest.mark.parametrize("name", ISOLATED)
def test_what_a_tired_reader_needs_comes_last_and_without_scrolling(name: str) -> None:
    lines = screen(ISOLATED[name])
    assert len(lines) <= (24 if name in ("one_cause", "two_settings", "companions", "random_failure") else 30)
    assert max(map(len, lines)) <= 80 and not [line for line in lines if line != line.rstrip()]
    wanted = ("CAUSE", "FIX", "APPLY", "RUN", "MORE")
    labels = [line.split()[0] for line in lines if line.startswith(wanted)]
    assert list(dict.fromkeys(labels)) == [one for one in wanted if one in labels]
    assert labels[-1] == "MORE" and lines[-1].startswith("MORE")
    found = ISOLATED[name].recommendation
    assert ("APPLY" in labels) == (found is not None and any(edit.text for edit in found.edits))
    assert ("RUN" in labels) == (found is not None and found.command is not None)


@pytest.mark.parametrize("width", [60, 40])
@pytest.mark.parametrize("name", CASES)
def test_on_a_small_terminal_nothing_is_lost_and_no_command_is_broken(name: str, width: int) -> None:
    answer, lines = CASES[name], screen(CASES[name], width=width, verbose=True)
    for line in lines_of(answer, FOLDER):
        if line.kind == COMMAND:
            assert any(shown.endswith(line.text) for shown in lines)
    commands = [line.text for line in lines_of(answer, FOLDER) if line.kind == COMMAND]
    assert all(len(line) <= width or any(command in line for command in commands) for line in lines)
    words = "".join("".join(lines).split())
    for line in lines_of(answer, FOLDER):
        assert "".join(line.text.split()) in words, line


def test_where_nobody_looks_no_line_is_broken() -> None:
    out = io.StringIO()
    print_answer(console(file=out, soft_wrap=True, no_color=True, width=10_000), ONE, FOLDER, True)
    assert all(line.text in out.getvalue() for line in lines_of(ONE, FOLDER))


CALL = 'args = GRPOConfig(output_dir="out", learning_rate=1e-3, betas=(0.9, 0.99), {}num_generations=4)'


@pytest.mark.parametrize(
    ("old", "new", "name", "said"),
    [
        (CALL.format("bf16=True, "), CALL.format("bf16=False, "), "bf16", "bf16=True  ->  bf16=False"),
        (CALL.format("bf16=True, "), CALL.format(""), "bf16", "bf16=True  ->  (remove it)"),
        (CALL.format(""), CALL.format("bf16=False, "), "bf16", "add bf16=False"),
        ("bf16=True,", "bf16=False,", "bf16", "bf16=True,  ->  bf16=False,"),
        ("", "    adam_epsilon=1e-06,", "adam_epsilon", "add adam_epsilon=1e-06,"),
        # without the name it would say nothing
        (CALL.format(""), CALL.format("").replace("0.99", "0.9"), "betas", f"{CALL.format('')}  ->  args ="),
    ],
)
def test_of_a_long_line_what_changes_is_shown(old: str, new: str, name: str, said: str) -> None:
    edits = (ShownEdit(old, new, (name,), "train.py", 3), ShownEdit(old, new, (name,), "study.ipynb", 3, 2))
    text = as_text(lines_of(replace(ONE, recommendation=recommended("bf16", False, edits=edits)), FOLDER))
    assert said in text and "train.py:3\n" in text and "study.ipynb, cell 2, line 3\n" in text


def test_a_later_training_is_tried_first_where_there_may_be_one() -> None:
    ended = CASES["no_failure"]
    assert "--training 2" not in as_text(lines_of(ended, FOLDER))
    goes_on = replace(ended, target=replace(ended.target, goes_on=True))
    assert "TRY     --training 2, where" in as_text(lines_of(goes_on, FOLDER))


def test_a_reset_that_only_delays_a_silent_failure_says_so() -> None:
    advice = "may only delay the failure"
    assert advice in as_text(lines_of(PAIR))
    assert advice not in as_text(lines_of(replace(PAIR, failure=ONE.failure))), "a crash is not delayed"
    assert advice not in as_text(lines_of(replace(PAIR, causes=ONE.causes)))


def test_the_claims_of_a_larger_cause_name_each_setting_once() -> None:
    names = ("beta", "bf16", "temperature")
    without = {name: claim(4, subset=tuple(one for one in names if one != name)) for name in names}
    three = cause(" ".join(names), without)
    passes = " and ".join(f"1/1 with all of them but {name}" for name in names)
    assert f"passes {passes} (" in as_text(lines_of(replace(ONE, causes=(three,)), FOLDER))


def test_sentences_call_a_setting_of_a_long_name_by_its_last_part() -> None:
    mode, other = "script.reward.functions.simple.mode", "script.reward.functions.simple.window"
    names, known = (mode, other, "bf16"), CASES["incomplete"].recommendation
    found = cause(" ".join(names), {name: claim(4, subset=tuple({*names} - {name})) for name in names})
    known = replace(known, ranges={other: known.ranges["beta"]})
    text = as_text(lines_of(replace(ONE, causes=(found,), recommendation=known), FOLDER))
    assert text.count(mode) == text.count(other) == 1, "where CAUSE names it"
    assert "1/1 with all of them but mode" in text and "        window: no value was tried" in text
    alike = (mode, "script.reward.functions.other.mode")
    found = cause(" ".join(alike), {name: claim(4, subset=tuple({*alike} - {name})) for name in alike})
    assert f"with {mode} alone" in as_text(lines_of(replace(ONE, causes=(found,)), FOLDER))


def test_a_range_without_a_run_claims_no_run() -> None:
    known = CASES["incomplete"].recommendation
    settled = replace(known, ranges={"beta": replace(known.ranges["beta"], settled=True)})
    assert "beta: 0 (good) and 0.1 (yours) are too close for a run between them to tell anything." in as_text(
        lines_of(replace(ONE, recommendation=settled))
    )


def test_the_runs_that_prove_it_can_be_repeated_while_their_start_is_there(tmp_path: Path) -> None:
    assert ONE.repeated_by(tmp_path) == {}, "without their files"
    for number in (1, 2):
        (tmp_path / f"trials/{number}").mkdir(parents=True)
        (tmp_path / f"trials/{number}/command.sh").touch()
    found = ONE.repeated_by(tmp_path)
    assert {label: path.parent.name for label, path in found.items()} == {
        "nearest passing": "1",
        "minimal failing": "2",
    }
    shown = as_text(lines_of(ONE, tmp_path))
    assert all(f"The {label} run again:  sh {path}" in shown for label, path in found.items())
    assert CASES["late"].repeated_by(tmp_path) == {}, "they would begin at a checkpoint that is gone"


def test_apply_is_named_as_it_was_called_and_only_where_it_can_write() -> None:
    called = [line.text for line in lines_of(ONE, FOLDER, "env/bin/bisect-cfg") if line.kind == COMMAND]
    assert called and all(one.startswith("env/bin/bisect-cfg ") for one in called)
    (edit,) = ONE.recommendation.edits
    unwritten = replace(ONE, recommendation=replace(ONE.recommendation, edits=(edit, replace(edit, text=None))))
    assert "APPLY" not in as_text(lines_of(unwritten, FOLDER))
    both = as_text(lines_of(replace(ONE, recommendation=replace(ONE.recommendation, command="python a.py")), FOLDER))
    assert "APPLY   bisect-cfg apply bisect-cfg-studies/train\nRUN     python a.py\n" in both


def test_a_secret_and_a_long_value_are_not_shown() -> None:
    hidden = cases.cause("hub_token run_name", {"hub_token": cases.claim(1)})
    levels = {"hub_token": replace(ONE.causes[0].levels["bf16"], bad="opensesame12"),
              "run_name": replace(ONE.causes[0].levels["bf16"], bad="y" * 999)}  # fmt: skip
    text = as_text(lines_of(replace(ONE, causes=(replace(hidden, levels=levels),)), FOLDER))
    assert "opensesame12" not in text and "hub_token = ***" in text and "y" * 201 not in text
