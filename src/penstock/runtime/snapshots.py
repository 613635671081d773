"""Writes the snapshots of one subtask, off its thread, through the worker's pool.

A write and the discard of its checkpoint may meet in any order: whoever comes second cleans up, so an aborted
checkpoint leaves no file of a living attempt. (Files of dead attempts are the store's to clean.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, Uid
from penstock.operators.base import Clock
from penstock.runtime.pool import Pool
from penstock.runtime.ports import Note, WriteFailed, Written
from penstock.state.parts import CapturedPart
from penstock.store.files import Files
from penstock.store.layout import data_path
from penstock.store.parts import write_parts

_LOG: Final = logging.getLogger(__name__)
_REMEMBERED: Final = 256
"""Checkpoints for which a late discard is still honoured."""


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
        self._written: dict[CheckpointId, list[str]] = {}
        self._discarded: set[CheckpointId] = set()

    def write(self, checkpoint: CheckpointId, ticket: int, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        self._pool.submit(lambda: self._write(checkpoint, ticket, parts))

    def discard(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            self._discarded.add(checkpoint)
            self._forget_old(checkpoint)
            written = self._written.pop(checkpoint, [])
        if written:
            self._pool.submit(lambda: self._delete(written))

    def _write(self, checkpoint: CheckpointId, ticket: int, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        if checkpoint in self._discarded:
            return
        began = self._clock.now()
        path = data_path(checkpoint, self._generation, self._attempt, self._subtask, ticket)
        try:
            handles = write_parts(self._files, path, parts, self._inline)
        except Exception as error:
            _LOG.warning("%s could not write %s", self._subtask, path, exc_info=True)
            self._put(WriteFailed(checkpoint, ticket, f"{type(error).__name__}: {error}"))
            return
        made_a_file = any(handle.inline is None for handle in handles)
        if made_a_file and not self._keep(checkpoint, path):
            self._delete([path])
            return
        self._put(Written(checkpoint, ticket, handles, self._clock.now() - began))

    def _keep(self, checkpoint: CheckpointId, path: str) -> bool:
        with self._lock:
            if checkpoint in self._discarded:
                return False
            self._written.setdefault(checkpoint, []).append(path)
            self._forget_old(checkpoint)
            return True

    def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._files.delete(path)
            except OSError as error:
                _LOG.warning("%s of an aborted checkpoint stays until the store is cleaned: %s", path, error)

    def _forget_old(self, newest: CheckpointId) -> None:
        self._discarded = {checkpoint for checkpoint in self._discarded if checkpoint > newest - _REMEMBERED}
        for checkpoint in [known for known in self._written if known <= newest - _REMEMBERED]:
            del self._written[checkpoint]


class NoSnapshots:
    """Of a job without checkpoints: nobody ever triggers one."""

    def write(self, checkpoint: CheckpointId, ticket: int, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        raise RuntimeError(f"checkpoint {checkpoint} was triggered, but the job has no checkpoint directory")

    def discard(self, checkpoint: CheckpointId) -> None:
        pass
