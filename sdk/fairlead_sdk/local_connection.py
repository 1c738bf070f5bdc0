"""Connections that are made to this machine's ports, and the channels that they get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from fairlead_sdk.local_traffic import Meter, Traffic
from fairlead_sdk.tunnel_line import TunnelLine
from fairlead_tunnel.channel_port import ChannelPort, drop, hand_over
from fairlead_tunnel.driver_sides import OPEN_UNSENT
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

MOST_CONNECTIONS: Final = 1024
HOLD_SECONDS: Final = 0.001
"""So long an OPEN waits for its first bytes."""
GREETING_SECONDS: Final = 10.0
"""For a client of SOCKS to say where it wants to."""
WAIT_SECONDS: Final = 30.0
"""For another tunnel, where there is none just now."""

_ANEW: Final = frozenset({"gateway_draining", OPEN_UNSENT})
"""Reasons for which no gateway has dialled for a connection."""

OnRefusal = Callable[[str, str], None]


class LocalConnection(asyncio.Protocol):
    """A connection that leads to `target`, from its beginning until a channel has it.

    `on_refusal(reason, message)` is told when its channel is reset and the tunnel is not over.
    """

    def __init__(
        self,
        *,
        line: TunnelLine,
        target: Target,
        traffic: Traffic,
        on_refusal: OnRefusal,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self._line = line
        self._target = target
        self._traffic = traffic
        self._on_refusal = on_refusal
        self._most = most
        self._transport: asyncio.Transport | None = None
        self._early = b""
        self._has_finished = False
        self._timer: asyncio.TimerHandle | None = None
        self._client: TunnelClient | None = None
        self._meter: Meter | None = None
        self._channel = 0
        self._port: ChannelPort | None = None
        self._is_led = False

    # What asyncio tells, until the channel's port takes over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this."""
        made = cast(asyncio.Transport, transport)
        if self._traffic.connections >= self._most:
            drop(made)
            return
        self._transport = made
        self._traffic.begin()
        self._begin()

    def data_received(self, content: bytes) -> None:
        """Keep what comes before there is a tunnel: one read; asyncio calls this."""
        self._early += content
        if self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Note the end of this direction; asyncio calls this."""
        self._has_finished = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; asyncio calls this."""
        if self._transport is not None:
            self._transport = None
            self._line.leave(self)
            self._set_timer(None)
            self._traffic.end()

    # Its channel

    def _begin(self) -> None:
        self._set_timer(WAIT_SECONDS)
        self._line.want(self)

    def tunnel_ready(self, client: TunnelClient) -> None:
        """Open a channel and let it have the connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._set_timer(None)
        self._client = client
        try:
            self._channel = client.open(self._target.label, self, hold_seconds=self._hold)
        except TunnelGone as gone:
            self._refuse(gone.end.reason, gone.end.message)
            return
        except TunnelFull:
            self._refuse("channel_limit", "The tunnel has as many channels as it may have.")
            return
        self._meter = Meter(driver=client.driver, traffic=self._traffic)
        port = self._port = ChannelPort(self._channel, self._meter)
        hand_over(transport, port)
        port.connection_made(transport)
        if self._early:
            port.take(self._early)
            self._early = b""
        if self._has_finished:
            port.eof_received()

    _hold = HOLD_SECONDS

    def accepted(self) -> None:
        """Let the channel's bytes come."""
        if self._meter is None or self._client is None or self._port is None:
            return
        self._is_led = True
        self._meter.take_kept()
        self._client.lead(self._channel, self._port)

    def ended(self, reason: str, message: str) -> None:
        """Go on in another tunnel where no gateway has dialled, else tell why, where somebody else
        ended it than the two that spoke.
        """
        if reason in _ANEW and not self._is_led and self._begun_anew(reason):
            return
        if not self._is_led:
            self._answer(reason)
        self._transport = None
        self._traffic.end()
        is_over = self._client is not None and self._client.is_over
        if reason not in ("", "connection_reset", "session_closed") and not is_over:
            self._on_refusal(reason, message)

    def _begun_anew(self, reason: str) -> bool:
        """Wait for another tunnel with what was read; False when that is not known any more."""
        transport, meter, client = self._transport, self._meter, self._client
        if transport is None or transport.is_closing() or meter is None or client is None:
            return False
        kept = meter.take_kept()
        if kept is None:
            return False
        self._early, self._has_finished = kept, meter.has_finished
        self._port = None
        hand_over(transport, self)
        if reason != OPEN_UNSENT:
            self._line.turn_from(client)
        self._set_timer(WAIT_SECONDS)
        self._line.want(self)
        return True

    def _refuse(self, reason: str, message: str) -> None:
        """Drop a connection that gets no channel."""
        self._on_refusal(reason, message)
        self._answer(reason)

    def _answer(self, reason: str) -> None:
        """Have the local program see a reset."""
        if self._port is not None:
            self._port.abort()
        elif self._transport is not None:
            drop(self._transport)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def no_tunnel(self) -> None:
        """Drop a connection that waits: there will be no tunnel for it."""
        self._give_up()

    def _give_up(self) -> None:
        self._refuse("gateway_unreachable", "There was no tunnel in time.")


class SocksConnection(LocalConnection):
    """A connection of a client of SOCKS5, which says itself where it leads."""

    _hold = 0.0  # who waits for the reply sends nothing before it

    def __init__(
        self,
        *,
        line: TunnelLine,
        traffic: Traffic,
        on_refusal: OnRefusal,
        credentials: Credentials | None,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        super().__init__(
            line=line, target=Target(), traffic=traffic, on_refusal=on_refusal, most=most
        )
        self._server = Socks5Server(credentials=credentials)
        self._has_asked = False

    def data_received(self, content: bytes) -> None:
        """Take the client's messages, and keep what follows them; asyncio calls this."""
        if self._has_asked:
            super().data_received(content)
            return
        found = self._server.receive(content)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(self._server.take_outgoing())
        match found:
            case Asked(target, early):
                self._has_asked = True
                self._target = target
                self._early = early
                self._set_timer(WAIT_SECONDS)
                self._line.want(self)
            case Refused(message):
                self._on_refusal("client_refused", message)
                transport.close()

    def eof_received(self) -> bool:
        """Note the end of this direction, if the client has asked; asyncio calls this."""
        return self._has_asked and super().eof_received()

    def accepted(self) -> None:
        """Answer, and let the channel's bytes follow."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_reply(Reply.SUCCEEDED))
        super().accepted()

    def _begin(self) -> None:
        self._set_timer(GREETING_SECONDS)

    def _answer(self, reason: str) -> None:
        """Answer with the reason's code, if the client has asked."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if self._has_asked:
                transport.write(encode_reply(reply_of(reason)))
            transport.close()

    def _give_up(self) -> None:
        if self._has_asked:
            super()._give_up()
        elif self._transport is not None:
            self._transport.abort()
