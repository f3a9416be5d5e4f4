"""Members that start anew, against the others: a part of the tables."""

import statistics
from collections.abc import Callable, Iterator, Sequence

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
from accuracy_methods import AUTO, RESTARTS
from accuracy_tasks import BUDGETS

# Methods of one budget that an ensemble of restarts has to stand up to.
ONE_BUDGET = (
    *("plain", "cosine", "cosine, averaged", "NoCycle", "SWA", "SSE", "FGE"),
    *("PE", "CBNN, plain", "CBNN, cosine", *RESTARTS),
)
OTHERS = tuple(name for name in ONE_BUDGET if name not in RESTARTS)
# What `restarts="auto"` has to stand up to in every cell.
FIXED = ("cosine, averaged", "restarts=3", "restarts=6")


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


def auto_table(results: Results) -> str:
    """`restarts="auto"` against no restart, three and six."""
    rows = []
    for place in places(results):
        if AUTO not in results[place]:
            continue
        found = comparable(results[place], (AUTO, *FIXED))
        best = min(FIXED, key=lambda n: mean(found[n]))
        rows.append(
            [
                *place,
                len(found[AUTO]),
                *(f"{mean(found[n]):.2f}" for n in (*FIXED, AUTO)),
                best.replace("cosine, averaged", "none"),
                interval(*paired(found[AUTO], found[best], "error")),
                interval(*paired(found[AUTO], found[best], "calibrated"), 3),
            ]
        )
    head = ["task", "variant", "budget", "seeds", "none", *FIXED[1:], AUTO]
    head += ["best of the three", "difference to it", "likelihood"]
    return markdown(head, rows)


def verdict(results: Results) -> str:
    """The promises of restarts, counted, with the best on held-out data."""
    return "Restarts, K and `keep` by held-out data, " + _counted(
        results, lambda place: best_restarts(place, results)
    )


def verdict_on_auto(results: Results) -> str:
    """The same of `restarts="auto"`, which needs one run to choose."""
    where = [place for place in places(results) if AUTO in results[place]]
    num_within = {
        name: sum(_is_within(place, results, name, FIXED) for place in where)
        for name in (AUTO, *FIXED)
    }
    none, three, six = (num_within[name] for name in FIXED)
    return (
        '`restarts="auto"`: within the interval of the best of none, 3 and 6 '
        f"in {num_within[AUTO]} of {len(where)} cells of all budgets (none "
        f"itself in {none}, 3 in {three}, 6 in {six}); "
        + _counted(results, lambda _: AUTO)
    )


def _counted(results: Results, name_of: Callable[[Place], str]) -> str:
    where = [p for p in restarted(results) if name_of(p) in results[p]]
    relative, noisy = [], []
    within = within_others = 0
    for place in where:
        name = name_of(place)
        difference, _, single, _ = against_single(place, results, name)
        relative.append(difference / single)
        within += _is_within(place, results, name, ONE_BUDGET)
        within_others += _is_within(place, results, name, OTHERS)
        if place[1] == "wrong labels":
            noisy.append(relative[-1])
    return (
        f"converged and long: lower error than the averaged single model in "
        f"{sum(r < 0 for r in relative)} of {len(where)} cells, by 5 % or more "
        f"in {sum(r <= -0.05 for r in relative)}; best or within the interval "
        f"of the best in {within}, and in {within_others} of the best method "
        "without restarts; with wrong labels a fifth of the error or more is "
        f"gone in {sum(r <= -0.2 for r in noisy)} of {len(noisy)}."
    )


def _is_within(
    place: Place, results: Results, name: str, rivals: Sequence[str]
) -> bool:
    """Whether no other method is significantly better."""
    found = comparable(results[place], (name, *rivals))
    differences = [
        paired(found[name], found[n], "error")
        for n in rivals
        if n in found and n != name
    ]
    return all(m - h <= 0 for m, h in differences)


def verdict_with_priors(results: Results) -> Iterator[str]:
    """The same where both sides divide by the priors of imbalanced data."""
    for title, name_of in (
        (
            "The same with `priors=` on both sides where data are imbalanced",
            lambda place, behind: best_restarts(place, results, behind),
        ),
        (
            '`restarts="auto"` with `priors=` on both sides',
            lambda place, behind: f"{AUTO}{behind}",
        ),
    ):
        parts: dict[bool, list[float]] = {True: [], False: []}
        for place in restarted(results):
            is_rare = place[1] == "imbalanced"
            name = name_of(place, ", priors" if is_rare else "")
            single = "cosine, priors" if is_rare else "cosine, averaged"
            if name not in results[place]:
                continue
            pair = comparable(results[place], (name, single))
            difference, _ = paired(pair[name], pair[single], "error")
            parts[is_rare].append(difference / mean(pair[single]))
        (all_lower, lower), (all_clearly, clearly) = (
            (
                sum(r < limit for part in parts.values() for r in part),
                sum(r < limit for r in parts[True]),
            )
            for limit in (0, -0.05)
        )
        yield (
            f"{title}: lower in {lower} of these {len(parts[True])} cells, by "
            f"5 % or more in {clearly}; of all "
            f"{sum(map(len, parts.values()))}, in {all_lower} and "
            f"{all_clearly}."
        )
