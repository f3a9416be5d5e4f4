"""The tasks of `accuracy.py`: real data, small networks, three variants each.

Every seed draws its own split, its own wrong labels and its own rare classes.
Digits come with scikit-learn; the others are read from `--data-dir`:
`ag_news_7600.csv.gz`, `dbpedia14_14000.csv.gz`, `satellite.csv.gz` and
`shuttle.csv.gz` (a column `label`, then the columns or the text), and
`tfds/cifar100` as tensorflow-datasets prepares it.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import keras
import numpy as np
import pandas as pd

from cbnn_keras import imbalance

VARIANTS = ("clean", "wrong labels", "imbalanced")
WRONG_SHARE = 0.2
BUDGETS = ("short", "converged", "long")
_SGD_RATES = (0.03, 0.06, 0.12)
_ADAM_RATES = (0.001, 0.003, 0.01)
# Of DBpedia: those that training data lack may be in the others.
_NUM_TOKENS = 3000


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained on.

    Attributes:
        name: Of the data.
        load: All samples `(x, y)`, from the directory of the data.
        make_model: From the samples and the number of classes; ends in logits.
        make_optimizer: From a learning rate.
        rates: The learning rates to choose from.
        sizes: How many samples are for training, validation and test.
        epochs: Of the short and of the converged budget: a third of that is
            enough to fit clean training data. The long one is four times that.
        batch_size: Samples per step.
        jit_compile: Whether XLA compiles the loop.
        view: Test inputs as test-time augmentation sees them, or None.
    """

    name: str
    load: Callable[[pathlib.Path], tuple[np.ndarray, np.ndarray]]
    make_model: Callable[[np.ndarray, int], keras.Model]
    make_optimizer: Callable[[float], keras.optimizers.Optimizer]
    rates: tuple[float, ...]
    sizes: tuple[int, int, int]
    epochs: tuple[int, int]
    batch_size: int = 64
    jit_compile: bool = True
    view: Callable[[np.ndarray], np.ndarray] | None = None

    def num_epochs(self, budget: str) -> int:
        """The epochs of a budget."""
        short, converged = self.epochs
        return {"short": short, "converged": converged}.get(
            budget, 4 * converged
        )


@dataclasses.dataclass(frozen=True)
class Data:
    """One split of a task, in one variant.

    Attributes:
        train: `(x, y)`, as the variant has them.
        val: To choose by. Labels are right, and classes as frequent as they
            are in the test data.
        test: To judge by.
        num_classes: k.
        other_view: The test inputs as test-time augmentation sees them, too.
    """

    train: tuple[np.ndarray, np.ndarray]
    val: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    num_classes: int
    other_view: np.ndarray | None = None


@functools.cache
def _samples(task: Task, directory: pathlib.Path):
    return task.load(directory)


