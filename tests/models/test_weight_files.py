"""HDF5 files are judged before anything in them is read."""

import io
import re

import h5py
import keras
import numpy as np
import pytest
from helpers import dense_model, text_model

from cbnn_keras import RunError
from cbnn_keras.models import copying, weight_files
from cbnn_keras.models.weight_files import check_hdf5

layers = keras.layers


def many_kinds():
    """A model with a part in it, generators, statistics and shared layers."""
    part = dense_model(4)
    inputs = keras.Input((4,))
    x = layers.Dropout(0.5)(part(inputs))
    x = layers.BatchNormalization()(x)
    x = layers.GaussianNoise(0.1)(layers.Dense(4, use_bias=False)(x))
    return keras.Model(inputs, layers.Normalization()(part(x)))


def in_bfloat16():
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, dtype="bfloat16")]
    )


@pytest.mark.parametrize(
    "make", [dense_model, text_model, many_kinds, in_bfloat16]
)
def test_files_of_keras_pass(tmp_path, make):
    model = make()
    path = tmp_path / "a.weights.h5"
    model.save_weights(path)  # also of the optimizer
    check_hdf5(path, max_bytes=path.stat().st_size)
    copying.save_weights(model, path)
    check_hdf5(path)
    check_hdf5(io.BytesIO(path.read_bytes()))
    with open(path, "rb") as file:
        check_hdf5(file)
        assert file.tell() == 0  # to be read by the next


def test_a_limit_is_named(tmp_path):
    path = tmp_path / "a.weights.h5"
    copying.save_weights(dense_model(), path)
    declared = 4 * dense_model().count_params()
    check_hdf5(path, max_bytes=declared)
    message = (
        f"^{re.escape(str(path))} declares arrays of {declared} bytes, more "
        f"than max_bytes={declared - 1}. Give a larger `max_bytes=`"
    )
    with pytest.raises(RunError, match=message):
        check_hdf5(path, max_bytes=declared - 1)


def soft_link(file):
    file["link"] = h5py.SoftLink("/vars")


def external_link(file):
    file["link"] = h5py.ExternalLink("/etc/passwd", "/")


def dangling_link(file):
    file["link"] = h5py.SoftLink("/nowhere")


def second_name(file):
    file["again"] = file["vars"]


def cycle(file):
    file["vars/up"] = file["/"]


def external_array(file):
    file.create_dataset(
        "out", (8,), "u1", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]
    )


def virtual_array(file):
    layout = h5py.VirtualLayout(shape=(8,), dtype="u1")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "a", shape=(8,))
    file.create_virtual_dataset("virtual", layout)


def chunks(file):
    file.create_dataset("chunks", (10**12,), "f4", chunks=(1000,))


def compressed(file):
    file.create_dataset("small", data=np.zeros(10**5), compression="gzip")


def never_written(file):
    file.create_dataset("hole", (10**12,), "f4")


def texts(file):
    file["text"] = "hello"


def records(file):
    file["records"] = np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])


def references(file):
    file["reference"] = np.array([file["vars"].ref], dtype=h5py.ref_dtype)


def type_alone(file):
    file["type"] = np.dtype("f4")


def nothing(file):
    file["empty"] = h5py.Empty("f4")


def deep(file):
    for _ in range(weight_files._DEEPEST + 2):
        file = file.create_group("g")


def large_attribute(file):
    file["vars"].attrs["a"] = np.zeros(8193)


def many_attributes(file):
    for number in range(17):
        file.attrs[f"a{number}"] = 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (soft_link, "/link is a link"),
        (external_link, "/link is a link"),
        (dangling_link, "/link is a link"),
        (second_name, "/vars has another name too"),
        (cycle, "/vars/up has another name too"),
        (external_array, "/out is stored in chunks, compressed or elsewhere"),
        (virtual_array, "/virtual is stored in chunks, compressed or elsewh"),
        (chunks, "/chunks is stored in chunks"),
        (compressed, "/small is stored in chunks, compressed"),
        (never_written, "/hole declares 4,000,000,000,000 bytes that are not"),
        (texts, "/text holds object, not numbers"),
        (records, "/records holds .*, not numbers"),
        (references, "/reference holds object, not numbers"),
        (type_alone, "/type is no array"),
        (nothing, "/empty is no array"),
        (deep, "groups are nested more than 200 deep"),
        (large_attribute, "/vars has an attribute that is no short text"),
        (many_attributes, "/ has 17 attributes"),
    ],
)
def test_what_keras_does_not_write_is_refused(tmp_path, spoil, reason):
    path = tmp_path / "a.weights.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["vars/0"] = np.zeros(3)
        spoil(file)
    message = rf"^{re.escape(str(path))} cannot be read \({reason}"
    with pytest.raises(RunError, match=message):
        check_hdf5(path)


def test_many_objects_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.weights.h5"
    copying.save_weights(dense_model(), path)
    monkeypatch.setattr(weight_files, "_MOST_OBJECTS", 5)
    with pytest.raises(RunError, match="there are more than 5 objects"):
        check_hdf5(path)


def test_arrays_that_overlap_are_refused(tmp_path):
    """Two that are stored in the same place take twice the room."""
    path = tmp_path / "a.weights.h5"
    with h5py.File(path, "w") as file:
        for name in "abcd":
            file[name] = np.full(10_000, ord(name), dtype="f8")
        places = [file[name].id.get_offset() for name in "abcd"]
    content = path.read_bytes()
    # All four are where the first is, and the others are cut off.
    for place in places[1:]:
        old, new = (p.to_bytes(8, "little") for p in (place, places[0]))
        assert content.count(old) == 1
        content = content.replace(old, new)
    end = len(content).to_bytes(8, "little")
    size = places[0] + 80_000 + 4096
    content = content[:size].replace(end, size.to_bytes(8, "little"))
    path.write_bytes(content)
    with pytest.raises(
        RunError, match="declares arrays of more than .*, its s"
    ):
        check_hdf5(path)


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n", b"x" * 5000])
def test_what_is_no_hdf5_file_is_named(tmp_path, content):
    path = tmp_path / "a.weights.h5"
    path.write_bytes(content)
    with pytest.raises(RunError, match=f"^{re.escape(str(path))} cannot be re"):
        check_hdf5(path)
    with pytest.raises(RunError, match="^mine.h5 cannot be read"):
        check_hdf5(io.BytesIO(content), name="mine.h5")


def test_links_to_files_are_refused(tmp_path):
    copying.save_weights(dense_model(), tmp_path / "a.weights.h5")
    (tmp_path / "b.weights.h5").symlink_to("a.weights.h5")
    with pytest.raises(RunError, match="b.weights.h5 is a link"):
        check_hdf5(tmp_path / "b.weights.h5")
