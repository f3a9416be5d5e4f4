"""Arrays of which each device has a range of its own."""

import h5py
import numpy as np
import pytest
import tensorflow as tf

from cbnn_keras import weighted
from cbnn_keras.data import order, pipelines
from cbnn_keras.data.sharded import ShardedArrays
from cbnn_keras.data.sharding import Part

X = np.arange(38, dtype="f4").reshape(19, 2)
Y = np.arange(19) % 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "_BLOCK", 12)  # two batches at once


def batches_of(part, num_samples=19, batch_size=6, shuffle=True, key=(3, 1)):
    found = order.shard_batches(
        num_samples, shuffle, tf.constant(key, tf.int64), part, batch_size
    )
    return [(i.tolist(), s.tolist()) for i, s in found.as_numpy_iterator()]


@pytest.mark.parametrize("num_samples", [18, 19, 20, 23, 6])
@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_has_each_sample_once_and_as_many_of_each_device(
    num_samples, num_devices, shuffle
):
    several = [
        batches_of(Part(i, num_devices, num_devices), num_samples, 6, shuffle)
        for i in range(num_devices)
    ]
    whole = batches_of(Part(0, 1, num_devices), num_samples, 6, shuffle)
    seen = []
    for number, batch in enumerate(zip(*several, strict=True)):
        size = min(6, num_samples - 6 * number)
        piece = -(-size // num_devices)
        for device, (index, share) in enumerate(batch):
            start = num_samples * device // num_devices
            stop = num_samples * (device + 1) // num_devices
            assert all(start <= i < stop for i in index)
            assert len(index) == len(share) == piece
        index, share = (sum(parts, []) for parts in zip(*batch, strict=True))
        # Those that are there, together as many as Keras divides by.
        assert sum(s > 0 for s in share) == size
        assert sum(share) == pytest.approx(piece * num_devices)
        seen += [i for i, s in zip(index, share, strict=True) if s]
        # One process that has all devices makes the same batch.
        assert whole[number] == (index, share)
    assert sorted(seen) == list(range(num_samples))
    assert len(whole) == -(-num_samples // 6)


@pytest.mark.large
def test_every_device_and_pass_has_an_order_of_its_own():
    part = Part(0, 1, 2)
    orders = [
        [
            sum(
                (b[0][k : k + 6] for b in batches_of(part, 96, 12, key=key)), []
            )
            for k in (0, 6)
        ]
        for key in ((3, 1), (3, 2), (4, 1))
    ]
    assert len({tuple(first) for first, _ in orders}) == 3
    for first, second in orders:
        assert [i - 48 for i in second] != first
        assert first != sorted(first)


def test_one_device_has_the_order_of_very_many_undivided(monkeypatch):
    monkeypatch.setattr(order, "LARGE", 4)
    index = sum((batch[0] for batch in batches_of(Part(0, 1, 1))), [])
    blocks = order.blocks_of_pass(19, True, tf.constant([3, 1], tf.int64))
    assert index == np.concatenate(list(blocks.as_numpy_iterator())).tolist()


@pytest.fixture
def second_of_two(monkeypatch):
    """This process is the second one; it has samples 9 to 18."""
    monkeypatch.setattr(pipelines, "own_part", lambda: Part(1, 2, 4))


def test_batches_have_the_weights_of_their_samples(second_of_two):
    weight = np.arange(1.0, 20)
    data = weighted(
        X, Y, batch_size=8, seed=0, sample_weight=weight, sharded=True
    )
    assert len(data) == 3
    *full, last = data.as_numpy_iterator()
    seen = []
    for x, y, found in full:
        index = (x[:, 0] / 2).astype(int)
        assert len(index) == 4 and np.array_equal(y, Y[index])
        expected = 19 * weight[index] / weight.sum()
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        seen += index.tolist()
    # 3 of 19 are left, of which two are here: 9 to 13 has three in batches of
    # two, and 14 to 18 too. Filled up to four, they count 4/3.
    index = (last[0][:, 0] / 2).astype(int)
    expected = 19 * weight[index] / weight.sum() * 4 / 3
    is_there = last[2] > 0
    np.testing.assert_allclose(
        last[2], np.where(is_there, expected, 0), rtol=1e-6
    )
    assert sorted(seen + index[is_there].tolist()) == list(range(9, 19))


@pytest.mark.large
def test_augmentation_has_seeds_of_the_index(second_of_two):
    def augment(x, seed):
        return x + tf.cast(tf.random.stateless_uniform([2], seed), tf.float32)

    options = {"batch_size": 8, "seed": 0, "sharded": True}
    plain = weighted(X, Y, **options)
    data = weighted(X, Y, augment=augment, **options)
    for (x, y, w), (moved, same_y, same_w) in zip(
        plain.as_numpy_iterator(), data.as_numpy_iterator(), strict=True
    ):
        assert np.array_equal(y, same_y) and np.array_equal(w, same_w)
        for row, other in zip(x, moved, strict=True):
            seed = tf.random.experimental.stateless_fold_in(
                tf.constant([0, 0], tf.int64),
                tf.constant(int(row[0]) // 2, tf.int64),
            )
            np.testing.assert_array_equal(other, augment(row, seed))


def test_what_is_scored_is_its_own_device_by_device():
    samples = ShardedArrays(X, Y, Part(1, 2, 4))
    assert (samples.own.start, samples.own.stop) == (9, 19)
    assert samples.labels().tolist() == Y[9:].tolist()
    found = [x[:, 0].numpy() / 2 for x in samples.inputs(3)]
    assert [b.tolist() for b in found] == [
        [9, 10, 11],
        [12, 13],
        [14, 15, 16],
        [17, 18],
    ]
    assert samples.num_batches(3) == 4
    parts = [
        [x[:, 0].numpy() / 2 for x in part]
        for part in samples.shuffled_parts(2, True, 100)
    ]
    found = [sorted(np.concatenate(part).tolist()) for part in parts]
    assert found == [list(range(9, 14)), list(range(14, 19))]
    few = samples.shuffled_parts(2, True, 5)  # two of each of four
    assert [len(list(part)) for part in few] == [2, 2]


def test_arrays_in_files_are_read_where_they_are_its_own(tmp_path):
    """Read once: of another process's samples there is nothing to be read."""
    read = []

    class Noting(h5py.Dataset):
        def __getitem__(self, part):
            read.append(part)
            return super().__getitem__(part)

        def __array__(self, *args, **options):
            raise AssertionError("all of it is read")

    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = X, Y
        x, y = Noting(file["x"].id), Noting(file["y"].id)
        samples = ShardedArrays({"a": x}, y, Part(0, 3, 3))
        assert read == [slice(0, 6), slice(0, 6)]
        (batch,) = samples.inputs(6)
        np.testing.assert_array_equal(batch["a"], X[:6])


def test_names_of_classes_have_the_numbers_of_all():
    names = np.array(["c", "a", "b"])[Y]
    samples = ShardedArrays(X, names, Part(0, 9, 9))
    assert samples.class_names == ["a", "b", "c"]
    assert samples.labels().tolist() == [2, 0]


def test_what_does_not_go_is_said(second_of_two):
    with pytest.raises(ValueError, match="batch_size=6.*a multiple of 4"):
        weighted(X, Y, batch_size=6, sharded=True)
    with pytest.raises(ValueError, match="samples of its own. Split them your"):
        weighted(X, Y, batch_size=8, validation_split=0.2, sharded=True)
    with pytest.raises(ValueError, match=r"first axes of \[18\] for x and 19"):
        weighted(X[:18], Y, batch_size=8, sharded=True)
    with pytest.raises(ValueError, match="each of 4 devices.*are 3 in all"):
        weighted(X[:3], Y[:3], batch_size=8, sharded=True)
    with pytest.raises(ValueError, match="x and y are empty"):
        weighted(X[:0], Y[:0], batch_size=8, sharded=True)


def test_there_has_to_be_something_to_divide_among():
    with pytest.raises(ValueError, match=r"none is set. Call.*launch\.join"):
        weighted(X, Y, batch_size=8, sharded=True)
    with pytest.raises(ValueError, match="'yes'.*True, False or None"):
        weighted(X, Y, batch_size=8, sharded="yes")
    weighted(X, Y, batch_size=8, sharded=False)


@pytest.mark.parametrize(
    ("sharded", "is_large", "has_own", "noted"),
    [
        (None, False, False, None),
        (True, False, True, True),
        (False, False, False, None),
        (None, True, True, None),
        (True, True, True, None),
        (False, True, False, False),
    ],
)
def test_a_run_notes_what_is_not_by_default(
    sharded, is_large, has_own, noted, second_of_two, monkeypatch
):
    """So that one of an earlier version is resumed as it was begun."""
    monkeypatch.setattr(order, "LARGE", 4 if is_large else 100)
    _, weights = pipelines.weighted_pipeline(
        X, Y, batch_size=8, sharded=sharded
    )
    assert (weights.own is not None) == has_own
    assert weights.sharded is noted
    # Of its own, a number for each pattern; or of all samples.
    assert weights.variable.shape == (10 if has_own else 19,)
