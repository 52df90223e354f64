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

from bisect_cfg.common.failures.excerpt import SHOWN, SHOWN_END
from bisect_cfg.explain import explain_text
from bisect_cfg.explain.advice import rules
from bisect_cfg.explain.knowledge import FOLDER, KnowledgeError, check, load

ENTRIES = load()
PATTERNS = sorted({clue.value for entry in ENTRIES for clue in entry.clues if clue.kind == "line"})
GOOD = {
    "id": "one", "title": "t", "any": ["some words"], "why": "w", "cures": ["c"], "sources": ["owner/name#1"],
}  # fmt: skip
SLOWEST = 0.25
"""Processor seconds that one pattern may take for the longest text that is matched; most take microseconds."""


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
        ({"titel": "x"}, "unknown field 'titel'"),
        ({"cures": []}, "'cures' is missing"),
        ({"any": ["a|b"]}, "plain characters"),
        ({"any": ["(unclosed words"]}, "unterminated"),
        ({"any": ["(?i)some words"]}, "separate clues"),
        ({"any": [{"metric": "sadness"}]}, "is no clue"),
        ({"any": [{"signal": "SIGNONE"}]}, "is no clue"),
        ({"sources": ["trl 2906"]}, "owner/repository#number"),
        ({"id": "Two Words"}, "lower case"),
        ({"conditions": {"packages": {"trl": "0.18"}}}, "no version specifier"),
        ({"conditions": {"gpus": "H20"}}, "unknown or of the wrong type"),
        ({"cures": [1.0]}, "quote it"),
        ({"cases": [{"title": "t", "cures": ["c"]}]}, "nothing decides"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(change: dict, said: str) -> None:
    with pytest.raises(KnowledgeError, match="here") as error:
        check({**GOOD, **change}, "here")
    assert said in str(error.value)


def test_an_entry_in_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "- id: mine\n  title: Mine on {port|80}\n  any: ['flux capacitor overheated at (?P<port>\\d+)']\n  why: w\n"
        "  cures: [c]\n  sources: [measured]\n"
    )
    entries = load(tmp_path)
    lead = explain_text("E: flux capacitor overheated at 81\n", entries=entries).lead
    assert lead is not None and lead.title == "Mine on 81"
    (tmp_path / "twice.yaml").write_text((tmp_path / "mine.yaml").read_text())
    load.cache_clear()
    with pytest.raises(KnowledgeError, match="used twice"):
        load(tmp_path)
    (tmp_path / "twice.yaml").write_text("- id: [")
    with pytest.raises(KnowledgeError, match="twice.yaml: not YAML"):
        load(tmp_path)


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
def test_every_pattern_is_quick_on_its_own_alphabet(part: int) -> None:
    draw = random.Random(part)
    longest = SHOWN + SHOWN_END
    for pattern in [*PATTERNS, *(rule.pattern.pattern for rule in rules())][part::20]:
        compiled = re.compile(pattern)
        own = pieces(pattern)
        texts = [one * (longest // len(one)) for one in own[:40]]
        texts += ["".join(draw.choice(own) for _ in range(600))[:longest] for _ in range(6)]
        texts += [character * longest for character in (*string.digits[:2], "x", "-", "=")]
        for text in texts:
            begun = time.process_time()
            compiled.search(text)
            assert time.process_time() - begun < SLOWEST, (pattern, text[:60])
