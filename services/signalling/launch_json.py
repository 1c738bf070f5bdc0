"""Launches, events and executions as JSON: the shapes of the REST API, which the store keeps too.
Pure.

Enum values in lower case, times in RFC 3339, durations in seconds, bytes in base64; what is absent
is null.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime

from signalling.execution import Execution, Exit, OutputGap, OutputRecord
from signalling.host import Host
from signalling.launch import (
    ControlEvent,
    Failure,
    Happening,
    Launch,
    LaunchCancelled,
    LaunchEvent,
    LaunchExited,
    LaunchFailed,
    LaunchProvisioned,
    LaunchSnapshot,
    OfferAnswered,
    SnapshotMissed,
    StepChanged,
)
from signalling.launch_record import LaunchRecord
from signalling.sandbox import Sandbox
from signalling.snapshot import Freshness

Json = Mapping[str, object]


def time_json(at: datetime | None) -> str | None:
    """Return a time in RFC 3339, in UTC with microseconds."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def exit_json(exit_: Exit | None) -> Json | None:
    """Return an exit."""
    if exit_ is None:
        return None
    return {
        "reason": exit_.reason.value,
        "code": exit_.code,
        "signal": exit_.signal,
        "last_sequence": exit_.last_sequence,
        "ended_at": time_json(exit_.ended_at),
        "cpu_time": None if exit_.cpu_time is None else exit_.cpu_time.total_seconds(),
        "peak_memory_bytes": exit_.peak_memory_bytes,
    }


def execution_json(execution: Execution) -> Json:
    """Return an execution."""
    return {
        "execution_id": execution.execution_id,
        "sandbox_id": execution.sandbox_id,
        "state": execution.state.value,
        "arguments": list(execution.arguments),
        "started_at": time_json(execution.started_at),
        "exit": exit_json(execution.exit),
    }


def output_json(record: OutputRecord) -> Json:
    """Return a piece of output."""
    return {
        "execution_id": record.execution_id,
        "sequence": record.sequence,
        "stream": record.stream.value,
        "content": base64.b64encode(record.content).decode("ascii"),
        "written_at": time_json(record.written_at),
    }


def gap_json(gap: OutputGap) -> Json:
    """Return a gap in an output."""
    return {
        "first_sequence": gap.first_sequence,
        "last_sequence": gap.last_sequence,
        "bytes": gap.size,
        "reason": gap.reason.value,
    }


def freshness_json(freshness: Freshness | None) -> Json | None:
    """Return how an upstream's tip was found; null when it was not asked for."""
    if freshness is None:
        return None
    return {
        "branch": freshness.branch,
        "as_of": time_json(freshness.as_of),
        "fallback": freshness.fallback,
        "reason": freshness.reason,
    }


def sandbox_json(sandbox: Sandbox | None) -> Json | None:
    """Return a sandbox."""
    if sandbox is None:
        return None
    network = sandbox.network
    return {
        "sandbox_id": sandbox.sandbox_id,
        "state": sandbox.state.value,
        "isolation": sandbox.isolation,
        "profile": sandbox.profile,
        "limits": asdict(sandbox.limits),
        "network": None
        if network is None
        else {"mode": network.mode.value, "allow": list(network.allow)},
        "walls": [asdict(wall) for wall in sandbox.walls],
        "host_id": sandbox.host_id,
        "workspace_id": sandbox.workspace_id,
        "launch_id": sandbox.launch_id,
        "fence": asdict(sandbox.fence),
        "created_at": time_json(sandbox.created_at),
        "expires_at": time_json(sandbox.expires_at),
    }


def failure_json(failure: Failure | None) -> Json | None:
    """Return a failure; `step` is null when it was none of them."""
    if failure is None:
        return None
    return {
        "step": None if failure.step is None else failure.step.value,
        "reason": failure.reason,
        "message": failure.message,
        "remedy": failure.remedy,
    }


