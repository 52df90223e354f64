"""report.html, Markdown and JSON of a study: what is in them, and what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.report.answer import write_answer
from bisect_cfg.report.html import commands, page, write_report
from bisect_cfg.report.markdown import as_json, as_markdown
from bisect_cfg.report.recorded import Recorded, read, shared
from bisect_cfg.store.folder import write_command
from tests.report import large, made
from tests.report.cases import CASES, ONE


def plots(html: str) -> list[JsonObject]:
    """The plots in a page."""
    return json.loads(re.search(r'id="payload">([^<]*)<', html)[1])


def words_of(html: str) -> str:
    """A part of a page as it reads."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).replace("&#39;", "'").replace("&gt;", ">").split())


def test_a_page_answers_first_with_the_change_and_shows_the_trials(tmp_path: Path) -> None:
    html = write_report(made.study(tmp_path / "s")).read_text()
    answer, reasoning = html.partition('id="answer"')[2].split('id="reasoning"')
    told = words_of(answer)
    assert told.index("CAUSE bf16 = True good: False") < told.index("FIX") < told.index("APPLY bisect-cfg apply")
    assert "bf16=True, → bf16=False," in told and "- bf16=True, + bf16=False," in told, "the diff stands in the answer"
    assert "Fails 1/1 with bf16 alone" in told and "MORE" not in told
    assert reasoning.count("<td class=b>") == 4 == reasoning.count("<td class=g>")
    rows = re.findall(r'<tr( class="guilty")?><th scope="row"><span>(\w+)</span></th>(.*?)</tr>', reasoning)
    assert [(name, bool(guilty), words_of(cells)) for guilty, name, cells in rows] == [
        ("bf16", True, "True False"), ("learning_rate", False, "0.001 1e-06")
    ]  # fmt: skip
    assert [one["title"] for one in plots(html)] == ["grad_norm", "loss"]
    lines = [len(line["x"]) for line in plots(html)[1]["data"] if line["mode"] == "lines"]
    assert lines == [10, 10, 3, 3]  # on top: those that fail


@pytest.mark.parametrize("name", CASES)
def test_every_answer_has_its_page_and_its_markdown(name: str, tmp_path: Path) -> None:
    write_answer(CASES[name], tmp_path)
    found = Recorded(None, CASES[name]) if name == "function" else read(tmp_path)
    told, markdown = words_of(page(found)), as_markdown(found)
    for cause in found.answer.causes:
        assert all(f"{setting} = " in told and f"{setting} = " in markdown for setting in cause.parameters)
    assert ("**Minimal failing configuration**" in markdown) == bool(found.answer.causes)
    assert len(markdown) < 65_536 and not {"APPLY", "MORE", "LOG"} & {
        line.split(" ")[0] for line in markdown.splitlines()
    }


def test_a_usual_study_is_a_page_to_be_mailed(tmp_path: Path) -> None:
    assert len(page(read(large.study(tmp_path, 60, 48, factors=15))).encode()) < 6e6


def test_an_option_is_one_word_whatever_stands_beside_it(tmp_path: Path) -> None:
    write_answer(CASES["no_failure"], tmp_path)
    html = page(read(tmp_path))
    assert '<span class="option">--until-failure</span> goes on' in html and "&lt;span" not in html
    assert re.search(r"\.option \{[^}]*nowrap", html)


def test_markdown_has_what_a_maintainer_needs(tmp_path: Path) -> None:
    text = as_markdown(read(made.study(tmp_path / "s")))
    assert "bf16: True  # yours\nlearning_rate: 1e-06\n" in text
    assert "- signature: `SIGFPE`" in text and "trl 1.0" in text and "<summary>4 trials</summary>" in text
    write_answer(CASES["command"], tmp_path)
    text = as_markdown(read(tmp_path))
    assert f"# yours: bf16 = True\n{CASES['command'].causes[0].command}" in text
    assert "with this as `config.yaml`:\n\n```\nbeta: 0" in text


def test_so_many_trials_leave_room_in_an_issue(tmp_path: Path) -> None:
    many = tuple(replace(ONE.trials[3], number=number, reason="why " * 40) for number in range(3, 900))
    text = as_markdown(Recorded(None, replace(ONE, trials=(*ONE.trials[:3], *many))))
    assert len(text) < 65_536 and "840 trials more in the study." in text and "| 2 | fails at step 1" in text


def test_what_is_typed_again_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anneliese")
    found = read(made.study(tmp_path / "s"))
    assert "Isolate it" not in dict(commands(found.answer, found.folder))
    line = "bisect-cfg bisect /home/anneliese/train.py --good hub_token=hf_abcdefghijklmnop"
    write_command(tmp_path / "s", {"lines": {"own": "", "bisect": line}})
    assert (
        dict(commands(found.answer, found.folder))["Isolate it"] == "bisect-cfg bisect ~/train.py --good hub_token=***"
    )


def test_a_path_with_a_blank_under_the_home_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = read(made.study(tmp_path / "my runs"))
    assert (
        dict(commands(found.answer, found.folder))["Safe values again, surer"]
        == "bisect-cfg recommend ~/'my runs' --verify-seeds 10"
    )


def test_homes_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = made.study(tmp_path / "s", notes=("see /home/anneliese/x and " + str(tmp_path / "y"),))
    found = read(folder)
    for words in (page(found), as_markdown(found), as_json(found)):
        assert "anneliese" not in words and str(tmp_path) not in words
    assert "see ~/x and ~/y" in as_json(found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/anneliese/x.py", "~/x.py"),
        ("/Users/bo/run: /scratch/cache", "~/run: /scratch/cache"),
        ("https://host/home/page and a/home/b", "https://host/home/page and a/home/b"),
        ("the root cause in /root/x, /rooted, root@gpu", "the root cause in ~/x, /rooted, root@gpu"),
    ],
)
def test_what_is_a_home_and_what_is_none(monkeypatch: pytest.MonkeyPatch, text: str, shown: str) -> None:
    monkeypatch.setenv("HOME", "/root")
    assert shared({"key": [text, 1, None]}) == {"key": [shown, 1, None]}
