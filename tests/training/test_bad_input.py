"""Tests of what `CBNNCallback` refuses, when, and in which words."""

import gc
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model

from cbnn_keras import CBNNCallback, CheckpointEnsemble, weighted

EXPLICIT_FORM = r"train = cbnn\.weighted\(x, y, batch_size=128\); model\.fit"


@pytest.fixture
def no_dead_pipelines():
    # What earlier tests left behind could be bound by a callback.
    gc.collect()


def fast_model(num_classes=3, **options):
    """Better than chance after one epoch."""
    return dense_model(
        num_classes, optimizer=keras.optimizers.Adam(0.05), **options
    )


def files_in(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def assert_refused(message, model, *data, num_steps=0, **options):
    """`fit` raises, the model having made so many steps and no more."""
    before = [np.array(v) for v in model.variables]
    first_epoch = model._initial_epoch
    options = {"epochs": 2, "verbose": 0} | options
    with pytest.raises(ValueError, match=f"(?s){message}"):
        model.fit(*data, **options)
    assert int(model.optimizer.iterations) == num_steps
    if num_steps == 0:
        for old, new in zip(before, model.variables, strict=True):
            np.testing.assert_array_equal(old, np.array(new))
    assert model._initial_epoch == first_epoch


# Arguments of the constructor.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deviation_rate": -0.01}, r"deviation_rate=-0\.01.*at least 0"),
        ({"expected_error": 0}, r"expected_error=0\): .*between 0 and 1"),
        ({"expected_error": 1}, r"expected_error=1\): .*below 1 - 1/k"),
        ({"num_checkpoints": 0}, r"num_checkpoints=0\): .*an integer"),
        ({"interval": 0}, r"interval=0\): .*a number of steps of at least 1"),
        ({"total_steps": 0}, r"total_steps=0\): .*an integer"),
        (
            {"num_checkpoints": 3, "interval": 10},
            r"num_checkpoints=3, interval=10\): give one of them, not several",
        ),
        (
            {"from_logits": "yes"},
            r"from_logits='yes'\): .*True, False or None",
        ),
        ({"resume": True}, "resume and overwrite need a directory"),
        ({"overwrite": True}, "resume and overwrite need a directory"),
        (
            {"directory": "runs/a", "resume": True, "overwrite": True},
            "resume the run or replace it, not both",
        ),
        (
            {"validation_data": np.zeros((5, 4))},
            r"validation_data must be `\(x, y\)` or a tf\.data.*ndarray",
        ),
        ({"validation_data": (1, 2, 3)}, "validation_data must be.*tuple"),
        ({"validation_data": {"x": 1}}, "validation_data must be.*dict"),
    ],
)
def test_refused_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        CBNNCallback(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_checkpoints": np.int64(3)},
        {"interval": np.int32(3)},
        {"from_logits": False},
    ],
)
def test_accepted_arguments(options):
    callback = CBNNCallback(**options)
    ((name, value),) = options.items()
    assert getattr(callback, name) == value


@pytest.mark.parametrize(
    "options", [{"deviation_rate": 0}, {"expected_error": 1e-9}]
)
def test_accepted_numbers(options):
    ((name, value),) = options.items()
    assert getattr(CBNNCallback(**options).boosting, name) == value


# Pipelines.


def test_plain_arrays(no_dead_pipelines):
    assert_refused(
        "no pipeline made by `weighted`.*plain arrays.*" + EXPLICIT_FORM,
        fast_model(),
        *blobs(),
        callbacks=[CBNNCallback()],
    )


def test_several_pipelines_of_nobody(no_dead_pipelines):
    first, second = (weighted(*blobs(), batch_size=20) for _ in range(2))
    assert_refused(
        "There are 2 pipelines .*any could be meant.*`del`.*" + EXPLICIT_FORM,
        fast_model(),
        first,
        callbacks=[CBNNCallback()],
    )
    del second
    callback = CBNNCallback(num_checkpoints=1)
    fast_model().fit(first, epochs=1, callbacks=[callback], verbose=0)
    assert [record["step"] for record in callback.history] == [6]


