"""Arrays (`.npy`, `.npz`) that lie about themselves."""

import functools
import io
import struct
import zipfile
import zlib

import numpy as np
from arena import HARMLESS, OTHER_RUN, Case, Place, pickled, put_file

ROUND, BASE, STATE = "rounds/6.npy", "base.npy", "resume/12.npz"


def npy(array, **options) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), **options)
    return buffer.getvalue()


def raw_npy(descr, shape, data: bytes = b"", *, fortran=False, version=1):
    """An array with any header, whatever data follow."""
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape})
    return text_npy(text, data, version=version)


def text_npy(text: str, data: bytes = b"", *, version=1) -> bytes:
    size = "<H" if version == 1 else "<I"
    head = text.encode("utf-8" if version == 3 else "latin-1")
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack(size, len(head) + 1)
        + head
        + b"\n"
        + data
    )


def _put(name: str, data):
    def make(place: Place) -> None:
        put_file(place, name, data(place) if callable(data) else data)

    return make


def _changed(name: str, change):
    def make(place: Place) -> None:
        put_file(place, name, change((place.run / name).read_bytes()))

    return make


# Made when it is needed: to pack it takes seconds.
@functools.cache
def bomb(num_bytes: int) -> bytes:
    """A raw deflate stream of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = bytes(2**20)
    parts = [packer.compress(block) for _ in range(num_bytes // 2**20)]
    return b"".join([*parts, packer.flush()])


def lying_zip(entries: list[tuple]) -> bytes:
    """A zip file whose directory says anything.

    Args:
        entries: Of each: name, method, compressed bytes, the size and the
            checksum that are claimed, flags.
    """
    body, directory = b"", b""
    for name, method, data, size, crc, flags in entries:
        raw = name.encode()
        fields = struct.pack(
            "<HHHHIIIHH",
            *(20, flags, method, 0, crc, len(data), size, len(raw), 0),
        )
        # Date and time are two fields.
        fields = fields[:6] + struct.pack("<HH", 0, 33) + fields[8:]
        directory += b"PK\1\2" + struct.pack("<H", 20) + fields
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + raw
        body += b"PK\3\4" + fields + raw + data
    end = struct.pack(
        "<HHHHIIH",
        *(0, 0, len(entries), len(entries), len(directory), len(body), 0),
    )
    return body + directory + b"PK\5\6" + end


def _arrays(path) -> dict:
    with np.load(path) as file:
        return dict(file)


def _state(change):
    """Changes the arrays that training is resumed from."""

    def make(place: Place) -> None:
        arrays = _arrays(place.run / STATE)
        change(arrays)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        put_file(place, STATE, buffer.getvalue())

    return make


def _state_zip(entries):
    """Adds entries that NumPy would not have written."""

    def make(place: Place) -> None:
        path = place.run / STATE
        with zipfile.ZipFile(path, "a") as archive:
            for name, data in entries(place).items():
                archive.writestr(name, data, zipfile.ZIP_DEFLATED)
        put_file(place, STATE, path.read_bytes())

    return make


def _first(arrays: dict, value) -> None:
    name = next(iter(arrays))
    arrays[name] = value


def _rename(arrays: dict) -> None:
    arrays["../../outside/x"] = arrays.pop(next(iter(arrays)))


def _drop_one(arrays: dict) -> None:
    del arrays[next(iter(arrays))]


def _add(arrays: dict) -> None:
    arrays["notes/unknown"] = np.zeros(3)


_HUGE = (10**12,)


def _states() -> list[Case]:
    """What only resuming reads: `load` may take such a run."""
    big = raw_npy("<f4", (2**40,))
    zeros = raw_npy("<f4", (2**28,)) + bytes(2**20)
    changes = {
        "state, an array less": _state(_drop_one),
        "state, names that lead out": _state(_rename),
        "state, another shape": _state(lambda a: _first(a, np.zeros(99))),
        "state, another dtype": _state(lambda a: _first(a, np.zeros(3, "U9"))),
        "state, text": _put(STATE, b"not a zip"),
        "state, empty": _put(STATE, b""),
        "state, cut": _changed(STATE, lambda data: data[: len(data) // 2]),
        "state, one array": _put(STATE, npy(np.zeros(3))),
        "state, pickle": _put(STATE, pickled),
        "state, 4 TB declared": _state_zip(lambda p: {"notes/x.npy": big}),
        "state, 1 GB declared": _state_zip(lambda p: {"notes/x.npy": zeros}),
        "state, bomb": _put(
            STATE,
            lambda p: lying_zip(
                [("notes/x.npy", 8, _npy_bomb(), 2**31 - 1, 0, 0)]
            ),
        ),
        "state, not an array": _state_zip(lambda p: {"notes/x.npy": b"x" * 9}),
        "state, entry twice": _state_zip(_twice),
        "state, encrypted": _put(
            STATE, lying_zip([("notes/x.npy", 0, b"x" * 99, 99, 0, 1)])
        ),
        "state, other method": _put(
            STATE, lying_zip([("notes/x.npy", 99, b"x" * 99, 99, 0, 0)])
        ),
        "state, wrong checksum": _put(
            STATE, lying_zip([("notes/x.npy", 0, npy(3.0), 136, 7, 0)])
        ),
        "state, an array more": _state(_add),
    }
    return [
        Case("npz", name, make, HARMLESS, "unfinished")
        for name, make in changes.items()
    ]


@functools.cache
def _npy_bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = packer.compress(raw_npy("<f4", (2**28,)))
    block = bytes(2**20)
    parts = [packer.compress(block) for _ in range(2**10)]
    return b"".join([head, *parts, packer.flush()])


def _twice(place: Place) -> dict:
    name = next(iter(_arrays(place.run / STATE)))
    return {f"{name}.npy": npy(np.zeros((4, 8), "float32"))}


def cases() -> list[Case]:
    kind = "npy"
    bits = np.zeros(8, "uint8")
    both = {
        "4 TB declared": raw_npy("<f8", _HUGE),
        "4 TB of nothing": raw_npy("<V0", _HUGE),
        "overflowing shape": raw_npy("<f8", (2**40, 2**40)),
        "negative shape": raw_npy("<f8", (-1,), bytes(480)),
        "shape of floats": raw_npy("<f8", (6.0,), bytes(480)),
        "many axes": raw_npy("<f8", (1,) * 99, bytes(8)),
        "structured": npy(np.zeros(60, "f8,i4")),
        "texts": npy(np.zeros(60, "U5")),
        "dates": npy(np.zeros(60, "M8[s]")),
        "void": npy(np.zeros(60, "V8")),
        "complex": npy(np.zeros(60, "complex64")),
        "other values": npy(np.full(60, -7.0)),
        "NaN": npy(np.full(60, np.nan)),
        "scalar": npy(0.5),
        "no values": npy(np.zeros(0)),
        "one value more": npy(np.full(61, 1 / 61)),
        "two axes": npy(np.full((60, 1), 1 / 60)),
        "empty file": b"",
        "magic only": b"\x93NUMPY",
        "long header": text_npy(" " * 60_000),
        "header of code": text_npy("__import__('os').system('true')"),
        "deep header": text_npy("(" * 5000 + ")" * 5000),
        "header of 4 GB": b"\x93NUMPY\2\0" + b"\xff" * 4 + b"x" * 100,
        "version 9": b"\x93NUMPY\x09\0" + b"\0" * 100,
        "object": raw_npy("|O", (60,), b"\x80\4."),
        "object within": raw_npy([("a", "|O")], (60,), b"\x80\4."),
        "npz": _npz(),
        "zip": b"PK\3\4" + bytes(100),
        "text": b"0.5 " * 60,
    }
    found = [
        Case(kind, f"{name} as {file}", _put(file, data))
        for name, data in both.items()
        for file in (BASE, ROUND)
    ]
    found += [
        Case(kind, f"cut {file}", _changed(file, lambda data: data[:-1]))
        for file in (BASE, ROUND)
    ]
    found += [
        Case(
            kind,
            f"trailing bytes in {file}",
            _changed(file, lambda data: data + b"\0" * 100),
            HARMLESS,
        )
        for file in (BASE, ROUND)
    ]
    found += [
        Case(kind, "other bits", _put(ROUND, npy(bits))),
        Case(kind, "bits as int64", _put(ROUND, npy(np.zeros(8, "int64")))),
        Case(kind, "too few bits", _put(ROUND, npy(np.zeros(7, "uint8")))),
        Case(kind, "too many bits", _put(ROUND, npy(np.zeros(9, "uint8")))),
        Case(
            kind,
            "Fortran order",
            _changed(
                BASE,
                lambda data: data.replace(b"order': False", b"order': True "),
            ),
            HARMLESS,
        ),
        Case(
            kind,
            "unused bits",
            _changed(ROUND, lambda data: data[:-1] + bytes([data[-1] | 15])),
            HARMLESS,
        ),
        Case(
            kind,
            "a distribution of one sample",
            _put(BASE, npy(np.eye(60)[0])),
            OTHER_RUN,
        ),
        Case(kind, "subnormal", _put(BASE, npy(np.full(60, 5e-324)))),
        Case(kind, "not normalised", _put(BASE, npy(np.full(60, 1.0)))),
    ]
    return [*found, *_states()]


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(60))
    return buffer.getvalue()
