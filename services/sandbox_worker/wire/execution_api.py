"""ExecutionService on the wire: proto in, use case, proto out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from fairlead.execution.v1 import execution_pb2, execution_pb2_grpc
from sandbox_worker.batches import Batches
from sandbox_worker.executions import Executions
from sandbox_worker.wire.batch_messages import from_batch, to_outcome
from sandbox_worker.wire.execution_messages import from_command, to_execution, to_responses
from sandbox_worker.wire.terminal_messages import (
    opening_of,
    size_of,
    terminal_opening,
    to_attached,
    typed_of,
)

SERVICE = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class ExecutionServicer(execution_pb2_grpc.ExecutionServiceServicer):
    """Serves executions to signalling."""

    def __init__(self, *, executions: Executions, batches: Batches) -> None:
        self._executions = executions
        self._batches = batches

    def register(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(self, server)

    async def StartExecution(
        self, request: execution_pb2.StartExecutionRequest, context: Context
    ) -> execution_pb2.StartExecutionResponse:
        execution = await self._executions.start(
            tenant=request.tenant,
            key=request.idempotency_key,
            sandbox_id=request.sandbox_id,
            command=from_command(request.command),
        )
        return execution_pb2.StartExecutionResponse(execution=to_execution(execution))

    async def RunExecution(
        self, request: execution_pb2.RunExecutionRequest, context: Context
    ) -> AsyncIterator[execution_pb2.RunExecutionResponse]:
        execution, watch = await self._executions.run(
            tenant=request.start.tenant,
            key=request.start.idempotency_key,
            sandbox_id=request.start.sandbox_id,
            command=from_command(request.start.command),
            after=request.after_sequence,
        )
        async with aclosing(watch) as frames:
            async for frame in frames:
                for response in to_responses(execution.execution_id, frame):
                    yield execution_pb2.RunExecutionResponse(frame=response)

    async def GetExecution(
        self, request: execution_pb2.GetExecutionRequest, context: Context
    ) -> execution_pb2.GetExecutionResponse:
        execution = self._executions.get(tenant=request.tenant, execution_id=request.execution_id)
        return execution_pb2.GetExecutionResponse(execution=to_execution(execution))

    async def ListExecutions(
        self, request: execution_pb2.ListExecutionsRequest, context: Context
    ) -> execution_pb2.ListExecutionsResponse:
        found, token = self._executions.page(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            size=request.page_size,
            after=request.page_token,
        )
        return execution_pb2.ListExecutionsResponse(
            executions=[to_execution(each) for each in found], next_page_token=token
        )

    async def WatchOutput(
        self, request: execution_pb2.WatchOutputRequest, context: Context
    ) -> AsyncIterator[execution_pb2.WatchOutputResponse]:
        watch = self._executions.watch(
            tenant=request.tenant,
            execution_id=request.execution_id,
            after=request.after_sequence,
        )
        async with aclosing(watch) as frames:
            async for frame in frames:
                for response in to_responses(request.execution_id, frame):
                    yield response

    async def WriteStdin(
        self, request: execution_pb2.WriteStdinRequest, context: Context
    ) -> execution_pb2.WriteStdinResponse:
        offset = await self._executions.write_stdin(
            tenant=request.tenant,
            execution_id=request.execution_id,
            offset=request.offset,
            content=request.content,
            close=request.close,
        )
        return execution_pb2.WriteStdinResponse(offset=offset)

    async def SignalExecution(
        self, request: execution_pb2.SignalExecutionRequest, context: Context
    ) -> execution_pb2.SignalExecutionResponse:
        execution = await self._executions.signal(
            tenant=request.tenant, execution_id=request.execution_id, number=request.signal
        )
        return execution_pb2.SignalExecutionResponse(execution=to_execution(execution))

    async def RunBatch(
        self, request: execution_pb2.RunBatchRequest, context: Context
    ) -> execution_pb2.RunBatchResponse:
        outcomes = await self._batches.run(
            tenant=request.tenant,
            key=request.idempotency_key,
            sandbox_id=request.sandbox_id,
            batch=from_batch(request),
        )
        return execution_pb2.RunBatchResponse(outcomes=map(to_outcome, outcomes))

    async def ResizeExecution(
        self, request: execution_pb2.ResizeExecutionRequest, context: Context
    ) -> execution_pb2.ResizeExecutionResponse:
        execution = self._executions.resize(
            tenant=request.tenant,
            execution_id=request.execution_id,
            size=size_of(request.size),
        )
        return execution_pb2.ResizeExecutionResponse(execution=to_execution(execution))

    async def AttachTerminal(
        self,
        request_iterator: AsyncIterator[execution_pb2.AttachTerminalRequest],
        context: Context,
    ) -> AsyncIterator[execution_pb2.AttachTerminalResponse]:
        opened = await opening_of(request_iterator)
        attachment = self._executions.attach(
            tenant=opened.tenant,
            execution_id=opened.execution_id,
            opening=terminal_opening(opened),
        )
        async with aclosing(attachment.frames(typed_of(request_iterator))) as frames:
            async for frame in frames:
                for response in to_attached(opened.execution_id, frame):
                    yield response
