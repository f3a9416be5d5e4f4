"""The paper's figures, on CIFAR-100, and two more.

Figures 1, 2(a) and 2(b) of Wang et al., "Boost Neural Networks by
Checkpoints", NeurIPS 2021: how the loss surface moves under the members, how
different they are beside those of Snapshot Ensemble, and the weights of rare
classes. And: errors as the ensemble grows, and whether its probabilities hold.

    python examples/figures.py                        # half an hour
    python examples/figures.py --quick                # a look, two minutes
    python examples/figures.py --draw                 # from the numbers that
                                                      # are there: seconds

Data:     CIFAR-100, 10,000 training images of 16x16 pixels, of which 9,000 are
          trained on, and 10,000 test images; for figure 2(b) a fifth of the
          classes keeps a tenth of its images
Model:    ResNet-8, 48 epochs, six checkpoints; the paper has EfficientNet-B0
          and its scale, so these are its questions and not its figures
Cost:     three trainings took 19 minutes, the loss plane of 21x21 points on
          3,000 images six, on one CPU core that was not idle otherwise
Expected: the captions that it prints; what we saw is in
          docs/results.md
Numbers:  examples/results/figures.npz; pictures: docs/images/

The runs and their data are kept under `runs/figures`, so that `cbnn report` can
show the rest; the command is printed.
"""

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from recipes import data
from recipes.training import Recipe, Split, load_split, take, train

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.analysis import Labelled, examine, plots
from cbnn_keras.analysis.calibration import Calibration
from cbnn_keras.analysis.class_weights import ClassWeights
from cbnn_keras.analysis.loss_plane import LossPlane, loss_plane
from cbnn_keras.imbalance import step_imbalance

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPE = Recipe(
    model="resnet8",
    epochs=48,
    augment="standard",
    size=16,
    num_train=10_000,
    initial_rate=0.2,
)
QUICK = dataclasses.replace(RECIPE, epochs=6, num_train=2_000, num_test=1_000)
SEED = 0
Numbers = dict[str, np.ndarray]


def measure(
    recipe: Recipe, data_dir: str | None, directory: pathlib.Path, points: int
) -> Numbers:
    """Trains what is not trained yet, and gives what the figures show."""
    split = load_split(recipe, data_dir)
    keep = step_imbalance(split.y, minority_share=0.2, ratio=10, seed=SEED)
    rare = take(split, keep)
    runs: dict[str, tuple[str, Split]] = {
        "cbnn": ("cbnn", split),
        "sse": ("sse", split),
        "imbalanced": ("cbnn", rare),
    }
    trained = {
        name: train(
            method, recipe, images, directory / name, seed=SEED, verbose=2
        )
        for name, (method, images) in runs.items()
    }
    save(directory, split, class_names(recipe, data_dir))
    numbers = compare(trained["cbnn"], trained["sse"], split)
    [found] = examine(
        [trained["imbalanced"]], [Labelled("rare", rare.x, rare.y)]
    )
    numbers |= packed("rare", found.by_class)
    plane = loss_plane(
        trained["cbnn"],
        split.x,
        split.y,
        resolution=points,
        max_samples=3_000,
        cache=directory / f"loss-plane-{points}.npz",
    )
    return numbers | packed("plane", plane)


def compare(
    cbnn: CheckpointEnsemble, sse: CheckpointEnsemble, split: Split
) -> Numbers:
    """Members of both methods on the test images."""
    test = Labelled("test", split.x_test, split.y_test)
    ours, theirs = (found.evaluation for found in examine([cbnn, sse], [test]))
    if ours is None or theirs is None:
        raise ValueError("The test images are those of training.")
    ensemble = ours.models[-1]
    return {
        "correlation.cbnn": ours.correlation,
        "correlation.sse": theirs.correlation,
        "errors.steps": np.array([m["step"] for m in cbnn.members]),
        "errors.members": ours.member_errors,
        "errors.stages": ours.stage_errors,
        "temperature": np.array(ensemble.temperature),
        **packed("before", ensemble.before),
        **packed("after", ensemble.after),
    }


