"""Which local copies the subtasks of a worker may still need: those that the newest complete checkpoint names, or one
after it, and those that no checkpoint has named yet. See `store/copies.py` for what copies are."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.core.handles import PartHandle
from penstock.core.ids import CheckpointId
from penstock.runtime.pool import Pool
from penstock.store.copies import SlotCopies
from penstock.store.layout import checkpoint_directory, part_path


class AttemptCopies:
    """The copies of one attempt on one worker."""

    def __init__(self, copies: SlotCopies, pool: Pool) -> None:
        self.files = copies
        self._pool = pool
        self._released: set[str] = set()
        """Was named once, and is not needed any more."""
        self._lock = threading.Lock()
        self._named: dict[CheckpointId, set[str]] = {}
        """What the subtasks of this worker acknowledged."""

    def acknowledged(self, checkpoint: CheckpointId, handles: Sequence[PartHandle]) -> None:
        """On any thread."""
        directory = checkpoint_directory(checkpoint)
        paths = {part_path(directory, handle) for handle in handles if handle.inline is None}
        with self._lock:
            self._named.setdefault(checkpoint, set()).update(paths)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Deletes, in the background, what is not needed any more."""
        with self._lock:
            ever = self._released.union(*self._named.values())
            self._named = {known: paths for known, paths in self._named.items() if known >= checkpoint}
            needed = set().union(*self._named.values())
            self._released = released = ever - needed
        self._pool.submit(lambda: self.files.clean(needed, released))
