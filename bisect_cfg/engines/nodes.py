"""What the nodes have to do with what was seen: pure decisions, from the search's problem and records.

Runs of one subset that come out differently on two nodes need not be random: one of the nodes may do it. So the same
subset is run again, there and on others, until each side was seen `REPEATS` times without an exception; then the runs
of those nodes that are fewer count no more (`odd_nodes`). One node that has shown both settles that it is no affair of
nodes. Before anything is concluded, a node that has only ever shown one outcome runs the other end (`next_check`):
where everything fails the good configuration does, too, and where everything passes the bad one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.common.words import count
from bisect_cfg.search.problem import Ask, Conclusion, Problem, Record, Wait, by_size, holds
from bisect_cfg.search.proof import REPEATS

LOST = "lost"
"""Kind of the signature of a trial that has lost its machine each time."""

ENOUGH_NODES = 4
"""On so many nodes a subset is run, where there are as many, before the same ones run it again."""

Seen = Mapping[str, Sequence[Outcome]]
"""Node -> what the runs of one subset have shown there."""


def odd_nodes(problem: Problem, records: Sequence[Record], up: Collection[str]) -> dict[str, str]:
    """The nodes whose runs do not count, and what goes with each, as a sentence. Of nodes that are not `up` any more
    no further run is waited for."""
    odd: dict[str, str] = {}
    while True:
        left = [record for record in records if record.node not in odd]
        for subset, seen in _by_subset(left).items():
            sides = _sides(seen)
            runs = {outcome: sum(len(seen[node]) for node in nodes) for outcome, nodes in sides.items()}
            short = [nodes for outcome, nodes in sides.items() if runs[outcome] < REPEATS]
            if len(sides) < 2 or len(short) == len(sides) or any(node in up for nodes in short for node in nodes):
                continue
            if subset and _random(left):  # three runs alike may be luck; but a good configuration never fails
                continue
            usual = max(sides, key=lambda outcome: _weight(problem, subset, outcome, sides[outcome], left))
            for outcome in sides.keys() - {usual}:
                for node in sides[outcome]:
                    odd[node] = _sentence(problem, subset, node, outcome, seen, sides[usual], usual)
            break
        else:
            return odd


def _weight(
    problem: Problem, subset: int, outcome: Outcome, nodes: Sequence[str], records: Sequence[Record]
) -> tuple[int, bool, bool]:
    """How much speaks for one side: its nodes; that it is what an end of the search is to show; that the first run,
    which has shown the failure under study, was made there."""
    ends = {0: Outcome.PASS, problem.full: Outcome.FAIL}
    first = min((record for record in records if record.node), key=lambda record: record.number).node
    return len(nodes), ends.get(subset) is outcome, first in nodes


_DOES = {Outcome.PASS: "passes", Outcome.FAIL: "fails", Outcome.UNRESOLVED: "ends in another failure"}


def _sentence(
    problem: Problem, subset: int, node: str, outcome: Outcome, seen: Seen, others: Sequence[str], usual: Outcome
) -> str:
    ends = {0: "The good configuration", problem.full: "The bad configuration"}
    what = ends.get(subset) or f"With {problem.show(subset)} it"
    return (
        f"{what} {_DOES[outcome]} on {node} only ({count(len(seen[node]), 'run')}); on {', '.join(sorted(others))} it "
        f"{_DOES[usual]}. The runs of {node} do not count, and no more are made there."
    )


def next_check(
    problem: Problem, records: Sequence[Record], up: Collection[str], conclusion: Conclusion | None
) -> tuple[Ask | Wait, str] | None:
    """What to run on which node, before anything else is decided from the records, which are without those of odd
    nodes; or to wait for such a run; None if nothing is in doubt. With a conclusion: before that is given."""
    pending = {(record.subset, record.node) for record in records if record.outcome is None and record.node}
    every = _by_subset(records)
    found: list[tuple[int, str]] = []
    random = _random(records)
    for subset in sorted(every, key=by_size):
        if len(_sides(every[subset])) > 1 and not (random and subset):
            found += _more(subset, every[subset], up, pending)
    if not found and not random:
        found += _contradicted(records, every, up)
    if not found and conclusion is not None:
        found += _controls(problem, records, every, up, conclusion)
    for subset, node in found:
        if (subset, node) not in pending:
            reason = f"Is it the node? (The same run on {node}: {problem.show(subset)}.)"
            return Ask(subset, 0, Purpose.CHECK, reason), node
    return (Wait("A node is compared with others."), "") if found else None


def _more(subset: int, seen: Seen, up: Collection[str], pending: AbstractSet[tuple[int, str]]) -> list[tuple[int, str]]:
    """Where to run a subset once more, that nodes disagree on."""
    asked = {node for mask, node in pending if mask == subset}
    if asked:  # one after the other: each may settle it
        return [(subset, node) for node in asked]
    new = sorted(set(up) - set(seen)) if len(seen) < ENOUGH_NODES else []
    sides = _sides(seen).values()
    short = [node for nodes in sides if sum(len(seen[node]) for node in nodes) < REPEATS for node in nodes]
    again = sorted((node for node in short if node in up), key=lambda node: (len(seen[node]), node))
    return [(subset, node) for node in [*new, *again][:1]] if short else []


def _contradicted(records: Iterable[Record], every: Mapping[int, Seen], up: Collection[str]) -> list[tuple[int, str]]:
    """Where a subset failed on some nodes and a larger one passed on others: the one run that tells whether these nodes
    agree on either."""
    failed, passed = (
        {subset: {node for node, told in seen.items() if outcome in told} for subset, seen in every.items()}
        for outcome in (Outcome.FAIL, Outcome.PASS)
    )
    alone = {record.subset for record in records if not record.node and record.outcome is not None}
    for small in sorted(failed, key=by_size):
        for large in sorted(passed, key=by_size):
            there, here = failed[small], passed[large]
            if not (small and there and here) or small & large != small or there & here or {small, large} & alone:
                continue
            for subset, nodes in ((large, there), (small, here)):
                if nodes & set(every[subset]):
                    break  # what that node shows is no surprise: a setting hides it, or it is random
            else:
                found = [(large, node) for node in sorted(there & set(up))]
                found += [(small, node) for node in sorted(here & set(up))]
                if found:
                    return found[:1]
    return []


def _controls(
    problem: Problem, records: Sequence[Record], every: Mapping[int, Seen], up: Collection[str], conclusion: Conclusion
) -> list[tuple[int, str]]:
    """A cause that was seen to fail on one node alone, elsewhere. The other end on each node that has only ever shown
    one outcome, where a claim rests on its runs alone or it has made several; and the end that came out as it should
    not, elsewhere."""
    at = {record.number: record.node for record in records}
    claims = [claim for _, claim in conclusion.corrections]
    for cause in conclusion.causes:
        claims += [cause.fails, *cause.without.values()]
    found, sole = [], set()
    for claim in claims:
        nodes = {at.get(number, "") for number in claim.numbers}
        if len(nodes) == 1:
            sole |= nodes
            elsewhere = sorted(set(up) - nodes) if claim.expected is Outcome.FAIL and "" not in nodes else []
            found += [(claim.subset or 0, node) for node in elsewhere[:1]]
    for node in sorted({node for seen in every.values() for node in seen}):
        shown = [outcome for seen in every.values() for outcome in seen.get(node, ())]
        if len({*shown}) > 1:
            continue
        end = problem.full if Outcome.PASS in shown else 0
        others = sorted(set(up) - {node})
        if node in every.get(end, {}):
            found += [(end, other) for other in others[:1] if len(every[end]) < 2]
        elif node in up and others and (len(shown) > 1 or node in sole):
            found.append((end, node))
    return found


def _by_subset(records: Iterable[Record]) -> dict[int, dict[str, list[Outcome]]]:
    seen: dict[int, dict[str, list[Outcome]]] = {}
    for record in records:
        if record.node and record.outcome is not None and not record.other.startswith(LOST):
            seen.setdefault(record.subset, {}).setdefault(record.node, []).append(record.outcome)
    return seen


def _sides(seen: Seen) -> dict[Outcome, list[str]]:
    """Outcome -> the nodes that have shown it; {} once one node has shown several: then it is no affair of nodes."""
    sides: dict[Outcome, list[str]] = {}
    for node, outcomes in seen.items():
        if len({*outcomes}) > 1:
            return {}
        sides.setdefault(outcomes[0], []).append(node)
    return sides


def _random(records: Iterable[Record]) -> bool:
    """Whether one node has shown two outcomes for one subset."""
    return any(len({*told}) > 1 for seen in _by_subset(records).values() for told in seen.values())


def without_lost(problem: Problem, records: Sequence[Record], conclusion: Conclusion) -> Conclusion:
    """The conclusion without what a lost trial could refute: to the search it is a subset that cannot be run, but
    nobody knows what it would have shown."""
    causes, fails = conclusion.causes, [cause.fails.subset or 0 for cause in conclusion.causes]
    ran = {record.subset for record in records if record.outcome in (Outcome.PASS, Outcome.FAIL)}
    passed = [record.subset for record in records if record.outcome is Outcome.PASS]
    lost = {record.subset for record in records if record.other.startswith(LOST)} - ran
    named = [cause.parameters for cause in causes]  # lost by themselves, they have companions that may be of the cause
    open_ = [
        mask
        for mask in sorted(lost)
        if not holds(mask, fails) and (holds(mask, named) or not any(mask & one == mask for one in passed))
    ]
    if not open_:
        return conclusion
    kept = tuple(one for one in causes if not any(mask & (one.fails.subset or 0) == mask for mask in open_))
    notes = (f"What {problem.show(mask)} would show is not known: the machine was lost each time." for mask in open_)
    status = Status.INCONCLUSIVE if not kept and conclusion.status is Status.ISOLATED else conclusion.status
    return replace(conclusion, status=status, causes=kept, complete=False, notes=(*conclusion.notes, *notes))


def refusals(unused: Mapping[str, str], used: Collection[str]) -> str:
    """Which nodes are not used (node -> why), beside those that are, as a sentence without its end."""
    every = len({*used, *unused})
    nodes = {why: sorted(node for node in unused if unused[node] == why) for why in unused.values()}
    return "; ".join(
        f"{len(named)} of {every} nodes {'has' if len(named) == 1 else 'have'} {why}: not used ({', '.join(named)})"
        for why, named in nodes.items()
    )
