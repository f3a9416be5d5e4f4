"""Datasets that are the part of one process, with threads for processes."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from threads import in_threads

from cbnn_keras.data import pipelines
from cbnn_keras.data.dataset_samples import DatasetSamples
from cbnn_keras.data.sharded import ShardedDataset
from cbnn_keras.data.sharding import Part
from cbnn_keras.models import engine


def parts(*sizes):
    """Datasets one behind the other: sample i has x = [i, -i], y = i % 3."""
    index = np.arange(sum(sizes))
    x = np.stack([index, -index], axis=1).astype("f4")
    whole = tf.data.Dataset.from_tensor_slices((x, index % 3))
    ends = np.cumsum(sizes)
    return [
        whole.skip(stop - n).take(n)
        for stop, n in zip(ends, sizes, strict=True)
    ]


def samples_of(datasets, num_devices=None):
    """What each process makes of its own."""
    num = len(datasets)

    def work(processes):
        part = Part(processes.index, num, num_devices or num)
        held = DatasetSamples(datasets[part.index])
        return ShardedDataset(held, part, processes)

    return in_threads(num, work)


def one_pass(samples, batch_size=6, shuffle=True, augment=None, key=(3, 1)):
    batches = samples.training_batches(
        lambda: tf.constant(key, tf.int64),
        batch_size=batch_size,
        shuffle=shuffle,
        augment=augment,
    )
    return list(batches.as_numpy_iterator())


@pytest.mark.parametrize(
    ("sizes", "batch_size", "num_devices", "shuffle"),
    [
        ((10, 9), 6, 2, True),  # as `shard` makes them
        ((9, 9), 6, 2, 3),
        ((8, 9), 6, 2, True),  # in the last batch one has two, one has three
        ((9, 10), 8, 4, 3),
        ((4, 5), 8, 4, True),  # one left for four devices
        ((4, 5, 4), 6, 3, True),  # and for three processes
        ((13,), 6, 2, 3),
        ((2, 2), 8, 4, False),
    ],
    ids=str,
)
def test_a_pass_has_each_sample_once_and_as_many_of_each_process(
    sizes, batch_size, num_devices, shuffle
):
    num = sum(sizes)
    several = [
        one_pass(samples, batch_size, shuffle)
        for samples in samples_of(parts(*sizes), num_devices)
    ]
    seen = []
    for number, pieces in enumerate(zip(*several, strict=True)):
        size = min(batch_size, num - batch_size * number)
        filled = -(-size // num_devices) * num_devices
        for (index, share), x, y in pieces:
            assert len(share) == filled // len(sizes)
            np.testing.assert_array_equal(x[:, 0], index)
            np.testing.assert_array_equal(y, index % 3)
        index = np.concatenate([piece[0][0] for piece in pieces])
        share = np.concatenate([piece[0][1] for piece in pieces])
        # Those that are there, together as many as Keras divides by.
        assert np.count_nonzero(share) == size
        np.testing.assert_allclose(share[share > 0], filled / size, rtol=1e-6)
        seen += index[share > 0].tolist()
    assert sorted(seen) == list(range(num))
    assert number + 1 == -(-num // batch_size)


def test_every_process_and_pass_has_an_order_of_its_own():
    first, second = samples_of(parts(24, 24))

    def order_of(samples, **options):
        batches = one_pass(samples, 12, **options)
        return np.concatenate([i for (i, _), _, _ in batches]).tolist()

    orders = [
        [i % 24 for i in order_of(samples, key=key)]
        for samples in (first, second)
        for key in ((3, 1), (3, 2), (4, 1))
    ]
    assert len(set(map(tuple, orders))) == 6
    assert order_of(second, shuffle=False) == list(range(24, 48))
    assert order_of(second) == order_of(second)


def test_augmentation_has_seeds_of_the_index_among_all():
    def augment(x, seed):
        return x + tf.cast(tf.random.stateless_uniform([2], seed), tf.float32)

    _, second = samples_of(parts(5, 5))
    plain = one_pass(second)
    for ((index, _), x, _), (same, moved, _) in zip(
        plain, one_pass(second, augment=augment), strict=True
    ):
        assert np.array_equal(same[0], index)
        for i, row, other in zip(index, x, moved, strict=True):
            seed = tf.random.experimental.stateless_fold_in(
                tf.constant([3, 1], tf.int64), tf.constant(i, tf.int64)
            )
            np.testing.assert_array_equal(other, augment(row, seed))


def test_its_own_are_scored_in_their_order():
    _, second, _ = samples_of(parts(5, 5, 5))
    assert (second.num_samples, second.num_given) == (15, 5)
    assert (second.own.start, second.own.stop) == (5, 10)
    assert second.labels().tolist() == [2, 0, 1, 2, 0]
    found = [x[:, 0].numpy().tolist() for x in second.inputs(3)]
    assert found == [[5, 6, 7], [8, 9]] and second.num_batches(3) == 2
    # Together two batches, so one of each of three processes.
    [part] = second.shuffled_parts(2, True, 2)
    [x] = part
    assert {5, 6, 7, 8, 9} > set(x[:, 0].numpy())


def test_one_that_shuffles_inside_is_refused():
    index = tf.data.Dataset.range(300)
    # Not among the first ones, at which is looked before.
    still, moving = index.take(260), index.skip(260).shuffle(40)
    dataset = still.concatenate(moving).map(lambda i: (i, i % 3))
    [samples] = samples_of([dataset])
    samples.labels()
    with pytest.raises(ValueError, match="same position gave another sample"):
        list(samples.inputs(20))


def test_parts_have_to_go_together():
    for found in samples_of(parts(5, 7, 6)):
        assert isinstance(found, ValueError)
        text = str(found)
        assert "processes 0 to 2 have 5, 7, 6 samples" in text
        assert "`dataset.take(5)`" in text
        assert "`dataset.shard(3, jax.process_index())`" in text
    whole = parts(6)[0]
    for found in samples_of([whole, whole]):
        assert "processes 0 and 1 begin with the same samples" in str(found)
    for found in samples_of(parts(1, 1), 4):
        assert "each of 4 devices has samples of its own" in str(found)


@pytest.fixture
def in_processes(monkeypatch):
    """Calls a function of the process's number in threads for processes."""
    local = threading.local()
    monkeypatch.setattr(engine.in_use(), "processes", lambda: local.found)

    def own_part():
        return Part(local.found.index, local.found.count, local.found.count)

    monkeypatch.setattr(pipelines, "own_part", own_part)

    def call(count, work):
        def run(processes):
            local.found = processes
            return work(processes.index)

        return in_threads(count, run)

    return call


