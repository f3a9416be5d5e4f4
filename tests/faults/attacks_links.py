"""Runs with links, and with names that lead elsewhere or are no files."""

import os
import shutil
import socket

from arena import (
    HARMLESS,
    Case,
    Place,
    fingerprint,
    link,
    manifest_change,
    put_file,
    read_manifest,
    sign,
    write_manifest,
)


def _linked(name: str, target: str | None = None):
    """A link to what has the same name outside, signed as if it were ours."""

    def make(place: Place) -> None:
        inside = place.run / name
        outside = place.outside / (target or name)
        link(inside, outside)
        sign(place.run) if name != "manifest.json" else None

    return make


def _moved(name: str, relative: bool = False):
    """The run's own files moved out, with a link to them: all hashes fit."""

    def make(place: Place) -> None:
        inside, moved = place.run / name, place.outside / "moved"
        shutil.move(inside, moved)
        if moved.is_dir():  # what a sweep would remove
            for suffix in (".weights.h5", ".npy", ".npz"):
                (moved / f"999{suffix}").write_text("keep me")
        link(inside, os.path.relpath(moved, place.run) if relative else moved)

    return make


def _chain(place: Place) -> None:
    _moved("members")(place)
    link(place.run / "more", place.outside / "moved")
    link(place.run / "members", "more")


def _within(place: Place) -> None:
    """A link that stays in the run."""
    shutil.move(place.run / "members", place.run / "real")
    link(place.run / "members", "real")


def _loop(place: Place) -> None:
    link(place.run / "members", "members")


def _hard_link(place: Place) -> None:
    """A second name of a file outside: writes must not go through it."""
    target = place.outside / "manifest.json.new"
    os.link(target, place.run / "manifest.json.new")
    os.link(
        place.outside / "unfinished-model.keras",
        place.run / "unfinished-model.keras",
    )


def _lock(place: Place) -> None:
    for name in (".lock", "lock", "run.lock", "manifest.lock"):
        link(place.run / name, place.outside / "secret.txt")


def _swept(place: Place) -> None:
    """Links under names that a sweep removes: the links go, nothing else."""
    for name in ("members/999.weights.h5", "rounds/999.npy", "resume/999.npz"):
        (place.run / name).parent.mkdir(exist_ok=True)
        link(place.run / name, place.outside / name)


def _listed(name: str, target=None):
    """A name in the manifest, with the right size and hash of its target."""

    def make(place: Place) -> None:
        path = name.format(outside=place.outside, run=place.run)
        content = read_manifest(place.run)
        real = place.outside / "secret.txt"
        content["files"][path] = fingerprint(real)
        write_manifest(place.run, content)

    return make


def _fifo(name: str):
    def make(place: Place) -> None:
        (place.run / name).unlink(missing_ok=True)
        os.mkfifo(place.run / name)

    return make


def _socket(place: Place) -> None:
    # A path of at most 107 bytes fits an address.
    kept = os.getcwd()
    os.chdir(place.run / "rounds")
    try:
        os.unlink("6.npy")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("6.npy")
    finally:
        os.chdir(kept)


def _directory(name: str):
    def make(place: Place) -> None:
        (place.run / name).unlink()
        (place.run / name).mkdir()

    return make


def _file(name: str):
    """A file in place of a directory."""

    def make(place: Place) -> None:
        shutil.rmtree(place.run / name)
        (place.run / name).write_text("a file")

    return make


def _device(name: str, target: str):
    def make(place: Place) -> None:
        link(place.run / name, target)
        content = read_manifest(place.run)
        empty = place.tmp / "empty"
        empty.touch()
        content["files"][name] = fingerprint(empty)
        write_manifest(place.run, content)

    return make


def _no_permission(place: Place) -> None:
    (place.run / "model.keras").chmod(0)


def _escaped(change: str):
    return manifest_change(
        lambda content: content.update(
            method=f"{change}cbnn", package_version=f"{change}0"
        )
    )


