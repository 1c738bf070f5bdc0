"""Opens the sandbox's end of a channel: asks signalling, and waits for the worker to bring it."""

from __future__ import annotations

import asyncio

from relay_gateway.line import Line
from relay_gateway.ports import Stream, Workers
from relay_gateway.session import PortTimeout, WantedSession

ARRIVAL_SECONDS = 5.0
"""How long a worker that has dialled may take to be seen here."""


class Opener:
    """The use case behind each data channel."""

    def __init__(
        self, *, line: Line, workers: Workers, arrival_seconds: float = ARRIVAL_SECONDS
    ) -> None:
        self._line = line
        self._workers = workers
        self._arrival_seconds = arrival_seconds

    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        """Have a port of the session's sandbox connected, or a terminal in it; the FairleadError
        says why not.

        A connection that arrives ends the asking: its answer may be lost with the line.
        """
        with self._workers.expect() as expected:
            arriving = asyncio.ensure_future(expected.arrived())
            asking = asyncio.ensure_future(
                self._line.ask_port(session.session_id, port, expected.ticket, execution_id)
            )
            try:
                await asyncio.wait((arriving, asking), return_when=asyncio.FIRST_COMPLETED)
                if not arriving.done():
                    await asking
                async with asyncio.timeout(self._arrival_seconds):
                    await arriving
                return expected.take()
            except TimeoutError:
                raise PortTimeout(port) from None
            finally:
                for task in (asking, arriving):
                    task.cancel()
                # Waits for both; how the asking ended is no news once the connection is there.
                await asyncio.gather(asking, arriving, return_exceptions=True)
