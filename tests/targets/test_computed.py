"""Fields that the script computes of settings of its own: they vary with those, not apart from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, ConfigBuilt, ConfigResolved
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.factors import DEFAULT, Factors

LIBRARY = {"eval_strategy": "no", "eval_steps": None, "eval_size": 8, "num_generations": 8, "learning_rate": 5e-5}
EVALUATES = """
def main(eval_every: int = 0, num_generations: int = 4, num_generations_eval: int | None = None):
    GRPOConfig(
        eval_strategy="steps" if eval_every else "no", eval_steps=eval_every or 500, num_generations=num_generations,
        eval_size=num_generations_eval or num_generations,
    )
"""
DEFAULTS = {"eval_every": 0, "num_generations": 4, "num_generations_eval": None}


def compared(folder: Path, code: str, given: dict, own: dict, defaults: dict, **options: object) -> Comparison:
    """Of a script whose own settings are flags, and whose run had these fields."""
    (folder / "train.py").write_text(code)
    place, flags = (str(folder / "train.py"), 4), {name: [f"--{name}"] for name in own}
    events = [
        ConfigBuilt("script", 0, "", "", own, defaults, dict.fromkeys(own, ""), place=place, flags=flags),
        ConfigBuilt("args", 0, "GRPOConfig", "trl", given, LIBRARY, dict.fromkeys(LIBRARY, ""), place=place),
        ConfigResolved("args", 0, {**LIBRARY, **given}),
    ]
    return Comparison(read_capture(events), resolved, **options)


def resolved(request: BuildRequest) -> BuildAnswer:
    good = {name: LIBRARY[name] if to == DEFAULT else to for name, to in request.overrides.items()}
    return BuildAnswer({**LIBRARY, **request.raw, **good})


def sides(factors: Factors) -> dict[str, tuple[object, object]]:
    return {factor.name: (factor.good, factor.bad) for factor in factors.varied}


def asked(factors: Factors, **changes: object) -> dict[str, object]:
    """What the library is asked to build for the user's settings with these changes, where it is not the user's."""
    request = factors.build_request({**factors.bad, **{name.replace("__", "."): to for name, to in changes.items()}})
    return {name: to for name, to in request.overrides.items() if to != request.raw.get(name)}


def test_what_the_script_computes_of_its_flags_follows_them(tmp_path):
    given = {"eval_strategy": "steps", "eval_steps": 25, "eval_size": 3, "num_generations": 4}
    own = {"eval_every": 25, "num_generations": 4, "num_generations_eval": 3}
    factors = compared(tmp_path, EVALUATES, given, own, DEFAULTS).factors()
    assert sides(factors) == {"script.eval_every": (0, 25), "script.num_generations_eval": (None, 3)}
    assert asked(factors, script__eval_every=0) == {"eval_strategy": "no", "eval_steps": 500}
    assert asked(factors, script__num_generations_eval=None) == {"eval_size": 4}
    assert factors.overrides({**factors.bad, "script.eval_every": 0}) == {"script.eval_every": 0}, "it computes them"


def test_a_field_of_several_flags_follows_each(tmp_path):
    given = {"eval_strategy": "steps", "eval_steps": 25, "eval_size": 3, "num_generations": 16}
    own = {"eval_every": 25, "num_generations": 16, "num_generations_eval": 3}
    factors = compared(tmp_path, EVALUATES, given, own, DEFAULTS).factors()
    assert sides(factors) == {
        "num_generations": (4, 16), "script.eval_every": (0, 25), "script.num_generations_eval": (None, 3)
    }  # fmt: skip
    assert asked(factors, script__num_generations_eval=None) == {"eval_size": 16}
    assert asked(factors, script__num_generations_eval=None, num_generations=4) == {
        "num_generations": 4, "eval_size": 4}  # fmt: skip


@pytest.mark.parametrize("options", [
    {"pins": {"script.eval_every": 25}}, {"excluded": ["script.eval_every"]}, {"only": ["eval_strategy"]},
    {"good": {"eval_strategy": "no"}},
], ids=["pin", "exclude", "only", "good"])  # fmt: skip
def test_a_field_of_what_does_not_vary_is_a_factor_by_itself(tmp_path, options):
    given, own = {"eval_strategy": "steps"}, {"eval_every": 25}
    found = sides(compared(tmp_path, EVALUATES, given, own, {"eval_every": 0}, **options).factors())
    assert found["eval_strategy"] == ("no", "steps") and ("script.eval_every" in found) is ("good" in options)


@pytest.mark.parametrize(("name", "defaults"), [("save_every", {"save_every": 0}), ("eval_every", {})])
def test_a_field_of_a_flag_without_a_good_value_or_with_a_name_that_is_pinned_is_a_factor(tmp_path, name, defaults):
    code = EVALUATES.replace("eval_every", "seed_rows" if name == "save_every" else name)
    own = {"seed_rows" if name == "save_every" else name: 25}
    defaults = dict.fromkeys(own, 0) if defaults else {}
    assert sides(compared(tmp_path, code, {"eval_strategy": "steps"}, own, defaults).factors()) == {
        "eval_strategy": ("no", "steps")
    }


@pytest.mark.parametrize(("code", "value", "good"), [
    ("learning_rate=rate * 2", 0.2, 0.02), ("learning_rate=max(float(args.rate), 0.05) - 0.05", 0.05, 0.0),
    ("learning_rate=0.5 if 0.05 < cfg['rate'] <= 0.2 else -1", 0.5, -1), ("learning_rate=half(args.rate)", 0.05, None),
    ("learning_rate=args.rate * 2", 0.7, None),  # not what the run had
    ("learning_rate=args.rate * 2); Other(learning_rate=0.2", 0.2, None),  # which of them is it?
    ("learning_rate=(lambda x: x)(args.rate) * 2", 0.2, None), ("learning_rate=args.rate * scale", 0.2, None),
])  # fmt: skip
def test_what_can_be_worked_out_follows(tmp_path, code, value, good):
    comparison = compared(tmp_path, f"GRPOConfig({code})", {"learning_rate": value}, {"rate": 0.1}, {"rate": 0.01})
    factors = comparison.factors()
    assert ("learning_rate" in sides(factors)) is (good is None)
    assert asked(factors, script__rate=0.01) == ({} if good is None else {"learning_rate": good})


def test_a_flag_that_is_handed_on_and_used_for_another_field_as_well_is_one_with_the_first(tmp_path):
    code = "rate = args.rate\nGRPOConfig(learning_rate=rate, eval_size=int(rate * 100))"
    given = {"learning_rate": 0.1, "eval_size": 10}
    factors = compared(tmp_path, code, given, {"rate": 0.1}, {"rate": 0.02}).factors()
    assert sides(factors) == {"learning_rate": (0.02, 0.1)} and factors.varied[0].own == ("script.rate", 0.02)
    assert asked(factors, learning_rate=0.02) == {"learning_rate": 0.02, "eval_size": 2}


def test_what_stands_in_for_a_flag_that_is_not_given_is_the_good_value(tmp_path):
    code = "GRPOConfig(learning_rate=args.rate or 1e-5)"
    comparison = compared(tmp_path, code, {"learning_rate": 0.1}, {"rate": 0.1}, {"rate": None})
    factors = comparison.factors()
    assert sides(factors) == {"learning_rate": (1e-5, 0.1)} and factors.varied[0].own == ("script.rate", None)
    named = replace(comparison, good={"script.rate": 0.2}).factors()
    assert sides(named) == {"learning_rate": (0.2, 0.1)}


@pytest.mark.parametrize(("holds", "read"), [
    ("Own(size=args.length, blocks=args.blocks)", "config.size"),
    ("{'size': args.length, 'blocks': args.blocks}", "config['size']"),
    ("Own(blocks=args.blocks)\nconfig.size = args.length", "config.size"),
    ("Own(part={'size': args.length, 'blocks': args.blocks})", "config.part['size']"),
])  # fmt: skip
def test_of_an_object_only_the_part_is_followed_that_is_read(tmp_path, holds, read):
    code = f"config = {holds}\nGRPOConfig(eval_size={read})"
    own, defaults = {"length": 3, "blocks": 3}, {"length": 1, "blocks": 0}
    factors = compared(tmp_path, code, {"eval_size": 3}, own, defaults).factors()
    assert sides(factors) == {"eval_size": (1, 3), "script.blocks": (0, 3)}
