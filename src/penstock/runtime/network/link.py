"""A link: one connection with a thread that writes and a thread that reads, fed by a queue that never blocks.

What is posted is sent by the writing thread. What is left is sent by whoever calls `flush`, as far as the socket takes
it at once, and the rest by the writing thread: a small message does not wait for a thread to wake up. All of it goes
out in the order in which it came, for whoever takes from the queue has the *turn* until that is sent.

What is posted before the connection stands waits in the queue. The link ends in one of two ways: `close` was called
(then it says nothing), or the connection broke, the peer closed it, or a message was bad: then `broken` is called
once, with the reason.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from penstock.runtime.bell import Bell
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
        """All callables run on the link's own threads, `encode` also on those that flush; `connected` and `broken` must
        return soon.

        `encode` makes a posted item into bytes, `read_one` reads one message and deals with it; both may raise.
        `heartbeat`: after so many seconds in which the writing thread had nothing to do, that item is sent.
        """
        self.name = name
        self._encode = encode
        self._read_one = read_one
        self._connected = connected
        self._broken = broken
        self._heartbeat = heartbeat
        self._outgoing: deque[Item | _Close] = deque()
        self._rest: Sequence[Buffer] = ()
        """What the socket did not take at once."""
        self._turn = threading.Lock()
        self._bell = Bell()
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
        self._outgoing.append(item)
        self._bell.ring()

    def send(self, item: Item) -> None:
        """Posts it and sends it at once, if it can."""
        self._outgoing.append(item)
        self.flush()

    def leave(self, item: Item) -> None:
        """Posts it with the next `flush`, or before."""
        self._outgoing.append(item)

    def flush(self) -> None:
        """Sends what waits. Never blocks: what cannot go at once is left to the writing thread."""
        if not self._turn.acquire(blocking=False):
            self._bell.ring()
            return
        try:
            while self._stream is not None and not self._rest and (buffers := self._next_bunch()):
                self._rest = buffers
                self._rest = self._stream.send_now(buffers)
        except Exception as error:  # the writing thread meets it as well, and reports it
            _LOG.debug("%s: cannot send at once: %s", self.name, error)
        finally:
            self._turn.release()
        if self._rest or self._outgoing:
            self._bell.ring()

    def close(self, flush: float = 0.0) -> None:
        """Ends the link without a word. `flush`: so many seconds the writer may take to send what is still posted.
        Not to be called from the link's own threads."""
        self._outgoing.append(_Close())
        self._bell.ring()
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
            with self._turn:  # whoever flushes just now is done with the socket then, and nobody takes it again
                self._stream = None
            stream.release()

    def _write(self) -> None:
        try:
            while self._send_all():
                if not self._bell.wait(None if self._heartbeat is None else self._heartbeat[0]):
                    assert self._heartbeat is not None
                    self._outgoing.append(self._heartbeat[1])
        except OSError as error:
            self._end(str(error))
        except Exception as error:
            _LOG.exception("%s: cannot send", self.name)
            self._end(f"{type(error).__name__}: {error}")

    def _send_all(self) -> bool:
        """Returns whether there may be more later."""
        assert self._stream is not None
        while True:
            with self._turn:
                buffers, self._rest = self._rest or self._next_bunch(), ()
                if not buffers:
                    return not (self._outgoing and isinstance(self._outgoing[0], _Close))
                self._stream.send(buffers)

    def _next_bunch(self) -> list[Buffer]:
        """What waits in the queue, encoded, up to a limit, so that many small items cost one system call; nothing where
        the end comes next."""
        queue, buffers, size = self._outgoing, list[Buffer](), 0
        while queue and size < _BUNCH_BYTES and len(buffers) < _BUNCH_BUFFERS:
            item = queue[0]
            if isinstance(item, _Close):
                break
            encoded = self._encode(item)
            queue.popleft()
            buffers.extend(encoded)
            size += sum(map(len, encoded))
        return buffers

    def _end(self, reason: str | None) -> None:
        """The first to come decides whether and why the link is broken; a reason of None is a wanted end."""
        with self._lock:
            first, self._ending = not self._ending, True
            stream = self._stream
        self._outgoing.append(_Close())
        self._bell.ring()
        if stream is not None:
            stream.close()
        if first and reason is not None:
            self._broken(reason)
