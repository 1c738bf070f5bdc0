"""Executions through the front door: start one, follow its output, feed its standard input."""

from __future__ import annotations

import base64
import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

from fairlead_limits.table import PAGE_SIZE
from fairlead_sdk import json_form as form
from fairlead_sdk.batch import BatchOutcome, FileWork, batch_document
from fairlead_sdk.client import FrontDoor, make_idempotency_key
from fairlead_sdk.errors import FailedPrecondition, MeshUnavailable, Unavailable
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.launches import Command
from fairlead_sdk.records import ExecutionRecord, Exit, OutputGap, OutputRecord
from fairlead_sdk.streams import resumed

STDIN_PIECE_BYTES = 128 * 1024
_STDIN_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class OutputFrame:
    """One frame of an execution's output, and its JSON form as it came."""

    content: ExecutionRecord | OutputRecord | OutputGap | Exit
    document: JsonObject


Frames: TypeAlias = AsyncGenerator[OutputFrame, None]


class AsyncExecutions:
    """The executions of the caller's sandboxes."""

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door

    async def start(self, sandbox_id: str, command: Command) -> ExecutionRecord:
        """Start a command in a sandbox; returns once the program runs."""
        path = f"/v1/sandboxes/{quote(sandbox_id, safe='')}/executions"
        return ExecutionRecord.read(await self._door.post(path, command.document()))

    async def batch(
        self,
        sandbox_id: str,
        items: Sequence[Command | FileWork],
        *,
        continue_on_failure: bool = False,
        key: str = "",
    ) -> tuple[BatchOutcome, ...]:
        """Run pieces of work one after the other; returns when the last one is done."""
        path = f"/v1/sandboxes/{quote(sandbox_id, safe='')}/batch"
        document = batch_document(items, continue_on_failure=continue_on_failure)
        key = key or make_idempotency_key()
        while True:
            try:
                answer = await self._door.post(path, document, key=key)
            except MeshUnavailable as error:
                if error.reason != "mesh_silent":
                    raise
                # It is at work, or nobody is there: the key means the same batch either way.
                continue
            return tuple(BatchOutcome.read(each) for each in form.children(answer, "outcomes"))

    async def get(self, execution_id: str) -> ExecutionRecord:
        """Read an execution."""
        return ExecutionRecord.read(await self._door.get(_path(execution_id)))

    async def list(self, sandbox_id: str, *, limit: int = 100) -> tuple[ExecutionRecord, ...]:
        """List the executions of a sandbox by id, for a while also those that have ended; raises
        `SandboxNotFound`.
        """
        path = f"/v1/sandboxes/{quote(sandbox_id, safe='')}/executions"
        found: builtins.list[ExecutionRecord] = []
        token = ""
        while True:
            params = {"page_size": str(min(PAGE_SIZE.count, limit - len(found)))}
            if token:
                params["page_token"] = token
            page = await self._door.get(path, params)
            found += (ExecutionRecord.read(each) for each in form.children(page, "executions"))
            token = form.text(page, "next_page_token")
            if not token or len(found) >= limit:
                return tuple(found)

    async def output(self, execution_id: str, *, after: int = 0) -> Frames:
        """Give the execution, its output records after a sequence number and the gaps between them,
        then exactly one exit.
        """

        def open_stream(cursor: str) -> AbstractAsyncContextManager[AsyncIterator[JsonObject]]:
            params = {"cursor": cursor} if cursor else None
            return self._door.stream("GET", f"{_path(execution_id)}/output", params=params)

        stream = resumed(
            open_stream,
            position=_position,
            is_last=lambda document: form.text(document, "type") == "exit",
            sleep=self._door.sleep,
            after=str(after) if after else "",
        )
        async with aclosing(stream) as documents:
            async for document in documents:
                frame = _read(document)
                if frame is not None:
                    yield frame

    async def write_stdin(
        self, execution_id: str, content: bytes, *, offset: int, close: bool = False
    ) -> int:
        """Write to standard input at an offset and give how many bytes were taken since the start.

        What was taken already is skipped, so that a repeated call never writes twice.
        """
        answer = await self._door.post(
            f"{_path(execution_id)}/stdin",
            {
                "offset": offset,
                "content": base64.b64encode(content).decode("ascii"),
                "close": close,
            },
        )
        return form.number(answer, "offset")

    async def feed_stdin(self, execution_id: str, content: AsyncIterator[bytes]) -> None:
        """Write everything, then close standard input; a program that stops reading is no error.

        A program that takes its time, or a mesh that is away, is tried again until it is cancelled:
        input that ends half way, without its end-of-file, would leave the program waiting for ever.
        """
        offset = 0
        try:
            async for piece in content:
                for start in range(0, len(piece), STDIN_PIECE_BYTES):
                    part = piece[start : start + STDIN_PIECE_BYTES]
                    await self._surely_write(execution_id, part, offset=offset)
                    offset += len(part)
            await self._surely_write(execution_id, b"", offset=offset, close=True)
        except FailedPrecondition:
            # It ended, or closed its input: `head` does that.
            return

    async def _surely_write(
        self, execution_id: str, content: bytes, *, offset: int, close: bool = False
    ) -> None:
        while True:
            try:
                await self.write_stdin(execution_id, content, offset=offset, close=close)
                return
            except Unavailable:
                await self._door.sleep(_STDIN_PAUSE_SECONDS)

    async def signal(self, execution_id: str, number: int) -> ExecutionRecord:
        """Send a signal to the execution's process group."""
        return ExecutionRecord.read(
            await self._door.post(f"{_path(execution_id)}/signal", {"signal": number})
        )


def _path(execution_id: str) -> str:
    return f"/v1/executions/{quote(execution_id, safe='')}"


def _position(document: JsonObject) -> str:
    gap = form.child(document, "gap") or {}
    return str(form.number(document, "sequence") or form.number(gap, "last_sequence") or "")


def _read(document: JsonObject) -> OutputFrame | None:
    match form.text(document, "type"):
        case "snapshot":
            record = ExecutionRecord.read(form.child(document, "snapshot") or {})
            return OutputFrame(record, document)
        case "output":
            return OutputFrame(OutputRecord.read(document), document)
        case "gap":
            return OutputFrame(OutputGap.read(form.child(document, "gap") or {}), document)
        case "exit":
            return OutputFrame(Exit.read(form.child(document, "exit") or {}), document)
        case _:
            return None
