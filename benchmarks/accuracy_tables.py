"""Lines of `accuracy.py` -> Markdown tables and one picture."""

import collections
import json
import pathlib
import statistics
from collections.abc import Callable, Iterable

import numpy as np
import scipy.stats
from accuracy_methods import ADDED, NUM_POINTS
from accuracy_tasks import BUDGETS, TASKS, VARIANTS

TUNING_SEED = 1000
# The defaults of `CBNNCallback` were chosen with this seed of these tasks, so
# it says nothing about them.
CHOSEN_ON = {(task, 0) for task in ("digits", "satellite", "ag_news")}
# Methods of one budget that an ensemble of restarts has to stand up to.
ONE_BUDGET = (
    *("plain", "cosine", "cosine, averaged", "NoCycle", "SWA", "SSE", "FGE"),
    *("PE", "CBNN, plain", "CBNN, cosine", "restarts=3", "restarts=6"),
)
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


def is_not_worse(place: Place, results: Results, method: str) -> bool:
    """The upper end is below +0.2 points, or below 2 % of the error."""
    script = ADDED[method][0]
    found = comparable(results[place], (script, method))
    difference, half = paired(found[method], found[script], "error")
    limit = max(0.2, 0.02 * mean(found[script]))
    return difference + half < limit


def defaults_table(results: Results) -> str:
    """`CBNNCallback()` added to a script, against the script alone."""
    head = ["task", "variant", "budget", "seeds"]
    for script in ("plain", "cosine"):
        head += [f"{script} fit, error", "CBNN: difference", "likelihood", ""]
    rows = []
    for place in places(results):
        row: list = list(place)
        for method in ("CBNN, plain", "CBNN, cosine"):
            script = ADDED[method][0]
            if method not in results[place]:
                row += ["", "", "", ""]
                continue
            found = comparable(results[place], (script, method))
            if len(row) == 3:
                row.append(len(found[method]))
            row += [
                f"{mean(found[script]):.2f}",
                interval(*paired(found[method], found[script], "error")),
                interval(
                    *paired(found[method], found[script], "calibrated"), 3
                ),
                "" if is_not_worse(place, results, method) else "not shown",
            ]
        rows.append(row)
    return markdown(head, rows)


def methods_table(results: Results) -> str:
    """Test error of every method, the best in bold."""
    names = [n for n in ONE_BUDGET if any(n in f for f in results.values())]
    names += ["CBNN of the paper, cosine"]
    rows = []
    for place in places(results):
        found = comparable(results[place], names)
        errors = {name: mean(lines) for name, lines in found.items()}
        best = min(errors.values())
        rows.append(
            [
                *place,
                *(_bold(errors[n], best) if n in errors else "" for n in names),
            ]
        )
    return markdown(["task", "variant", "budget", *names], rows)


def _bold(error: float, best: float) -> str:
    return f"**{error:.2f}**" if error == best else f"{error:.2f}"


def better_restarts(place: Place, results: Results) -> str:
    """The better of 3 and 6 restarts, on held-out data."""
    names = ("restarts=3", "restarts=6")
    found = comparable(results[place], names)
    return min(names, key=lambda name: mean(found[name], "val_error"))


def against_single(
    place: Place, results: Results, name: str
) -> tuple[float, float, float, int]:
    """Of a method to the single averaged model, and what that has.

    Returns:
        The difference and half of its interval, the error of the single model,
        and the number of seeds.
    """
    pair = comparable(results[place], (name, "cosine, averaged"))
    single = pair["cosine, averaged"]
    difference = paired(pair[name], single, "error")
    return *difference, mean(single), len(single)


def restarted(results: Results) -> list[Place]:
    """Where restarts are to be worth it, as far as they were run."""
    names = {"restarts=3", "restarts=6"}
    return [
        place
        for place in places(results)
        if place[2] != "short" and names <= results[place].keys()
    ]


def restarts_table(results: Results) -> str:
    """The better of 3 and 6 restarts on held-out data, against the others."""
    rows = []
    for place in restarted(results):
        name = better_restarts(place, results)
        difference, half, single, num = against_single(place, results, name)
        found = comparable(results[place], ONE_BUDGET)
        rival = min(
            (n for n in ONE_BUDGET if n in found and "restarts" not in n),
            key=lambda n: mean(found[n]),
        )
        rows.append(
            [
                *place,
                name,
                num,
                f"{single:.2f}",
                interval(difference, half),
                f"{100 * difference / single:+.0f} %",
                f"{rival}, {mean(found[rival]):.2f}",
                interval(*paired(found[name], found[rival], "error")),
            ]
        )
    head = ["task", "variant", "budget", "restarts", "seeds"]
    head += ["single, averaged", "difference", "of the error"]
    head += ["best other", "difference to it"]
    return markdown(head, rows)


def imbalance_table(results: Results) -> str:
    """What `priors=` adds on imbalanced data."""
    names = [
        *("cosine", "cosine, priors", "oversampled", "CBNN, cosine"),
        *("CBNN, cosine, priors", "restarts=3, priors", "restarts=6, priors"),
    ]
    rows = []
    for place in places(results):
        if place[1] == "imbalanced":
            found = comparable(results[place], names)
            cells = [
                f"{mean(found[n]):.2f}" if found.get(n) else "" for n in names
            ]
            rows.append([place[0], place[2], *cells])
    return markdown(["task", "budget", *names], rows)