def test_several_pipelines_of_the_callback():
    callback = CBNNCallback()
    first, second = (
        callback.weighted(*blobs(), batch_size=20) for _ in range(2)
    )
    for train in (first, second):
        assert_refused(
            "There are 2 pipelines made by.*Use one callback for each",
            fast_model(),
            train,
            callbacks=[callback],
        )


def test_the_pipeline_of_another_callback(no_dead_pipelines):
    other = CBNNCallback()
    train = other.weighted(*blobs(), batch_size=20)
    assert_refused(
        "no pipeline made by `weighted`, or one that belongs to another "
        "callback.*" + EXPLICIT_FORM,
        fast_model(),
        train,
        callbacks=[CBNNCallback()],
    )


@pytest.mark.parametrize("what", ["another's", "dataset", "arrays"])
def test_other_data_than_the_callbacks_own(what, tmp_path):
    x, y = blobs()
    callback, other = CBNNCallback(tmp_path / "run"), CBNNCallback()
    own = callback.weighted(x, y, batch_size=20)
    data = {
        "another's": (other.weighted(x, y, batch_size=20),),
        "dataset": (tf.data.Dataset.from_tensor_slices((x, y)).batch(20),),
        "arrays": (x, y),
    }[what]
    assert_refused(
        "first batch of `fit` did not come from the pipeline of this "
        "callback.*" + EXPLICIT_FORM,
        fast_model(),
        *data,
        callbacks=[callback],
        num_steps=1,
    )
    assert callback.history == []
    del own  # had to live until here


def test_nothing_to_look_up_before_there_is_a_pipeline():
    callback = CBNNCallback()
    with pytest.raises(ValueError, match="no sample weights yet.*cbnn.weigh"):
        _ = callback.sample_weights
    with pytest.raises(ValueError, match="no sample weights yet.*cbnn.weigh"):
        callback.look_up(tf.constant([0]))
    with pytest.raises(ValueError, match=r"nothing was trained yet.*model\.fi"):
        callback.ensemble()


def pairs(num_samples=120):
    return tf.data.Dataset.from_tensor_slices(blobs(num_samples))


def indexed(callback):
    """A pipeline of the user's own."""
    train = callback.attach_index(pairs()).batch(20)
    return train.map(lambda index, x, y: (x, y, callback.look_up(index)))


def test_an_index_without_data_to_score():
    callback = CBNNCallback()
    assert_refused(
        r"`attach_index` needs `score_data=\(x, y\)`, the same samples",
        fast_model(),
        indexed(callback),
        callbacks=[callback],
    )


def test_an_index_with_other_data_to_score():
    callback = CBNNCallback(score_data=blobs(119))
    assert_refused(
        r"score_data=... has 119 samples, but the pipeline has 120: sample i",
        fast_model(),
        indexed(callback),
        callbacks=[callback],
    )


def test_data_to_score_of_a_wrong_kind():
    """It was once refused as "validation_data", and only by `fit`."""
    with pytest.raises(ValueError, match=r"^score_data must be `\(x, y\)`"):
        CBNNCallback(score_data=blobs()[0])


def test_data_to_score_with_weighted():
    callback = CBNNCallback(score_data=blobs())
    train = callback.weighted(*blobs(), batch_size=20)
    assert_refused(
        r"score_data=... is for a pipeline made with `attach_index`.*Leave",
        fast_model(),
        train,
        callbacks=[callback],
    )


def test_an_index_on_a_dataset_that_shuffles():
    with pytest.raises(ValueError, match="another sample in a second pass"):
        CBNNCallback().attach_index(pairs().shuffle(120))


@pytest.mark.parametrize(
    ("announced", "message"),
    [(119, "has 120 samples, but 119"), (121, "has 120 samples, but 121")],
)
def test_a_number_of_samples_that_is_wrong(announced, message):
    callback = CBNNCallback()
    train = callback.weighted(
        pairs().filter(lambda x, y: True), batch_size=20, num_samples=announced
    )
    assert_refused(
        message + " were announced.*`num_samples`",
        fast_model(),
        train,
        callbacks=[callback],
    )


# Models and labels.


def one_output(activation, loss):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, activation=activation)]
    )
    model.compile("sgd", loss)
    return model


def two_outputs():
    inputs = keras.Input((4,))
    ends = [keras.layers.Dense(3, "softmax")(inputs) for _ in range(2)]
    model = keras.Model(inputs, ends)
    model.compile("sgd", ["sparse_categorical_crossentropy", None])
    return model


