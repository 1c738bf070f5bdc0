"""Terminals over the data channels of a session, which goes past the front door.

Needs the extra `fairlead-sdk[webrtc]`; nothing of it is imported before a session is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import FairleadError, Unavailable, error_from_problem
from fairlead_sdk.executions import AsyncExecutions
from fairlead_sdk.sandboxes import AsyncSandboxes
from fairlead_sdk.sessions import AsyncSessions

if TYPE_CHECKING:
    from fairlead_sdk.peer_session import AsyncSession
    from fairlead_tunnel.conversation import Conversation
    from fairlead_tunnel.pump import Ending, Pump
    from fairlead_tunnel.targets import Target

_GOODBYE_SECONDS = 2.0
_FINAL = {
    "execution_not_found": 404,
    "sandbox_not_found": 404,
    "sandbox_not_ready": 409,
    "launch_not_held": 409,
    "channel_unknown": 400,
}
"""Refusals that the same channel would meet again, and the status that such an error has."""


class OpensChannels(Protocol):
    """A session, as far as a channel needs it."""

    def open_channel(self, target: Target) -> Pump:
        """Open a channel."""
        ...


class TerminalChannels:
    """Connects to terminals of one sandbox over one session, which is opened with the first."""

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door
        self._stack = AsyncExitStack()
        self._session: AsyncSession | None = None

    @asynccontextmanager
    async def connect(self, execution_id: str) -> AsyncIterator[TerminalChannel]:
        """Open a channel to the terminal of an execution; raises what `AsyncSessions.open` does."""
        session = await self._opened(execution_id)
        async with terminal_channel(session, execution_id) as channel:
            yield channel

    async def close(self) -> None:
        """Close the session; in the task that connected."""
        stack, self._stack, self._session = self._stack, AsyncExitStack(), None
        await stack.aclose()

    async def _opened(self, execution_id: str) -> AsyncSession:
        if self._session is None or self._session.is_lost:
            await self.close()
            sandbox_id = (await AsyncExecutions(door=self._door).get(execution_id)).sandbox_id
            sandbox = await AsyncSandboxes(door=self._door).get(sandbox_id)
            opening = AsyncSessions(door=self._door).open(sandbox.record.launch_id or sandbox_id)
            self._session = await self._stack.enter_async_context(opening)
        return self._session


class TerminalChannel:
    """One channel, as a `terminal_link.TerminalSocket`."""

    def __init__(self, *, talk: Conversation, carrying: asyncio.Task[Ending]) -> None:
        self._talk = talk
        self._carrying = carrying

    async def send(self, message: str | bytes) -> None:
        """Send a message; raises Unavailable."""
        try:
            await self._talk.send(message)
        except OSError as error:
            raise Unavailable(
                "The channel to the terminal broke.", reason="channel_lost"
            ) from error

    async def receive(self) -> str | bytes | None:
        """Return the next message, None when the other side has ended; raises why it was cut."""
        message = await self._talk.receive()
        if message is not None:
            return message
        self._talk.finish()
        await asyncio.wait((self._carrying,), timeout=_GOODBYE_SECONDS)
        if self._carrying.done() and (ending := self._carrying.result()).reason:
            raise _refusal(ending)
        return None


@asynccontextmanager
async def terminal_channel(
    session: OpensChannels, execution_id: str
) -> AsyncIterator[TerminalChannel]:
    """Hold a channel to a terminal open in the block."""
    from fairlead_tunnel.conversation import own_connection
    from fairlead_tunnel.targets import Target

    streams, talk = await own_connection()
    try:
        pump = session.open_channel(Target(execution_id=execution_id))
        carrying = asyncio.create_task(pump.carry(*streams), name="terminal channel")
    except BaseException:
        streams[1].transport.abort()
        talk.close()
        raise
    try:
        yield TerminalChannel(talk=talk, carrying=carrying)
    finally:
        talk.close()
        try:
            await asyncio.wait((carrying,), timeout=_GOODBYE_SECONDS)
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)


def _refusal(ending: Ending) -> FairleadError:
    problem = {"reason": ending.reason, "detail": ending.message}
    return error_from_problem(_FINAL.get(ending.reason, 503), problem)
