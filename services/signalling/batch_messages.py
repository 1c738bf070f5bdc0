"""Batches between domain and proto, both ways."""

from __future__ import annotations

from fairlead.execution.v1 import execution_pb2 as pb
from signalling.batch import Batch, BatchFailure, BatchOutcome, BatchState
from signalling.execution import Command
from signalling.execution_messages import from_command, from_execution, to_command, to_execution
from signalling.file import FileOperation
from signalling.file_messages import from_operation, from_result, to_operation, to_result
from signalling.source_rules import InvalidRequest

_STATES = {
    BatchState.SUCCEEDED: pb.BATCH_STATE_SUCCEEDED,
    BatchState.FAILED: pb.BATCH_STATE_FAILED,
    BatchState.SKIPPED: pb.BATCH_STATE_SKIPPED,
}
_STATE_OF = {number: state for state, number in _STATES.items()}


def to_item(item: Command | FileOperation) -> pb.BatchItem:
    """Return a piece of work as a message."""
    if isinstance(item, Command):
        return pb.BatchItem(command=to_command(item))
    return pb.BatchItem(file=to_operation(item))


def from_batch(request: pb.RunBatchRequest) -> Batch:
    """Read a batch; its rules are checked by the use case."""
    return Batch(
        items=tuple(_from_item(item) for item in request.items),
        continue_on_failure=request.continue_on_failure,
    )


def to_outcome(outcome: BatchOutcome) -> pb.BatchOutcome:
    """Return what became of one piece of work as a message."""
    failure = outcome.failure
    return pb.BatchOutcome(
        state=_STATES[outcome.state],
        execution=None if outcome.execution is None else to_execution(outcome.execution),
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        truncated=outcome.truncated,
        failure=None
        if failure is None
        else pb.BatchFailure(reason=failure.reason, message=failure.message, remedy=failure.remedy),
        file=None if outcome.file is None else to_result(outcome.file),
    )


def from_outcome(message: pb.BatchOutcome) -> BatchOutcome:
    """Read what became of one piece of work; a state that is not known counts as failed."""
    failure = message.failure
    return BatchOutcome(
        state=_STATE_OF.get(message.state, BatchState.FAILED),
        execution=from_execution(message.execution) if message.HasField("execution") else None,
        stdout=message.stdout,
        stderr=message.stderr,
        truncated=message.truncated,
        failure=BatchFailure(failure.reason, failure.message, failure.remedy)
        if message.HasField("failure")
        else None,
        file=from_result(message.file) if message.HasField("file") else None,
    )


def _from_item(item: pb.BatchItem) -> Command | FileOperation:
    match item.WhichOneof("work"):
        case "command":
            return from_command(item.command)
        case "file":
            return from_operation(item.file)
        case _:
            raise InvalidRequest(
                "items",
                "A piece of work is a command or a file operation.",
                reason="batch_invalid",
            )
