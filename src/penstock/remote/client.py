"""The asking end: finds a running job and asks it. Errors are for people who typed a command."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.remote import registry
from penstock.remote.messages import LARGEST_ANSWER, Answer, Refused, Request
from penstock.remote.registry import Running
from penstock.runtime.control import framing
from penstock.runtime.network.errors import WireError
from penstock.runtime.network.streams import open_stream
from penstock.store.addresses import absolute_address

_CONNECTING: Final = 5.0


class CommandError(Exception):
    """A command that did not work. `kind` is for machines, the message for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def find(job: str, running: Sequence[Running] | None = None) -> Running:
    """The running job of that name or checkpoint directory."""
    running = registry.running_jobs() if running is None else running
    matching = [one for one in running if one.name == job]
    if not matching:
        matching = [
            one
            for one in running
            if one.directory is not None and absolute_address(one.directory) == absolute_address(job)
        ]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        there = f"running are: {', '.join(map(str, running))}" if running else "no job of this user runs here"
        raise CommandError("no_such_job", f"no job {job!r} runs on this machine; {there}")
    several = ", ".join(map(str, matching))
    raise CommandError("ambiguous", f"several jobs are named {job!r}: {several}. Name one by its checkpoint directory")


def ask(running: Running, request: Request, silence: float | None = None) -> Answer:
    """The answer, however long it takes (`silence`: seconds to wait at most). Raises `CommandError` if the job refuses,
    or ends without an answer."""
    with _connected(running) as connection:
        stream = open_stream(connection, silence)
        reader: framing.MessageReader[Answer] = framing.MessageReader(Answer, LARGEST_ANSWER)
        try:
            stream.send(framing.framed(framing.encode(request)))
            answer = reader.read(stream)
        except (EOFError, ConnectionError):
            raise CommandError("job_ended", f"job {running} has ended, or was killed, before it answered") from None
        except TimeoutError:
            raise CommandError("no_answer", f"job {running} did not answer within {silence:g} s") from None
        except WireError as error:
            raise CommandError("not_understood", f"job {running} answered in another version: {error}") from None
        finally:
            stream.close()
    if isinstance(answer, Refused):
        raise CommandError(answer.error, answer.message)
    assert answer is not None, "a job sends no heartbeats"
    return answer


@contextlib.contextmanager
def _connected(running: Running) -> Iterator[socket.socket]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECTING)
    try:
        connection.connect(running.socket)
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        raise CommandError("job_ended", f"job {running} has ended meanwhile") from None
    except PermissionError:
        connection.close()
        raise CommandError(
            "not_allowed", f"job {running} belongs to another user: commands come from its own (this is {os.getuid()})"
        ) from None
    except TimeoutError:
        connection.close()
        raise CommandError("no_answer", f"job {running} takes no requests: its process may be stopped") from None
    try:
        yield connection
    finally:
        connection.close()
