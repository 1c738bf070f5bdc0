"""One data channel, ordered and reliable unless the peer opened it otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from fairlead_native._core import Outlet

Message: TypeAlias = bytes | str

LOW_WATER: Final = 128 * 1024
"""Queued bytes at which a channel that had more says that there is room."""


def _ignore() -> None:
    """Do nothing: nobody has asked to be told."""


class Channel:
    """A data channel of a connection; made by `Connection.open_channel` or by the peer."""

    def __init__(
        self,
        *,
        outlet: Outlet,
        label: str,
        protocol: str,
        is_open: bool,
        ordered: bool = True,
        reliable: bool = True,
    ) -> None:
        self._outlet = outlet
        self.label: Final = label
        self.protocol: Final = protocol
        self.ordered: Final = ordered
        self.reliable: Final = reliable
        self._is_open = is_open
        self._is_closed = False
        self._early: list[Message] = []
        self._on_message: Callable[[Message], None] | None = None
        self._on_closed: Callable[[], None] = _ignore
        self._on_room: Callable[[], None] = _ignore

    @property
    def is_open(self) -> bool:
        """Say whether both sides have it and neither has closed it."""
        return self._is_open and not self._is_closed

    @property
    def is_closed(self) -> bool:
        """Say whether it is over, whoever ended it."""
        return self._is_closed

    @property
    def queued(self) -> int:
        """How many bytes wait to be sent, outside of what SCTP has in flight."""
        return 0 if self._is_closed else self._outlet.queued

    def attach(
        self,
        *,
        on_message: Callable[[Message], None],
        on_closed: Callable[[], None] = _ignore,
        on_room: Callable[[], None] = _ignore,
    ) -> None:
        """Deliver every message in order, then the close; `on_room` when it opens and when the
        queue has fallen to LOW_WATER.

        What came before is delivered at once.
        """
        self._on_message, self._on_closed, self._on_room = on_message, on_closed, on_room
        early, self._early = self._early, []
        for message in early:
            on_message(message)
        if self._is_closed:
            on_closed()

    def send(self, message: Message) -> None:
        """Queue a message of 1 to 65536 bytes, also before the channel is open.

        Dropped once it is closed. Raises ValueError when the message is empty or longer.
        """
        if not self._is_closed:
            self._outlet.send(message)

    def close(self) -> None:
        """Close after what is queued; again changes nothing."""
        if not self._is_closed:
            self._outlet.close()

    def take_opened(self) -> None:
        """Take note that the peer has the channel too."""
        self._is_open = True
        self._on_room()

    def take_message(self, message: Message) -> None:
        """Take a message of the peer."""
        if self._on_message is None:
            self._early.append(message)
        else:
            self._on_message(message)

    def take_room(self) -> None:
        """Take note that the queue has fallen to LOW_WATER."""
        self._on_room()

    def take_closed(self) -> None:
        """Take note that the channel is over."""
        if not self._is_closed:
            self._is_closed = True
            self._on_room()
            self._on_closed()
