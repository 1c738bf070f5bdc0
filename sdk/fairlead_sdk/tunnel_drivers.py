"""What the tunnels of a line run on: the native pump where there is one, or the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Final

from fairlead_sdk.errors import InvalidArgument
from fairlead_tunnel.pumped_driver import PumpedDriver, PumpedUser
from fairlead_tunnel.pumps import PumpChoice, make_pump
from fairlead_tunnel.tunnel import Side
from fairlead_tunnel.tunnel_client import ClientDriver, MakeDriver, on_event_loop

VARIABLE: Final = "FAIRLEAD_TUNNEL_PUMP"
MOST_CONNECTIONS: Final = 1024
"""Of local connections at once."""


class PumpUnknown(InvalidArgument):
    """The variable names nothing that tunnels run on."""

    def __init__(self, value: str) -> None:
        super().__init__(
            f"{VARIABLE} is {value!r}, which is no pump.",
            reason="pump_unknown",
            remedy=f"Set it to one of: {', '.join(PumpChoice)}.",
        )


def pump_choice(environment: Mapping[str, str]) -> PumpChoice:
    """Return what FAIRLEAD_TUNNEL_PUMP says; raises PumpUnknown."""
    value = environment.get(VARIABLE) or PumpChoice.AUTO
    try:
        return PumpChoice(value)
    except ValueError:
        raise PumpUnknown(value) from None


@contextmanager
def drivers_of(choice: PumpChoice, most: int = MOST_CONNECTIONS) -> Iterator[MakeDriver]:
    """Have what makes drivers of clients' tunnels in the running loop; they end with the block.

    A pump has at most `most` channels in a tunnel. Where it has failed, the event loop goes on.
    """
    pump = make_pump(choice)
    if pump is None:
        yield on_event_loop
        return

    def made(user: PumpedUser) -> ClientDriver:
        with suppress(RuntimeError):
            return PumpedDriver(pump=pump, side=Side.CLIENT, user=user, most_channels=most)
        return on_event_loop(user)

    with closing(pump):
        yield made
