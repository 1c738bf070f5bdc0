"""Executions between domain and proto, both ways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.execution.v1 import execution_pb2 as pb
from signalling.execution import (
    Command,
    Execution,
    ExecutionState,
    Exit,
    ExitReason,
    OutputFrame,
    OutputRecord,
    OutputStream,
)
from signalling.source_rules import InvalidRequest

_EXIT_REASONS = {
    ExitReason.EXITED: pb.EXIT_REASON_EXITED,
    ExitReason.SIGNALLED: pb.EXIT_REASON_SIGNALLED,
    ExitReason.TIMED_OUT: pb.EXIT_REASON_TIMED_OUT,
    ExitReason.RELEASED: pb.EXIT_REASON_RELEASED,
    ExitReason.HOST_LOST: pb.EXIT_REASON_HOST_LOST,
}
_STATES = {
    ExecutionState.RUNNING: pb.EXECUTION_STATE_RUNNING,
    ExecutionState.EXITED: pb.EXECUTION_STATE_EXITED,
}
_STREAMS = {
    OutputStream.STDOUT: pb.OUTPUT_STREAM_STDOUT,
    OutputStream.STDERR: pb.OUTPUT_STREAM_STDERR,
}
_REASON_OF = {number: reason for reason, number in _EXIT_REASONS.items()}
_STATE_OF = {number: state for state, number in _STATES.items()}
_STREAM_OF = {number: stream for stream, number in _STREAMS.items()}


def to_timestamp(at: datetime) -> Timestamp:
    """Return a time as a message."""
    message = Timestamp()
    message.FromDatetime(at)
    return message


def from_timestamp(message: Timestamp) -> datetime:
    """Read a time; one out of range becomes the epoch: only a neighbour could send it."""
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        return datetime.fromtimestamp(0, UTC)


def to_duration(length: timedelta) -> Duration:
    """Return a length of time as a message."""
    message = Duration()
    message.FromTimedelta(length)
    return message


def from_duration(field: str, message: Duration) -> timedelta:
    """Read a length of time; raises InvalidRequest when it is out of range."""
    try:
        return message.ToTimedelta()
    except (ValueError, OverflowError):
        raise InvalidRequest(
            field, "The duration is out of range.", reason="duration_invalid"
        ) from None


def to_command(command: Command) -> pb.Command:
    """Return a command as a message."""
    return pb.Command(
        arguments=command.arguments,
        environment=command.environment,
        directory=command.directory,
        stdin=command.stdin,
        timeout=None if command.timeout is None else to_duration(command.timeout),
    )


def from_command(message: pb.Command) -> Command:
    """Read a command; its rules are checked by the use case."""
    return Command(
        arguments=tuple(message.arguments),
        environment=dict(message.environment),
        directory=message.directory,
        stdin=message.stdin,
        timeout=from_duration("command.timeout", message.timeout)
        if message.HasField("timeout")
        else None,
    )


def to_exit(exit_: Exit) -> pb.Exit:
    """Return an exit as a message."""
    return pb.Exit(
        reason=_EXIT_REASONS[exit_.reason],
        code=exit_.code,
        signal=exit_.signal,
        last_sequence=exit_.last_sequence,
        ended_at=to_timestamp(exit_.ended_at),
    )


def from_exit(message: pb.Exit) -> Exit:
    """Read an exit; a reason that is not known counts as a lost host."""
    return Exit(
        reason=_REASON_OF.get(message.reason, ExitReason.HOST_LOST),
        code=message.code if message.HasField("code") else None,
        signal=message.signal if message.HasField("signal") else None,
        last_sequence=message.last_sequence,
        ended_at=from_timestamp(message.ended_at),
    )


def to_execution(execution: Execution) -> pb.Execution:
    """Return an execution as a message."""
    return pb.Execution(
        execution_id=execution.execution_id,
        sandbox_id=execution.sandbox_id,
        state=_STATES[execution.state],
        arguments=execution.arguments,
        started_at=to_timestamp(execution.started_at),
        exit=None if execution.exit is None else to_exit(execution.exit),
    )


def from_execution(message: pb.Execution) -> Execution:
    """Read an execution."""
    return Execution(
        execution_id=message.execution_id,
        sandbox_id=message.sandbox_id,
        state=_STATE_OF.get(message.state, ExecutionState.RUNNING),
        arguments=tuple(message.arguments),
        started_at=from_timestamp(message.started_at),
        exit=from_exit(message.exit) if message.HasField("exit") else None,
    )


def to_output(record: OutputRecord) -> pb.OutputRecord:
    """Return a piece of output as a message."""
    return pb.OutputRecord(
        execution_id=record.execution_id,
        sequence=record.sequence,
        stream=_STREAMS[record.stream],
        content=record.content,
        written_at=to_timestamp(record.written_at),
    )


def from_output(message: pb.OutputRecord) -> OutputRecord:
    """Read a piece of output."""
    return OutputRecord(
        execution_id=message.execution_id,
        sequence=message.sequence,
        stream=_STREAM_OF.get(message.stream, OutputStream.STDOUT),
        content=message.content,
        written_at=from_timestamp(message.written_at),
    )


def to_frame(frame: OutputFrame) -> pb.WatchOutputResponse:
    """Return a frame of watched output as a message."""
    match frame:
        case Execution():
            return pb.WatchOutputResponse(snapshot=to_execution(frame))
        case OutputRecord():
            return pb.WatchOutputResponse(output=to_output(frame))
        case Exit():
            return pb.WatchOutputResponse(exit=to_exit(frame))


def from_frame(message: pb.WatchOutputResponse) -> OutputFrame | None:
    """Read a frame of watched output; None for one that is not known."""
    match message.WhichOneof("frame"):
        case "snapshot":
            return from_execution(message.snapshot)
        case "output":
            return from_output(message.output)
        case "exit":
            return from_exit(message.exit)
        case _:
            return None