def test_weights_to_start_from_are_of_its_own(in_processes):
    """And so is what `num_samples` says; weights are shares of all."""
    datasets = parts(5, 4)
    weight = np.arange(1.0, 10)

    def work(number):
        own = slice(5) if number == 0 else slice(5, None)
        return pipelines.weighted_pipeline(
            datasets[number],
            batch_size=4,
            sample_weight=weight[own],
            class_weight={2: 3.0},
            num_samples=(5, 4)[number],
            shuffle=False,
            sharded=True,
        )

    found = in_processes(2, work)
    expected = weight * np.where(np.arange(9) % 3 == 2, 3, 1)
    expected *= 9 / expected.sum()
    for (data, weights), own in zip(
        found, (slice(5), slice(5, None)), strict=True
    ):
        assert weights.sharded is True and weights.num_samples == 9
        np.testing.assert_allclose(
            9 * weights.first_distribution, expected, rtol=1e-6
        )
        np.testing.assert_allclose(weights.variable, expected[own], rtol=1e-6)
        *full, last = data.as_numpy_iterator()
        assert len(full) == 2
        got = np.concatenate([batch[2] for batch in full])
        np.testing.assert_allclose(got, expected[own][:4], rtol=1e-6)
        # One sample is left, in the first process, and counts twice.
        rest = 2 * expected[4] if own.start is None else 0
        np.testing.assert_allclose(last[2], [rest], rtol=1e-6)


