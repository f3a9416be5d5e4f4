"""Hostile `--data`, `--priors` and `--class-names`."""

import io
import os

import numpy as np
from arena import HARMLESS, REFUSED, Case, Place, pickled
from attacks_arrays import bomb, lying_zip, npy, raw_npy, text_npy


def file_case(
    kind: str, name: str, suffix: str, content, arguments, expects=REFUSED
) -> Case:
    """A case of a file that is given to a command.

    Args:
        kind: The class of the attack.
        name: What it is.
        suffix: How the file's name ends.
        content: Bytes, or a function that makes the file, given place and path.
        arguments: The command, given place and path.
        expects: What may come of it.
    """

    def path(place: Place):
        return place.inputs / f"file{suffix}"

    def make(place: Place) -> None:
        if callable(content):
            content(place, path(place))
        else:
            path(place).write_bytes(content)

    return Case(
        kind,
        name,
        make,
        expects,
        command=lambda place: arguments(place, path(place)),
    )


def exporting(option: str, *more):
    """`cbnn export` to ONNX with a file as an option."""
    return lambda place, path: [
        *("export", place.run, "--format", "onnx"),
        *("--output", place.out / "model.onnx", option, path, *more),
    ]


def reporting(option: str, *more):
    return lambda place, path: [
        *("report", place.run, "-o", place.out / "report.html"),
        *(option, path, *more),
    ]


def verifying(option: str):
    return lambda place, path: [
        *("verify", place.root.parent / "shared/finished.onnx"),
        *("--run", place.run, option, path),
    ]


def _npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _pickled_npz(place: Place, path) -> None:
    head = raw_npy("|O", (60,))
    path.write_bytes(_stored({"x.npy": head + pickled(place)}))


def _stored(entries: dict[str, bytes]) -> bytes:
    import zlib

    return lying_zip(
        [(n, 0, d, len(d), zlib.crc32(d), 0) for n, d in entries.items()]
    )


def _fifo(place: Place, path) -> None:
    os.mkfifo(path)


def _directory(place: Place, path) -> None:
    path.mkdir()


def _device(target: str):
    return lambda place, path: path.symlink_to(target)


def _missing(place: Place, path) -> None:
    pass


_X = np.zeros((60, 4), "float32")
_Y = np.arange(60) % 3


def _data() -> list[Case]:
    contents = {
        "pickle": _pickled_npz,
        "bare pickle": lambda p, path: path.write_bytes(pickled(p)),
        "one array": npy(_X),
        "text": b"x = 1",
        "empty": b"",
        "a header of a zip": b"PK\3\4",
        "no arrays": _npz(),
        "4 TB declared": _stored({"x.npy": raw_npy("<f8", (10**12, 4))}),
        "overflow": _stored({"x.npy": raw_npy("<f8", (2**62, 2**62))}),
        "bomb": lambda p, path: path.write_bytes(_bomb()),
        "bomb of an array": lambda p, path: path.write_bytes(_array_bomb()),
        "not an array": _stored({"x.npy": b"no array", "y.npy": npy(_Y)}),
        "header of code": _stored({"x.npy": text_npy("__import__('os')")}),
        "deep header": _stored({"x.npy": text_npy("(" * 9000 + ")" * 9000)}),
        "long header": _stored({"x.npy": text_npy(" " * 60_000)}),
        "encrypted": lying_zip([("x.npy", 0, npy(_X), 1088, 0, 1)]),
        "unknown method": lying_zip([("x.npy", 77, npy(_X), 1088, 0, 0)]),
        "wrong checksum": lying_zip([("x.npy", 0, npy(_X), 1088, 5, 0)]),
        "cut": _npz(x=_X, y=_Y)[:-30],
        "texts": _npz(x=np.full((60, 4), "a"), y=_Y),
        "structured": _npz(x=np.zeros(60, "f4,f4"), y=_Y),
        "dates": _npz(x=np.zeros((60, 4), "M8[s]"), y=_Y),
        "scalar": _npz(x=np.float32(1), y=_Y),
        "no samples": _npz(x=_X[:0], y=_Y[:0]),
        "one axis": _npz(x=_X[:, 0], y=_Y),
        "other features": _npz(x=np.zeros((60, 5), "float32"), y=_Y),
        "other names": _npz(a=_X, b=_X, y=_Y),
        "names that lead out": _stored({"../x.npy": npy(_X), "y.npy": npy(_Y)}),
        "no extension": _stored({"x": b"raw bytes"}),
        "FIFO": _fifo,
        "directory": _directory,
        "missing": _missing,
        "/dev/zero": _device("/dev/zero"),
    }
    commands = {
        "export": exporting("--data"),
        "report": reporting("--data"),
        "verify": verifying("--data"),
    }
    # Names mean nothing where nothing is unpacked, and dates are numbers too.
    harmless = {"dates", "names that lead out", "directory"}
    return [
        file_case(
            "data",
            f"{command} of {name}",
            ".npz",
            content,
            arguments,
            HARMLESS if name in harmless else REFUSED,
        )
        for command, arguments in commands.items()
        for name, content in contents.items()
    ] + [
        file_case(
            "data",
            f"report, {name}",
            ".npz",
            _npz(x=_X, **({} if y is None else {"y": y})),
            reporting("--data"),
        )
        for name, y in {
            "no labels": None,
            "fewer labels": _Y[:50],
            "labels of texts": np.full(60, "a"),
            "negative labels": _Y - 1,
            "labels of other classes": _Y + 7,
            "labels of 10**12": _Y + 10**12,
            "labels that are no numbers": np.full(60, np.nan),
            "labels of three axes": np.zeros((60, 3, 3)),
        }.items()
    ]


