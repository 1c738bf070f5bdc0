"""WebRTC data channels for asyncio: connections on a thread of their own, without the GIL."""

from fairlead_native._core import ConnectionOver, DescriptionInvalid, NegotiationRefused
from fairlead_native.channel import Channel, Message
from fairlead_native.connection import (
    Connection,
    Reason,
    State,
    StunServer,
    TurnServer,
)
from fairlead_native.engine import Engine

__all__ = [
    "Channel",
    "Connection",
    "ConnectionOver",
    "DescriptionInvalid",
    "Engine",
    "Message",
    "NegotiationRefused",
    "Reason",
    "State",
    "StunServer",
    "TurnServer",
]
