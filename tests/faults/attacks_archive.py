"""`.keras` files that are not the archives that they should be."""

import io
import json
import warnings
import zipfile
import zlib

import h5py
import numpy as np
from arena import (
    HARMLESS,
    Case,
    Place,
    archive_of,
    entries_of,
    put_file,
    put_model,
)
from attacks_arrays import bomb, lying_zip

MODEL = "model.keras"


def _entries(change):
    """Changes the entries of the archive."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        change(entries, place)
        put_model(place, entries)

    return make


def _bytes(change):
    def make(place: Place) -> None:
        put_file(place, MODEL, change((place.run / MODEL).read_bytes()))

    return make


def _added(name: str, data: bytes = b"x"):
    return _entries(lambda entries, _: entries.update({name: data}))


def _escaping(name: str):
    """An entry that an unpacking archive would put outside."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        entries[name.format(outside=place.outside)] = b"x"
        put_model(place, entries)

    return make


def _duplicate(name: str, data: bytes):
    def make(place: Place) -> None:
        path = place.run / MODEL
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr(name, data)
        put_file(place, MODEL, path.read_bytes())

    return make


def _link_entry(place: Place) -> None:
    """An entry that unpacks to a symbolic link."""
    entries = entries_of(place.run / MODEL)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
        link = zipfile.ZipInfo("assets/layers/dense")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, str(place.outside))
    put_file(place, MODEL, buffer.getvalue())


def _bomb_as(name: str, claimed: int):
    """An entry of 1 GB that takes 1 MB."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        entries.pop(name, None)
        packed = [
            (n, 0, data, len(data), _crc(data), 0)
            for n, data in entries.items()
        ]
        packed.append((name, 8, bomb(2**30), claimed, 0, 0))
        put_file(place, MODEL, lying_zip(packed))

    return make


def _crc(data: bytes) -> int:
    return zlib.crc32(data)


def _encrypted(place: Place) -> None:
    entries = entries_of(place.run / MODEL)
    packed = [(n, 0, d, len(d), _crc(d), 1) for n, d in entries.items()]
    put_file(place, MODEL, lying_zip(packed))


def _overlapping(place: Place) -> None:
    """A thousand names for the same megabyte of packed zeros."""
    data = lying_zip([("config.json", 8, bomb(2**26), 2**26, 0, 0)])
    start = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    entry = data[start:end]
    names = [f"e{n:09d}".encode() for n in range(1000)]
    directory = b"".join(entry[:-11] + name[:11].ljust(11) for name in names)
    tail = bytearray(data[end:])
    tail[8:12] = (1000).to_bytes(2, "little") * 2
    tail[12:16] = len(directory).to_bytes(4, "little")
    put_file(place, MODEL, data[:start] + directory + bytes(tail))


def _many_entries(place: Place) -> None:
    entries = entries_of(place.run / MODEL)
    entries.update({f"assets/{n}": b"" for n in range(20_000)})
    put_model(place, entries)


def _weights(change):
    """Changes the weights within the archive, which Keras reads too."""

    def make(place: Place) -> None:
        entries = entries_of(place.run / MODEL)
        buffer = io.BytesIO(entries["model.weights.h5"])
        with h5py.File(buffer, "r+") as file:
            change(file, place)
        put_model(place, {**entries, "model.weights.h5": buffer.getvalue()})

    return make


def _external(file: h5py.File, place: Place) -> None:
    name = "layers/dense/vars/0"
    del file[name]
    target = place.outside / "secret.txt"
    file.create_dataset(
        name, (4, 8), "float32", external=[(str(target), 0, 128)]
    )


def _huge(file: h5py.File, _) -> None:
    name = "layers/dense/vars/0"
    del file[name]
    file.create_dataset(name, (2**20, 2**20), "float32", chunks=(1024, 1024))


def cases() -> list[Case]:
    kind = "archive"
    refused = {
        "1 GB as config.json": _bomb_as("config.json", 2**30),
        "1 GB as the weights": _bomb_as("model.weights.h5", 2**30),
        "1 GB that claim 99 bytes": _bomb_as("config.json", 99),
        "1 GB as an asset": _bomb_as("assets/x", 2**30),
        "encrypted": _encrypted,
        "overlapping": _overlapping,
        "no config": _entries(lambda e, _: e.pop("config.json")),
        "no entries": _entries(lambda e, _: e.clear()),
        "config of a list": _added("config.json", b"[]"),
        "config of null": _added("config.json", b"null"),
        "config of bytes": _added("config.json", b"\xff\xfe"),
        "config of NaN": _added("config.json", b"NaN"),
        "weights of text": _added("model.weights.h5", b"text"),
        "weights with external storage": _weights(_external),
        "weights of 4 TB": _weights(_huge),
        "an archive in it": _entries(
            lambda e, _: e.update({"config.json": archive_of(e)})
        ),
        "empty": _bytes(lambda _: b""),
        "text": _bytes(lambda _: b"not a zip"),
        "cut": _bytes(lambda data: data[: len(data) // 2]),
        "end cut": _bytes(lambda data: data[:-10]),
        "tar": _bytes(lambda _: b"\0" * 10240),
        "HDF5, the legacy format": _bytes(lambda _: _legacy()),
        "pickle": _bytes(lambda _: b"\x80\4."),
        "two configs": _duplicate("config.json", b"{}"),
        "two weights": _duplicate("model.weights.h5", b"x"),
        "link": _link_entry,
    }
    harmless = {
        # Nobody reads them.
        "metadata of a list": _added("metadata.json", b"[]"),
        "no metadata": _entries(lambda e, _: e.pop("metadata.json")),
        "no weights": _entries(lambda e, _: e.pop("model.weights.h5")),
        "weights as npz": _entries(
            lambda e, _: e.update({"model.weights.npz": b"PK"})
        ),
        "a prefix": _bytes(lambda data: b"#!/bin/sh\n" + data),
        "20,000 entries": _many_entries,
        "an unknown entry": _added("unknown", b"x"),
        "a weight map": _added("model.weights.json", b'{"weight_map": {}}'),
    }
    names = [
        *("../../outside/EXECUTED", "{outside}/EXECUTED", "..\\..\\EXECUTED"),
        *("assets/../../../outside/EXECUTED", "assets/layers/../../../x"),
        *("/etc/cbnn", "assets/nul\0byte", "assets//x", "assets/" + "x" * 9999),
    ]
    return [
        *(Case(kind, name, make) for name, make in refused.items()),
        *(Case(kind, n, make, HARMLESS) for n, make in harmless.items()),
        *(
            Case(kind, f"entry {name[:30]!r}", _escaping(name), HARMLESS)
            for name in names
        ),
    ]


def _legacy() -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential"})
        file.attrs["keras_version"] = np.bytes_("2.9.0")
    return buffer.getvalue()
