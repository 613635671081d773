"""RocksDB's files of a state, read entry by entry: into a state that is kept elsewhere, or declared otherwise now."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.handles import KeyGroupRange
from penstock.core.ids import Uid
from penstock.core.settings import RocksDBSettings
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.rocks.memory import SharedMemory, shared_memory
from penstock.state.rocks.native import Native
from penstock.state.rocks.workdir import Workdir, workdir
from penstock.state.stored import StoredState


def take_up_natives(
    state: KeyedState, uid: Uid, keys: KeyColumns, own: KeyGroupRange, total_groups: int, stored: StoredState
) -> None:
    """Puts what all writers' files hold of these key groups into a state in memory."""
    settings = RocksDBSettings()
    place, memory = workdir(settings.directory), shared_memory(settings.memory)
    for parts in stored.natives.values():
        take_up(state, uid, keys, own, total_groups, Native.of(parts), place, memory)


def take_up(
    state: KeyedState,
    uid: Uid,
    keys: KeyColumns,
    own: KeyGroupRange,
    total_groups: int,
    native: Native,
    place: Workdir,
    memory: SharedMemory,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Puts what one writer's files hold of these key groups into the state; calls `then` from time to time."""
    header = native.header(keys)
    decode = state.decoder(uid, header.kind, dict(header.description))
    for raw_keys, column in native.batches(keys, total_groups, native.records(own, place, memory)):
        state.take_up(raw_keys, decode(column))
        then()
