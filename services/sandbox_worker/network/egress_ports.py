"""What the use cases of network policies need from outside, and what the proxy needs."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from chassis.allow_list import AllowList
from sandbox_worker.network.decision import Decision, Reason

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, as text; raises OSError and UnicodeError."""

Count = Callable[[Reason], None]
"""Counts a decision."""


class EgressDoors(Protocol):
    """The filtering proxies of the sandboxes, one door each."""

    def open(self, sandbox_id: str, listener: socket.socket, allowed: AllowList) -> None:
        """Serve what connects to `listener`, which belongs to the door from now on."""
        ...

    def change(self, sandbox_id: str, allowed: AllowList | None) -> None:
        """Decide by another list from now on, and cut what it does not allow; None refuses all."""
        ...

    async def close(self, sandbox_id: str) -> None:
        """Cut everything and forget the sandbox; again is harmless."""
        ...

    def decisions(self, sandbox_id: str) -> Sequence[Decision]:
        """Return the last decisions, oldest first; none for a sandbox without a door."""
        ...
