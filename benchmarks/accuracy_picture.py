"""Lines of `accuracy.py` -> one picture: error against budget."""

import pathlib

from accuracy_lines import Results, comparable, mean, places
from accuracy_methods import AUTO
from accuracy_tasks import BUDGETS, TASKS, VARIANTS
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from cbnn_keras.analysis.plots import palette

DRAWN = {
    AUTO: 'CBNN, restarts="auto"',
    "cosine, averaged": "single model (cosine, averaged)",
    "CBNN, cosine": "CBNN, defaults",
    "SSE": "snapshot ensemble",
    "restarts=6": "CBNN, restarts=6",
    "plain": "plain fit",
}


def draw(results: Results, path: pathlib.Path) -> None:
    """Error against budget, a line a method, a panel a task and variant."""
    known = {place[:2] for place in places(results)}
    tasks = [task for task in TASKS if any(task == t for t, _ in known)]
    variants = [v for v in VARIANTS if any(v == one for _, one in known)]
    figure = Figure(
        (2.3 * len(tasks), 2.2 * len(variants)), layout="constrained"
    )
    axes = figure.subplots(len(variants), len(tasks), squeeze=False)
    panels = [(task, variant) for variant in variants for task in tasks]
    for ax, (task, variant) in zip(axes.flat, panels, strict=True):
        palette.style(ax)
        if (task, variant) not in known:
            ax.set_axis_off()
            continue
        found = {
            budget: comparable(results[task, variant, budget], DRAWN)
            for budget in BUDGETS
            if (task, variant, budget) in places(results)
        }
        for series, (method, label) in zip(
            palette.SERIES, DRAWN.items(), strict=False
        ):
            lines = [of[method] for of in found.values() if method in of]
            errors = [mean(line) for line in lines]
            steps = [next(iter(line.values()))["steps"] for line in lines]
            ax.plot(steps, errors, label=label, **series.options)
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_title(f"{task}, {variant}", fontsize=8)
        # Short runs of restarts are far off, and would hide the rest.
        near = [
            mean(of[m])
            for of in found.values()
            for m in ("plain", "cosine, averaged", "CBNN, cosine")
        ]
        ax.set_ylim(0, 1.25 * max(near))
    for ax in axes[-1]:
        ax.set_xlabel("steps", fontsize=8)
    for row in axes:
        row[0].set_ylabel("test error in %", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=110)
