"""Launches and their events between domain and proto."""

from __future__ import annotations

from datetime import timedelta

from fairlead.launch.v1 import launch_pb2 as pb
from signalling.execution import OutputGap, OutputRecord
from signalling.execution_messages import (
    from_command,
    from_duration,
    to_duration,
    to_exit,
    to_gap,
    to_output,
    to_timestamp,
)
from signalling.launch import (
    Failure,
    Launch,
    LaunchCancelled,
    LaunchEvent,
    LaunchExited,
    LaunchFailed,
    LaunchProvisioned,
    LaunchSnapshot,
    LaunchState,
    OfferAnswered,
    SnapshotMissed,
    Step,
    StepChanged,
    StepState,
)
from signalling.launch_request import LaunchRequest
from signalling.ports import Span
from signalling.sandbox_messages import from_limits, from_network, to_sandbox
from signalling.snapshot_messages import from_source, to_freshness, to_miss_reason

_STATES = {
    LaunchState.REQUESTED: pb.LAUNCH_STATE_REQUESTED,
    LaunchState.PROVISIONED: pb.LAUNCH_STATE_PROVISIONED,
    LaunchState.RUNNING: pb.LAUNCH_STATE_RUNNING,
    LaunchState.EXITED: pb.LAUNCH_STATE_EXITED,
    LaunchState.FAILED: pb.LAUNCH_STATE_FAILED,
    LaunchState.CANCELLED: pb.LAUNCH_STATE_CANCELLED,
}
_STEPS = {
    Step.WORKSPACE: pb.STEP_WORKSPACE,
    Step.SANDBOX: pb.STEP_SANDBOX,
    Step.CHANNEL: pb.STEP_CHANNEL,
    Step.EXECUTION: pb.STEP_EXECUTION,
}
_STEP_STATES = {
    StepState.STARTED: pb.STEP_STATE_STARTED,
    StepState.DONE: pb.STEP_STATE_DONE,
    StepState.FAILED: pb.STEP_STATE_FAILED,
    StepState.UNDONE: pb.STEP_STATE_UNDONE,
}


def from_launch_request(message: pb.LaunchRequest) -> LaunchRequest:
    """Read what a caller asks for; its rules are checked by the use case."""
    return LaunchRequest(
        source=None
        if message.workspace_id and not message.HasField("source")
        else from_source(message.source),
        branch=message.branch,
        command=from_command(message.command) if message.HasField("command") else None,
        keep=message.keep,
        lease=from_duration("lease", message.lease) if message.HasField("lease") else None,
        isolation=message.isolation,
        offer=message.offer,
        limits=from_limits(message.limits),
        profile=message.profile,
        network=from_network(message.network) if message.HasField("network") else None,
        workspace_id=message.workspace_id,
    )


def to_failure(failure: Failure) -> pb.Failure:
    """Return a failure as a message."""
    return pb.Failure(
        step=pb.STEP_UNSPECIFIED if failure.step is None else _STEPS[failure.step],
        reason=failure.reason,
        message=failure.message,
        remedy=failure.remedy,
    )


def to_launch(launch: Launch) -> pb.Launch:
    """Return a launch as a message."""
    return pb.Launch(
        launch_id=launch.launch_id,
        state=_STATES[launch.state],
        created_at=to_timestamp(launch.created_at),
        ended_at=None if launch.ended_at is None else to_timestamp(launch.ended_at),
        released_at=None if launch.released_at is None else to_timestamp(launch.released_at),
        expires_at=None if launch.expires_at is None else to_timestamp(launch.expires_at),
        project=launch.project,
        commit=launch.commit,
        branch=launch.branch,
        arguments=launch.arguments,
        keep=launch.keep,
        host_id=launch.host_id,
        workspace_id=launch.workspace_id,
        sandbox_id=launch.sandbox_id,
        isolation=launch.isolation,
        session_id=launch.session_id,
        execution_id=launch.execution_id,
        exit=None if launch.exit is None else to_exit(launch.exit),
        failure=None if launch.failure is None else to_failure(launch.failure),
        trace_id=launch.trace_id,
    )


def to_event(event: LaunchEvent) -> pb.LaunchEvent:
    """Return an event as a message."""
    message = pb.LaunchEvent(cursor=event.cursor, occurred_at=to_timestamp(event.occurred_at))
    match event.event:
        case LaunchSnapshot(launch):
            message.snapshot.CopyFrom(to_launch(launch))
        case StepChanged() as changed:
            message.step.CopyFrom(_to_step(changed))
        case SnapshotMissed() as missed:
            message.miss.CopyFrom(_to_miss(missed))
        case OfferAnswered(session_id, answer):
            message.answer.session_id, message.answer.answer = session_id, answer
        case OutputRecord() as record:
            message.output.CopyFrom(to_output(record))
        case OutputGap() as gap:
            message.gap.CopyFrom(to_gap(gap))
        case LaunchProvisioned(launch):
            message.provisioned.launch.CopyFrom(to_launch(launch))
        case LaunchExited(exit_, changed_files, discarded, refused):
            message.exited.CopyFrom(
                pb.LaunchExited(
                    exit=to_exit(exit_),
                    changed_files=changed_files,
                    discarded=discarded,
                    refused_connections=refused,
                )
            )
        case LaunchFailed(failure):
            message.failed.failure.CopyFrom(to_failure(failure))
        case LaunchCancelled(reason):
            message.cancelled.reason = reason.value
    return message


def _to_step(changed: StepChanged) -> pb.StepChanged:
    return pb.StepChanged(
        step=_STEPS[changed.step],
        state=_STEP_STATES[changed.state],
        elapsed=None
        if changed.elapsed is None
        else to_duration(timedelta(seconds=changed.elapsed)),
        failure=None if changed.failure is None else to_failure(changed.failure),
        detail=changed.detail,
        freshness=None if changed.freshness is None else to_freshness(changed.freshness),
        lfs_pointers=changed.lfs_pointers,
        tags_left_out=changed.tags_left_out,
        sandbox=None if changed.sandbox is None else to_sandbox(changed.sandbox),
    )


def _to_miss(missed: SnapshotMissed) -> pb.SnapshotMissed:
    return pb.SnapshotMissed(
        reason=to_miss_reason(missed.reason),
        wanted=missed.wanted,
        tips=missed.tips,
        upload_token=missed.upload_token,
        expires_at=to_timestamp(missed.expires_at),
    )


def to_span(span: Span) -> pb.Span:
    """Return a span as a message."""
    return pb.Span(
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        service=span.service,
        started_at=to_timestamp(span.started_at),
        ended_at=to_timestamp(span.ended_at),
        failed=span.failed,
        attributes=span.attributes,
    )
