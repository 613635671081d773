"""The log of a subtask's keyed state: what was written of it, from which every checkpoint is put together.

Theory of operation
-------------------
Every capture is a *cut* through the state. Of each keyed state there is a chain of layers: the whole as it was at some
cut, then the changes from cut to cut. A capture adds a layer with the changes since the last one, whatever became of
the checkpoint for which that was taken: what an aborted checkpoint has written, or is still writing, is part of the
next one. A checkpoint names the layers that there are at its cut, and is acknowledged when all of them are durable.

::

    cut          1        2        3        4        5        6
    written      whole    changes  changes  changes  changes  changes
                                   whole ............ durable
    chain at 4   whole 1, changes 2, changes 3, changes 4
    chain at 6                     whole 3, changes 4, changes 5, changes 6

*Rewriting.* A chain must not grow for ever. When it has become long, the whole state is captured too, beside the
changes, and written in the background; no checkpoint waits for it. Once it is durable it takes the place of all layers
up to its cut. A whole state takes the place of the changes at once where there is not much of it, or where most of it
has changed.

*Flushing.* In changelog mode there are also cuts between two barriers, so that a checkpoint finds most of its changes
already written.

*Failures.* A write that failed ends the chain before its layer; the next capture has the changes since the layer that
is the last one then, which the states can still tell: they know from which cut on everything is durable (`floor`).

*Files.* What belongs to a complete checkpoint is the store's to keep and to delete. What never did belongs to the
subtask: it is removed here as soon as no chain and no open checkpoint needs it. (What a dead attempt leaves behind is
the store's again.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.core.barrier import Purpose
from penstock.core.handles import PartHandle, PartKind
from penstock.core.ids import CheckpointId, Cut, Uid
from penstock.core.settings import LayerSettings
from penstock.runtime.ports import FIRST_FLUSH, REWRITE, STATE, SnapshotWriter, WriteId
from penstock.state.parts import CapturedPart, LoggedState

_INLINED: Final = 4
"""How many times the bytes that may be inline at once all layers together may have."""


class Progress(Enum):
    WRITING = auto()
    DURABLE = auto()
    FAILED = auto()


@dataclass(eq=False, slots=True)
class Write:
    """What was given to the writer at once."""

    id: WriteId
    progress: Progress = Progress.WRITING
    handles: Sequence[PartHandle] = ()
    published: bool = False
    """A complete checkpoint names it."""
    seconds: float = 0.0
    error: str = ""


class _Source(NamedTuple):
    """A piece of a layer, and the write that it was part of."""

    write: Write
    piece: str


@dataclass(eq=False, slots=True)
class Layer:
    """Of one state: the whole as it was at the cut (number 0), or the changes from the layer below up to the cut.
    Numbers rise within a chain; those of layers that were replaced are left out."""

    place: tuple[Uid, str]
    cut: Cut
    sources: tuple[_Source, ...]
    number: int = 0
    # What became of it once is so for ever, and a chain may have hundreds of layers: none is asked twice.
    _durable: bool = False
    _published: bool = False
    _named: list[PartHandle] | None = None
    _bytes: int = 0

    @property
    def writes(self) -> Iterator[Write]:
        return (source.write for source in self.sources)

    @property
    def durable(self) -> bool:
        self._durable = self._durable or all(write.progress is Progress.DURABLE for write in self.writes)
        return self._durable

    @property
    def published(self) -> bool:
        """A complete checkpoint names all of it."""
        self._published = self._published or all(write.published for write in self.writes)
        return self._published

    @property
    def handles(self) -> list[PartHandle]:
        """Of a durable layer, as any checkpoint may name them."""
        if self._named is None:
            self._named = [
                replace(handle.seen_from_later(source.write.id.checkpoint), layer=self.number)
                for source in self.sources
                for handle in source.write.handles
                if (handle.uid, handle.name) == self.place and handle.piece == source.piece
            ]
            self._bytes = sum(handle.length for handle in self._named)
        return self._named

    @property
    def bytes(self) -> int:
        return self._bytes if self._named is not None else sum(handle.length for handle in self.handles)


@dataclass(slots=True)
class _Chain:
    """Of one state."""

    uid: Uid
    state: LoggedState
    layers: list[Layer] = field(default_factory=list)
    """Added to at the end; otherwise `replace` is called."""
    rewriting: Layer | None = None
    # Of the first layers, which may be hundreds, it is known what became of them: none is looked at again.
    _settled: int = 0
    """How many are durable."""
    _published: int = 0
    """How many are published."""
    _bytes: int = 0
    """Of those that are durable, but for the base."""
    _inlined: int = 0
    """Of these and the base, the bytes that have no file."""
    _named: list[PartHandle] = field(default_factory=list)
    """The handles of those that are durable. Cuts share it: it is only added to, or replaced."""

    @property
    def place(self) -> tuple[Uid, str]:
        return self.uid, self.state.name

    def replace(self, layers: list[Layer]) -> None:
        self.layers = layers
        self._settled = self._published = self._bytes = self._inlined = 0
        self._named = []

    def _look(self) -> None:
        layers = self.layers
        while self._settled < len(layers) and layers[self._settled].durable:
            layer = layers[self._settled]
            self._bytes += layer.bytes if self._settled else 0
            self._inlined += sum(handle.length for handle in layer.handles if handle.inline is not None)
            self._named += layer.handles
            self._settled += 1
        while self._published < len(layers) and layers[self._published].published:
            self._published += 1

    def cut(self) -> CutChain:
        """The layers that there are now."""
        self._look()
        base = self.layers[0].bytes if self._settled else 0
        return CutChain(self.place, self._named, len(self._named), base + self._bytes, self.layers[self._settled :])

    def floor(self, now: Cut) -> Cut:
        """No changes since an earlier cut will be asked for: up to here everything is durable, or there is nothing."""
        self._look()
        return self.layers[max(0, self._settled - 1)].cut if self.layers else now

    def is_long(self, settings: LayerSettings) -> bool:
        if len(self.layers) >= settings.most:
            return True
        self._look()
        return self._settled > 0 and self._bytes > settings.share * self.layers[0].bytes

    @property
    def inlined(self) -> int:
        """Bytes that every checkpoint's metadata repeats."""
        self._look()
        return self._inlined

    @property
    def unpublished(self) -> list[Layer]:
        """Those that no complete checkpoint names all of; the last ones, mostly."""
        self._look()
        return [layer for layer in self.layers[self._published :] if not layer.published]

    @property
    def all_layers(self) -> list[Layer]:
        return self.layers if self.rewriting is None else [*self.layers, self.rewriting]

    def settle(self) -> None:
        """Puts the rewritten state in the place of the layers that it replaces, once it is durable."""
        rewritten = self.rewriting
        if rewritten is not None and rewritten.durable:
            self.rewriting = None
            if self.layers and rewritten.cut >= self.layers[0].cut:
                self.replace([rewritten, *(layer for layer in self.layers if layer.cut > rewritten.cut)])

    def failed(self, write: Write) -> None:
        if self.rewriting is not None and write in self.rewriting.writes:
            self.rewriting = None
        for place, layer in enumerate(self.layers):
            if write in layer.writes:
                self.replace(self.layers[:place])
                return