def test_names_of_classes_are_those_of_all(in_processes):
    def work(number):
        names = (["b", "a"], ["c", "b"])[number]
        x = np.arange(2.0) + number
        dataset = tf.data.Dataset.from_tensor_slices((x, names))
        _, weights = pipelines.weighted_pipeline(
            dataset, batch_size=2, sharded=True
        )
        return weights.class_names, weights.samples.labels().tolist()

    assert in_processes(2, work) == [
        (["a", "b", "c"], [1, 0]),
        (["a", "b", "c"], [2, 1]),
    ]


def test_what_shuffles_its_part_is_shuffled_by_the_longest(in_processes):
    """The setting is one for all: `dataset.shuffle(its own length)`."""

    def work(number):
        dataset = parts(20, 19)[number].shuffle(20 - number)
        _, weights = pipelines.weighted_pipeline(
            dataset, batch_size=2, sharded=True
        )
        return weights.shuffle

    assert in_processes(2, work) == [20, 20]


def test_directories_have_to_have_the_same_classes(in_processes):
    def work(number):
        dataset = parts(4, 4)[number]
        dataset.class_names = ["a", "bc"[number]]
        pipelines.weighted_pipeline(dataset, batch_size=2, sharded=True)

    for found in in_processes(2, work):
        assert "Process 1 of 2 differs from process 0 in the names of" in str(
            found
        )


def test_an_error_of_one_is_raised_by_all(in_processes):
    def work(number):
        dataset = parts(4, 4)[number].take(4 - 4 * number)
        pipelines.weighted_pipeline(dataset, batch_size=2, sharded=True)

    first, second = in_processes(2, work)
    assert "Process 1 has failed: weighted(dataset): the dataset is" in str(
        first
    )
    assert str(second).startswith("weighted(dataset): the dataset is empty")


def with_weights(*given):
    """Each process with the `sample_weight` that it is given."""

    def work(number):
        pipelines.weighted_pipeline(
            parts(5, 4)[number],
            batch_size=2,
            sample_weight=given[number],
            sharded=True,
        )

    return work


def test_weights_of_another_length_in_one_are_refused_by_all(in_processes):
    first, second = in_processes(2, with_weights(np.ones(4), np.ones(4)))
    text = "weighted(sample_weight=...) has shape (4,), but there are 5 samples"
    assert str(first).startswith(text)
    assert f"Process 0 has failed: {text}" in str(second)


def test_weights_in_one_alone_are_refused_by_all(in_processes):
    for found in in_processes(2, with_weights(np.ones(5), None)):
        assert "differs from process 0 in whether it has a sample" in str(found)


def test_all_have_to_say_the_same(in_processes):
    def work(number):
        dataset = parts(4, 4)[number]
        pipelines.weighted_pipeline(
            dataset, batch_size=2, sharded=bool(number) or None
        )

    for found in in_processes(2, work):
        assert "differs from process 0 in weighted(sharded=...)" in str(found)


def test_arrays_are_no_parts(in_processes):
    """They are given whole, as far as their length tells."""

    def work(number):
        x = np.zeros((4 + number, 2), "f4")
        pipelines.weighted_pipeline(
            x, np.arange(len(x)), batch_size=2, sharded=True
        )

    for found in in_processes(2, work):
        assert "differs from process 0 in the number of samples" in str(found)
        assert "whole in each of them; samples of its own are" in str(found)


def test_a_pydataset_is_a_part_too(in_processes):
    class Batches(keras.utils.PyDataset):
        def __init__(self, number):
            super().__init__()
            self._first = 10.0 * number

        def __len__(self):
            return 2

        def __getitem__(self, number):
            x = self._first + 2 * number + np.arange(2.0)
            return x[:, None], np.arange(2)

    def work(number):
        data, weights = pipelines.weighted_pipeline(
            Batches(number), shuffle=False, sharded=True
        )
        x = np.concatenate([x for x, *_ in data.as_numpy_iterator()])
        return weights.own, x.ravel().tolist()

    assert in_processes(2, work) == [
        (slice(0, 4), [0, 1, 2, 3]),
        (slice(4, 8), [10, 11, 12, 13]),
    ]
