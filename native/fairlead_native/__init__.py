"""WebRTC data channels and tunnels for asyncio, on threads of their own, without the GIL."""

from fairlead_native._core import (
    ConnectionOver,
    DescriptionInvalid,
    NegotiationRefused,
    serve_socks5,
)
from fairlead_native.channel import Channel, Message
from fairlead_native.connection import (
    Connection,
    Reason,
    State,
    StunServer,
    TurnServer,
)
from fairlead_native.engine import Engine
from fairlead_native.pump import Pump, PumpedTunnel, TunnelUser

__all__ = [
    "Channel",
    "Connection",
    "ConnectionOver",
    "DescriptionInvalid",
    "Engine",
    "Message",
    "NegotiationRefused",
    "Pump",
    "PumpedTunnel",
    "Reason",
    "State",
    "StunServer",
    "TunnelUser",
    "TurnServer",
    "serve_socks5",
]
