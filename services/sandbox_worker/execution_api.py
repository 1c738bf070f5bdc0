"""ExecutionService on the wire: proto in, use case, proto out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.execution.v1 import execution_pb2, execution_pb2_grpc
from sandbox_worker.execution import Command, Execution, Exit, ExitReason, OutputRecord, Stream
from sandbox_worker.executions import Executions
from sandbox_worker.run import Frame

SERVICE = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name

_REASONS = {
    ExitReason.EXITED: execution_pb2.EXIT_REASON_EXITED,
    ExitReason.SIGNALLED: execution_pb2.EXIT_REASON_SIGNALLED,
    ExitReason.TIMED_OUT: execution_pb2.EXIT_REASON_TIMED_OUT,
    ExitReason.RELEASED: execution_pb2.EXIT_REASON_RELEASED,
    ExitReason.HOST_LOST: execution_pb2.EXIT_REASON_HOST_LOST,
}
_STREAMS = {
    Stream.STDOUT: execution_pb2.OUTPUT_STREAM_STDOUT,
    Stream.STDERR: execution_pb2.OUTPUT_STREAM_STDERR,
}
Context = grpc.aio.ServicerContext[object, object]


class ExecutionServicer(execution_pb2_grpc.ExecutionServiceServicer):
    """Serves executions to signalling."""

    def __init__(self, *, executions: Executions) -> None:
        self._executions = executions

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
            command=_command(request.command),
        )
        return execution_pb2.StartExecutionResponse(execution=_message(execution))

    async def GetExecution(
        self, request: execution_pb2.GetExecutionRequest, context: Context
    ) -> execution_pb2.GetExecutionResponse:
        execution = self._executions.get(tenant=request.tenant, execution_id=request.execution_id)
        return execution_pb2.GetExecutionResponse(execution=_message(execution))

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
                for response in _responses(request.execution_id, frame):
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
        return execution_pb2.SignalExecutionResponse(execution=_message(execution))


def _command(command: execution_pb2.Command) -> Command:
    timeout = command.timeout.seconds + command.timeout.nanos / 1e9
    return Command(
        arguments=tuple(command.arguments),
        environment=dict(command.environment),
        directory=command.directory,
        stdin=command.stdin,
        timeout=timeout if command.HasField("timeout") else None,
    )


def _responses(execution_id: str, frame: Frame) -> list[execution_pb2.WatchOutputResponse]:
    match frame:
        case Execution():
            return [execution_pb2.WatchOutputResponse(snapshot=_message(frame))]
        case Exit():
            return [execution_pb2.WatchOutputResponse(exit=_exit(frame))]
        case records:
            return [
                execution_pb2.WatchOutputResponse(output=output)
                for output in _outputs(execution_id, records)
            ]


def _outputs(
    execution_id: str, records: Sequence[OutputRecord]
) -> list[execution_pb2.OutputRecord]:
    return [
        execution_pb2.OutputRecord(
            execution_id=execution_id,
            sequence=record.sequence,
            stream=_STREAMS[record.stream],
            content=record.content,
            written_at=Timestamp(
                seconds=record.written_at // 10**9, nanos=record.written_at % 10**9
            ),
        )
        for record in records
    ]


def _exit(exit_: Exit) -> execution_pb2.Exit:
    ended_at = Timestamp()
    ended_at.FromDatetime(exit_.ended_at)
    return execution_pb2.Exit(
        reason=_REASONS[exit_.reason],
        code=exit_.code,
        signal=exit_.signal,
        last_sequence=exit_.last_sequence,
        ended_at=ended_at,
    )


def _message(execution: Execution) -> execution_pb2.Execution:
    started_at = Timestamp()
    started_at.FromDatetime(execution.started_at)
    exited = execution.exit is not None
    return execution_pb2.Execution(
        execution_id=execution.execution_id,
        sandbox_id=execution.sandbox_id,
        state=execution_pb2.EXECUTION_STATE_EXITED
        if exited
        else execution_pb2.EXECUTION_STATE_RUNNING,
        arguments=execution.arguments,
        started_at=started_at,
        exit=_exit(execution.exit) if execution.exit is not None else None,
    )
