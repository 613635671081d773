"""Writes the snapshots of one subtask, off its thread, through the worker's pool.

Where a snapshot goes depends on its size: the smallest ones into the checkpoint's metadata, small ones into a file that
the subtasks of the worker share (see `sharing`), and what is larger into a file of its own.

A write and its drop may meet in any order: whoever comes second cleans up, so what nobody needs leaves no file of a
living attempt. (Files of dead attempts are the store's to clean.)
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
from penstock.runtime.ports import CHANNELS, STATE, Note, WriteFailed, WriteId, Written
from penstock.runtime.sharing import REMEMBERED, Share, Sharing, delete_files
from penstock.state.parts import CapturedPart
from penstock.store.files import DataFiles
from penstock.store.layout import data_path, shared_path
from penstock.store.parts import EncodedParts, LargeParts, encode_parts

_LOG: Final = logging.getLogger(__name__)
_Submit = Callable[[Callable[[], None]], None]
_SHARED: Final = (STATE, CHANNELS)
"""Tickets under which every subtask of a worker writes something, or says that it has nothing to write."""


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

        def path(write: WriteId, number: int) -> str:
            return shared_path(write.checkpoint, generation, attempt, slot, write.ticket, number)

        sharing = Sharing(files, pool, clock, path, subtasks, settings.wait_for_others)
        return cls(files, pool, clock, generation, attempt, settings, sharing)


class PooledSnapshotWriter:
    """The `SnapshotWriter` of one task."""

    def __init__(self, around: AttemptFiles, subtask: SubtaskId, put: Callable[[Note], None]):
        self._around = around
        self._subtask = subtask
        self._put = put
        self._lock = threading.Lock()
        self._written: dict[WriteId, str] = {}
        """Files of its own."""
        self._dropped: set[WriteId] = set()

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]], inline: bool = True) -> None:
        most = self._around.settings.inline if inline else 0
        if most and all(part.small for own in parts.values() for part in own):
            self._write(write, parts, most, self._around.pool.submit)
        else:
            self._around.pool.submit(lambda: self._write(write, parts, most, _at_once))

    def skip(self, write: WriteId) -> None:
        if write.ticket in _SHARED:
            self._around.sharing.skip(write, self._subtask)

    def drop(self, write: WriteId) -> None:
        around = self._around
        with self._lock:
            self._dropped.add(write)
            self._forget_old(write.checkpoint)
            written = self._written.pop(write, None)
        if written is not None:
            around.pool.submit(lambda: delete_files(around.files, [written]))
        if write.ticket in _SHARED:
            around.sharing.drop(write, self._subtask)

    def _write(
        self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]], inline: int, blocking: _Submit
    ) -> None:
        """`blocking` does what may take its time."""
        around, settings = self._around, self._around.settings
        if write in self._dropped:
            return
        began = around.clock.now()
        try:
            shared = settings.shared if write.ticket in _SHARED else 0
            encoded = encode_parts(parts, max(inline, shared))
            if isinstance(encoded, EncodedParts) and encoded.size > inline:
                self._share(write, encoded, around.clock.now() - began)
                return
            self.skip(write)
            if isinstance(encoded, EncodedParts):
                self._put(Written(write, encoded.inlined(), around.clock.now() - began))
            else:
                large = encoded
                blocking(lambda: self._write_own(write, large, began))
        except Exception as error:
            self.skip(write)
            self._failed(write, error)

    def _write_own(self, write: WriteId, encoded: LargeParts, began: float) -> None:
        try:
            self._write_file(write, encoded, began)
        except Exception as error:
            self._failed(write, error)

    def _write_file(self, write: WriteId, encoded: LargeParts, began: float) -> None:
        around = self._around
        path = data_path(write.checkpoint, around.generation, around.attempt, self._subtask, write.ticket)
        handles = encoded.write(around.files, path)
        if self._keep(write, path):
            self._put(Written(write, handles, around.clock.now() - began))
        else:
            delete_files(around.files, [path])

    def _share(self, write: WriteId, encoded: EncodedParts, encoded_in: float) -> None:
        def written(handles: Sequence[PartHandle], seconds: float) -> None:
            self._put(Written(write, handles, encoded_in + seconds))

        self._around.sharing.add(
            write, Share(self._subtask, encoded, written, lambda error: self._failed(write, error))
        )

    def _failed(self, write: WriteId, error: Exception) -> None:
        _LOG.warning("%s could not write its part of checkpoint %d", self._subtask, write.checkpoint, exc_info=error)
        self._put(WriteFailed(write, f"{type(error).__name__}: {error}"))

    def _keep(self, write: WriteId, path: str) -> bool:
        with self._lock:
            if write in self._dropped:
                return False
            self._written[write] = path
            self._forget_old(write.checkpoint)
            return True

    def _forget_old(self, newest: CheckpointId) -> None:
        if len(self._dropped) + len(self._written) < 2 * REMEMBERED:
            return  # there is time until it is worth looking through
        oldest = newest - REMEMBERED
        self._dropped = {write for write in self._dropped if write.checkpoint > oldest}
        self._written = {write: path for write, path in self._written.items() if write.checkpoint > oldest}


def _at_once(job: Callable[[], None]) -> None:
    job()


class NoSnapshots:
    """Of a job without checkpoints: nobody ever triggers one."""

    def write(self, write: WriteId, parts: Mapping[Uid, Sequence[CapturedPart]], inline: bool = True) -> None:
        raise RuntimeError(f"checkpoint {write.checkpoint} was triggered, but the job has no checkpoint directory")

    def skip(self, write: WriteId) -> None:
        pass

    def drop(self, write: WriteId) -> None:
        pass
