"""Preparing goes on beside the calls, newest first, and follows the demand."""

from __future__ import annotations

import asyncio

from tests.fakes.clock import FakeClock
from tests.fakes.virtual_time import run
from workspace_provisioner.ports import CheckoutPlan, ObjectsLacking
from workspace_provisioner.preparations import MOST_ENTRIES, Preparations
from workspace_provisioner.sources import ObjectFormat, ProjectKey

KEY = ProjectKey("ada", "p", ObjectFormat.SHA1)


class ShelfList:
    """Shelves that remember what they were asked for, and when."""

    def __init__(self, *, can_overlay: bool) -> None:
        self.can_overlay = can_overlay
        self.prepared: list[tuple[str, int]] = []
        self.times: list[float] = []
        self.collected = 0
        self.failing: dict[str, Exception] = {}

    async def prepare(self, key: ProjectKey, commit: str, *, depth: int) -> None:
        self.prepared.append((commit, depth))
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1)
        if commit in self.failing:
            raise self.failing[commit]

    async def collect(self) -> None:
        self.collected += 1


def plan(commit: str) -> CheckoutPlan:
    return CheckoutPlan("wsp_x", KEY, commit, "main", None)


def test_the_newest_first_and_each_once() -> None:
    async def work() -> None:
        shelves = ShelfList(can_overlay=True)
        preparations = Preparations(shelves=shelves, clock=FakeClock())
        for commit in ("a", "b", "a", "c"):
            preparations.want(KEY, commit)
        async with preparations.running(lambda: False):
            await preparations.finished()
        assert shelves.prepared == [("c", 0), ("a", 0), ("b", 0)]

    run(work())


def test_what_fails_does_not_stop_the_rest() -> None:
    async def work() -> None:
        shelves = ShelfList(can_overlay=True)
        shelves.failing = {"a": ObjectsLacking(), "b": OSError("disk")}
        preparations = Preparations(shelves=shelves, clock=FakeClock())
        async with preparations.running(lambda: False):
            for commit in ("c", "b", "a"):
                preparations.want(KEY, commit)
            await preparations.finished()
            preparations.want(KEY, "d")
            await preparations.finished()
        assert [commit for commit, _ in shelves.prepared] == ["a", "b", "c", "d"]

    run(work())


def test_calls_go_first_but_not_for_ever() -> None:
    async def work() -> None:
        shelves = ShelfList(can_overlay=True)
        preparations = Preparations(shelves=shelves, clock=FakeClock())
        start = asyncio.get_running_loop().time()
        busy = True
        async with preparations.running(lambda: busy):
            preparations.want(KEY, "a")
            await preparations.finished()
            busy = False
            preparations.want(KEY, "b")
            await preparations.finished()
        first, second = (round(each - start, 2) for each in shelves.times)
        assert first == 1.0
        assert second == first + 1 + 0.05

    run(work())


def test_the_pool_is_as_deep_as_what_was_wanted_lately() -> None:
    async def work() -> None:
        clock = FakeClock()
        for can_overlay, least in ((True, 0), (False, 1)):
            shelves = ShelfList(can_overlay=can_overlay)
            preparations = Preparations(shelves=shelves, clock=clock)
            assert preparations.depth(KEY, "a") == least
            for wanted in range(1, 2 * MOST_ENTRIES):
                preparations.taken(plan("a"))
                assert preparations.depth(KEY, "a") == min(wanted, MOST_ENTRIES)
            assert preparations.depth(KEY, "b") == least
            clock.advance(11 * 60)
            assert preparations.depth(KEY, "a") == least
            async with preparations.running(lambda: False):
                await preparations.finished()
            assert shelves.prepared == [("a", least)]

    run(work())


def test_of_very_many_commits_the_newest_are_remembered() -> None:
    preparations = Preparations(shelves=ShelfList(can_overlay=True), clock=FakeClock())
    for number in range(1001):
        preparations.taken(plan("often"))
        preparations.taken(plan(f"once {number}"))
    depths = [preparations.depth(KEY, f"once {number}") for number in range(1001)]
    assert depths == [0, 0, *[1] * 999]
    assert preparations.depth(KEY, "often") == MOST_ENTRIES


def test_shelves_are_cleared_now_and_then() -> None:
    async def work() -> None:
        shelves = ShelfList(can_overlay=True)
        async with Preparations(shelves=shelves, clock=FakeClock()).running(lambda: False):
            assert shelves.collected == 0
            await asyncio.sleep(1.5)  # a process may live for one launch alone
            assert shelves.collected == 1
            await asyncio.sleep(1000)
        assert shelves.collected == 4

    run(work())
