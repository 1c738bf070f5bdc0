"""What a tunnel driver stands between: carriers, and who opens and answers channels."""

from __future__ import annotations

from typing import Protocol

from fairlead_tunnel.outbox import Batch


class OrderedCarrier(Protocol):
    """A carrier that keeps order, such as a `RecordStream`, or one poll."""

    @property
    def can_send(self) -> bool:
        """Say whether a batch may be sent now."""
        ...

    @property
    def most_bytes(self) -> int:
        """How long that batch may be, 4 to 256 KiB."""
        ...

    def send(self, batch: Batch) -> None:
        """Send a batch."""
        ...

    def close(self) -> None:
        """End it after what was sent."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...


class DriverUser(Protocol):
    """Who opens and answers channels; none of these may raise."""

    def wanted(self, channel: int, target: str) -> None:
        """Connect a target, then `accept` or `refuse`; gateway only."""
        ...

    def accepted(self, channel: int) -> None:
        """Note that a target is connected; client only."""
        ...

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Note that a channel has ended, once its port is gone too.

        The reason is empty when both directions finished and the port has passed everything on.
        """
        ...

    def over(self, reason: str, message: str) -> None:
        """Note that the tunnel has ended, after all its channels."""
        ...
