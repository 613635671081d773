"""Encodes ahead of the writing: of large parts, the next chunks are made while the last ones are checked and written.

Small parts, which are most, are not worth a thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.state.parts import Buffer

INLINE: Final = 8 << 20
"""Bytes after which a thread is worth it."""
CHUNKS_AHEAD: Final = 64


def ahead(chunks: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same chunks; those beyond the first few are made by another thread. What it raises is raised here."""
    source, size = iter(chunks), 0
    while size < INLINE:
        chunk = next(source, None)
        if chunk is None:
            return
        size += memoryview(chunk).nbytes
        yield chunk
    yield from _Ahead(source).chunks()


class _Ahead:
    def __init__(self, source: Iterator[Buffer]) -> None:
        self._source = source
        self._made: queue.Queue[Buffer | BaseException | None] = queue.Queue(CHUNKS_AHEAD)
        self._given_up = False
        self._thread = threading.Thread(target=self._make, name="encoding ahead", daemon=True)
        self._thread.start()

    def chunks(self) -> Iterator[Buffer]:
        try:
            while (item := self._made.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._given_up = True
            while self._thread.is_alive():
                self._drain()
                self._thread.join(0.01)

    def _make(self) -> None:
        try:
            for chunk in self._source:
                if self._given_up:
                    return
                self._made.put(chunk)
            self._made.put(None)
        except BaseException as error:
            self._made.put(error)

    def _drain(self) -> None:
        try:
            while True:
                self._made.get_nowait()
        except queue.Empty:
            pass
