"""Names and branches: claimed before anything is touched, lost without harm to the winner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.limits import LimitBroken
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_room
from workspace_provisioner.disk.file_disk import FileDisk
from workspace_provisioner.names import Claim, ClaimKind
from workspace_provisioner.sources import Source
from workspace_provisioner.workspace_errors import BranchInUse, WorkspaceExists
from workspace_provisioner.workspaces import Miss, State, Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("file", b"content\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        await opened.upload(client)
        yield opened


class WatchedDisk(FileDisk):
    """Tells of each file that was removed, before anything else happens."""

    def __init__(self) -> None:
        self.after_remove: Callable[[], None] = lambda: None

    def remove(self, path: Path) -> bool:
        removed = super().remove(path)
        self.after_remove()
        return removed


async def create(
    room: ProvisionerRoom,
    key: str,
    source: Source,
    *,
    name: str = "",
    branch: str = "",
    overlay: bool = False,
) -> Workspace | Miss:
    return await room.provisioner.materialize(
        idempotency_key=key,
        source=source,
        branch=branch,
        lease=LEASE,
        name=name,
        claims_branch=bool(branch),
        overlay=overlay,
    )


async def made(
    room: ProvisionerRoom, key: str, source: Source, *, name: str = "", branch: str = ""
) -> Workspace:
    found = await create(room, key, source, name=name, branch=branch)
    assert isinstance(found, Workspace), found
    return found


def claims(room: ProvisionerRoom) -> int:
    return sum(path.is_file() for path in room.layout.names.rglob("*"))


@pytest.mark.parametrize("overlay", [False, True])
async def test_twenty_creates_of_one_name_have_one_winner_whose_files_stay(
    room: ProvisionerRoom, client: GitClient, overlay: bool
) -> None:
    first = asyncio.create_task(
        create(room, "0", client.source(), name="one", branch="b", overlay=overlay)
    )
    others = [
        asyncio.create_task(
            create(room, str(number), client.source(), name="one", branch="b", overlay=overlay)
        )
        for number in range(1, 20)
    ]
    outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    winners = [each for each in outcomes if isinstance(each, Workspace)]
    losers = [each for each in outcomes if not isinstance(each, Workspace)]
    assert len(winners) == 1
    assert {type(each) for each in losers} == {WorkspaceExists}
    (winner,) = winners
    precious = room.layout.trees / winner.workspace_id / "uncommitted"
    precious.write_bytes(b"uncommitted")
    again = await asyncio.gather(
        *(create(room, f"again {number}", client.source(), name="one") for number in range(20)),
        return_exceptions=True,
    )
    assert {type(each) for each in again} == {WorkspaceExists}
    assert precious.read_bytes() == b"uncommitted"
    assert [path.name for path in room.layout.trees.iterdir()] == [winner.workspace_id]
    assert (await room.provisioner.get("ada", winner.workspace_id)).state is State.PROVISIONED
    assert claims(room) == 2


async def test_a_branch_with_a_unique_commit_survives_a_create_of_its_name(
    room: ProvisionerRoom, client: GitClient
) -> None:
    first = await made(room, "1", client.source(), branch="precious")
    path = room.layout.trees / first.workspace_id
    run_git(path, "commit", "-q", "--allow-empty", "-m", "only here")
    head = run_git(path, "rev-parse", "precious")
    with pytest.raises(BranchInUse):
        await made(room, "2", client.source(), branch="precious")
    # Without a claim the branch is the new workspace's own, in its own git directory.
    other, theirs = await room.make("3", client.source(), branch="precious")
    assert not other.claims_branch
    assert run_git(theirs, "rev-parse", "precious").decode().strip() == client.head()
    assert run_git(path, "rev-parse", "precious") == head


async def test_a_name_is_free_for_other_projects_and_tenants(
    room: ProvisionerRoom, client: GitClient
) -> None:
    for tenant, project in (("ada", "project"), ("ada", "other"), ("bob", "project")):
        source = client.source(tenant=tenant, project=project)
        await room.upload(client, source)
        await made(room, tenant + project, source, name="one", branch="b")
    assert claims(room) == 6


async def test_a_release_frees_name_and_branch(room: ProvisionerRoom, client: GitClient) -> None:
    first = await made(room, "1", client.source(), name="one", branch="b")
    await room.provisioner.release("ada", workspace_id=first.workspace_id)
    assert claims(room) == 0
    second = await made(room, "2", client.source(), name="one", branch="b")
    # The loser's late clearing up takes nothing of who has the name now.
    await room.provisioner.release("ada", workspace_id=first.workspace_id)
    assert claims(room) == 2
    assert (room.layout.trees / second.workspace_id).exists()


async def test_what_was_not_made_claims_nothing(room: ProvisionerRoom, client: GitClient) -> None:
    client.commit("not uploaded")
    assert isinstance(await create(room, "1", client.source(), name="one", branch="b"), Miss)
    assert claims(room) == 0
    client.git("reset", "-q", "--hard", "HEAD~1")
    await made(room, "2", client.source(), name="one", branch="b")


@pytest.mark.parametrize(
    "name", ["A", "a/b", "..", ".a", "-a", "a b", "ä", "a" * 65, "a\n", "a\0", "~", "a:b"]
)
async def test_a_bad_name_is_refused_before_anything(
    room: ProvisionerRoom, client: GitClient, name: str
) -> None:
    with pytest.raises(LimitBroken):
        await made(room, "1", client.source(), name=name)
    first = await made(room, "2", client.source(), name="a.b_c-9")
    with pytest.raises(LimitBroken):
        await room.provisioner.rename("ada", first.workspace_id, name)
    with pytest.raises(LimitBroken):
        await room.provisioner.fork(
            "ada",
            first.workspace_id,
            idempotency_key="f",
            name=name,
            branch="",
            lease=LEASE,
            overlay=False,
        )
    assert claims(room) == 1


async def test_a_rename_moves_the_claim_and_touches_no_file(
    room: ProvisionerRoom, client: GitClient
) -> None:
    first = await made(room, "1", client.source(), name="one", branch="b")
    second = await made(room, "2", client.source(), name="two")
    path = room.layout.trees / first.workspace_id
    (path / "uncommitted").write_bytes(b"x")
    with pytest.raises(WorkspaceExists):
        await room.provisioner.rename("ada", first.workspace_id, "two")
    renamed = await room.provisioner.rename("ada", first.workspace_id, "three")
    assert renamed.name == "three"
    assert renamed.workspace_id == first.workspace_id
    assert await room.provisioner.rename("ada", first.workspace_id, "three") == renamed
    assert (path / "uncommitted").read_bytes() == b"x"
    await room.provisioner.rename("ada", second.workspace_id, "one")
    # A repeated create is still the same workspace, whatever its name is by now.
    assert (await made(room, "1", client.source(), name="one", branch="b")) == renamed
    assert (await room.provisioner.rename("ada", first.workspace_id, "")).name == ""
    await made(room, "4", client.source(), name="three")


async def test_a_claim_of_a_build_that_was_killed_is_taken_over(
    room: ProvisionerRoom, client: GitClient
) -> None:
    key = client.source().key
    dead = "wsp_" + "d" * 26
    for kind, text in ((ClaimKind.NAME, "one"), (ClaimKind.BRANCH, "b")):
        await room.core.claims.take(dead, [Claim(key, kind, text)])
    found = await made(room, "1", client.source(), name="one", branch="b")
    await room.core.claims.drop(dead, [Claim(key, ClaimKind.NAME, "one")])
    assert claims(room) == 2
    assert (found.name, found.branch) == ("one", "b")


async def test_who_comes_while_claims_are_given_up_finds_all_taken_or_all_free(
    tmp_path: Path, client: GitClient
) -> None:
    disk = WatchedDisk()
    key = client.source().key
    wanted = [Claim(key, ClaimKind.NAME, "one"), Claim(key, ClaimKind.BRANCH, "b")]
    going, coming = "wsp_" + "g" * 26, "wsp_" + "c" * 26
    async with open_room(tmp_path / "host", disk=disk) as room:
        taken = room.core.claims
        await taken.take(going, wanted)
        found: list[int] = []

        def come() -> None:
            disk.after_remove = lambda: None
            found.append(taken.take_free(coming, wanted))
            taken.drop_now(coming, wanted[: found[-1]])
            disk.after_remove = come

        disk.after_remove = come
        await taken.drop(going, wanted)
        assert found == [0, 2]
        assert claims(room) == 0


async def test_a_claim_of_a_build_that_goes_on_is_not(
    room: ProvisionerRoom, client: GitClient
) -> None:
    going_on = "wsp_" + "d" * 26
    async with room.core.locks.hold(going_on):
        await room.core.claims.take(going_on, [Claim(client.source().key, ClaimKind.NAME, "one")])
        with pytest.raises(WorkspaceExists):
            await made(room, "1", client.source(), name="one")


async def test_after_a_restart_names_are_what_the_records_say(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        await made(room, "1", client.source(), name="one", branch="b")
        await room.core.claims.take(
            "wsp_" + "d" * 26, [Claim(client.source().key, ClaimKind.NAME, "dead")]
        )
        for path in room.layout.names.rglob("branches/*"):
            path.unlink()
    async with open_room(tmp_path / "host") as room:
        assert claims(room) == 2
        with pytest.raises(BranchInUse):
            await made(room, "2", client.source(), branch="b")
        await made(room, "3", client.source(), name="dead")