def split(task: Task, variant: str, seed: int, directory: pathlib.Path) -> Data:
    """The data of one seed: split, then made wrong or imbalanced."""
    x, y = _samples(task, directory)
    generator = np.random.default_rng([seed, 7])
    order = generator.permutation(len(y))
    ends = np.cumsum(task.sizes)
    train, val, test = np.split(order[: ends[-1]], ends[:-1])
    num_classes = int(y.max()) + 1
    if variant == "imbalanced":
        kept = imbalance.step_imbalance(
            y[train], minority_share=0.5, ratio=10, seed=seed + 1
        )
        train = train[kept]
    # Whole batches only, as the compiled loop needs them.
    train = train[: len(train) // task.batch_size * task.batch_size]
    labels = y[train]
    if variant == "wrong labels":
        is_wrong = generator.random(len(labels)) < WRONG_SHARE
        shift = generator.integers(1, num_classes, len(labels))
        labels = np.where(is_wrong, (labels + shift) % num_classes, labels)
    return Data(
        (x[train], labels),
        (x[val], y[val]),
        (x[test], y[test]),
        num_classes,
        None if task.view is None else task.view(x[test]),
    )


def _table(name: str, directory: pathlib.Path):
    frame = pd.read_csv(directory / f"{name}.csv.gz")
    _, y = np.unique(frame.pop("label"), return_inverse=True)
    x = frame.to_numpy("float32")
    return (x - x.mean(0)) / (x.std(0) + 1e-6), y


def _digits(_: pathlib.Path):
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y


def _texts(name: str, directory: pathlib.Path, **options):
    """Texts as Keras' `TextVectorization` gives them."""
    frame = pd.read_csv(directory / f"{name}.csv.gz")
    layer = keras.layers.TextVectorization(**options)
    texts = frame["text"].to_numpy(object)
    layer.adapt(texts)
    found = np.concatenate(
        [layer(part).numpy() for part in np.array_split(texts, 20)]
    )
    kind = "int32" if options["output_mode"] == "int" else "float32"
    return found.astype(kind), frame["label"].to_numpy()


def _images(directory: pathlib.Path):
    """Ten of CIFAR-100's classes, at 16x16."""
    import tensorflow_datasets as tfds

    parts = [
        tfds.as_numpy(
            tfds.load(
                "cifar100",
                split=part,
                data_dir=directory / "tfds",
                download=False,
                batch_size=-1,
            )
        )
        for part in ("train", "test")
    ]
    x = np.concatenate([part["image"] for part in parts])
    y = np.concatenate([part["label"] for part in parts])
    x, y = x[y < 10], y[y < 10]
    small = x.reshape(-1, 16, 2, 16, 2, 3).mean((2, 4)) / 127.5 - 1
    return small.astype("float32"), y


def _mlp(x: np.ndarray, num_classes: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(num_classes),
        ]
    )


def _bag_of_words(x: np.ndarray, num_classes: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(num_classes),
        ]
    )


def _embedding(x: np.ndarray, num_classes: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(x.shape[1:], dtype="int32"),
            keras.layers.Embedding(_NUM_TOKENS, 32),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(num_classes),
        ]
    )


def _cnn(x: np.ndarray, num_classes: int) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential([keras.Input(x.shape[1:])])
    for filters, strides in ((16, 2), (32, 1), (64, 2)):
        model.add(
            layers.Conv2D(
                filters, 3, strides=strides, padding="same", use_bias=False
            )
        )
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(num_classes))
    return model


def _sgd(rate: float) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(rate, momentum=0.9)


TASKS = {
    task.name: task
    for task in (
        Task(
            "digits",
            _digits,
            _mlp,
            _sgd,
            _SGD_RATES,
            (768, 229, 800),
            (4, 24),
            32,
        ),
        Task(
            "satellite",
            functools.partial(_table, "satellite"),
            _mlp,
            _sgd,
            _SGD_RATES,
            (1280, 800, 4300),
            (12, 120),
        ),
        Task(
            "shuttle",
            functools.partial(_table, "shuttle"),
            _mlp,
            keras.optimizers.Adam,
            _ADAM_RATES,
            (3200, 1000, 10_000),
            (3, 24),
        ),
        Task(
            "ag_news",
            functools.partial(
                _texts, "ag_news_7600", max_tokens=1000, output_mode="multi_hot"
            ),
            _bag_of_words,
            keras.optimizers.Adam,
            _ADAM_RATES,
            (3200, 800, 3600),
            (2, 24),
        ),
        Task(
            "dbpedia",
            functools.partial(
                _texts,
                "dbpedia14_14000",
                max_tokens=_NUM_TOKENS,
                output_mode="int",
                output_sequence_length=32,
            ),
            _embedding,
            keras.optimizers.Adam,
            (0.003, 0.01, 0.03),  # embeddings want more
            (3200, 1000, 9800),
            (4, 24),
        ),
        Task(
            "cifar100",
            _images,
            _cnn,
            _sgd,
            _SGD_RATES,
            (1280, 800, 3900),
            (12, 90),
            jit_compile=False,
            view=lambda x: x[:, :, ::-1],
        ),
    )
}
