"""How much goes through local ports, in a line that is written over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead_sdk.cli.terminal import Terminal

if TYPE_CHECKING:
    from fairlead_sdk.client import Sleep
    from fairlead_sdk.local_traffic import Traffic

_EVERY_SECONDS = 1.0
_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


async def show_traffic(
    traffic: Traffic, terminal: Terminal, *, sleep: Sleep, clock: Callable[[], float]
) -> None:
    """Show totals and rates every second, on a terminal; until it is cancelled."""
    if not terminal.is_live:
        await asyncio.Event().wait()
    before, sent, received = clock(), 0, 0
    while True:
        await sleep(_EVERY_SECONDS)
        now = clock()
        seconds = max(now - before, 0.001)
        up = shown_flow(traffic.sent, (traffic.sent - sent) / seconds)
        down = shown_flow(traffic.received, (traffic.received - received) / seconds)
        count = traffic.connections
        word = "connection" if count == 1 else "connections"
        terminal.status(f"  … {count} {word}, up {up}, down {down}")
        before, sent, received = now, traffic.sent, traffic.received


def shown_flow(total: int, rate: float) -> str:
    """Write a total and a rate in bytes per second for a person."""
    return f"{shown_size(total)} ({shown_size(round(rate))}/s)"


def shown_size(count: int) -> str:
    """Write a number of bytes for a person."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
