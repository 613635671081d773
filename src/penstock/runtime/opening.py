"""Opens a job, off the master's thread: claims its directory, finds what it begins from, makes its committers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.connectors.base import Committer
from penstock.core.ids import CheckpointId, Uid
from penstock.graph.job import JobGraph
from penstock.store.savepoints import remove_savepoint

if TYPE_CHECKING:
    from penstock.store.checkpoints import CheckpointStore, Claim
    from penstock.store.savepoints import Snapshot


@dataclass(frozen=True)
class RestoreElsewhere:
    """Begin from a savepoint, or from a checkpoint of another directory."""

    find: Callable[[], Snapshot]
    """Called off the master's thread."""
    claim: bool = False
    """The savepoint belongs to the job from now on: it is removed once it was copied in."""


@dataclass(frozen=True)
class Opened:
    claim: Claim | None
    """None: the job has no checkpoints."""
    committers: dict[Uid, Committer]


def open_job(graph: JobGraph, store: CheckpointStore | None, origin: CheckpointId | RestoreElsewhere | None) -> Opened:
    claim = _claimed(store, origin) if store else None
    specs = [spec for chain in graph.chains for spec in chain.operators]
    return Opened(claim, {spec.uid: spec.sink.committer(spec.uid, graph.name) for spec in specs if spec.sink})


def _claimed(store: CheckpointStore, origin: CheckpointId | RestoreElsewhere | None) -> Claim:
    if not isinstance(origin, RestoreElsewhere):
        return store.claim(origin)
    snapshot = origin.find()
    if origin.claim and not snapshot.is_savepoint:
        raise ValueError(
            f"{snapshot.address} is a checkpoint that belongs to its job: only a savepoint can be claimed. Start "
            "without claim=True: the checkpoint is copied, and stays as it is"
        )
    claim = store.claim(snapshot)
    if origin.claim:
        remove_savepoint(snapshot)
    return claim
