"""Members that are not the HDF5 files that they should be."""

import io
import pathlib

import h5py
import numpy as np
from arena import HARMLESS, OTHER_RUN, Case, Place, put_file

MEMBER = "members/6.weights.h5"
KERNEL = "layers/dense/vars/0"


def _edited(change):
    """Changes the file with h5py, and signs it."""

    def make(place: Place) -> None:
        path = place.run / MEMBER
        with h5py.File(path, "r+") as file:
            change(file, place)
        put_file(place, MEMBER, path.read_bytes())

    return make


def _kernel(make_dataset):
    """Another dataset in place of the first kernel, of shape (4, 8)."""

    def change(file: h5py.File, place: Place) -> None:
        del file[KERNEL]
        make_dataset(file, place)

    return _edited(change)


def _dataset(**options):
    return _kernel(lambda file, _: file.create_dataset(KERNEL, **options))


def _external_link(file: h5py.File, place: Place) -> None:
    other = _other_file(place)
    file[KERNEL] = h5py.ExternalLink(str(other), "/x")


def _other_file(place: Place) -> pathlib.Path:
    other = place.outside / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.full((4, 8), 7.0, "float32")
    return other


def _relative_external_link(file: h5py.File, place: Place) -> None:
    _other_file(place)
    file[KERNEL] = h5py.ExternalLink("../../outside/other.h5", "/x")


def _external_group(file: h5py.File, place: Place) -> None:
    other = place.outside / "other.h5"
    with h5py.File(other, "w") as target:
        target["vars/0"] = np.ones((4, 8), "float32")
        target["vars/1"] = np.ones(8, "float32")
    del file["layers/dense"]
    file["layers/dense"] = h5py.ExternalLink(str(other), "/")


def _storage(target: str):
    def make_dataset(file: h5py.File, place: Place) -> None:
        path = place.outside / "secret.txt" if target == "canary" else target
        file.create_dataset(
            KERNEL, (4, 8), "float32", external=[(str(path), 0, 128)]
        )

    return _kernel(make_dataset)


def _virtual(file: h5py.File, place: Place) -> None:
    source = h5py.VirtualSource(str(_other_file(place)), "x", (4, 8), "float32")
    layout = h5py.VirtualLayout((4, 8), "float32")
    layout[:] = source
    file.create_virtual_dataset(KERNEL, layout)


def _soft(target: str):
    def make_dataset(file: h5py.File, _) -> None:
        file[KERNEL] = h5py.SoftLink(target)

    return _kernel(make_dataset)


def _hard(file: h5py.File, _) -> None:
    """A group within itself."""
    file["layers/dense/again"] = file["layers"]


def _named_type(file: h5py.File, _) -> None:
    file[KERNEL] = np.dtype("float32")


def _reference(file: h5py.File, _) -> None:
    data = file.create_dataset(KERNEL, (4, 8), h5py.ref_dtype)
    data[0, 0] = file["layers"].ref


def _region(file: h5py.File, _) -> None:
    data = file.create_dataset(KERNEL, (4, 8), h5py.regionref_dtype)
    data[0, 0] = file["layers/dense/vars/1"].regionref[:]


def _vlen(file: h5py.File, _) -> None:
    data = file.create_dataset(KERNEL, (4, 8), h5py.vlen_dtype("float32"))
    data[0, 0] = np.zeros(2**18, "float32")


def _bomb(file: h5py.File, _) -> None:
    """A gigabyte of zeros, compressed a thousandfold."""
    shape = (2**14, 2**14)
    data = file.create_dataset(
        KERNEL, shape, "float32", chunks=(2**10, 2**14), compression="gzip"
    )
    data[: 2**10] = 0.0


def _deep(file: h5py.File, _) -> None:
    group = file["layers/dense"]
    for _ in range(3000):
        group = group.create_group("g")


def _many(file: h5py.File, _) -> None:
    for number in range(3000):
        file.create_group(f"more/{number}")


def _attributes(file: h5py.File, _) -> None:
    group = file["layers/dense"]
    for number in range(500):
        group.attrs[f"a{number}"] = np.zeros(6000)


def _extra(file: h5py.File, _) -> None:
    file["layers/dense/vars/2"] = np.zeros(3, "float32")


def _extra_large(file: h5py.File, _) -> None:
    file.create_dataset(
        "extra", (2**33,), "float32", chunks=(2**20,), fillvalue=0
    )


def _missing(name: str):
    def change(file: h5py.File, _) -> None:
        del file[name]

    return _edited(change)


def _nan(value: float):
    def change(file: h5py.File, _) -> None:
        file[KERNEL][...] = value

    return _edited(change)


