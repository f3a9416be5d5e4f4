"""One recipe, any method: what all comparisons here train with.

Only the callback differs between methods: data, model, optimizer, budget and
evaluation are the same. The learning rate is the paper's (section 5.1), with
its drops and its warm-up in the same places of a shorter run.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cbnn_keras import CBNNCallback, CheckpointEnsemble
from cbnn_keras.baselines import (
    FastGeometricEnsemble,
    HorizontalVoting,
    PlainCheckpoints,
    SnapshotBoosting,
    SnapshotEnsemble,
    StochasticWeightAveraging,
    parallel_ensemble,
)
from cbnn_keras.schedules import decayed_rate
from cbnn_keras.training.checkpointing import CheckpointCallback
from recipes import autoaugment, blending, data, models

PAPER_EPOCHS = 200
NUM_PARALLEL = 4  # networks of the parallel ensemble, as in the paper

# How a method is written in tables.
METHODS = {
    "single": "Single",
    "no-cycle": "NoCycle",
    "horizontal": "Horizontal voting",
    "sse": "SSE",
    "ssb": "SSB (reconstruction)",
    "fge": "FGE",
    "swa": "SWA",
    "pe": "PE",
    "cbnn": "CBNN",
}


AUGMENTATIONS = ("none", "standard", "autoaugment", "randaugment")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a number was got with.

    Attributes:
        dataset: See `data.load`.
        model: See `models.MODELS`.
        epochs: Of a run; the parallel ensemble divides them among its members.
        batch_size: On all devices together. The paper does not say.
        augment: `"none"`, `"standard"` (shifted and mirrored), or that after
            `"autoaugment"` or `"randaugment"`, which is KerasCV's.
        num_checkpoints: Members of an ensemble.
        initial_rate: Where the warm-up leads to; restarts of SSE and SSB and
            the cycles of FGE have the paper's own rates.
        size: Of the images, or None for their own.
        num_train: How many images, or None for all; a tenth of them is held
            out to select members with, whatever the method.
        num_test: How many images, or None for all.
    """

    dataset: str = "cifar100"
    model: str = "resnet110"
    epochs: int = PAPER_EPOCHS
    batch_size: int = 64
    augment: str = "autoaugment"
    num_checkpoints: int = 6
    initial_rate: float = 0.05
    size: int | None = None
    num_train: int | None = None
    num_test: int | None = None


@dataclasses.dataclass(frozen=True)
class Split:
    """Images and labels: to train on, to select members with, to test."""

    x: np.ndarray
    y: np.ndarray
    x_select: np.ndarray
    y_select: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int


