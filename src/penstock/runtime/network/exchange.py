"""The channels of one attempt on one worker: straight calls within the process, links to the other workers.

For every worker that we send records to there is one link that we open; it carries the elements of all channels to
that worker, and back the grants for them. For every worker that sends to us there is one link that it opens. What a
task sends before a link stands waits in the link's queue, which the grants bound. An exchange belongs to exactly one
attempt and is thrown away with it.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from penstock.core.ids import Attempt, ChannelId, SubtaskId, WorkerId
from penstock.graph.job import JobGraph
from penstock.runtime.control.messages import Address
from penstock.runtime.elements import Element
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.errors import WireError
from penstock.runtime.network.frames import ElementReader, GrantReader, encode_element, encode_grant
from penstock.runtime.network.handshake import Role
from penstock.runtime.network.link import Link
from penstock.runtime.network.streams import Stream, open_stream
from penstock.runtime.ports import Arrived, Granted, Note
from penstock.state.parts import Buffer

_LOG: Final = logging.getLogger(__name__)

_MANY_ROWS: Final = 4096
"""For a batch of more the link's thread is woken, which sends it beside the task that goes on; what is less is sent by
the task itself, at the end of its step, with all that still waits then: to wake a thread takes as long."""

Put = Callable[[Note], None]
Item = TypeVar("Item")


class Exchange:
    """The `Transport` of an attempt's tasks."""

    def __init__(
        self,
        *,
        graph: JobGraph,
        attempt: Attempt,
        dialler: Dialler,
        host_key: str,
        locations: Mapping[SubtaskId, WorkerId],
        peers: Mapping[WorkerId, Address],
        mailboxes: Mapping[SubtaskId, Put],
        connected: Callable[[], None],
        broken: Callable[[WorkerId, str], None],
    ):
        """`mailboxes`: of the tasks on this worker. `connected` is called once, when all links stand (at once where
        there are none); `broken` may be called several times. Both come from any thread and must not block."""
        self.attempt = attempt
        self._graph = graph
        self._dialler = dialler
        self._host_key = host_key
        self._peers = peers
        self._mailboxes = mailboxes
        self._on_connected = connected
        self._on_broken = broken
        self._lock = threading.Lock()
        self._closed = False
        self._to: dict[WorkerId, Link[tuple[ChannelId, Element]]] = {}
        self._from: dict[WorkerId, Link[tuple[ChannelId, int]]] = {}
        self._attached: set[WorkerId] = set()
        self._senders: dict[ChannelId, Callable[[Element], None]] = {}
        self._granters: dict[ChannelId, Callable[[int], None]] = {}
        for subtask in mailboxes:
            for channel in graph.output_channels(subtask):
                self._senders[channel] = self._sender(channel, locations[graph.receiver(channel)])
            for channel in graph.input_channels(subtask):
                self._granters[channel] = self._granter(channel, locations[graph.sender(channel)])
        self._left: set[Link[Any]] = set()
        """In which there is something that waits for a flush."""
        self._links = (*self._to.values(), *self._from.values())
        self._unconnected = len(self._links)

    # ---- the transport of the tasks ----
    def send(self, channel: ChannelId, element: Element) -> None:
        self._senders[channel](element)

    def grant(self, channel: ChannelId, limit: int) -> None:
        self._granters[channel](limit)

    def flush(self) -> None:
        left = self._left
        while left:
            try:
                link = left.pop()
            except KeyError:  # another task of this worker has just sent it
                return
            link.flush()

    # ---- its life ----
    def start(self) -> None:
        """Connects, in the background."""
        if not self._unconnected:
            self._on_connected()
        for worker, link in self._to.items():
            link.start(functools.partial(self._dial, worker))

    def admit(self, worker: WorkerId, connection: socket.socket) -> None:
        """An authenticated connection of this attempt came in."""
        with self._lock:
            link = self._from.get(worker)
            if self._closed or link is None or worker in self._attached:
                _LOG.warning("refused a data connection of worker %s: attempt %d expects none", worker, self.attempt)
                connection.close()
                return
            self._attached.add(worker)
            link.start(lambda: open_stream(connection))

    def close(self) -> None:
        """Ends all links; returns when their threads have ended."""
        with self._lock:
            self._closed = True
        for link in self._links:
            link.close()

    # ---- routes ----
    def _sender(self, channel: ChannelId, worker: WorkerId) -> Callable[[Element], None]:
        if worker == self._dialler.worker:
            put = self._mailboxes[self._graph.receiver(channel)]
            return lambda element: put(Arrived(channel, element))
        if worker not in self._to:
            self._to[worker] = self._link(f"to {worker}", worker, encode_element, self._grant_taker(worker))
        link = self._to[worker]

        def send(element: Element) -> None:
            if element.__class__ is pa.RecordBatch and element.num_rows > _MANY_ROWS:
                link.post((channel, element))
            else:
                link.leave((channel, element))
                self._left.add(link)

        return send

    def _granter(self, channel: ChannelId, worker: WorkerId) -> Callable[[int], None]:
        if worker == self._dialler.worker:
            put = self._mailboxes[self._graph.sender(channel)]
            return lambda limit: put(Granted(channel, limit))
        if worker not in self._from:
            self._from[worker] = self._link(f"from {worker}", worker, encode_grant, self._element_taker(worker))
        link = self._from[worker]

        def grant(limit: int) -> None:
            link.leave((channel, limit))
            self._left.add(link)

        return grant

    def _link(
        self,
        name: str,
        worker: WorkerId,
        encode: Callable[[Item], Sequence[Buffer]],
        read_one: Callable[[Stream], None],
    ) -> Link[Item]:
        return Link(
            f"attempt {self.attempt} {name}",
            encode=encode,
            read_one=read_one,
            connected=self._one_connected,
            broken=functools.partial(self._on_broken, worker),
        )

    def _element_taker(self, worker: WorkerId) -> Callable[[Stream], None]:
        reader = ElementReader(self._graph)

        def take(stream: Stream) -> None:
            channel, element = reader.read(stream)
            if channel not in self._granters:
                raise WireError(f"worker {worker} sent an element for {channel}, which does not end here")
            self._mailboxes[self._graph.receiver(channel)](Arrived(channel, element))

        return take

    def _grant_taker(self, worker: WorkerId) -> Callable[[Stream], None]:
        reader = GrantReader()

        def take(stream: Stream) -> None:
            channel, limit = reader.read(stream)
            if channel not in self._senders:
                raise WireError(f"worker {worker} sent a grant for {channel}, which does not start here")
            self._mailboxes[self._graph.sender(channel)](Granted(channel, limit))

        return take

    def _dial(self, worker: WorkerId) -> Stream:
        address = self._peers[worker]
        if address.unix_path and address.host_key == self._host_key:
            return open_stream(self._dialler.unix(address.unix_path, Role.DATA, self.attempt))
        return open_stream(self._dialler.tcp(address.host, address.port, Role.DATA, self.attempt))

    def _one_connected(self) -> None:
        with self._lock:
            self._unconnected -= 1
            last = not self._unconnected
        if last:
            self._on_connected()
