"""A local TCP port that leads to a port inside a launch's sandbox, over one WebRTC association.

Needs the extra `fairlead-sdk[webrtc]`; nothing of it is imported before a tunnel is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from fairlead_sdk.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    FairleadError,
    InvalidArgument,
    Unavailable,
)

if TYPE_CHECKING:
    from fairlead_sdk.webrtc_tunnel import WebrtcTunnel

CONNECT_SECONDS = 24.0
GRACE_SECONDS = 1.0
GOODBYE_SECONDS = 5.0

log = logging.getLogger(__name__)

OnRefusal = Callable[[str, str], None]


class WebrtcMissing(FailedPrecondition):
    """The extra that tunnels need is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Forwarding needs aiortc, which is not installed: pip install 'fairlead-sdk[webrtc]'.",
            reason="webrtc_missing",
            remedy="Run: pip install 'fairlead-sdk[webrtc]'",
        )


class ConnectTimeout(DeadlineExceeded):
    """The gateway answered, but no path to it was found in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The gateway could not be reached within {seconds:g} seconds.",
            reason="connect_timeout",
            remedy="See whether UDP between this machine and the gateway is blocked.",
        )


class ConnectionFailed(Unavailable):
    """No path to the gateway was found, or its answer made no sense."""

    def __init__(self) -> None:
        super().__init__(
            "The gateway could not be reached over UDP.",
            reason="connection_failed",
            remedy="See whether UDP between this machine and the gateway is blocked.",
        )


class TunnelLost(Unavailable):
    """The association with the gateway ended."""

    def __init__(self) -> None:
        super().__init__(
            "The connection to the gateway was lost.",
            reason="tunnel_lost",
            remedy="Forward again; the launch may also have ended.",
        )


class LocalPortUnusable(FailedPrecondition):
    """The local port cannot be listened on."""

    def __init__(self, host: str, port: int, cause: str) -> None:
        super().__init__(
            f"Cannot listen on {host}:{port}: {cause}.",
            reason="local_port_unusable",
            remedy="Choose another local port, or 0 for a free one.",
            fields={"port": str(port)},
        )


class PortInvalid(InvalidArgument):
    """A port is not one."""

    def __init__(self, port: int) -> None:
        super().__init__(f"{port} is not a TCP port (1 to 65535).", reason="port_invalid")


class SessionApi(Protocol):
    """The three calls of a mesh that a tunnel needs; they raise FairleadError."""

    async def open_session(self, launch_id: str) -> str:
        """Reserve a gateway for a launch and return the session's id."""
        ...

    async def send_offer(self, session_id: str, sdp: str) -> str:
        """Have the gateway answer an SDP offer and return its answer."""
        ...

    async def close_session(self, session_id: str) -> None:
        """Close the session; closing a closed one is no error."""
        ...


