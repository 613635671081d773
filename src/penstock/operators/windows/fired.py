"""Which keys of a window were put out when a snapshot came in the middle of its firing.

Stored whole, as a keyed part of the keys and the window's `end` (milliseconds); there is none unless a window was on
its way out. A restore skips these keys when the window fires.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.operators.windows.firing import Firing
from penstock.state.index import Slots
from penstock.state.keys import KeyColumns
from penstock.state.parts import CapturedPart, PartKind, RestoredPart
from penstock.state.tables import encode_table, key_columns_of, read_table

_END: Final = "end"


class Table(Protocol):
    """The keys of a window, in slots."""

    def __len__(self) -> int: ...

    def look_up(self, key_columns: list[pa.Array], /) -> Slots:
        """The slot of every row's key, -1 where there is none."""
        ...


class FiredKeys:
    PART: Final = "fired"

    def __init__(self, keys: KeyColumns) -> None:
        self._keys = keys
        self._restored: dict[int, list[list[pa.Array]]] = {}
        """By the end of a window that has not fired since the restore."""

    def restore(self, parts: Sequence[RestoredPart], own: KeyGroupRange) -> None:
        for part in parts:
            for batch in read_table(part, self._keys, own)[1]:
                ends = batch.column(_END).to_numpy()
                for end in np.unique(ends).tolist():
                    chosen = batch.filter(pa.array(ends == end))
                    self._restored.setdefault(end, []).append(key_columns_of(chosen, self._keys))

    def mask(self, end: int, table: Table) -> npt.NDArray[np.bool_] | None:
        """Which slots of a window's table were put out before the restore; None if none was."""
        if end not in self._restored:
            return None
        mask = np.zeros(len(table), np.bool_)
        for columns in self._restored[end]:
            slots = table.look_up(columns)
            mask[slots[slots >= 0]] = True
        return mask

    def forget(self, end: int) -> None:
        """This window, and so all before it, are out."""
        self._restored = {later: pieces for later, pieces in self._restored.items() if later > end}

    def capture(self, firing: Firing | None, own: KeyGroupRange, total: int) -> list[CapturedPart]:
        if firing is None or not len(slots := firing.slots_out()):
            return self.capture_keys(None, own, total)
        return self.capture_keys((firing.end, firing.table.keys_of(slots)), own, total)

    def capture_keys(
        self, out: tuple[int, list[pa.Array]] | None, own: KeyGroupRange, total: int
    ) -> list[CapturedPart]:
        """`out`: the end of the window that is on its way out, and the keys that are."""
        columns = [
            (end, keys) for end, pieces in self._restored.items() if out is None or end != out[0] for keys in pieces
        ]
        columns += [] if out is None else [out]
        if not columns:
            return []
        keys = [pa.concat_arrays(pieces) for pieces in zip(*(keys for _, keys in columns), strict=True)]
        ends = pa.array(np.repeat([end for end, _ in columns], [len(keys[0]) for _, keys in columns]))
        encode = partial(encode_table, self.PART, self.PART, {}, self._keys, total, keys, {_END: ends})
        return [CapturedPart(self.PART, PartKind.KEYED, encode, key_groups=own)]