def unreadable_model():
    def loss(y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)

    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Identity()]
    )
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize(
    ("make", "labels", "message"),
    [
        (
            lambda: one_output(None, "mse"),
            np.linspace(0, 1, 120),
            "'mean_squared_error' and has one output, which is regression",
        ),
        (
            two_outputs,
            np.arange(120) % 3,
            r"one classification output; the model has 2.*keras\.Model\(inputs",
        ),
        (
            unreadable_model,
            np.arange(120) % 3,
            "cannot tell.*'loss'.*Pass `from_logits=True`",
        ),
        (
            lambda: dense_model(),
            np.arange(120) % 4,
            r"integers in 0\.\.2.*sample 3 has 3, and 30 of 120",
        ),
        (
            lambda: dense_model(),
            np.arange(120) % 3 - 1,
            r"integers in 0\.\.2.*sample 0 has -1, and 40 of 120",
        ),
        (
            lambda: dense_model(),
            np.arange(120) % 3 + 0.5,
            r"integers in 0\.\.2.*sample 0 has 0\.5",
        ),
        (
            lambda: one_output("sigmoid", "binary_crossentropy"),
            np.arange(120) % 3,
            r"integers in 0\.\.1.*sample 2 has 2",
        ),
        (
            lambda: dense_model(loss="categorical_crossentropy"),
            np.tile([1, 1, 0], (120, 1)),
            r"one-hot; sample 0 has \[1 1 0\]",
        ),
        (
            lambda: dense_model(loss="categorical_crossentropy"),
            np.tile([0.2, 0.3, 0.5], (120, 1)).astype("float32"),
            r"one-hot; sample 0 has \[0\.2 0\.3 0\.5\].*label_smoothing",
        ),
        (
            lambda: dense_model(loss="categorical_crossentropy"),
            np.eye(4)[np.arange(120) % 4],
            r"shape \(120, 4\), but the model has 3 outputs: give integers",
        ),
    ],
)
def test_models_and_labels_that_cannot_be_boosted(make, labels, message):
    callback = CBNNCallback()
    train = callback.weighted(blobs()[0], labels, batch_size=20)
    assert_refused(message, make(), train, callbacks=[callback])


@pytest.mark.parametrize(
    ("num_classes", "expected_error", "limit"),
    [(3, 0.7, "0.6667"), (3, 2 / 3, "0.6667"), (2, 0.5, "0.5")],
)
def test_expected_errors_no_better_than_chance(
    num_classes, expected_error, limit
):
    callback = CBNNCallback(expected_error=expected_error)
    x, y = blobs(num_classes=num_classes)
    train = callback.weighted(x, y, batch_size=20)
    assert_refused(
        rf"expected_error={expected_error}\): must be below {limit}, the error "
        f"of guessing one of {num_classes} classes",
        fast_model(num_classes),
        train,
        callbacks=[callback],
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (blobs(num_classes=4), r"integers in 0\.\.2.*sample 3 has 3"),
        ((blobs()[0], np.zeros((120, 2))), r"shape \(120, 2\), but the model"),
        (pairs().shuffle(120).batch(20), r"another order.*`\.shuffle"),
        (pairs().batch(20).map(lambda x, y: x), r"must give batches \(x, y\)"),
    ],
)
def test_validation_data_that_does_not_fit_the_model(data, message):
    callback = CBNNCallback(validation_data=data)
    train = callback.weighted(*blobs(), batch_size=20)
    assert_refused(message, fast_model(), train, callbacks=[callback])


# Steps.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 13}, "interval is 13 steps and the run has 12: give an"),
        (
            {"total_steps": 11},
            r"total_steps=11\), but `fit` will make 12 steps\. Leave",
        ),
    ],
)
def test_steps_that_do_not_fit_the_run(options, message, tmp_path):
    callback = CBNNCallback(tmp_path / "run", **options)
    train = callback.weighted(*blobs(), batch_size=20)
    assert_refused(message, fast_model(), train, callbacks=[callback])
    assert not (tmp_path / "run").exists()


