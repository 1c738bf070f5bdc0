"""Connections that are made to this machine's ports, and the channels that they get."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final, cast

from fairlead_sdk.local_ends import Held, LocalEnd, local_end
from fairlead_sdk.local_traffic import Traffic
from fairlead_sdk.tunnel_drivers import MOST_CONNECTIONS
from fairlead_sdk.tunnel_line import TunnelLine
from fairlead_tunnel.channel_port import drop, hand_over
from fairlead_tunnel.driver_sides import OPEN_UNSENT
from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.socks5 import (
    Asked,
    Credentials,
    Refused,
    Reply,
    Socks5Server,
    encode_reply,
    reply_of,
)
from fairlead_tunnel.targets import Target
from fairlead_tunnel.tunnel import TunnelFull
from fairlead_tunnel.tunnel_client import TunnelClient, TunnelGone

HOLD_SECONDS: Final = 0.001
"""So long an OPEN waits for its first bytes."""
GREETING_SECONDS: Final = 10.0
"""For a client of SOCKS to say where it wants to."""
WAIT_SECONDS: Final = 30.0
"""For another tunnel, where there is none just now."""

DRAINING: Final = "gateway_draining"
_ANEW: Final = frozenset({DRAINING, OPEN_UNSENT})
"""Reasons for which no gateway has dialled for a connection."""
_OWN_ENDS: Final = frozenset({"", "connection_reset", "session_closed"})
"""Reasons of those who spoke, and of who has ended the session."""

OnRefusal = Callable[[str, str], None]
Listen = Callable[[PumpedDriver, socket.socket], int]
"""Has a pump accept what is made to a listening socket; returns the listener's number."""
Adopt = Callable[[socket.socket, asyncio.Protocol], None]
"""Has the event loop tell a protocol of a connection."""


def tell_refusal(client: TunnelClient, on_refusal: OnRefusal, reason: str, message: str) -> None:
    """Tell why a channel has ended, where somebody else ended it than the two that spoke, and the
    tunnel is not over.
    """
    if reason not in _OWN_ENDS and not client.is_over:
        on_refusal(reason, message)