def launch_json(launch: Launch) -> Json:
    """Return a launch."""
    return {
        "launch_id": launch.launch_id,
        "state": launch.state.value,
        "created_at": time_json(launch.created_at),
        "ended_at": time_json(launch.ended_at),
        "released_at": time_json(launch.released_at),
        "expires_at": time_json(launch.expires_at),
        "project": launch.project,
        "commit": launch.commit,
        "branch": launch.branch,
        "arguments": list(launch.arguments),
        "keep": launch.keep,
        "host_id": launch.host_id,
        "workspace_id": launch.workspace_id,
        "sandbox_id": launch.sandbox_id,
        "isolation": launch.isolation,
        "session_id": launch.session_id,
        "execution_id": launch.execution_id,
        "exit": exit_json(launch.exit),
        "failure": failure_json(launch.failure),
        "trace_id": launch.trace_id,
    }


def happening_json(
    happening: LaunchSnapshot | OutputRecord | OutputGap | Happening,
) -> tuple[str, Json]:
    """Return the type of what happened and its fields."""
    match happening:
        case LaunchSnapshot(launch):
            return "snapshot", launch_json(launch)
        case OutputRecord():
            return "output", output_json(happening)
        case OutputGap():
            return "gap", gap_json(happening)
        case StepChanged() as step:
            return "step", {
                "step": step.step.value,
                "state": step.state.value,
                "elapsed": step.elapsed,
                "failure": failure_json(step.failure),
                "detail": step.detail,
                "freshness": freshness_json(step.freshness),
                "lfs_pointers": step.lfs_pointers,
                "tags_left_out": step.tags_left_out,
                "sandbox": sandbox_json(step.sandbox),
            }
        case SnapshotMissed(reason, wanted, tips, token, expires_at):
            return "miss", {
                "reason": reason.value,
                "wanted": list(wanted),
                "tips": list(tips),
                "upload_token": token,
                "expires_at": time_json(expires_at),
            }
        case OfferAnswered(session_id, answer):
            return "answer", {"session_id": session_id, "answer": answer}
        case LaunchProvisioned(launch):
            return "provisioned", {"launch": launch_json(launch)}
        case LaunchExited(exit_, changed_files, discarded, refused):
            return "exited", {
                "exit": exit_json(exit_),
                "changed_files": changed_files,
                "discarded": discarded,
                "refused_connections": list(refused),
            }
        case LaunchFailed(failure):
            return "failed", {"failure": failure_json(failure)}
        case LaunchCancelled(cancel_reason):
            return "cancelled", {"reason": cancel_reason.value}


def event_json(event: LaunchEvent) -> Json:
    """Return an event as a watcher gets it."""
    name, fields = happening_json(event.event)
    return {
        "cursor": event.cursor,
        "occurred_at": time_json(event.occurred_at),
        "type": name,
        name: fields,
    }


def control_json(event: ControlEvent) -> Json:
    """Return a control event as the store keeps it."""
    name, fields = happening_json(event.happening)
    return {
        "number": event.number,
        "occurred_at": time_json(event.occurred_at),
        "type": name,
        name: fields,
    }


def host_json(host: Host) -> Json:
    """Return a host as the store keeps it."""
    return {
        "host_id": host.host_id,
        "workspace_address": host.workspace_address,
        "sandbox_address": host.sandbox_address,
        "isolation": list(host.isolation),
    }


def record_json(record: LaunchRecord) -> Json:
    """Return a record as the store keeps it."""
    return {
        "tenant": record.tenant,
        "owner": record.owner,
        "fingerprint": record.fingerprint,
        "version": record.version,
        "last_event": record.last_event,
        "lease": record.lease.total_seconds(),
        "has_command": record.has_command,
        "has_channel": record.has_channel,
        "workspace_lent": record.workspace_lent,
        "traceparent": record.traceparent,
        "host": host_json(record.host),
        "launch": launch_json(record.launch),
    }
