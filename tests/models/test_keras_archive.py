"""Zip files that claim what is not so."""

import io
import re
import struct
import zipfile

import keras
import pytest
from helpers import dense_model
from hostile_architectures import entries_of, saved, write_zip

from cbnn_keras.models import keras_archive

LIMIT = 2**24


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    """What is in the file of a small model, by name."""
    path = tmp_path_factory.mktemp("archive") / "model.keras"
    return entries_of(saved(dense_model(), path))


def zipped(entries, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    write_zip(file, entries, compression)
    return file


def patched(file, name, offset, code, value):
    """Changes what the directory of a zip file says of an entry."""
    content = bytearray(file.getvalue())
    for match in re.finditer(b"PK\x01\x02", content):
        start = match.start()
        (length,) = struct.unpack_from("<H", content, start + 28)
        if content[start + 46 : start + 46 + length] == name.encode():
            struct.pack_into(code, content, start + offset, value)
            return io.BytesIO(bytes(content))
    raise AssertionError(name)


FLAGS, SIZE, OFFSET = (8, "<H"), (24, "<I"), (42, "<I")


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]
)
def test_read_config(entries, compression):
    entries = {**entries, "assets/_layer/vocabulary.txt": b"red\n" * 10**6}
    found = keras_archive.read_config(zipped(entries, compression), LIMIT)
    assert found == entries["config.json"]


@pytest.mark.parametrize(
    "name",
    [
        "setup.py",
        "model.weights.npz",
        "/config.json",
        "assets/../../outside",
        "assets//a",
        "assets/./a",
        "assets/a\\b",
        "assets/C:a",
        "assets/a\x1b[2J",
        "assets_/a",
        "../assets/a",
    ],
)
def test_entry_that_is_no_part_of_a_model_is_refused(entries, name):
    file = zipped({**entries, name: b""})
    with pytest.raises(ValueError, match="which is no part of a model"):
        keras_archive.read_config(file, LIMIT)


@pytest.mark.parametrize("name", ["config.json", "model.weights.h5"])
def test_entry_that_is_missing_is_named(entries, name):
    file = zipped({k: v for k, v in entries.items() if k != name})
    with pytest.raises(ValueError, match=f"^{name} is not in it"):
        keras_archive.read_config(file, LIMIT)


def test_entry_that_is_there_twice_is_refused(entries):
    file = zipped(entries)
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(file, "a") as archive,
    ):
        archive.writestr("config.json", "{}")
    with pytest.raises(ValueError, match="'config.json' is in it 2 times"):
        keras_archive.read_config(file, LIMIT)


def test_link_is_refused(entries):
    file = zipped(entries)
    with zipfile.ZipFile(file, "a") as archive:
        link = zipfile.ZipInfo("assets/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ValueError, match="'assets/link' in it is a link"):
        keras_archive.read_config(file, LIMIT)


def test_encrypted_entry_is_refused(entries):
    file = patched(zipped(entries), "config.json", *FLAGS, 0x1)
    with pytest.raises(ValueError, match="'config.json' in it is encrypted"):
        keras_archive.read_config(file, LIMIT)


def test_other_packing_is_refused(entries):
    file = zipped(entries, zipfile.ZIP_BZIP2)
    with pytest.raises(ValueError, match="packed in a rare way"):
        keras_archive.read_config(file, LIMIT)


def test_bomb_is_refused(entries):
    bomb = {**entries, "assets/zeros": bytes(LIMIT)}
    file = zipped(bomb, zipfile.ZIP_DEFLATED)
    assert len(file.getvalue()) < LIMIT / 100
    with pytest.raises(ValueError, match=r"above the limit of 16,777,216"):
        keras_archive.read_config(file, LIMIT)


@pytest.mark.parametrize(
    ("compression", "claimed"),
    [
        (zipfile.ZIP_STORED, 10),
        (zipfile.ZIP_STORED, 10**6),
        (zipfile.ZIP_DEFLATED, 10),
        (zipfile.ZIP_DEFLATED, 10**6),
    ],
)
def test_size_that_is_not_so_is_refused(entries, compression, claimed):
    file = zipped(entries, compression)
    file = patched(file, "model.weights.h5", *SIZE, claimed)
    with pytest.raises(ValueError, match="not of the size that it claims"):
        keras_archive.read_config(file, LIMIT)


def test_bomb_that_claims_to_be_small_is_unpacked_no_further(
    entries, monkeypatch
):
    file = zipped({**entries, "assets/a": bytes(2**26)}, zipfile.ZIP_DEFLATED)
    file = patched(file, "assets/a", *SIZE, 10)
    given = []
    unpacker = keras_archive.zlib.decompressobj

    class Counting:
        def __init__(self, *args):
            self._unpacker = unpacker(*args)

        def __getattr__(self, name):
            return getattr(self._unpacker, name)

        def decompress(self, *args):
            given.append(len(piece := self._unpacker.decompress(*args)))
            return piece

    monkeypatch.setattr(keras_archive.zlib, "decompressobj", Counting)
    with pytest.raises(ValueError, match="not of the size that it claims"):
        keras_archive.read_config(file, LIMIT)
    assert max(given) <= 2**20 and sum(given) < 2**21


def test_packed_entry_that_is_cut_off_is_refused(entries):
    file = zipped(entries, zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(file) as archive:
        size = archive.getinfo("model.weights.h5").compress_size
    file = patched(file, "model.weights.h5", 20, "<I", size // 2)
    with pytest.raises(ValueError, match="not of the size that it claims"):
        keras_archive.read_config(file, LIMIT)


def test_entries_that_overlap_are_refused(entries):
    file = zipped(entries)
    with zipfile.ZipFile(file) as archive:
        start = archive.getinfo("model.weights.h5").header_offset
    file = patched(file, "config.json", *OFFSET, start)
    with pytest.raises(ValueError, match="overlaps with others"):
        keras_archive.read_config(file, LIMIT)


def test_text_is_limited_more_than_the_rest(entries):
    text = entries["config.json"].ljust(LIMIT // 64 + 1)
    file = zipped({**entries, "config.json": text})
    with pytest.raises(ValueError, match=r"config.json in it has 262,145 byte"):
        keras_archive.read_config(file, LIMIT)


def test_file_above_the_limit_is_not_opened():
    with pytest.raises(ValueError, match="it has 101 bytes, above the limit"):
        keras_archive.read_config(io.BytesIO(bytes(101)), 100)


def test_weights_that_are_no_hdf5_are_refused(entries):
    file = zipped({**entries, "model.weights.h5": b"PK\x03\x04" * 10})
    with pytest.raises(ValueError, match="h5 in it cannot be read .*signature"):
        keras_archive.read_config(file, LIMIT)


def test_files_of_keras_are_read(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.save(tmp_path / "model.keras")
    with open(tmp_path / "model.keras", "rb") as file:
        assert b"Sequential" in keras_archive.read_config(file, LIMIT)
