"""How many bytes of a tunnel's channels may wait to be sent, and which channels wait for room."""

from __future__ import annotations

from fairlead_tunnel.channel import Channel
from fairlead_tunnel.frames import Content


class SendRoom:
    """Counts what all channels keep for sending: at most `window` of each and `shared` of all."""

    def __init__(self, *, window: int, shared: int) -> None:
        self._window = window
        self._shared = shared
        self._kept = 0
        self._waiting: set[Channel] = set()

    def of(self, channel: Channel) -> int:
        """Return how many bytes may be written now."""
        if channel.ended or channel.outbound.finished:
            return 0
        return self._left(channel)

    def write(self, channel: Channel, content: Content) -> int:
        """Keep as many bytes of a channel that goes on as there is room for; one that has more to
        write waits.
        """
        room = self._left(channel)
        if room < len(content):
            self._waiting.add(channel)
            content = content[:room]
        channel.outbound.write(content)
        self._kept += len(content)
        return len(content)

    def _left(self, channel: Channel) -> int:
        return max(min(self._window - channel.outbound.buffered, self._shared - self._kept), 0)

    def free(self, count: int) -> None:
        """Note that `count` bytes are kept no longer."""
        self._kept -= count

    def leave(self, channel: Channel) -> None:
        """Note that a channel writes no more."""
        self._waiting.discard(channel)

    def clear(self) -> None:
        """Forget all channels."""
        self._waiting.clear()
        self._kept = 0

    def take_drained(self) -> list[Channel]:
        """Return the channels that waited and have room again: at least half of a window.

        There is none while less than a sixteenth is left for all: what slow readers leave must not
        keep the others waiting.
        """
        if not self._waiting or self._kept > self._shared * 15 // 16:
            return []
        found = [each for each in self._waiting if each.outbound.buffered <= self._window // 2]
        self._waiting.difference_update(found)
        return found
