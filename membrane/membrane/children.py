"""What a link needs of a child, wherever that lives: its two sockets, and news of its end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from membrane.errors import MembraneError

FREE_SECONDS = 2.0
"""Time for a child to end a call that is cancelled, or another one; then it is killed.

10 ms are enough on a quiet machine. With eight busy programs on each of two processors 300 took
up to 510 ms, and a child that only waits for its turn is not to be killed.
"""


class Child(Protocol):
    """A child from the moment that it was asked for; `ended` is called when it is gone, and `fault`
    says why where that is known.

    `control` and `lane` can be used at once. Only where `shares_memory` do descriptors cross.
    `free_seconds` is the time that it has to end a call that is cancelled. `has_numpy` says, once
    it has answered, whether arrays can go by value.
    """

    control: socket.socket
    lane: socket.socket
    shares_memory: bool
    free_seconds: float
    has_numpy: bool
    fault: str
    ended: Callable[[], None] | None
    is_over: bool

    @property
    def pid(self) -> int:
        """Its process id where it lives; waits for its birth. Raises ChildLost."""
        ...

    @property
    def refusal(self) -> MembraneError | None:
        """What to raise instead of trying again; None where another child may do."""
        ...

    def wait_born(self) -> None:
        """Wait until it is born, or will never be."""
        ...

    def is_gone(self) -> bool:
        """Look whether it has ended, or will never be."""
        ...

    def kill(self) -> None:
        """End it; never waits."""
        ...

    def close(self) -> None:
        """Let go of the sockets."""
        ...
