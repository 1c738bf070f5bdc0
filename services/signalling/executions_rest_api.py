"""Routes of executions: JSON in, executor, JSON or a stream of output out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from fairlead_limits import table
from signalling.batch import Batch, BatchOutcome
from signalling.caller import current_tenant
from signalling.event_stream import EventStreams, Rendered
from signalling.execution import Command, Execution, Exit, OutputFrame, OutputGap, OutputRecord
from signalling.launch_json import execution_json, exit_json, gap_json, output_json
from signalling.problems import problem_documents
from signalling.rest_bodies import CommandBody, ExecutionAnswer, ExitAnswer, GapAnswer
from signalling.rest_parameters import (
    Cursor,
    IdempotencyKey,
    LastEventId,
    PageSize,
    PageToken,
    cursor_number,
    stream_documents,
)
from signalling.rest_types import Body, EncodedBytes


class Executions(Protocol):
    """Executions from the caller's side."""

    async def start(
        self, tenant: str, sandbox_id: str, command: Command, key: str | None
    ) -> Execution:
        """Start a command in a sandbox."""
        ...

    async def get(self, tenant: str, execution_id: str) -> Execution:
        """Return an execution."""
        ...

    async def list(
        self, tenant: str, sandbox_id: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Execution], str]:
        """Return executions of a sandbox and the token of the next page."""
        ...

    def watch(self, tenant: str, execution_id: str, after: int) -> AsyncIterator[OutputFrame]:
        """Return the output after a sequence number."""
        ...

    async def write_stdin(
        self, tenant: str, execution_id: str, offset: int, content: bytes, close: bool
    ) -> int:
        """Write to standard input at an offset."""
        ...

    async def signal(self, tenant: str, execution_id: str, signal: int) -> Execution:
        """Send a signal."""
        ...

    async def run_batch(
        self, tenant: str, sandbox_id: str, batch: Batch, key: str | None
    ) -> Sequence[BatchOutcome]:
        """Run pieces of work one after the other."""
        ...


class StdinBody(Body):
    """Bytes for standard input."""

    offset: int = Field(
        description="Position of the first byte.",
        json_schema_extra={**table.POSITION.schema},
    )
    content: EncodedBytes = Field(default=b"", description="At most 256 KiB.")
    close: bool = Field(default=False, description="Close standard input after these bytes.")


class StdinAnswer(BaseModel):
    """How far standard input has come."""

    offset: int = Field(description="Bytes taken since the start.")


class SignalBody(Body):
    """A signal."""

    signal: int = Field(
        description="Signal number.", json_schema_extra={"minimum": 1, "maximum": 64}
    )


class ExecutionPage(BaseModel):
    """A page of executions, by id."""

    executions: list[ExecutionAnswer]
    next_page_token: str


class OutputLine(BaseModel):
    """One line of an output: the execution first, then records, then exactly one exit."""

    type: Literal["snapshot", "output", "gap", "exit"]
    snapshot: ExecutionAnswer | None = None
    execution_id: str | None = None
    sequence: int | None = None
    stream: Literal["stdout", "stderr"] | None = None
    content: EncodedBytes | None = None
    written_at: str | None = None
    gap: GapAnswer | None = None
    exit: ExitAnswer | None = None


def executions_router(executions: Executions, streams: EventStreams) -> APIRouter:
    """Return the routes of executions."""
    router = APIRouter(prefix="/v1", tags=["executions"])

    @router.post(
        "/sandboxes/{sandbox_id}/executions",
        status_code=201,
        response_model=ExecutionAnswer,
        responses={
            201: {"headers": {"Location": {"schema": {"type": "string"}}}},
            **problem_documents(404, 409, 413),
        },
    )
    async def start_execution(
        sandbox_id: str, body: CommandBody, response: Response, key: IdempotencyKey = None
    ) -> Execution:
        """Start a command in a sandbox; it answers once the program runs."""
        started = await executions.start(current_tenant(), sandbox_id, body.value(), key)
        response.headers["Location"] = f"/v1/executions/{started.execution_id}"
        return started

    @router.get(
        "/sandboxes/{sandbox_id}/executions",
        response_model=ExecutionPage,
        responses=problem_documents(404),
    )
    async def list_executions(
        sandbox_id: str, page_size: PageSize = 0, page_token: PageToken = ""
    ) -> ExecutionPage:
        """List the executions of a sandbox by id, for a while also those that have ended."""
        found, token = await executions.list(current_tenant(), sandbox_id, page_size, page_token)
        listed = [ExecutionAnswer.model_validate(each) for each in found]
        return ExecutionPage(executions=listed, next_page_token=token)

    @router.get(
        "/executions/{execution_id}",
        response_model=ExecutionAnswer,
        responses=problem_documents(404),
    )
    async def get_execution(execution_id: str) -> Execution:
        """Return an execution, also for a while after it ended."""
        return await executions.get(current_tenant(), execution_id)

    @router.get(
        "/executions/{execution_id}/output",
        response_class=Response,
        responses={
            **stream_documents("OutputLine", "Output, the last line is the exit."),
            **problem_documents(404, 410),
        },
    )
    async def watch_output(
        execution_id: str,
        request: Request,
        cursor: Cursor = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Stream the output after a sequence number; closing the stream stops nothing."""
        after = cursor_number(cursor or last_event_id or "0")
        source = executions.watch(current_tenant(), execution_id, after)
        return await streams.respond(source, output_line, accept=request.headers.get("accept", ""))

    @router.post(
        "/executions/{execution_id}/stdin",
        response_model=StdinAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def write_stdin(
        execution_id: str, body: StdinBody, key: IdempotencyKey = None
    ) -> StdinAnswer:
        """Write to standard input at an offset; bytes that were already taken are skipped."""
        offset = await executions.write_stdin(
            current_tenant(), execution_id, body.offset, body.content, body.close
        )
        return StdinAnswer(offset=offset)

    @router.post(
        "/executions/{execution_id}/signal",
        response_model=ExecutionAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def signal_execution(
        execution_id: str, body: SignalBody, key: IdempotencyKey = None
    ) -> Execution:
        """Send a signal to the execution's process group."""
        return await executions.signal(current_tenant(), execution_id, body.signal)

    return router


def output_line(frame: OutputFrame) -> Rendered:
    """Return a frame of output as the line that it is sent as."""
    match frame:
        case OutputRecord():
            members = {"type": "output", **output_json(frame)}
            return Rendered(cursor=str(frame.sequence), type="output", members=members)
        case OutputGap():
            members = {"type": "gap", "gap": gap_json(frame)}
            return Rendered(cursor=str(frame.last_sequence), type="gap", members=members)
        case Exit():
            members = {"type": "exit", "exit": exit_json(frame)}
            return Rendered(cursor=str(frame.last_sequence), type="exit", members=members)
        case Execution():
            members = {"type": "snapshot", "snapshot": execution_json(frame)}
            return Rendered(cursor="", type="snapshot", members=members)
