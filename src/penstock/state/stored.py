"""The parts of a restore, by state, whichever backend wrote them.

A state is stored as files of keyed state (`tables`), layer upon layer. RocksDB also stores it as its own files, which
are pieces of the lowest layer; their names end in `.sst`, that of the one that says what they are in `.rocksdb`. Files
of keyed state are to be read after them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.core.ids import Uid
from penstock.state.parts import RestoredPart
from penstock.state.tables import StateMismatch

TABLE: Final = ".sst"
MANIFEST: Final = ".rocksdb"


def is_native(piece: str) -> bool:
    """Whether a piece of that name is for RocksDB alone."""
    return piece.endswith((TABLE, MANIFEST))


@dataclass
class StoredState:
    natives: dict[int, list[RestoredPart]] = field(default_factory=dict)
    """RocksDB's files, by writer."""
    tables: list[RestoredPart] = field(default_factory=list)
    """Files of keyed state, lower layers first, to be read after the natives."""


def stored_states(uid: Uid, declared: Collection[str], parts: Iterable[RestoredPart]) -> dict[str, StoredState]:
    """A stored state that is not declared any more is refused, not dropped."""
    states: dict[str, StoredState] = {}
    for part in parts:
        if part.name not in declared:
            raise StateMismatch(
                f"operator {uid!r}: the checkpoint holds a state {part.name!r} that is not declared any more "
                f"(declared are {sorted(declared)}): declare it again, or give the operator another uid to start "
                "with empty state"
            )
        state = states.setdefault(part.name, StoredState())
        if is_native(part.piece):
            state.natives.setdefault(part.subtask, []).append(part)
        else:
            state.tables.append(part)
    return states
