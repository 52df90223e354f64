"""What the user's code says of the keys of its own files."""

from __future__ import annotations

import os
import textwrap

from bisect_cfg.targets.own_code import own_code


def test_a_default_is_what_all_of_the_code_says(tmp_path):
    (tmp_path / "rewards.py").write_text(
        "def build(config):\n    return config.get('window', 4), config.pop('odd', 2)\n"
    )
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import rewards
        WINDOW = 4
        config["reward"].get("window", WINDOW), config.get("odd", 1), getattr(config, "eps", -1e-6)
        config.get("reward", {}), config.get("made", str(2)), config.get("none", None)
        config.get("targets", ("q", "v"))
    """)
    )
    code = own_code([str(tmp_path / "train.py")])
    names = ("reward.window", "window", "odd", "eps", "reward", "made", "none", "training.targets")
    assert [code.default_of(name) for name in names] == [(4,), (4,), (), (-1e-6,), (), (), (None,), (["q", "v"],)]


def test_a_default_is_that_of_its_section(tmp_path):
    (tmp_path / "train.py").write_text(
        "reward = config.get('reward', {})\n"
        "reward.get('kind', 'f1'), config['optimizer'].get('kind', 'adam'), config.get('data').get('rows', 8)\n"
    )
    code = own_code([str(tmp_path / "train.py")])
    names = ("reward.kind", "optimizer.kind", "data.kind", "data.rows", "rows")
    assert [code.default_of(name) for name in names] == [("f1",), ("adam",), (), (8,), ()]


def test_a_key_that_is_handed_to_a_function_of_the_scripts_own_has_the_default_of_its_parameter(tmp_path):
    (tmp_path / "rewards.py").write_text(
        textwrap.dedent("""
        def make_reward(tokenizer, window=4, *, eps=1e-6): ...
        class Penalty:
            weight: float = 9.0
            def __init__(self, weight=0.5, cap=None): ...
        class Limits(NamedTuple):
            low: int = 1
        def twice(size=1): ...
        def known(steps=3): ...
    """)
    )
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import rewards
        def twice(size=2): ...
        section = config["reward"]
        rewards.make_reward(tokenizer, **section), Penalty(float(config["loss"]["heft"]))
        functools.partial(Limits, low=config.get("floor")), twice(**config), GRPOConfig(**config["training"])
        rewards.known(**config), config.get("steps", 8)
    """)
    )
    code = own_code([str(tmp_path / "train.py")])
    names = ("reward.window", "reward.eps", "window", "loss.heft", "floor", "size", "reward.tokenizer", "steps")
    assert [code.default_of(name) for name in names] == [(4,), (1e-6,), (), (0.5,), (1,), (), (), (8,)]


def test_a_dictionary_of_defaults_is_told_by_its_name_or_by_what_is_merged_into_it(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        DEFAULTS: dict = {"seed": 1, "reward": {"window": 4, "chain": [{"kind": "zero"}], "made": len(x)}}
        settings = {"lr": 2}
        settings.update(yaml.safe_load(stream))
        base = OmegaConf.create({"eps": 3})
        merged = OmegaConf.merge(base, OmegaConf.load(path))
        first, second = {"top": 4}, {"low": 5}
        head = {"top": 4}
        both = {**head, **loaded}
        lengths = {"window": 9, "far": 6}
        config.get("window", 7)
    """)
    )
    code = own_code([str(tmp_path / "train.py")])
    names = ("seed", "reward.window", "reward.chain", "reward.made", "lr", "eps", "top", "low", "far")
    assert [code.default_of(name) for name in names] == [
        (1,),
        (4,),
        ([{"kind": "zero"}],),
        (),
        (2,),
        (3,),
        (4,),
        (),
        (),
    ]


def test_a_key_that_is_only_handed_on_is_not_read(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        GRPOConfig(beta=config["beta"], temperature=float(config.get("heat")), **config["training"])
        reward(config["beta"], config.window)
    """)
    )
    read = own_code([str(tmp_path / "train.py")]).read
    assert {"beta", "window"} <= read and "heat" not in read


def test_code_that_cannot_be_read_says_nothing(tmp_path):
    (tmp_path / "train.py").write_text("def broken(:")
    for path in (tmp_path / "train.py", tmp_path / "gone.py"):
        assert not own_code([str(path)]).defaults


def test_code_that_was_edited_meanwhile_is_read_anew(tmp_path):
    """A notebook's kernel lives on while the script is edited."""
    path = tmp_path / "train.py"
    for number in (1, 2):
        path.write_text(f"config.get('window', {number})")
        os.utime(path, ns=(number, number))
        assert own_code([str(path)]).default_of("window") == (number,)


def test_a_parameter_may_be_none_by_default(tmp_path):
    (tmp_path / "train.py").write_text(
        "def make_reward(floor=None, cap=None, rate=compute()): ...\n"
        "make_reward(floor=config.get('floor'), cap=config['cap'], rate=config.get('rate'))\n"
    )
    code = own_code([str(tmp_path / "train.py")])
    assert [code.default_of(name) for name in ("floor", "cap", "rate")] == [(None,), (None,), ()]


def test_the_elements_of_a_list_are_alike(tmp_path):
    (tmp_path / "train.py").write_text(
        "def one_of(name, weight=1.0): ...\n"
        "rewards = [one_of(**item) for item in config['rewards']]\n"
        "for part in config['parts']:\n    part.get('size', 3)\n"
    )
    code = own_code([str(tmp_path / "train.py")])
    names = ("rewards.0.weight", "rewards.1.weight", "rewards.0.name", "parts.0.size")
    assert [code.default_of(name) for name in names] == [(1.0,), (1.0,), (), (3,)]


def test_a_default_of_a_word_is_that_of_its_key_or_of_the_variable_that_has_its_name(tmp_path):
    (tmp_path / "train.py").write_text(
        "lr, mix = 1e-6, float(x)\nwindow: int = 4\nfast = False\nconfig = {'size': 8, 'tags': ['a']}\n"
        "for word in sys.argv[1:]:\n    key, value = word.split('=')\n    config[key] = value\n    fast = True\n"
        "found.get('--max-cap', '3'), found.get('kind'), window\n"
    )
    code = own_code([str(tmp_path / "train.py")])
    names = ("lr", "mix", "window", "fast", "size", "tags", "max_cap", "kind")
    assert [code.default_of_word(name) for name in names] == [(1e-6,), (), (4,), (False,), (8,), (), (3,), ()]
