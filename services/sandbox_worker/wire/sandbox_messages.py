"""Sandboxes between domain and proto, both ways."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.sandbox.v1 import sandbox_pb2
from sandbox_worker.errors import ArgumentInvalid
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.network.decision import Decision
from sandbox_worker.sandbox import (
    Limits,
    NetworkMode,
    NetworkPolicy,
    Sandbox,
    SandboxState,
)

_STATES = {
    SandboxState.REQUESTED: sandbox_pb2.SANDBOX_STATE_REQUESTED,
    SandboxState.PROVISIONED: sandbox_pb2.SANDBOX_STATE_PROVISIONED,
    SandboxState.RELEASED: sandbox_pb2.SANDBOX_STATE_RELEASED,
}
_MODES = {
    NetworkMode.NONE: sandbox_pb2.NETWORK_MODE_NONE,
    NetworkMode.HOST: sandbox_pb2.NETWORK_MODE_HOST,
    NetworkMode.EGRESS: sandbox_pb2.NETWORK_MODE_EGRESS,
}
_MODE_OF = {number: mode for mode, number in _MODES.items()}


def from_order(request: sandbox_pb2.CreateSandboxRequest) -> SandboxOrder:
    """Read what a caller asks for; raises ArgumentInvalid."""
    return SandboxOrder(
        isolation=request.isolation,
        limits=from_limits(request.limits),
        lease=seconds(request.lease),
        profile=request.profile,
        network=from_network(request.network) if request.HasField("network") else None,
        workspace_id=request.workspace_id,
        launch_id=request.launch_id,
    )


def from_limits(limits: sandbox_pb2.Limits) -> Limits:
    """Read limits."""
    return Limits(
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        open_files=limits.open_files,
        file_bytes=limits.file_bytes,
        cpu_milli=limits.cpu_milli,
        disk_bytes=limits.disk_bytes,
        wall_seconds=seconds(limits.wall_time),
        output_bytes=limits.output_bytes,
    )


def from_network(network: sandbox_pb2.NetworkPolicy) -> NetworkPolicy:
    """Read a network policy; raises ArgumentInvalid."""
    mode = _MODE_OF.get(network.mode)
    if mode is None:
        raise ArgumentInvalid("network.mode", "is one of none, host and egress")
    return NetworkPolicy(mode, tuple(network.allow))


def to_network(network: NetworkPolicy) -> sandbox_pb2.NetworkPolicy:
    """Return a network policy as a message."""
    return sandbox_pb2.NetworkPolicy(mode=_MODES[network.mode], allow=network.allow)


def to_decision(decision: Decision) -> sandbox_pb2.NetworkDecision:
    """Return a decision as a message."""
    at = Timestamp()
    at.FromDatetime(decision.at)
    return sandbox_pb2.NetworkDecision(
        at=at,
        host=decision.host,
        port=decision.port,
        address=decision.address,
        reason=decision.reason.value,
    )


def to_limits(limits: Limits) -> sandbox_pb2.Limits:
    """Return limits as a message; a wall time of 0 is absent."""
    message = sandbox_pb2.Limits(
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        open_files=limits.open_files,
        file_bytes=limits.file_bytes,
        cpu_milli=limits.cpu_milli,
        disk_bytes=limits.disk_bytes,
        output_bytes=limits.output_bytes,
    )
    if limits.wall_seconds:
        message.wall_time.FromTimedelta(timedelta(seconds=limits.wall_seconds))
    return message


def to_sandbox(sandbox: Sandbox) -> sandbox_pb2.Sandbox:
    """Return a sandbox as a message."""
    created_at, expires_at = Timestamp(), Timestamp()
    created_at.FromDatetime(sandbox.created_at)
    expires_at.FromDatetime(sandbox.expires_at)
    return sandbox_pb2.Sandbox(
        sandbox_id=sandbox.sandbox_id,
        tenant=sandbox.tenant,
        state=_STATES[sandbox.state],
        isolation=sandbox.isolation,
        limits=to_limits(sandbox.limits),
        host_id=sandbox.host_id,
        workspace_id=sandbox.workspace_id,
        created_at=created_at,
        expires_at=expires_at,
        walls=[
            sandbox_pb2.Wall(name=wall.name, stands=wall.stands, reason=wall.reason)
            for wall in sandbox.walls
        ],
        launch_id=sandbox.launch_id,
        profile=sandbox.profile,
        network=to_network(sandbox.network),
        fence=sandbox_pb2.Fence(epoch=sandbox.fence.epoch, counter=sandbox.fence.counter),
    )


def seconds(duration: Duration) -> float:
    """Read a duration; 0 when it is absent."""
    return duration.seconds + duration.nanos / 1e9
