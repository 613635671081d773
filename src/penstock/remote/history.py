"""The checkpoints of a job: as its directory remembers them, and those that a running job knows to be under way."""

from __future__ import annotations

from typing import Any

from penstock.remote.client import CommandError, ask, find
from penstock.remote.messages import Checkpoints, ListCheckpoints
from penstock.remote.registry import Running


def history(job: str, last: int) -> list[dict[str, Any]]:
    """The last ones, oldest first. `job`: the name of a running job, or a checkpoint directory."""
    try:
        running: Running | None = find(job)
    except CommandError as error:
        if error.kind != "no_such_job":
            raise
        running, unknown = None, error
    directory = running.directory if running else job
    stored = _stored(directory) if directory else []
    if running is None and not stored:
        raise CommandError("no_such_job", f"{unknown}; and {job} is no checkpoint directory with statistics")
    live = _live(running, last) if running else []
    # A number belongs to one checkpoint of one driver's life; what the running driver says of its own is newer.
    known = {_identity(entry) for entry in live}
    return [*(entry for entry in stored if _identity(entry) not in known), *live][-last:]


def _identity(entry: dict[str, Any]) -> tuple[object, ...]:
    return entry.get("checkpoint"), entry.get("attempt"), entry.get("triggered_ms")


def _stored(directory: str) -> list[dict[str, Any]]:
    from penstock.store.opening import open_files
    from penstock.store.statistics import Statistics

    try:
        files = open_files(directory)
    except ValueError as error:
        raise CommandError("no_such_directory", str(error)) from None
    return list(Statistics(files).read())


def _live(running: Running, last: int) -> list[dict[str, Any]]:
    answer = ask(running, ListCheckpoints(last))
    assert isinstance(answer, Checkpoints)
    return answer.entries
