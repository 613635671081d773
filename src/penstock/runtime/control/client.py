"""A worker's end of its control connection."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.ids import Attempt
from penstock.core.settings import RuntimeSettings
from penstock.runtime.control import framing
from penstock.runtime.control.messages import ToMaster, ToWorker
from penstock.runtime.network.dialling import Dialler
from penstock.runtime.network.handshake import Role
from penstock.runtime.network.link import Link
from penstock.runtime.network.streams import Stream, open_stream

NO_ATTEMPT = Attempt(-1)


class ControlClient:
    """Connects at once. `received` and `lost` are called from the link's threads and must not block."""

    def __init__(
        self,
        dialler: Dialler,
        host: str,
        port: int,
        settings: RuntimeSettings,
        *,
        received: Callable[[ToWorker], None],
        lost: Callable[[str], None],
    ):
        self._received = received
        self._reader: framing.MessageReader[ToWorker] = framing.MessageReader(ToWorker)
        connection = dialler.tcp(host, port, Role.CONTROL, NO_ATTEMPT)
        self.local_host: str = connection.getsockname()[0]
        """The address by which this machine reaches the master, and so by which others are likely to reach us."""
        self._link: Link[bytes] = Link(
            f"control {dialler.worker}",
            encode=framing.framed,
            read_one=self._read_one,
            connected=lambda: None,
            broken=lost,
            heartbeat=(settings.heartbeat_every, framing.HEARTBEAT),
        )
        self._link.start(lambda: open_stream(connection, settings.heartbeat_timeout))

    def send(self, message: ToMaster) -> None:
        """Never blocks."""
        self._link.send(framing.encode(message))

    def leave(self, message: ToMaster) -> None:
        """With the next message, or at the next `flush`."""
        self._link.leave(framing.encode(message))

    def flush(self) -> None:
        """Never blocks."""
        self._link.flush()

    def close(self) -> None:
        self._link.close(flush=1.0)

    def _read_one(self, stream: Stream) -> None:
        message = self._reader.read(stream)
        if message is not None:
            self._received(message)