def _bomb() -> bytes:
    return lying_zip([("x.npy", 8, bomb(2**30), 2**30, 0, 0)])


def _array_bomb() -> bytes:
    from attacks_arrays import _npy_bomb

    return lying_zip([("x.npy", 8, _npy_bomb(), 2**30 + 128, 0, 0)])


def _priors() -> list[Case]:
    arrays = {
        "pickle": raw_npy("|O", (3,), b"\x80\4."),
        "4 TB declared": raw_npy("<f8", (10**12,)),
        "empty": b"",
        "text as npy": b"0.3 0.3 0.4",
        "structured": npy(np.zeros(3, "f4,f4")),
        "texts": npy(np.full(3, "a")),
        "dates": npy(np.zeros(3, "M8[s]")),
        "complex": npy(np.full(3, 1j)),
        "two axes": npy(np.full((3, 3), 0.3)),
        "scalar": npy(0.3),
        "npz": _npz(x=np.zeros(3)),
        "deep header": text_npy("[" * 9000 + "]" * 9000),
    }
    texts = {
        "words": b"a b c",
        "NaN": b"nan 0.5 0.5",
        "infinite": b"inf 0.5 0.5",
        "negative": b"-1 1 1",
        "zero": b"0 0.5 0.5",
        "two": b"0.5 0.5",
        "four": b"0.25 0.25 0.25 0.25",
        "none": b"",
        "bytes": b"\xff\xfe\0",
        "NUL": b"0.3\0 0.3 0.4",
        "many": b"0.5 " * 2**20,
    }
    odd = {"FIFO": _fifo, "directory": _directory, "missing": _missing}
    odd["/dev/zero"] = _device("/dev/zero")
    return [
        file_case("priors", name, suffix, content, exporting("--priors"))
        for suffix, contents in ((".npy", arrays), (".txt", texts), ("", odd))
        for name, content in contents.items()
    ]


def _class_names() -> list[Case]:
    contents = {
        "invalid UTF-8": b"a\nb\n\xff",
        "UTF-16": "a\nb\nc".encode("utf-16"),
        "two": b"a\nb",
        "four": b"a\nb\nc\nd",
        "none": b"",
        "the same": b"a\na\na",
        "FIFO": _fifo,
        "directory": _directory,
        "missing": _missing,
        "/dev/zero": _device("/dev/zero"),
    }
    harmless = {
        "escapes": b"\x1b[2J\nb\n\x1b]0;x\x07",
        "NUL": b"a\0\nb\nc",
        "HTML": b"<script>alert(1)</script>\nb\n</script>",
        "long": b"a" * 2**20 + b"\nb\nc",
        "form feed": b"a\x0cb\nc",
        "BOM": b"\xef\xbb\xbfa\nb\nc",
    }
    found = []
    for command, arguments in {
        "export": exporting("--class-names"),
        "report": reporting("--class-names"),
    }.items():
        for expects, group in ((REFUSED, contents), (HARMLESS, harmless)):
            found += [
                file_case(
                    "class names",
                    f"{command} of {name}",
                    ".txt",
                    content,
                    arguments,
                    # A report without data does not use them all.
                    expects if command == "export" else HARMLESS,
                )
                for name, content in group.items()
            ]
    return found


def cases() -> list[Case]:
    return [*_data(), *_priors(), *_class_names()]
