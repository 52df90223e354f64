"""The known failures keep to the schema, are bounded in time, and one of one's own needs no code."""

from __future__ import annotations

import random
import re
import re._constants as opcodes
import re._parser as parser
import string
import time
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from bisect_cfg.common.conditions import Conditions
from bisect_cfg.common.failures.excerpt import SHOWN, SHOWN_END
from bisect_cfg.explain import explain_text
from bisect_cfg.explain.advice import rules
from bisect_cfg.explain.knowledge import FOLDER, KnowledgeError, load, read

ENTRIES = load()
PATTERNS = sorted({clue.value for entry in ENTRIES for clue in entry.clues if clue.kind == "line"})
GOOD = {
    "id": "one", "title": "t", "any": ["some words"], "why": "w", "cures": ["c"], "sources": ["owner/name#1"],
}  # fmt: skip
SQUARE = re.compile("x[^z]*y")
"""Looks at every pair of characters of a text of x: the yardstick, whatever the machine is busy with."""
SQUARES, TRIES, QUICK = 250, 5, 0.05
"""A search that takes more of them, in each of so many tries, grows faster than the square of the text: a cube is some
2,500. The slowest takes 27, and most are over in microseconds: below so many seconds nothing is compared."""


def test_entries_are_short_and_say_what_to_do() -> None:
    for entry in ENTRIES:
        assert len(entry.cures) <= 5 and all(len(cure) <= 260 for cure in entry.cures), entry.id
        assert len(re.findall(r"[.!?](?:\s|$)", entry.why)) <= 2, entry.id


def test_no_field_of_an_entry_is_written_twice() -> None:
    for path in FOLDER.glob("*.yaml"):
        for block in re.split(r"^(?=- id: )", path.read_text(), flags=re.M)[1:]:
            fields = re.findall(r"^(?:- |  )(\w+):", block, flags=re.M)
            assert len(fields) == len(set(fields)), (path.name, fields[:1], block[:60])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"titel": "x"}, "unknown field `titel`"),
        ({"cures": []}, "length >= 1"),
        ({"any": ["a|b"]}, "plain characters"),
        ({"any": ["(unclosed words"]}, "unterminated"),
        ({"any": ["(?i)some words"]}, "separate clues"),
        ({"any": [{"metric": "sadness"}]}, "is no clue"),
        ({"any": [{"signal": "SIGNONE"}]}, "is no clue"),
        ({"sources": ["trl 2906"]}, "owner/repository#number"),
        ({"id": "Two Words"}, "[a-z0-9-]"),
        ({"conditions": {"gpu": ["H20"]}}, "Expected `str`"),
        ({"cures": [1.0]}, "Expected `str`"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, change: dict, said: str) -> None:
    (tmp_path / "here.yaml").write_text(yaml.safe_dump([GOOD, {**GOOD, "id": "two", **change}]))
    with pytest.raises(KnowledgeError, match=r"here.yaml: .*\$\[1\]") as error:
        read(tmp_path)
    assert said in str(error.value)


def test_conditions_are_known_and_decidable() -> None:
    """Only here: an entry that comes with this package was tested."""
    for path in FOLDER.glob("*.yaml"):
        for data in yaml.load(path.read_text(), Loader=yaml.CSafeLoader):
            for part in (data, *data.get("cases", [])):
                assert part.get("conditions", {}).keys() <= Conditions.__annotations__.keys(), data["id"]
    for entry in ENTRIES:
        list(map(Version, entry.cured_by.values()))
        assert all(case.any or case.conditions for case in entry.cases), (entry.id, "nothing decides for a case")
        for one in (entry, *entry.cases):
            asked = one.conditions
            list(map(SpecifierSet, asked.get("packages", {}).values()))
            list(map(SpecifierSet, (asked[name] for name in ("cuda", "cublas") if name in asked)))
            list(map(re.compile, (asked.get(name, "") for name in ("gpu", "device", "task"))))


def test_an_entry_in_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "- id: mine\n  title: Mine on {port|80}\n  any: ['flux capacitor overheated at (?P<port>\\d+)']\n  why: w\n"
        "  cures: [c]\n  sources: [measured]\n"
    )
    entries = read(tmp_path)
    lead = explain_text("E: flux capacitor overheated at 81\n", entries=entries).lead
    assert lead is not None and lead.title == "Mine on 81"
    (tmp_path / "twice.yaml").write_text((tmp_path / "mine.yaml").read_text())
    with pytest.raises(KnowledgeError, match="used twice"):
        read(tmp_path)
    (tmp_path / "twice.yaml").write_text("- id: [")
    with pytest.raises(KnowledgeError, match="twice.yaml: "):
        read(tmp_path)


def pieces(pattern: str) -> list[str]:
    """Strings of a pattern's own alphabet: its plain runs, and characters that its classes and repeats may match."""
    found = ["a", "0", " ", ".", "/", "'", "_"]

    def walk(parsed: object) -> None:
        run = ""
        for code, value in parsed:
            if code is opcodes.LITERAL:
                run += chr(value)
                continue
            found.append(run)
            run = ""
            if code is opcodes.IN:
                found.extend(chr(one) for kind, one in value if kind is opcodes.LITERAL)
            for part in value if isinstance(value, tuple | list) else ():
                if isinstance(part, parser.SubPattern):
                    walk(part)
                elif isinstance(part, list):
                    for one in part:
                        if isinstance(one, parser.SubPattern):
                            walk(one)
        found.append(run)

    walk(parser.parse(pattern))
    return [one for one in dict.fromkeys(found) if one]


@pytest.mark.parametrize("part", range(20))
def test_no_pattern_grows_faster_than_the_square_of_a_text(part: int) -> None:
    draw = random.Random(part)
    longest = SHOWN + SHOWN_END
    for pattern in [*PATTERNS, *(rule.pattern.pattern for rule in rules())][part::20]:
        compiled = re.compile(pattern)
        own = pieces(pattern)
        texts = [one * (longest // len(one)) for one in own[:40]]
        texts += ["".join(draw.choice(own) for _ in range(600))[:longest] for _ in range(6)]
        texts += [character * longest for character in (*string.digits[:2], "x", "-", "=")]
        yardstick = "x" * longest
        slow = [
            text
            for text in texts
            if all(
                (taken := _seconds(compiled, text)) > QUICK and taken > SQUARES * _seconds(SQUARE, yardstick)
                for _ in range(TRIES)
            )
        ]
        assert not slow, (pattern, slow[0][:60])


def _seconds(pattern: re.Pattern[str], text: str) -> float:
    begun = time.process_time()
    pattern.search(text)
    return time.process_time() - begun
