"""Sandboxes from the caller's side: keys, hosts, workspaces, tenants, and those of launches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from chassis.errors import (
    AlreadyExists,
    FailedPrecondition,
    FairleadError,
    InvalidArgument,
    Unavailable,
)
from signalling.launch_errors import Draining, IsolationUnavailable, NoHost, SandboxNotFound
from signalling.reach import Reach
from signalling.sandbox import Limits, NetworkMode, NetworkPolicy, SandboxOrder
from signalling.sandbox_errors import HostMismatch, HostNotFound, ProfileUnknown, SandboxInUse
from signalling.sandbox_keeper import SandboxKeeper
from signalling.workspace_errors import WorkspaceNotFound
from tests.fakes.clock import START
from tests.fakes.mesh import HOST, OTHER_HOST
from tests.fakes.sandbox_room import SandboxRoom
from tests.fakes.sessions import MEETING, FakeReachedLaunches, held_launch
from tests.fakes.workspace_room import COMMIT, TENANT, WorkspaceRoom

pytestmark = pytest.mark.asyncio
UNKNOWN = "sbx_" + "a" * 26


@pytest.fixture
def room() -> SandboxRoom:
    return SandboxRoom(workspaces=WorkspaceRoom(known={COMMIT}))


async def test_the_same_key_gives_the_same_sandbox(room: SandboxRoom) -> None:
    first = await room.make("one", isolation="process")
    assert await room.make("one", isolation="process") == first
    assert (await room.make("two")).sandbox_id != first.sandbox_id
    with pytest.raises(AlreadyExists) as refused:
        await room.make("one", isolation="process", profile="default")
    assert refused.value.reason == "idempotency_conflict"


async def test_what_is_asked_for_reaches_the_host(room: SandboxRoom) -> None:
    network = NetworkPolicy(NetworkMode.EGRESS, ("pypi.org",))
    made = await room.make(limits=Limits(processes=9), network=network, lease=timedelta(seconds=60))
    (order,) = room.worker.orders.values()
    assert (order.limits, order.network, order.lease) == (
        Limits(processes=9),
        network,
        timedelta(seconds=60),
    )
    assert order.launch_id == ""
    assert made.walls
    assert made.network == network


async def test_a_key_never_names_what_a_launch_made(room: SandboxRoom) -> None:
    launch_id = "lch_" + "a" * 26
    await room.make(launch_id)
    assert (TENANT, launch_id) not in room.worker.held
    assert await room.keeper.release_key(TENANT, launch_id)
    assert not room.worker.held


async def test_a_key_stays_with_its_host_whatever_the_load(room: SandboxRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    first = await room.make("one")
    busy = replace(room.hosts.hosts[first.host_id], sandboxes=9, capacity=10)
    room.hosts.hosts[first.host_id] = busy
    assert await room.make("one") == first
    assert await room.replica().create(TENANT, SandboxOrder(key="one")) == first


async def test_a_workspace_decides_where_and_is_bound(room: SandboxRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = replace(OTHER_HOST, sandboxes=8, capacity=10)
    workspace = await room.workspaces.make()
    room.hosts.hosts[HOST.host_id] = replace(HOST, sandboxes=9, capacity=10)
    made = await room.make(workspace_id=workspace.workspace_id)
    assert (made.host_id, made.workspace_id) == (HOST.host_id, workspace.workspace_id)
    with pytest.raises(HostMismatch):
        await room.make("two", workspace_id=workspace.workspace_id, host_id=OTHER_HOST.host_id)
    with pytest.raises(WorkspaceNotFound):
        await room.make("three", workspace_id="wsp_" + "a" * 26)
    await room.workspaces.keeper.release(TENANT, workspace.workspace_id, force=True)
    with pytest.raises(WorkspaceNotFound):
        await room.make("four", workspace_id=workspace.workspace_id)
    with pytest.raises(WorkspaceNotFound):
        await room.make("five", tenant="other", workspace_id=workspace.workspace_id)


async def test_a_host_may_be_named(room: SandboxRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = replace(OTHER_HOST, sandboxes=8, capacity=10)
    assert (await room.make(host_id=OTHER_HOST.host_id)).host_id == OTHER_HOST.host_id
    with pytest.raises(HostNotFound):
        await room.make("two", host_id="hst_" + "c" * 26)


async def test_what_no_host_has_is_refused_by_name(room: SandboxRoom) -> None:
    room.hosts.hosts[HOST.host_id] = replace(HOST, profiles=("default", "ci"))
    with pytest.raises(IsolationUnavailable):
        await room.make(isolation="walled")
    with pytest.raises(ProfileUnknown, match="No host") as refused:
        await room.make(profile="large")
    assert "ci, default" in refused.value.remedy
    assert (await room.make(profile="ci")).profile == "ci"
    room.hosts.hosts.clear()
    with pytest.raises(NoHost):
        await room.make("two")


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (SandboxOrder(key="k", isolation="No"), "isolation"),
        (SandboxOrder(key="k", profile="a b"), "profile"),
        (SandboxOrder(key="k", limits=Limits(processes=2**31)), "limits.processes"),
        (SandboxOrder(key="k", limits=Limits(memory_bytes=-1)), "limits.memory_bytes"),
        (SandboxOrder(key="k", limits=Limits(wall_time=float("inf"))), "limits.wall_time"),
        (SandboxOrder(key="k", lease=timedelta(hours=25)), "lease"),
        (
            SandboxOrder(key="k", network=NetworkPolicy(NetworkMode.NONE, ("a",))),
            "network.allow",
        ),
        (
            SandboxOrder(key="k", network=NetworkPolicy(NetworkMode.EGRESS, ("a",) * 257)),
            "network.allow",
        ),
    ],
)
async def test_orders_that_cannot_be(room: SandboxRoom, order: SandboxOrder, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await room.keeper.create(TENANT, order)
    assert refused.value.fields["field"] == field
    assert not room.worker.orders


async def test_pages_over_all_hosts(room: SandboxRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    made = [
        await room.make(f"{number}", host_id=host.host_id)
        for number, host in enumerate((HOST, OTHER_HOST, HOST, OTHER_HOST, HOST))
    ]
    await room.make("foreign", tenant="other")
    ids = sorted(each.sandbox_id for each in made)
    first, token, _ = await room.keeper.list(TENANT, 3, "")
    rest, end, silent = await room.keeper.list(TENANT, 3, token)
    assert [each.sandbox_id for each in (*first, *rest)] == ids
    assert (end, silent) == ("", [])


Call = Callable[[SandboxKeeper, str, str], Awaitable[object]]
CALLS: dict[str, Call] = {
    "get": lambda keeper, tenant, name: keeper.get(tenant, name),
    "renew": lambda keeper, tenant, name: keeper.renew(tenant, name, None),
    "release": lambda keeper, tenant, name: keeper.release(tenant, name),
    "place": lambda keeper, tenant, name: keeper.place(tenant, name),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_foreign_sandbox_does_not_exist(room: SandboxRoom, call: Call) -> None:
    made = await room.make()
    await room.workspaces.settle()
    for tenant, name in (("other", made.sandbox_id), (TENANT, UNKNOWN), (TENANT, "../x")):
        with pytest.raises(SandboxNotFound):
            await call(room.replica(), tenant, name)
    assert list(room.worker.held.values()) == [made]


async def test_a_lost_directory_costs_a_question_and_no_sandbox(room: SandboxRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    made = await room.make()
    await room.workspaces.settle()
    room.directory.places.clear()
    room.faults.refuse("directory:before", Unavailable("Away.", reason="redis_unavailable"))
    assert await room.replica().get(TENANT, made.sandbox_id) == made


async def test_renewing_and_releasing(room: SandboxRoom) -> None:
    made = await room.make()
    renewed = await room.keeper.renew(TENANT, made.sandbox_id, timedelta(hours=2))
    assert renewed.expires_at == room.workspaces.clock.now() + timedelta(hours=2)
    assert renewed.expires_at > START
    assert await room.keeper.release(TENANT, made.sandbox_id)
    with pytest.raises(SandboxNotFound):
        await room.keeper.release(TENANT, made.sandbox_id)
    with pytest.raises(FairleadError) as gone:
        await room.make()
    assert gone.value.reason == "sandbox_released"


async def test_sessions_reach_a_sandbox_and_end_with_it(room: SandboxRoom) -> None:
    made = await room.make()
    launches = FakeReachedLaunches()
    reach = Reach(launches=launches, sandboxes=room.keeper)  # type: ignore[arg-type]
    assert (await reach.reached(TENANT, made.sandbox_id)).held
    await reach.open_port(TENANT, made.sandbox_id, 8080, MEETING)
    assert room.worker.opened == [(made.sandbox_id, 8080, MEETING)]
    for tenant, name in (("other", made.sandbox_id), (TENANT, UNKNOWN)):
        with pytest.raises(SandboxNotFound):
            await reach.reached(tenant, name)
        with pytest.raises(SandboxNotFound):
            await reach.open_port(tenant, name, 8080, MEETING)
    launch = held_launch()
    launches.put(TENANT, launch)
    assert (await reach.reached(TENANT, launch.launch_id)).held
    await reach.open_port(TENANT, launch.launch_id, 80, MEETING)
    assert launches.opened == [(launch.launch_id, 80, MEETING)]
    assert not await reach.is_gone(TENANT, made.sandbox_id)
    room.channels.open[made.sandbox_id] = "ses"
    await room.keeper.release(TENANT, made.sandbox_id)
    assert room.channels.open == {}
    assert await reach.is_gone(TENANT, made.sandbox_id)


async def test_what_a_launch_leads_to_is_gone_with_it_or_with_its_sandbox(
    room: SandboxRoom,
) -> None:
    made, launches = await room.make(), FakeReachedLaunches()
    reach = Reach(launches=launches, sandboxes=room.keeper)  # type: ignore[arg-type]
    held = replace(held_launch(), sandbox_id=made.sandbox_id)
    for launch, is_gone in (
        (held, False),
        (replace(held, sandbox_id=""), False),
        (replace(held, released_at=START), True),
        (replace(held, sandbox_id=UNKNOWN), True),
    ):
        launches.put(TENANT, launch)
        assert await reach.is_gone(TENANT, launch.launch_id) is is_gone
    room.faults.refuse("sandboxes.get:before", Unavailable("Away.", reason="host_away"))
    launches.put(TENANT, held)
    with pytest.raises(Unavailable):
        await reach.is_gone(TENANT, held.launch_id)


async def test_two_releases_at_once_both_hear_that_it_is_gone(room: SandboxRoom) -> None:
    made = await room.make()
    gate = room.faults.hold("sandboxes.release:before")
    releasing = [
        asyncio.ensure_future(room.keeper.release(TENANT, made.sandbox_id)) for _ in range(2)
    ]
    await asyncio.sleep(0)
    gate.set()
    assert sorted(await asyncio.gather(*releasing)) == [False, True]


async def test_a_launchs_sandbox_goes_with_the_launch(room: SandboxRoom) -> None:
    made = await room.worker.create(
        HOST, tenant=TENANT, order=SandboxOrder(key="lch_x", launch_id="lch_x")
    )
    for call in (
        room.keeper.release(TENANT, made.sandbox_id),
        room.keeper.renew(TENANT, made.sandbox_id, None),
    ):
        with pytest.raises(SandboxInUse) as refused:
            await call
        assert refused.value.fields["launch_id"] == "lch_x"
    assert (await room.keeper.get(TENANT, made.sandbox_id)).launch_id == "lch_x"


async def test_a_failed_bind_is_told_and_the_key_may_be_used_again(room: SandboxRoom) -> None:
    refusal = FailedPrecondition("It cannot.", reason="workspace_not_mounted")
    room.faults.refuse("sandboxes.create:before", refusal, once=True)
    with pytest.raises(FailedPrecondition, match="It cannot"):
        await room.make()
    assert (await room.make()).sandbox_id


async def test_a_draining_front_door_makes_none(room: SandboxRoom) -> None:
    room.keeper.drain()
    with pytest.raises(Draining):
        await room.make()
