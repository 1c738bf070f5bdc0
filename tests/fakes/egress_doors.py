"""Doors that keep their listeners and lists, and carry nothing."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from chassis.allow_list import AllowList
from sandbox_worker.network.decision import Decision


class ListedDoors:
    """What the use cases opened, and the list that each sandbox has now."""

    def __init__(self) -> None:
        self.lists: dict[str, AllowList | None] = {}
        self.listeners: dict[str, socket.socket] = {}

    def open(self, sandbox_id: str, listener: socket.socket, allowed: AllowList) -> None:
        assert sandbox_id not in self.lists
        self.listeners[sandbox_id] = listener
        self.lists[sandbox_id] = allowed

    def change(self, sandbox_id: str, allowed: AllowList | None) -> None:
        assert sandbox_id in self.lists
        self.lists[sandbox_id] = allowed

    async def close(self, sandbox_id: str) -> None:
        self.lists.pop(sandbox_id, None)
        listener = self.listeners.pop(sandbox_id, None)
        if listener is not None:
            listener.close()

    def decisions(self, sandbox_id: str) -> Sequence[Decision]:
        return ()