def regimes_table(results: Results) -> str:
    """Two regimes side by side, as in the README."""
    names = {
        "clean": "{}",
        "wrong labels": "{}, 20 % wrong labels",
        "imbalanced": "{}, 10:1",
    }
    columns = [
        *(("short", name) for name in ("plain", "CBNN, plain")),
        *(("short", name) for name in ("cosine", "CBNN, cosine")),
        *(("long", name) for name in ("plain", "CBNN, plain")),
        *(("long", name) for name in ("cosine", "restarts=6")),
    ]
    head = ["", "short: `fit`", "+ CBNN", "cosine", "+ CBNN"]
    head += ["long: `fit`", "+ CBNN", "cosine", "`restarts=6`"]
    rows = []
    for variant, form in names.items():
        for task in TASKS:
            found = {
                budget: comparable(
                    results[task, variant, budget],
                    [method for one, method in columns if one == budget],
                )
                for budget in ("short", "long")
                if results[task, variant, budget]
            }
            cells = [
                mean(found[budget][method])
                for budget, method in columns
                if method in found.get(budget, {})
            ]
            if len(cells) == len(columns):
                rows.append([form.format(task), *(f"{c:.1f}" for c in cells)])
    return markdown(head, rows)


def reached(curve: list[float], target: float) -> float | None:
    """The share of the run after which an accuracy is reached."""
    for number, accuracy in enumerate(curve, start=1):
        if accuracy >= target:
            return number / NUM_POINTS
    return None


def time_table(results: Results) -> str:
    """Share of a run that it takes to get to the single model's accuracy."""
    names = ("cosine", "CBNN, cosine", "restarts=3", "restarts=6")
    rows = []
    for place in places(results):
        if place[2] != "converged":
            continue
        row: list[str] = list(place[:2])
        for name in names:
            row.append(_share_reached(results[place], name))
        rows.append(row)
    return markdown(["task", "variant", *names], rows)


def _share_reached(found: dict[str, dict[int, dict]], name: str) -> str:
    shares = []
    for seed, line in found.get(name, {}).items():
        target = 1 - found["cosine"][seed]["error"] / 100
        share = reached(line["curve"], round(target, 4) - 1e-9)
        shares.append(np.inf if share is None else share)
    if not shares:
        return ""
    middle = statistics.median(shares)
    return "not reached" if np.isinf(middle) else f"{middle:.2f}"


def verdicts(results: Results) -> Iterable[str]:
    """The promises, counted."""
    for method in ("CBNN, plain", "CBNN, cosine"):
        where = [p for p in places(results) if method in results[p]]
        script = ADDED[method][0]
        good = [p for p in where if is_not_worse(p, results, method)]
        means = [
            paired(results[p][method], results[p][script], "error")
            for p in where
        ]
        likelier = [
            paired(results[p][method], results[p][script], "calibrated")[0] < 0
            for p in where
        ]
        better = sum(m + h < 0 for m, h in means)
        worse = sum(m - h > 0 for m, h in means)
        yield (
            f"{method}: error shown not to be worse in {len(good)} of "
            f"{len(where)} cells, significantly better in {better}, "
            f"significantly worse in {worse}; calibrated likelihood better in "
            f"{sum(likelier)}."
        )
    where = restarted(results)
    relative = []
    within = noisy = num_noisy = 0
    for place in where:
        name = better_restarts(place, results)
        difference, _, single, _ = against_single(place, results, name)
        relative.append(difference / single)
        found = comparable(results[place], ONE_BUDGET)
        rivals = [
            paired(found[name], found[n], "error")
            for n in ONE_BUDGET
            if n in found and n != name
        ]
        within += all(m - h <= 0 for m, h in rivals)
        if place[1] == "wrong labels":
            num_noisy += 1
            noisy += relative[-1] <= -0.2
    yield (
        f"Restarts, converged and long: lower error than the averaged single "
        f"model in {sum(r < 0 for r in relative)} of {len(where)} cells, by "
        f"5 % or more in {sum(r <= -0.05 for r in relative)}; best or within "
        f"the interval of the best in {within}; with wrong labels a fifth of "
        f"the error or more is gone in {noisy} of {num_noisy}."
    )


def write_tables(path: pathlib.Path, results: Results, versions: str) -> None:
    """Writes Markdown beside the lines; says the sums."""
    parts: dict[str, Callable[[Results], str]] = {
        "Two regimes, test error in %": regimes_table,
        "Defaults against the same script without the callback": defaults_table,
        "Restarts against the single model and the best other": restarts_table,
        "Imbalanced data": imbalance_table,
        "Share of the run to reach the single model's accuracy": time_table,
        "Test error of all methods, %": methods_table,
    }
    text = [
        "# Every method at one budget\n\nMade by `python "
        f"benchmarks/accuracy.py tables` from `{path.name}`; {versions}. "
        "Differences are paired by seed, with 95 % intervals; likelihoods are "
        'mean -log p after temperature scaling. "Not shown" is where the upper '
        "end of the interval is not below +0.2 points or 2 % of the error, "
        "which with few seeds says little.\n"
    ]
    text += [f"- {verdict}" for verdict in verdicts(results)]
    for title, make in parts.items():
        text += [f"\n## {title}\n", make(results)]
    target = path.with_suffix(".md")
    target.write_text("\n".join(text) + "\n")
    for verdict in verdicts(results):
        print(verdict)
    print(target)


def interval(middle: float, half: float, digits: int = 2) -> str:
    if np.isinf(half):
        return f"{middle:+.{digits}f} (one seed)"
    return f"{middle:+.{digits}f} ± {half:.{digits}f}"


def markdown(head: list[str], rows: list[list]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
