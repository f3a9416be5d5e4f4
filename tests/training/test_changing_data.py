"""A training dataset that is longer or shorter in some pass, or empty."""

import keras
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, trained

from cbnn_keras import CBNNCallback, CheckpointEnsemble, weighted

# Keras says so first, of what it predicts from.
pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")

X, Y = blobs(125)
N = 120


class Source:
    """Gives as many samples in a pass as a test says."""

    def __init__(self, length=N):
        self.length = length

    def __call__(self):
        yield from zip(X[: self.length], Y[: self.length], strict=True)

    def dataset(self):
        return tf.data.Dataset.from_generator(
            self,
            output_signature=(
                tf.TensorSpec(X.shape[1:], X.dtype),
                tf.TensorSpec((), Y.dtype),
            ),
        )


class ChangeIn(keras.callbacks.Callback):
    """Changes a source when an epoch begins."""

    def __init__(self, source, epoch, length):
        super().__init__()
        self.change = (epoch, length)
        self.source = source

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.change[0]:
            self.source.length = self.change[1]


class ChangeAfter(keras.callbacks.Callback):
    """Changes a source after a step, when the epoch has read all samples."""

    def __init__(self, source, step, length):
        super().__init__()
        self.countdown = step
        self.change = length
        self.source = source

    def on_train_batch_end(self, batch, logs=None):
        self.countdown -= 1
        if not self.countdown:
            self.source.length = self.change


def start(directory, source, *others):
    """6 steps an epoch, a checkpoint every 9."""
    keras.utils.set_random_seed(0)
    callback = CBNNCallback.paper(directory, interval=9, resume=True)
    train = callback.weighted(
        source.dataset(), batch_size=20, num_samples=N, seed=1
    )
    dense_model().fit(train, epochs=4, callbacks=[*others, callback], verbose=0)
    return callback


@pytest.mark.parametrize(
    "length",
    [pytest.param(n, marks=pytest.mark.large) for n in (100, 119, 121)],
)
def test_a_training_pass_of_another_length(tmp_path, length):
    whole = start(tmp_path / "whole", Source())
    source = Source()
    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match="expected to contain 120 elements but contained "
        f"{'only' if length < N else 'at least'} {length}",
    ):
        start(tmp_path / "run", source, ChangeIn(source, 2, length))
    # One member, and the state after two epochs, as if nothing had been.
    with pytest.warns(UserWarning, match="is not finished"):
        assert len(CheckpointEnsemble.load(tmp_path / "run")) == 1
    resumed = start(tmp_path / "run", Source())
    assert resumed.history == whole.history


@pytest.mark.large
@pytest.mark.parametrize(
    "length",
    [121, *(pytest.param(n, marks=pytest.mark.large) for n in (100, 119))],
)
def test_a_scoring_pass_of_another_length(tmp_path, length):
    source = Source()
    with pytest.raises(
        ValueError,
        match=r"weighted\(dataset\): the dataset had 120 samples, and a later "
        "pass had more or fewer.*same in every pass",
    ):
        start(tmp_path / "run", source, ChangeAfter(source, 8, length))
    with pytest.raises(ValueError, match="The run has no members yet"):
        CheckpointEnsemble.load(tmp_path / "run")
    assert len(start(tmp_path / "run", Source()).history) == 3


@pytest.mark.parametrize("length", [0, 119])
def test_a_second_look_that_finds_fewer(length):
    class Shrinking(Source):
        def __call__(self):
            yield from super().__call__()
            self.length = length

    with pytest.raises(ValueError, match="a later pass had more or fewer"):
        weighted(Shrinking().dataset(), num_samples=N)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[:0], Y[:0]), r"^weighted\(x, y\): x and y are empty"),
        (({"a": X[:0]}, Y[:0]), r"^weighted\(x, y\): x and y are empty"),
        ((X, Y[:0]), r"first axes of \[125\] for x and 0 for y"),
        ((Source(0).dataset(),), r"^weighted\(dataset\): the dataset is empty"),
    ],
    ids=["arrays", "dict", "labels", "dataset"],
)
def test_nothing_to_train_on(arguments, message):
    options = {"num_samples": N} if len(arguments) == 1 else {}
    with pytest.raises(ValueError, match=message):
        weighted(*arguments, **options)


def test_nothing_to_validate_on(tmp_path):
    message = r"^validation_data=\.\.\.: there are no samples. Give at least"
    with pytest.raises(ValueError, match=message):
        trained(tmp_path / "run", validation_data=(X[:0], Y[:0]))
    assert not (tmp_path / "run").exists()


def test_validation_data_of_another_length_in_another_pass():
    source = Source()
    with pytest.raises(
        ValueError,
        match=r"^validation_data=\.\.\.: one pass gave 120 samples and the "
        "next 9",
    ):
        keras.utils.set_random_seed(0)
        callback = CBNNCallback.paper(
            validation_data=source.dataset().batch(20)
        )
        train = callback.weighted(X, Y, batch_size=25)
        change = ChangeIn(source, 0, 9)
        callbacks = [callback, change]
        dense_model().fit(train, epochs=4, callbacks=callbacks, verbose=0)