class LocalConnection(asyncio.Protocol):
    """A connection that leads to `target`, from its beginning until a channel has it.

    `on_refusal(reason, message)` is told when its channel is reset and the tunnel is not over;
    `adopt` has it told of a connection that a pump has given back. One that the pump of `client`
    has accepted begins with that.
    """

    def __init__(
        self,
        *,
        line: TunnelLine,
        target: Target,
        traffic: Traffic,
        on_refusal: OnRefusal,
        adopt: Adopt,
        most: int = MOST_CONNECTIONS,
        client: TunnelClient | None = None,
    ) -> None:
        self._line = line
        self._target = target
        self._traffic = traffic
        self._on_refusal = on_refusal
        self._adopt = adopt
        self._most = most
        self._early = b""
        self._held: Held | None = None
        self._end: LocalEnd | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._client = client
        self._is_led = False

    # What asyncio tells, until the end of a channel takes over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this."""
        made = cast(asyncio.Transport, transport)
        if self._client is None and self._traffic.connections >= self._most:
            self._on_refusal(*self._full())
            drop(made)
            return
        self._held = Held(made, self._early)
        self._traffic.begin()
        self._begin()

    def data_received(self, content: bytes) -> None:
        """Keep what comes before there is a tunnel: one read; asyncio calls this."""
        if self._held is not None:
            self._held.early += content
            self._held.transport.pause_reading()

    def eof_received(self) -> bool:
        """Note the end of this direction; asyncio calls this."""
        if self._held is not None:
            self._held.has_finished = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; asyncio calls this."""
        if self._end is None and self._held is not None:
            self._held = None
            self._line.leave(self)
            self._set_timer(None)
            self._traffic.end()

    # Its channel

    hold_seconds = HOLD_SECONDS
    _reply = b""

    def _begin(self) -> None:
        self._wait()

    def _wait(self) -> None:
        self._set_timer(WAIT_SECONDS)
        self._line.want(self)

    def tunnel_ready(self, client: TunnelClient) -> None:
        """Open a channel and let it have the connection."""
        held = self._held
        if held is None or held.transport.is_closing():
            return
        try:
            channel = client.open(self._target.label, self, hold_seconds=self.hold_seconds)
        except TunnelGone:
            asyncio.get_running_loop().call_soon(self._line.want, self)
            return
        except TunnelFull:
            self._refuse(*self._full())
            return
        self._set_timer(None)
        self._client = client
        self._end = local_end(client.driver, channel, held, self._traffic, self._reply)

    def accepted(self) -> None:
        """Let the channel's bytes come."""
        if self._end is not None:
            self._is_led = True
            self._end.accepted()

    def no_tunnel(self) -> None:
        """Drop a connection that waits: there will be no tunnel for it."""
        self._give_up()

    def ended(self, reason: str, message: str) -> None:
        """Go on in another tunnel where no gateway has dialled, else tell why."""
        # A turn of the loop later it is known whether the tunnel is over, too.
        asyncio.get_running_loop().call_soon(self._has_ended, reason, message)

    def given_back(
        self, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Begin anew with a connection that a pump had."""
        if reason == DRAINING and self._client is not None:
            self._line.turn_from(self._client)
        self._held, self._end, self._early = None, None, early
        self._adopt(connection, self)

    def _has_ended(self, reason: str, message: str) -> None:
        end, client = self._end, self._client
        if end is None or client is None:
            return
        if reason in _ANEW and not self._is_led and end.take_back():
            self._begin_anew(client, reason)
            return
        if not self._is_led:
            self._answer(reason)
        end.ended()
        self._held = None
        tell_refusal(client, self._on_refusal, reason, message)

    def _begin_anew(self, client: TunnelClient, reason: str) -> None:
        """Wait for another tunnel with what was read."""
        if self._held is not None:
            self._end = None
            hand_over(self._held.transport, self)
            if reason == DRAINING:
                self._line.turn_from(client)
            self._wait()

    def _refuse(self, reason: str, message: str) -> None:
        """Drop a connection that gets no channel."""
        self._on_refusal(reason, message)
        self._answer(reason)

    def _answer(self, reason: str) -> None:
        """Have the local program see a reset."""
        if self._held is not None:
            drop(self._held.transport)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._refuse(
            "gateway_unreachable",
            f"There was no tunnel to {self._there} within {WAIT_SECONDS:g} seconds.",
        )

    @property
    def _there(self) -> str:
        """Where the connection leads, for a person."""
        target = self._target
        return f"{target.host}:{target.port}" if target.host else f"port {target.port}"

    def _full(self) -> tuple[str, str]:
        return (
            "channel_limit",
            f"{self._most} connections are open, the most that there may be at once.",
        )


def lead_to(target: Target) -> Listen:
    """Have a pump lead connections to a target."""

    def listen(driver: PumpedDriver, plug: socket.socket) -> int:
        return driver.listen(plug, target.label, hold_seconds=LocalConnection.hold_seconds)

    return listen


def lead_where_asked(credentials: Credentials | None) -> Listen:
    """Have a pump serve SOCKS5."""

    def listen(driver: PumpedDriver, plug: socket.socket) -> int:
        return driver.listen_socks(plug, credentials, seconds=GREETING_SECONDS)

    return listen


class SocksConnection(LocalConnection):
    """A connection of a client of SOCKS5, which says itself where it leads."""

    hold_seconds = 0.0  # who waits for the reply sends nothing before it
    _reply = encode_reply(Reply.SUCCEEDED)

    def __init__(
        self,
        *,
        line: TunnelLine,
        traffic: Traffic,
        on_refusal: OnRefusal,
        adopt: Adopt,
        credentials: Credentials | None,
        most: int = MOST_CONNECTIONS,
        client: TunnelClient | None = None,
    ) -> None:
        super().__init__(
            line=line,
            target=Target(),
            traffic=traffic,
            on_refusal=on_refusal,
            adopt=adopt,
            most=most,
            client=client,
        )
        self._server = Socks5Server(credentials=credentials)
        self._has_asked = False

    def data_received(self, content: bytes) -> None:
        """Take the client's messages, and keep what follows them; asyncio calls this."""
        if self._has_asked:
            super().data_received(content)
            return
        found = self._server.receive(content)
        held = self._held
        if held is None or held.transport.is_closing():
            return
        held.transport.write(self._server.take_outgoing())
        match found:
            case Asked(target, early):
                self._has_asked = True
                self._target = target
                held.early = early
                self._wait()
            case Refused(message):
                self._on_refusal("client_refused", message)
                held.transport.close()

    def eof_received(self) -> bool:
        """Note the end of this direction, if the client has asked; asyncio calls this."""
        return self._has_asked and super().eof_received()

    def given_back(
        self, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Begin anew where no gateway has dialled, else answer with the reason's code."""
        if reason in _ANEW:
            unread = early if self._has_asked else self._heard(early)
            super().given_back(connection, unread, reason, message)
            return
        with contextlib.suppress(OSError):
            connection.send(encode_reply(reply_of(reason)))
        connection.close()
        self._held = None
        client = self._client
        if client is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(tell_refusal, client, self._on_refusal, reason, message)

    def _heard(self, content: bytes) -> bytes:
        """Take what a pump has read, and has answered but for the request; returns what follows."""
        found = self._server.receive(content)
        self._server.take_outgoing()
        if not isinstance(found, Asked):
            return b""
        self._has_asked, self._target = True, found.target
        return found.early

    def _begin(self) -> None:
        if self._has_asked:
            self._wait()
        else:
            self._set_timer(GREETING_SECONDS)

    def _answer(self, reason: str) -> None:
        """Answer with the reason's code, if the client has asked."""
        transport = self._held.transport if self._held is not None else None
        if transport is not None and not transport.is_closing():
            if self._has_asked:
                transport.write(encode_reply(reply_of(reason)))
            transport.close()

    def _give_up(self) -> None:
        if self._has_asked:
            super()._give_up()
        elif self._held is not None:
            self._held.transport.abort()
