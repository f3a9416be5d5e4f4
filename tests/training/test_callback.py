"""CBNNCallback inside real `fit` calls."""

import contextlib
import csv

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, dense_model, trained

from cbnn_keras import CBNNCallback, CheckpointEnsemble, weighted
from cbnn_keras.models import engine


def noisy_cnn():
    """Everything that has a state: Adam, BatchNorm, Dropout."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def images(num_samples=90):
    generator = np.random.default_rng(0)
    y = np.arange(num_samples) % 3
    x = generator.normal(size=(num_samples, 6, 6, 1)) + y[:, None, None, None]
    return x.astype("float32"), y


class Stop(Exception):
    pass


class StopAfter(keras.callbacks.Callback):
    """Ends training as a crash would: Keras calls no `on_train_end` then."""

    def __init__(self, epoch=None, batch=None, error=Stop):
        super().__init__()
        self.at_epoch, self.at_batch, self.error = epoch, batch, error

    def on_epoch_end(self, epoch, logs=None):
        if self.at_batch is None and epoch == self.at_epoch:
            raise self.error

    def on_train_batch_end(self, batch, logs=None):
        self.epoch_batches = batch
        if self.at_batch == batch and self.current == self.at_epoch:
            raise self.error

    def on_epoch_begin(self, epoch, logs=None):
        self.current = epoch


def test_by_default_training_is_bit_identical_to_plain_keras():
    x, y = images()
    plain, boosted = noisy_cnn(), noisy_cnn()
    boosted.set_weights(plain.get_weights())
    for layer, twin in zip(plain.layers, boosted.layers, strict=True):
        for a, b in zip(layer.variables, twin.variables, strict=True):
            b.assign(a)  # the state of Dropout's generator too

    unweighted = weighted(x, y, batch_size=16, seed=7).map(
        lambda x, y, weight: (x, y)
    )
    log = plain.fit(unweighted, epochs=4, verbose=0).history
    cbnn = CBNNCallback(validation_data=(x, y))
    train = cbnn.weighted(x, y, batch_size=16, seed=7)
    boosted_log = boosted.fit(train, epochs=4, callbacks=[cbnn], verbose=0)

    assert len(cbnn.history) == 6
    for a, b in zip(plain.variables, boosted.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        plain.optimizer.variables, boosted.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(a, b)
    for name, values in log.items():  # metrics are not touched either
        assert boosted_log.history[name] == values


def test_a_step_is_traced_once_though_the_optimizer_has_no_variables():
    traced = []

    class Noting(keras.layers.Layer):
        def call(self, x, training=None):
            if training:
                traced.append(x)
            return x

    model = keras.Sequential(
        [keras.Input((4,)), Noting(), keras.layers.Dense(3, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    trained(model=model)
    assert len(traced) == 1


def test_an_optimizer_of_a_step_of_the_user_is_left_alone():
    """It may be for some of the variables."""

    class Own(keras.Sequential):
        def train_step(self, data):
            raise AssertionError("not called")

    for kind, is_built in ((Own, False), (keras.Sequential, True)):
        model = kind([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("adam", "mse")
        engine.in_use().begin_training(model)
        assert model.optimizer.built == is_built


def test_rounds_follow_from_the_members_predictions():
    """Error, vote, weights and bound, from the saved members alone."""
    cbnn, model, x, y = trained(num_checkpoints=3, deviation_rate=0.1, epochs=6)
    outputs = list(cbnn.ensemble().member_probabilities(x))
    omega, bound = np.full(len(y), 1 / len(y)), 1.0
    for record, probabilities in zip(cbnn.history, outputs, strict=True):
        right = probabilities.argmax(axis=1) == y
        error = sum(w for w, r in zip(omega, right, strict=True) if not r)
        vote = np.log((1 - error) / error) + np.log(2)
        factors = np.where(right, np.exp(-0.1 * vote), 1.0)
        bound *= (omega * factors).sum()
        assert record["error"] == pytest.approx(error, rel=1e-12)
        assert record["vote"] == pytest.approx(vote, rel=1e-12)
        assert record["bound"] == pytest.approx(bound, rel=1e-12)
        if not record["is_final"]:
            omega = omega * factors / (omega * factors).sum()
    np.testing.assert_allclose(
        cbnn.sample_weights.numpy(), len(y) * omega, rtol=1e-6
    )
    assert np.ptp(omega) > 0  # something was reweighted


def test_steps_epochs_and_members_of_the_history():
    cbnn, _, _, _ = trained(num_checkpoints=3, epochs=5)  # 6 steps an epoch
    assert [r["step"] for r in cbnn.history] == [10, 20, 30]
    assert [r["epoch"] for r in cbnn.history] == [1, 3, 4]
    assert [r["is_final"] for r in cbnn.history] == [False, False, True]
    assert cbnn.ensemble().members == cbnn.history
    np.testing.assert_array_equal(
        cbnn.ensemble().votes, [r["vote"] for r in cbnn.history]
    )


def test_interval_inside_an_epoch_and_across_epochs():
    inside, _, _, _ = trained(interval=4, epochs=2)
    assert [r["step"] for r in inside.history] == [4, 8, 12]
    across, _, _, _ = trained(interval=8, epochs=4)
    assert [r["step"] for r in across.history] == [8, 16, 24]


def test_final_model_is_the_last_member():
    cbnn, model, x, _ = trained()
    *_, last = cbnn.ensemble().member_probabilities(x)
    np.testing.assert_array_equal(last, model.predict(x, verbose=0))


def test_logs_have_every_key_from_the_first_epoch_on(tmp_path):
    x, y = blobs()
    model = dense_model()
    cbnn = CBNNCallback.paper(interval=12, validation_data=(x, y))
    log = tmp_path / "log.csv"
    history = model.fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=4,
        callbacks=[cbnn, keras.callbacks.CSVLogger(log)],
        verbose=0,
    ).history
    assert np.isnan(history["cbnn_error"][0])
    assert history["cbnn_members"] == [0, 1, 1, 2]
    first, last = cbnn.history
    assert history["cbnn_error"][1:] == [first["error"]] * 2 + [last["error"]]
    assert history["cbnn_vote"][3] == last["vote"]
    assert history["cbnn_bound"][3] == last["bound"]
    with log.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["cbnn_members"] for row in rows] == ["0", "1", "1", "2"]
    assert float(rows[3]["cbnn_vote"]) == last["vote"]
    assert "val_ensemble_accuracy" in rows[0]


def test_val_ensemble_accuracy_is_that_of_members_and_current_model():
    x, y = blobs()
    x_val, y_val = blobs(seed=5)
    model = dense_model()
    cbnn = CBNNCallback.paper(interval=12, validation_data=(x_val, y_val))
    current = []

    class Record(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            current.append(self.model.predict(x_val, verbose=0))

    seen = model.fit(
        cbnn.weighted(x, y, batch_size=20),  # 6 steps an epoch
        epochs=5,
        callbacks=[cbnn, Record()],
        verbose=0,
    ).history["val_ensemble_accuracy"]
    # Checkpoints at steps 12, 18 and 30: after epochs 2, 3 and 5.
    assert [r["step"] for r in cbnn.history] == [12, 18, 30]
    one, two, three = (r["vote"] for r in cbnn.history)
    ensembles = [
        current[0],
        current[1],
        one * current[1] + two * current[2],
        one * current[1] + two * current[2] + two * current[3],
        one * current[1] + two * current[2] + three * current[4],
    ]
    expected = [np.mean(p.argmax(axis=1) == y_val) for p in ensembles]
    np.testing.assert_allclose(seen, expected)


def test_validation_predictions_are_computed_once_a_member(monkeypatch):
    x, y = blobs()
    model = dense_model()
    calls = []
    predict = model.predict
    monkeypatch.setattr(
        model, "predict", lambda *a, **k: calls.append(1) or predict(*a, **k)
    )
    cbnn = CBNNCallback.paper(interval=12, validation_data=(x, y))
    model.fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=4,
        callbacks=[cbnn],
        verbose=0,
    )
    # Epochs 1 and 3: the current model; epochs 2 and 4: the new member.
    assert len(calls) == 4


def test_early_stopping_on_the_ensemble_ends_with_the_last_model(tmp_path):
    x, y = blobs()
    trained_before = dense_model()
    trained_before.fit(x, y, epochs=5, verbose=0)
    model = dense_model(optimizer=keras.optimizers.SGD(0.0))  # never improves
    model.set_weights(trained_before.get_weights())
    cbnn = CBNNCallback(
        tmp_path / "run",
        num_checkpoints=2,
        average=False,
        members="all",
        validation_data=(x, y),
    )
    stop = keras.callbacks.EarlyStopping(
        "val_ensemble_accuracy", mode="max", patience=2
    )
    log = model.fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=50,
        callbacks=[cbnn, stop],
        verbose=0,
    )
    assert len(log.epoch) == 3
    assert [r["step"] for r in cbnn.history] == [6, 12, 18]
    assert [r["is_final"] for r in cbnn.history] == [False, False, True]
    loaded = CheckpointEnsemble.load(tmp_path / "run")
    np.testing.assert_array_equal(
        loaded.predict(x), model.predict(x, verbose=0)
    )


class StopTraining(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step, self.seen = step, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.step:
            self.model.stop_training = True


@pytest.mark.parametrize("first", [True, False])
def test_stop_training_in_the_middle_of_an_epoch(first):
    x, y = blobs()
    model = dense_model()
    cbnn = CBNNCallback.paper(interval=6)
    others = [cbnn, StopTraining(9)]
    log = model.fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=5,
        callbacks=others if first else others[::-1],
        verbose=0,
    )
    assert [r["step"] for r in cbnn.history] == [6, 9]
    assert cbnn.history[-1]["is_final"]
    assert log.history["cbnn_members"] == [1, 2]


def test_stop_at_a_checkpoint_makes_it_the_final_model():
    """No second copy of it, and its update of the weights is undone."""
    x, y = blobs()
    cbnn = CBNNCallback.paper(interval=6, deviation_rate=0.05)
    weights = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights.append(cbnn.sample_weights.numpy())

    dense_model().fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=5,
        callbacks=[cbnn, Record(), StopTraining(12)],
        verbose=0,
    )
    assert [r["step"] for r in cbnn.history] == [6, 12]
    assert [r["is_final"] for r in cbnn.history] == [False, True]
    np.testing.assert_array_equal(cbnn.sample_weights, weights[10])
    assert not np.array_equal(weights[10], weights[11])


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
def test_members_saved_before_an_interruption_load(tmp_path, error):
    x, y = blobs()
    model = dense_model()
    cbnn = CBNNCallback.paper(tmp_path / "run", interval=4)
    with pytest.raises(error):
        model.fit(
            cbnn.weighted(x, y, batch_size=20),
            epochs=4,
            callbacks=[cbnn, StopAfter(epoch=1, batch=3, error=error)],
            verbose=0,
        )
    with pytest.warns(UserWarning, match=r"run is not finished \(rounds so f"):
        loaded = CheckpointEnsemble.load(tmp_path / "run")
    assert [m["step"] for m in loaded.members] == [4, 8]
    np.testing.assert_array_equal(loaded.predict(x), cbnn.ensemble().predict(x))


def test_no_member_before_the_interruption_is_said():
    x, y = blobs()
    cbnn = CBNNCallback.paper()
    with pytest.raises(Stop):
        dense_model().fit(
            cbnn.weighted(x, y, batch_size=20),
            epochs=4,
            callbacks=[cbnn, StopAfter(epoch=0, batch=0)],
            verbose=0,
        )
    with pytest.raises(ValueError, match="no members yet.*first checkpoint"):
        cbnn.ensemble()


def test_one_instance_serves_several_fits():
    x, y = blobs()
    cbnn = CBNNCallback.paper(num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20, seed=3)
    votes, weights = [], []
    for is_second in (False, True):
        keras.utils.set_random_seed(0)
        model = dense_model()
        with (
            pytest.warns(UserWarning, match="a new run in memory, .*2 members")
            if is_second
            else contextlib.nullcontext()
        ):
            model.fit(train, epochs=3, callbacks=[cbnn], verbose=0)
        votes.append([r["vote"] for r in cbnn.history])
        weights.append(cbnn.sample_weights.numpy())
    assert votes[0] == votes[1]  # the second starts anew
    np.testing.assert_array_equal(*weights)


def test_shortest_script():
    x, y = blobs()
    model = dense_model()
    cbnn = CBNNCallback.paper()
    model.fit(cbnn.weighted(x, y), epochs=3, callbacks=[cbnn], verbose=0)
    assert set(cbnn.ensemble().evaluate(x, y)) == {
        "accuracy",
        "negative_log_likelihood",
    }


@pytest.mark.large
def test_one_line_form_twice_with_new_callbacks_and_with_the_same():
    x, y = blobs()
    model = dense_model()
    used = []
    for callback in (
        first := CBNNCallback.paper(),
        CBNNCallback.paper(),
        first,
    ):
        with (
            pytest.warns(UserWarning, match="one callback for each `fit`")
            if callback in used
            else contextlib.nullcontext()
        ):
            model.fit(
                weighted(x, y, batch_size=64),
                epochs=3,
                callbacks=[callback],
                verbose=0,
            )
        used.append(callback)
        assert len(callback.ensemble()) > 0


def test_fit_of_a_pipeline_whose_callback_is_gone():
    x, y = blobs()
    model = dense_model()
    cbnn = CBNNCallback.paper()
    train = cbnn.weighted(x, y)
    del cbnn
    cbnn = CBNNCallback.paper()
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    assert cbnn.history


def test_no_better_than_chance_is_no_member_and_changes_no_weight():
    x, y = blobs(num_classes=2)
    model = dense_model(num_classes=2, optimizer=keras.optimizers.SGD(1.0))
    # A model that always says class 0 is wrong on half of the samples.
    model.layers[-1].kernel.assign(np.zeros((8, 2)))
    model.layers[-1].bias.assign([1e4, -1e4])
    cbnn = CBNNCallback.paper(interval=1, expected_error=0.4)
    with pytest.warns(UserWarning, match="step 1 .*no better than chance"):
        model.fit(
            cbnn.weighted(x, y, batch_size=120),
            epochs=2,
            callbacks=[cbnn],
            verbose=0,
        )
    first, last = cbnn.history
    assert (first["is_member"], first["vote"], first["bound"]) == (False, 0, 1)
    # No other round gave a member: the ensemble is the final model.
    assert last["is_member"] and last["vote"] == 1
    np.testing.assert_array_equal(cbnn.sample_weights, np.ones(120))
    np.testing.assert_array_equal(
        cbnn.ensemble().predict(x), model.predict(x, verbose=0)
    )


def test_chance_level_model_stopped_early_is_still_a_member():
    x, y = blobs(num_classes=2)
    model = dense_model(num_classes=2, optimizer=keras.optimizers.SGD(0.0))
    model.layers[-1].kernel.assign(np.zeros((8, 2)))
    model.layers[-1].bias.assign([1.0, -1.0])
    cbnn = CBNNCallback.paper(interval=6)
    with pytest.warns(UserWarning, match="no better than chance"):
        model.fit(
            cbnn.weighted(x, y, batch_size=20),
            epochs=4,
            callbacks=[cbnn, StopTraining(6)],
            verbose=0,
        )
    assert [r["step"] for r in cbnn.history] == [6]
    assert len(cbnn.ensemble()) == 1


def test_stop_rule_ends_checkpoints_but_not_training(capsys):
    x, y = blobs()
    model = dense_model(optimizer=keras.optimizers.Adam(0.05))
    cbnn = CBNNCallback.paper(interval=6, deviation_rate=0.08)
    model.fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=10,
        callbacks=[cbnn],
        verbose=2,
    )
    votes = [r["vote"] for r in cbnn.history]
    reserved = np.log(0.95 / 0.05) + np.log(2)  # lambda_0 of three classes
    before = np.cumsum([0.0, *votes])[: len(votes) - 1]
    assert all(reserved + before[:-1] < 1 / 0.08)  # each was allowed
    assert reserved + sum(votes[:-1]) >= 1 / 0.08  # and then no more
    assert len(votes) < 10
    assert cbnn.history[-1]["step"] == 60
    printed = capsys.readouterr().out
    assert printed.count("no more checkpoints before the final model") == 1


def test_votes_beyond_the_budget_are_recorded_and_said_once(capsys):
    x, y = blobs()
    model = dense_model(optimizer=keras.optimizers.Adam(0.05))
    cbnn = CBNNCallback.paper(
        interval=6, deviation_rate=0.2, expected_error=0.6
    )
    model.fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=6,
        callbacks=[cbnn],
        verbose=2,
    )
    sums = np.cumsum([r["vote"] for r in cbnn.history])
    assert [r["within_budget"] for r in cbnn.history] == list(sums < 5)
    assert not cbnn.history[-1]["within_budget"]
    printed = capsys.readouterr().out
    assert printed.count("more than 1/deviation_rate") == 1


def test_verbose_of_fit_is_obeyed(capsys):
    x, y = blobs()
    for verbose in (0, 2):
        cbnn = CBNNCallback.paper(num_checkpoints=2)
        dense_model().fit(
            cbnn.weighted(x, y),
            epochs=2,
            callbacks=[cbnn],
            verbose=verbose,
        )
        printed = capsys.readouterr().out
        if verbose == 0:
            assert printed == ""
        else:
            assert "CBNN: checkpoints after steps 4, 8; in memory" in printed
            lines = [s for s in printed.splitlines() if "weighted error" in s]
            assert len(lines) == 2
            assert f"vote {cbnn.history[0]['vote']:.3f}, 1 member," in lines[0]


def nothing(y_true, y_pred):
    return keras.ops.zeros_like(y_pred[:, 0]) / 0.0


@pytest.mark.large
@pytest.mark.parametrize("verbose", [1, 2])
def test_columns_without_a_number_are_not_on_the_screen(capsys, verbose):
    x, y = blobs()
    cbnn = CBNNCallback(num_checkpoints=2)
    model = dense_model(metrics=[nothing])
    history = model.fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=4,
        callbacks=[cbnn],
        verbose=verbose,
    ).history
    printed = capsys.readouterr().out
    epochs = printed.replace("\r", "\n").split("Epoch ")[1:]
    assert len(epochs) == 4
    # The logs have them from the first epoch on, and what is not ours stays.
    assert np.isnan(history["cbnn_error"][0])
    assert "cbnn_error: " not in epochs[0] and "cbnn_bound: " not in epochs[0]
    assert "cbnn_members: 0.0000" in epochs[0]
    assert "nothing: nan" in epochs[0]
    for epoch in epochs[1:]:
        assert "cbnn_error: 0." in epoch and "cbnn_vote: " in epoch


def test_base_sample_weight_is_the_starting_distribution():
    x, y = blobs()
    base = np.linspace(0, 3, len(y))
    cbnn = CBNNCallback.paper(num_checkpoints=1)
    model = dense_model()
    train = cbnn.weighted(x, y, sample_weight=base)
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    wrong = model.predict(x, verbose=0).argmax(axis=1) != y
    expected = base[wrong].sum() / base.sum()
    assert cbnn.history[0]["error"] == pytest.approx(expected, rel=1e-12)


def test_initial_epoch_counts_only_what_is_trained():
    x, y = blobs()
    cbnn = CBNNCallback.paper(num_checkpoints=2)
    dense_model().fit(
        cbnn.weighted(x, y, batch_size=20),
        epochs=5,
        initial_epoch=3,
        callbacks=[cbnn],
        verbose=0,
    )
    assert [r["step"] for r in cbnn.history] == [6, 12]
    assert [r["epoch"] for r in cbnn.history] == [3, 4]


def own_pipeline(cbnn, dataset, batch_size=20):
    def weigh(index, x, y):
        return x, y, cbnn.look_up(index)

    batches = cbnn.attach_index(dataset).shuffle(120, seed=1).batch(batch_size)
    return batches.prefetch(2).map(weigh)


def test_pipeline_of_the_users_own():
    x, y = blobs()
    cbnn = CBNNCallback.paper(
        score_data=(x, y), deviation_rate=0.05, interval=6
    )
    train = own_pipeline(cbnn, tf.data.Dataset.from_tensor_slices((x, y)))
    dense_model().fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    assert [r["step"] for r in cbnn.history] == [6, 12, 18, 24]
    assert np.ptp(cbnn.sample_weights.numpy()) > 0


def test_mixup_as_documented_blends_labels_and_weights_alike():
    x, y = blobs()
    y = np.eye(3, dtype="float32")[y]
    cbnn = CBNNCallback.paper(score_data=(x, y), deviation_rate=0.03)

    def mix(index, x, y):
        share = tf.random.uniform([])
        other = tf.reverse(index, [0])
        x = share * x + (1 - share) * tf.reverse(x, [0])
        y = share * y + (1 - share) * tf.reverse(y, [0])
        return x, y, share, index, other

    def weigh(x, y, share, index, other):
        weight = share * cbnn.look_up(index)
        return x, y, weight + (1 - share) * cbnn.look_up(other)

    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    train = cbnn.attach_index(dataset).shuffle(120).batch(20)
    train = train.map(mix).prefetch(tf.data.AUTOTUNE).map(weigh)
    model = dense_model(loss="categorical_crossentropy")
    model.fit(train, epochs=3, callbacks=[cbnn], verbose=0)
    assert len(cbnn.ensemble()) == 6
    batch_x, batch_y, weight = next(iter(train))
    np.testing.assert_allclose(tf.reduce_sum(batch_y, 1), 1, rtol=1e-6)
    low, high = np.ptp(cbnn.sample_weights), cbnn.sample_weights.numpy().max()
    assert low > 0 and weight.numpy().max() <= high + 1e-6


def test_unknown_number_of_steps_needs_total_steps():
    x, y = blobs()

    def endless(cbnn):
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        train = own_pipeline(cbnn, dataset)
        unknown = tf.data.experimental.UNKNOWN_CARDINALITY
        return train.apply(tf.data.experimental.assert_cardinality(unknown))

    cbnn = CBNNCallback.paper(score_data=(x, y))
    train = endless(cbnn).filter(lambda *_: True)
    with pytest.raises(ValueError, match="how many steps.*total_steps"):
        dense_model().fit(train, epochs=2, callbacks=[cbnn], verbose=0)


def test_caching_the_pipeline_is_refused_because_it_freezes_the_weights():
    x, y = blobs()
    cbnn = CBNNCallback.paper()
    train = cbnn.weighted(x, y).cache()
    with pytest.raises(ValueError, match=r"frozen. Remove `.cache\(\)`"):
        dense_model().fit(train, epochs=3, callbacks=[cbnn], verbose=0)


def test_a_repeated_pipeline_with_steps_per_epoch():
    x, y = blobs()
    cbnn = CBNNCallback.paper(num_checkpoints=3)
    train = cbnn.weighted(x, y, batch_size=20).repeat()  # 6 batches a pass
    dense_model().fit(
        train, epochs=3, steps_per_epoch=4, callbacks=[cbnn], verbose=0
    )
    assert [r["step"] for r in cbnn.history] == [4, 8, 12]


def test_a_model_of_fixed_batch_size():
    x, y = blobs()
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(20, 4)),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    cbnn = CBNNCallback.paper(num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20)
    model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    ensemble = cbnn.ensemble()
    assert ensemble.evaluate(x, y, batch_size=20)["accuracy"] > 0.5


def test_a_refused_second_fit_leaves_the_first_ones_ensemble(tmp_path):
    cbnn, model, x, y = trained(tmp_path / "run")
    history = list(cbnn.history)
    with pytest.raises(ValueError, match="already holds a run"):
        model.fit(cbnn.weighted(x, y), callbacks=[cbnn], verbose=0)
    assert cbnn.history == history
    assert len(cbnn.ensemble()) == len(history)


class Poison(keras.callbacks.Callback):
    """Makes a weight NaN after a step, between checkpoints."""

    def __init__(self, step):
        super().__init__()
        self.step, self.seen = step, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.step:
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel * np.nan)


def test_a_poisoned_state_is_not_kept(tmp_path):
    """Or no restart could ever get rid of it."""
    x, y = blobs()
    cbnn = CBNNCallback.paper(tmp_path / "run", num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20, seed=1)  # 6 steps an epoch
    model = dense_model()
    with pytest.raises(ValueError, match="not finite.*step 24, epoch 4"):
        model.fit(train, epochs=6, callbacks=[cbnn, Poison(20)], verbose=0)
    again = CBNNCallback.paper(tmp_path / "run", num_checkpoints=2, resume=True)
    train = again.weighted(x, y, batch_size=20, seed=1)
    log = dense_model().fit(train, epochs=6, callbacks=[again], verbose=0)
    assert log.epoch == [3, 4, 5]
    assert len(again.ensemble()) == 2


def test_nan_weights_behind_a_relu_make_no_member():
    """A ReLU can turn NaN into 0, and the outputs look finite."""
    x, y = blobs()
    cbnn = CBNNCallback.paper(interval=6)
    train = cbnn.weighted(x, y, batch_size=20)
    with pytest.raises(ValueError, match="weights are not finite.*step 6,"):
        dense_model().fit(
            train, epochs=2, callbacks=[Poison(6), cbnn], verbose=0
        )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda train: train.prefetch(4),
        lambda train: train.map(
            lambda x, y, weight: (2 * x, y, weight), num_parallel_calls=4
        ),
    ],
)
def test_looking_ahead_is_refused_because_weights_would_be_old(spoil):
    x, y = blobs()
    cbnn = CBNNCallback.paper()
    train = spoil(cbnn.weighted(x, y, batch_size=5))
    with pytest.raises(ValueError, match="before their turn.*prefetch"):
        dense_model().fit(train, epochs=3, callbacks=[cbnn], verbose=0)


def test_use_ema_is_refused():
    x, y = blobs()
    cbnn = CBNNCallback.paper()
    model = dense_model(optimizer=keras.optimizers.Adam(use_ema=True))
    with pytest.raises(ValueError, match="use_ema=True.*use_ema=False"):
        model.fit(cbnn.weighted(x, y), callbacks=[cbnn], verbose=0)


def unknown_length(cbnn, x, y):
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return own_pipeline(cbnn, dataset).filter(lambda *_: True)


# Keras says so when it finds out how long an epoch is.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_total_steps_for_a_pipeline_of_unknown_length():
    x, y = blobs()
    cbnn = CBNNCallback.paper(score_data=(x, y), interval=6, total_steps=12)
    train = unknown_length(cbnn, x, y)
    dense_model().fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    assert [r["step"] for r in cbnn.history] == [6, 12]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_too_small_total_steps_are_refused_when_fit_goes_on():
    x, y = blobs()
    cbnn = CBNNCallback.paper(score_data=(x, y), interval=6, total_steps=6)
    train = unknown_length(cbnn, x, y)
    with pytest.raises(ValueError, match="total_steps=6.*goes on"):
        dense_model().fit(train, epochs=2, callbacks=[cbnn], verbose=0)


def test_unknown_steps_with_steps_per_execution_are_refused():
    x, y = blobs()
    cbnn = CBNNCallback.paper(score_data=(x, y), total_steps=12)
    train = unknown_length(cbnn, x, y)
    model = dense_model(steps_per_execution=4)
    with pytest.raises(ValueError, match="steps_per_execution=4.*known"):
        model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)


def test_a_model_that_must_run_eagerly():
    class Eager(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(3, activation="softmax")

        def call(self, x):
            assert x.numpy().shape[1] == 4  # not to be had in a graph
            return self.last(x)

    x, y = blobs()
    model = Eager()
    model.compile(
        keras.optimizers.Adam(0.1),
        "sparse_categorical_crossentropy",
        run_eagerly=True,
    )
    cbnn = CBNNCallback.paper(num_checkpoints=2)
    train = cbnn.weighted(x, y, batch_size=20)
    model.fit(train, epochs=4, callbacks=[cbnn], verbose=0)
    assert len(cbnn.ensemble()) == 2


def test_a_number_in_the_place_of_the_directory():
    with pytest.raises(ValueError, match="directory.*num_checkpoints=6"):
        CBNNCallback.paper(6)


def test_a_new_pipeline_goes_before_one_whose_callback_is_gone():
    """As when a cell of a notebook gives the name of a callback away."""
    x, y = blobs()
    cbnn = CBNNCallback.paper()
    train = cbnn.weighted(x, y)
    model = dense_model()
    model.fit(train, epochs=2, callbacks=[cbnn], verbose=0)
    cbnn = CBNNCallback.paper()
    model.fit(weighted(x, y), epochs=2, callbacks=[cbnn], verbose=0)
    assert cbnn.history
    del train


def test_history_gives_copies(tmp_path):
    """Clearing it once emptied the run."""
    cbnn, model, x, _ = trained(tmp_path / "run", num_checkpoints=3)
    expected = cbnn.ensemble().predict(x, verbose=0)
    cbnn.history.clear()
    cbnn.history[0]["vote"] = 1e9
    assert len(cbnn.history) == 3
    found = cbnn.ensemble().predict(x, verbose=0)
    np.testing.assert_array_equal(found, expected)
