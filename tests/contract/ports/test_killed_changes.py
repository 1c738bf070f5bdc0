"""kill -9 at each step of sync, rename and delete: after a restart all is consistent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.git_client import listing, run_git
from tests.fakes.killed_story import Story
from tests.fakes.provisioner_room import ProvisionerRoom
from workspace_provisioner.errors import WorkspaceReleased
from workspace_provisioner.workspaces import MissReason, Workspace

pytestmark = pytest.mark.slow


@pytest.fixture(params=[False, True], ids=["tree", "overlay"])
def story(tmp_path: Path, request: pytest.FixtureRequest) -> Story:
    return Story(tmp_path, overlay=request.param)


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
