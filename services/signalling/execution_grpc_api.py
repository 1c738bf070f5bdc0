"""ExecutionService for clients: proto in, executor, proto out; the tenant in the requests is
ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from fairlead.execution.v1 import execution_pb2 as pb
from fairlead.execution.v1 import execution_pb2_grpc as rpc
from signalling.batch_messages import from_batch, to_outcome
from signalling.caller import current_tenant
from signalling.execution_messages import from_command, to_execution, to_frame
from signalling.executor import Executor
from signalling.terminal_messages import from_opening, from_size, from_typed, to_attached

EXECUTION_SERVICE = pb.DESCRIPTOR.services_by_name["ExecutionService"].full_name


class ExecutionApi(rpc.ExecutionServiceServicer):
    """Serves ExecutionService."""

    def __init__(self, *, executor: Executor) -> None:
        self._executor = executor

    async def StartExecution(
        self,
        request: pb.StartExecutionRequest,
        context: grpc.aio.ServicerContext[pb.StartExecutionRequest, pb.StartExecutionResponse],
    ) -> pb.StartExecutionResponse:
        execution = await self._executor.start(
            current_tenant(),
            request.sandbox_id,
            from_command(request.command),
            request.idempotency_key or None,
        )
        return pb.StartExecutionResponse(execution=to_execution(execution))

    async def RunExecution(
        self,
        request: pb.RunExecutionRequest,
        context: grpc.aio.ServicerContext[pb.RunExecutionRequest, pb.RunExecutionResponse],
    ) -> AsyncIterator[pb.RunExecutionResponse]:
        stream = self._executor.run(
            current_tenant(),
            request.start.sandbox_id,
            from_command(request.start.command),
            request.start.idempotency_key or None,
            request.after_sequence,
        )
        async with aclosing(stream) as frames:
            async for frame in frames:
                yield pb.RunExecutionResponse(frame=to_frame(frame))

    async def GetExecution(
        self,
        request: pb.GetExecutionRequest,
        context: grpc.aio.ServicerContext[pb.GetExecutionRequest, pb.GetExecutionResponse],
    ) -> pb.GetExecutionResponse:
        execution = await self._executor.get(current_tenant(), request.execution_id)
        return pb.GetExecutionResponse(execution=to_execution(execution))

    async def ListExecutions(
        self,
        request: pb.ListExecutionsRequest,
        context: grpc.aio.ServicerContext[pb.ListExecutionsRequest, pb.ListExecutionsResponse],
    ) -> pb.ListExecutionsResponse:
        found, token = await self._executor.list(
            current_tenant(), request.sandbox_id, request.page_size, request.page_token
        )
        return pb.ListExecutionsResponse(
            executions=[to_execution(each) for each in found], next_page_token=token
        )

    async def WatchOutput(
        self,
        request: pb.WatchOutputRequest,
        context: grpc.aio.ServicerContext[pb.WatchOutputRequest, pb.WatchOutputResponse],
    ) -> AsyncIterator[pb.WatchOutputResponse]:
        stream = self._executor.watch(
            current_tenant(), request.execution_id, request.after_sequence
        )
        async with aclosing(stream) as frames:
            async for frame in frames:
                yield to_frame(frame)

    async def WriteStdin(
        self,
        request: pb.WriteStdinRequest,
        context: grpc.aio.ServicerContext[pb.WriteStdinRequest, pb.WriteStdinResponse],
    ) -> pb.WriteStdinResponse:
        offset = await self._executor.write_stdin(
            current_tenant(),
            request.execution_id,
            request.offset,
            request.content,
            request.close,
        )
        return pb.WriteStdinResponse(offset=offset)

    async def RunBatch(
        self,
        request: pb.RunBatchRequest,
        context: grpc.aio.ServicerContext[pb.RunBatchRequest, pb.RunBatchResponse],
    ) -> pb.RunBatchResponse:
        outcomes = await self._executor.run_batch(
            current_tenant(),
            request.sandbox_id,
            from_batch(request),
            request.idempotency_key or None,
        )
        return pb.RunBatchResponse(outcomes=map(to_outcome, outcomes))

    async def SignalExecution(
        self,
        request: pb.SignalExecutionRequest,
        context: grpc.aio.ServicerContext[pb.SignalExecutionRequest, pb.SignalExecutionResponse],
    ) -> pb.SignalExecutionResponse:
        execution = await self._executor.signal(
            current_tenant(), request.execution_id, request.signal
        )
        return pb.SignalExecutionResponse(execution=to_execution(execution))

    async def ResizeExecution(
        self,
        request: pb.ResizeExecutionRequest,
        context: grpc.aio.ServicerContext[pb.ResizeExecutionRequest, pb.ResizeExecutionResponse],
    ) -> pb.ResizeExecutionResponse:
        execution = await self._executor.resize(
            current_tenant(), request.execution_id, from_size(request.size)
        )
        return pb.ResizeExecutionResponse(execution=to_execution(execution))

    async def AttachTerminal(
        self,
        request_iterator: AsyncIterator[pb.AttachTerminalRequest],
        context: grpc.aio.ServicerContext[pb.AttachTerminalRequest, pb.AttachTerminalResponse],
    ) -> AsyncIterator[pb.AttachTerminalResponse]:
        execution_id, opening = await from_opening(request_iterator)
        typed = from_typed(request_iterator)
        stream = self._executor.attach(current_tenant(), execution_id, opening, typed)
        async with aclosing(stream) as frames:
            async for frame in frames:
                yield to_attached(frame)