def class_names(recipe: Recipe, data_dir: str | None) -> tuple[str, ...]:
    few = {"num_train": 1, "num_test": 1, "verbose": False}
    return data.load(recipe.dataset, data_dir, **few).class_names


def save(directory: pathlib.Path, split: Split, names: tuple[str, ...]) -> None:
    """Keeps the data for `cbnn report`."""
    np.savez_compressed(directory / "train.npz", x=split.x, y=split.y)
    np.savez_compressed(directory / "test.npz", x=split.x_test, y=split.y_test)
    (directory / "classes.txt").write_text("\n".join(names) + "\n")


def packed(prefix: str, values: Any) -> Numbers:
    """Fields of a dataclass as arrays that have names of their own."""
    return {
        f"{prefix}.{field.name}": np.asarray(getattr(values, field.name))
        for field in dataclasses.fields(values)
    }


def unpacked(kind: Callable[..., Any], prefix: str, numbers: Numbers) -> Any:
    """The other way round."""
    start = f"{prefix}."
    return kind(
        **{
            name.removeprefix(start): value
            for name, value in numbers.items()
            if name.startswith(start)
        }
    )


def draw(numbers: Numbers, folder: pathlib.Path) -> None:
    """Writes each figure, and prints what to see in it."""
    folder.mkdir(parents=True, exist_ok=True)
    plane = unpacked(LossPlane, "plane", numbers)
    save_figure(
        folder / "loss-plane.png",
        [
            functools.partial(plots.draw_loss_plane, plane, panel)
            for panel in range(3)
        ],
    )
    matrices = {
        "CBNN": numbers["correlation.cbnn"],
        "Snapshot Ensemble": numbers["correlation.sse"],
    }
    limits = plots.common_limits(*matrices.values())
    save_figure(
        folder / "correlation.png",
        [
            lambda ax, name=name, matrix=matrix: plots.draw_heat_map(
                matrix, ax, limits=limits, title=name
            )
            for name, matrix in matrices.items()
        ],
    )
    save_figure(
        folder / "class-weights.png",
        [
            lambda ax: plots.draw_class_weights(
                unpacked(ClassWeights, "rare", numbers), ax
            )
        ],
    )
    save_figure(
        folder / "errors-and-calibration.png",
        [
            lambda ax: plots.draw_errors(
                numbers["errors.steps"],
                numbers["errors.members"],
                numbers["errors.stages"],
                ax,
            ),
            lambda ax: plots.draw_reliability(
                unpacked(Calibration, "before", numbers),
                ax,
                after=unpacked(Calibration, "after", numbers),
                temperature=float(numbers["temperature"]),
            ),
        ],
    )


def save_figure(
    path: pathlib.Path, drawings: list[Callable[[Any], str]]
) -> None:
    """Draws side by side."""
    figure = Figure((3.8 * len(drawings), 3.2), layout="constrained")
    print(f"{path.name}:")
    for position, drawing in enumerate(drawings, start=1):
        caption = drawing(figure.add_subplot(1, len(drawings), position))
        print(f"  {caption}")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", help="see recipes/data.py")
    add("--draw", action="store_true", help="train and compute nothing")
    add("--quick", action="store_true", help="short runs, a coarse plane")
    add("--directory", type=pathlib.Path, default="runs/figures")
    add("--images", type=pathlib.Path, default=ROOT / "docs" / "images")
    add(
        "--numbers",
        type=pathlib.Path,
        default=ROOT / "examples" / "results" / "figures.npz",
    )
    options = parser.parse_args()
    if not options.draw:
        recipe = QUICK if options.quick else RECIPE
        points = 5 if options.quick else 21
        numbers = measure(recipe, options.data_dir, options.directory, points)
        np.savez_compressed(options.numbers, **numbers)
        folder = options.directory
        print(
            f"More: cbnn report {folder}/cbnn {folder}/sse --data "
            f"{folder}/train.npz {folder}/test.npz --class-names "
            f"{folder}/classes.txt"
        )
    with np.load(options.numbers) as file:
        draw(dict(file), options.images)


if __name__ == "__main__":
    main()
