"""What people do with the dataset that `weighted` gives."""

import warnings

import keras
import numpy as np
import pytest
from helpers import blobs, dense_model

from cbnn_keras import CBNNCallback, weighted

FORGOTTEN = "callback is not in `callbacks=.*no checkpoints, no boosting"


class Reading(keras.callbacks.Callback):
    """Looks at the data while `fit` runs, as callbacks that plot do."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def on_epoch_end(self, epoch, logs=None):
        next(iter(self.dataset))


def fit(train, model=None, **options):
    model = model or dense_model()
    options = {"epochs": 2, "verbose": 0, **options}
    return model.fit(train, **options)


# A callback that was forgotten.


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.map(doubled)])
def test_a_forgotten_callback_is_announced_in_the_first_epoch(make):
    callback = CBNNCallback()
    train = make(callback.weighted(*blobs(), batch_size=20))
    seen = []
    counting = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    with pytest.raises(UserWarning, match=FORGOTTEN):  # warnings are errors
        fit(train, callbacks=[counting])
    assert seen == []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(train, epochs=3)
    assert [FORGOTTEN[:10] in str(w.message) for w in found].count(True) == 1


def doubled(x, y, weight):
    return 2 * x, y, weight


def test_a_pipeline_whose_callback_is_gone_is_announced_too():
    train = CBNNCallback().weighted(*blobs(), batch_size=20)
    with pytest.raises(UserWarning, match=FORGOTTEN):
        fit(train)


def test_other_readers_are_left_alone():
    x, y = blobs()
    callback, other = CBNNCallback(num_checkpoints=1), CBNNCallback()
    train = callback.weighted(x, y, batch_size=20)
    aside = other.weighted(x, y, batch_size=20)
    model = dense_model()
    fit(
        train,
        model,
        callbacks=[callback, Reading(aside)],
        validation_data=aside,
    )
    model.evaluate(aside, verbose=0)
    assert len(list(aside)) == 6
    fit(weighted(x, y, batch_size=20))  # never had a callback


def test_an_unbuilt_model_is_built_before_callbacks_are_known():
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    callback = CBNNCallback(num_checkpoints=1)
    fit(callback.weighted(*blobs()), model, callbacks=[callback])


# What `fit` is told.


def test_keras_does_not_say_that_shuffle_is_ignored():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(weighted(*blobs()))


def test_class_weight_goes_into_weighted():
    train = weighted(*blobs())
    with pytest.raises(ValueError, match="`class_weight` beside.*Give it to"):
        fit(train, class_weight={0: 2.0, 1: 1.0, 2: 1.0})


def test_validation_split_goes_into_weighted():
    train = weighted(*blobs())
    with pytest.raises(ValueError, match="`validation_split` to `weighted`"):
        fit(train, validation_split=0.2)
    x, y = blobs()
    train = weighted(x, y, validation_split=0.25)
    history = fit(train, validation_data=train.validation_data)
    assert len(history.history["val_loss"]) == 2


# A map behind it.


def test_a_map_behind_works_and_has_new_weights():
    x, y = blobs()
    callback = CBNNCallback(num_checkpoints=2, deviation_rate=0.05)
    train = callback.weighted(x, y, batch_size=20).map(doubled)
    fit(train, epochs=4, callbacks=[callback])
    assert [r["step"] for r in callback.history] == [12, 24]
    assert len(set(callback.sample_weights.numpy())) == 2
    found = np.concatenate([x[:, 0] for x, _, _ in train])
    np.testing.assert_allclose(np.sort(found), np.sort(2 * x[:, 0]))


def test_a_map_behind_keeps_what_was_held_out():
    train = weighted(*blobs(), validation_split=0.25)
    behind = train.map(doubled).map(doubled)
    assert train.validation_data is not None
    assert behind.validation_data is train.validation_data


@pytest.mark.parametrize(
    "without_weight",
    [lambda x, y: (x, y), lambda x, y, weight: (x, y)],
)
def test_a_map_that_loses_the_weights_is_refused(without_weight):
    callback = CBNNCallback()
    train = callback.weighted(*blobs())
    with pytest.raises(ValueError, match=r"gives `\(x, y, weight\)`.*augment="):
        train.map(without_weight)


def test_samples_alone_can_be_had_where_no_callback_relies_on_weights():
    x, y = blobs()
    plain = weighted(x, y, shuffle=False).map(lambda x, y, weight: (x, y))
    np.testing.assert_array_equal(np.concatenate([x for x, _ in plain]), x)


def test_a_type_error_of_ones_own_stays_what_it_is():
    with pytest.raises(TypeError, match="AddV2"):
        weighted(*blobs()).map(lambda x, y, weight: (x + "a", y, weight))
