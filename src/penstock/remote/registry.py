"""Which jobs run on this machine: a directory of the user's, with a socket and a description for each.

    <place>/<pid>-<random>.sock     the job takes requests here
    <place>/<pid>-<random>.json     what job it is; written last, so that whoever finds it can connect

The place is `$XDG_RUNTIME_DIR/penstock`, or `penstock-<uid>` in the directory for temporary files; it belongs to the
user and nobody else may enter it, which is what keeps others away from the sockets. A driver that runs as a service may
see another environment than its user's shell, so that commands look into all places. A description whose socket nobody
listens on belongs to a process that was killed: whoever meets it removes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

_LONGEST_SOCKET_PATH: Final = 100
"""Bytes; the kernel takes 108, some systems 104."""


class Running(msgspec.Struct, frozen=True):
    """A job as its description names it."""

    name: str
    directory: str | None
    """Of its checkpoints; None if it takes none."""
    pid: int
    started_ms: int
    socket: str

    def __str__(self) -> str:
        return f"{self.name!r} (process {self.pid}" + (f", {self.directory})" if self.directory else ")")


def places() -> list[Path]:
    """Where jobs of this user can be, the best one first."""
    user = f"penstock-{os.getuid()}"
    found = [Path(tempfile.gettempdir(), user), Path("/tmp", user)]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        found.insert(0, Path(runtime, "penstock"))
    return list(dict.fromkeys(found))


def open_place() -> Path:
    """The first place that can be used, made if it is missing. Raises `OSError`."""
    refusals = []
    for place in places():
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            _check_private(place)
            return place
        except OSError as error:
            refusals.append(f"{place}: {error.strerror or error}")
    raise OSError(f"there is no place for the sockets of running jobs: {'; '.join(refusals)}")


def _check_private(place: Path) -> None:
    """Raises `PermissionError` if somebody else could put something there."""
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{place} must be a directory of user {os.getuid()} that nobody else may enter (mode 700); it is of user "
            f"{found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}"
        )


def new_socket_path(place: Path) -> str:
    path = str(place / f"{os.getpid()}-{secrets.token_hex(4)}.sock")
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise OSError(f"{path} is too long for a socket's path: set XDG_RUNTIME_DIR to a directory with a short path")
    return path


def announce(running: Running) -> None:
    """The job takes requests from now on."""
    path = _description_path(running.socket)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(msgspec.json.encode(running))
    unfinished.rename(path)


def withdraw(running: Running) -> None:
    for path in (_description_path(running.socket), Path(running.socket)):
        with contextlib.suppress(OSError):
            path.unlink()


def running_jobs() -> list[Running]:
    """The jobs of this user that take requests now, oldest first. Removes what dead ones left behind."""
    found = [running for place in places() for running in _described(place)]
    living = [running for running in found if _answers(running)]
    return sorted(living, key=lambda running: (running.started_ms, running.name, running.directory or ""))


def _described(place: Path) -> Iterator[Running]:
    try:
        _check_private(place)
    except OSError:
        return
    for path in sorted(place.glob("*.json")):
        try:
            running = msgspec.json.decode(path.read_bytes(), type=Running)
        except (OSError, msgspec.MsgspecError):
            continue  # it has just ended, or is of a version that says other things
        if _description_path(running.socket) == path:
            yield running


def _answers(running: Running) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(running.socket)
        except (ConnectionRefusedError, FileNotFoundError):
            withdraw(running)
            return False
        except OSError:
            return True  # it is there, but busy
    return True


def _description_path(socket_path: str) -> Path:
    return Path(socket_path).with_suffix(".json")
