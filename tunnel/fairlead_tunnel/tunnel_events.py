"""What a tunnel tells the side that uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fairlead_tunnel.frames import Content, Range


@dataclass(frozen=True, slots=True)
class ChannelWanted:
    """The client opened a channel: connect the target, then `accept` or `reset`; gateway only."""

    channel: int
    target: str


@dataclass(frozen=True, slots=True)
class ChannelAccepted:
    """The gateway has connected the target; client only."""

    channel: int


class ChannelReceived(NamedTuple):
    """The next bytes of a channel; say `consumed` when they have left."""

    channel: int
    content: Content


@dataclass(frozen=True, slots=True)
class ChannelFinished:
    """The peer sends no more bytes in this channel."""

    channel: int


@dataclass(frozen=True, slots=True)
class ChannelReset:
    """The peer gave the channel up; no event of it follows."""

    channel: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ChannelDrained:
    """There is room again, after `write` did not take all."""

    channel: int


@dataclass(frozen=True, slots=True)
class CarriersNamed:
    """The client has only these carriers, and maybe newer ones; gateway only.

    What others had under way is sent again already.
    """

    alive: Sequence[Range]


@dataclass(frozen=True, slots=True)
class TunnelOver:
    """The tunnel ended with all of its channels; no event follows.

    `unsent` are channels of which the peer cannot know: their OPEN was given to no carrier, or the
    peer's last batch says that it has not come.
    """

    reason: str
    message: str
    unsent: frozenset[int] = frozenset()


TunnelEvent: TypeAlias = (
    ChannelWanted
    | ChannelAccepted
    | ChannelReceived
    | ChannelFinished
    | ChannelReset
    | ChannelDrained
    | CarriersNamed
    | TunnelOver
)
