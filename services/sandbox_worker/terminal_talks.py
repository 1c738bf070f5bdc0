"""Attachments to terminals over connections of this process, for channels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

from chassis.errors import FairleadError, Internal
from fairlead_tunnel.conversation import Conversation
from sandbox_worker.attachments import Typed
from sandbox_worker.execution_errors import ExecutionNotFound, TerminalFrameInvalid
from sandbox_worker.executions import Executions
from sandbox_worker.terminal_json import opening_of, to_messages, to_problem, typed_of

OPEN_SECONDS = 10.0

log = logging.getLogger(__name__)


class TerminalTalks:
    """Talks `fairlead.terminal.v1`, one attachment to a connection."""

    def __init__(self, *, executions: Executions, open_seconds: float = OPEN_SECONDS) -> None:
        self._executions = executions
        self._open_seconds = open_seconds

    def check(self, *, tenant: str, sandbox_id: str, execution_id: str) -> None:
        """Raise ExecutionNotFound for one that is not in this sandbox."""
        found = self._executions.get(tenant=tenant, execution_id=execution_id)
        if found.sandbox_id != sandbox_id:
            raise ExecutionNotFound(execution_id)

    async def hold(self, talk: Conversation, *, tenant: str, execution_id: str) -> None:
        """Attach whoever is on the other side, until either side ends it; closes the connection."""
        try:
            with suppress(OSError):
                try:
                    await self._converse(talk, tenant, execution_id)
                except FairleadError as error:
                    await talk.send(to_problem(error))
                except OSError:
                    raise
                except Exception:
                    log.exception("terminal failed", extra={"execution_id": execution_id})
                    await talk.send(to_problem(_fault()))
            talk.finish()
            # What comes late is read: a connection that is closed over it is reset, and what was
            # said last may be lost with it.
            while await talk.receive() is not None:
                continue
        finally:
            talk.close()

    async def _converse(self, talk: Conversation, tenant: str, execution_id: str) -> None:
        try:
            async with asyncio.timeout(self._open_seconds):
                first = await talk.receive()
        except TimeoutError:
            raise TerminalFrameInvalid("The first message did not come in time.") from None
        attachment = self._executions.attach(
            tenant=tenant, execution_id=execution_id, opening=opening_of(first)
        )
        async with aclosing(attachment.frames(_typed(talk))) as frames:
            async for frame in frames:
                for message in to_messages(frame):
                    await talk.send(message)


async def _typed(talk: Conversation) -> AsyncIterator[Typed]:
    """Give what is typed until the client detaches or leaves."""
    while (message := await talk.receive()) is not None:
        typed = typed_of(message)
        if typed is None:
            return
        yield typed


def _fault() -> Internal:
    return Internal(
        "Something went wrong here.", reason="internal", remedy="The worker's log has the cause."
    )
