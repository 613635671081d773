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
BUNDLE: Final = 1 << 20
"""Bytes, or a little more, that are handed over at once: each time, one thread wakes the other."""
BUNDLES_AHEAD: Final = 8


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
        self._made: queue.Queue[list[Buffer] | BaseException | None] = queue.Queue(BUNDLES_AHEAD)
        self._given_up = False
        self._thread = threading.Thread(target=self._make, name="encoding ahead", daemon=True)
        self._thread.start()

    def chunks(self) -> Iterator[Buffer]:
        try:
            while (item := self._made.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield from item
        finally:
            self._given_up = True
            while self._thread.is_alive():
                self._drain()
                self._thread.join(0.01)

    def _make(self) -> None:
        bundle: list[Buffer] = []
        size = 0
        try:
            for chunk in self._source:
                bundle.append(chunk)
                size += memoryview(chunk).nbytes
                if size >= BUNDLE:
                    self._made.put(bundle)
                    bundle, size = [], 0
                if self._given_up:
                    return
            self._made.put(bundle)
            self._made.put(None)
        except BaseException as error:
            self._made.put(bundle)
            self._made.put(error)

    def _drain(self) -> None:
        try:
            while True:
                self._made.get_nowait()
        except queue.Empty:
            pass
