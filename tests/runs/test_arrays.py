"""Arrays in files are judged before room is made for them."""

import io
import zipfile

import numpy as np
import pytest

from cbnn_keras import RunError
from cbnn_keras.runs import arrays
from cbnn_keras.support.faults import faults_named

BITS = np.arange(5, dtype=np.uint8)


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def with_header(text, data=b"", version=(1, 0)):
    """An `.npy` file that says of itself what it likes."""
    content = text.encode().ljust(118 - 1) + b"\n"
    length = len(content).to_bytes(2, "little")
    return b"\x93NUMPY" + bytes(version) + length + content + data


def header(shape="(5,)", descr="'|u1'", fortran_order="False"):
    return (
        f"{{'descr': {descr}, 'fortran_order': {fortran_order}, "
        f"'shape': {shape}, }}"
    )


def test_what_was_written_is_read():
    content = bytes(arrays.npy_bytes(BITS))
    assert content == npy(BITS)
    found = arrays.read_npy(io.BytesIO(content), (5,), np.uint8)
    np.testing.assert_array_equal(found, BITS)
    assert found.dtype == np.uint8 and found.flags.writeable


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "EOF|magic"),
        (b"PK\x03\x04" * 50, "magic"),
        (npy(BITS)[:100], "EOF"),
        (npy(BITS)[:-1], r"shape \(5,\) and type uint8 does not take 4 by"),
        (npy(BITS) + b"!", r"shape \(5,\) and type uint8 does not take 6 by"),
        (npy(BITS[:4]), r"shape \(4,\) and type uint8, where \(5,\) and"),
        (npy(BITS.astype("i1")), "type int8, where"),
        (npy(BITS.reshape(5, 1)), r"shape \(5, 1\) and type uint8, where"),
        (npy(np.array([{}]), allow_pickle=True), "Object arrays cannot be"),
        (with_header(header("(10**18,)")), "malformed|parse|valid"),
        (
            with_header(header(f"({10**18},)"), b"12345"),
            "shape .* does not take 5 bytes",
        ),
        (with_header(header("(-5, -1)"), b"12345"), r"shape \(-5, -1\)"),
        (with_header(header(), b"12345", (3, 0)), r"version is \(3, 0\)"),
        (with_header("[" * 110), "EOF|closed|parse"),
        (with_header("{'descr': '|u1'}"), "keys"),
        (
            b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
            "EOF: reading array header, expected",
        ),
    ],
)
def test_what_is_not_such_an_array_is_refused(content, reason):
    with pytest.raises(RunError, match=reason), faults_named("a.npy"):
        arrays.read_npy(io.BytesIO(content), (5,), np.uint8)


def npz(**entries):
    """Entries in any form, as bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer


def test_several_arrays_are_read():
    buffer = io.BytesIO()
    expected = {"model/0": np.eye(3)[:, ::-1], "notes/a": np.array(0.5)}
    expected["fortran"] = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez(buffer, **expected)
    found = arrays.read_npz(buffer)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_compressed_arrays_are_refused():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.random.default_rng(0).random(9))
    with pytest.raises(ValueError, match="'a' is compressed or encrypted"):
        arrays.read_npz(buffer)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(10**6))  # a bomb
    with pytest.raises(ValueError, match="do not fit into .* bytes"):
        arrays.read_npz(buffer)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"a.txt": b"hello"}, "'a.txt' is no array, or twice"),
        ({"a.npy": b"hello"}, "magic|EOF"),
        ({"a.npy": npy(BITS)[:-1]}, r"shape \(5,\) and type uint8 does not"),
        (
            {"a.npy": npy(np.array([{}]), allow_pickle=True)},
            "Object arrays cannot be loaded safely",
        ),
        (
            {"a.npy": with_header(header(f"({10**15},)"), b"1")},
            "shape .* does not take 1 bytes",
        ),
    ],
)
def test_entries_that_are_no_arrays_are_refused(entries, reason):
    with pytest.raises(ValueError, match=reason):
        arrays.read_npz(npz(**entries))


def test_a_name_that_is_there_twice_is_refused():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", npy(BITS))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", npy(BITS))
    with pytest.raises(ValueError, match="'a.npy' is no array, or twice"):
        arrays.read_npz(buffer)


def test_a_size_that_is_a_lie_is_refused():
    """The directory of an archive says what it likes about its entries."""
    content = npz(**{"a.npy": npy(BITS)}).getvalue()
    honest = (133).to_bytes(4, "little")
    lie = (2**31).to_bytes(4, "little")
    assert content.count(honest) >= 2
    with pytest.raises(ValueError, match="do not fit into .* bytes"):
        arrays.read_npz(io.BytesIO(content.replace(honest, lie)))
