"""Sandboxes over the wire: made once per key, bound once, and gone with all their processes."""

from __future__ import annotations

import asyncio
import os
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
from tests.contract.wire.sandbox_room import (
    TENANT,
    SandboxRoom,
    room_in_process,
    room_settings,
)
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets, most_sandboxes=60)) as room:
        yield room


async def test_the_same_key_gives_the_same_sandbox(room: SandboxRoom) -> None:
    made = await asyncio.gather(*(room.create("one") for _ in range(8)), room.create("two"))
    assert len({sandbox.sandbox_id for sandbox in made}) == 2
    assert made[0].state == sandbox_pb2.SANDBOX_STATE_PROVISIONED
    assert made[0].isolation == "process"
    assert made[0].expires_at.seconds - made[0].created_at.seconds == 1800


async def test_a_released_key_stays_used(room: SandboxRoom) -> None:
    sandbox = await room.create("one")
    assert await room.release(sandbox.sandbox_id)
    assert not await room.release(sandbox.sandbox_id)
    with pytest.raises(FairleadError) as caught:
        await room.create("one")
    assert caught.value.reason == "sandbox_released"


async def test_a_release_during_the_create_wins(room: SandboxRoom) -> None:
    outcomes = []
    for attempt in range(20):
        key = f"key-{attempt}"
        creating = asyncio.create_task(room.create(key))
        await asyncio.sleep(attempt * 0.0007)
        await room.release(key=key)
        try:
            await creating
            outcomes.append("created first")
        except FairleadError as error:
            outcomes.append(error.reason)
        with pytest.raises(FairleadError) as caught:
            await room.create(key)
        assert caught.value.reason == "sandbox_released"
    assert set(outcomes) <= {"created first", "sandbox_released"}
    assert await listed(room) == []
    assert list((room.host_root / "sandboxes" / "private").glob("*")) == []


async def test_limits_that_are_held_are_reported(room: SandboxRoom) -> None:
    limits = sandbox_pb2.Limits(memory_bytes=1 << 30, open_files=256, file_bytes=8192, processes=64)
    sandbox = await room.create(isolation="process", limits=limits)
    assert sandbox.limits.memory_bytes == 1 << 30
    # Root's processes are counted by a cgroup only, and with one memory is no address space.
    assert sandbox.limits.processes in ((0, 64) if os.geteuid() == 0 else (64,))
    seen = await room.run(sandbox.sandbox_id, "sh", "-c", "ulimit -v; ulimit -n; ulimit -c")
    memory, *others = seen.stdout.splitlines()
    assert memory in (b"1048576", b"unlimited")
    assert others == [b"256", b"0"]
    too_large = await room.run(sandbox.sandbox_id, "sh", "-c", "head -c 9000 /dev/zero > file")
    assert too_large.exit.code != 0


@pytest.mark.parametrize(
    ("isolation", "reason"), [("microvm", "isolation_unavailable"), ("vm", "isolation_unknown")]
)
async def test_isolation_that_is_not_there(room: SandboxRoom, isolation: str, reason: str) -> None:
    with pytest.raises(FairleadError) as caught:
        await room.create(isolation=isolation)
    assert caught.value.reason == reason
    assert "process" in caught.value.message + caught.value.remedy
    assert (await room.create(isolation="process")).isolation == "process"


async def test_a_sandbox_has_one_workspace(room: SandboxRoom) -> None:
    sandbox = await room.bound()
    again = await room.bind(sandbox.sandbox_id, sandbox.workspace_id)
    assert again.workspace_id == sandbox.workspace_id
    other = random_id("wsp")
    room.tree(other).mkdir()
    with pytest.raises(FairleadError) as caught:
        await room.bind(sandbox.sandbox_id, other)
    assert caught.value.reason == "sandbox_bound"


@pytest.mark.parametrize("workspace_id", ["", "../x", "wsp_" + "a" * 26, "/etc"])
async def test_only_real_workspaces_are_bound(room: SandboxRoom, workspace_id: str) -> None:
    sandbox = await room.create()
    with pytest.raises(FairleadError) as caught:
        await room.bind(sandbox.sandbox_id, workspace_id)
    assert caught.value.reason == "workspace_not_found"


