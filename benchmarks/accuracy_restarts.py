"""Members that start anew, against the others: a part of the tables."""

import statistics

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
from accuracy_methods import RESTARTS
from accuracy_tasks import BUDGETS

# Methods of one budget that an ensemble of restarts has to stand up to.
ONE_BUDGET = (
    *("plain", "cosine", "cosine, averaged", "NoCycle", "SWA", "SSE", "FGE"),
    *("PE", "CBNN, plain", "CBNN, cosine", *RESTARTS),
)


def best_restarts(place: Place, results: Results, behind: str = "") -> str:
    """Which restarts are best on held-out data, of those that were run.

    Args:
        place: The cell.
        results: All lines.
        behind: What is added to the names of methods.
    """
    names = [f"{name}{behind}" for name in RESTARTS]
    found = comparable(results[place], names)
    return min(found, key=lambda name: mean(found[name], "val_error"))


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
    """The best restarts on held-out data, against the other methods."""
    rows = []
    for place in restarted(results):
        name = best_restarts(place, results)
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


def options_table(results: Results) -> str:
    """Each way to restart against the single averaged model, over cells."""
    rows = []
    for name in RESTARTS:
        row = [f"`{name}`"]
        for budget in BUDGETS[1:]:
            where = [
                place
                for place in restarted(results)
                if place[2] == budget and name in results[place]
            ]
            found = [against_single(p, results, name) for p in where]
            changes = [
                difference / single for difference, _, single, _ in found
            ]
            if not changes:
                row += [""] * 4
                continue
            row += [
                f"{sum(c < 0 for c in changes)} of {len(changes)}",
                str(sum(c <= -0.05 for c in changes)),
                f"{100 * statistics.mean(changes):+.0f} %",
                f"{100 * max(changes):+.0f} %",
            ]
        rows.append(row)
    head = [""]
    for budget in BUDGETS[1:]:
        head += [f"{budget}: lower", "by 5 %", "mean", "worst"]
    return markdown(head, rows)


def verdict(results: Results) -> str:
    """The promises of restarts, counted."""
    where = restarted(results)
    relative = []
    within = noisy = num_noisy = 0
    for place in where:
        name = best_restarts(place, results)
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
    return (
        f"Restarts, converged and long: lower error than the averaged single "
        f"model in {sum(r < 0 for r in relative)} of {len(where)} cells, by "
        f"5 % or more in {sum(r <= -0.05 for r in relative)}; best or within "
        f"the interval of the best in {within}; with wrong labels a fifth of "
        f"the error or more is gone in {noisy} of {num_noisy}."
    )


def verdict_with_priors(results: Results) -> str:
    """The same where both sides divide by the priors of imbalanced data."""
    balanced, imbalanced = [], []
    for place in restarted(results):
        if place[1] != "imbalanced":
            name = best_restarts(place, results)
            difference, _, error, _ = against_single(place, results, name)
            balanced.append(difference / error)
            continue
        name = best_restarts(place, results, ", priors")
        pair = comparable(results[place], (name, "cosine, priors"))
        single = pair["cosine, priors"]
        difference, _ = paired(pair[name], single, "error")
        imbalanced.append(difference / mean(single))
    lower, clearly = (
        [sum(r < limit for r in part) for part in (balanced, imbalanced)]
        for limit in (0, -0.05)
    )
    return (
        "The same with `priors=` on both sides where data are imbalanced: "
        f"lower in {lower[1]} of these {len(imbalanced)} cells, by 5 % or more "
        f"in {clearly[1]}; of all {len(balanced) + len(imbalanced)}, in "
        f"{sum(lower)} and {sum(clearly)}."
    )
