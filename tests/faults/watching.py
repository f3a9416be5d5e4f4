"""Sees what a process opens, changes and starts, and how much it allocates.

Python's audit events see what Python does; inotify sees what C++ opens among
the canaries; a snapshot sees what has changed.
"""

import ctypes
import hashlib
import os
import pathlib
import stat
import struct
import sys
from collections.abc import Iterable
from typing import Any

import cbnn_keras

_NO_FOLLOW = os.O_NOFOLLOW
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Where the name itself is meant, and not what a link of that name leads to.
_NAMES = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
}
_TARGETS = {
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "os.setxattr": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
}
_LISTING = {"os.listdir", "os.scandir", "glob.glob", "os.walk"}
_NEVER = {
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"),
    *("os.fork", "os.forkpty", "os.spawn", "pty.spawn", "pickle.find_class"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo"),
    *("socket.gethostbyname", "urllib.Request", "webbrowser.open"),
    *("shutil.unpack_archive", "ctypes.dlopen"),
}
# What libraries ask of the system while they start.
_SYSTEM = (
    *("/usr", "/lib", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat"),
    *("/sys/devices/system", "/sys/fs/cgroup"),
    *("/dev/null", "/dev/urandom", "/dev/tty"),
    *("/etc/localtime", "/etc/mime.types", "/etc/fonts", "/etc/nsswitch.conf"),
)


class Guard:
    """An audit hook that notes what is neither allowed to read nor to write.

    Attributes:
        violations: What was seen, as texts.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._readable: tuple[str, ...] = ()
        self._writable: tuple[str, ...] = ()
        self._is_active = False
        sys.addaudithook(self._hook)

    def start(self, readable: Iterable[Any], writable: Iterable[Any]) -> None:
        """Watches this process until its end."""
        self._writable = tuple(os.path.realpath(path) for path in writable)
        # The package itself is elsewhere where it is installed to be edited.
        package = pathlib.Path(cbnn_keras.__file__).parent
        places = (*readable, sys.prefix, sys.base_prefix, package)
        places = (*places, *map(_real, sys.path))
        self._readable = (
            *(os.path.realpath(path) for path in places if path),
            *_SYSTEM,
            *(f"/proc/{os.getpid()}/{name}" for name in ("status", "statm")),
            *self._writable,
        )
        self._is_active = True

    def _hook(self, event: str, arguments: tuple) -> None:
        if not self._is_active:
            return
        try:
            self._judge(event, arguments)
        except (OSError, TypeError, ValueError):
            return

    def _judge(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            is_writing = bool((flags or 0) & _WRITING)
            if isinstance(path, int):
                return
            real = _path(path, follow=not (flags or 0) & _NO_FOLLOW)
            self._check(event, real, is_writing)
        elif event in _NAMES:
            for position in _NAMES[event]:
                path = _path(arguments[position], follow=False, of=arguments)
                self._check(event, path, True)
        elif event in _TARGETS:
            for position in _TARGETS[event]:
                if not isinstance(arguments[position], int):
                    self._check(event, _path(arguments[position]), True)
        elif event in _LISTING:
            if isinstance(arguments[0], (str, bytes, os.PathLike)):
                self._check(event, _path(arguments[0]), False)
        elif event in _NEVER and arguments[:1] != (None,):
            if event == "ctypes.dlopen" and _within(
                _path(arguments[0]), self._readable
            ):
                return
            self._note(f"{event} {arguments!r:.200}")

    def _check(self, event: str, path: str, is_writing: bool) -> None:
        allowed = self._writable if is_writing else self._readable
        if not _within(path, allowed) and path != os.devnull:
            self._note(f"{event} {'w' if is_writing else 'r'} {path}")

    def _note(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)


def _real(path: str) -> str:
    return path or os.getcwd()


def _within(path: str, places: tuple[str, ...]) -> bool:
    return any(
        path == place or path.startswith(place.rstrip("/") + "/")
        for place in places
    )


def _path(path: Any, follow: bool = True, of: tuple = ()) -> str:
    """The real path; of a name, that of its directory and the name."""
    path = os.fsdecode(path)
    descriptors = [a for a in of[1:] if isinstance(a, int) and a > 2]
    if descriptors and not os.path.isabs(path):
        directory = os.readlink(f"/proc/self/fd/{descriptors[-1]}")
        path = os.path.join(directory, path)
    if follow:
        return os.path.realpath(path)
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(parent), name)


_libc = ctypes.CDLL(None, use_errno=True)
_OPEN, _ACCESS = 0x20, 0x1
_MASK = _OPEN | _ACCESS | 0x2 | 0x40 | 0x80 | 0x100 | 0x200


class Watcher:
    """Notes whatever is opened or changed in a directory, also by C++.

    A `stat` is not seen: to know that a link leads somewhere is no reading.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._names: dict[int, str] = {}
        # To list a directory is to open it.
        for path in [path for path, _, _ in os.walk(directory)]:
            number = _libc.inotify_add_watch(
                self._descriptor, os.fsencode(path), _MASK
            )
            self._names[number] = path

    def stop(self) -> list[str]:
        """What was seen since the beginning."""
        found = []
        data = b""
        try:
            while part := os.read(self._descriptor, 2**16):
                data += part
        except BlockingIOError:
            pass
        os.close(self._descriptor)
        while data:
            number, mask, _, size = struct.unpack_from("iIII", data)
            name = data[16 : 16 + size].rstrip(b"\0").decode(errors="replace")
            data = data[16 + size :]
            what = "opened" if mask & (_OPEN | _ACCESS) else "changed"
            found.append(f"{what} {self._names.get(number, '?')}/{name}")
        return list(dict.fromkeys(found))


def snapshot(directory: pathlib.Path) -> dict[str, Any]:
    """Kind, content, mode and time of everything in a directory."""
    found = {}
    for path, directories, names in os.walk(directory):
        for name in (*directories, *names):
            one = os.path.join(path, name)
            status = os.lstat(one)
            content: Any = status.st_size
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(one)
            elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o400:
                with open(one, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            elif stat.S_ISDIR(status.st_mode):
                content = None
            key = os.path.relpath(one, directory)
            found[key] = (status.st_mode, status.st_ino, content)
    return found


def differences(before: dict, after: dict) -> list[str]:
    return [
        f"changed {name}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def memory() -> tuple[int, int]:
    """The peaks of this process in bytes: resident and virtual."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return tuple(  # type: ignore[return-value]
        int(lines[name].split()[0]) * 1024 for name in ("VmHWM", "VmPeak")
    )
