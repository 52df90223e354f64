"""Words of the command line that a script takes apart itself: which settings they are, and how a trial has others."""

from __future__ import annotations

import pickle
import sys

import pytest

from bisect_cfg.probe import own_words, sources
from bisect_cfg.probe.sources import DEFAULT

WORDS = ["own.yaml", "lr=3e-4", "--mix", "0.9", "--cap=none", "--dry", "--low", "-0.5", "+reward.scale=true", "-k", "2"]


def test_words_are_settings_by_their_names():
    found = {name: value for name, _, _, value in own_words._settings(WORDS)}
    assert found == {
        "argv.0": "own.yaml", "lr": 3e-4, "mix": 0.9, "cap": "none", "dry": True, "low": -0.5, "reward.scale": True,
        "k": 2,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "value", "before", "after"), [
    ("lr", 1e-6, ["lr=3e-4", "a"], ["lr=1e-06", "a"]), ("lr", None, ["--lr", "3e-4", "a"], ["a"]),
    ("mix", 0.1, ["--mix", "0.9", "a"], ["--mix", "0.1", "a"]), ("dry", False, ["--dry", "a=1"], ["a=1"]),
    ("dry", False, ["dry=true"], ["dry=false"]), ("dry", False, ["dry=True"], ["dry=False"]),
    ("lr", 3e-4, ["lr=3e-4"], ["lr=3e-4"]), ("part", None, ["--part=a", "x", "--part=b"], ["x"]),
    ("part", ["a", "c"], ["--part=a", "x", "--part=b"], ["--part=a", "x", "--part=c"]),
])  # fmt: skip
def test_a_trial_has_another_word_or_none(name, value, before, after):
    own_words._put(before, name, value)
    assert before == after


@pytest.fixture
def offered(monkeypatch):
    """Words that were offered, and what is wanted of them."""
    found: list[dict] = []
    wanted: dict = {}

    def offer_own(values, defaults, user, put, *args, **kwargs):
        found.append(values)
        for name, value in wanted.items():
            put(name, defaults[name] if value == DEFAULT else value)

    monkeypatch.setattr(own_words.state, "looked", False)
    monkeypatch.setattr(sources, "offer_own", offer_own)
    monkeypatch.setattr(sys, "argv", own_words._Arguments(["train.py", *WORDS[1:4]]))
    return found, wanted


@pytest.mark.parametrize("look", [
    lambda: sys.argv[1:], lambda: [*sys.argv][1:], lambda: (len(sys.argv), sys.argv.copy()[1:])[1],
    lambda: [sys.argv.pop(1)], lambda: ([] + sys.argv[1:] if "lr" not in sys.argv else None),
])  # fmt: skip
def test_the_users_code_sees_the_words_of_the_trial(offered, look):
    found, wanted = offered
    wanted |= {"lr": 0.5, "mix": None}
    assert pickle.loads(pickle.dumps(sys.argv)) == ["train.py", *WORDS[1:4]] and sys.argv[0] == "train.py"
    assert not found, "neither our own code nor who looks at the script's name has read any"
    assert look()[0] == "lr=0.5" and "--mix" not in list(sys.argv)
    assert found == [{"lr": 3e-4, "mix": 0.9}], "once"


@pytest.mark.parametrize("instead", [("train.py", "lr=1"), ["other.py", "lr=1"]], ids=["tuple", "list"])
def test_a_script_may_put_other_words_in_their_place(offered, instead):
    found, wanted = offered
    words, sys.argv = sys.argv, instead
    wanted |= {"lr": 0.5}
    assert words[1] == "lr=0.5" and found == [{"lr": 3e-4, "mix": 0.9}]
    assert list(instead)[0].endswith(".py"), "the script is none of its words"


def test_what_a_parser_takes_is_not_the_users_to_take_apart(offered):
    found, wanted = offered
    assert sys.argv[1:] and len(found) == 1
    rest = ["lr=3e-4"]
    wanted |= {"lr": 0.5}
    own_words.taken(None, rest)
    assert found[1:] == [{"lr": 3e-4}] and rest == ["lr=0.5"] and sys.argv[1] == "lr=0.5"
    wanted.clear()
    own_words.taken(None)
    assert found[2:] == [{}], "a later parser has taken the rest"
