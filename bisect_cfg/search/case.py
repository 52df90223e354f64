"""One decision's case: the problem, what was seen of it, and what follows from that."""

from __future__ import annotations

from functools import cached_property

from bisect_cfg.search.counts import Counts
from bisect_cfg.search.posterior import Posterior
from bisect_cfg.search.prices import Prices
from bisect_cfg.search.problem import Problem
from bisect_cfg.search.validity import Validity


class Case:
    """The problem and the records, with all that is computed from them once a decision.

    Attributes:
        problem: what is searched.
        counts: what was seen.
        validity: what can be run.
        unsteady: whether a failure that always shows is ruled out: by a contradiction, or because it is so unlikely
            that the runs that would settle it are better spent otherwise.
    """

    def __init__(self, problem: Problem, counts: Counts, unsteady: bool = False) -> None:
        self.problem, self.counts = problem, counts
        self.unsteady = unsteady or counts.contradictory
        self.validity = Validity(problem, counts)

    @cached_property
    def prices(self) -> Prices:
        """What runs cost."""
        return Prices.of(self.problem, self.counts)

    @cached_property
    def posterior(self) -> Posterior:
        """How likely hypotheses are."""
        return Posterior(self.problem, self.counts, self.unsteady)
