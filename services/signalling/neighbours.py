"""The workers of hosts over gRPC, as far as executions go; every failure becomes ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from chassis.errors import Unavailable
from chassis.rpc_channel import closing
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2, execution_pb2_grpc
from signalling.batch import Batch, BatchOutcome
from signalling.batch_messages import from_outcome, to_item
from signalling.execution import Command, Execution, OutputFrame, TerminalSize
from signalling.execution_messages import (
    from_execution,
    from_frame,
    to_command,
)
from signalling.host import Host
from signalling.neighbour_channels import ChannelCache, Stubs
from signalling.neighbour_talks import WORKER, talk
from signalling.terminal import TerminalFrame, TerminalOpening, Typed
from signalling.terminal_messages import from_attached, to_opening, to_size, to_typed

_UNARY_SECONDS = 120.0
_READ_SECONDS = 15.0


class StartUnanswered(Unavailable):
    """A worker does not say whether the command that it was to start runs."""

    def __init__(self) -> None:
        super().__init__(
            "The host did not say whether the command runs.",
            reason=f"{WORKER}_unavailable",
            remedy="Try again with the same idempotency key.",
        )


class GrpcExecutions:
    """The sandbox-workers, as far as executions go."""

    def __init__(self, *, channels: ChannelCache) -> None:
        self._stubs: Stubs[execution_pb2_grpc.ExecutionServiceAsyncStub] = Stubs(
            channels=channels, make=execution_pb2_grpc.ExecutionServiceStub
        )

    def _stub(self, host: Host) -> execution_pb2_grpc.ExecutionServiceAsyncStub:
        return self._stubs.to(host.sandbox_address)

    async def start(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, command: Command
    ) -> Execution:
        """Start a command."""
        request = _start_request(tenant, key, sandbox_id, command)
        with neighbour_errors(WORKER):
            answer = await self._stub(host).StartExecution(request, timeout=_UNARY_SECONDS)
        return from_execution(answer.execution)

    @asynccontextmanager
    async def run(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, command: Command, after: int
    ) -> AsyncIterator[tuple[Execution, AsyncIterator[OutputFrame]]]:
        """Start a command and open its output."""
        call = self._stub(host).RunExecution(
            execution_pb2.RunExecutionRequest(
                start=_start_request(tenant, key, sandbox_id, command), after_sequence=after
            )
        )
        async with closing(call), aclosing(_frames(call)) as frames:
            first = None
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNARY_SECONDS):
                    first = await anext(frames, None)
            if not isinstance(first, Execution):
                raise StartUnanswered
            yield first, frames

    async def get(self, host: Host, *, tenant: str, execution_id: str) -> Execution:
        """Return an execution."""
        with neighbour_errors(WORKER):
            answer = await self._stub(host).GetExecution(
                execution_pb2.GetExecutionRequest(tenant=tenant, execution_id=execution_id),
                timeout=_READ_SECONDS,
            )
        return from_execution(answer.execution)

    async def list(
        self, host: Host, *, tenant: str, sandbox_id: str, size: int, after: str
    ) -> tuple[Sequence[Execution], str]:
        """Return a page of the executions of a sandbox."""
        with neighbour_errors(WORKER):
            answer = await self._stub(host).ListExecutions(
                execution_pb2.ListExecutionsRequest(
                    tenant=tenant, sandbox_id=sandbox_id, page_size=size, page_token=after
                ),
                timeout=_READ_SECONDS,
            )
        return [from_execution(each) for each in answer.executions], answer.next_page_token

    @asynccontextmanager
    async def watch(
        self, host: Host, *, tenant: str, execution_id: str, after: int
    ) -> AsyncIterator[AsyncIterator[OutputFrame]]:
        """Open the output after a sequence number."""
        call = self._stub(host).WatchOutput(
            execution_pb2.WatchOutputRequest(
                tenant=tenant, execution_id=execution_id, after_sequence=after
            )
        )
        async with closing(call), aclosing(_frames(call)) as frames:
            yield frames

    async def write_stdin(
        self,
        host: Host,
        *,
        tenant: str,
        execution_id: str,
        offset: int,
        content: bytes,
        close: bool,
    ) -> int:
        """Write to standard input at an offset; a program that does not read keeps the call
        waiting.
        """
        with neighbour_errors(WORKER):
            answer = await self._stub(host).WriteStdin(
                execution_pb2.WriteStdinRequest(
                    tenant=tenant,
                    execution_id=execution_id,
                    offset=offset,
                    content=content,
                    close=close,
                )
            )
        return answer.offset

    async def signal(self, host: Host, *, tenant: str, execution_id: str, signal: int) -> Execution:
        """Send a signal to the execution's process group."""
        with neighbour_errors(WORKER):
            answer = await self._stub(host).SignalExecution(
                execution_pb2.SignalExecutionRequest(
                    tenant=tenant, execution_id=execution_id, signal=signal
                ),
                timeout=_READ_SECONDS,
            )
        return from_execution(answer.execution)

    async def run_batch(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, batch: Batch
    ) -> Sequence[BatchOutcome]:
        """Run a batch to its end; how long that takes its commands say."""
        with neighbour_errors(WORKER):
            answer = await self._stub(host).RunBatch(
                execution_pb2.RunBatchRequest(
                    tenant=tenant,
                    idempotency_key=key,
                    sandbox_id=sandbox_id,
                    items=map(to_item, batch.items),
                    continue_on_failure=batch.continue_on_failure,
                )
            )
        return [from_outcome(outcome) for outcome in answer.outcomes]

    async def resize(
        self, host: Host, *, tenant: str, execution_id: str, size: TerminalSize
    ) -> Execution:
        """Change the size of the execution's terminal."""
        with neighbour_errors(WORKER):
            answer = await self._stub(host).ResizeExecution(
                execution_pb2.ResizeExecutionRequest(
                    tenant=tenant, execution_id=execution_id, size=to_size(size)
                ),
                timeout=_READ_SECONDS,
            )
        return from_execution(answer.execution)

    @asynccontextmanager
    async def attach(
        self,
        host: Host,
        *,
        tenant: str,
        execution_id: str,
        opening: TerminalOpening,
        typed: AsyncIterator[Typed],
    ) -> AsyncIterator[AsyncIterator[TerminalFrame]]:
        """Type into the execution's terminal."""

        async def requests() -> AsyncIterator[execution_pb2.AttachTerminalRequest]:
            yield to_opening(opening, tenant=tenant, execution_id=execution_id)
            async for piece in typed:
                yield to_typed(piece)

        call = self._stub(host).AttachTerminal()
        async with talk(call, requests()) as messages, aclosing(_shown(messages)) as frames:
            yield frames


async def _shown(
    messages: AsyncIterator[execution_pb2.AttachTerminalResponse],
) -> AsyncGenerator[TerminalFrame, None]:
    async for message in messages:
        frame = from_attached(message)
        if frame is not None:
            yield frame


def _start_request(
    tenant: str, key: str, sandbox_id: str, command: Command
) -> execution_pb2.StartExecutionRequest:
    return execution_pb2.StartExecutionRequest(
        tenant=tenant, idempotency_key=key, sandbox_id=sandbox_id, command=to_command(command)
    )


async def _frames(
    call: AsyncIterable[execution_pb2.WatchOutputResponse | execution_pb2.RunExecutionResponse],
) -> AsyncGenerator[OutputFrame, None]:
    with neighbour_errors(WORKER):
        async for message in call:
            if isinstance(message, execution_pb2.RunExecutionResponse):
                message = message.frame
            frame = from_frame(message)
            if frame is not None:
                yield frame
