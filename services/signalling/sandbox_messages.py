"""Sandboxes between domain and proto, both ways."""

from __future__ import annotations

from datetime import timedelta

from fairlead.sandbox.v1 import sandbox_pb2 as pb
from signalling.execution_messages import from_duration, from_timestamp, to_duration, to_timestamp
from signalling.sandbox import (
    Fence,
    Limits,
    NetworkDecision,
    NetworkMode,
    NetworkPolicy,
    NetworkView,
    Sandbox,
    SandboxOrder,
    SandboxState,
    Wall,
)
from signalling.source_rules import InvalidRequest

_STATES = {
    SandboxState.REQUESTED: pb.SANDBOX_STATE_REQUESTED,
    SandboxState.PROVISIONED: pb.SANDBOX_STATE_PROVISIONED,
    SandboxState.RELEASED: pb.SANDBOX_STATE_RELEASED,
}
_STATE_OF = {number: state for state, number in _STATES.items()}
_MODES = {
    NetworkMode.NONE: pb.NETWORK_MODE_NONE,
    NetworkMode.HOST: pb.NETWORK_MODE_HOST,
    NetworkMode.EGRESS: pb.NETWORK_MODE_EGRESS,
}
_MODE_OF = {number: mode for mode, number in _MODES.items()}


def from_sandbox(message: pb.Sandbox) -> Sandbox:
    """Read a sandbox."""
    return Sandbox(
        sandbox_id=message.sandbox_id,
        state=_STATE_OF.get(message.state, SandboxState.PROVISIONED),
        isolation=message.isolation,
        limits=from_limits(message.limits),
        network=from_network(message.network) if message.network.mode else None,
        profile=message.profile,
        walls=tuple(Wall(wall.name, wall.stands, wall.reason) for wall in message.walls),
        host_id=message.host_id,
        workspace_id=message.workspace_id,
        launch_id=message.launch_id,
        fence=Fence(message.fence.epoch, message.fence.counter),
        created_at=from_timestamp(message.created_at),
        expires_at=from_timestamp(message.expires_at),
    )


def to_sandbox(sandbox: Sandbox, tenant: str = "") -> pb.Sandbox:
    """Return a sandbox as a message; in an event of a launch it names no tenant."""
    return pb.Sandbox(
        sandbox_id=sandbox.sandbox_id,
        tenant=tenant,
        state=_STATES[sandbox.state],
        isolation=sandbox.isolation,
        limits=to_limits(sandbox.limits),
        network=None if sandbox.network is None else to_network(sandbox.network),
        profile=sandbox.profile,
        walls=[
            pb.Wall(name=wall.name, stands=wall.stands, reason=wall.reason)
            for wall in sandbox.walls
        ],
        host_id=sandbox.host_id,
        workspace_id=sandbox.workspace_id,
        launch_id=sandbox.launch_id,
        fence=pb.Fence(epoch=sandbox.fence.epoch, counter=sandbox.fence.counter),
        created_at=to_timestamp(sandbox.created_at),
        expires_at=to_timestamp(sandbox.expires_at),
    )


def to_order(order: SandboxOrder, tenant: str) -> pb.CreateSandboxRequest:
    """Return what a host is to make as a message."""
    return pb.CreateSandboxRequest(
        tenant=tenant,
        idempotency_key=order.key,
        isolation=order.isolation,
        profile=order.profile,
        limits=to_limits(order.limits),
        network=None if order.network is None else to_network(order.network),
        lease=None if order.lease is None else to_duration(order.lease),
        workspace_id=order.workspace_id,
        launch_id=order.launch_id,
    )


def from_order(message: pb.CreateSandboxRequest) -> SandboxOrder:
    """Read what a caller asks for; its rules are checked by the use case."""
    return SandboxOrder(
        key=message.idempotency_key,
        isolation=message.isolation,
        profile=message.profile,
        limits=from_limits(message.limits),
        network=from_network(message.network) if message.HasField("network") else None,
        lease=from_duration("lease", message.lease) if message.HasField("lease") else None,
        workspace_id=message.workspace_id,
        host_id=message.host_id,
    )


def from_limits(message: pb.Limits) -> Limits:
    """Read limits."""
    wall_time = message.wall_time
    return Limits(
        memory_bytes=message.memory_bytes,
        processes=message.processes,
        open_files=message.open_files,
        file_bytes=message.file_bytes,
        cpu_milli=message.cpu_milli,
        disk_bytes=message.disk_bytes,
        wall_time=wall_time.seconds + wall_time.nanos / 1e9,
        output_bytes=message.output_bytes,
    )


def to_limits(limits: Limits) -> pb.Limits:
    """Return limits as a message."""
    return pb.Limits(
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        open_files=limits.open_files,
        file_bytes=limits.file_bytes,
        cpu_milli=limits.cpu_milli,
        disk_bytes=limits.disk_bytes,
        wall_time=to_duration(timedelta(seconds=limits.wall_time)) if limits.wall_time else None,
        output_bytes=limits.output_bytes,
    )


def from_network(message: pb.NetworkPolicy) -> NetworkPolicy:
    """Read a network policy; raises InvalidRequest."""
    mode = _MODE_OF.get(message.mode)
    if mode is None:
        raise InvalidRequest(
            "network.mode",
            "The network is one of none, host and egress.",
            reason="network_invalid",
        )
    return NetworkPolicy(mode, tuple(message.allow))


def from_view(message: pb.GetNetworkResponse) -> NetworkView:
    """Read what a sandbox reaches and lately tried to reach."""
    return NetworkView(
        policy=from_network(message.network),
        decisions=tuple(
            NetworkDecision(
                at=from_timestamp(each.at),
                host=each.host,
                port=each.port,
                address=each.address,
                reason=each.reason,
            )
            for each in message.decisions
        ),
    )


def to_view(view: NetworkView) -> pb.GetNetworkResponse:
    """Return what a sandbox reaches and lately tried to reach as a message."""
    return pb.GetNetworkResponse(
        network=to_network(view.policy),
        decisions=[
            pb.NetworkDecision(
                at=to_timestamp(each.at),
                host=each.host,
                port=each.port,
                address=each.address,
                reason=each.reason,
            )
            for each in view.decisions
        ],
    )


def to_network(network: NetworkPolicy) -> pb.NetworkPolicy:
    """Return a network policy as a message."""
    return pb.NetworkPolicy(mode=_MODES[network.mode], allow=network.allow)
