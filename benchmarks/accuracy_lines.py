"""Lines of `accuracy.py`, and how methods are compared by them."""

import collections
import json
import pathlib
import statistics
from collections.abc import Iterable

import numpy as np
import scipy.stats
from accuracy_tasks import BUDGETS, TASKS, VARIANTS

TUNING_SEED = 1000
# The defaults of `CBNNCallback` were chosen with this seed of these tasks, so
# it says nothing about them.
CHOSEN_ON = {(task, 0) for task in ("digits", "satellite", "ag_news")}
Place = tuple[str, str, str]  # task, variant, budget
# Lines of each method, by seed.
Results = dict[Place, dict[str, dict[int, dict]]]


def read(path: pathlib.Path) -> Results:
    """Lines by place, method and seed; of several rates, the tuned one."""
    found: Results = collections.defaultdict(
        lambda: collections.defaultdict(dict)
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    best = _best_rates(lines)
    for line in lines:
        place = (line["task"], line["variant"], line["budget"])
        seed = line["seed"]
        if seed == TUNING_SEED or (line["task"], seed) in CHOSEN_ON:
            continue
        # A run serves several methods, each at its own best rate; where that
        # was not run, the rate of the run's first method.
        rates = found[place][line["method"]].get(seed)
        wanted = best.get((*place, line["method"]))
        if rates is None or line["rate"] == wanted:
            found[place][line["method"]][seed] = line
    return found


def _best_rates(lines: list[dict]) -> dict[tuple, float]:
    tuning = collections.defaultdict(list)
    for line in lines:
        if line["seed"] == TUNING_SEED:
            place = (line["task"], line["variant"], line["budget"])
            quality = (line["val_error"], line["val_likelihood"])
            tuning[(*place, line["method"])].append((*quality, line["rate"]))
    return {key: min(found)[-1] for key, found in tuning.items()}


def paired(
    ours: dict[int, dict], theirs: dict[int, dict], quantity: str
) -> tuple[float, float]:
    """Mean of the differences by seed, and half of its 95 % interval."""
    seeds = sorted(ours.keys() & theirs.keys())
    differences = [ours[s][quantity] - theirs[s][quantity] for s in seeds]
    return mean_and_half(differences)


def mean_and_half(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    if len(values) < 2:
        return values[0], float("inf")
    quantile = scipy.stats.t.ppf(0.975, len(values) - 1)
    half = quantile * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), half


def comparable(
    found: dict[str, dict[int, dict]], names: Iterable[str]
) -> dict[str, dict[int, dict]]:
    """The lines of methods, as far as they are there, of the same seeds."""
    known = [name for name in names if name in found]
    seeds = set.intersection(*(set(found[name]) for name in known))
    return {name: {s: found[name][s] for s in seeds} for name in known}


def mean(lines: dict[int, dict], quantity: str = "error") -> float:
    return statistics.mean(line[quantity] for line in lines.values())


def places(results: Results) -> list[Place]:
    """In the order of tasks, variants and budgets."""
    return [
        (task, variant, budget)
        for task in TASKS
        for variant in VARIANTS
        for budget in BUDGETS
        if results.get((task, variant, budget))
    ]


def interval(middle: float, half: float, digits: int = 2) -> str:
    if np.isinf(half):
        return f"{middle:+.{digits}f} (one seed)"
    return f"{middle:+.{digits}f} ± {half:.{digits}f}"


def markdown(head: list[str], rows: list[list]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
