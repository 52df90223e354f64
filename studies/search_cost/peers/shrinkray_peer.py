"""shrinkray: its reducer of directories, with one empty file a factor, so that it deletes files and no bytes.

Needs Python 3.12. Its answer to random failures is its own `NondeterminismPolicy`, on whenever `repeats` > 1.
"""

from __future__ import annotations

import trio
from oracles import Answer, Exhausted, Oracle
from shrinkray.nondeterminism import NondeterminismPolicy
from shrinkray.problem import BasicReductionProblem, InvalidInitialExample
from shrinkray.reducer import DirectoryShrinkRay
from shrinkray.work import Volume, WorkContext

PACKAGE = "shrinkray"
SETTINGS = (1, 2)


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause."""

    async def interesting(files: dict[str, bytes]) -> bool:
        return oracle.run(sum(1 << int(name) for name in files)) is True

    async def reduce() -> dict[str, bytes]:
        problem = BasicReductionProblem(
            {str(i): b"" for i in range(oracle.size)},
            interesting,
            WorkContext(volume=Volume.quiet),
            sort_key=lambda files: (len(files), sorted(files)),
            size=len,
            cache_key=lambda files: " ".join(sorted(files)),
            policy=NondeterminismPolicy() if repeats > 1 else None,
        )
        await problem.setup()
        await DirectoryShrinkRay(target=problem).run()
        return problem.current_test_case

    try:
        found = trio.run(reduce)
    except InvalidInitialExample:
        return Answer(frozenset())
    except BaseExceptionGroup as group:  # what its tasks raised
        if group.subgroup(Exhausted):
            raise Exhausted from group
        raise
    return Answer(frozenset({sum(1 << int(name) for name in found)}))
