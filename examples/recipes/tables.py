"""Lines of results -> Markdown tables next to the paper's figures."""

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from recipes import published
from recipes.training import METHODS

Line = dict[str, Any]


def summary(result: Line) -> str:
    """A result in a few words, for the screen."""
    if "curve" in result:
        return f"{100 * result['curve'][-1]['accuracy']:.2f} % accuracy"
    return f"{result['error']:.2f} % error"


def table1(lines: list[Line]) -> str:
    """Error by method, a table for each model and data set."""
    return _by_recipe(
        "Test error, %",
        lines,
        [
            "method",
            "error",
            "final model alone",
            "members chosen on held-out data",
            "negative log-likelihood",
            "members",
            "paper, at its scale",
        ],
        _table1_rows,
    )


def _table1_rows(place: tuple[str, str], lines: list[Line]) -> Iterable[Any]:
    figures = _nearest(published.TABLE1, *place)
    for method, found in _grouped(lines, lambda line: line["job"]["method"]):
        yield [
            METHODS[method],
            spread([line["error"] for line in found]),
            spread([line["final_error"] for line in found]),
            spread([line["selected_error"] for line in found]),
            spread([line["negative_log_likelihood"] for line in found]),
            _range([line["num_members"] for line in found]),
            figures.get(method, "-"),
        ]


def table2(lines: list[Line]) -> str:
    """Time and iterations to reach accuracies."""
    return _by_recipe(
        "Minutes and thousands of iterations to reach a test accuracy",
        lines,
        ["accuracy", "method", "minutes", "iterations, 1000", "paper, hours"],
        _table2_rows,
    )


def _table2_rows(place: tuple[str, str], lines: list[Line]) -> Iterable[Any]:
    _, dataset = place
    for level in levels(dataset, lines):
        figures = _nearest(published.TABLE2, dataset, level)
        for method, found in _grouped(
            lines, lambda line: line["job"]["method"]
        ):
            points = [first_reached(line["curve"], level) for line in found]
            reached = [point for point in points if point is not None]
            yield [
                f"{level} %",
                METHODS[method],
                _reached([p["seconds"] / 60 for p in reached], len(found)),
                _reached([p["step"] / 1000 for p in reached], len(found)),
                figures.get(method, "-"),
            ]


def levels(dataset: str, lines: list[Line]) -> list[int]:
    """The paper's accuracies, or lower ones where those are out of reach."""
    singles = [line for line in lines if line["job"]["method"] == "single"]
    finals = [
        100 * max(point["accuracy"] for point in line["curve"])
        for line in singles or lines
    ]
    paper = sorted(level for name, level in published.TABLE2 if name == dataset)
    if paper and min(finals) >= paper[-1]:
        return paper
    best = statistics.mean(finals)
    return sorted({int(best * share) for share in (0.6, 0.8, 0.95)})


def first_reached(curve: list[Line], level: float) -> Line | None:
    """The first point of a curve at or above an accuracy in percent."""
    points = (p for p in curve if 100 * p["accuracy"] >= level)
    return next(points, None)


def table3(lines: list[Line]) -> str:
    """Error on imbalanced data by method and treatment."""
    return _by_recipe(
        "Test error on imbalanced data, %",
        lines,
        ["treatment", "method", "error", "paper, at its scale"],
        _table3_rows,
    )


def _table3_rows(place: tuple[str, str], lines: list[Line]) -> Iterable[Any]:
    def group(line: Line) -> tuple[str, str]:
        return line["job"]["treatment"], line["job"]["method"]

    for (treatment, method), found in _grouped(lines, group):
        figures = _nearest(published.TABLE3, *place, treatment)
        yield [
            treatment,
            METHODS[method],
            spread([line["error"] for line in found]),
            figures.get(method, "-"),
        ]


FORMATS: dict[str, Callable[[list[Line]], str]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
}


def spread(values: list[float]) -> str:
    """Mean, standard deviation and number.

    >>> spread([1.0, 2.0, 3.0])
    '2.00 ± 1.00 (3)'
    >>> spread([1.0])
    '1.00 (1)'
    """
    mean = f"{statistics.mean(values):.2f}"
    if len(values) > 1:
        mean += f" ± {statistics.stdev(values):.2f}"
    return f"{mean} ({len(values)})"


def _reached(values: list[float], num_runs: int) -> str:
    if not values:
        return "not reached"
    text = spread(values)
    missing = num_runs - len(values)
    return text + (f", {missing} never" if missing else "")


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _nearest(table: dict[tuple, Any], first: str, *rest: Any) -> dict[str, str]:
    """The paper's figures for this, or else for a model that it has."""
    for name in (first, "resnet110", "efficientnet-b0"):
        if (name, *rest) in table:
            label = "" if name == first else f" ({name})"
            return {
                method: _written(figure) + label
                for method, figure in table[(name, *rest)].items()
            }
    return {}


def _written(figure: published.Figure) -> str:
    mean, deviation = figure
    return f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation else "")


def _grouped(
    lines: list[Line], key: Callable[[Line], Any]
) -> list[tuple[Any, list[Line]]]:
    """Lines by key, in the order in which keys first occur."""
    groups: dict[Any, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return list(groups.items())


def _by_recipe(
    title: str,
    lines: list[Line],
    columns: list[str],
    rows: Callable[[tuple[str, str], list[Line]], Iterable[Any]],
) -> str:
    """A section for each recipe, which stands above its numbers."""
    parts = []
    groups = _grouped(lines, lambda line: str(line["job"]["recipe"]))
    for _, found in groups:
        recipe = found[0]["job"]["recipe"]
        described = ", ".join(
            f"{name.replace('_', ' ')} {value}"
            for name, value in recipe.items()
            if value is not None
        )
        table = [columns, ["---"] * len(columns)]
        table += rows((recipe["model"], recipe["dataset"]), found)
        body = "\n".join(f"| {' | '.join(row)} |" for row in table)
        parts.append(
            f"### {title}\n\nRecipe: {described}. Mean ± standard deviation "
            f"(number of seeds).\n\n{body}\n"
        )
    return "\n".join(parts) or "There are no results yet.\n"
