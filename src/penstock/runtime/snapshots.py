"""Writes the snapshots of one subtask, off its thread, through the worker's pool.

A write and its drop may meet in any order: whoever comes second cleans up, so what nobody needs leaves no file of a
living attempt. (Files of dead attempts are the store's to clean.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, Uid
from penstock.operators.base import Clock
from penstock.runtime.pool import Pool
from penstock.runtime.ports import Note, WriteFailed, WriteId, Written
from penstock.state.parts import CapturedPart
from penstock.store.files import Files
from penstock.store.layout import data_path
from penstock.store.parts import write_parts

_LOG: Final = logging.getLogger(__name__)
_REMEMBERED: Final = 256
"""Checkpoints for whose writes a late drop is still honoured."""


class PooledSnapshotWriter:
    """The `SnapshotWriter` of one task."""

    def __init__(
        self,
        files: Files,
        pool: Pool,
        clock: Clock,
        generation: Generation,
        attempt: Attempt,
        subtask: SubtaskId,
        put: Callable[[Note], None],
        inline: int = 0,
    ):
        self._files = files
        self._pool = pool
        self._clock = clock
        self._generation = generation
        self._attempt = attempt
        self._subtask = subtask
        self._put = put
        self._inline = inline
        self._lock = threading.Lock()
        self._written: dict[WriteId, str] = {}
        self._dropped: set[WriteId] = set()

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        self._pool.submit(lambda: self._write(write, parts))

    def drop(self, write: WriteId) -> None:
        with self._lock:
            self._dropped.add(write)
            self._forget_old(write.checkpoint)
            written = self._written.pop(write, None)
        if written is not None:
            self._pool.submit(lambda: self._delete(written))

    def _write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        if write in self._dropped:
            return
        began = self._clock.now()
        path = data_path(write.checkpoint, self._generation, self._attempt, self._subtask, write.ticket)
        try:
            handles = write_parts(self._files, path, parts, self._inline)
        except Exception as error:
            _LOG.warning("%s could not write %s", self._subtask, path, exc_info=True)
            self._put(WriteFailed(write, f"{type(error).__name__}: {error}"))
            return
        made_a_file = any(handle.inline is None for handle in handles)
        if made_a_file and not self._keep(write, path):
            self._delete(path)
            return
        self._put(Written(write, handles, self._clock.now() - began))

    def _keep(self, write: WriteId, path: str) -> bool:
        with self._lock:
            if write in self._dropped:
                return False
            self._written[write] = path
            self._forget_old(write.checkpoint)
            return True

    def _delete(self, path: str) -> None:
        try:
            self._files.delete(path)
        except OSError as error:
            _LOG.warning("%s, which nobody needs, stays until the store is cleaned: %s", path, error)

    def _forget_old(self, newest: CheckpointId) -> None:
        oldest = newest - _REMEMBERED
        self._dropped = {write for write in self._dropped if write.checkpoint > oldest}
        self._written = {write: path for write, path in self._written.items() if write.checkpoint > oldest}


class NoSnapshots:
    """Of a job without checkpoints: nobody ever triggers one."""

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        raise RuntimeError(f"checkpoint {write.checkpoint} was triggered, but the job has no checkpoint directory")

    def drop(self, write: WriteId) -> None:
        pass
