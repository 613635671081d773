"""Records in flight as parts of a checkpoint: the elements of one channel, one wire frame after another.

Only what a restore has to replay is stored. Barriers belong to their own checkpoint, and the end of a channel is
said again by its sender, which restores as finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from penstock.core.barrier import Barrier
from penstock.core.handles import PartKind
from penstock.core.ids import RECOVERED, ChannelId
from penstock.runtime import wire
from penstock.runtime.elements import Element, EndOfChannel
from penstock.state.parts import Buffer, CapturedPart, RestoredPart

_NAMES = {PartKind.INPUT_CHANNEL: "input", PartKind.OUTPUT_CHANNEL: "output"}


def replayable(elements: Iterable[Element]) -> list[Element]:
    return [element for element in elements if not isinstance(element, Barrier | EndOfChannel)]


def capture(kind: PartKind, channel: ChannelId, elements: Sequence[Element]) -> CapturedPart:
    """`elements` must not change any more; batches never do."""
    if channel.source == RECOVERED:
        name = f"recovered-{channel.edge}-{channel.target}"
    else:
        name = f"{_NAMES[kind]}-{channel.edge}-{channel.source}-{channel.target}"
    return CapturedPart(name, kind, _encoder(elements), channel=channel)


def _encoder(elements: Sequence[Element]) -> Callable[[], Sequence[Buffer]]:
    return lambda: [buffer for element in elements for buffer in wire.encode(element)]


def restore(part: RestoredPart, schema: pa.Schema) -> list[Element]:
    return [wire.decode(frame, schema) for frame in wire.frames(part.read())]


def rows_of(part: RestoredPart, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Only its rows."""
    return [element for element in restore(part, schema) if isinstance(element, pa.RecordBatch)]


def count_rows(elements: Iterable[Element]) -> int:
    return sum(element.num_rows for element in elements if isinstance(element, pa.RecordBatch))
