"""The errors of the object stores."""

from __future__ import annotations

from chassis.errors import Unavailable


class StoreLocked(Unavailable):
    """The project's object store is being repaired or cleaned up for too long."""

    def __init__(self, *, seconds: float) -> None:
        super().__init__(
            f"The host still works on the project's object store after {seconds:g} seconds.",
            reason="base_locked",
            remedy="Try again in a moment.",
        )
