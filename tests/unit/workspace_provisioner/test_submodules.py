"""Submodules within their limits: number, depth, bytes, time; whatever fails is told and fatal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest

from chassis.errors import FairleadError
from tests.fakes.clock import START
from workspace_provisioner.gitmodules import Submodule
from workspace_provisioner.origin_ports import Talk
from workspace_provisioner.origins import Origin, OriginFailed, OriginFault, checked_upstream
from workspace_provisioner.ports import ObjectsLacking
from workspace_provisioner.sources import (
    ObjectFormat,
    ProjectKey,
    Source,
    Tip,
    checked_source,
)
from workspace_provisioner.submodules import SubmoduleLimits, Submodules
from workspace_provisioner.upstreams import OriginFetch
from workspace_provisioner.workspaces import Snapshot

TOP = "a" * 40
ORIGIN = "https://git.example.com/team/project.git"


def commit_of(number: int) -> str:
    return f"{number:040x}"


class World:
    """Super-projects and their submodules, origins and stores, in memory."""

    def __init__(self) -> None:
        self.below: dict[str, tuple[tuple[Submodule, str], ...]] = {}
        self.whole: set[tuple[str, str]] = set()
        self.talks: list[str] = []
        self.written: list[tuple[str, tuple[str, ...], str]] = []
        self.registered: list[tuple[str, list[str]]] = []
        self.faults: dict[str, Exception] = {}
        self.refusals: dict[str, Exception] = {}
        self.bytes = 10
        self.gate = asyncio.Event()
        self.gate.set()

    def talk(
        self, tenant: str, origin: Origin, object_format: ObjectFormat
    ) -> AbstractAsyncContextManager[Talk]:
        return self._talk(f"{tenant} {origin.text}")

    @asynccontextmanager
    async def _talk(self, name: str) -> AsyncIterator[Talk]:
        self.talks.append(name)
        await self.gate.wait()
        if name in self.faults:
            raise self.faults[name]
        yield _Talk(self.bytes)

    async def holds(self, key: ProjectKey) -> bool:
        return True

    async def knows(self, key: ProjectKey, commit: str) -> bool:
        return (key.project, commit) in self.whole

    async def spaced(self, key: ProjectKey) -> tuple[str, ...]:
        return ()

    async def receive(
        self, source: Source, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        size = sum([len(chunk) async for chunk in chunks])
        self.whole.add((source.key.project, source.commit))
        return Snapshot("snp_x", source.key, "", source.commit, "", tips, START, size)

    async def declared(self, key: ProjectKey, commit: str) -> tuple[tuple[Submodule, str], ...]:
        return self.below.get(commit, ())

    async def register(
        self,
        workspace_id: str,
        key: ProjectKey,
        path: str,
        names: tuple[str, ...],
        submodules: Sequence[tuple[Submodule, Origin]],
    ) -> None:
        self.registered.append((path, [origin.text for _, origin in submodules]))

    async def check_out(
        self, workspace_id: str, key: ProjectKey, commit: str, path: str, names: tuple[str, ...]
    ) -> None:
        if path in self.refusals:
            raise self.refusals[path]
        self.written.append((path, names, commit))


class _Talk:
    def __init__(self, size: int) -> None:
        self._size = size

    async def tip(self, branch: str) -> str:
        raise AssertionError("no branch is asked for")

    async def pack(self, commit: str, having: Sequence[str]) -> AsyncIterator[bytes]:
        yield b"x" * self._size


def submodules(world: World, limits: SubmoduleLimits | None = None) -> Submodules:
    fetch = OriginFetch(origins=world, stores=world, ancestry=world, intake=world)
    slots = asyncio.Semaphore(1)
    return Submodules(fetch=fetch, trees=world, limits=limits or SubmoduleLimits(), slots=slots)


def source(origin: str = ORIGIN) -> Source:
    plain = checked_source(
        tenant="ada", project="p", object_format="", commit=TOP, branch="", digest="", changes=None
    )
    return replace(plain, submodules=True, origin=origin)


def entry(number: int, url: str = "") -> tuple[Submodule, str]:
    return Submodule(f"s{number}", f"p{number}", url or f"../s{number}.git"), commit_of(number)


async def refused(found: Submodules, wanted: Source | None = None) -> FairleadError:
    with pytest.raises(FairleadError) as raised:
        await found.initialise("wsp_x", wanted or source())
    return raised.value


@pytest.mark.asyncio
async def test_nested_submodules_each_from_its_own_origin() -> None:
    world = World()
    world.below = {
        TOP: (entry(1), entry(2, "https://other.example/x/y.git")),
        commit_of(2): (entry(3, "../z.git"),),
    }
    await submodules(world).initialise("wsp_x", source())
    assert world.talks == [
        "ada https://git.example.com/team/s1.git",
        "ada https://other.example/x/y.git",
        "ada https://other.example/x/z.git",
    ]
    assert world.written == [
        ("p1", ("s1",), commit_of(1)),
        ("p2", ("s2",), commit_of(2)),
        ("p2/p3", ("s2", "s3"), commit_of(3)),
    ]
    assert world.registered == [
        ("", ["https://git.example.com/team/s1.git", "https://other.example/x/y.git"]),
        ("p2", ["https://other.example/x/z.git"]),
    ]
    # What is here is not fetched again.
    await submodules(world).initialise("wsp_y", source())
    assert len(world.talks) == 3


@pytest.mark.asyncio
async def test_an_upstream_is_where_relative_urls_start() -> None:
    world = World()
    world.below = {TOP: (entry(1),)}
    upstream = checked_upstream("git@h.example:team/p.git", "main", None)
    await submodules(world).initialise("wsp_x", replace(source(""), upstream=upstream))
    assert world.talks == ["ada ssh://git@h.example/~/team/s1.git"]


@pytest.mark.asyncio
async def test_a_relative_url_without_an_origin() -> None:
    world = World()
    world.below = {TOP: (entry(1),)}
    error = await refused(submodules(world), source(""))
    assert (error.reason, error.fields["cause"]) == ("submodule_unavailable", "origin_unknown")
    world.below = {TOP: (entry(1, "https://other.example/x"),)}
    await submodules(world).initialise("wsp_x", source(""))


@pytest.mark.asyncio
async def test_how_many_there_may_be_in_all() -> None:
    world = World()
    world.below = {TOP: (entry(1), entry(2)), commit_of(1): (entry(3), entry(4))}
    await submodules(world, SubmoduleLimits(count=4)).initialise("wsp_x", source())
    error = await refused(submodules(world, SubmoduleLimits(count=3)))
    assert error.reason == "submodules_too_large"
    assert "more than 3" in error.message


@pytest.mark.asyncio
async def test_how_deep_they_may_nest_also_when_they_nest_for_ever() -> None:
    world = World()
    world.below = {TOP: (entry(1),), commit_of(1): (entry(1, "../s1.git"),)}
    error = await refused(submodules(world, SubmoduleLimits(depth=4)))
    assert error.reason == "submodules_too_large"
    assert len(world.written) == 4


@pytest.mark.asyncio
async def test_how_many_bytes_may_come_in_all() -> None:
    world = World()
    world.below = {TOP: (entry(1), entry(2), entry(3))}
    await submodules(world, SubmoduleLimits(bytes=30)).initialise("wsp_x", source())
    world.whole.clear()
    error = await refused(submodules(world, SubmoduleLimits(bytes=25)))
    assert (error.reason, error.fields["path"]) == ("submodule_unavailable", "p3")
    world.whole.clear()
    error = await refused(submodules(world, SubmoduleLimits(bytes=20)))
    assert error.reason == "submodules_too_large"


@pytest.mark.asyncio
async def test_how_long_one_may_take() -> None:
    world = World()
    world.below = {TOP: (entry(1),)}
    world.gate.clear()
    error = await refused(submodules(world, SubmoduleLimits(seconds=0.01)))
    assert (error.reason, error.fields["cause"]) == ("submodule_unavailable", "origin_timeout")


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", list(OriginFault))
async def test_every_fault_of_an_origin_is_told(fault: OriginFault) -> None:
    world = World()
    world.below = {TOP: (entry(1),)}
    world.faults["ada https://git.example.com/team/s1.git"] = OriginFailed(fault, "secret detail")
    error = await refused(submodules(world))
    assert error.fields == {"path": "p1", "cause": fault}
    assert "secret" not in error.message
    assert world.written == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("raised", "cause"),
    [(FileExistsError("p1"), "path_taken"), (ObjectsLacking(), "missing_objects")],
)
async def test_what_stands_in_the_way_of_the_files(raised: Exception, cause: str) -> None:
    world = World()
    world.below = {TOP: (entry(1),)}
    world.refusals["p1"] = raised
    error = await refused(submodules(world))
    assert (error.reason, error.fields["cause"]) == ("submodule_unavailable", cause)