@dataclass(frozen=True, slots=True)
class CutChain:
    """The layers of a state at a cut. A snapshot costs what is new in it: those that were durable by then, which may be
    hundreds, are not looked at one by one."""

    place: tuple[Uid, str]
    named: list[PartHandle]
    """Begins with the handles of the layers that were durable."""
    known: int
    """How many these are."""
    known_bytes: int
    others: Sequence[Layer]

    @property
    def handles(self) -> list[PartHandle]:
        return self.named[: self.known] + [handle for layer in self.others for handle in layer.handles]

    @property
    def bytes(self) -> int:
        return self.known_bytes + sum(layer.bytes for layer in self.others)


@dataclass(frozen=True, slots=True)
class Captured:
    """A snapshot at its cut: the layers of every logged state, and what was written for this snapshot itself."""

    chains: Sequence[CutChain]
    own: Write | None
    """None: there was nothing to write."""
    layered: frozenset[Write]
    """Those of the layers that no complete checkpoint named at the capture."""

    @property
    def writes(self) -> set[Write]:
        """Those that no complete checkpoint names, and its own."""
        layered = {write for write in self.layered if not write.published}
        return layered if self.own is None else layered | {self.own}

    def handles(self) -> list[PartHandle]:
        """All parts, once they are durable: first the layers, most of which the snapshot before had as well."""
        layered = [handle for chain in self.chains for handle in chain.handles]
        return layered + self._others

    @property
    def bytes(self) -> int:
        """Of all parts, once they are durable."""
        return sum(chain.bytes for chain in self.chains) + sum(handle.length for handle in self._others)

    @property
    def _others(self) -> list[PartHandle]:
        """What was written for this snapshot and is no layer."""
        logged = {chain.place for chain in self.chains}
        return [] if self.own is None else [h for h in self.own.handles if (h.uid, h.name) not in logged]


