"""Objects in memory, for the front door's tests: a Python that says back what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from chassis.errors import NotFound
from signalling.execution import ExitReason
from signalling.object import ObjectsEnded, ObjectsFrame, ObjectsOpened
from tests.fakes.front_door import SANDBOX


class EchoObjects:
    """One Python for every call; `exit` ends it; `python` "none" is not there, and "mute" says
    nothing.
    """

    def __init__(self) -> None:
        self.opened: list[tuple[str, str, str]] = []
        self.ended = asyncio.Event()

    async def attach(
        self, tenant: str, sandbox_id: str, python: str, incoming: AsyncIterator[bytes]
    ) -> AsyncGenerator[ObjectsFrame, None]:
        if sandbox_id != SANDBOX or tenant != "default":
            raise NotFound("There is no such sandbox.", reason="sandbox_not_found", remedy="List.")
        if python == "none":
            raise NotFound("There is no such program.", reason="command_not_found", remedy="Check.")
        self.opened.append((tenant, sandbox_id, python))
        try:
            yield ObjectsOpened()
            async for content in incoming:
                if content == b"exit":
                    yield ObjectsEnded(ExitReason.EXITED, 3, None, "last words")
                    return
                if python != "mute":
                    yield content
        finally:
            self.ended.set()