def test_steps_that_fit_the_run_may_be_given():
    callback = CBNNCallback(total_steps=12, interval=12)
    train = callback.weighted(*blobs(), batch_size=20)
    fast_model().fit(train, epochs=2, callbacks=[callback], verbose=0)
    assert [record["step"] for record in callback.history] == [12]


def test_steps_that_nobody_knows():
    callback = CBNNCallback(score_data=blobs())
    train = indexed(callback).filter(lambda x, y, weight: True)
    assert_refused(
        "does not know how many steps.*`total_steps=`.*`steps_per_epoch=`",
        fast_model(),
        train,
        callbacks=[callback],
    )


# Directories.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 2 epochs, complete."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    keras.utils.set_random_seed(0)
    callback = CBNNCallback(directory, num_checkpoints=2)
    train = callback.weighted(*blobs(), batch_size=20, seed=1)
    fast_model().fit(train, epochs=2, callbacks=[callback], verbose=0)
    return directory


def test_a_directory_with_another_run(finished):
    before = files_in(finished)
    with pytest.raises(
        ValueError,
        match="already holds a run.*`resume=True`.*`overwrite=True`",
    ):
        CBNNCallback(finished)
    assert files_in(finished) == before


def test_a_second_fit_of_the_same_callback(tmp_path):
    callback = CBNNCallback(tmp_path, num_checkpoints=1)
    train = callback.weighted(*blobs(), batch_size=20)
    model = fast_model()
    model.fit(train, epochs=1, callbacks=[callback], verbose=0)
    before = files_in(tmp_path)
    assert_refused(
        "already holds a run, which is never overwritten by itself",
        model,
        train,
        callbacks=[callback],
        num_steps=6,
    )
    assert files_in(tmp_path) == before


def test_a_directory_that_was_taken_in_the_meantime(finished, tmp_path):
    callback = CBNNCallback(tmp_path / "run")
    train = callback.weighted(*blobs(), batch_size=20)
    shutil.copytree(finished, tmp_path / "run")
    assert_refused(
        "already holds a run", fast_model(), train, callbacks=[callback]
    )
    assert files_in(tmp_path / "run") == files_in(finished)


