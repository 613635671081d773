"""A link: one connection with a thread that writes and a thread that reads, fed by a queue that never blocks.

What is posted before the connection stands waits in the queue. The link ends in one of two ways: `close` was called
(then it says nothing), or the connection broke, the peer closed it, or a message was bad: then `broken` is called
once, with the reason.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from penstock.runtime.network.streams import Stream
from penstock.state.parts import Buffer

_LOG: Final = logging.getLogger(__name__)
_BUNCH_BYTES: Final = 1 << 20
_BUNCH_BUFFERS: Final = 256

Item = TypeVar("Item")


class _Close:
    pass


class Link(Generic[Item]):
    def __init__(
        self,
        name: str,
        *,
        encode: Callable[[Item], Sequence[Buffer]],
        read_one: Callable[[Stream], None],
        connected: Callable[[], None],
        broken: Callable[[str], None],
        heartbeat: tuple[float, Item] | None = None,
    ):
        """All callables run on the link's own threads; `connected` and `broken` must return soon.

        `encode` makes a posted item into bytes, `read_one` reads one message and deals with it; both may raise.
        `heartbeat`: after so many seconds in which nothing was posted, that item is sent.
        """
        self.name = name
        self._encode = encode
        self._read_one = read_one
        self._connected = connected
        self._broken = broken
        self._heartbeat = heartbeat
        self._outgoing: queue.SimpleQueue[Item | _Close] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ending = False
        self._connect: Callable[[], Stream]
        self._stream: Stream | None = None
        self._reader = threading.Thread(target=self._run, name=f"{name} reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"{name} writer", daemon=True)

    def start(self, connect: Callable[[], Stream]) -> None:
        """Once. `connect` runs on the link's own thread."""
        self._connect = connect
        self._reader.start()

    @property
    def ended(self) -> bool:
        """Whether its threads have ended."""
        return not (self._reader.is_alive() or self._writer.is_alive())

    def post(self, item: Item) -> None:
        self._outgoing.put(item)

    def close(self, flush: float = 0.0) -> None:
        """Ends the link without a word. `flush`: so many seconds the writer may take to send what is still posted.
        Not to be called from the link's own threads."""
        self._outgoing.put(_Close())
        if flush and self._writer.ident is not None:
            self._writer.join(flush)
        self._end(None)
        for thread in (self._reader, self._writer):
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        try:
            stream = self._connect()
        except Exception as error:
            self._end(f"{error}")
            return
        with self._lock:
            self._stream = stream
            ending = self._ending
        try:
            if ending:
                return
            self._writer.start()
            self._connected()
            while True:
                self._read_one(stream)
        except (EOFError, OSError) as error:
            self._end(str(error) or type(error).__name__)
        except Exception as error:
            _LOG.exception("%s: bad message", self.name)
            self._end(f"{type(error).__name__}: {error}")
        finally:
            stream.close()
            if self._writer.ident is not None:
                self._writer.join()
            stream.release()

    def _write(self) -> None:
        assert self._stream is not None
        try:
            while (buffers := self._next_bunch()) is not None:
                self._stream.send(buffers)
        except OSError as error:
            self._end(str(error))
        except Exception as error:
            _LOG.exception("%s: cannot send", self.name)
            self._end(f"{type(error).__name__}: {error}")

    def _next_bunch(self) -> list[Buffer] | None:
        """What waits in the queue, encoded, up to a limit, so that many small items cost one system call; None at the
        end."""
        item = self._wait()
        buffers: list[Buffer] = []
        size = 0
        while not isinstance(item, _Close):
            encoded = self._encode(item)
            buffers.extend(encoded)
            size += sum(map(len, encoded))
            if size >= _BUNCH_BYTES or len(buffers) >= _BUNCH_BUFFERS:
                return buffers
            try:
                item = self._outgoing.get_nowait()
            except queue.Empty:
                return buffers
        self._outgoing.put(item)
        return buffers or None

    def _wait(self) -> Item | _Close:
        if self._heartbeat is None:
            return self._outgoing.get()
        interval, item = self._heartbeat
        try:
            return self._outgoing.get(timeout=interval)
        except queue.Empty:
            return item

    def _end(self, reason: str | None) -> None:
        """The first to come decides whether and why the link is broken; a reason of None is a wanted end."""
        with self._lock:
            first, self._ending = not self._ending, True
            stream = self._stream
        self._outgoing.put(_Close())
        if stream is not None:
            stream.close()
        if first and reason is not None:
            self._broken(reason)
