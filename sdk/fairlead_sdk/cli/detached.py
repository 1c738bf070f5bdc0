"""Executions by their id, as `fairlead logs` and `fairlead kill` take them."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing
from typing import TYPE_CHECKING

from fairlead_sdk.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from fairlead_sdk.cli.terminal import Terminal
    from fairlead_sdk.fairlead import AsyncFairlead
    from fairlead_sdk.records import ExecutionRecord

_QUIET_SECONDS = 0.5
_LOOK_SECONDS = 0.1
_GRACE_LOOKS = 20
_DEAD_LOOKS = 100


def is_execution(text: str) -> bool:
    """Say whether an id is that of an execution."""
    return text.startswith("exe_")


async def replay(
    client: AsyncFairlead, execution_id: str, *, follow: bool, cursor: str, terminal: Terminal
) -> None:
    """Replay an execution's output after a sequence number; with `follow` until it ends, else as
    far as it is there.
    """
    from fairlead_sdk.cli.execution import show_frame
    from fairlead_sdk.records import OutputGap, OutputRecord

    reached = _sequence(cursor)
    record = await client.executions.get(execution_id)
    patience = None if follow or record.exit is not None else _QUIET_SECONDS
    try:
        async with aclosing(client.executions.output(execution_id, after=reached)) as frames:
            while True:
                async with asyncio.timeout(patience):
                    frame = await anext(frames, None)
                if frame is None or await show_frame(terminal, frame) is not None:
                    return
                match frame.content:
                    case OutputRecord(sequence=sequence) | OutputGap(last_sequence=sequence):
                        reached = sequence
    except TimeoutError:
        await terminal.raw.drain()
        terminal.say(f"it goes on: fairlead logs {execution_id} -f --cursor {reached}")
    except asyncio.CancelledError:
        terminal.say(f"go on with: fairlead logs {execution_id} -f --cursor {reached}")
        raise


async def end(client: AsyncFairlead, execution_id: str) -> tuple[ExecutionRecord, bool]:
    """End an execution with SIGTERM, and SIGKILL where that did not do it within 2 s; say also
    whether it ran until now.
    """
    for number, looks in ((signal.SIGTERM, _GRACE_LOOKS), (signal.SIGKILL, _DEAD_LOOKS)):
        try:
            record = await client.executions.signal(execution_id, number)
        except FailedPrecondition as error:
            if error.reason != "execution_ended":
                raise
            return await client.executions.get(execution_id), number is signal.SIGKILL
        for _ in range(looks):
            if record.exit is not None:
                return record, True
            await asyncio.sleep(_LOOK_SECONDS)
            record = await client.executions.get(execution_id)
    return record, True


def _sequence(cursor: str) -> int:
    if not cursor:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise InvalidArgument(
            f"{cursor!r} is no position in an execution's output.",
            reason="cursor_invalid",
            remedy="Give a number as `fairlead logs` tells it, or leave --cursor out.",
        )
    return int(cursor)
