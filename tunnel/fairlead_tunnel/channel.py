"""One channel of a tunnel at one side: its two directions, and what has to be said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from fairlead_tunnel.frames import (
    MAX_MESSAGE_BYTES,
    MAX_REASON_BYTES,
    MAX_TARGET_BYTES,
    SEGMENT_HEADER_BYTES,
    Accepted,
    Content,
    Fin,
    FrameInvalid,
    Open,
    Reset,
    Segment,
    Window,
    encode,
    segment_header,
)
from fairlead_tunnel.inbound import Inbound
from fairlead_tunnel.outbound import Outbound
from fairlead_tunnel.tunnel_events import (
    ChannelAccepted,
    ChannelFinished,
    ChannelReceived,
    ChannelReset,
    TunnelEvent,
)

ChannelFrame: TypeAlias = Open | Accepted | Segment | Fin | Reset | Window

ROOM_FOR_CONTROL: Final = 96 + MAX_TARGET_BYTES + MAX_REASON_BYTES + MAX_MESSAGE_BYTES
"""All frames but SEGMENT that a channel may have to say at once fit into this."""


class Item(IntEnum):
    """What a batch can carry of a channel, to be said again when the batch is lost."""

    OPEN = 1
    ACCEPTED = 2
    SEGMENT = 3
    FIN = 4
    RESET = 5
    WINDOW = 6
    PING = 10


class Part(NamedTuple):
    """One thing that is under way: `start` and `end` are offsets of SEGMENT, else 0."""

    channel: int
    item: Item
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a side gave a channel up."""

    reason: str
    message: str


