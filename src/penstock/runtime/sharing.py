"""The small writes of a worker's subtasks, put together: a file for each checkpoint, not one for each subtask.

Theory of operation. For a checkpoint's state, and again for its records in flight, there is a *round*: each subtask of
the attempt says once what it has to write, a share of a common file (`add`), or nothing that belongs there (`skip`),
because it has nothing at all, or has put it elsewhere. When all have spoken, the shares become one file. Waiting for
the others takes no time from the checkpoint, which is complete only when the last of them has acknowledged. Somebody
may never speak, though: a subtask that ends tells so (`leave`), and for all others the first share of a file waits no
longer than `wait` seconds. Who comes later shares a further file.

A share that is dropped is left out of a file that is not yet being written. Afterwards the file is deleted when the
last of its shares is dropped; until then it holds the bytes of all. If the file cannot be written, all who had a
share in it are told so.

Nobody waits here: a file is written by the pool, whoever completes its round.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.core.handles import PartHandle
from penstock.core.ids import SubtaskId
from penstock.operators.base import Clock
from penstock.runtime.pool import Pool
from penstock.runtime.ports import WriteId
from penstock.store.files import DataFiles
from penstock.store.parts import EncodedParts

_LOG: Final = logging.getLogger(__name__)
REMEMBERED: Final = 256
"""Checkpoints for which a late drop is still honoured."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one subtask has in a file. Of `written` and `failed` one is called, unless it is dropped first."""

    subtask: SubtaskId
    content: EncodedParts
    written: Callable[[Sequence[PartHandle], float], None]
    """With the handles, and the seconds that writing the file took."""
    failed: Callable[[Exception], None]


@dataclass(slots=True)
class _Round:
    missing: set[SubtaskId]
    """Who has not spoken."""
    waiting: dict[SubtaskId, Share] = field(default_factory=dict)
    dropped: set[SubtaskId] = field(default_factory=set)
    files: int = 0
    """How many were begun."""
    holders: dict[str, set[SubtaskId]] = field(default_factory=dict)
    """Of each file that was written: whose shares count."""
    stop_waiting: Callable[[], None] | None = None


class Sharing:
    """Of one attempt on one worker. Called from any thread."""

    def __init__(
        self,
        files: DataFiles,
        pool: Pool,
        clock: Clock,
        path: Callable[[WriteId, int], str],
        subtasks: Iterable[SubtaskId],
        wait: float,
    ) -> None:
        """`path` gives the name of a round's n-th file."""
        self._files = files
        self._pool = pool
        self._clock = clock
        self._path = path
        self._living = set(subtasks)
        self._wait = wait
        self._lock = threading.Lock()
        self._rounds: dict[WriteId, _Round] = {}
        self._closed = False

    # ---- what subtasks say ----
    def add(self, write: WriteId, share: Share) -> None:
        with self._lock:
            round_ = self._round(write)
            if not self._closed:
                round_.waiting[share.subtask] = share
            self._heard(write, share.subtask)
            if round_.waiting and round_.stop_waiting is None:
                round_.stop_waiting = self._pool.after(self._wait, lambda: self._give_up_waiting(write))

    def skip(self, write: WriteId, subtask: SubtaskId) -> None:
        with self._lock:
            self._heard(write, subtask)

    def drop(self, write: WriteId, subtask: SubtaskId) -> None:
        with self._lock:
            round_ = self._round(write)
            round_.dropped.add(subtask)
            self._heard(write, subtask)
            for holders in round_.holders.values():
                holders.discard(subtask)
            unwanted = [path for path, holders in round_.holders.items() if not holders]
            for path in unwanted:
                del round_.holders[path]
        if unwanted:
            self._pool.submit(lambda: delete_files(self._files, unwanted))

    def leave(self, subtask: SubtaskId) -> None:
        """The subtask has ended and says nothing any more. What it has said still counts."""
        with self._lock:
            self._living.discard(subtask)
            for write in list(self._rounds):
                self._heard(write, subtask)

    def close(self) -> None:
        """The attempt has ended: what is not being written yet never will be."""
        with self._lock:
            self._closed = True
            for round_ in self._rounds.values():
                round_.waiting.clear()
                _stop_waiting(round_)

    # ---- rounds (with the lock) ----
    def _round(self, write: WriteId) -> _Round:
        if write not in self._rounds:
            for known in [known for known in self._rounds if known.checkpoint <= write.checkpoint - REMEMBERED]:
                _stop_waiting(self._rounds.pop(known))
            self._rounds[write] = _Round(set(self._living))
        return self._rounds[write]

    def _heard(self, write: WriteId, subtask: SubtaskId) -> None:
        round_ = self._round(write)
        round_.missing.discard(subtask)
        if not round_.missing and round_.waiting:
            self._begin(write, round_)

    def _begin(self, write: WriteId, round_: _Round) -> None:
        shares, round_.waiting = round_.waiting, {}
        _stop_waiting(round_)
        path = self._path(write, round_.files)
        round_.files += 1
        self._pool.submit(lambda: self._write(path, round_, shares))

    # ---- in the pool ----
    def _give_up_waiting(self, write: WriteId) -> None:
        with self._lock:
            round_ = self._rounds.get(write)
            if round_ is not None and round_.waiting:
                self._begin(write, round_)

    def _write(self, path: str, round_: _Round, shares: dict[SubtaskId, Share]) -> None:
        with self._lock:
            wanted = [share for share in shares.values() if share.subtask not in round_.dropped]
        if not wanted:
            return
        began = self._clock.now()
        try:
            self._files.write_in_place(path, [chunk for share in wanted for chunk in share.content.chunks])
        except Exception as error:
            _LOG.warning("%s could not be written", path, exc_info=True)
            for share in wanted:
                share.failed(error)
            return
        with self._lock:
            holders = {share.subtask for share in wanted} - round_.dropped
            if holders:
                round_.holders[path] = holders
        if not holders:
            delete_files(self._files, [path])
        seconds, offset = self._clock.now() - began, 0
        for share in wanted:
            if share.subtask in holders:
                share.written(share.content.placed(path, offset), seconds)
            offset += share.content.size


def _stop_waiting(round_: _Round) -> None:
    if round_.stop_waiting is not None:
        round_.stop_waiting()
        round_.stop_waiting = None


def delete_files(files: DataFiles, paths: Iterable[str]) -> None:
    """Of aborted checkpoints. What cannot be deleted stays until the store is cleaned."""
    for path in paths:
        try:
            files.delete(path)
        except OSError as error:
            _LOG.warning("%s of an aborted checkpoint stays until the store is cleaned: %s", path, error)
