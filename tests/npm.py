"""Packages of npm, installed once for all tests.

Where npm or its registry cannot be had, the test is skipped. With
`CBNN_REQUIRE_SERVERS=1` it fails instead.
"""

import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# What npm calls a registry that it cannot reach.
UNREACHABLE = (
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "EHOSTUNREACH",
    "ENETUNREACH",
    "ENOTCACHED",
    "ENOTFOUND",
    "ERR_SOCKET_TIMEOUT",
    "ETIMEDOUT",
)


def node_modules(package, version, **env):
    """The directory `node_modules` with a package of npm in it.

    Args:
        package: Its name.
        version: Its version.
        **env: Variables of the environment of the installation.
    """
    modules, reason = _install(package, version, tuple(env.items()))
    if reason and os.environ.get("CBNN_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return modules


@functools.cache
def _install(package, version, env):
    """`(path, None)`, or `(None, reason)` where it cannot be had."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            return None, f"{program} is not on PATH"
    # Hundreds of MB: one copy for all sessions, in a directory of this user
    # alone.
    user = os.getuid() if hasattr(os, "getuid") else "user"
    directory = pathlib.Path(tempfile.gettempdir(), f"cbnn-keras-npm-{user}")
    directory.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and directory.stat().st_uid != os.getuid():
        raise RuntimeError(f"{directory} belongs to somebody else.")
    target = directory / f"{package}-{version}"
    with _locked(directory / "lock"):
        if not target.exists():
            reason = _npm_install(target, f"{package}@{version}", dict(env))
            if reason:
                return None, reason
    return target / "node_modules", None


def _npm_install(target, package, env):
    """None, or why the registry cannot be reached."""
    # Renamed when complete: an install that was killed leaves no half.
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    done = subprocess.run(
        [
            *["npm", "install", "--prefix", partial, "--no-audit"],
            *["--no-fund", "--ignore-scripts", "--loglevel=error"],
            *["--fetch-retries=1", "--fetch-retry-mintimeout=1000"],
            package,
        ],
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if done.returncode:
        said = done.stdout.strip()
        if any(code in said for code in UNREACHABLE):
            return f"npm cannot reach its registry: {said.splitlines()[0]}"
        raise RuntimeError(f"npm: {said}")
    partial.rename(target)
    return None


@contextlib.contextmanager
def _locked(path):
    with open(path, "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
