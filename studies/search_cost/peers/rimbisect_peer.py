"""rimbisect: `Search.locate_all` as its command calls it, on a load order with one mod a factor.

Core, which every list needs, is kept; the full list is run once, as its command does, and recorded. `repeats` is its
own option.
"""

from __future__ import annotations

from pathlib import Path

from oracles import Answer, Oracle
from rimbisect.about import Mod
from rimbisect.modlist import CORE, LoadOrder, ModsConfig
from rimbisect.search import Inconclusive, Search
from rimbisect.trial import FAIL, PASS, UNRESOLVED, Trial

PACKAGE = "rimbisect"


class _Launcher:
    """Its launcher, with the game simulated."""

    def __init__(self, oracle: Oracle) -> None:
        self.trials: list[Trial] = []
        self.numbered = 0
        self.not_loaded_at_first: set[str] | None = None
        self._oracle = oracle

    def run(self, mods: list[str], label: str, criterion: object) -> Trial:
        fails = self._oracle.run(sum(1 << int(mod[3:]) for mod in mods if mod.startswith("mod")))
        self.numbered += 1
        outcome = UNRESOLVED if fails is None else FAIL if fails else PASS
        trial = Trial(self.numbered, label, mods, outcome)
        self.trials.append(trial)
        return trial


def solve(oracle: Oracle, repeats: int) -> Answer:
    """Causes with nothing in common."""
    ids = [f"mod{i}" for i in range(oracle.size)]
    mods = {name: Mod(name, name, Path()) for name in (CORE, *ids)}
    order = LoadOrder.build(ModsConfig("1.6", [CORE, *ids], []), mods, [])
    launcher = _Launcher(oracle)
    search = Search(order, launcher, None, {CORE}, repeats=repeats, log=lambda line: None)
    if launcher.run([CORE, *ids], "baseline", None).outcome != FAIL:
        return Answer(frozenset())
    search.record(ids, True)
    try:
        groups = search.locate_all(ids)
    except Inconclusive:
        groups = search.groups
    return Answer(frozenset(sum(1 << int(name[3:]) for name in group) for group in groups))
