"""The parts of a restore, by state, whichever backend wrote them.

A state is stored as a file of keyed state (`tables`) under its own name, with layers of changes to it; by RocksDB also
as its own files, to which the file of keyed state then holds changes; and what is very large, as several files, each of
some of the key groups. Parts of one state other than the first are named `<state>#<what>`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.core.handles import state_of
from penstock.core.ids import Uid
from penstock.state.parts import RestoredPart
from penstock.state.tables import StateMismatch

_MANIFEST: Final = "rocksdb"
_NATIVE: Final = re.compile(rf"{_MANIFEST}|[0-9]+\.sst")


def manifest_name(state: str) -> str:
    """The part that says what RocksDB's files of a state are."""
    return f"{state}#{_MANIFEST}"


def native_name(state: str, file: str) -> str:
    """The part that is one of RocksDB's files."""
    return f"{state}#{file}"


def range_name(state: str, first_group: int) -> str:
    """A file of keyed state that begins with that key group."""
    return f"{state}#{first_group}"


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
        name = state_of(part.name)
        if name not in declared:
            raise StateMismatch(
                f"operator {uid!r}: the checkpoint holds a state {name!r} that is not declared any more "
                f"(declared are {sorted(declared)}): declare it again, or give the operator another uid to start "
                "with empty state"
            )
        state = states.setdefault(name, StoredState())
        if _NATIVE.fullmatch(part.name.partition("#")[2]):
            state.natives.setdefault(part.subtask, []).append(part)
        else:
            state.tables.append(part)
    return states
