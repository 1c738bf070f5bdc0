"""A local TCP port that leads to a port inside a launch's sandbox, over one WebRTC association.

Needs the extra `fairlead-sdk[webrtc]`; nothing of it is imported before a tunnel is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead_sdk.errors import FailedPrecondition, FairleadError, InvalidArgument
from fairlead_sdk.local_sockets import listening_at
from fairlead_sdk.session_api import SessionApi
from fairlead_sdk.session_errors import (
    SealedOfferRefused,
    SealSecretInvalid,
    SessionEnded,
    TunnelLost,
    WebrtcMissing,
)
from fairlead_sdk.tracing import client_span

if TYPE_CHECKING:
    from fairlead_sdk.peer_session import AsyncSession
    from fairlead_sdk.session_talk import Pace, Sleep
    from fairlead_tunnel.peer_connection import PeerCore
    from fairlead_tunnel.targets import Target

CONNECT_SECONDS = 24.0
RELAY_SECONDS = 60.0
"""Where a relay must be reached first."""
GRACE_SECONDS = 1.0
TOLD_SECONDS = 2.0
"""For the mesh to say why a session is over."""
SEAL_SECRET_BYTES = 32
_OFFER_REASONS = frozenset({"offer_failed", "offer_refused"})

log = logging.getLogger(__name__)

OnRefusal = Callable[[str, str], None]


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


class TargetInvalid(InvalidArgument):
    """A text names no host."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"{host!r} names no host.",
            reason="target_invalid",
            remedy="Give a name in ASCII, an IPv4 address, or an IPv6 address in brackets.",
        )


