"""The janitor deletes after builds, but not never."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.checkouts import MemoryCare, MemoryTrees
from tests.fakes.provisioner_cases import Room, room_with_commit
from tests.fakes.virtual_time import run
from workspace_provisioner.janitor import Janitor
from workspace_provisioner.upkeep import Upkeep


class SlicedTrees(MemoryTrees):
    """Trees whose trash takes some slices; `slices` are the times at which one was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.slices: list[float] = []

    async def empty_trash(self) -> bool:
        if self.left:
            self.left -= 1
            self.slices.append(asyncio.get_running_loop().time())
        return not self.left


async def slices(*, building: bool) -> list[float]:
    """Return when each of three slices was deleted, in seconds after a release."""
    room: Room = await room_with_commit()
    trees = SlicedTrees()
    upkeep = Upkeep(care=MemoryCare(), ledger=room.ledger, trees=trees)
    janitor = Janitor(trees=trees, importer=room.importer, upkeep=upkeep)
    async with janitor.running(room.provisioner):
        await asyncio.sleep(1)
        if building:
            room.trees.gate.clear()
            build = asyncio.create_task(room.make())
            await room.trees.begun.wait()
        trees.left = 3
        janitor.hurry()
        start = asyncio.get_running_loop().time()
        await asyncio.sleep(30)
        if building:
            room.trees.gate.set()
            await build
    return [moment - start for moment in trees.slices]


def test_the_launch_after_a_release_is_not_disturbed() -> None:
    assert run(slices(building=False)) == pytest.approx([1.05, 1.10, 1.15])


def test_builds_hold_deletion_up_for_a_second_at_most() -> None:
    assert run(slices(building=True)) == pytest.approx([2.0, 3.0, 4.0])
