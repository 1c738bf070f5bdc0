"""Workspaces of every rung in walled sandboxes: git works in them, and the provisioner still
counts, copies and releases what the sandbox's own uid wrote.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.disk_watch import deleted_bytes, measure
from sandbox_worker.isolation.descendants import below
from sandbox_worker.isolation.init_link import InitEnclosure
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.ports import ProgramOrder, Tree
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy
from sandbox_worker.trees import HostTrees
from tests.fakes.git_client import GitClient
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_layered_room
from tests.fakes.walled import open_walled, run
from workspace_provisioner.workspaces import Rung

pytestmark = pytest.mark.asyncio

_NONE = NetworkPolicy(NetworkMode.NONE)
_COMMIT = "git -c user.name=a -c user.email=a@b commit -q"


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("kept", b"kept\n")
    found.write("sub/changed", b"before\n")
    found.write("removed", b"x\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        yield opened


@pytest_asyncio.fixture
async def isolation(walls: Survey) -> AsyncIterator[WalledIsolation]:
    async with open_walled(walls) as opened:
        yield opened


async def tree_of(room: ProvisionerRoom, workspace_id: str) -> Tree:
    return await HostTrees(host_root=room.layout.host_root).find(workspace_id)


async def enclosed(isolation: WalledIsolation, tree: Tree | None) -> InitEnclosure:
    return await isolation.enclose(
        random_id("sbx"), Limits(open_files=1024), _NONE, tenant="ada", workspace=tree
    )


@pytest.mark.parametrize("overlay", [True, False])
async def test_git_works_inside_and_the_provisioner_outside(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation, overlay: bool
) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source(), "fix", overlay=overlay)
    assert made.rung is (Rung.OVERLAY if overlay else Rung.CHECKOUT)
    tree = await tree_of(room, made.workspace_id)
    assert tree.stores == (str(room.layout.store(made.key) / "objects"),)
    enclosure = await enclosed(isolation, tree)
    assert await run(enclosure, "pwd; git status --porcelain; git log --format=%s | wc -l") == (
        "/workspace\n1\n"
    )
    assert await run(enclosure, "grep -v nosuid /proc/self/mountinfo") == ""
    assert await run(enclosure, "git fsck 2>&1 | grep -v ^notice; git config -l --show-origin"
                     " | grep -c safe") == "0\n"  # fmt: skip
    script = "echo after > sub/changed; rm removed; mkdir made; echo new > made/file"
    assert await run(enclosure, script) == ""
    assert await run(enclosure, "git status --porcelain") == (
        " D removed\n M sub/changed\n?? made/\n"
    )
    assert await room.provisioner.count_changes(made) == 3
    assert await run(enclosure, f"git add -A; {_COMMIT} -m two; git status --porcelain") == ""
    top = Path(tree.layers.upper) if tree.layers else path
    assert {each.lstat().st_uid for each in top.rglob("*")} == {os.geteuid()}
    for store in map(Path, tree.stores):
        assert "x" in await run(enclosure, f"touch {store}/x; rm -rf {store}/pack; test -d "
                                f"{store}/pack && echo x")  # fmt: skip
        assert not (store / "x").exists()
        assert (store / "pack").is_dir()
    await enclosure.destroy()
    assert await room.provisioner.count_changes(made) == 3
    await room.trees.discard(made.workspace_id)
    assert not path.exists()
    assert not (room.layout.layers / made.workspace_id).exists()


def changes(top: str) -> dict[Path, int]:
    return {each: each.lstat().st_ctime_ns for each in Path(top).rglob("*")}


async def test_the_frozen_layers_cannot_be_written(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation
) -> None:
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    tree = await tree_of(room, made.workspace_id)
    assert tree.layers is not None
    before = changes(tree.layers.lower[0])
    enclosure = await enclosed(isolation, tree)
    await run(enclosure, "chmod -R a+w . ; echo x >> kept; rm -rf sub .git/objects; ls /.layers")
    await enclosure.destroy()
    assert changes(tree.layers.lower[0]) == before


async def test_a_store_of_one_project_does_not_show_another(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation, tmp_path: Path
) -> None:
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    enclosure = await enclosed(isolation, await tree_of(room, made.workspace_id))
    (store,) = (await tree_of(room, made.workspace_id)).stores
    assert await run(enclosure, f"ls -A {Path(store).parent}") == "objects\n"
    assert await run(enclosure, f"ls -A {room.layout.host_root}") == "workspaces\n"
    assert await run(enclosure, f"ls -A {tmp_path}") == "host\n"
    await enclosure.destroy()


@pytest.mark.parametrize("overlay", [True, False])
async def test_a_fork_of_what_a_walled_sandbox_wrote(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation, overlay: bool
) -> None:
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=overlay)
    enclosure = await enclosed(isolation, await tree_of(room, made.workspace_id))
    await run(enclosure, "umask 077; mkdir private; echo mine > private/file; rm removed")
    forked = await room.provisioner.fork(
        made.tenant,
        made.workspace_id,
        idempotency_key="f",
        name="",
        branch="",
        lease=LEASE,
        overlay=overlay,
    )
    await enclosure.destroy()
    tree = await tree_of(room, forked.workspace_id)
    assert tree.stores == (str(room.layout.store(made.key) / "objects"),)
    other = await enclosed(isolation, tree)
    assert await run(other, "cat private/file; git status --porcelain") == (
        "mine\n D removed\n?? private/\n"
    )
    await other.destroy()


@pytest.mark.parametrize("overlay", [True, False])
async def test_what_a_sandbox_has_shut_is_counted_and_removed(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation, overlay: bool
) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source(), overlay=overlay)
    tree = await tree_of(room, made.workspace_id)
    enclosure = await enclosed(isolation, tree)
    fill = "mkdir -p shut/below; head -c 300000 /dev/urandom > shut/below/big; chmod 0 shut/below"
    assert await run(enclosure, f"{fill}; chmod 0 shut; chmod 0 .") == ""
    top = Path(tree.layers.upper) if tree.layers else path
    assert measure(top, 1 << 62) > 300_000
    await enclosure.destroy()
    await room.trees.discard(made.workspace_id)
    assert not path.exists()
    assert not (room.layout.layers / made.workspace_id).exists()


@pytest.mark.parametrize("overlay", [True, False])
async def test_what_is_deleted_counts_as_long_as_it_is_open(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation, overlay: bool
) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source(), overlay=overlay)
    tree = await tree_of(room, made.workspace_id)
    enclosure = await enclosed(isolation, tree)
    fill = (
        "exec 3> big; rm big; head -c 300000 /dev/urandom >&3; (exec sleep 600) & "
        "exec 4> /tmp/big; rm /tmp/big; head -c 200000 /dev/urandom >&4; sync; echo done; sleep 600"
    )
    program = await enclosure.start(
        ProgramOrder(
            execution_id=random_id("exe"),
            arguments=("sh", "-c", fill),
            environment={},
            directory="",
            stdin=False,
        )
    )
    assert await program.read()
    top = Path(tree.layers.upper) if tree.layers else path
    assert 300_000 <= deleted_bytes(enclosure.first_process, top, below) < 400_000
    await enclosure.destroy()
    program.close()
    assert deleted_bytes(enclosure.first_process, top, below) == 0


async def test_binding_later_and_too_late(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation
) -> None:
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    tree = await tree_of(room, made.workspace_id)
    enclosure = await enclosed(isolation, None)
    for _ in range(2):
        await enclosure.bind(tree)
    assert await run(enclosure, "cat ../kept; pwd", "sub") == "kept\n/workspace/sub\n"
    await enclosure.destroy()
    late = await enclosed(isolation, None)
    assert await run(late, "pwd") == "/home/sandbox\n"
    with pytest.raises(FairleadError) as caught:
        await late.bind(tree)
    assert caught.value.reason == "sandbox_sealed"
    assert await run(late, "echo still") == "still\n"
    await late.destroy()


async def test_a_workspace_that_was_given_back(
    room: ProvisionerRoom, client: GitClient, isolation: WalledIsolation
) -> None:
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    tree = await tree_of(room, made.workspace_id)
    enclosure = await enclosed(isolation, tree)
    await room.trees.discard(made.workspace_id)
    with pytest.raises(FairleadError) as caught:
        await run(enclosure, "true")
    assert caught.value.reason == "workspace_not_found"
    other = isolation.enclose(random_id("sbx"), Limits(), _NONE, tenant="ada", workspace=tree)
    with pytest.raises(FairleadError) as caught:
        await other
    assert caught.value.reason == "workspace_not_mounted"
    await enclosure.destroy()


async def test_private_files_are_bounded(isolation: WalledIsolation) -> None:
    limits = Limits(open_files=1024, disk_bytes=1 << 20)
    enclosure = await isolation.enclose(random_id("sbx"), limits, _NONE, tenant="ada")
    script = "head -c 2000000 /dev/zero > $HOME/a || stat -c %s $HOME/a; echo > /tmp/b || echo full"
    size, full = (await run(enclosure, script)).splitlines()[1::2]
    assert 900_000 < int(size) <= 1 << 20
    assert full == "full"
    await enclosure.destroy()