class Forwarder:
    """An open tunnel into one launch; make it with `open_tunnel`."""

    def __init__(self, *, session: AsyncSession) -> None:
        self._session = session
        self._tasks: set[asyncio.Task[object]] = set()
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []

    @property
    def session_id(self) -> str:
        """The session that it goes through."""
        return self._session.session_id

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
        remote_host: str = "",
    ) -> LocalPort:
        """Listen on a local port (0: a free one) for connections to `remote_port` of the sandbox,
        or of a host that the gateway dials (an IPv6 address stands in brackets).

        `on_refusal(reason, message)` is told of each connection that the mesh refuses, such as
        `port_refused`; the local program sees a reset. Raises LocalPortUnusable, PortInvalid or
        TargetInvalid.
        """
        if not 0 <= local_port <= 65535:
            raise PortInvalid(local_port)
        accepted = self._accepting(remote_port, remote_host, on_refusal)
        try:
            server = await asyncio.start_server(accepted, local_host, local_port)
        except OSError as error:
            cause = error.strerror or "it cannot be bound"
            raise LocalPortUnusable(local_host, local_port, cause) from error
        self._servers.append(server)
        port = int(server.sockets[0].getsockname()[1])
        return LocalPort(forwarder=self, host=local_host, port=port, remote_port=remote_port)

    async def listen_at(
        self,
        path: Path,
        remote_port: int,
        on_refusal: OnRefusal | None = None,
        remote_host: str = "",
    ) -> None:
        """Do what `listen` does on a socket in the file system, which this user alone may use.

        Raises LocalPathUnusable, PortInvalid or TargetInvalid.
        """
        accepted = self._accepting(remote_port, remote_host, on_refusal)
        plug = listening_at(path)
        self._paths.append(path)
        self._servers.append(await asyncio.start_unix_server(accepted, sock=plug))

    def stop(self, local: int | Path) -> None:
        """Listen no more on a local port or at a path; connections that are open go on."""
        for server in self._servers:
            names = [each.getsockname() for each in server.sockets]
            if any((str(local) == name) or local == name[1] for name in names):
                server.close()
        if isinstance(local, Path) and local in self._paths:
            self._paths.remove(local)
            local.unlink(missing_ok=True)

    def _accepting(
        self, remote_port: int, remote_host: str, on_refusal: OnRefusal | None
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        from fairlead_tunnel.targets import Target, target_of

        if not 1 <= remote_port <= 65535:
            raise PortInvalid(remote_port)
        target = Target(remote_port, remote_host)
        if target_of(target.label) != target:
            raise TargetInvalid(remote_host)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(target, reader, writer, on_refusal)

        return accepted

    async def wait_lost(self) -> None:
        """Wait until the association ends, then raise SessionEnded where the mesh says why, else
        TunnelLost.
        """
        await self._session.wait_lost()
        # The gateway cuts the association at once; why comes another way, and a little later.
        closed = await self._session.wait_told(TOLD_SECONDS)
        if closed is None:
            raise TunnelLost
        raise SessionEnded(closed)

    async def close(self) -> None:
        """Take no new connections, give open ones a second, then end them."""
        for server in self._servers:
            server.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        if self._tasks and not self._session.is_lost:
            await asyncio.wait(self._tasks, timeout=GRACE_SECONDS)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _carry(
        self,
        target: Target,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_refusal: OnRefusal | None,
    ) -> None:
        task = asyncio.current_task()
        if task is None or self._session.is_lost:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            ending = await self._session.open_channel(target).carry(reader, writer)
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
        """Wait until the tunnel is lost; see `Forwarder.wait_lost`."""
        await self._forwarder.wait_lost()


@asynccontextmanager
async def open_session(
    api: SessionApi,
    launch_id: str,
    *,
    mode: str = "",
    ice_policy: str = "all",
    connect_seconds: float | None = None,
    seal_secret: bytes = b"",
    core: PeerCore | None = None,
    pace: Pace | None = None,
    sleep: Sleep = asyncio.sleep,
) -> AsyncIterator[AsyncSession]:
    """Open a session and wait until it is connected; it is closed at the end of the block.

    See `AsyncSessions.open`. `core` is the WebRTC core, the best that is installed when absent.
    """
    if seal_secret and len(seal_secret) != SEAL_SECRET_BYTES:
        raise SealSecretInvalid
    chosen = core or _installed_core()
    from fairlead_sdk.session_opening import OpenSession

    is_connected = False
    loading = asyncio.ensure_future(_loaded(chosen))
    # Nobody asks how it ended when the mesh refuses first.
    loading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        opening = OpenSession(api=api, core=chosen, pace=pace, sleep=sleep, seal_secret=seal_secret)
        if connect_seconds is None:
            connect_seconds = RELAY_SECONDS if ice_policy == "relay" else CONNECT_SECONDS
        async with AsyncExitStack() as stack:
            with client_span("session.negotiate") as span:
                session = await stack.enter_async_context(
                    opening.connected(launch_id, mode, ice_policy, loading, connect_seconds)
                )
                span.note("fairlead.session.id", session.session_id)
            is_connected = True
            yield session
    except FairleadError as error:
        if seal_secret and not is_connected and error.reason in _OFFER_REASONS:
            raise SealedOfferRefused(error.message) from error
        raise
    finally:
        loading.cancel()
        await asyncio.wait((loading,))


@asynccontextmanager
async def open_tunnel(
    api: SessionApi,
    launch_id: str,
    *,
    mode: str = "",
    ice_policy: str = "all",
    connect_seconds: float | None = None,
    seal_secret: bytes = b"",
    core: PeerCore | None = None,
) -> AsyncIterator[Forwarder]:
    """Open a tunnel into a launch; its session is closed at the end of the block.

    See `AsyncSessions.open` for what it takes and raises.
    """
    async with open_session(
        api,
        launch_id,
        mode=mode,
        ice_policy=ice_policy,
        connect_seconds=connect_seconds,
        seal_secret=seal_secret,
        core=core,
    ) as session:
        forwarder = Forwarder(session=session)
        try:
            yield forwarder
        finally:
            await forwarder.close()


@asynccontextmanager
async def forward(
    api: SessionApi,
    launch_id: str,
    remote_port: int,
    local_port: int = 0,
    local_host: str = "127.0.0.1",
    *,
    on_refusal: OnRefusal | None = None,
    connect_seconds: float | None = None,
    core: PeerCore | None = None,
) -> AsyncIterator[LocalPort]:
    """Forward one local port (0: a free one) to `remote_port` of a launch's sandbox.

    See `open_tunnel` and `Forwarder.listen` for what it raises.
    """
    async with open_tunnel(api, launch_id, connect_seconds=connect_seconds, core=core) as forwarder:
        yield await forwarder.listen(remote_port, local_port, local_host, on_refusal)


def _installed_core() -> PeerCore:
    try:
        from fairlead_tunnel.cores import preferred_core

        return preferred_core()
    except ImportError as error:
        raise WebrtcMissing from error


async def _loaded(core: PeerCore) -> None:
    try:
        await core.load()
    except ImportError as error:
        raise WebrtcMissing from error