def test_a_refused_fit_overwrites_nothing(finished, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    callback = CBNNCallback(directory, overwrite=True, interval=100)
    train = callback.weighted(*blobs(), batch_size=20)
    assert_refused(
        "interval is 100 steps and the run has 12",
        fast_model(),
        train,
        callbacks=[callback],
    )
    assert files_in(directory) == files_in(finished)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_a_directory_that_is_a_file(options, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(ValueError, match="notes.txt is a file; a run needs"):
        CBNNCallback(file, **options)
    assert file.read_text() == "mine"


def test_a_directory_with_something_else_in_it(tmp_path):
    (tmp_path / "model.keras").write_text("mine")
    with pytest.raises(
        ValueError, match="no manifest.json, but model.keras.*would overwrite"
    ):
        CBNNCallback(tmp_path, overwrite=True)
    assert (tmp_path / "model.keras").read_text() == "mine"


@pytest.mark.skipif(
    not pathlib.Path("/proc/self").exists(), reason="there is no /proc here"
)
def test_a_directory_that_cannot_be_written():
    callback = CBNNCallback("/proc/cbnn")
    train = callback.weighted(*blobs(), batch_size=20)
    assert_refused(
        "cannot be written to /proc/cbnn.*Choose a directory that you may",
        fast_model(),
        train,
        callbacks=[callback],
    )


# Going on with a run.


class Stop(Exception):
    pass


class StopAfter(keras.callbacks.Callback):
    """Ends training in a way that leaves the run unfinished."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """A run of 4 epochs that was left after 2."""
    directory = tmp_path_factory.mktemp("unfinished") / "run"
    keras.utils.set_random_seed(0)
    callback = CBNNCallback(directory, num_checkpoints=4)
    train = callback.weighted(*blobs(), batch_size=20, seed=1)
    with pytest.raises(Stop):
        fast_model().fit(
            train, epochs=4, callbacks=[callback, StopAfter(1)], verbose=0
        )
    return directory


@pytest.fixture
def left(unfinished, tmp_path):
    """A copy of that run, for one test."""
    return pathlib.Path(shutil.copytree(unfinished, tmp_path / "run"))


def other_labels():
    x, y = blobs()
    return x, np.roll(y, 1)


def wider():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(9, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy"
    )
    return model


def resumed(directory, *, data=blobs, num_checkpoints=4, **options):
    """Callback and pipeline to resume with, as in `unfinished`."""
    pipeline = {
        name: options.pop(name, default)
        for name, default in {
            "batch_size": 20,
            "seed": 1,
            "shuffle": True,
            "sample_weight": None,
        }.items()
    }
    callback = CBNNCallback(
        directory, resume=True, num_checkpoints=num_checkpoints, **options
    )
    return callback, callback.weighted(*data(), **pipeline)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"deviation_rate": 0.02},
            r"deviation_rate was 0\.0 and is 0\.02",
        ),
        ({"num_checkpoints": 2}, "interval was 6 and is 12"),
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"data": other_labels}, "the labels, or .* are others or in anoth"),
        (
            {"sample_weight": np.arange(120)},
            "sample weights to start from, are",
        ),
    ],
)
def test_going_on_with_other_settings(options, message, left):
    before = files_in(left)
    callback, train = resumed(left, **options)
    assert_refused(
        rf"resume=True: the run in .* other settings: .*{message}.*"
        "Use the same ones, or start in a new directory",
        fast_model(),
        train,
        epochs=4,
        callbacks=[callback],
    )
    assert files_in(left) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (wider, r"another architecture \(67 parameters then, 75 now\)"),
        (
            lambda: dense_model(optimizer="sgd"),
            "optimizer was 'Adam' and is 'SGD'",
        ),
    ],
)
def test_going_on_with_another_model(make, message, left):
    before = files_in(left)
    callback, train = resumed(left)
    assert_refused(
        rf"resume=True: .*{message}.*start in a new directory",
        make(),
        train,
        epochs=4,
        callbacks=[callback],
    )
    assert files_in(left) == before


def test_going_on_with_the_same_settings(left):
    # So that the refusals above are of what they say.
    callback, train = resumed(left)
    model = fast_model()
    model.fit(train, epochs=4, callbacks=[callback], verbose=0)
    assert [record["step"] for record in callback.history] == [6, 12, 18, 24]
    assert int(model.optimizer.iterations) == 24


def test_a_finished_run_is_not_gone_on_with_otherwise(finished):
    before = files_in(finished)
    callback, train = resumed(finished, num_checkpoints=2, seed=5)
    assert_refused(
        "seed was 1 and is 5", fast_model(), train, callbacks=[callback]
    )
    assert files_in(finished) == before


# Training that diverges.


class Explode(keras.callbacks.Callback):
    """A learning rate that no model survives, from an epoch on."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            self.model.optimizer.learning_rate = 1e30


@pytest.mark.parametrize("on_disk", [True, False])
def test_members_survive_a_model_that_diverges(on_disk, tmp_path):
    callback = CBNNCallback.paper(
        tmp_path if on_disk else None, num_checkpoints=4
    )
    train = callback.weighted(*blobs(), batch_size=20)
    with pytest.raises(
        ValueError,
        match="not finite.* at step 18, epoch 3.*lower the learning rate.*"
        "members saved so far are intact",
    ):
        fast_model().fit(
            train, epochs=4, callbacks=[callback, Explode(2)], verbose=0
        )
    assert [record["step"] for record in callback.history] == [6, 12]
    assert np.isfinite(callback.sample_weights).all()
    ensemble = callback.ensemble()
    if on_disk:
        with pytest.warns(UserWarning, match="is not finished"):
            ensemble = CheckpointEnsemble.load(tmp_path)
    assert [member["step"] for member in ensemble.members] == [6, 12]
    x, y = blobs()
    predictions = ensemble.predict(x, verbose=0)
    assert np.isfinite(predictions).all()
    assert np.mean(predictions.argmax(axis=1) == y) > 0.5


def test_inputs_that_are_not_finite():
    x, y = blobs()
    x[7, 2] = np.nan
    callback = CBNNCallback(num_checkpoints=2)
    train = callback.weighted(x, y, batch_size=20)
    # Without ReLU, which can turn NaN into 0.
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="not finite.* at step 6, epoch 1"):
        model.fit(train, epochs=2, callbacks=[callback], verbose=0)
    assert callback.history == []
