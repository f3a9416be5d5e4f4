"""Lines of `accuracy.py` -> Markdown tables."""

import pathlib
import statistics
from collections.abc import Callable, Iterable

import accuracy_restarts
import numpy as np
from accuracy_lines import (
    Place,
    Results,
    comparable,
    interval,
    markdown,
    mean,
    paired,
    places,
)
from accuracy_methods import ADDED, AUTO, NUM_POINTS
from accuracy_restarts import ONE_BUDGET
from accuracy_tasks import TASKS


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


def imbalance_table(results: Results) -> str:
    """What `priors=` adds on imbalanced data."""
    names = [
        *("cosine", "cosine, priors", "oversampled", "CBNN, cosine"),
        *("CBNN, cosine, priors", "restarts=3, priors", "restarts=6, priors"),
        f"{AUTO}, priors",
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
        *(("long", name) for name in ("cosine", AUTO)),
    ]
    head = ["", "short: `fit`", "+ CBNN", "cosine", "+ CBNN"]
    head += ["long: `fit`", "+ CBNN", "cosine", '`restarts="auto"`']
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
    names = ("cosine", "CBNN, cosine", "restarts=3", "restarts=6", AUTO)
    rows = []
    for place in places(results):
        if place[2] != "converged":
            continue
        best = accuracy_restarts.best_restarts(place, results)
        found = [_share_reached(results[place], n) for n in (*names, best)]
        rows.append([*place[:2], *map(_shown_share, found), best])
    head = ["task", "variant", *names, "best restarts", "which"]
    return markdown(head, rows)


def _shown_share(share: float | None) -> str:
    if share is None:
        return ""
    return "not reached" if np.isinf(share) else f"{share:.2f}"


def _share_reached(
    found: dict[str, dict[int, dict]], name: str
) -> float | None:
    """The median over the seeds; None where nothing was run."""
    shares = []
    for seed, line in found.get(name, {}).items():
        target = 1 - found["cosine"][seed]["error"] / 100
        share = reached(line["curve"], round(target, 4) - 1e-9)
        shares.append(np.inf if share is None else share)
    return statistics.median(shares) if shares else None


def verdict_on_time(results: Results) -> str:
    """Where the single model's accuracy is reached in 0.6 of its run."""
    where = [place for place in places(results) if place[2] == "converged"]
    early = {"defaults": 0, "restarts": 0, "auto": 0, "one of them": 0}
    for place in where:
        best = accuracy_restarts.best_restarts(place, results)
        names = ("CBNN, cosine", best, AUTO)
        shares = [_share_reached(results[place], name) for name in names]
        is_early = [share is not None and share <= 0.6 for share in shares]
        for name, is_one in zip(early, (*is_early, any(is_early)), strict=True):
            early[name] += is_one
    return (
        "The single cosine model's final accuracy is reached in at most 0.6 of "
        f"the run by the defaults in {early['defaults']} of {len(where)} "
        f"converged cells, by the best restarts in {early['restarts']}, by "
        f'`restarts="auto"` in {early["auto"]}, by one of them in '
        f"{early['one of them']}."
    )


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
        likelier = {
            kind: sum(
                paired(results[p][method], results[p][script], kind)[0] < 0
                for p in where
            )
            for kind in ("likelihood", "calibrated")
        }
        better = sum(m + h < 0 for m, h in means)
        worse = sum(m - h > 0 for m, h in means)
        yield (
            f"{method}: error shown not to be worse in {len(good)} of "
            f"{len(where)} cells, significantly better in {better}, "
            f"significantly worse in {worse}; likelihood better in "
            f"{likelier['likelihood']} as it comes, and in "
            f"{likelier['calibrated']} after temperature scaling."
        )
    yield accuracy_restarts.verdict(results)
    yield accuracy_restarts.verdict_on_auto(results)
    yield from accuracy_restarts.verdict_with_priors(results)
    yield verdict_on_time(results)


def write_tables(path: pathlib.Path, results: Results, versions: str) -> None:
    """Writes Markdown beside the lines; says the sums."""
    parts: dict[str, Callable[[Results], str]] = {
        "Two regimes, test error in %": regimes_table,
        "Defaults against the same script without the callback": defaults_table,
        "Restarts against the single model and the best other": (
            accuracy_restarts.restarts_table
        ),
        '`restarts="auto"` against no restart, three and six': (
            accuracy_restarts.auto_table
        ),
        "Which restarts? Error against the single model, over cells": (
            accuracy_restarts.options_table
        ),
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
    said = list(verdicts(results))
    text += [f"- {verdict}" for verdict in said]
    for title, make in parts.items():
        text += [f"\n## {title}\n", make(results)]
    target = path.with_suffix(".md")
    target.write_text("\n".join(text) + "\n")
    for verdict in said:
        print(verdict)
    print(target)