def load_split(recipe: Recipe, data_dir: Any = None) -> Split:
    """The recipe's data; the same for every method and seed."""
    images = data.load(
        recipe.dataset,
        data_dir,
        num_train=recipe.num_train,
        num_test=recipe.num_test,
        size=recipe.size,
    )
    order = np.random.default_rng(0).permutation(len(images.y_train))
    held_out, kept = np.split(order, [len(order) // 10])
    return Split(
        images.x_train[kept],
        images.y_train[kept],
        images.x_train[held_out],
        images.y_train[held_out],
        images.x_test,
        images.y_test,
        images.num_classes,
    )


def take(split: Split, index: np.ndarray) -> Split:
    """Another training set, by indices into this one's."""
    return dataclasses.replace(split, x=split.x[index], y=split.y[index])


Scope = Callable[[], contextlib.AbstractContextManager[Any]]


def devices(num_cpus: int = 0) -> Scope:
    """Gives scopes to build a model in: all GPUs if there are several.

    Args:
        num_cpus: Logical devices of the CPU instead, to try that without any.
    """
    if num_cpus:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * num_cpus,
        )
    kind = "CPU" if num_cpus else "GPU"
    found = tf.config.list_logical_devices(kind)
    print(f"{len(found)} {kind} device(s)")
    if len(found) < 2:
        return contextlib.nullcontext
    # A scope can be entered only once, but there may be several runs.
    return tf.distribute.MirroredStrategy([d.name for d in found]).scope


def train(
    method: str,
    recipe: Recipe,
    split: Split,
    directory: pathlib.Path,
    *,
    seed: int,
    watch: Callable[[CheckpointCallback], Sequence[Any]] = lambda _: [],
    scope: Scope = contextlib.nullcontext,
    resume: bool = True,
    verbose: int = 0,
) -> CheckpointEnsemble:
    """Trains with a method, and goes on with a run that is there.

    Args:
        method: One of `METHODS`.
        recipe: What to train.
        split: On what.
        directory: Of the run; the parallel ensemble has folders in it.
        seed: Decides on initial weights, order and augmentation.
        watch: More callbacks for `fit`, made from the method's.
        scope: See `devices`.
        resume: Whether to go on with what is there, or else to replace it.
        verbose: `fit`'s.
    """
    if method not in METHODS:
        raise ValueError(
            f"train: method={method!r} is not one of {', '.join(METHODS)}."
        )
    if method == "pe":
        if recipe.epochs % NUM_PARALLEL:
            raise ValueError(
                f"train: {recipe.epochs} epochs cannot be divided among "
                f"{NUM_PARALLEL} networks. Give a multiple of {NUM_PARALLEL}."
            )
        part = dataclasses.replace(recipe, epochs=recipe.epochs // NUM_PARALLEL)
        return parallel_ensemble(
            train(
                "single",
                part,
                split,
                directory / f"network-{i}",
                seed=NUM_PARALLEL * seed + i,
                watch=watch,
                scope=scope,
                resume=resume,
                verbose=verbose,
            )
            for i in range(NUM_PARALLEL)
        )
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    num_steps = -(-len(split.y) // recipe.batch_size)
    options = {"resume": resume, "overwrite": not resume}
    callback = _callback(method, recipe, num_steps, directory, options)
    with scope():
        model = models.build(recipe.model, split.num_classes, split.x.shape[1])
        model.compile(
            _optimizer(method, recipe, num_steps),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        dataset = callback.weighted(
            split.x,
            split.y,
            batch_size=recipe.batch_size,
            augment=_augment(recipe),
            seed=seed,
        )
        model.fit(
            dataset,
            epochs=recipe.epochs,
            callbacks=[callback, *watch(callback)],
            # Only SSB asks for it, and pays for it.
            validation_data=(split.x_select, split.y_select)
            if method == "ssb"
            else None,
            shuffle=False,
            verbose=verbose,
        )
    return callback.ensemble()


def paper_rate(recipe: Recipe, steps_per_epoch: int) -> Callable[[int], float]:
    """The paper's learning rate, by step, in the recipe's number of epochs."""
    scale = recipe.epochs / PAPER_EPOCHS

    def rate(step: int) -> float:
        return decayed_rate(
            step,
            steps_per_epoch,
            initial=recipe.initial_rate,
            epochs_per_drop=2 * scale,
            warmup_epochs=5 * scale,
        )

    return rate


class Tabulated(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of Keras, of the rates of all steps."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = list(rates)
        self._table = tf.constant(self.rates, tf.float32)

    def __call__(self, step: Any) -> tf.Tensor:
        return tf.gather(self._table, tf.cast(step, tf.int32))

    def get_config(self) -> dict[str, Any]:
        return {"rates": self.rates}


def _callback(
    method: str,
    recipe: Recipe,
    num_steps: int,
    directory: pathlib.Path,
    options: dict[str, Any],
) -> CheckpointCallback:
    num = recipe.num_checkpoints
    if method in ("fge", "swa"):
        options = {**options, "schedule": paper_rate(recipe, num_steps)}
    if method == "swa":
        # Half the initial rate, and every epoch, as its paper has it.
        return StochasticWeightAveraging(
            directory, learning_rate=recipe.initial_rate / 2, **options
        )
    if method == "ssb":
        return SnapshotBoosting(directory, **options)
    if method == "single":
        return PlainCheckpoints(directory, num_checkpoints=1, **options)
    kinds: dict[str, Callable[..., CheckpointCallback]] = {
        "no-cycle": PlainCheckpoints,
        "horizontal": HorizontalVoting,
        "sse": SnapshotEnsemble,
        "fge": FastGeometricEnsemble,
        "cbnn": CBNNCallback.paper,
    }
    return kinds[method](directory, num_checkpoints=num, **options)


def _optimizer(method: str, recipe: Recipe, num_steps: int) -> Any:
    """SGD with Nesterov momentum; its rate, unless the method sets it."""
    rate: Any = recipe.initial_rate
    if method not in ("sse", "fge", "ssb", "swa"):
        by_step = paper_rate(recipe, num_steps)
        steps = range(1, recipe.epochs * num_steps + 1)
        rate = Tabulated([by_step(step) for step in steps])
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)


def _augment(recipe: Recipe) -> Any:
    if recipe.augment not in AUGMENTATIONS:
        raise ValueError(
            f"Recipe(augment={recipe.augment!r}): one of "
            f"{', '.join(AUGMENTATIONS)}."
        )
    if recipe.augment == "none":
        return None
    if recipe.augment == "standard":
        return data.standard_augment
    policy = "cifar10" if "cifar" in recipe.dataset else "imagenet"
    first = (
        autoaugment.autoaugment(policy)
        if recipe.augment == "autoaugment"
        else blending.rand_augment()
    )
    return autoaugment.compose(first, data.standard_augment)
