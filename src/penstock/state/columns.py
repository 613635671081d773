"""Keyed state in columns: every key has a slot, and the values of all keys lie in arrays indexed by slot.

Theory of operation. An index gives each key its slot (`index`); what is kept there is the business of the values'
owners (`SlotValues`: aggregates, for example). The index notes which slots are touched between two cuts, so that the
changes since a cut are known without looking at all keys. A capture copies nothing but the values of a few changed
slots: the keys of slots in use never change, and of a large capture the arrays are frozen (`frozen`). It becomes a
table, laid out by key group, with the values as plain columns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Cut, Uid
from penstock.kernels.gathering import gathered
from penstock.state.frozen import FrozenArrays
from penstock.state.index import DictIndex, Found, KeyIndex, Slots, suited_index
from penstock.state.keys import KeyColumns
from penstock.state.parts import Buffer, Encode, Piece, RestoredPart
from penstock.state.tables import Rows, StateMismatch, encode_rows, key_columns_of, read_table

COPIED: Final = 1 << 19
"""Up to so many changed slots, their values are copied at once, which takes a few milliseconds; the arrays of more are
frozen, which costs something with every change until they are written."""


class SlotValues(Protocol):
    """The values of one column, by slot."""

    type: pa.DataType

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """What is kept."""
        ...

    def frozen_results(self, values: npt.NDArray[Any], seen: npt.NDArray[np.bool_] | None) -> pa.Array:
        """The column of values that were taken from `arrays`. Touches nothing that changes."""
        ...

    def put(self, slots: Slots, column: pa.Array, keys: int) -> None:
        """Takes up stored values, each for its slot."""
        ...

    def expect(self, keys: int) -> None:
        """Makes room for so many keys at once."""
        ...


class ColumnState:
    """Implements `LoggedState`."""

    def __init__(
        self,
        name: str,
        kind: str,
        keys: KeyColumns,
        values: Mapping[str, SlotValues],
        description: Mapping[str, Any],
    ) -> None:
        self.name, self._kind, self._keys, self._values, self._description = name, kind, keys, values, description
        self._index: KeyIndex = DictIndex(keys)
        self._touched: list[tuple[Cut, Slots]] = []
        """Up to each cut, the slots that were touched since the one before it; none before the floor."""
        self._floor = Cut(0)
        self._frozen: list[weakref.ref[FrozenArrays]] = []
        """Captures that may still be read."""

    def own(self, key_groups: KeyGroupRange, total_groups: int) -> None:
        """Says which keys will come; before anything else."""
        self.key_groups, self._total = key_groups, total_groups

    def __len__(self) -> int:
        return len(self._index)

    # ---- use ----
    def find(self, key_columns: list[pa.Array]) -> Found:
        """Looks the key of every row up; new keys get new slots. The values of these slots may be changed from here to
        the next call."""
        self._index = suited_index(self._index, self._keys, key_columns)
        found = self._index.find(key_columns)
        if self._frozen:
            self._keep(found.slots[found.first_rows])
        return found

    def _keep(self, slots: Slots) -> None:
        """Captures that are still being written keep what is about to change."""
        living = [(reference, frozen) for reference in self._frozen if (frozen := reference()) is not None]
        self._frozen = [reference for reference, _ in living]
        for _, frozen in living:
            frozen.keep(slots)

    # ---- captures ----
    @property
    def size(self) -> int:
        return len(self._index)

    def mark(self, cut: Cut, floor: Cut) -> None:
        self._touched = [(known, slots) for known, slots in self._touched if known > floor]
        self._touched.append((cut, self._index.take_touched()))
        self._floor = floor

    def changed_since(self, cut: Cut) -> int | None:
        return None if cut < self._floor else sum(len(slots) for known, slots in self._touched if known > cut)

    def changes(self, since: Cut) -> Encode:
        touched = [slots for known, slots in self._touched if known > since]
        return self._captured(touched[0] if len(touched) == 1 else self._distinct(touched))

    def _distinct(self, touched: Sequence[Slots]) -> Slots:
        marked = np.zeros(len(self._index), np.bool_)
        for slots in touched:
            marked[slots] = True
        return np.flatnonzero(marked)

    def whole(self, portable: bool) -> Sequence[Piece]:
        return [Piece(self._captured(None))] if len(self._index) else []

    def _captured(self, slots: Slots | None) -> Encode:
        """Of some slots, or of all."""
        arrays = [array for values in self._values.values() for array in values.arrays]
        counts = {name: len(values.arrays) for name, values in self._values.items()}
        if slots is not None and len(slots) <= COPIED:
            copies = [gathered(array, slots) for array in arrays]
            return partial(
                self._encode,
                self._index.captured(),
                slots,
                counts,
                lambda rows: [gathered(copy, rows) for copy in copies],
            )
        frozen = FrozenArrays(arrays, len(self._index))
        self._frozen.append(weakref.ref(frozen))

        def read(rows: Rows) -> list[npt.NDArray[Any]]:
            return frozen.values(rows if slots is None else slots[rows])

        return partial(self._encode, self._index.captured(), slots, counts, read)

    def _encode(
        self,
        key_columns: Callable[[Slots | None], list[pa.Array]],
        slots: Slots | None,
        counts: Mapping[str, int],
        read: Callable[[Rows], list[npt.NDArray[Any]]],
    ) -> Iterable[Buffer]:
        """On any thread: touches nothing that changes. `counts`: how many arrays each column had; `read` gives some
        rows of all these arrays."""

        def of_rows(rows: Rows) -> list[pa.Array]:
            arrays, columns = iter(read(rows)), []
            for name, count in counts.items():
                values, *seen = islice(arrays, count)
                columns.append(self._values[name].frozen_results(values, seen[0] if seen else None))
            return columns

        types = {name: values.type for name, values in self._values.items()}
        keys = key_columns(slots)
        return encode_rows(self._kind, self.name, self._description, self._keys, self._total, keys, types, of_rows)

    # ---- restores ----
    def restore(self, uid: Uid, parts: Sequence[RestoredPart], what: str) -> None:
        """Takes up the layers of all writers, lower ones first. `what` names the values in the message to a user who
        has changed them."""
        for part in parts:
            header, batches = read_table(part, self._keys, self.key_groups)
            if header.kind != self._kind or dict(header.description) != self._description:
                raise StateMismatch(
                    f"operator {uid!r}: stored are the {what} {_shown(header.description)}, but declared are "
                    f"{_shown(self._description)}: declare them as they were, or give the operator another uid"
                )
            expected = len(self._index) + sum(batch.num_rows for batch in batches)
            for batch in batches:
                self._take_up(batch, expected)

    def _take_up(self, batch: pa.RecordBatch, expected: int) -> None:
        key_columns = key_columns_of(batch, self._keys)
        self._index = suited_index(self._index, self._keys, key_columns)
        self._index.expect(expected)
        slots = self._index.find(key_columns).slots
        for name, values in self._values.items():
            values.expect(expected)
            values.put(slots, batch.column(name), len(self._index))


def _shown(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{item['name']}={item['is']}: {item['of']}" for item in description.get("columns", ()))