class Forwarder:
    """An open tunnel into one launch; make it with `open_tunnel`."""

    def __init__(self, *, tunnel: WebrtcTunnel) -> None:
        self._tunnel = tunnel
        self._tasks: set[asyncio.Task[object]] = set()
        self._servers: list[asyncio.Server] = []

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._tasks)

    async def listen(
        self,
        remote_port: int,
        local_port: int = 0,
        local_host: str = "127.0.0.1",
        on_refusal: OnRefusal | None = None,
    ) -> LocalPort:
        """Listen on a local port (0: a free one) for connections to `remote_port` of the sandbox.

        `on_refusal(reason, message)` is told of each connection that the mesh refuses, such as
        `port_refused`; the local program sees a reset. Raises LocalPortUnusable or PortInvalid.
        """
        if not 1 <= remote_port <= 65535:
            raise PortInvalid(remote_port)
        if not 0 <= local_port <= 65535:
            raise PortInvalid(local_port)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(remote_port, reader, writer, on_refusal)

        try:
            server = await asyncio.start_server(accepted, local_host, local_port)
        except OSError as error:
            cause = error.strerror or "it cannot be bound"
            raise LocalPortUnusable(local_host, local_port, cause) from error
        self._servers.append(server)
        port = int(server.sockets[0].getsockname()[1])
        return LocalPort(forwarder=self, host=local_host, port=port, remote_port=remote_port)

    async def wait_lost(self) -> None:
        """Wait until the association ends, then raise TunnelLost."""
        await self._tunnel.wait_lost()
        raise TunnelLost

    async def close(self) -> None:
        """Take no new connections, give open ones a second, then end them."""
        for server in self._servers:
            server.close()
        if self._tasks and not self._tunnel.is_lost:
            await asyncio.wait(self._tasks, timeout=GRACE_SECONDS)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _carry(
        self,
        remote_port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_refusal: OnRefusal | None,
    ) -> None:
        task = asyncio.current_task()
        if task is None or self._tunnel.is_lost:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            ending = await self._tunnel.open_channel(remote_port).carry(reader, writer)
            log.debug("connection ended", extra={"reason": ending.reason or "finished"})
            refusals = ("", "connection_reset", "channel_lost", "session_closed")
            if on_refusal is not None and ending.reason not in refusals:
                on_refusal(ending.reason, ending.message)
        finally:
            self._tasks.discard(task)


class LocalPort:
    """A port of this machine that leads into the sandbox."""

    def __init__(self, *, forwarder: Forwarder, host: str, port: int, remote_port: int) -> None:
        self.host = host
        self.port = port
        self.remote_port = remote_port
        self._forwarder = forwarder

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._forwarder.connections

    async def wait_lost(self) -> None:
        """Wait until the tunnel is lost, then raise TunnelLost."""
        await self._forwarder.wait_lost()


@asynccontextmanager
async def open_tunnel(
    api: SessionApi, launch_id: str, *, connect_seconds: float = CONNECT_SECONDS
) -> AsyncIterator[Forwarder]:
    """Open a tunnel into a launch; its session is closed at the end of the block.

    Raises WebrtcMissing, ConnectTimeout, ConnectionFailed, and what `api` raises.
    """
    tunnel = await _load_tunnel()
    gathering = asyncio.ensure_future(tunnel.offer())
    session_id = ""
    try:
        session_id = await api.open_session(launch_id)
        answer = await api.send_offer(session_id, await gathering)
        try:
            async with asyncio.timeout(connect_seconds):
                is_connected = await tunnel.connect(answer)
        except TimeoutError:
            raise ConnectTimeout(connect_seconds) from None
        if not is_connected:
            raise ConnectionFailed
        forwarder = Forwarder(tunnel=tunnel)
        try:
            yield forwarder
        finally:
            await forwarder.close()
    finally:
        gathering.cancel()
        await asyncio.wait((gathering,))
        await tunnel.close()
        if session_id:
            with contextlib.suppress(FairleadError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await api.close_session(session_id)


@asynccontextmanager
async def forward(
    api: SessionApi,
    launch_id: str,
    remote_port: int,
    local_port: int = 0,
    local_host: str = "127.0.0.1",
    *,
    on_refusal: OnRefusal | None = None,
    connect_seconds: float = CONNECT_SECONDS,
) -> AsyncIterator[LocalPort]:
    """Forward one local port (0: a free one) to `remote_port` of a launch's sandbox.

    See `open_tunnel` and `Forwarder.listen` for what it raises.
    """
    async with open_tunnel(api, launch_id, connect_seconds=connect_seconds) as forwarder:
        yield await forwarder.listen(remote_port, local_port, local_host, on_refusal)


async def _load_tunnel() -> WebrtcTunnel:
    try:
        # About a second, most of it codecs that nobody here uses.
        await asyncio.to_thread(importlib.import_module, "aiortc")
        from fairlead_sdk.webrtc_tunnel import WebrtcTunnel
    except ImportError as error:
        raise WebrtcMissing from error
    return WebrtcTunnel()