async def test_a_link_is_no_workspace(room: SandboxRoom) -> None:
    sandbox = await room.create()
    workspace_id = random_id("wsp")
    room.tree(workspace_id).parent.mkdir()
    room.tree(workspace_id).symlink_to("/etc")
    with pytest.raises(FairleadError) as caught:
        await room.bind(sandbox.sandbox_id, workspace_id)
    assert caught.value.reason == "workspace_not_found"


async def test_pages_of_sandboxes(room: SandboxRoom) -> None:
    made = sorted([(await room.create()).sandbox_id for _ in range(5)])
    assert await listed(room, page_size=2) == made
    with neighbour_errors("worker"):
        one = await room.sandboxes.GetSandbox(
            sandbox_pb2.GetSandboxRequest(tenant=TENANT, sandbox_id=made[0])
        )
    assert one.sandbox.sandbox_id == made[0]


async def test_another_tenant_sees_nothing(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, "sleep", "60")
    with pytest.raises(FairleadError) as caught, neighbour_errors("worker"):
        await room.sandboxes.GetSandbox(
            sandbox_pb2.GetSandboxRequest(tenant="other", sandbox_id=sandbox.sandbox_id)
        )
    assert caught.value.reason == "sandbox_not_found"
    with pytest.raises(FairleadError) as caught, neighbour_errors("worker"):
        await room.executions.GetExecution(
            execution_pb2.GetExecutionRequest(tenant="other", execution_id=execution.execution_id)
        )
    assert caught.value.reason == "execution_not_found"
    with neighbour_errors("worker"):
        answer = await room.sandboxes.ReleaseSandbox(
            sandbox_pb2.ReleaseSandboxRequest(tenant="other", sandbox_id=sandbox.sandbox_id)
        )
    assert not answer.released
    assert await listed(room) == [sandbox.sandbox_id]


async def test_a_lease_is_bounded_and_renewed(room: SandboxRoom) -> None:
    sandbox = await room.create()
    request = sandbox_pb2.RenewSandboxRequest(tenant=TENANT, sandbox_id=sandbox.sandbox_id)
    request.lease.FromSeconds(7200)
    with neighbour_errors("worker"):
        renewed = await room.sandboxes.RenewSandbox(request)
    assert 7190 < renewed.sandbox.expires_at.seconds - sandbox.created_at.seconds < 7210
    request.lease.FromSeconds(24 * 3600 + 1)
    with pytest.raises(FairleadError) as caught, neighbour_errors("worker"):
        await room.sandboxes.RenewSandbox(request)
    assert caught.value.reason == "lease_invalid"


async def test_a_lease_ends(room: SandboxRoom) -> None:
    request = sandbox_pb2.CreateSandboxRequest(tenant=TENANT, idempotency_key="short")
    request.lease.FromSeconds(3)
    with neighbour_errors("worker"):
        sandbox = (await room.sandboxes.CreateSandbox(request)).sandbox
    execution = await room.start(sandbox.sandbox_id, "sleep", "60")
    output = await room.output(execution.execution_id)
    assert output.exit.reason == execution_pb2.EXIT_REASON_RELEASED
    await eventually(lambda: listed(room), lambda found: found == [])


async def test_a_full_host_says_so(tmp_path: Path, sockets: Path) -> None:
    async with room_in_process(room_settings(tmp_path, sockets, most_sandboxes=2)) as room:
        first, _ = await room.create(), await room.create()
        with pytest.raises(FairleadError) as caught:
            await room.create()
        assert caught.value.reason == "host_full"
        await room.release(first.sandbox_id)
        await room.create()


async def test_many_sandboxes_at_once(room: SandboxRoom) -> None:
    made = await asyncio.gather(*(room.create() for _ in range(40)))
    outputs = await asyncio.gather(
        *(room.run(sandbox.sandbox_id, "printf", "%s", sandbox.sandbox_id) for sandbox in made)
    )
    assert [output.stdout.decode() for output in outputs] == [each.sandbox_id for each in made]
    await asyncio.gather(*(room.release(sandbox.sandbox_id) for sandbox in made))
    assert await listed(room) == []


async def listed(room: SandboxRoom, page_size: int = 0) -> list[str]:
    """The ids of all sandboxes, page by page."""
    found: list[str] = []
    token = ""
    while True:
        page = await room.sandboxes.ListSandboxes(
            sandbox_pb2.ListSandboxesRequest(tenant=TENANT, page_size=page_size, page_token=token)
        )
        found.extend(sandbox.sandbox_id for sandbox in page.sandboxes)
        token = page.next_page_token
        if not token:
            return found
