"""Executions between domain and proto, both ways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.execution.v1 import execution_pb2 as pb
from signalling.execution import (
    DEFAULT_GRACE,
    Command,
    Execution,
    ExecutionState,
    Exit,
    ExitReason,
    GapReason,
    OnFull,
    OutputFrame,
    OutputGap,
    OutputRecord,
    OutputStream,
    TerminalSize,
)
from signalling.source_rules import InvalidRequest

_EXIT_REASONS = {
    ExitReason.EXITED: pb.EXIT_REASON_EXITED,
    ExitReason.SIGNALLED: pb.EXIT_REASON_SIGNALLED,
    ExitReason.TIMED_OUT: pb.EXIT_REASON_TIMED_OUT,
    ExitReason.RELEASED: pb.EXIT_REASON_RELEASED,
    ExitReason.HOST_LOST: pb.EXIT_REASON_HOST_LOST,
    ExitReason.OUT_OF_MEMORY: pb.EXIT_REASON_OUT_OF_MEMORY,
    ExitReason.LIMIT_PIDS: pb.EXIT_REASON_LIMIT_PIDS,
    ExitReason.LIMIT_DISK: pb.EXIT_REASON_LIMIT_DISK,
}
_GAP_REASONS = {
    GapReason.UNKNOWN: pb.GAP_REASON_UNSPECIFIED,
    GapReason.DROPPED: pb.GAP_REASON_DROPPED,
    GapReason.EVICTED: pb.GAP_REASON_EVICTED,
    GapReason.DISK_FULL: pb.GAP_REASON_DISK_FULL,
    GapReason.DISK_FAILED: pb.GAP_REASON_DISK_FAILED,
}
_GAP_REASON_OF = {number: reason for reason, number in _GAP_REASONS.items()}
_STATES = {
    ExecutionState.RUNNING: pb.EXECUTION_STATE_RUNNING,
    ExecutionState.EXITED: pb.EXECUTION_STATE_EXITED,
}
_STREAMS = {
    OutputStream.STDOUT: pb.OUTPUT_STREAM_STDOUT,
    OutputStream.STDERR: pb.OUTPUT_STREAM_STDERR,
}
_ON_FULL = {
    OnFull.DROP_OLDEST: pb.ON_FULL_DROP_OLDEST,
    OnFull.BLOCK: pb.ON_FULL_BLOCK,
}
_ON_FULL_OF = {
    pb.ON_FULL_UNSPECIFIED: OnFull.DROP_OLDEST,
    **{number: on_full for on_full, number in _ON_FULL.items()},
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
        terminal=None
        if command.terminal is None
        else pb.TerminalSize(rows=command.terminal.rows, columns=command.terminal.columns),
        on_full=_ON_FULL[command.on_full],
        grace=to_duration(command.grace),
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
        terminal=TerminalSize(message.terminal.rows, message.terminal.columns)
        if message.HasField("terminal")
        else None,
        on_full=_on_full(message.on_full),
        grace=from_duration("command.grace", message.grace)
        if message.HasField("grace")
        else DEFAULT_GRACE,
    )


def _on_full(number: pb.OnFull.ValueType) -> OnFull:
    if number not in _ON_FULL_OF:
        raise InvalidRequest(
            "command.on_full", "It is DROP_OLDEST or BLOCK.", reason="on_full_invalid"
        )
    return _ON_FULL_OF[number]


def to_reason(reason: ExitReason) -> pb.ExitReason.ValueType:
    """Return why something ended as a message says it."""
    return _EXIT_REASONS[reason]


def from_reason(number: pb.ExitReason.ValueType) -> ExitReason:
    """Read why something ended; what is not known counts as a lost host."""
    return _REASON_OF.get(number, ExitReason.HOST_LOST)


def to_exit(exit_: Exit) -> pb.Exit:
    """Return an exit as a message."""
    return pb.Exit(
        reason=to_reason(exit_.reason),
        code=exit_.code,
        signal=exit_.signal,
        last_sequence=exit_.last_sequence,
        ended_at=to_timestamp(exit_.ended_at),
        cpu_time=None if exit_.cpu_time is None else to_duration(exit_.cpu_time),
        peak_memory_bytes=exit_.peak_memory_bytes,
    )


def from_exit(message: pb.Exit) -> Exit:
    """Read an exit; a reason that is not known counts as a lost host."""
    return Exit(
        reason=from_reason(message.reason),
        code=message.code if message.HasField("code") else None,
        signal=message.signal if message.HasField("signal") else None,
        last_sequence=message.last_sequence,
        ended_at=from_timestamp(message.ended_at),
        cpu_time=message.cpu_time.ToTimedelta() if message.HasField("cpu_time") else None,
        peak_memory_bytes=message.peak_memory_bytes,
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


def to_gap(gap: OutputGap) -> pb.OutputGap:
    """Return a gap as a message."""
    return pb.OutputGap(
        first_sequence=gap.first_sequence,
        last_sequence=gap.last_sequence,
        bytes=gap.size,
        reason=_GAP_REASONS[gap.reason],
    )


def to_frame(frame: OutputFrame) -> pb.WatchOutputResponse:
    """Return a frame of watched output as a message."""
    match frame:
        case Execution():
            return pb.WatchOutputResponse(snapshot=to_execution(frame))
        case OutputRecord():
            return pb.WatchOutputResponse(output=to_output(frame))
        case OutputGap():
            return pb.WatchOutputResponse(gap=to_gap(frame))
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
        case "gap":
            gap = message.gap
            reason = _GAP_REASON_OF.get(gap.reason, GapReason.UNKNOWN)
            return OutputGap(gap.first_sequence, gap.last_sequence, gap.bytes, reason)
        case _:
            return None