def _filtered(file: h5py.File, _) -> None:
    """A filter that would be loaded as a plug-in library."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4, 8))
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1,))
    space = h5py.h5s.create_simple((4, 8))
    group = file["layers/dense/vars"].id
    h5py.h5d.create(group, b"0", h5py.h5t.IEEE_F32LE, space, plist)


def _bytes(change):
    """Changes the bytes, and signs them."""

    def make(place: Place) -> None:
        data = (place.run / MEMBER).read_bytes()
        put_file(place, MEMBER, change(data))

    return make


def _offset(data: bytes) -> bytes:
    """HDF5 looks for its signature at 512, 1024, ...: a file in a file."""
    return b"\0" * 512 + data


def _weights_json(file: h5py.File, _) -> None:
    """Sharded weights are found by the names in a map of files."""
    file.attrs["weight_map"] = '{"x": "../../outside/other.h5"}'


def _empty() -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w"):
        pass
    return buffer.getvalue()


def cases() -> list[Case]:
    kind = "HDF5"
    huge = {"dtype": "float32", "chunks": (1024, 1024)}
    shapes = {
        "one row more": (5, 8),
        "transposed": (8, 4),
        "flat": (32,),
        "scalar": (),
        "no rows": (0, 8),
        "one axis more": (4, 8, 1),
    }
    changes = {
        "external link": _kernel(_external_link),
        "relative external link": _kernel(_relative_external_link),
        "external group": _edited(_external_group),
        "external storage": _storage("canary"),
        "external storage, /etc/passwd": _storage("/etc/passwd"),
        "external storage, /dev/zero": _storage("/dev/zero"),
        "virtual dataset": _kernel(_virtual),
        "dangling soft link": _soft("/nothing"),
        "soft loop": _soft(f"/{KERNEL}"),
        "named type": _kernel(_named_type),
        "group as dataset": _kernel(lambda f, _: f.create_group(KERNEL)),
        "references": _kernel(_reference),
        "region references": _kernel(_region),
        "variable lengths": _kernel(_vlen),
        "texts": _dataset(shape=(4, 8), dtype=h5py.string_dtype()),
        "opaque": _dataset(shape=(4, 8), dtype="V4"),
        "structured": _dataset(shape=(4, 8), dtype="f4,f4"),
        "complex": _dataset(shape=(4, 8), dtype="complex64"),
        "integers": _dataset(shape=(4, 8), dtype="int64"),
        "null space": _dataset(data=h5py.Empty("float32")),
        "chunks of 4 TB": _dataset(shape=(2**20, 2**20), **huge),
        "chunks of 16 GB": _dataset(shape=(2**16, 2**16), **huge),
        "long double, 16 GB": _dataset(
            shape=(2**15, 2**15), dtype="longdouble", chunks=(1024, 1024)
        ),
        "compressed": _kernel(_bomb),
        "unknown filter": _kernel(_filtered),
        "extra dataset of 32 GB": _edited(_extra_large),
        "no kernel": _missing(KERNEL),
        "no layer": _missing("layers/dense"),
        "no layers": _missing("layers"),
        "empty file": _bytes(lambda _: b""),
        "no groups": _bytes(lambda _: _empty()),
        "text": _bytes(lambda data: b"not HDF5" + data),
        "a header only": _bytes(lambda data: data[:96]),
        "cut": _bytes(lambda data: data[: len(data) // 2]),
        "last byte cut": _bytes(lambda data: data[:-1]),
        "zip": _bytes(lambda data: b"PK\3\4" + data[4:]),
    }
    found = [Case(kind, name, make) for name, make in changes.items()]
    found += [
        Case(kind, f"shape {name}", _dataset(shape=shape, dtype="float32"))
        for name, shape in shapes.items()
    ]
    harmless = {
        "soft link": _soft_to_a_copy,
        "group within itself": _edited(_hard),
        "deep groups": _edited(_deep),
        "many groups": _edited(_many),
        "attributes": _edited(_attributes),
        "one dataset more": _edited(_extra),
        "weight map": _edited(_weights_json),
        "trailing bytes": _bytes(lambda data: data + b"\0" * 1000),
        "offset": _bytes(_offset),
    }
    found += [Case(kind, n, make, HARMLESS) for n, make in harmless.items()]
    found += [
        Case(kind, "NaN", _nan(np.nan), OTHER_RUN, is_poisoned=True),
        Case(kind, "infinite", _nan(np.inf), OTHER_RUN, is_poisoned=True),
        Case(kind, "1e38", _nan(1e38), OTHER_RUN, is_poisoned=True),
        Case(
            kind,
            "float64",
            _dataset(shape=(4, 8), dtype="float64"),
            OTHER_RUN,
        ),
        Case(
            kind,
            "big-endian",
            _dataset(shape=(4, 8), dtype=">f4"),
            OTHER_RUN,
        ),
    ]
    return found


def _soft_to_a_copy(place: Place) -> None:
    def change(file: h5py.File, _) -> None:
        file["copy"] = file[KERNEL]
        del file[KERNEL]
        file[KERNEL] = h5py.SoftLink("/copy")

    _edited(change)(place)
