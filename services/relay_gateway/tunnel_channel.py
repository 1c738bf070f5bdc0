"""Carriers of tunnels over WebRTC data channels: one binary message for each record."""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_tunnel.carriers import GatewayAttach, TunnelDesk
from fairlead_tunnel.channel_pipe import MOST_BATCH_BYTES, ChannelPipe
from fairlead_tunnel.message_stream import MessageStream
from fairlead_tunnel.peer_connection import PeerChannel

_HELLO_SECONDS: Final = 10.0


class ChannelCarrier(GatewayAttach):
    """The gateway's use of one channel, whose client has ten seconds to say who it is."""

    stream: MessageStream

    def __init__(self, desk: TunnelDesk, port: PeerChannel) -> None:
        super().__init__(desk)
        self.pipe = ChannelPipe(port)
        self.stream = MessageStream(self, self.pipe, most_bytes=MOST_BATCH_BYTES)
        self.pipe.lead_to(self.stream)
        asyncio.get_running_loop().call_later(_HELLO_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.is_greeting:
            self.stream.abort()
