"""The command line that examples share, and what they print in the end."""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from cbnn_keras import CheckpointEnsemble
from recipes import models
from recipes.training import (
    AUGMENTATIONS,
    METHODS,
    Recipe,
    Split,
    devices,
    load_split,
    train,
)


def recipe_parser(
    description: str | None, defaults: Recipe, datasets: Sequence[str]
) -> argparse.ArgumentParser:
    """Options for a recipe, a seed and places.

    Args:
        description: The docstring of the example.
        defaults: What holds where an option is not given.
        datasets: What `--dataset` may be.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--dataset", choices=datasets, default=defaults.dataset)
    add("--data-dir", help="see recipes/data.py")
    add("--images", type=int, default=defaults.num_train, metavar="NUM")
    add("--test-images", type=int, default=defaults.num_test, metavar="NUM")
    add("--size", type=int, default=defaults.size, help="shrinks images to it")
    add("--model", choices=models.MODELS, default=defaults.model)
    add("--augment", choices=AUGMENTATIONS, default=defaults.augment)
    add("--epochs", type=int, default=defaults.epochs)
    add("--batch-size", type=int, default=defaults.batch_size)
    add("--checkpoints", type=int, default=defaults.num_checkpoints)
    add("--seed", type=int, default=0)
    add("--cpus", type=int, default=0, help="logical devices to try with")
    add("--directory", type=pathlib.Path, default=pathlib.Path("runs"))
    return parser


def recipe_of(options: argparse.Namespace) -> Recipe:
    """The recipe that the options of `recipe_parser` say."""
    return Recipe(
        dataset=options.dataset,
        model=options.model,
        epochs=options.epochs,
        batch_size=options.batch_size,
        augment=options.augment,
        num_checkpoints=options.checkpoints,
        size=options.size,
        num_train=options.images,
        num_test=options.test_images,
    )


def run_name(recipe: Recipe, method: str, seed: int) -> str:
    """A folder for each run that must not go on with another's.

    >>> run_name(Recipe(num_train=400, epochs=3), "cbnn", seed=0)
    'cifar100-400-resnet110-autoaugment-cbnn-3-epochs-seed-0'
    """
    return "-".join(
        [
            recipe.dataset,
            *([str(recipe.num_train)] if recipe.num_train else []),
            *([f"{recipe.size}px"] if recipe.size else []),
            recipe.model,
            recipe.augment,
            method,
            f"{recipe.epochs}-epochs",
            f"seed-{seed}",
        ]
    )


def error(ensemble: CheckpointEnsemble, split: Split, **options: Any) -> float:
    """Test error in percent."""
    scores = ensemble.evaluate(
        split.x_test, split.y_test, batch_size=500, verbose=0, **options
    )
    return 100 * (1 - scores["accuracy"])


def main(
    description: str | None, defaults: Recipe, datasets: Sequence[str]
) -> None:
    """Trains with a method, goes on with a run that is there, and tests.

    Takes the arguments of `recipe_parser`.
    """
    parser = recipe_parser(description, defaults, datasets)
    parser.add_argument("--method", choices=METHODS, default="cbnn")
    options = parser.parse_args()
    scope = devices(options.cpus)
    recipe = recipe_of(options)
    split = load_split(recipe, options.data_dir)
    ensemble = train(
        options.method,
        recipe,
        split,
        options.directory / run_name(recipe, options.method, options.seed),
        seed=options.seed,
        scope=scope,
        verbose=2,
    )
    name = METHODS[options.method]
    choices = {"final model": ensemble.select(num=1)}
    if len(ensemble) > 1:
        choices[f"{name}, all members"] = ensemble
        choices[f"{name}, selected"] = ensemble.select(
            validation_data=(split.x_select, split.y_select), verbose=0
        )
    for choice, members in choices.items():
        print(
            f"{choice:20} {len(members)} member(s), "
            f"{error(members, split):.2f} % test error"
        )
