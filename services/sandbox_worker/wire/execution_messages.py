"""Executions between domain and proto, both ways."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.execution.v1 import execution_pb2 as pb
from fairlead_limits.table import DEFAULT_GRACE_SECONDS
from sandbox_worker.execution import (
    Command,
    Execution,
    Exit,
    ExitReason,
    Gap,
    GapReason,
    OnFull,
    OutputRecord,
    Stream,
    TerminalSize,
)
from sandbox_worker.execution_errors import CommandInvalid
from sandbox_worker.run import Frame

_REASONS = {
    ExitReason.EXITED: pb.EXIT_REASON_EXITED,
    ExitReason.SIGNALLED: pb.EXIT_REASON_SIGNALLED,
    ExitReason.TIMED_OUT: pb.EXIT_REASON_TIMED_OUT,
    ExitReason.RELEASED: pb.EXIT_REASON_RELEASED,
    ExitReason.HOST_LOST: pb.EXIT_REASON_HOST_LOST,
    ExitReason.OUT_OF_MEMORY: pb.EXIT_REASON_OUT_OF_MEMORY,
    ExitReason.LIMIT_PIDS: pb.EXIT_REASON_LIMIT_PIDS,
    ExitReason.LIMIT_DISK: pb.EXIT_REASON_LIMIT_DISK,
}
_STREAMS = {
    Stream.STDOUT: pb.OUTPUT_STREAM_STDOUT,
    Stream.STDERR: pb.OUTPUT_STREAM_STDERR,
}
_GAP_REASONS = {
    GapReason.UNKNOWN: pb.GAP_REASON_UNSPECIFIED,
    GapReason.DROPPED: pb.GAP_REASON_DROPPED,
    GapReason.EVICTED: pb.GAP_REASON_EVICTED,
    GapReason.DISK_FULL: pb.GAP_REASON_DISK_FULL,
    GapReason.DISK_FAILED: pb.GAP_REASON_DISK_FAILED,
}
_ON_FULL = {
    pb.ON_FULL_UNSPECIFIED: OnFull.DROP_OLDEST,
    pb.ON_FULL_DROP_OLDEST: OnFull.DROP_OLDEST,
    pb.ON_FULL_BLOCK: OnFull.BLOCK,
}


def from_command(message: pb.Command) -> Command:
    """Read a command, whose rules the use case checks; raises CommandInvalid for what it cannot
    say.
    """
    if message.on_full not in _ON_FULL:
        raise CommandInvalid("What happens on a full journal is DROP_OLDEST or BLOCK.")
    terminal = None
    if message.HasField("terminal"):
        terminal = TerminalSize(message.terminal.rows, message.terminal.columns)
    return Command(
        arguments=tuple(message.arguments),
        environment=dict(message.environment),
        directory=message.directory,
        stdin=message.stdin,
        timeout=_seconds(message.timeout) if message.HasField("timeout") else None,
        terminal=terminal,
        on_full=_ON_FULL[message.on_full],
        grace=_seconds(message.grace) if message.HasField("grace") else DEFAULT_GRACE_SECONDS,
    )


def to_execution(execution: Execution) -> pb.Execution:
    """Return an execution as a message."""
    started_at = Timestamp()
    started_at.FromDatetime(execution.started_at)
    exit_ = execution.exit
    return pb.Execution(
        execution_id=execution.execution_id,
        sandbox_id=execution.sandbox_id,
        state=pb.EXECUTION_STATE_RUNNING if exit_ is None else pb.EXECUTION_STATE_EXITED,
        arguments=execution.arguments,
        started_at=started_at,
        exit=None if exit_ is None else to_exit(exit_),
    )


def to_reason(reason: ExitReason) -> pb.ExitReason.ValueType:
    """Return why something ended as a message says it."""
    return _REASONS[reason]


def to_exit(exit_: Exit) -> pb.Exit:
    """Return an exit as a message."""
    message = pb.Exit(
        reason=to_reason(exit_.reason),
        code=exit_.code,
        signal=exit_.signal,
        last_sequence=exit_.last_sequence,
    )
    message.ended_at.FromDatetime(exit_.ended_at)
    if exit_.usage is not None:
        message.cpu_time.FromNanoseconds(round(exit_.usage.cpu_seconds * 1e9))
        message.peak_memory_bytes = exit_.usage.peak_memory_bytes
    return message


def to_responses(execution_id: str, frame: Frame) -> Sequence[pb.WatchOutputResponse]:
    """Return a frame of watched output as messages."""
    match frame:
        case Execution():
            return [pb.WatchOutputResponse(snapshot=to_execution(frame))]
        case Exit():
            return [pb.WatchOutputResponse(exit=to_exit(frame))]
        case Gap():
            return [pb.WatchOutputResponse(gap=to_gap(frame))]
        case records:
            return [_output(execution_id, record) for record in records]


def to_gap(gap: Gap) -> pb.OutputGap:
    """Return a gap as a message."""
    return pb.OutputGap(
        first_sequence=gap.first,
        last_sequence=gap.last,
        bytes=gap.size,
        reason=_GAP_REASONS[gap.reason],
    )


def fill_output(message: pb.OutputRecord, execution_id: str, record: OutputRecord) -> None:
    """Write a record into a message: one that is made apart would be copied."""
    message.execution_id = execution_id
    message.sequence = record.sequence
    message.stream = _STREAMS[record.stream]
    message.content = record.content
    message.written_at.seconds = record.written_at // 10**9
    message.written_at.nanos = record.written_at % 10**9


def _output(execution_id: str, record: OutputRecord) -> pb.WatchOutputResponse:
    response = pb.WatchOutputResponse()
    fill_output(response.output, execution_id, record)
    return response


def _seconds(length: Duration) -> float:
    return length.seconds + length.nanos / 1e9
