"""Leases of sandboxes, held at the sandbox itself: a worker that is stopped, killed or late keeps
nothing alive, and never ends what somebody has renewed.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2
from fairlead.sandbox.v1 import sandbox_pb2
from sandbox_worker.settings import Settings
from tests.contract.wire.sandbox_room import (
    TENANT,
    SandboxRoom,
    own_worker,
    processes_with,
    room_in_process,
    room_settings,
)
from tests.eventually import eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

_PROFILES = """
[small]
isolation = "process"
lease_seconds = 90
network = "host"
[small.limits]
open_files = 256
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(_PROFILES)
    with tempfile.TemporaryDirectory(prefix="fls-") as sockets:
        yield room_settings(tmp_path, Path(sockets), profiles=profiles)


@pytest_asyncio.fixture
async def room(settings: Settings) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(settings) as room:
        yield room


async def create(room: SandboxRoom, *, seconds: int = 0, **fields: object) -> sandbox_pb2.Sandbox:
    request = sandbox_pb2.CreateSandboxRequest(
        tenant=TENANT,
        idempotency_key=random_id("key"),
        **fields,  # type: ignore[arg-type]
    )
    if seconds:
        request.lease.FromSeconds(seconds)
    with neighbour_errors("worker"):
        return (await room.sandboxes.CreateSandbox(request)).sandbox


async def renew(room: SandboxRoom, sandbox_id: str, seconds: int) -> sandbox_pb2.Sandbox:
    request = sandbox_pb2.RenewSandboxRequest(tenant=TENANT, sandbox_id=sandbox_id)
    request.lease.FromSeconds(seconds)
    with neighbour_errors("worker"):
        return (await room.sandboxes.RenewSandbox(request)).sandbox


@pytest.mark.parametrize("isolation", ["process", "walled"])
async def test_a_stopped_worker_keeps_nothing_alive(settings: Settings, isolation: str) -> None:
    """SIGSTOP beyond the lease, then SIGCONT: the sandbox has ended itself, as released."""
    mark = random_id("key")
    async with own_worker(settings) as (worker, room):
        await _needs(room, isolation)
        sandbox = await create(room, seconds=6, isolation=isolation)
        execution = await room.start(sandbox.sandbox_id, "sh", "-c", "sleep 600; :", mark)
        worker.send_signal(signal.SIGSTOP)
        try:
            await eventually(lambda: _found(mark), lambda found: not found)
        finally:
            worker.send_signal(signal.SIGCONT)
        output = await room.output(execution.execution_id)
        assert output.exit.reason == execution_pb2.EXIT_REASON_RELEASED
        with pytest.raises(FairleadError) as late:
            await renew(room, sandbox.sandbox_id, 60)
        assert late.value.reason == "sandbox_not_found"


@pytest.mark.parametrize("isolation", ["process", "walled"])
async def test_a_renewed_sandbox_outlives_its_first_lease(
    room: SandboxRoom, isolation: str
) -> None:
    await _needs(room, isolation)
    short, renewed = [await create(room, seconds=6, isolation=isolation) for _ in range(2)]
    assert (await renew(room, renewed.sandbox_id, 600)).fence.counter > renewed.fence.counter
    ended = await room.start(short.sandbox_id, "sleep", "600")
    await room.output(ended.execution_id)
    # What ends itself does so two seconds after the worker would have.
    held = await room.run(renewed.sandbox_id, "sh", "-c", "sleep 3; echo here")
    assert held.stdout == b"here\n"


async def test_fences_rise_with_every_life_of_the_worker(settings: Settings) -> None:
    fences = []
    for _ in range(2):
        async with room_in_process(settings) as room:
            made = [await create(room) for _ in range(2)]
            fences += [(each.fence.epoch, each.fence.counter) for each in made]
    assert fences == sorted(fences)
    assert len({epoch for epoch, _ in fences}) == 2


async def test_a_sandbox_says_what_it_has(room: SandboxRoom) -> None:
    sandbox = await create(room, profile="small", launch_id="lch_x")
    assert (sandbox.isolation, sandbox.profile, sandbox.launch_id) == ("process", "small", "lch_x")
    assert sandbox.limits.open_files == 256
    assert sandbox.network.mode == sandbox_pb2.NETWORK_MODE_HOST
    assert sandbox.expires_at.seconds - sandbox.created_at.seconds == 90


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"profile": "large"}, "profile_unknown"),
        ({"profile": "small", "limits": sandbox_pb2.Limits(open_files=257)}, "limit_exceeded"),
        ({"limits": sandbox_pb2.Limits(processes=-1)}, "limit_invalid"),
        ({"network": sandbox_pb2.NetworkPolicy()}, "argument_invalid"),
        (
            {
                "isolation": "process",
                "network": sandbox_pb2.NetworkPolicy(mode=sandbox_pb2.NETWORK_MODE_NONE),
            },
            "network_unavailable",
        ),
        ({"isolation": "gvisor"}, "isolation_unavailable"),
        ({"workspace_id": "wsp_" + "a" * 26}, "workspace_not_found"),
    ],
)
async def test_what_cannot_be_had_leaves_nothing(
    room: SandboxRoom, fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(FairleadError) as caught:
        await create(room, **fields)  # type: ignore[arg-type]
    assert caught.value.reason == reason
    assert caught.value.remedy
    listed = await room.sandboxes.ListSandboxes(sandbox_pb2.ListSandboxesRequest(tenant=TENANT))
    assert not listed.sandboxes


@pytest.mark.parametrize("isolation", ["process", "walled"])
async def test_a_workspace_is_bound_in_the_same_call(room: SandboxRoom, isolation: str) -> None:
    await _needs(room, isolation)
    workspace_id = random_id("wsp")
    room.tree(workspace_id).mkdir(parents=True)
    (room.tree(workspace_id) / "file").write_text("content")
    sandbox = await create(room, isolation=isolation, workspace_id=workspace_id)
    assert sandbox.workspace_id == workspace_id
    assert (await room.run(sandbox.sandbox_id, "cat", "file")).stdout == b"content"


async def _found(mark: str) -> list[int]:
    return await asyncio.to_thread(processes_with, mark)


async def _needs(room: SandboxRoom, isolation: str) -> None:
    try:
        made = await create(room, isolation=isolation)
    except FairleadError as refused:
        pytest.skip(f"{isolation} cannot be had here: {refused.message}")
    await room.release(made.sandbox_id)
