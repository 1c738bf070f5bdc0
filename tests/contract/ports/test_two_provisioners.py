"""Two provisioner processes on one host root."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import chassis
import fairlead
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.mounted_layers import copy_out, is_layered
from tests.fakes.provisioner_room import LEASE, open_room
from workspace_provisioner import leases
from workspace_provisioner.errors import WorkspaceReleased
from workspace_provisioner.names import claims_of
from workspace_provisioner.ports import CheckoutPlan, Taken
from workspace_provisioner.trees.take import Takes
from workspace_provisioner.workspace_errors import WorkspaceBusy, WorkspaceExists
from workspace_provisioner.workspaces import State, Workspace

OPERATIONS = 25


def start(host: Path, laptop: Path, seed: int) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[3]
    packages = {str(Path(module.__path__[0]).parent) for module in (chassis, fairlead)}
    return subprocess.Popen(
        [
            sys.executable, "-m", "tests.fakes.provisioner_process",
            str(host), str(laptop), str(seed), str(OPERATIONS),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": ":".join([str(root), *packages])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_fifty_mixed_operations_leave_everything_sound(tmp_path: Path) -> None:
    host = tmp_path / "host"
    done: Counter[str] = Counter()
    with ExitStack() as stack:
        processes = [
            stack.enter_context(start(host, tmp_path / f"laptop-{seed}", seed)) for seed in (1, 2)
        ]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.close()
        for process in processes:
            assert process.stdout is not None
            done.update(json.loads(process.stdout.read()))
            assert process.wait() == 0
    assert done["sync"] == 4
    refused = sum(count for what, count in done.items() if what.startswith("create:"))
    assert done["create"] > 2 * refused, done  # one in five wants a name that others want
    assert done["create"] > OPERATIONS // 3
    assert sum(done.values()) == 2 * OPERATIONS + 2
    asyncio.run(_check(host, tmp_path))


async def _check(host: Path, tmp_path: Path) -> None:
    async with open_room(host) as room:
        live = [each for each in room.ledger.all() if each.state is State.PROVISIONED]
        assert {each.workspace_id for each in live} == set(os.listdir(room.layout.trees))
        names = [each.name for each in live if each.name]
        branches = [each.branch for each in live if each.claims_branch]
        assert len(names) == len(set(names))
        assert len(branches) == len(set(branches))
        claimed = sum(path.is_file() for path in room.layout.names.rglob("*"))
        assert claimed == sum(len(claims_of(each)) for each in live)
        for store in room.layout.root.glob("ada/*.git"):
            assert run_git(store, "fsck", "--full", "--no-dangling") == b""
        for each in live:
            path = room.layout.trees / each.workspace_id
            if is_layered(room.layout, each.workspace_id):
                path = copy_out(room.layout, each.workspace_id, tmp_path / each.workspace_id)
            assert run_git(path, "fsck", "--no-dangling") == b""
            assert run_git(path, "status", "--porcelain") == b""


@pytest.mark.asyncio
async def test_what_one_does_the_other_sees(tmp_path: Path) -> None:
    """Two open rooms of one process have the same files between them as two processes."""
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"content\n")
    client.commit()
    host = tmp_path / "host"
    async with open_room(host) as one, open_room(host) as two:
        assert two.core.epoch == one.core.epoch + 1
        await one.upload(client)
        made, path = await one.make("k", client.source())
        assert await two.provisioner.get("ada", made.workspace_id) == made
        assert (await two.make("k", client.source()))[0] == made
        assert (await two.provisioner.list("ada", size=10, after=""))[0] == [made]
        renamed = await two.provisioner.rename("ada", made.workspace_id, "name")
        assert await one.provisioner.get("ada", made.workspace_id) == renamed
        with pytest.raises(WorkspaceExists):
            await one.provisioner.materialize(
                idempotency_key="other",
                source=client.source(),
                branch="",
                lease=LEASE,
                name="name",
            )
        assert await one.provisioner.release("ada", workspace_id=made.workspace_id)
        assert not await two.provisioner.release("ada", workspace_id=made.workspace_id)
        assert (await two.provisioner.list("ada", size=10, after=""))[0] == []
        assert two.ledger.provisioned("ada") == 0
        assert not path.exists()


@pytest.mark.asyncio
async def test_one_key_in_two_processes_is_built_once(tmp_path: Path) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"content\n")
    client.commit()
    async with open_room(tmp_path / "host") as one, open_room(tmp_path / "host") as two:
        await one.upload(client)
        asked = [room.ask(f"k{n}", client.source()) for n in range(5) for room in (one, two)]
        made = await asyncio.gather(*asked)
        assert all(isinstance(each, Workspace) for each in made)
        assert len({each.workspace_id for each in made if isinstance(each, Workspace)}) == 5
        assert len(os.listdir(one.layout.trees)) == 5


@pytest.mark.asyncio
async def test_a_start_leaves_alone_what_another_process_is_making(tmp_path: Path) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"content\n")
    client.commit()
    async with open_room(tmp_path / "host") as one:
        await one.upload(client)
        made, path = await one.make("k", client.source())
        staged = one.layout.staging / f"{next(one.layout.owners.glob('[!.]*')).name}.mine"
        staged.mkdir()
        dead = one.layout.staging / "0123456789abcdef.theirs"
        dead.mkdir()
        # Its files are in place and its record is not there yet.
        unborn = one.layout.trees / ("wsp_" + "b" * 26)
        unborn.mkdir()
        async with one.core.locks.hold(unborn.name), open_room(tmp_path / "host"):
            assert staged.exists()
            assert not dead.exists()
            assert unborn.exists()
            assert path.exists()
        async with open_room(tmp_path / "host"):
            assert not unborn.exists()
            assert (await one.provisioner.get("ada", made.workspace_id)).state is State.PROVISIONED


@pytest.mark.asyncio
async def test_a_release_by_key_stops_a_build_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"content\n")
    client.commit()
    begun, never = asyncio.Event(), asyncio.Event()

    async def stuck(self: Takes, plan: CheckoutPlan) -> Taken:
        begun.set()
        await never.wait()
        raise AssertionError("it is cancelled")

    async with open_room(tmp_path / "host") as one, open_room(tmp_path / "host") as two:
        await one.upload(client)
        with monkeypatch.context() as patched:
            patched.setattr(Takes, "take", stuck)
            building = asyncio.create_task(one.ask("k", client.source()))
            await begun.wait()
            assert await two.provisioner.release("ada", idempotency_key="k")
            with pytest.raises(WorkspaceReleased):
                await building
        for room in (one, two):
            with pytest.raises(WorkspaceReleased):
                await room.ask("k", client.source())
        assert not await two.provisioner.release("ada", idempotency_key="k")
        assert os.listdir(one.layout.trees) == []
        await one.make("other", client.source())


@pytest.mark.asyncio
async def test_a_release_by_key_of_what_is_never_let_go_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_PATIENCE_SECONDS", 0.0)
    async with open_room(tmp_path / "host") as one, open_room(tmp_path / "host") as two:
        workspace_id = one.provisioner.workspace_id("ada", "k")
        async with one.core.locks.hold(workspace_id):
            assert not one.core.locks.is_wanted(workspace_id)
            with pytest.raises(WorkspaceBusy):
                await two.provisioner.release("ada", idempotency_key="k")
            assert not one.core.locks.is_wanted(workspace_id)
        assert not await two.provisioner.release("ada", idempotency_key="k")
