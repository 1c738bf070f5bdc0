"""kill -9 at each step of create and fork: after a restart all is consistent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.killed_story import Story
from tests.fakes.provisioner_room import ProvisionerRoom

pytestmark = pytest.mark.slow


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
