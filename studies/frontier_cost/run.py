"""How near to the true frontier so many trials come: ours, TPE, a Gaussian process, a grid, chance.

python studies/frontier_cost/run.py                     # everything without scipy, two minutes
python studies/frontier_cost/run.py gp --curves 10      # needs scipy, and patience
"""

import argparse
import math
import random
import warnings

import optuna
from optuna.distributions import IntDistribution

from bisect_cfg.recommend.frontier import Point, frontier_of, next_pair
from bisect_cfg.recommend.search_range import search_range_of

RANGES = search_range_of("learning_rate", 1e-6, 2e-2), search_range_of("beta", 1.0, 1e-3)  # 26 x 19 values
REPEATS = 10  # a sampler that proposes what was tried is told its outcome again so often before it is given in to
BUDGETS = (4, 9, 16, 25, 36)  # squares, so that a grid fits
SAMPLERS = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=4, multivariate=True),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=4),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}


def draw_frontier(chance):
    """A falling frontier: a smooth curve, a straight line or a staircase. Both at good is healthy, both at bad not."""
    while True:
        kind = chance.choice(["curve", "line", "stairs"])
        if kind == "curve":
            power = math.exp(chance.uniform(-1, 1.5))
            reach = chance.uniform(0.4, 1.3), chance.uniform(0.4, 1.3)
            truth = lambda u, v, p=power, r=reach: (u / r[0]) ** p + (v / r[1]) ** p < 1  # noqa: E731
        elif kind == "line":
            weight = chance.uniform(0.25, 0.75)
            limit = chance.uniform(0.6 * max(weight, 1 - weight), 0.95)
            truth = lambda u, v, w=weight, c=limit: w * u + (1 - w) * v < c  # noqa: E731
        else:
            steps = sorted(chance.random() for _ in range(chance.randint(1, 4)))
            heights = sorted((chance.random() for _ in range(len(steps) + 1)), reverse=True)
            truth = lambda u, v, s=steps, h=heights: v < h[sum(u > step for step in s)]  # noqa: E731
        if truth(0, 0) and not truth(1, 1):
            return truth


def misplaced(found, truth):
    """The share of all pairs of values that the fitted frontier puts on the wrong side."""
    first, second = RANGES
    wrong = 0
    for x in first.values:
        top = found.at(x)
        for y in second.values:
            inside = top is not None and second.share(y) <= second.share(top) + 1e-9
            wrong += inside is not bool(truth(first.share(x), second.share(y)))
    return wrong / (len(first.values) * len(second.values))


def sampled_pair(sampler, points):
    """What a sampler of Optuna proposes: go as far as possible with both settings, subject to being healthy."""
    study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
    axes = {each.name: IntDistribution(0, len(each.values) - 1) for each in RANGES}
    for point in points:
        indices = {each.name: each.values.index(point.values[each.name]) for each in RANGES}
        told = {"values": list(map(float, indices.values())), "constraints": {"unhealthy": violation(point)}}
        study.add_trial(optuna.trial.create_trial(params=indices, distributions=axes, **told))
    tried = {tuple(point.values.values()): point for point in points}
    for _ in range(REPEATS):
        trial = study.ask(axes)
        values = {each.name: each.values[trial.params[each.name]] for each in RANGES}
        if tuple(values.values()) not in tried:
            break
        trial.set_constraint("unhealthy", violation(tried[tuple(values.values())]))
        study.tell(trial, [float(trial.params[each.name]) for each in RANGES])
    return values


def violation(point):
    """Optuna calls a trial feasible if its constraint is at most zero."""
    return -1.0 if point.healthy else 1.0


def search(name, truth, budget, seed, rate):
    """One search. The cause is known: each setting alone at bad has been tried, which costs nothing here."""
    chance = random.Random(seed)
    first, second = RANGES

    def healthy(values):
        return bool(truth(*(each.share(values[each.name]) for each in RANGES))) or chance.random() > rate

    def tried(pairs):
        return [Point(v, healthy(v)) for v in ({first.name: x, second.name: y} for x, y in pairs)]

    known = tried([(first.bad, second.good), (first.good, second.bad)])
    if name != "grid":
        sampler = SAMPLERS[name](seed) if name in SAMPLERS else None
        for _ in range(budget):
            if not frontier_of(RANGES, known).undecided:
                break
            values = next_pair(RANGES, known) if sampler is None else sampled_pair(sampler, known)
            known.append(Point(values, healthy(values)))
        return frontier_of(RANGES, known)
    count = math.isqrt(budget)
    lines = [[each.values[round((i + 0.5) / count * (len(each.values) - 1))] for i in range(count)] for each in RANGES]
    return frontier_of(RANGES, [*known, *tried([(x, y) for x in lines[0] for y in lines[1]])])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("samplers", nargs="*", default=["ours", "tpe", "grid", "random"])
    parser.add_argument("--curves", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1.0, help="How often an unhealthy pair shows that it is.")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    print("| sampler | " + " | ".join(f"{budget} trials" for budget in BUDGETS) + " |")
    print("|---" * (len(BUDGETS) + 1) + "|")
    for name in options.samplers:
        cells = []
        for budget in BUDGETS:
            errors = []
            for seed in range(options.curves):
                truth = draw_frontier(random.Random(seed))
                errors.append(misplaced(search(name, truth, budget, seed, options.rate), truth))
            worst = sorted(errors)[math.ceil(0.9 * len(errors)) - 1]
            cells.append(f"{sum(errors) / len(errors):.1%} ({worst:.1%})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
