"""Workspaces from the caller's side: keys, hosts, tenants, and a directory that forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from chassis.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Unavailable
from chassis.limits import LimitBroken
from signalling.launch_errors import Draining, NoHost
from signalling.snapshot import Commits, MissReason, Source, Tip, Upstream
from signalling.workspace import OpenMiss, WorkspaceState
from signalling.workspace_errors import HostAway, PageTokenInvalid, WorkspaceNotFound
from signalling.workspace_keeper import WorkspaceKeeper
from tests.fakes.mesh import HOST, OTHER_HOST
from tests.fakes.workspace_room import COMMIT, SOURCE, TENANT, WorkspaceRoom, fork, order

pytestmark = pytest.mark.asyncio
UNKNOWN = "wsp_" + "a" * 26


@pytest.fixture
def room() -> WorkspaceRoom:
    return WorkspaceRoom(known={COMMIT})


def away(room: WorkspaceRoom, point: str = "directory:before") -> None:
    room.faults.refuse(point, Unavailable("Away.", reason="redis_unavailable"))


async def test_the_same_key_gives_the_same_workspace(room: WorkspaceRoom) -> None:
    first = await room.make("one", name="fix")
    assert await room.make("one", name="fix") == first
    assert (await room.make("two")).workspace_id != first.workspace_id
    with pytest.raises(AlreadyExists) as refused:
        await room.make("one", name="other")
    assert refused.value.reason == "idempotency_conflict"


async def test_a_key_never_names_what_a_launch_made(room: WorkspaceRoom) -> None:
    launch_id = "lch_" + "a" * 26
    made = await room.make(launch_id)
    assert (TENANT, launch_id) not in room.workspaces.held
    assert await room.keeper.release_key(TENANT, launch_id)
    assert (await room.keeper.get(TENANT, made.workspace_id)).state is WorkspaceState.RELEASED


async def test_two_at_once_with_one_key_get_one_workspace(room: WorkspaceRoom) -> None:
    made = await asyncio.gather(*(room.make("one") for _ in range(8)))
    assert len({each.workspace_id for each in made}) == 1
    assert len(room.workspaces.held) == 1


async def test_a_key_stays_with_its_host_whatever_the_load(room: WorkspaceRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    first = await room.make("one")
    room.hosts.hosts[first.host_id] = replace(
        room.hosts.hosts[first.host_id], sandboxes=9, capacity=10
    )
    assert await room.make("one") == first
    assert await room.replica().materialize(TENANT, order("one")) == first


async def test_a_key_stays_with_its_host_while_redis_is_away(room: WorkspaceRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    away(room)
    first = await room.make("one")
    room.hosts.hosts[first.host_id] = replace(
        room.hosts.hosts[first.host_id], sandboxes=9, capacity=10
    )
    assert await room.make("one") == first


async def test_a_lost_directory_costs_a_question_and_no_workspace(room: WorkspaceRoom) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    made = await room.make("one")
    await room.settle()
    room.directory.places.clear()
    room.directory.keys.clear()
    assert await room.replica().get(TENANT, made.workspace_id) == made
    await room.settle()
    assert room.directory.places[TENANT, made.workspace_id] == made.host_id
    away(room)
    assert await room.replica().get(TENANT, made.workspace_id) == made


async def test_the_only_host_is_not_waited_for_by_way_of_redis(room: WorkspaceRoom) -> None:
    gate = room.faults.hold("directory:before")
    made = await room.make("one")
    gate.set()
    await room.settle()
    assert list(room.directory.keys.values()) == [made.host_id]
    assert list(room.directory.places.values()) == [made.host_id]
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    room.hosts.hosts[HOST.host_id] = replace(HOST, sandboxes=9, capacity=10)
    assert await room.replica().materialize(TENANT, order("one")) == made


async def test_it_is_not_missing_as_long_as_a_host_could_have_it(room: WorkspaceRoom) -> None:
    room.faults.refuse("workspaces.get:before", Unavailable("Away.", reason="host_unavailable"))
    with pytest.raises(Unavailable, match="Away"):
        await room.keeper.get(TENANT, UNKNOWN)


async def test_a_host_that_left_is_said_to_be_away(room: WorkspaceRoom) -> None:
    made = await room.make()
    await room.settle()
    room.hosts.hosts.clear()
    with pytest.raises(HostAway):
        await room.keeper.get(TENANT, made.workspace_id)
    with pytest.raises(NoHost):
        await room.make("other")


Call = Callable[[WorkspaceKeeper, str, str], Awaitable[object]]
CALLS: dict[str, Call] = {
    "get": lambda keeper, tenant, name: keeper.get(tenant, name),
    "fork": lambda keeper, tenant, name: keeper.fork(tenant, name, fork()),
    "rename": lambda keeper, tenant, name: keeper.rename(tenant, name, "mine"),
    "renew": lambda keeper, tenant, name: keeper.renew(tenant, name, None),
    "release": lambda keeper, tenant, name: keeper.release(tenant, name, force=True),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_foreign_workspace_does_not_exist(room: WorkspaceRoom, call: Call) -> None:
    made = await room.make()
    before = dict(room.workspaces.held)
    for tenant, name in (("other", made.workspace_id), (TENANT, UNKNOWN), (TENANT, "../x")):
        with pytest.raises(WorkspaceNotFound):
            await call(room.keeper, tenant, name)
    assert room.workspaces.held == before


async def test_a_miss_carries_the_tips_and_a_token(room: WorkspaceRoom) -> None:
    missed = await room.keeper.materialize(TENANT, order(source=replace(SOURCE, commit="d" * 40)))
    assert isinstance(missed, OpenMiss)
    assert missed.miss.reason is MissReason.UNKNOWN_COMMIT
    assert missed.miss.wanted == ("d" * 40,)
    assert missed.miss.tips == (COMMIT,)
    assert missed.expires_at == room.clock.now() + timedelta(seconds=120)


async def test_a_claimed_name_or_branch_is_refused_with_the_hosts_reason(
    room: WorkspaceRoom,
) -> None:
    winner = await room.make("one", name="fix", branch="x", claim_branch=True)
    claims: dict[str, dict[str, object]] = {
        "workspace_exists": {"name": "fix"},
        "branch_in_use": {"branch": "x", "claim_branch": True},
    }
    for reason, fields in claims.items():
        with pytest.raises(AlreadyExists) as refused:
            await room.keeper.materialize(TENANT, order("two", **fields))
        assert refused.value.reason == reason
        assert refused.value.remedy
    assert await room.keeper.get(TENANT, winner.workspace_id) == winner
    assert (await room.make("three", branch="x")).branch == "x"
    assert (await room.make("four", tenant="other", name="fix")).name == "fix"


async def test_a_fork_is_another_workspace_with_its_own_names(room: WorkspaceRoom) -> None:
    made = await room.make(name="fix")
    copy = await room.keeper.fork(TENANT, made.workspace_id, fork(name="copy", branch="try-2"))
    assert (copy.name, copy.branch, copy.commit) == ("copy", "try-2", made.commit)
    assert copy.workspace_id != made.workspace_id
    again = await room.keeper.fork(TENANT, made.workspace_id, fork(name="copy", branch="try-2"))
    assert again == copy
    with pytest.raises(AlreadyExists, match="It is there"):
        await room.keeper.fork(TENANT, made.workspace_id, fork("two", name="fix"))


async def test_a_rename_claims_the_new_name(room: WorkspaceRoom) -> None:
    made, other = await room.make("one", name="fix"), await room.make("two", name="other")
    renamed = await room.keeper.rename(TENANT, made.workspace_id, "done")
    assert (renamed.name, renamed.workspace_id) == ("done", made.workspace_id)
    with pytest.raises(AlreadyExists):
        await room.keeper.rename(TENANT, made.workspace_id, other.name)
    assert (await room.keeper.rename(TENANT, made.workspace_id, "")).name == ""


@pytest.mark.parametrize("reason", ["workspace_dirty", "workspace_unpushed"])
async def test_work_is_only_lost_when_it_is_forced(room: WorkspaceRoom, reason: str) -> None:
    made = await room.make()
    losing = room.workspaces.dirty if "dirty" in reason else room.workspaces.unpushed
    losing.add(made.workspace_id)
    with pytest.raises(FailedPrecondition) as refused:
        await room.keeper.release(TENANT, made.workspace_id, force=False)
    assert refused.value.reason == reason
    assert await room.keeper.get(TENANT, made.workspace_id) == made
    assert await room.keeper.release(TENANT, made.workspace_id, force=True)


async def test_a_launchs_workspace_is_only_taken_away_when_it_is_forced(
    room: WorkspaceRoom,
) -> None:
    made = await room.make()
    room.users[TENANT, made.workspace_id] = "lch_1"
    with pytest.raises(FailedPrecondition) as refused:
        await room.keeper.release(TENANT, made.workspace_id, force=False)
    assert refused.value.reason == "workspace_in_use"
    assert refused.value.fields["launch_id"] == "lch_1"
    assert (await room.keeper.get(TENANT, made.workspace_id)).state is WorkspaceState.PROVISIONED
    assert await room.keeper.release(TENANT, made.workspace_id, force=True)


async def test_a_second_release_changes_nothing(room: WorkspaceRoom) -> None:
    made = await room.make()
    assert await room.keeper.release(TENANT, made.workspace_id, force=False)
    assert not await room.keeper.release(TENANT, made.workspace_id, force=False)
    with pytest.raises(FailedPrecondition) as late:
        await room.make()
    assert late.value.reason == "workspace_released"


async def test_a_key_is_released_on_every_host_when_nobody_knows_where_it_is(
    room: WorkspaceRoom,
) -> None:
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    made = await room.make("one")
    room.directory.keys.clear()
    assert await room.replica().release_key(TENANT, "one")
    assert (await room.keeper.get(TENANT, made.workspace_id)).state is WorkspaceState.RELEASED
    assert not await room.replica().release_key(TENANT, "never")


async def test_lists_of_all_hosts_come_in_one_order_and_in_pages(room: WorkspaceRoom) -> None:
    made = {(await room.make(f"{number}")).workspace_id for number in range(5)}
    room.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
    room.hosts.hosts[HOST.host_id] = replace(HOST, draining=True)
    made |= {(await room.make(f"more {number}")).workspace_id for number in range(5)}
    await room.make("foreign", tenant="other")
    seen: list[str] = []
    token = ""
    while True:
        page, token, unanswered = await room.keeper.list(TENANT, 3, token)
        assert unanswered == []
        seen += [each.workspace_id for each in page]
        if not token:
            break
        assert len(page) == 3
    assert seen == sorted(made)
    assert len((await room.keeper.list(TENANT, 0, ""))[0]) == 10


async def test_a_list_names_the_hosts_that_did_not_answer(room: WorkspaceRoom) -> None:
    await room.make("here")
    room.hosts.hosts = {OTHER_HOST.host_id: OTHER_HOST}
    there = await room.make("there")
    room.hosts.hosts = {HOST.host_id: HOST, OTHER_HOST.host_id: OTHER_HOST}
    gone = Unavailable("Away.", reason="workspace_provisioner_unavailable")
    room.faults.refuse("workspaces.list:before", gone, once=True)
    assert await room.keeper.list(TENANT, 0, "") == ([there], "", [HOST.host_id])
    found, _, unanswered = await room.keeper.list(TENANT, 0, "")
    assert (len(found), unanswered) == (2, [])
    wrong = InvalidArgument("No.", reason="wrong")
    room.faults.refuse("workspaces.list:before", wrong, once=True)
    with pytest.raises(InvalidArgument):
        await room.keeper.list(TENANT, 0, "")


async def test_a_list_that_no_host_answers_is_refused(room: WorkspaceRoom) -> None:
    away(room, "workspaces.list:before")
    with pytest.raises(Unavailable):
        await room.keeper.list(TENANT, 0, "")
    with pytest.raises(LimitBroken):
        await room.keeper.list(TENANT, 101, "")
    with pytest.raises(PageTokenInvalid):
        await room.keeper.list(TENANT, 0, "nonsense")


BAD: dict[str, dict[str, object]] = {
    "idempotency_key_invalid": {"key": "\n"},
    "commit_invalid": {"source": replace(SOURCE, commit="HEAD")},
    "branch_invalid": {"branch": "a..b"},
    "lease_invalid": {"lease": timedelta(days=2)},
    "name_invalid": {"name": "a\0b"},
    "origin_invalid": {"source": replace(SOURCE, upstream=Upstream("file:///etc", "main"))},
    "max_age_invalid": {
        "source": replace(SOURCE, upstream=Upstream("https://h/r", "main", timedelta(days=2)))
    },
    "tip_invalid": {"source": replace(SOURCE, commits=Commits(("HEAD",), b""))},
    "too_many_tips": {"source": replace(SOURCE, commits=Commits(("c" * 40,) * 65, b""))},
    "tag_invalid": {"source": replace(SOURCE, tags=(Tip("refs/heads/x", "c" * 40),))},
    "too_many_tags": {"source": replace(SOURCE, tags=(Tip("refs/tags/x", "c" * 40),) * 257)},
    "commits_too_large": {"source": replace(SOURCE, commits=Commits((), b"x" * 262145))},
    "noticed_invalid": {"source": replace(SOURCE, noticed=(MissReason.NO_BASE,))},
}


@pytest.mark.parametrize(("reason", "fields"), BAD.items(), ids=BAD)
async def test_what_no_host_could_take_is_refused_before_any_is_asked(
    room: WorkspaceRoom, reason: str, fields: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await room.keeper.materialize(TENANT, order(**{"key": "one", **fields}))  # type: ignore[arg-type]
    assert refused.value.reason == reason
    assert room.faults.passed == []


async def test_a_branch_is_only_claimed_by_its_name(room: WorkspaceRoom) -> None:
    with pytest.raises(InvalidArgument):
        await room.make(claim_branch=True)
    with pytest.raises(InvalidArgument) as refused:
        await room.make(name="-x")
    assert refused.value.reason == "name_invalid"


async def test_commits_that_ride_along_reach_the_host(room: WorkspaceRoom) -> None:
    commits = Commits(("d" * 40,), b"PACK")
    await room.make(source=replace(SOURCE, commits=commits, noticed=()))
    asked = next(iter(room.workspaces.orders.values()))
    assert getattr(asked, "source", Source("", "")).commits == commits


async def test_a_draining_front_door_makes_nothing_and_still_gives_back(
    room: WorkspaceRoom,
) -> None:
    made = await room.make()
    room.keeper.drain()
    with pytest.raises(Draining):
        await room.make("two")
    with pytest.raises(Draining):
        await room.keeper.fork(TENANT, made.workspace_id, fork())
    assert await room.keeper.release(TENANT, made.workspace_id, force=False)


async def test_a_renewal_moves_the_end(room: WorkspaceRoom) -> None:
    made = await room.make()
    renewed = await room.keeper.renew(TENANT, made.workspace_id, timedelta(hours=2))
    assert renewed.expires_at - made.created_at == timedelta(hours=2)
    default = await room.keeper.renew(TENANT, made.workspace_id, None)
    assert default.expires_at - made.created_at == timedelta(minutes=30)
    with pytest.raises(InvalidArgument):
        await room.keeper.renew(TENANT, made.workspace_id, timedelta(0))