def cases() -> list[Case]:
    files = [
        *("model.keras", "base.npy", "rounds/6.npy"),
        *("members/6.weights.h5", "members/16.weights.h5"),
    ]
    found = [
        Case("links", f"{name} to a canary", _linked(name, target))
        for name, target in [
            ("manifest.json", "manifest.json"),
            ("model.keras", "model.keras"),
            ("base.npy", "base.npy"),
            ("rounds/6.npy", "rounds/8.npy"),
            ("members/6.weights.h5", "members/8.weights.h5"),
            ("members", "members"),
            ("rounds", "rounds"),
        ]
    ]
    found += [
        Case("links", f"{name} moved out", _moved(name))
        for name in ("manifest.json", "members", "rounds", "resume", *files)
    ]
    found += [
        Case("links", f"{name} moved out, unfinished", _moved(name), base=base)
        for base in ("unfinished",)
        for name in ("members", "rounds", "resume", "resume/12.npz")
    ]
    found += [
        Case("links", "relative", _moved("members", relative=True)),
        Case("links", "chain", _chain),
        Case("links", "within the run", _within),
        Case("links", "loop", _loop),
        Case("links", "dangling", _linked("members", "nothing")),
        Case("links", "dangling file", _linked("model.keras", "nothing")),
        Case("links", "hard links", _hard_link, HARMLESS),
        Case("links", "locks", _lock, HARMLESS),
        Case("links", "names that are swept", _swept, HARMLESS),
    ]
    found += [
        Case("links", f"{name} beside", _linked(name), HARMLESS)
        for name in ("manifest.json.new", "unfinished-model.keras")
    ]
    found += [
        Case("paths", f"lists {name[:24]!r}", _listed(name))
        for name in [
            *("{outside}/secret.txt", "../outside/secret.txt"),
            *("members/../../outside/secret.txt", "/etc/passwd"),
            *("..\\outside\\secret.txt", "C:\\secret.txt", "\\\\host\\share"),
            *("nul\0byte", "NUL", "con.npy", "x" * 5000, "", ".", "members/"),
            *("members/\u202e5h", "a\nb", "\ud800", "/dev/zero", "~/secret"),
            *("members//6.weights.h5", "./model.keras", "members"),
        ]
    ]
    found += [
        Case("paths", f"FIFO {name}", _fifo(name))
        for name in ("manifest.json", *files)
    ]
    found += [
        Case("paths", f"directory {name}", _directory(name))
        for name in ("manifest.json", *files)
    ]
    found += [
        Case("paths", f"file {name}", _file(name))
        for name in ("members", "rounds")
    ]
    found += [
        Case("paths", "socket", _socket),
        Case("paths", "file resume", _file("resume"), HARMLESS),
        Case("paths", "FIFO manifest.json.new", _fifo_beside, HARMLESS),
        Case("paths", "/dev/zero", _device("base.npy", "/dev/zero")),
        Case("paths", "/dev/null", _device("base.npy", "/dev/null")),
        Case("paths", "/proc", _device("base.npy", "/proc/self/environ")),
        Case("paths", "stdin", _device("base.npy", "/dev/stdin")),
    ]
    found += [
        Case("escapes", name, _escaped(text), HARMLESS)
        for name, text in [
            ("title of the terminal", "\x1b]0;owned\x07"),
            ("clears the screen", "\x1b[2J\x1b[H"),
            ("hyperlink", "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\"),
            ("8-bit control", "\x9b31m"),
            ("carriage return", "fine\r"),
            ("backspaces", "bad\b\b\b"),
            ("right to left", "\u202edab"),
            ("markup", "[red]x[/red]"),
            ("HTML", "<script>fetch('//evil')</script>"),
        ]
    ]
    found += [
        Case(
            "escapes",
            "name of a setting",
            manifest_change(
                lambda c: c["settings"].update({"\x1b[31mx": "\x1b[2J"})
            ),
            HARMLESS,
        ),
        Case("escapes", "name of a file", _listed("\x1b[2Jfile")),
        Case(
            "escapes",
            "name of a file that is a number",
            manifest_change(lambda c: c["files"].update({"\x1b[2J": 0})),
        ),
        Case(
            "escapes",
            "ten thousand names",
            manifest_change(
                lambda c: c["files"].update({f"x{i}": 0 for i in range(10000)})
            ),
        ),
        Case(
            "escapes",
            "name of a layer",
            lambda p: put_file(p, "\x1b[2J.npy", b"x"),
        ),
    ]
    return found


def _fifo_beside(place: Place) -> None:
    os.mkfifo(place.run / "manifest.json.new")
