"""Tests of `soup`: members averaged in weights."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import blobs, memory_ensemble, trained
from hypothesis import given, settings
from hypothesis import strategies as st

from cbnn_keras import CheckpointEnsemble
from cbnn_keras.baselines import parallel_ensemble
from cbnn_keras.data.indexed import untracked
from cbnn_keras.ensemble import soup
from cbnn_keras.support.faults import RunError

X, Y = blobs()


@pytest.fixture(scope="module")
def ensemble():
    """Six members of one trajectory."""
    return trained(data=(X, Y), epochs=6)[0].ensemble()


def linear():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation="softmax")]
    )


def one_cycle(model, votes):
    """Members of other weights, as if of one trajectory."""
    return memory_ensemble(model, votes, method="cbnn")


def weights_of(ensemble, step):
    with ensemble.member(step) as model:
        return [np.array(w) for w in model.get_weights()]


def likelihood(model, x, y):
    found = model.predict(x, verbose=0)
    return -np.log(found[np.arange(len(y)), y]).mean()


# --- The arithmetic ---


def test_averaged_by_hand():
    members = [
        [np.array([1.0, 2.0], "float32"), np.array(3)],
        [np.array([5.0, 0.0], "float32"), np.array(4)],
    ]
    floats, count = soup.averaged(members, [3.0, 1.0])
    np.testing.assert_array_equal(floats, np.array([2.0, 1.5], "float32"))
    assert floats.dtype == np.float32 and count == 4  # no mean of counts


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=6),
    st.lists(st.floats(0.1, 9), min_size=6, max_size=6),
)
def test_greedy_is_never_worse_than_the_best_member(points, votes):
    members = [[np.array(point)] for point in points]
    losses = [point**2 for point in points]
    votes = np.array(votes[: len(points)])
    chosen = soup.greedy(
        members, votes, lambda w: float(w[0] ** 2), losses, untracked
    )
    assert chosen == sorted(set(chosen))
    share = votes[chosen] / votes[chosen].sum()
    assert (share @ np.array(points)[chosen]) ** 2 <= min(losses) + 1e-12


# --- Members ---


def test_the_soup_of_linear_members_has_the_average_of_their_weights():
    votes = [1.0, 2.0, 5.0]
    made = one_cycle(linear(), votes)
    own = [np.array(w) for w in made.model.get_weights()]
    found = made.soup((X, Y), verbose=0)
    assert len(found) == 1
    expected = [
        sum(v * m for v, m in zip(votes, parts, strict=True)) / 8
        for parts in zip(*(weights_of(made, s) for s in (1, 2, 3)), strict=True)
    ]
    for got, wanted in zip(weights_of(found, 3), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    header = found.run.header
    assert header.method == "soup" and found.run.is_trained_on(Y)
    assert header.settings.own["soup_members"] == [1, 2, 3]
    np.testing.assert_allclose(
        header.settings.own["soup_shares"], [1 / 8, 1 / 4, 5 / 8]
    )
    for kept, now in zip(own, made.model.get_weights(), strict=True):
        np.testing.assert_array_equal(kept, now)


def test_chosen_by_likelihood_of_held_out_data(ensemble, tmp_path):
    """Compared with all subsets that the greedy way can come to."""
    held_out = blobs(60, seed=0)
    path = tmp_path / "soup"
    found = ensemble.soup(validation_data=held_out, directory=path, verbose=0)
    steps = [m["step"] for m in ensemble.members]
    votes = dict(zip(steps, ensemble.votes, strict=True))
    [copy] = ensemble.take(steps[:1]).member_models()

    def loss(chosen):
        parts = zip(*(weights_of(ensemble, s) for s in chosen), strict=True)
        shares = np.array([votes[s] for s in chosen])
        copy.set_weights([np.average(p, 0, shares) for p in parts])
        return likelihood(copy, *held_out)

    order = sorted(steps, key=lambda step: loss([step]))
    chosen, best = order[:1], loss(order[:1])
    for step in order[1:]:
        if loss(sorted([*chosen, step])) < best:
            chosen = sorted([*chosen, step])
            best = loss(chosen)
    assert found.run.header.settings.own["soup_members"] == chosen
    loaded = CheckpointEnsemble.load(path)
    result = loaded.evaluate(*held_out, verbose=0)
    assert result["negative_log_likelihood"] == pytest.approx(best, rel=1e-4)
    assert result["negative_log_likelihood"] <= min(
        ensemble.take([s]).evaluate(*held_out, verbose=0)[
            "negative_log_likelihood"
        ]
        for s in steps
    )


@pytest.mark.large
def test_statistics_of_batch_norm_are_those_of_the_data():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(5),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy"
    )
    made = trained(data=(X, Y), model=model)[0].ensemble()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(50)
    found = made.soup(data, verbose=0)
    [step] = [m["step"] for m in found.members]
    kernel, bias, _, _, mean, variance, *_ = weights_of(found, step)
    # Batches of 20, each normalised by itself: together all of the samples.
    hidden = X @ kernel + bias
    np.testing.assert_allclose(mean, hidden.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, hidden.var(0), rtol=1e-3)


def test_one_member_is_its_own_soup(ensemble):
    step = ensemble.members[-1]["step"]
    found = ensemble.take([step]).soup(X, Y, verbose=0)
    for got, wanted in zip(
        weights_of(found, step), weights_of(ensemble, step), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


# --- What is refused ---


def numbers(message):
    way = re.search(r"in quarters, is (.*?)\. `distil`", message)[1]
    return [float(number) for number in way.split(", ")]


def test_members_of_restarts_are_refused_with_the_barrier():
    made = trained(data=(X, Y), restarts=3, average=False)[0].ensemble()
    with pytest.raises(
        ValueError, match="restarts=3: each member started anew"
    ) as caught:
        made.soup(X, Y, verbose=0)
    steps = [m["step"] for m in made.members][-2:]
    assert f"of step {steps[0]} to that of step {steps[1]}" in str(caught.value)
    first, second = (weights_of(made, step) for step in steps)
    [copy] = made.take(steps[:1]).member_models()
    expected = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        pairs = zip(first, second, strict=True)
        copy.set_weights([(1 - share) * a + share * b for a, b in pairs])
        expected.append(likelihood(copy, X, Y))
    np.testing.assert_allclose(numbers(str(caught.value)), expected, rtol=1e-3)


def test_separate_networks_are_refused(ensemble):
    pair = [ensemble.select(num=1)] * 2
    with pytest.raises(ValueError, match="networks that were trained sep"):
        parallel_ensemble(pair).soup(X, Y, verbose=0)


def test_an_average_that_is_worse_than_its_members_is_refused():
    """Two networks whose hidden units are the other way round."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(2, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy")
    model.fit(X, Y, epochs=15, verbose=0)
    kernel, bias, head, shift = model.get_weights()
    made = one_cycle(model, [1.0, 1.0])
    made.run._weights = {
        1: [kernel, bias, head, shift],
        2: [kernel[:, ::-1], bias[::-1], head[::-1], shift],
    }
    with pytest.raises(ValueError, match="worse than its worst member") as e:
        made.soup(X, Y, verbose=0)
    way = numbers(str(e.value))
    assert way[0] == way[4] < way[2]


def test_no_data(ensemble):
    with pytest.raises(ValueError, match="no data to score the average on"):
        ensemble.soup()


def test_nothing_is_written_over(ensemble, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is not empty"):
        ensemble.soup(X, Y, directory=tmp_path, verbose=0)
