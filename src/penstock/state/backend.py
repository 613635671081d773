"""Where the keyed states of an operator are kept: what its backends have in common, and which one it is."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.state.keyed import KeyedBackend
from penstock.state.keys import KeyColumns
from penstock.state.kinds import KeyedState
from penstock.state.parts import LoggedState, RestoredPart
from penstock.state.rocks.memory import check_installed

if TYPE_CHECKING:
    from penstock.operators.base import OperatorContext


class Backend(Protocol):
    """All keyed states of one operator's instance. Lives on the task's thread."""

    @property
    def states(self) -> Sequence[KeyedState]: ...

    def add(self, state: KeyedState) -> None:
        """Before anything else: this state is kept here."""
        ...

    @property
    def logs(self) -> Sequence[LoggedState]:
        """How the states can be captured."""
        ...

    def restore(self, parts: Sequence[RestoredPart]) -> None:
        """Once, before there are any entries. Lower layers first, of any backend. A stored state that is not declared
        any more is refused, not dropped."""
        ...

    def prefetch(self, keys: Collection[Hashable]) -> None:
        """These keys will be asked for next."""
        ...

    def write_back(self) -> None:
        """After the work with keys that were prefetched: what was changed is to be kept. Nothing may be captured
        before."""
        ...

    def settle(self) -> None:
        """Between batches: time for work that has to be done now and then."""
        ...

    def close(self) -> None:
        """Lets go of whatever is held outside of memory."""
        ...


def backend_of(context: OperatorContext, keys: KeyColumns) -> Backend:
    """The backend that the pipeline chose."""
    groups, total = context.key_groups, context.total_key_groups
    if context.rocksdb is None:
        return KeyedBackend(context.uid, keys, groups, total)
    check_installed()
    from penstock.state.rocks.backend import RocksBackend  # loads RocksDB

    return RocksBackend(context.uid, context.subtask, keys, groups, total, context.rocksdb)
