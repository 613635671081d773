"""Writes the snapshots of one subtask, off its thread, through the worker's pool.

Where a snapshot goes depends on its size: the smallest ones into the checkpoint's metadata, small ones into a file that
the subtasks of the worker share (see `sharing`), and what is larger into a file of its own.

A write and the discard of its checkpoint may meet in any order: whoever comes second cleans up, so an aborted
checkpoint leaves no file of a living attempt. (Files of dead attempts are the store's to clean.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.handles import PartHandle
from penstock.core.ids import Attempt, CheckpointId, Generation, SubtaskId, Uid
from penstock.core.settings import LayerSettings
from penstock.operators.base import Clock
from penstock.runtime.pool import Pool
from penstock.runtime.ports import Note, WriteFailed, Written
from penstock.runtime.sharing import REMEMBERED, Share, Sharing, delete_files
from penstock.state.parts import CapturedPart
from penstock.store.files import DataFiles
from penstock.store.layout import data_path, shared_path
from penstock.store.parts import EncodedParts, LargeParts, encode_parts

_LOG: Final = logging.getLogger(__name__)
_TICKETS: Final = (0, 1)


@dataclass(frozen=True)
class AttemptFiles:
    """Where one attempt on one worker writes its snapshots."""

    files: DataFiles
    pool: Pool
    clock: Clock
    generation: Generation
    attempt: Attempt
    settings: LayerSettings
    sharing: Sharing

    @classmethod
    def of(
        cls,
        files: DataFiles,
        pool: Pool,
        clock: Clock,
        generation: Generation,
        attempt: Attempt,
        settings: LayerSettings,
        subtasks: Collection[SubtaskId],
    ) -> AttemptFiles:
        """Of the worker that runs these subtasks."""
        slot = max((subtask.index for subtask in subtasks), default=0)

        def path(checkpoint: CheckpointId, ticket: int, number: int) -> str:
            return shared_path(checkpoint, generation, attempt, slot, ticket, number)

        sharing = Sharing(files, pool, clock, path, subtasks, settings.wait_for_others)
        return cls(files, pool, clock, generation, attempt, settings, sharing)


class PooledSnapshotWriter:
    """The `SnapshotWriter` of one task."""

    def __init__(self, around: AttemptFiles, subtask: SubtaskId, put: Callable[[Note], None]):
        self._around = around
        self._subtask = subtask
        self._put = put
        self._lock = threading.Lock()
        self._written: dict[CheckpointId, list[str]] = {}
        """Files of its own."""
        self._discarded: set[CheckpointId] = set()

    def write(self, checkpoint: CheckpointId, ticket: int, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        self._around.pool.submit(lambda: self._write(checkpoint, ticket, parts))

    def skip(self, checkpoint: CheckpointId, ticket: int) -> None:
        self._around.sharing.skip(checkpoint, ticket, self._subtask)

    def discard(self, checkpoint: CheckpointId) -> None:
        around = self._around
        with self._lock:
            self._discarded.add(checkpoint)
            self._forget_old(checkpoint)
            written = self._written.pop(checkpoint, [])
        if written:
            around.pool.submit(lambda: delete_files(around.files, written))
        for ticket in _TICKETS:
            around.sharing.discard(checkpoint, ticket, self._subtask)

    def _write(self, checkpoint: CheckpointId, ticket: int, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        around = self._around
        if checkpoint in self._discarded:
            return
        began = around.clock.now()
        try:
            encoded = encode_parts(parts, max(around.settings.inline, around.settings.shared))
            if isinstance(encoded, EncodedParts) and encoded.size > around.settings.inline:
                self._share(checkpoint, ticket, encoded, around.clock.now() - began)
                return
            self.skip(checkpoint, ticket)
            if isinstance(encoded, EncodedParts):
                self._put(Written(checkpoint, ticket, encoded.inlined(), around.clock.now() - began))
            else:
                self._write_own(checkpoint, ticket, encoded, began)
        except Exception as error:
            _LOG.warning("%s could not write its part of checkpoint %d", self._subtask, checkpoint, exc_info=True)
            self.skip(checkpoint, ticket)
            self._failed(checkpoint, ticket, error)

    def _write_own(self, checkpoint: CheckpointId, ticket: int, encoded: LargeParts, began: float) -> None:
        around = self._around
        path = data_path(checkpoint, around.generation, around.attempt, self._subtask, ticket)
        handles = encoded.write(around.files, path)
        if self._keep(checkpoint, path):
            self._put(Written(checkpoint, ticket, handles, around.clock.now() - began))
        else:
            delete_files(around.files, [path])

    def _share(self, checkpoint: CheckpointId, ticket: int, encoded: EncodedParts, encoded_in: float) -> None:
        def written(handles: Sequence[PartHandle], seconds: float) -> None:
            self._put(Written(checkpoint, ticket, handles, encoded_in + seconds))

        def failed(error: Exception) -> None:
            self._failed(checkpoint, ticket, error)

        self._around.sharing.add(checkpoint, ticket, Share(self._subtask, encoded, written, failed))

    def _failed(self, checkpoint: CheckpointId, ticket: int, error: Exception) -> None:
        self._put(WriteFailed(checkpoint, ticket, f"{type(error).__name__}: {error}"))

    def _keep(self, checkpoint: CheckpointId, path: str) -> bool:
        with self._lock:
            if checkpoint in self._discarded:
                return False
            self._written.setdefault(checkpoint, []).append(path)
            self._forget_old(checkpoint)
            return True

    def _forget_old(self, newest: CheckpointId) -> None:
        self._discarded = {checkpoint for checkpoint in self._discarded if checkpoint > newest - REMEMBERED}
        for checkpoint in [known for known in self._written if known <= newest - REMEMBERED]:
            del self._written[checkpoint]


class NoSnapshots:
    """Of a job without checkpoints: nobody ever triggers one."""

    def write(self, checkpoint: CheckpointId, ticket: int, parts: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        raise RuntimeError(f"checkpoint {checkpoint} was triggered, but the job has no checkpoint directory")

    def skip(self, checkpoint: CheckpointId, ticket: int) -> None:
        pass

    def discard(self, checkpoint: CheckpointId) -> None:
        pass