class StateLog:
    def __init__(self, settings: LayerSettings, writer: SnapshotWriter) -> None:
        self._settings, self._writer = settings, writer
        self._chains: list[_Chain] = []
        self._cut = Cut(0)
        self._home = CheckpointId(0)
        """The checkpoint in whose directory flushes are put: the last one that was captured or restored."""
        self._flushes = 0
        self._flushed_at: float | None = None
        """None: there was a capture since."""
        self._writes: dict[WriteId, Write] = {}
        """Those that no complete checkpoint names."""
        self._open: dict[CheckpointId, Captured] = {}
        """Captured for checkpoints whose end is not known."""

    def add(self, uid: Uid, state: LoggedState, stored: Sequence[PartHandle], checkpoint: CheckpointId) -> None:
        """A state that was opened. `stored`: the layers that it was restored from, as that checkpoint names them, if
        they may be built upon."""
        chain = _Chain(uid, state)
        self._chains.append(chain)
        self._home = checkpoint
        if stored:
            state.mark(Cut(0), Cut(0))
        for number in sorted({handle.layer for handle in stored}):
            handles = [handle for handle in stored if handle.layer == number]
            write = Write(WriteId(checkpoint, STATE), Progress.DURABLE, handles, published=True)
            sources = tuple(_Source(write, handle.piece) for handle in handles)
            chain.layers.append(Layer(chain.place, Cut(0), sources, number))

    # ---- captures ----
    def capture(
        self, checkpoint: CheckpointId, purpose: Purpose, others: Mapping[Uid, Sequence[CapturedPart]]
    ) -> Captured:
        """At a barrier: all logged states, and other parts with them."""
        self._home, self._flushes, self._flushed_at = checkpoint, 0, None
        write, rewrite = Write(WriteId(checkpoint, STATE)), Write(WriteId(checkpoint, REWRITE))
        parts, rewritten = _Parts(others), _Parts({})
        self._mark()
        if purpose is Purpose.SAVEPOINT:
            whole = [self._whole(chain, write, parts, portable=True) for chain in self._chains]
            chains = [CutChain(layer.place, [], 0, 0, [layer]) for layer in whole]
            unpublished = [layer for layer in whole if not layer.published]
        else:
            for chain in self._chains:
                self._extend(chain, write, parts)
                if self._must_rewrite(chain):
                    chain.rewriting = self._whole(chain, rewrite, rewritten)
            chains = [chain.cut() for chain in self._chains]
            unpublished = [layer for chain in self._chains for layer in chain.unpublished]
        layered = frozenset(write for layer in unpublished for write in layer.writes)
        captured = Captured(chains, self._start(write, parts), layered)
        self._start(rewrite, rewritten)
        self._open[checkpoint] = captured
        return captured

    def flush(self, now: float) -> None:
        """Between two barriers: if it is time, writes what has changed since the last cut. One at a time."""
        if not self._settings.changelog:
            return
        if self._flushed_at is None:
            self._flushed_at = now
        if now < self._flushed_at + self._settings.flush_every:
            return
        self._flushed_at = now
        if any(
            write.id.ticket >= FIRST_FLUSH and write.progress is Progress.WRITING for write in self._writes.values()
        ):
            return
        write, parts = Write(WriteId(self._home, FIRST_FLUSH + self._flushes)), _Parts({})
        self._flushes += 1
        self._mark()
        for chain in self._chains:
            self._extend(chain, write, parts, flush=True)
        self._start(write, parts)

    @property
    def _writing(self) -> list[Write]:
        return [write for write in self._writes.values() if write.progress is Progress.WRITING]

    def _mark(self) -> None:
        self._cut = Cut(self._cut + 1)
        for chain in self._chains:
            chain.state.mark(self._cut, chain.floor(self._cut))

    def _extend(self, chain: _Chain, write: Write, parts: _Parts, flush: bool = False) -> None:
        """Adds what has changed since the last layer, or begins anew with the whole; a flush does not."""
        state, settings = chain.state, self._settings
        last = chain.layers[-1].cut if chain.layers and settings.incremental else None
        changed = None if last is None else state.changed_since(last)
        if changed == 0:
            return
        if last is None or changed is None or state.size < settings.small or changed > settings.worth * state.size:
            if not flush:
                chain.replace([self._whole(chain, write, parts)])
            return
        parts.add(chain, CapturedPart(state.name, PartKind.KEYED, state.changes(last), state.key_groups))
        number = chain.layers[-1].number + 1
        chain.layers.append(Layer(chain.place, self._cut, (_Source(write, ""),), number))

    def _whole(self, chain: _Chain, write: Write, parts: _Parts, portable: bool = False) -> Layer:
        """All of the state as a layer. Pieces that an earlier one has are not written again."""
        state, sources = chain.state, []
        known = {source.piece: source for layer in chain.all_layers for source in layer.sources if source.piece}
        for piece in state.whole(portable):
            if piece.name in known:
                sources.append(known[piece.name])
            else:
                part = CapturedPart(state.name, PartKind.KEYED, piece.encode, state.key_groups, piece=piece.name)
                parts.add(chain, part)
                sources.append(_Source(write, piece.name))
        return Layer(chain.place, self._cut, tuple(sources))

    def _must_rewrite(self, chain: _Chain) -> bool:
        return chain.rewriting is None and len(chain.layers) > 1 and chain.is_long(self._settings)

    def _start(self, write: Write, parts: _Parts) -> Write | None:
        if not parts.by_uid:
            self._writer.skip(write.id)
            return None
        self._writes[write.id] = write
        inlined = sum(chain.inlined for chain in self._chains)
        self._writer.write(write.id, parts.by_uid, inline=inlined < _INLINED * self._settings.inline)
        return write

    # ---- what became of them ----
    def written(self, id: WriteId, handles: Sequence[PartHandle], seconds: float) -> None:
        write = self._writes[id]
        write.progress, write.handles, write.seconds = Progress.DURABLE, handles, seconds
        for chain in self._chains:
            chain.settle()
        self._tidy()

    def failed(self, id: WriteId, error: str) -> None:
        write = self._writes.pop(id)
        write.progress, write.error = Progress.FAILED, error
        for chain in self._chains:
            chain.failed(write)
        self._tidy()

    def complete(self, checkpoint: CheckpointId) -> None:
        """What the checkpoint names is the store's from now on."""
        captured = self._open.get(checkpoint)
        if captured is not None:
            for write in captured.writes:
                write.published = True
                self._writes.pop(write.id, None)
        self._open = {open: kept for open, kept in self._open.items() if open > checkpoint}
        self._tidy()

    def abort(self, checkpoint: CheckpointId) -> None:
        if self._open.pop(checkpoint, None) is not None:
            self._tidy()

    def _tidy(self) -> None:
        """Removes what nobody will ever name."""
        unpublished = [layer for chain in self._chains for layer in chain.unpublished]
        unpublished += [chain.rewriting for chain in self._chains if chain.rewriting is not None]
        needed = {write for layer in unpublished for write in layer.writes}
        needed.update(write for captured in self._open.values() for write in captured.writes)
        for write in [write for write in self._writes.values() if write.progress is Progress.DURABLE]:
            if write not in needed:
                del self._writes[write.id]
                self._writer.drop(write.id)


class _Parts:
    """What one write holds, by operator."""

    def __init__(self, others: Mapping[Uid, Sequence[CapturedPart]]) -> None:
        self.by_uid: dict[Uid, list[CapturedPart]] = {uid: list(parts) for uid, parts in others.items() if parts}

    def add(self, chain: _Chain, part: CapturedPart) -> None:
        self.by_uid.setdefault(chain.uid, []).append(part)
