"""ExecutionService for clients: proto in, executor, proto out; the tenant in the requests is
ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from fairlead.execution.v1 import execution_pb2 as pb
from fairlead.execution.v1 import execution_pb2_grpc as rpc
from signalling.caller import current_tenant
from signalling.execution_messages import from_command, to_execution, to_frame
from signalling.executor import Executor

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

    async def GetExecution(
        self,
        request: pb.GetExecutionRequest,
        context: grpc.aio.ServicerContext[pb.GetExecutionRequest, pb.GetExecutionResponse],
    ) -> pb.GetExecutionResponse:
        execution = await self._executor.get(current_tenant(), request.execution_id)
        return pb.GetExecutionResponse(execution=to_execution(execution))

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

    async def SignalExecution(
        self,
        request: pb.SignalExecutionRequest,
        context: grpc.aio.ServicerContext[pb.SignalExecutionRequest, pb.SignalExecutionResponse],
    ) -> pb.SignalExecutionResponse:
        execution = await self._executor.signal(
            current_tenant(), request.execution_id, request.signal
        )
        return pb.SignalExecutionResponse(execution=to_execution(execution))
