"""What a tunnel driver stands between: carriers, and who opens and answers channels."""

from __future__ import annotations

from typing import Final, Protocol

from fairlead_tunnel.outbox import Batch

TICKET_CARRIER: Final = 1
"""The number of the carrier that a ticket attaches; the others count up from there."""
OPEN_UNSENT: Final = "open_unsent"
"""Why a channel has ended whose tunnel was over before its OPEN could leave, or arrive: nobody has
heard of it, and it may be opened in another tunnel."""


class OrderedCarrier(Protocol):
    """A carrier that keeps order, such as a `RecordStream`, or one poll."""

    @property
    def can_send(self) -> bool:
        """Say whether a batch may be sent now."""
        ...

    @property
    def takes_last(self) -> bool:
        """Say whether it takes the batch that ends the tunnel, also behind all that it has room
        for.
        """
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


class CarrierDriver(Protocol):
    """One side of a tunnel as its carriers use it: a `TunnelDriver`, or a `PumpedDriver`."""

    @property
    def is_over(self) -> bool:
        """Say whether the tunnel has ended."""
        ...

    @property
    def carriers(self) -> int:
        """How many carriers are attached."""
        ...

    @property
    def channels(self) -> int:
        """How many channels have not ended."""
        ...

    def attach(self, number: int, carrier: OrderedCarrier, /) -> None:
        """Use a carrier from now on; one that comes when the tunnel is over is closed."""
        ...

    def detach(self, number: int, /, *, heard: bool = False, reached: bool = True) -> None:
        """Send again what a carrier had under way: it is lost, or was `heard` and answered.

        Where nothing of it can have `reached` the peer, none of it counts as sent.
        """
        ...

    def take(self, batch: bytes, /) -> None:
        """Take a batch that came over a carrier."""
        ...

    def hello_batch(self, number: int, most: int, /) -> bytes:
        """Return what goes with a client's hello: what there is to send, and which carriers live.

        The number is that of the hello's carrier; `attach` or `detach` follows.
        """
        ...

    def answer_batch(self, number: int, most: int, /, *, restate: bool = False) -> bytes:
        """Return what goes with a gateway's answer; empty when there is nothing.

        With `restate` it says what has come though another carrier is about to tell it too.
        """
        ...

    def ping(self) -> None:
        """Ask the peer for a sign of life, and tell it which carriers a client has."""
        ...

    def flush_soon(self) -> None:
        """Send what there is: a carrier has room."""
        ...

    def close(self, reason: str, message: str, /) -> None:
        """End the tunnel with its channels and carriers, after telling the peer; once."""
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

        The reason is empty when both directions finished and the port has passed everything on,
        and OPEN_UNSENT where the tunnel ended first.
        """
        ...

    def over(self, reason: str, message: str) -> None:
        """Note that the tunnel has ended, after all its channels."""
        ...