class Channel:
    """The state of a channel at one side; `target` is what the client asked for."""

    __slots__ = (
        "_due",
        "_reset_acked",
        "accepted",
        "channel_id",
        "departures",
        "inbound",
        "open_acked",
        "open_lost",
        "opens",
        "outbound",
        "peer_reset",
        "queued",
        "reset",
        "target",
    )

    def __init__(self, channel_id: int, target: str, *, window: int, opens: bool) -> None:
        self.channel_id = channel_id
        self.target = target
        self.outbound = Outbound(limit=window)
        self.inbound = Inbound(window=window)
        self.opens = opens
        self.open_acked = not opens
        self.accepted = False
        self.departures = 0 if opens else 1
        self.open_lost = False
        self.reset: Ending | None = None
        self.peer_reset = False
        self.queued = False
        self._reset_acked = False
        self._due: set[Item] = {Item.OPEN} if opens else set()

    @property
    def ended(self) -> bool:
        """Say whether it was given up by either side."""
        return self.reset is not None or self.peer_reset

    @property
    def forgettable(self) -> bool:
        """Say whether neither side has anything left to say about it."""
        if not (self._reset_acked or (self.reset is None and self.outbound.settled)):
            return False
        if self.peer_reset:
            return True
        inbound = self.inbound
        heard = inbound.complete and inbound.consumed == inbound.length
        return heard or (self.reset is not None and inbound.length is not None)

    @property
    def has_to_say(self) -> bool:
        """Say whether a batch should ask it for frames."""
        return bool(self._due) or self.outbound.repeats or self.has_unsent

    @property
    def has_unsent(self) -> bool:
        """Say whether bytes wait that were never sent and that the peer takes."""
        return self.outbound.sent < min(self.outbound.written, self.outbound.limit)

    @property
    def has_left(self) -> bool:
        """Say whether its OPEN is or was under way, as far as it may have reached the peer."""
        return self.departures > 0

    def is_unheard(self, *, told: bool) -> bool:
        """Say whether the peer cannot know it: its OPEN never left, or no OPEN was lost and the
        peer, which has `told` all that came, has got none.
        """
        return not self.has_left or (told and not self.open_acked and not self.open_lost)

    def say(self, item: Item) -> None:
        """Note that something has to be said."""
        self._due.add(item)

    def give_up(self, ending: Ending) -> None:
        """Reset this channel and send nothing else in it."""
        self.reset = ending
        self.outbound.abandon()
        self._due.discard(Item.WINDOW)
        self._due.add(Item.RESET)

    def receive(self, frame: ChannelFrame) -> list[TunnelEvent]:
        """Take a frame of the peer and return what it means to this side.

        FrameInvalid, FlowViolation: it is none that this side may get.
        """
        was_complete = self.inbound.complete
        contents: list[Content] = []
        match frame:
            case Segment(_, offset, content):
                contents = self.inbound.take(offset, content)
            case Fin(_, length):
                self.inbound.finish(length)
            case Reset(_, length, reason, message):
                self.inbound.finish(length)
                return self._reset_by_peer(Ending(reason, message))
            case Window(_, limit):
                self.outbound.limit = max(limit, self.outbound.limit)
                return []
            case Accepted() if self.opens:
                pass
            case Open(_, target) if not self.opens and target == self.target:
                return []
            case _:
                raise FrameInvalid("a channel was opened twice, or by the wrong side")
        if self.ended:
            return []
        events: list[TunnelEvent] = []
        if self.opens and not self.accepted:
            self.accepted = True  # what it sent says so too, and may overtake ACCEPTED
            events.append(ChannelAccepted(self.channel_id))
        events += [ChannelReceived(self.channel_id, content) for content in contents]
        if self.inbound.complete and not was_complete:
            events.append(ChannelFinished(self.channel_id))
        return events

    def take_control(self, pieces: list[Content], parts: list[Part]) -> int:
        """Append the frames that are due, but for SEGMENT; returns how many bytes they have."""
        due = self._due
        if not due and self.open_acked:
            return 0
        frames: list[Open | Accepted | Reset | Window | Fin] = []
        if not self.open_acked and self.has_to_say:
            due.add(Item.OPEN)  # so that no frame of it can arrive before its OPEN
        if Item.OPEN in due and not self.open_acked:
            frames.append(Open(self.channel_id, self.target))
            self.departures += 1
        if Item.ACCEPTED in due and self.reset is None:
            frames.append(Accepted(self.channel_id))
        if Item.WINDOW in due:
            frames.append(Window(self.channel_id, self.inbound.limit))
        if self.reset is not None and Item.RESET in due:
            sent = self.outbound.sent
            frames.append(Reset(self.channel_id, sent, self.reset.reason, self.reset.message))
        parts.extend(Part(self.channel_id, item) for item in sorted(due))
        due.clear()
        encoded = [encode(frame) for frame in frames]
        pieces.extend(encoded)
        return sum(map(len, encoded))

    def take_segments(
        self, pieces: list[Content], parts: list[Part], *, most: int, credit: int
    ) -> tuple[int, int]:
        """Append SEGMENT and FIN frames of at most `most` bytes with `credit` new bytes in them.

        Returns how many bytes the frames have, and how many new ones are in them.
        """
        size = fresh = 0
        outbound = self.outbound
        while taken := outbound.take_repeat(most - size - SEGMENT_HEADER_BYTES):
            size += self._put(taken, pieces, parts)
        taken = outbound.take_unsent(min(credit, most - size - SEGMENT_HEADER_BYTES))
        if taken is not None:
            before = size
            size += self._put(taken, pieces, parts)
            fresh = size - before - SEGMENT_HEADER_BYTES
        if (length := outbound.take_fin()) is not None:
            frame = encode(Fin(self.channel_id, length))
            pieces.append(frame)
            parts.append(Part(self.channel_id, Item.FIN))
            size += len(frame)
        return size, fresh

    def on_acked(self, part: Part) -> None:
        """Note that something has arrived."""
        match part.item:
            case Item.SEGMENT:
                self.outbound.on_acked(part.start, part.end)
            case Item.FIN:
                self.outbound.on_fin_acked()
            case Item.OPEN:
                self.open_acked = True
            case Item.RESET:
                self._reset_acked = True
            case _:
                pass

    def on_lost(self, part: Part, *, reached: bool = True) -> None:
        """Say again what was lost on the way, as far as it still matters; what has not `reached`
        the peer counts as never sent.
        """
        if part.item is Item.OPEN and not reached and not self.open_acked:
            self.departures -= 1
        match part.item:
            case Item.SEGMENT if self.reset is None:
                self.outbound.on_lost(part.start, part.end)
            case Item.FIN if self.reset is None:
                self.outbound.on_fin_lost()
            case Item.SEGMENT | Item.FIN:
                pass
            case Item.WINDOW if self.ended or self.inbound.length is not None:
                pass
            case Item.RESET if self._reset_acked:
                pass
            case item:
                self.open_lost |= item is Item.OPEN and reached
                self._due.add(item)

    def _reset_by_peer(self, ending: Ending) -> list[TunnelEvent]:
        if self.peer_reset:
            return []
        self.peer_reset = True
        if self.reset is not None:
            return []
        if not self.outbound.settled:
            self.give_up(ending)  # tells the peer how much this side had sent
        return [ChannelReset(self.channel_id, ending.reason, ending.message)]

    def _put(
        self, taken: tuple[int, Sequence[memoryview]], pieces: list[Content], parts: list[Part]
    ) -> int:
        offset, contents = taken
        length = sum(map(len, contents))
        pieces.append(segment_header(self.channel_id, offset, length))
        pieces.extend(contents)
        parts.append(Part(self.channel_id, Item.SEGMENT, offset, offset + length))
        return SEGMENT_HEADER_BYTES + length
