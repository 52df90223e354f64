"""What data files ask of values: the same words in all of them."""

from __future__ import annotations

import pytest

from bisect_cfg.common.parameters.comparing import agrees


@pytest.mark.parametrize(
    ("wanted", "yes", "no", "open_"),
    [
        (True, (True, "True", "true", 1, "1"), (False, None, "None", 0, "0", "no", "batch"), ()),
        (False, (False, None, "None", 0, "0.0", "", [], {}), (True, "yes", 3, "batch"), ()),
        ("batch", ("batch", "Batch"), ("group", None, True), ()),
        ("none", ("none", "None"), (None, False), ()),
        (None, (None,), ("none", False, 0), ()),
        (0.5, (0.5, "0.5", "5e-1"), (0.4, None, "half", True), ()),
        (0, (0, 0.0, "0"), (1, None), ()),
        (">1", (2, "1.5"), (1, 0.5, "0"), (None, "many", True)),
        ("<6e-8", (1e-8, "1e-8"), (1e-6,), (None,)),
        ("!=0", (1, "0.1"), (0, "0.0"), (None,)),
        (["none", False], ("none", False, None), ("group", True), ()),
        (["<0.1", ">10"], (0.01, 20), (5,), ()),
        ("*", (None, 3, "x"), (), ()),
        ("float16", ("float16", "torch.float16", {"$dtype": "float16"}), ({"$dtype": "bfloat16"},), ()),
    ],
)
def test_a_value_is_what_is_asked_for_or_is_not(wanted, yes, no, open_):
    assert [agrees(wanted, value) for value in yes] == [True] * len(yes)
    assert [agrees(wanted, value) for value in no] == [False] * len(no)
    assert [agrees(wanted, value) for value in open_] == [None] * len(open_)
