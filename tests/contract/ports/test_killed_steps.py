"""kill -9 at each step of sync, create, fork, rename and delete: after a restart all is
consistent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.mounted_layers import copy_out
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_room
from tests.fakes.sudden_death import killed_at
from workspace_provisioner.errors import WorkspaceReleased
from workspace_provisioner.names import claims_of
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import MissReason, State, Workspace

MOST_STEPS = 200

pytestmark = pytest.mark.slow


class Story:
    """One workspace in a host root, which is opened again and again."""

    def __init__(self, tmp_path: Path, *, overlay: bool) -> None:
        self.host = tmp_path / "host"
        self.overlay = overlay
        self.client = client = GitClient(tmp_path / "laptop")
        for number in range(5):
            client.write(f"d{number}/f", b"content\n")
        client.commit()
        self.files = {client.head(): listing(client.path)}
        self.source: Source = client.source()
        self.copies = tmp_path / "copies"
        self.copies.mkdir()
        asyncio.run(self._upload(client))

    async def _upload(self, client: GitClient) -> None:
        async with open_room(self.host) as room:
            if self.overlay and not room.trees.can_overlay:
                pytest.skip("overlays cannot be mounted here")
            await room.upload(client)
            await self.create(room, "source", "source")

    async def create(
        self, room: ProvisionerRoom, key: str, name: str, branch: str = ""
    ) -> Workspace:
        made = await room.provisioner.materialize(
            idempotency_key=key,
            source=self.source,
            branch=branch or f"branch-{name}",
            lease=LEASE,
            name=name,
            claims_branch=True,
            overlay=self.overlay,
        )
        assert isinstance(made, Workspace)
        return made

    async def fork(self, room: ProvisionerRoom, key: str, name: str) -> Workspace:
        source = room.provisioner.workspace_id("ada", "source")
        return await room.provisioner.fork(
            "ada",
            source,
            idempotency_key=key,
            name=name,
            branch=f"branch-{name}",
            lease=LEASE,
            overlay=self.overlay,
        )

    def check(self, room: ProvisionerRoom) -> None:
        """What records, trees and claims say is the same, and every workspace is whole."""
        (owner,) = (path.name for path in room.layout.owners.iterdir())
        for directory in (room.layout.staging, room.layout.incoming):
            assert all(name.startswith(owner) for name in os.listdir(directory))
        live = [each for each in room.ledger.all() if each.state is State.PROVISIONED]
        ids = {each.workspace_id for each in live}
        assert set(os.listdir(room.layout.trees)) == ids
        assert set(os.listdir(room.layout.layers)) <= ids
        assert set(os.listdir(room.layout.baselines)) <= ids
        claimed = [path.read_text() for path in room.layout.names.rglob("*") if path.is_file()]
        wanted = [each.workspace_id for each in live for _ in claims_of(each)]
        assert sorted(claimed) == sorted(wanted)
        for each in live:
            self.check_files(room, each)

    def check_files(self, room: ProvisionerRoom, made: Workspace) -> None:
        path = room.layout.trees / made.workspace_id
        if (room.layout.layers / made.workspace_id).exists():
            number = len(list(self.copies.iterdir()))
            path = copy_out(room.layout, made.workspace_id, self.copies / str(number))
        assert listing(path) == self.files[made.commit]
        head = run_git(path, "symbolic-ref", "--short", "HEAD").decode().strip()
        assert head == made.branch
        assert run_git(path, "status", "--porcelain") == b""

    def die_at_each_step(
        self,
        work: Callable[[ProvisionerRoom, int, Callable[[], None]], Awaitable[None]],
        restart: Callable[[ProvisionerRoom, int], Awaitable[None]],
    ) -> int:
        """Kill `work` at its first step, then at its second, until it ends; after each time
        restart, check, and let `restart` go on. Returns the number of steps.
        """
        # A checkout has many small files, and nobody sees it before it is whole.
        for step in range(0, MOST_STEPS, 1 if self.overlay else 4):

            async def once(begin: Callable[[], None], step: int = step) -> None:
                async with open_room(self.host) as room:
                    await work(room, step, begin)
                    os._exit(0)  # before what is cleared up at the end

            died = killed_at(step, self.host, once)
            asyncio.run(self._restart(restart, step))
            if not died:
                return step
        raise AssertionError("it never ended")

    async def _restart(
        self, restart: Callable[[ProvisionerRoom, int], Awaitable[None]], step: int
    ) -> None:
        async with open_room(self.host) as room:
            self.check(room)
            await restart(room, step)
            self.check(room)


@pytest.fixture(params=[False, True], ids=["tree", "overlay"])
def story(tmp_path: Path, request: pytest.FixtureRequest) -> Story:
    return Story(tmp_path, overlay=request.param)


def test_create(story: Story) -> None:
    async def work(room: ProvisionerRoom, step: int, begin: Callable[[], None]) -> None:
        begin()
        await story.create(room, f"k{step}", "one")

    async def restart(room: ProvisionerRoom, step: int) -> None:
        made = await story.create(room, f"k{step}", "one")
        assert made.name == "one"
        await room.provisioner.release("ada", workspace_id=made.workspace_id)

    assert story.die_at_each_step(work, restart) >= 4


def test_fork(story: Story) -> None:
    async def work(room: ProvisionerRoom, step: int, begin: Callable[[], None]) -> None:
        begin()
        await story.fork(room, f"k{step}", "one")

    async def restart(room: ProvisionerRoom, step: int) -> None:
        made = await story.fork(room, f"k{step}", "one")
        await room.provisioner.release("ada", workspace_id=made.workspace_id)

    assert story.die_at_each_step(work, restart) >= 4


def test_rename(story: Story) -> None:
    async def work(room: ProvisionerRoom, step: int, begin: Callable[[], None]) -> None:
        source = room.provisioner.workspace_id("ada", "source")
        begin()
        await room.provisioner.rename("ada", source, f"name-{step}")

    async def restart(room: ProvisionerRoom, step: int) -> None:
        source = room.provisioner.workspace_id("ada", "source")
        renamed = await room.provisioner.rename("ada", source, f"name-{step}")
        assert renamed.name == f"name-{step}"
        # The old names are free.
        other = await story.create(room, f"k{step}", "source", branch="other")
        await room.provisioner.release("ada", workspace_id=other.workspace_id)

    assert story.die_at_each_step(work, restart) > 2


def test_delete(story: Story) -> None:
    async def work(room: ProvisionerRoom, step: int, begin: Callable[[], None]) -> None:
        made = await story.create(room, f"k{step}", "one")
        begin()
        await room.provisioner.release("ada", workspace_id=made.workspace_id)

    async def restart(room: ProvisionerRoom, step: int) -> None:
        made = room.provisioner.workspace_id("ada", f"k{step}")
        await room.provisioner.release("ada", workspace_id=made)
        with pytest.raises(WorkspaceReleased):
            await story.create(room, f"k{step}", "one")
        again = await story.create(room, f"again {step}", "one")
        await room.provisioner.release("ada", workspace_id=again.workspace_id)

    assert story.die_at_each_step(work, restart) > 3


def test_sync(tmp_path: Path) -> None:
    story = Story(tmp_path, overlay=False)
    before = story.client.head()

    async def work(room: ProvisionerRoom, step: int, begin: Callable[[], None]) -> None:
        story.client.write("d0/f", f"{step}\n".encode())
        story.client.commit()
        begin()
        await room.upload(story.client, having=[before])

    async def restart(room: ProvisionerRoom, step: int) -> None:
        story.files[story.client.head()] = listing(story.client.path)
        story.source = story.client.source()
        # Either all of the upload is there or nothing, and it can be sent again.
        asked = await room.ask(f"asked{step}", story.source, overlay=story.overlay)
        if not isinstance(asked, Workspace):
            assert asked.reason in (MissReason.UNKNOWN_COMMIT, MissReason.SNAPSHOT_NOT_DURABLE)
            await room.upload(story.client, having=[before])
        await story.create(room, f"k{step}", "one")
        store = room.layout.store(story.source.key)
        assert run_git(store, "fsck", "--no-dangling") == b""
        story.check(room)
        for key in ("asked", "k"):
            await room.provisioner.release("ada", idempotency_key=f"{key}{step}")

    assert story.die_at_each_step(work, restart) >= 4
