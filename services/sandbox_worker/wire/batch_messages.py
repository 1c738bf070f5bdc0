"""Batches between domain and proto."""

from __future__ import annotations

from fairlead.execution.v1 import execution_pb2 as pb
from sandbox_worker.batch import Batch, BatchInvalid, BatchOutcome, BatchState
from sandbox_worker.execution import Command
from sandbox_worker.file import FileOperation
from sandbox_worker.wire.execution_messages import from_command, to_execution
from sandbox_worker.wire.file_messages import from_operation, to_result

_STATES = {
    BatchState.SUCCEEDED: pb.BATCH_STATE_SUCCEEDED,
    BatchState.FAILED: pb.BATCH_STATE_FAILED,
    BatchState.SKIPPED: pb.BATCH_STATE_SKIPPED,
}


def from_batch(request: pb.RunBatchRequest) -> Batch:
    """Read a batch, whose rules the use case checks; raises BatchInvalid and CommandInvalid."""
    return Batch(
        items=tuple(_item(item) for item in request.items),
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


def _item(item: pb.BatchItem) -> Command | FileOperation:
    match item.WhichOneof("work"):
        case "command":
            return from_command(item.command)
        case "file":
            return from_operation(item.file)
        case _:
            raise BatchInvalid("A piece of work is a command or a file operation.")
