"""How `fairlead forward` reaches a gateway: by a tunnel, or by a WebRTC session where that is to be
sealed with a secret, or where the mesh has no tunnels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fairlead_sdk.cli.hops import watching_hops
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.tunnelled import Notices
from fairlead_sdk.cli.ways import Way

if TYPE_CHECKING:
    from fairlead_sdk.fairlead import AsyncFairlead
    from fairlead_sdk.forwarding import Forwarder
    from fairlead_sdk.local_traffic import Traffic
    from fairlead_sdk.tunnel_line import TunnelLine
    from fairlead_sdk.tunnel_ports import TunnelPorts
    from fairlead_tunnel.hops import Hop

OnRefusal = Callable[[str, str], None]


class Route(Protocol):
    """A way to a gateway that local ports can lead into."""

    @property
    def session_id(self) -> str:
        """The session that it goes through."""
        ...

    @property
    def traffic(self) -> Traffic | None:
        """What goes through, where that is counted."""
        ...

    @property
    def carrier(self) -> str:
        """The name of the carrier that it goes over now."""
        ...

    def stop(self, local: int | Path) -> None:
        """Listen no more on a local port or at a path."""
        ...

    async def listen(self, way: Way, host: str, port: int) -> int:
        """Listen on a local port (0: a free one); returns it. Raises LocalPortUnusable."""
        ...

    async def listen_at(self, way: Way) -> None:
        """Listen at the way's path. Raises LocalPathUnusable."""
        ...

    async def wait_lost(self) -> None:
        """Wait until it has ended for good, and raise why."""
        ...


async def open_route(
    client: AsyncFairlead,
    target: str,
    terminal: Terminal,
    *,
    secret: bytes,
    via: Sequence[Hop],
    renewed: Callable[[str], None],
    stack: AsyncExitStack,
) -> Route:
    """Open the best one; it is closed with `stack`. A tunnel is reached by `via` too;
    with a `secret` it is WebRTC, whose negotiation is sealed with it.
    """

    refusals = Notices(terminal.warn, clock=time.monotonic)

    def refused(reason: str, message: str) -> None:
        refusals.say(f"a connection was refused: {message or reason}")

    if not secret:
        line = await _tunnel(client, target, terminal, via, renewed, stack)
        if line is not None:
            from fairlead_sdk.tunnel_ports import open_ports

            ports = await stack.enter_async_context(open_ports(line, refused))
            await stack.enter_async_context(watching_hops(via, terminal))
            return _TunnelRoute(line=line, ports=ports)
    from fairlead_sdk.forwarding import open_tunnel

    forwarder = await stack.enter_async_context(
        open_tunnel(client.sessions, target, seal_secret=secret)
    )
    return _WebrtcRoute(forwarder=forwarder, refused=refused)


async def _tunnel(
    client: AsyncFairlead,
    target: str,
    terminal: Terminal,
    via: Sequence[Hop],
    renewed: Callable[[str], None],
    stack: AsyncExitStack,
) -> TunnelLine | None:
    """Open a tunnel, if the mesh has them."""
    from fairlead_sdk.errors import FairleadError

    try:
        from fairlead_sdk.session_meeting import meeting
        from fairlead_sdk.tunnel_drivers import pump_choice
        from fairlead_sdk.tunnel_line import open_line
    except ImportError:
        return None  # WebRTC tells what is missing
    line = open_line(
        client.sessions,
        target,
        say=Notices(terminal.say, clock=time.monotonic).say,
        renewed=renewed,
        attach_seconds=0.0,
        via=via,
        meet=meeting(client.sessions),
        pump=pump_choice(os.environ),
    )
    try:
        return await stack.enter_async_context(line)
    except FairleadError as error:
        if not error.reason.startswith("mode_"):
            raise
        terminal.say(f"no tunnel can be had, so WebRTC is tried. {error.message}")
        return None


class _TunnelRoute:
    """Over a tunnel, and another one when it is gone."""

    def __init__(self, *, line: TunnelLine, ports: TunnelPorts) -> None:
        self._line = line
        self._ports = ports

    @property
    def session_id(self) -> str:
        """The session that it goes through now."""
        return self._line.session_id

    @property
    def traffic(self) -> Traffic:
        """What goes through."""
        return self._ports.traffic

    @property
    def carrier(self) -> str:
        """The name of the tunnel's carrier."""
        return self._line.carrier

    def stop(self, local: int | Path) -> None:
        """Listen no more on a local port or at a path."""
        self._ports.stop(local)

    async def listen(self, way: Way, host: str, port: int) -> int:
        """Listen on a local port."""
        from fairlead_tunnel.targets import Target

        return await self._ports.listen(Target(way.port, way.host), host=host, port=port)

    async def listen_at(self, way: Way) -> None:
        """Listen at the way's path."""
        from fairlead_tunnel.targets import Target

        if way.path is not None:
            await self._ports.listen_at(Target(way.port, way.host), way.path)

    async def wait_lost(self) -> None:
        """Wait until no other tunnel can be had."""
        await self._line.wait_over()


class _WebrtcRoute:
    """Over one WebRTC association."""

    def __init__(self, *, forwarder: Forwarder, refused: OnRefusal) -> None:
        self._forwarder = forwarder
        self._refused = refused

    @property
    def session_id(self) -> str:
        """The session that it goes through."""
        return self._forwarder.session_id

    @property
    def traffic(self) -> None:
        """Not counted."""
        return

    carrier = "webrtc"

    def stop(self, local: int | Path) -> None:
        """Listen no more on a local port or at a path."""
        self._forwarder.stop(local)

    async def listen(self, way: Way, host: str, port: int) -> int:
        """Listen on a local port."""
        local = await self._forwarder.listen(
            way.port, port, host, on_refusal=self._refused, remote_host=way.host
        )
        return local.port

    async def listen_at(self, way: Way) -> None:
        """Listen at the way's path."""
        if way.path is not None:
            await self._forwarder.listen_at(way.path, way.port, self._refused, way.host)

    async def wait_lost(self) -> None:
        """Wait until the association ends."""
        await self._forwarder.wait_lost()
