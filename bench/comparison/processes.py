"""A measurement as a process of its own, with an end to everything that it starts.

Each runs in a session of its own. What it leaves behind, a JVM or a daemon, is found by the session's number and ended
by its process id. Sessions, not process groups: Spark's Python daemon makes a group of its own, but stays in the
session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_GRACE_SECONDS = 5.0
_LAST_LINES = 25
Say = Callable[[str], None]


@dataclass(frozen=True)
class Ended:
    output: str
    """Everything on standard output."""
    errors: str
    """The last lines on standard error."""
    code: int | None
    """None: it was ended because its time was over."""
    seconds: float


def run(command: Sequence[str], *, timeout: float, say: Say, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a command until it ends or its time is over. `say` is told each line that it writes to standard error."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        env=None if environment is None else {**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    output: list[str] = []
    errors: deque[str] = deque(maxlen=_LAST_LINES)

    def heard(line: str) -> None:
        errors.append(line)
        say(line.rstrip())

    readers = [_reader(process.stdout, output.append), _reader(process.stderr, heard)]
    code: int | None = None
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        say(f"its {timeout:.0f} s are over: ended")
    finally:
        end_session(process.pid)
        process.wait()
    for reader in readers:
        reader.join(_GRACE_SECONDS)
    return Ended("".join(output), "".join(errors), code, time.monotonic() - began)


def _reader(stream: IO[str] | None, take: Say) -> threading.Thread:
    assert stream is not None

    def read() -> None:
        for line in stream:
            take(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def end_session(session: int) -> None:
    """Ends every process of a session: asks first, then kills what does not listen."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in members(session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_SECONDS
        while members(session):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


def members(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, of_session = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
                if int(of_session) == session and state != "Z":
                    found.append(int(entry.name))
    return found
