"""Ways to a terminal: the front door's WebSocket, or a session where no WebSocket can be had."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    FairleadError,
    MeshUnavailable,
    Unavailable,
)
from fairlead_sdk.http_errors import is_no_websocket

if TYPE_CHECKING:
    from fairlead_sdk.terminal_channels import TerminalChannels
    from fairlead_sdk.terminal_link import TerminalSocket


class TerminalUnreachable(FailedPrecondition):
    """Neither a WebSocket nor a session leads to the terminal."""

    def __init__(self, socket: FairleadError, session: FairleadError) -> None:
        super().__init__(
            f"No WebSocket to the terminal can be had ({socket.message.rstrip('.')}), and no"
            f" session either: {session.message}",
            reason="terminal_unreachable",
            remedy="`fairlead session diagnose` says what stands in the way of each.",
            fields={"websocket": socket.reason, "session": session.reason},
        )


class TerminalWays:
    """Connects to one terminal, again and again; use as an async context manager, in one task.

    A WebSocket that was there once is waited for; only where there never was one, and somebody in
    between may not pass it, is a session tried, which is then kept to.
    """

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door
        self._had_socket = False
        self._channels: TerminalChannels | None = None

    async def __aenter__(self) -> TerminalWays:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._channels is not None:
            await self._channels.close()

    @asynccontextmanager
    async def connect(self, execution_id: str) -> AsyncIterator[TerminalSocket]:
        """Connect; raises what refuses, and TerminalUnreachable."""
        async with AsyncExitStack() as stack:
            yield await self._connected(stack, execution_id)

    async def _connected(self, stack: AsyncExitStack, execution_id: str) -> TerminalSocket:
        if self._channels is not None:
            return await stack.enter_async_context(self._channels.connect(execution_id))
        path = f"/v1/executions/{quote(execution_id, safe='')}/terminal"
        try:
            socket = await stack.enter_async_context(self._door.socket(path))
        except FairleadError as error:
            if self._had_socket or not is_no_websocket(error):
                raise
            return await self._over_a_session(stack, execution_id, error)
        self._had_socket = True
        return socket

    async def _over_a_session(
        self, stack: AsyncExitStack, execution_id: str, refused: FairleadError
    ) -> TerminalSocket:
        from fairlead_sdk.terminal_channels import TerminalChannels

        channels = TerminalChannels(door=self._door)
        stack.push_async_callback(self._unless_kept, channels)
        try:
            channel = await stack.enter_async_context(channels.connect(execution_id))
        except MeshUnavailable:
            # Nothing of the mesh answers: that is no lack of WebSockets.
            raise refused from None
        except (Unavailable, DeadlineExceeded, FailedPrecondition) as error:
            raise TerminalUnreachable(refused, error) from error
        self._channels = channels
        return channel

    async def _unless_kept(self, channels: TerminalChannels) -> None:
        """Close what was opened in vain."""
        if self._channels is not channels:
            await channels.close()
