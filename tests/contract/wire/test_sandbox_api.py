"""SandboxService of the front door over real gRPC and a real Redis, before a fake host."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from redis.asyncio import Redis

from chassis.errors import FairleadError
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2
from fairlead.launch.v1 import launch_pb2
from fairlead.sandbox.v1 import sandbox_pb2 as pb
from tests.contract.wire.launch_mesh import Mesh, running_mesh
from tests.fakes.launch_room import echo

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def mesh(redis: Redis) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        async with running_mesh(redis, directory) as running:
            yield running


async def make(mesh: Mesh, key: str = "one", **fields: object) -> pb.Sandbox:
    request = pb.CreateSandboxRequest(tenant="somebody else", idempotency_key=key, **fields)  # type: ignore[arg-type]
    return (await mesh.sandboxes.CreateSandbox(request)).sandbox


async def refused(call: Awaitable[object]) -> str:
    with pytest.raises(FairleadError) as error, neighbour_errors("signalling"):
        await call
    return error.value.reason


async def test_the_tenant_comes_from_the_key_and_not_from_the_request(mesh: Mesh) -> None:
    made = await make(mesh, launch_id="lch_x")
    assert (made.tenant, made.launch_id) == ("default", "")
    ((tenant, _),) = mesh.worker.held
    assert tenant == "default"
    named = pb.GetSandboxRequest(tenant="default", sandbox_id=made.sandbox_id)
    stranger = mesh.sandboxes.GetSandbox(named, metadata=(("tenant", "other"),))
    assert await refused(stranger) == "sandbox_not_found"
    listed = await mesh.sandboxes.ListSandboxes(
        pb.ListSandboxesRequest(tenant="default"), metadata=(("tenant", "other"),)
    )
    assert not listed.sandboxes


async def test_a_life_of_a_sandbox(mesh: Mesh) -> None:
    network = pb.NetworkPolicy(mode=pb.NETWORK_MODE_EGRESS, allow=["pypi.org"])
    limits = pb.Limits(processes=9, wall_time=Duration(seconds=1, nanos=500_000_000))
    made = await make(mesh, limits=limits, network=network, lease=Duration(seconds=60))
    assert (made.limits, made.network) == (limits, network)
    assert [(wall.name, wall.stands) for wall in made.walls] == [("script", True), ("stone", False)]
    assert made == await make(mesh, limits=limits, network=network, lease=Duration(seconds=60))
    assert await refused(make(mesh)) == "idempotency_conflict"
    execution = await mesh.executions.StartExecution(
        execution_pb2.StartExecutionRequest(
            sandbox_id=made.sandbox_id, command=execution_pb2.Command(arguments=["true"])
        )
    )
    assert execution.execution.sandbox_id == made.sandbox_id
    renewed = await mesh.sandboxes.RenewSandbox(
        pb.RenewSandboxRequest(sandbox_id=made.sandbox_id, lease=Duration(seconds=7200))
    )
    assert renewed.sandbox.expires_at.seconds > made.expires_at.seconds
    page = await mesh.sandboxes.ListSandboxes(pb.ListSandboxesRequest())
    assert [each.sandbox_id for each in page.sandboxes] == [made.sandbox_id]
    release = pb.ReleaseSandboxRequest(sandbox_id=made.sandbox_id)
    assert (await mesh.sandboxes.ReleaseSandbox(release)).released
    assert await refused(mesh.sandboxes.ReleaseSandbox(release)) == "sandbox_not_found"


async def test_a_key_gives_back_what_it_made_or_will_make(mesh: Mesh) -> None:
    by_key = pb.ReleaseSandboxRequest(idempotency_key="one")
    await make(mesh)
    assert (await mesh.sandboxes.ReleaseSandbox(by_key)).released
    assert await refused(make(mesh)) == "sandbox_released"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("OpenPort", "ports_by_channel"),
        ("ReleaseSandbox", "sandbox_required"),
        ("GetSandbox", "sandbox_not_found"),
        ("RenewSandbox", "sandbox_not_found"),
        ("BindWorkspace", "workspace_not_found"),
    ],
)
async def test_an_empty_request_is_refused(mesh: Mesh, call: str, reason: str) -> None:
    request = getattr(pb, f"{call}Request")()
    assert await refused(getattr(mesh.sandboxes, call)(request)) == reason


async def test_a_launch_tells_of_its_sandbox(mesh: Mesh) -> None:
    mesh.worker.script = echo(b"x")
    request = launch_pb2.LaunchRequest()
    request.source.project, request.source.commit = "p", "c" * 40
    request.source.branch = "main"
    request.command.arguments.append("true")
    request.limits.processes = 9
    events = await mesh.launch(request)
    (told,) = [
        event.step.sandbox
        for event in events
        if event.WhichOneof("event") == "step" and event.step.HasField("sandbox")
    ]
    assert told.launch_id == events[0].snapshot.launch_id
    assert told.limits.processes == 9
    assert len(told.walls) == 2
